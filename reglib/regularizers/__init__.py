"""Penalties: pure functions of tensors, one value for each sample.

`PENALTIES` gives each a name, under which a `Training` asks for it.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib.regularizers.adversarial import adversarial_examples, adversarial_penalty
from reglib.regularizers.curvature import (
    cure_penalty,
    input_hessian_penalty,
    score_matching_penalty,
)
from reglib.regularizers.groups import GroupDRO, balancing_weights, group_dro
from reglib.regularizers.input_gradient import input_gradient_penalty
from reglib.regularizers.marginal_density import logit_gradient_penalty, marginal_density_penalty

__all__ = [
    "PENALTIES",
    "GroupDRO",
    "Step",
    "adversarial_examples",
    "adversarial_penalty",
    "balancing_weights",
    "cure_penalty",
    "group_dro",
    "input_gradient_penalty",
    "input_hessian_penalty",
    "logit_gradient_penalty",
    "marginal_density_penalty",
    "of_step",
    "score_matching_penalty",
]


class Step(NamedTuple):
    """What a penalty may look at in one training step.

    `inputs` (B, C, H, W) requires a gradient; `logits` (B, classes) were computed from it.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor
    generator: torch.Generator
    pixel_range: tuple[float, float] = (0.0, 1.0)


Penalty = Callable[..., Tensor]


def of_step(function: Penalty) -> Penalty:
    """Let a penalty take from a `Step` what has the name of one of its fields.

    The other arguments of `function` are its settings: they are the keyword arguments of the
    result, as its signature says.
    """
    parameters = inspect.signature(function).parameters.values()
    fields = [p.name for p in parameters if p.name in Step._fields]

    def penalty(step: Step, **settings: Any) -> Tensor:
        return function(**{name: getattr(step, name) for name in fields}, **settings)

    step = inspect.Parameter("step", inspect.Parameter.POSITIONAL_ONLY)
    settings = [p for p in parameters if p.name not in fields]
    penalty.__signature__ = inspect.Signature([step, *settings])  # type: ignore[attr-defined]
    return penalty


PENALTIES: dict[str, Penalty] = {
    "adversarial": of_step(adversarial_penalty),
    "cure": of_step(cure_penalty),
    "input_gradient": of_step(input_gradient_penalty),
    "input_hessian": of_step(input_hessian_penalty),
    "logit_gradient": of_step(logit_gradient_penalty),
    "marginal_density": of_step(marginal_density_penalty),
    "score_matching": of_step(score_matching_penalty),
}
