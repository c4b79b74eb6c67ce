"""Penalties by name, and their inputs in one step of a training.

The keyword arguments of a penalty, besides fields of `PenaltyInputs`, are its settings in a
`Training`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib import landscape, regularizers
from reglib._checks import check_network
from reglib.double_backward import evaluation_mode
from reglib.double_backward.modules import View, in_evaluation_mode
from reglib.top_gap import Pooled, TopGAP, class_map_l1
from reglib.top_gap.pooling import can_block, can_fuse
from suite.errors import check_call, expected
from suite.networks import is_activation
from suite.units import COUNT, NATURAL, require


class TrainingContext:
    """Quantities that all steps of a training share, computed at their first use.

    Args:
        model: the network, or a view of it by `fast_double_backward`.
        images: returns the training images without augmentation, in batches of floats or uint8.
    """

    def __init__(self, model: nn.Module, images: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self.model = model
        # From a width of the kernel to the smoothness of the training images.
        self.smoothness = cache(lambda n: landscape.data_smoothness(images(), kernel_width=n))

    @cached_property
    def evaluated(self) -> Callable[[Tensor], Tensor]:
        """The network in evaluation mode; its own mode and state do not change.

        A view of the network gets folded batch normalisation; other networks use stock autograd.
        """
        model = self.model
        with in_evaluation_mode(model):
            check_network(model)
        if isinstance(model, View):
            return evaluation_mode(model)
        return in_evaluation_mode(model)(lambda inputs: model(inputs))


class PenaltyInputs(NamedTuple):
    """The inputs of a penalty in one step of a training: see `forward`.

    `inputs` (B, C, H, W) requires a gradient, unless all penalties are in `NEEDS_OWN_FORWARD`.
    `logits` (B, classes) were computed from it. `class_maps` (B, classes, h, w) are the maps that
    a `TopGAP` layer pools, if the network has one; `class_map_l1` (B,) is their L1 norm, if the
    pooling computes it anyway. `activations` are the outputs (B, ...) of activation layers, if
    requested. `pixel_range` holds the values of black and white. `context` is shared by the
    whole training; without it, each step computes what it needs. `epoch` counts from 0.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor
    generator: torch.Generator
    class_maps: Tensor | None = None
    activations: Sequence[Tensor] = ()
    pixel_range: tuple[float, float] = (0.0, 1.0)
    context: TrainingContext | None = None
    class_map_l1: Tensor | None = None
    epoch: int = 0


def forward(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    with_class_maps: bool = True,
    with_activations: bool = False,
    **others: Any,
) -> PenaltyInputs:
    """Run a network on a batch, and record the inputs of penalties.

    The class maps are the input of the `TopGAP` layer. A hook that lives only during the call
    records them, so that one pass serves loss and penalties, and networks keep no tensors.
    Activations are recorded in the same way, in the order of the layers. `others` are further
    fields.
    """
    noted: list[tuple[Tensor | None, list[Pooled]]] = [(None, [])]
    activations: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        noted.append((arguments[0], []))
        return noted[-1] if can_fuse(arguments[0]) or can_block(arguments[0]) else None

    def note_output(module: nn.Module, arguments: Any, output: Tensor) -> None:
        activations.append(output)

    with ExitStack() as hooks:
        for module in model.modules() if with_class_maps or with_activations else ():
            if with_class_maps and isinstance(module, TopGAP):
                hooks.enter_context(module.register_forward_pre_hook(note))
            if with_activations and is_activation(module):
                hooks.enter_context(module.register_forward_hook(note_output))
        logits = model(inputs)
    maps, pooled = noted[-1]
    l1 = pooled[-1].l1 if pooled else None
    fields = model, inputs, labels, logits, generator, maps, activations
    return PenaltyInputs(*fields, class_map_l1=l1, **others)


Penalty = Callable[..., Tensor]


def of_inputs(function: Penalty) -> Penalty:
    """Turn a function of fields of `PenaltyInputs`, by name, into a penalty.

    The other arguments of `function` are settings, the keyword arguments of the penalty; its
    signature names them.
    """
    parameters = inspect.signature(function).parameters.values()
    fields = [p.name for p in parameters if p.name in PenaltyInputs._fields]

    def penalty(batch: PenaltyInputs, **settings: Any) -> Tensor:
        return function(**{name: getattr(batch, name) for name in fields}, **settings)

    batch = inspect.Parameter("batch", inspect.Parameter.POSITIONAL_ONLY)
    settings = [p for p in parameters if p.name not in fields]
    penalty.__signature__ = inspect.Signature([batch, *settings])  # type: ignore[attr-defined]
    return penalty


