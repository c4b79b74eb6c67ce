"""Penalties by name, and what they may look at in one step of a training.

What a penalty takes by keyword besides fields of `PenaltyInputs` are its settings in a `Training`.
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
    """What stays the same in all steps of a training, computed when it is first asked for.

    Args:
        model: the network, or a view of it by `fast_double_backward`.
        images: gives the training images without augmentation, batch by batch, as floats or uint8.
    """

    def __init__(self, model: nn.Module, images: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self.model = model
        # From a width of the kernel to the smoothness of the training images.
        self.smoothness = cache(lambda n: landscape.data_smoothness(images(), kernel_width=n))

    @cached_property
    def evaluated(self) -> Callable[[Tensor], Tensor]:
        """The network in evaluation mode, whatever its mode; of its state nothing changes.

        A view of the network gets batch normalisation folded; any other takes stock autograd.
        """
        model = self.model
        with in_evaluation_mode(model):
            check_network(model)
        if isinstance(model, View):
            return evaluation_mode(model)
        return in_evaluation_mode(model)(lambda inputs: model(inputs))


class PenaltyInputs(NamedTuple):
    """What a penalty may look at in one step of a training: see `forward`.

    `inputs` (B, C, H, W) requires a gradient, unless all penalties are of `NEEDS_OWN_FORWARD`;
    `logits` (B, classes) were computed from it, and on the way `class_maps` (B, classes, h, w), if
    the network has a `TopGAP` layer that pools them, and `activations`, the outputs (B, ...) of its
    activation layers, if they were asked for. `class_map_l1` (B,) is the L1 norm of the maps where
    what pools them computes it anyway. `pixel_range` holds the values of black and
    white. `context` belongs to the whole training; without it, what is needed is made anew each
    time. `epoch` counts from 0.
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
    """Run a network on a batch, and note what penalties may look at.

    The class maps are what the `TopGAP` layer is given: a hook that lives as long as the call sees
    them, so that networks keep nothing of a forward pass, and one pass serves loss and penalties.
    Activations are noted in the same way, in the order of the layers. `others` are further fields.
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
    given = model, inputs, labels, logits, generator, maps, activations
    return PenaltyInputs(*given, class_map_l1=l1, **others)


Penalty = Callable[..., Tensor]


def of_inputs(function: Penalty) -> Penalty:
    """Let a penalty take from `PenaltyInputs` what has the name of one of its fields.

    The other arguments of `function` are its settings: they are the keyword arguments of the
    result, as its signature says.
    """
    parameters = inspect.signature(function).parameters.values()
    fields = [p.name for p in parameters if p.name in PenaltyInputs._fields]

    def penalty(given: PenaltyInputs, **settings: Any) -> Tensor:
        return function(**{name: getattr(given, name) for name in fields}, **settings)

    given = inspect.Parameter("given", inspect.Parameter.POSITIONAL_ONLY)
    settings = [p for p in parameters if p.name not in fields]
    penalty.__signature__ = inspect.Signature([given, *settings])  # type: ignore[attr-defined]
    return penalty


def class_map_sizes(given: PenaltyInputs) -> Tensor:
    """Return `reglib.top_gap.class_map_l1` of the class maps that the logits were pooled from.

    Raises:
        UsageError: a network without a `TopGAP` layer.
    """
    if given.class_maps is None:
        advice = "name the network 'top_gap', with k = 1.0 for the mean over all locations"
        got = f"{type(given.model).__name__}; {advice}"
        raise expected("penalty 'class_map_l1'", "a network with a TopGAP layer", got)
    return class_map_l1(given.class_maps) if given.class_map_l1 is None else given.class_map_l1


def activation_sizes(given: PenaltyInputs, *, layers: str = "last") -> Tensor:
    """Return `reglib.regularizers.activation_l1` of the outputs of the activation layers.

    Raises:
        UsageError: no activation layer, or they were not asked for.
    """
    if not given.activations:
        got = f"none; {type(given.model).__name__} must have them as modules (such as "
        got += "torch.nn.ReLU), and forward must be told with_activations=True"
        raise expected("penalty 'activation_l1'", "the outputs of activation layers", got)
    return regularizers.activation_l1(given.activations, layers=layers)


def landscape_curvature(given: PenaltyInputs, *, kernel_width: int = 3) -> Tensor:
    """Return `reglib.landscape.curvature_penalty` of the batch in evaluation mode, (B,)."""
    penalty = landscape.curvature_penalty(_landscape(given), kernel_width=kernel_width)
    return penalty.expand(len(given.inputs))


def landscape_target(given: PenaltyInputs, *, kernel_width: int = 3) -> Tensor:
    """Return `reglib.landscape.target_penalty` for the smoothness of the training images, (B,).

    Raises:
        ValueError: there is no `context` with training images.
    """
    if given.context is None:
        why = "context: expected TrainingContext(model, images) with the training images, got None"
        raise ValueError(why)
    target = given.context.smoothness(kernel_width).to(given.inputs)
    return landscape.target_penalty(_landscape(given), target).expand(len(given.inputs))


def _landscape(given: PenaltyInputs) -> Tensor:
    shown = (given.context or TrainingContext(given.model)).evaluated, given.inputs
    return landscape.importance_landscape(*shown, generator=given.generator, create_graph=True)


# What takes the images and the network alone, and goes through the network by itself.
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
# Settings that every penalty has: its coefficient, T, if it acts in every T-th step only, and the
# steps in which its coefficient rises from zero, by equal steps.
COMMON = ("strength", "every", "warm_up")


class Term(NamedTuple):
    """A penalty of a training with its settings: every so many steps, strength x its mean."""

    name: str
    strength: float
    every: int
    warm_up: int
    penalty: Penalty

    def strength_in(self, step: int) -> float:
        """Return the coefficient in a step of the training, counted from 1.

        >>> term = Term("cure", 0.5, 1, 4, lambda given: given)
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
    check_call("penalty", name, PENALTIES, settings, given=("given",), also=COMMON)
    require(f"every, of penalty {name!r}", every, COUNT)
    require(f"warm_up, of penalty {name!r}", warm_up, NATURAL)
    return Term(name, strength, every, warm_up, partial(PENALTIES[name], **settings))
