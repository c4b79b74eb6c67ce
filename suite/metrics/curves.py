"""The score of a class while pixels are inserted or removed in the order of a saliency map."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from suite.errors import check_name, expected
from suite.metrics.chunks import chunk_size
from suite.metrics.faithfulness import SCORES


@torch.no_grad()
def insertion_curve(
    maps: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int | Sequence[int],
    baseline: Tensor | float = 0.0,
    score: str = "probability",
) -> Tensor:
    r"""Measure the score of a class while the pixels of an image are inserted into a baseline.

    .. math:: s_k = f_c\bigl(m_k \odot x + (1 - m_k) \odot x^0\bigr), \qquad k = 0, \dots, K

    where :math:`m_k` marks the :math:`\lfloor kP / K \rfloor` of `P` pixels that the map ranks
    first; among equal values the smaller index comes first. So :math:`s_0` is the score of the
    baseline and :math:`s_K` that of the image; `curves / curves[:, -1:]` are shares of the latter.

    Args:
        maps: signed saliency, (B, C, H, W); channels are summed, since a pixel changes in all.
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        n_steps: `K`, from 1 to the number of pixels; or a list of the numbers of pixels.
        baseline: a value, or images that broadcast to the shape of `images`.
        score: "probability" (softmax) or "logit".

    Returns:
        One curve for each image, (B, n_steps + 1), or (B, len(n_steps)) for a list; see
        `area_under_curve`.

    Raises:
        UsageError: maps of another number or size than the images, `n_steps` out of its range, or
            unknown score.

    Source: :cite:t:`petsiuk2018`; from a baseline of zero in :cite:t:`yang2024`.
    """
    n, _, height, width = images.shape
    pixels = height * width
    if isinstance(n_steps, int):
        if not 1 <= n_steps <= pixels:
            raise expected("n_steps", f"1 to {pixels}, the number of pixels of an image", n_steps)
        n_steps = [k * pixels // n_steps for k in range(n_steps + 1)]
    check_name("score", score, SCORES)
    if (maps.shape[0], *maps.shape[2:]) != (n, height, width):
        shape = f"shape ({n}, C, {height}, {width}) like the images"
        raise expected("maps", shape, tuple(maps.shape))
    start = torch.as_tensor(baseline, dtype=images.dtype, device=images.device).expand_as(images)
    order = maps.sum(1).flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1).view(n, 1, height, width)
    counts = torch.tensor(n_steps, device=images.device)
    scores = images.new_empty(n * len(counts))
    position = torch.arange(len(scores), device=images.device)
    for index in position.split(chunk_size(images)):
        b, k = index // len(counts), index % len(counts)
        inserted = rank[b] < counts[k].view(-1, 1, 1, 1)
        logits = model(torch.where(inserted, images[b], start[b]))
        scores[index] = SCORES[score](logits, class_index[b]).to(scores.dtype)
    return scores.view(n, len(counts))


def deletion_curve(
    maps: Tensor, model: nn.Module, images: Tensor, class_index: Tensor, **options: Any
) -> Tensor:
    """Measure the score of a class while the pixels of an image are replaced by a baseline.

    The pixels that the map ranks first are replaced first. This is `insertion_curve` with image and
    baseline exchanged; arguments, results and errors are the same.
    """
    start = torch.zeros_like(images).add_(options.pop("baseline", 0.0))
    return insertion_curve(maps, model, start, class_index, baseline=images, **options)


def pixel_perturbation(
    sizes: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int,
    over: Literal["image", "mean"] = "image",
) -> Tensor:
    r"""Compare the effects on a logit of removing the most and the least salient pixels.

    .. math:: \frac{|f_c(x) - f_c(x_{-k}^{top})|}{|f_c(x)|} -
       \frac{|f_c(x) - f_c(x_{-k}^{bottom})|}{|f_c(x)|}, \qquad k = 0, \dots, K

    where :math:`k / K` of the pixels are replaced by zeros. A logit near zero makes the
    value of its image arbitrarily large; `over="mean"` divides by the mean of :math:`|f_c|` over
    all images.

    Args:
        sizes: saliency without sign, (B, C, H, W), such as the absolute value of
            `suite.metrics.saliency.smooth_grad`; channels are summed.
        model: network in evaluation mode.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        n_steps: see `insertion_curve`.
        over: "image" or "mean".

    Returns:
        One curve for each image, (B, n_steps + 1). It is higher for a network that depends on the
        pixels that the map marks, and begins and ends at zero.

    Raises:
        UsageError: negative saliency, or another word for `over`; as `insertion_curve`.

    Source: section 7.3 of :cite:t:`yang2024`, after :cite:t:`samek2017` and
    :cite:t:`srinivas2021`. The absolute values are added here: the paper only says "fractional
    change".
    """
    if (sizes < 0).any():
        raise expected("sizes", "saliency without sign", "negative values; take maps.abs()")
    check_name("over", over, ("image", "mean"))
    options: dict[str, Any] = {"n_steps": n_steps, "score": "logit"}
    inputs = model, images, class_index
    top, bottom = (deletion_curve(ranking, *inputs, **options) for ranking in (sizes, -sizes))
    logits = top[:, :1]
    divisor = logits.abs() if over == "image" else logits.abs().mean()
    return (top - logits).abs() / divisor - (bottom - logits).abs() / divisor


def ablation_curve(
    model: nn.Module, images: Tensor, class_index: Tensor, maps: Tensor, *, counts: Sequence[int]
) -> Tensor:
    r"""Replace the `k` pixels of largest saliency by the mean of the image, for several `k`.

    .. math:: r_k = \frac{p_c(x^{(k)})}{p_c(x)}

    where :math:`x^{(k)}` has the channel means of the image in each replaced pixel.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        maps: saliency, (B, C, H, W), signed; channels are summed, since a pixel is replaced in all.
        counts: numbers of pixels `k`, from 0 to H W.

    Returns:
        The ratios, (B, len(counts)), 1 for `k` of zero.

    Raises:
        UsageError: a count out of its range, or maps of another size.

    Source: section 4.1.2 of :cite:t:`moens2020`.
    """
    n_pixels = images[0, 0].numel()
    if not counts or not all(0 <= k <= n_pixels for k in counts):
        raise expected("counts", f"numbers from 0 to {n_pixels}", list(counts))
    means = images.mean((2, 3), keepdim=True)
    scores = deletion_curve(maps, model, images, class_index, n_steps=[0, *counts], baseline=means)
    return scores[:, 1:] / scores[:, :1]


def area_under_curve(curves: Tensor, positions: Sequence[float] | None = None) -> Tensor:
    r"""Compute the area under curves by the trapezoidal rule, on a scale of length 1.

    .. math:: \frac{1}{t_K - t_0} \sum_{k=1}^{K} (t_k - t_{k-1}) \frac{s_{k-1} + s_k}{2}

    Args:
        curves: such as those of `insertion_curve` or `ablation_curve`, (B, K + 1).
        positions: :math:`t`, the positions of the values, K + 1 increasing numbers; by default
            equally spaced.

    Returns:
        One value for each curve, (B,), in the unit of the curves: 1 for a curve that is always 1.

    >>> area_under_curve(torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([0.7500])
    >>> area_under_curve(torch.tensor([[0.0, 1.0, 1.0]]), [0, 1, 10])
    tensor([0.9500])
    """
    if positions is None:
        return torch.trapezoid(curves, dx=1 / (curves.shape[1] - 1))
    t = torch.as_tensor(positions, dtype=curves.dtype, device=curves.device)
    return torch.trapezoid(curves, t) / (t[-1] - t[0])
