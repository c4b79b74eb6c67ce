"""Checkpoints: weights, state of the optimizer, losses."""

import torch
from torch import Tensor, nn

from suite.errors import expected

State = dict[str, Tensor]


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> State:
    """Return the state that `restore` needs, as tensors by name."""
    state = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
    state["losses"] = torch.tensor(losses, dtype=torch.float64)
    return state


def weights_of(state: State) -> State:
    """Return the weights of the network in a state."""
    prefix = "network."
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def restore(state: State, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Put a network and its optimizer into a state; return the losses of the epochs before it.

    Raises:
        UsageError: not a state of a training.
    """
    weights = weights_of(state)
    if not weights or "losses" not in state:
        raise expected("resume", "the state that on_epoch gave", "something else")
    slots: dict[int, State] = {}
    for name in state:
        if name.startswith("optimizer."):
            _, index, slot = name.split(".", 2)
            slots.setdefault(int(index), {})[slot] = state[name]
    network.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    # Files do not keep layouts; fused optimizers pair a weight with its moments by memory offset.
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if value.shape == parameter.shape:
                moments[name] = torch.empty_like(parameter).copy_(value)
    return state["losses"].tolist()
