"""The effect of single pixels on the output, and its correlation with a saliency map."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reglib.autodiff import Map
from suite.errors import check_name, expected
from suite.metrics.chunks import chunk_size


def _select_class(values: Tensor, class_index: Tensor) -> Tensor:
    return values.gather(1, class_index[:, None])[:, 0]


def _confidence(logits: Tensor, class_index: Tensor) -> Tensor:
    """Return the probability minus 1, computed from the other classes.

    In single precision a probability near 1 rounds to 1. Its distance from 1 keeps all its digits
    here, and the constant 1 cancels in differences.
    """
    others = logits.double().softmax(1).scatter(1, class_index[:, None], 0)
    return -others.sum(1)


# Scores of the class of each image, (B,), from logits (B, classes).
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "probability": lambda logits, c: _select_class(logits.softmax(1), c),
    "logit": _select_class,
    "confidence": _confidence,
}


def invert(images: Tensor) -> Tensor:
    r"""Mirror each value in the range of its image: :math:`x' = \min_j x_j + \max_j x_j - x`."""
    axes = tuple(range(1, images.ndim))
    return images.amin(axes, keepdim=True) + images.amax(axes, keepdim=True) - images


def pixel_effects(
    model: Map, images: Tensor, class_index: Tensor, *, score: str = "probability", **options: Any
) -> Tensor:
    r"""Measure how the score of a class changes with one square of pixels at a time.

    .. math:: d_i = f_c(x^{(i)}) - f_c(x)

    where :math:`x^{(i)}` is the image with square `i` replaced, in all channels, by that of
    `perturb(x)`. A square that does not change has no effect and costs no forward pass. Larger
    squares are for large images, where a single pixel has next to no effect.

    Args:
        model, images: see `perturbed_logits`.
        class_index: the class of each image, (B,).
        score: "probability" (softmax), "logit", or "confidence": the probability, with the digits
            that single precision loses where the network is sure.
        options: `patch` and `perturb`, see `perturbed_logits`.

    Returns:
        The effects, (B, H * W / patch^2), row by row.

    Raises:
        UsageError: `patch` does not divide the sides of the images, or unknown score.
    """
    return effects_on(score, perturbed_logits(model, images, **options), class_index)


def effects_on(score: str, logits: Tensor, class_index: Tensor) -> Tensor:
    """Return the changes of a score of each image's class, (B, P); see `pixel_effects`.

    Args:
        score: see `pixel_effects`.
        logits: from `perturbed_logits`, (B, 1 + P, classes).
        class_index: (B,).

    Raises:
        UsageError: unknown score.
    """
    check_name("score", score, SCORES)
    classes = class_index.repeat_interleave(logits.shape[1])
    scores = SCORES[score](logits.flatten(0, 1), classes).view(logits.shape[:2])
    return scores[:, 1:] - scores[:, :1]


@torch.no_grad()
def perturbed_logits(
    model: Map, images: Tensor, *, patch: int = 1, perturb: Map = invert
) -> Tensor:
    """Return the logits of images, unchanged and with one square of pixels changed at a time.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        patch: side of a square, which must divide height and width.
        perturb: returns all replaced pixels at once, (B, C, H, W).

    Returns:
        (B, 1 + H * W / patch^2, classes): logits of the image, then of the squares, row by row.

    Raises:
        UsageError: `patch` does not divide the sides of the images.
    """
    height, width = images.shape[2:]
    if patch < 1 or height % patch or width % patch:
        raise expected("patch", f"a divisor of {height} and {width}", patch)
    columns = width // patch
    squares = torch.arange(height * columns // patch, device=images.device)
    square_of = squares.view(-1, columns).repeat_interleave(patch, 0).repeat_interleave(patch, 1)
    replaced = perturb(images)
    rows = []
    for b in range(len(images)):
        logits = model(images[b : b + 1]).repeat(1 + len(squares), 1)
        changed = square_of[(images[b] != replaced[b]).any(0)].unique()
        for index in changed.split(chunk_size(images)):
            inside = square_of == index.view(-1, 1, 1)
            logits[1 + index] = model(torch.where(inside[:, None], replaced[b], images[b]))
        rows.append(logits)
    return torch.stack(rows)


def faithfulness_estimate(maps: Tensor, effects: Tensor, *, patch: int = 1) -> Tensor:
    r"""Compute the Faithfulness Estimate, the correlation of a map with the pixels' effects.

    .. math:: \mathrm{FE}(x) = \mathrm{corr}_i (d_i, a_i) \quad \text{(Pearson)}

    Args:
        maps: saliency, (B, C, H, W); channels are summed, since a pixel changes in all of them;
            the pixels of a square are summed too.
        effects: from `pixel_effects`, (B, H * W / patch^2).
        patch: side of a square.

    Returns:
        One value in [-1, 1] for each image, (B,); NaN where the map or the effects are constant.

    Raises:
        UsageError: the numbers of images or pixels differ.

    Source: :cite:t:`alvarezmelis2018senn`, as in section 3.2 of :cite:t:`demoor2025`. Quantus takes
    :math:`f(x) - f(x^{(i)})`, which has the other sign, and logits.
    """
    a = patch**2 * nn.functional.avg_pool2d(maps.double().sum(1, keepdim=True), patch).flatten(1)
    d = effects.double()
    if a.shape != d.shape:
        raise expected("maps", f"{tuple(d.shape)} pixels as in effects", tuple(a.shape))
    a = a - a.mean(1, keepdim=True)
    d = d - d.mean(1, keepdim=True)
    return (a * d).sum(1) / (a.norm(dim=1) * d.norm(dim=1))
