"""What a penalty may look at in one training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reglib.double_backward import evaluation_mode
from reglib.double_backward.folding import in_evaluation_mode
from reglib.double_backward.modules import View
from reglib.input_hessian.checks import check_network
from reglib.landscape import data_smoothness


class Step(NamedTuple):
    """What a penalty may look at in one training step.

    `inputs` (B, C, H, W) requires a gradient; `logits` (B, classes) were computed from it.
    `constants` belongs to the whole training; without it, what is needed is made anew each time.
    """

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor
    generator: torch.Generator
    constants: Constants | None = None


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
