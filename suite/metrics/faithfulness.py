"""Do the pixels that a saliency map marks change the output when they change?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from suite.errors import unknown
from suite.metrics.chunks import chunk_size

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "probability": lambda logits: logits.softmax(1),
    "logit": lambda logits: logits,
}


def inverted(images: Tensor) -> Tensor:
    r"""Mirror each value in the range of its image: :math:`x' = \min_j x_j + \max_j x_j - x`."""
    flat = images.flatten(1)
    total = flat.amin(1) + flat.amax(1)
    return total.view(-1, *[1] * (images.ndim - 1)) - images


def pixel_effects(model: nn.Module, images: Tensor, class_index: Tensor, **options: Any) -> Tensor:
    r"""Measure what changing one pixel at a time does to the score of a class.

    .. math:: d_i = f_c(x^{(i)}) - f_c(x)

    where :math:`x^{(i)}` is the image with pixel `i`, in all its channels, replaced by that of
    `perturb(x)`. A pixel that does not change has no effect and costs no forward pass.

    Args:
        model, images, class_index, options: see `patch_effects`.

    Returns:
        The effects, (B, H * W).

    Raises:
        UsageError: unknown score.
    """
    return patch_effects(model, images, class_index, patch=1, **options)


@torch.no_grad()
def patch_effects(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    patch: int,
    score: str = "probability",
    perturb: Callable[[Tensor], Tensor] = inverted,
    max_bytes: int | None = None,
) -> Tensor:
    """Measure what changing one square of pixels at a time does to the score of a class.

    For large images, in which one pixel does next to nothing; see `pixel_effects`.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the class of each image, (B,).
        patch: side of a square, which must divide height and width.
        score: "probability" (softmax) or "logit".
        perturb: gives all replaced pixels at once, (B, C, H, W).
        max_bytes: memory of the perturbed images held at a time.

    Returns:
        The effects, (B, H * W / patch^2), row by row.

    Raises:
        ValueError: `patch` does not divide the sides of the images.
        UsageError: unknown score.
    """
    height, width = images.shape[2:]
    if patch < 1 or height % patch or width % patch:
        raise ValueError(f"patch: expected a divisor of {height} and {width}, got {patch}")
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    columns = width // patch
    squares = torch.arange(height * columns // patch, device=images.device)
    square_of = squares.view(-1, columns).repeat_interleave(patch, 0).repeat_interleave(patch, 1)
    replaced = perturb(images)
    effects = images.new_zeros(len(images), len(squares))
    for b, c in enumerate(class_index.tolist()):
        before = SCORES[score](model(images[b : b + 1]))[0, c]
        changed = square_of[(images[b] != replaced[b]).any(0)].unique()
        for index in changed.split(chunk_size(images, max_bytes)):
            inside = square_of == index.view(-1, 1, 1)
            batch = torch.where(inside[:, None], replaced[b], images[b])
            effects[b, index] = SCORES[score](model(batch))[:, c] - before
    return effects


def faithfulness_estimate(maps: Tensor, effects: Tensor) -> Tensor:
    r"""Compute the Faithfulness Estimate: the correlation of a map with the pixels' effects.

    .. math:: \mathrm{FE}(x) = \mathrm{corr}_i (d_i, a_i) \quad \text{(Pearson)}

    Args:
        maps: saliency, (B, C, H, W); channels are summed, since a pixel changes in all of them.
        effects: from `pixel_effects`, (B, H * W).

    Returns:
        One value in [-1, 1] for each image, (B,); NaN where the map or the effects are constant.

    Raises:
        ValueError: the numbers of images or pixels differ.

    Source: :cite:t:`alvarezmelis2018senn`, as in section 3.2 of :cite:t:`demoor2025`. Quantus takes
    :math:`f(x) - f(x^{(i)})`, hence the other sign, and logits.
    """
    a = maps.sum(1).flatten(1).double()
    d = effects.double()
    if a.shape != d.shape:
        raise ValueError(
            f"maps: expected {tuple(d.shape)} pixels as in effects, got {tuple(a.shape)}"
        )
    a = a - a.mean(1, keepdim=True)
    d = d - d.mean(1, keepdim=True)
    return (a * d).sum(1) / (a.norm(dim=1) * d.norm(dim=1))
