"""What a penalty may look at in one training step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib._checks import check_network
from reglib.double_backward import evaluation_mode
from reglib.double_backward.folding import in_evaluation_mode
from reglib.double_backward.modules import View
from reglib.landscape import data_smoothness
from reglib.top_gap import Pooled, TopGAP
from reglib.top_gap.pooling import can_fuse
from suite.networks import is_activation


class Step(NamedTuple):
    """What a penalty may look at in one training step: see `take_step`.

    `inputs` (B, C, H, W) requires a gradient, unless all penalties are of `OWN_PASS`; `logits`
    (B, classes) were computed from it, and on the way `class_maps` (B, classes, h, w), if the
    network has a `TopGAP` layer that pools them, and `activations`, the outputs (B, ...) of its
    activation layers, if they were asked for. `class_map_l1` (B,) is the L1 norm of the maps where
    the kernel that pools them computes it anyway. `pixel_range` holds the values of black and
    white. `constants` belongs to the whole training; without it, what is needed is made anew each
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
    constants: Constants | None = None
    class_map_l1: Tensor | None = None
    epoch: int = 0


def take_step(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    pixel_range: tuple[float, float] = (0.0, 1.0),
    constants: Constants | None = None,
    with_activations: bool = False,
    epoch: int = 0,
) -> Step:
    """Run a network on a batch, and note what penalties may look at.

    The class maps are what the `TopGAP` layer is given: a hook that lives as long as the call sees
    them, so that networks keep nothing of a forward pass, and one pass serves loss and penalties.
    Activations are noted in the same way, in the order of the layers.
    """
    noted: list[tuple[Tensor, list[Pooled]]] = []
    activations: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        noted.append((arguments[0], []))
        return noted[-1] if can_fuse(arguments[0]) else None

    def note_output(module: nn.Module, arguments: Any, output: Tensor) -> None:
        activations.append(output)

    hooks = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if isinstance(module, TopGAP)
    ] + [
        module.register_forward_hook(note_output)
        for module in model.modules()
        if with_activations and is_activation(module)
    ]
    try:
        logits = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    maps, pooled = noted[-1] if noted else (None, [])
    return Step(
        model,
        inputs,
        labels,
        logits,
        generator,
        class_maps=maps,
        activations=activations,
        pixel_range=pixel_range,
        constants=constants,
        class_map_l1=pooled[-1].l1 if pooled else None,
        epoch=epoch,
    )


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


class Constants:
    """What stays the same in all steps of a training, made when it is first asked for.

    Args:
        model: the network, or a view of it by `fast_double_backward`.
        images: gives the training images without augmentation, batch by batch, as floats or bytes.
    """

    def __init__(
        self, model: nn.Module, images: Callable[[], Iterable[Tensor]] = lambda: ()
    ) -> None:
        self.model = model
        self._images = images
        self._smoothness: dict[int, Tensor] = {}

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

        def stock(inputs: Tensor) -> Tensor:
            with in_evaluation_mode(model):
                return model(inputs)

        return stock

    def smoothness(self, kernel_width: int) -> Tensor:
        """Return `reglib.landscape.data_smoothness` of the training images."""
        if kernel_width not in self._smoothness:
            self._smoothness[kernel_width] = data_smoothness(
                self._images(), kernel_width=kernel_width
            )
        return self._smoothness[kernel_width]
