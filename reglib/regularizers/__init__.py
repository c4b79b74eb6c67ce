"""Penalties: pure functions of tensors, one value for each sample.

`PENALTIES` gives each a name, under which a `Training` asks for it. What a penalty takes by keyword
besides the `Step` are its settings in a `Training`.
"""

from collections.abc import Callable

from torch import Tensor

from reglib.regularizers.class_maps import class_map_sizes
from reglib.regularizers.input_gradient import input_gradient_penalty
from reglib.regularizers.landscape import landscape_curvature, landscape_target
from reglib.regularizers.step import Constants, Step, take_step
from reglib.top_gap import class_map_l1

__all__ = [
    "PENALTIES",
    "Constants",
    "Step",
    "class_map_l1",
    "input_gradient_penalty",
    "landscape_curvature",
    "landscape_target",
    "take_step",
]

PENALTIES: dict[str, Callable[..., Tensor]] = {
    "class_map_l1": class_map_sizes,
    "input_gradient": lambda step: input_gradient_penalty(step.logits, step.labels, step.inputs),
    "landscape_curvature": landscape_curvature,
    "landscape_target": landscape_target,
}
