"""The optimizers of a training, their settings, and the schedule of the learning rate."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from suite.errors import UsageError, check_call
from suite.units import SWITCH, Training, require, rule

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "sgd": SGD}
NO_SWITCH = rule("a number", lambda value: not isinstance(value, bool))
# Arguments of PyTorch's optimizers that are not settings of a unit.
GIVEN = """params lr fused foreach maximize differentiable amsgrad capturable
decoupled_weight_decay""".split()


def build_optimizer(unit: Training, network: nn.Module) -> Optimizer:
    """Return the optimizer of a unit for the parameters of a network.

    With the setting "decay_all" false, biases and the weights of normalisations do not decay.

    Raises:
        UsageError: an unknown optimizer or setting, or an invalid value.
    """
    name, options = unit.optimizer, dict(unit.optimizer_options)
    check_call("optimizer", name, OPTIMIZERS, options, supplied=GIVEN, extra=("decay_all",))
    for setting, value in options.items():
        argument = inspect.signature(OPTIMIZERS[name]).parameters.get(setting)
        switch = argument is None or isinstance(argument.default, bool)
        require(f"optimizer {name!r}: {setting}", value, SWITCH if switch else NO_SWITCH)
    parameters: Any = list(network.parameters())
    if not options.pop("decay_all", True):
        # Biases, and the scales and shifts of normalisations, have one dimension.
        parameters = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
    try:
        return OPTIMIZERS[name](parameters, lr=unit.learning_rate, fused=True, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {name!r}: {error}") from error


def set_learning_rate(
    optimizer: Optimizer, unit: Training, *, steps: int, steps_per_epoch: int
) -> None:
    r"""Set the learning rate for the step after `steps` steps.

    .. math:: \eta_s = \tfrac12 \eta_0 \left( 1 + \cos \frac{\pi s}{E S} \right)

    with `S` steps in an epoch and `E = unit.cosine_epochs`. Without `cosine_epochs` it is the
    initial rate, divided by ten after each of `unit.decay_epochs`.

    Source: :cite:t:`loshchilov2017`, without restarts, after every step.
    """
    if unit.cosine_epochs is None:
        decays = sum(steps >= epochs * steps_per_epoch for epochs in unit.decay_epochs)
        rate = unit.learning_rate / 10**decays
    else:
        share = steps / (unit.cosine_epochs * steps_per_epoch)
        rate = unit.learning_rate * (1 + math.cos(math.pi * share)) / 2
    for group in optimizer.param_groups:
        present = group["lr"]  # a CUDA graph reads it where it is a tensor
        group["lr"] = present.fill_(rate) if isinstance(present, torch.Tensor) else rate
