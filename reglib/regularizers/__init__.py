"""Penalties: pure functions of tensors, one value for each sample.

`PENALTIES` gives each a name, under which a `Training` asks for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib.errors import UsageError
from reglib.regularizers.input_gradient import input_gradient_penalty
from reglib.top_gap import TopGAP, class_map_l1

__all__ = ["PENALTIES", "Step", "class_map_l1", "input_gradient_penalty", "take_step"]


class Step(NamedTuple):
    """What a penalty may look at in one training step.

    `inputs` (B, C, H, W) requires a gradient; `logits` (B, classes) were computed from it, and on
    the way `class_maps` (B, classes, h, w), if the network has a `TopGAP` layer that pools them.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor
    generator: torch.Generator
    class_maps: Tensor | None = None


def take_step(model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Step:
    """Run a network on a batch, and note what penalties may look at.

    The class maps are what the `TopGAP` layer is given: a hook that lives as long as the call sees
    them, so that networks keep nothing of a forward pass, and one pass serves loss and penalties.
    """
    maps: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        maps.append(arguments[0])

    pools = [module for module in model.modules() if isinstance(module, TopGAP)]
    hooks = [pool.register_forward_pre_hook(note) for pool in pools]
    try:
        logits = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return Step(model, inputs, labels, logits, generator, maps[-1] if maps else None)


def _class_map_l1(step: Step) -> Tensor:
    if step.class_maps is None:
        raise UsageError(
            "penalty 'class_map_l1': expected a network with a TopGAP layer, got "
            f"{type(step.model).__name__}; name the network 'top_gap', with k = 1.0 for the mean "
            "over all locations"
        )
    return class_map_l1(step.class_maps)


PENALTIES: dict[str, Callable[[Step], Tensor]] = {
    "class_map_l1": _class_map_l1,
    "input_gradient": lambda step: input_gradient_penalty(step.logits, step.labels, step.inputs),
}
