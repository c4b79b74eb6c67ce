"""Saliency methods by name, with the settings of the paper, for measurements."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from reglib.saliency.high_order import cafo, caso
from reglib.saliency.proximal import Settings
from reglib.saliency.sparsity import choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss
from suite.metrics.saliency import (
    Saliency,
    deeplift,
    integrated_gradients,
    logit_gradient,
    loss_gradient,
    smooth_grad,
)

# A thousand iterations suffice for every image that was tried: the default of 200 may not.
patient_caso = partial(caso, settings=Settings(max_iterations=1000))


def _noise(images: Tensor) -> torch.Generator:
    """Return the same source of noise in each call, so that a method is a function of the image."""
    return torch.Generator(images.device).manual_seed(0)


def _smooth_loss(model: nn.Module, images: Tensor, class_index: Tensor) -> SurrogateLoss:
    return smooth_surrogate_loss(model, images, class_index, generator=_noise(images))


def _one_by_one(
    interpret: Callable[[SurrogateLoss], Tensor],
    make: Callable[[nn.Module, Tensor, Tensor], SurrogateLoss] = surrogate_loss,
) -> Saliency:
    """Interpret one image after the other: solving them together waits for the slowest."""

    def maps(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
        pairs = zip(images.split(1), class_index.split(1), strict=True)
        return torch.cat([interpret(make(model, *pair)) for pair in pairs])

    return maps


def _sparse_cafo(loss: SurrogateLoss) -> Tensor:
    return choose_lambda1(loss, method=cafo).interpretation.maps


def _sparse_caso(loss: SurrogateLoss) -> Tensor:
    return choose_lambda1(loss, method=patient_caso).interpretation.maps


SALIENCIES: dict[str, Saliency] = {
    "logit_gradient": logit_gradient,
    "deeplift": deeplift,
    "smooth_grad": lambda model, images, class_index: smooth_grad(
        model, images, class_index, generator=_noise(images), method=logit_gradient
    ),
    "integrated_gradients": integrated_gradients,
    "loss_gradient": loss_gradient,
    "caso_dense": _one_by_one(lambda loss: patient_caso(loss).maps),
    "cafo": _one_by_one(_sparse_cafo),
    "caso": _one_by_one(_sparse_caso),
    "smooth_cafo": _one_by_one(_sparse_cafo, _smooth_loss),
    "smooth_caso": _one_by_one(_sparse_caso, _smooth_loss),
}