def class_map_sizes(batch: PenaltyInputs) -> Tensor:
    """Return `reglib.top_gap.class_map_l1` of the class maps that the logits were pooled from.

    Raises:
        UsageError: a network without a `TopGAP` layer.
    """
    if batch.class_maps is None:
        advice = "name the network 'top_gap', with k = 1.0 for the mean over all locations"
        got = f"{type(batch.model).__name__}; {advice}"
        raise expected("penalty 'class_map_l1'", "a network with a TopGAP layer", got)
    return class_map_l1(batch.class_maps) if batch.class_map_l1 is None else batch.class_map_l1


def activation_sizes(batch: PenaltyInputs, *, layers: str = "last") -> Tensor:
    """Return `reglib.regularizers.activation_l1` of the outputs of the activation layers.

    Raises:
        UsageError: the network has no activation layers, or `forward` did not record them.
    """
    if not batch.activations:
        got = f"none; {type(batch.model).__name__} must have them as modules (such as "
        got += "torch.nn.ReLU), and forward needs with_activations=True"
        raise expected("penalty 'activation_l1'", "the outputs of activation layers", got)
    return regularizers.activation_l1(batch.activations, layers=layers)


def landscape_curvature(batch: PenaltyInputs, *, kernel_width: int = 3) -> Tensor:
    """Return `reglib.landscape.curvature_penalty` of the batch in evaluation mode, (B,)."""
    penalty = landscape.curvature_penalty(_landscape(batch), kernel_width=kernel_width)
    return penalty.expand(len(batch.inputs))


def landscape_target(batch: PenaltyInputs, *, kernel_width: int = 3) -> Tensor:
    """Return `reglib.landscape.target_penalty` for the smoothness of the training images, (B,).

    Raises:
        UsageError: there is no `context` with training images.
    """
    if batch.context is None:
        valid = "TrainingContext(model, images) with the training images"
        raise expected("context", valid, "None")
    target = batch.context.smoothness(kernel_width).to(batch.inputs)
    return landscape.target_penalty(_landscape(batch), target).expand(len(batch.inputs))


def _landscape(batch: PenaltyInputs) -> Tensor:
    arguments = (batch.context or TrainingContext(batch.model)).evaluated, batch.inputs
    return landscape.importance_landscape(*arguments, generator=batch.generator, create_graph=True)


# Penalties that need only images and network, and run the network themselves.
NEEDS_OWN_FORWARD = frozenset({"landscape_curvature", "landscape_target"})

PENALTIES: dict[str, Penalty] = {
    "activation_l1": activation_sizes,
    "adversarial": of_inputs(regularizers.adversarial_penalty),
    "class_map_l1": class_map_sizes,
    "cure": of_inputs(regularizers.cure_penalty),
    "finite_difference": of_inputs(regularizers.finite_difference_penalty),
    "input_gradient": of_inputs(regularizers.input_gradient_penalty),
    "input_hessian": of_inputs(regularizers.input_hessian_penalty),
    "landscape_curvature": landscape_curvature,
    "landscape_target": landscape_target,
    "logit_gradient": of_inputs(regularizers.logit_gradient_penalty),
    "marginal_density": of_inputs(regularizers.marginal_density_penalty),
    "score_matching": of_inputs(regularizers.score_matching_penalty),
}
# Settings of every penalty: its coefficient; T, if it acts in every T-th step only; and the number
# of steps in which its coefficient rises from zero, by equal steps.
COMMON = ("strength", "every", "warm_up")


class Term(NamedTuple):
    """A penalty with its settings: every so many steps, `strength` x its mean joins the loss."""

    name: str
    strength: float
    every: int
    warm_up: int
    penalty: Penalty

    def strength_in(self, step: int) -> float:
        """Return the coefficient in a step of the training, counted from 1.

        >>> term = Term("cure", 0.5, 1, 4, lambda batch: batch)
        >>> [term.strength_in(step) for step in range(1, 6)]
        [0.125, 0.25, 0.375, 0.5, 0.5]
        """
        return self.strength * min(1.0, step / self.warm_up) if self.warm_up else self.strength


def terms(penalties: Mapping[str, Mapping[str, Any]]) -> list[Term]:
    """Return the penalties of a training.

    Raises:
        UsageError: an unknown penalty, or a setting that is unknown or missing.
    """
    return [_term(name, **settings) for name, settings in penalties.items()]


def _term(name: str, /, strength: float, every: Any = 1, warm_up: Any = 0, **settings: Any) -> Term:
    check_call("penalty", name, PENALTIES, settings, supplied=("batch",), extra=COMMON)
    require(f"every, of penalty {name!r}", every, COUNT)
    require(f"warm_up, of penalty {name!r}", warm_up, NATURAL)
    return Term(name, strength, every, warm_up, partial(PENALTIES[name], **settings))
