"""What "your network" measures that no other chapter does."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from reglib.autodiff import OnceDifferentiable, input_gradient
from reglib.double_backward import fast_double_backward
from reglib.input_hessian import hessian_eigenpairs, input_hessian
from suite import metrics
from suite.metrics.display import normalised_for_display
from suite.papers.pilcro_measures import importance_landscape
from suite.papers.second_order import as_uint8
from suite.training.evaluated import EvaluatedModel, Result

DRAWN = 96  # pixels a side of a map, at most
CLASS_MAP = "class_map"
CURVED = ("cafo", "caso")  # need a second derivative


def map_centre_to_rim(subject: EvaluatedModel, *, saliency: str, n_images: int) -> Result:
    """Return for each map its middle over its border, see `suite.metrics.centre_to_rim`."""
    maps = metrics.saliency_maps(subject.folded, saliency)(*subject.test_images(n_images))
    return Result(torch.stack([metrics.centre_to_rim(one) for one in maps.abs().sum(1)]))


def overconfidence(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Top probability less 1 where the prediction is the label: the mean is a calibration gap."""
    _, labels = subject.test_uint8(n_images)
    top, predicted = subject.test_logits(n_images).double().softmax(1).max(1)
    return Result(top - (predicted == labels).double())


def loss_curvature(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Largest eigenvalue, or 0, of the Hessian of the loss by the pixels, NaN where there is none.

    It keeps the top probability, `confidence`.
    """
    kept = {"confidence": subject.test_logits(n_images).double().softmax(1).amax(1)}
    if not _differentiable_twice(subject):
        return Result(torch.full_like(kept["confidence"], torch.nan), kept)
    hessians = (input_hessian(subject.folded, *batch) for batch in subject.batches(n_images))
    largest = [hessian_eigenpairs(hessian).values[:, 0] for hessian in hessians]
    return Result(torch.cat(largest).clamp_min(0), kept)


def _differentiable_twice(subject: EvaluatedModel) -> bool:
    """Whether the gradient of a network can be differentiated, by the whole graph of one image."""
    image = subject.test_images(1)[0].requires_grad_()
    logits = fast_double_backward(subject.folded)(image)
    try:
        input_gradient(logits.square(), image, create_graph=True).sum().backward()
    except (OnceDifferentiable, RuntimeError) as error:
        # Of its own functions that have one derivative alone torch says so, by name.
        if isinstance(error, RuntimeError) and not str(error).startswith("derivative for"):
            raise
        return False
    return True


def drawn_maps(subject: EvaluatedModel, *, saliency: str, n_images: int) -> Result:
    """Keep maps as they are drawn, uint8 (B, 96, 96); the value is the norm of each map.

    `saliency` is a name in `suite.metrics.SALIENCIES`, or "class_map". What the network has not
    has no map and no value.
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
    shown = normalised_for_display(full)[:, None]
    shown = nn.functional.adaptive_avg_pool2d(shown, min(DRAWN, side))[:, 0]
    return Result(maps.flatten(1).norm(dim=1), {"maps": as_uint8(shown)})


@torch.no_grad()
def class_maps(network: nn.Module, images: Tensor, class_index: Tensor) -> Tensor | None:
    """Return the class maps of images, (B, 1, h, w), of a network whose logits are their means.

    These are weighted sums of the last features by the last layer, where they are positive; None
    where a network has no such layer, or something between the two.
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
    of_image = logits.gather(1, class_index[:, None])[:, 0]
    for output in reversed(features) if logits.shape[1] == last.out_features else ():
        maps = torch.einsum("bchw,bc->bhw", output, last.weight[class_index])
        maps = maps if last.bias is None else maps + last.bias[class_index][:, None, None]
        if torch.allclose(maps.mean((1, 2)), of_image, rtol=1e-3, atol=1e-3):
            return maps.clamp_min(0)[:, None]
    return None


def paths_landscape(subject: EvaluatedModel) -> Result:
    """Keep the landscape that the paths of the network alone give, if they can be counted.

    See `suite.papers.path_counts.path_counts`.
    """
    try:
        return importance_landscape(subject, of="paths")
    except ValueError:
        return Result(torch.tensor([torch.nan]))
