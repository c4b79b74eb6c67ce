"""Does the score come back with the pixels that a saliency map ranks first?"""

from typing import Any

import torch
from torch import Tensor, nn

from suite.errors import unknown
from suite.metrics.chunks import chunk_size
from suite.metrics.faithfulness import SCORES


def insertion_curve(
    maps: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int,
    baseline: Tensor | float = 0.0,
    score: str = "probability",
    max_bytes: int | None = None,
) -> Tensor:
    r"""Measure the score of a class while the pixels of an image are put into a baseline.

    .. math:: s_k = f_c\bigl(m_k \odot x + (1 - m_k) \odot x^0\bigr), \qquad k = 0, \dots, K

    where :math:`m_k` marks the :math:`\lfloor kP / K \rfloor` pixels, of `P`, that the map ranks
    first; among equal ones that of the smaller index comes first. So :math:`s_0` is the score of
    the baseline and :math:`s_K` that of the image; `curves / curves[:, -1:]` are shares of it.

    Args:
        maps: signed saliency, (B, C, H, W); channels are summed, since a pixel goes with all.
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        n_steps: `K`, from 1 to the number of pixels.
        baseline: a value, or images that broadcast to the shape of `images`.
        score: "probability" (softmax) or "logit".
        max_bytes: memory of the mixed images held at a time.

    Returns:
        One curve for each image, (B, n_steps + 1); see `area_under_curve`.

    Raises:
        ValueError: maps of other images or sizes, or `n_steps` out of its range.
        UsageError: unknown score.

    Source: :cite:t:`petsiuk2018`; from a baseline of zero in :cite:t:`yang2024`.
    """
    pixels = images[0, 0].numel()
    if not 1 <= n_steps <= pixels:
        raise ValueError(
            f"n_steps: expected 1 to {pixels}, the number of pixels of an image, got {n_steps}"
        )
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    counts = torch.arange(n_steps + 1, device=images.device) * pixels // n_steps
    return scores_by_count(
        maps, model, images, baseline, class_index, counts, score=score, max_bytes=max_bytes
    )


def deletion_curve(
    maps: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    baseline: Tensor | float = 0.0,
    **options: Any,
) -> Tensor:
    """Measure the score of a class while the pixels of an image are replaced by a baseline.

    The first pixels to go are those that the map ranks first: it is `insertion_curve` with image
    and baseline exchanged, and has the same arguments, results and errors.
    """
    start = torch.as_tensor(baseline, dtype=images.dtype, device=images.device).expand_as(images)
    return insertion_curve(maps, model, start, class_index, baseline=images, **options)


@torch.no_grad()
def scores_by_count(
    maps: Tensor,
    model: nn.Module,
    images: Tensor,
    baseline: Tensor | float,
    class_index: Tensor,
    counts: Tensor,
    *,
    score: str,
    max_bytes: int | None,
) -> Tensor:
    """Measure the score of a class with the first pixels of images put into a baseline.

    Args:
        maps, model, images, baseline, class_index, score, max_bytes: see `insertion_curve`.
        counts: numbers of pixels, (K,).

    Returns:
        The scores, (B, K).

    Raises:
        ValueError: maps of other images or sizes.
    """
    n, _, height, width = images.shape
    if (maps.shape[0], *maps.shape[2:]) != (n, height, width):
        raise ValueError(
            f"maps: expected shape ({n}, C, {height}, {width}) as that of the images, got "
            f"{tuple(maps.shape)}"
        )
    start = torch.as_tensor(baseline, dtype=images.dtype, device=images.device).expand_as(images)
    order = maps.sum(1).flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1).view(n, 1, height, width)
    scores = images.new_empty(n * len(counts))
    for index in torch.arange(len(scores), device=images.device).split(
        chunk_size(images, max_bytes)
    ):
        b, k = index // len(counts), index % len(counts)
        inserted = rank[b] < counts[k].view(-1, 1, 1, 1)
        values = SCORES[score](model(torch.where(inserted, images[b], start[b])))
        scores[index] = values.gather(1, class_index[b, None])[:, 0]
    return scores.view(n, len(counts))
