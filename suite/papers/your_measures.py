"""Measures that only the chapter "your network" takes."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from reglib.autodiff import OnceDifferentiable, input_gradient
from reglib.double_backward import fast_double_backward
from reglib.input_hessian import hessian_eigenpairs, input_hessian
from suite import metrics
from suite.metrics.class_maps import normalised_for_display
from suite.papers.pilcro_measures import importance_landscape
from suite.papers.second_order import as_uint8
from suite.training.evaluated import EvaluatedModel, Result

DRAWN = 96  # pixels a side of a map, at most
CLASS_MAP = "class_map"
CURVED = ("cafo", "caso")  # need a second derivative


def map_centre_to_rim(subject: EvaluatedModel, *, saliency: str, n_images: int) -> Result:
    """Return the centre-to-rim ratio of each map, see `suite.metrics.centre_to_rim`."""
    maps = metrics.saliency_maps(subject.folded, saliency)(*subject.test_images(n_images))
    return Result(torch.stack([metrics.centre_to_rim(m) for m in maps.abs().sum(1)]))


def overconfidence(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Return the top probability, less 1 where it is right: the mean is a calibration gap."""
    _, labels = subject.test_uint8(n_images)
    top, predicted = subject.test_logits(n_images).double().softmax(1).max(1)
    return Result(top - (predicted == labels).double())


def loss_curvature(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Return the largest eigenvalue, at least 0, of the Hessian of the loss by the pixels.

    The value is NaN where the network has no second derivative. The top probability is kept as
    `confidence`.
    """
    tensors = {"confidence": subject.test_logits(n_images).double().softmax(1).amax(1)}
    if not _differentiable_twice(subject):
        return Result(torch.full_like(tensors["confidence"], torch.nan), tensors)
    hessians = (input_hessian(subject.folded, *batch) for batch in subject.batches(n_images))
    largest = [hessian_eigenpairs(hessian).values[:, 0] for hessian in hessians]
    return Result(torch.cat(largest).clamp_min(0), tensors)


def _differentiable_twice(subject: EvaluatedModel) -> bool:
    """Whether the gradient of a network can be differentiated, tried on one image."""
    image = subject.test_images(1)[0].requires_grad_()
    logits = fast_double_backward(subject.folded)(image)
    try:
        input_gradient(logits.square(), image, create_graph=True).sum().backward()
    except (OnceDifferentiable, RuntimeError) as error:
        # Torch names those of its own functions that have only one derivative.
        if isinstance(error, RuntimeError) and not str(error).startswith("derivative for"):
            raise
        return False
    return True


def drawn_maps(subject: EvaluatedModel, *, saliency: str, n_images: int) -> Result:
    """Keep maps for figures, uint8 (B, s, s) with s <= 96; the value is the norm of each map.

    `saliency` is a name in `suite.metrics.SALIENCIES`, or "class_map". Where the network does not
    have this map, none is kept and the values are NaN.
    """
    images, labels = subject.test_images(n_images)
    maps = None
    if saliency == CLASS_MAP:
        maps = class_maps(subject.network, images, labels)
    elif saliency not in CURVED or _differentiable_twice(subject):
        maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
    if maps is None:
        return Result(torch.full((n_images,), torch.nan))
    side = images.shape[-1]
    full = nn.functional.interpolate(maps.abs(), side, mode="bilinear")
    drawn = normalised_for_display(full)[:, None]
    drawn = nn.functional.adaptive_avg_pool2d(drawn, min(DRAWN, side))[:, 0]
    return Result(maps.flatten(1).norm(dim=1), {"maps": as_uint8(drawn)})


@torch.no_grad()
def class_maps(network: nn.Module, images: Tensor, class_index: Tensor) -> Tensor | None:
    """Return the class maps of images, (B, 1, h, w), if the logits of a network are their means.

    The maps are the last features weighted by the last layer, clamped at 0. None is returned where
    a network has no such layer, or other operations between features and layer.
    """
    features: list[Tensor] = []
    last = next((m for m in reversed([*network.modules()]) if isinstance(m, nn.Linear)), None)
    if last is None:
        return None

    def keep(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and output[0, 0].numel() > 1:
            features.extend([output] if output.shape[1] == last.in_features else [])

    with register_module_forward_hook(keep):
        logits = network(images)
    logit = logits.gather(1, class_index[:, None])[:, 0]
    for output in reversed(features) if logits.shape[1] == last.out_features else ():
        maps = torch.einsum("bchw,bc->bhw", output, last.weight[class_index])
        maps = maps if last.bias is None else maps + last.bias[class_index][:, None, None]
        if torch.allclose(maps.mean((1, 2)), logit, rtol=1e-3, atol=1e-3):
            return maps.clamp_min(0)[:, None]
    return None


def paths_landscape(subject: EvaluatedModel) -> Result:
    """Keep the landscape of the paths of the network alone; NaN where they cannot be counted.

    See `suite.papers.path_counts.path_counts`.
    """
    try:
        return importance_landscape(subject, of="paths")
    except ValueError:
        return Result(torch.tensor([torch.nan]))
