"""Penalties: pure functions of tensors, one value for each sample.

`PENALTIES` gives each a name, under which a `Training` asks for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reglib.regularizers.input_gradient import input_gradient_penalty

__all__ = ["PENALTIES", "Step", "input_gradient_penalty"]


class Step(NamedTuple):
    """What a penalty may look at in one training step.

    `inputs` (B, C, H, W) requires a gradient; `logits` (B, classes) were computed from it.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor
    generator: torch.Generator


PENALTIES: dict[str, Callable[[Step], Tensor]] = {
    "input_gradient": lambda step: input_gradient_penalty(step.logits, step.labels, step.inputs),
}
