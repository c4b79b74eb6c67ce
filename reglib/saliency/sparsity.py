"""Choosing the strength of the L1 norm by the sparsity of the map, without supervision."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reglib._checks import check_positive
from reglib._common import per_sample
from reglib.saliency.high_order import Interpretation, caso
from reglib.saliency.surrogate import SurrogateLoss


class Choice(NamedTuple):
    """The interpretation of each image whose sparsity is in a range.

    Args:
        interpretation: the chosen one; its `lambda1` is the choice.
        found: whether its sparsity is in the range, (B,). Where it is not, no strength that was
            tried has such a map, and the chosen one is empty.
        grid: the interpretations of the first round, (K, B, ...), from the weakest strength that
            was solved; `grid.lambda1[:, 0]` are the strengths.
    """

    interpretation: Interpretation
    found: Tensor
    grid: Interpretation


def choose_lambda1(
    loss: SurrogateLoss,
    *,
    method: Callable[..., Interpretation] = caso,
    start: float = 1e-5,
    factor: float = 10.0,
    sparsity: tuple[float, float] = (0.75, 1.0),
    max_rounds: int = 30,
    **options: Any,
) -> Choice:
    r"""Choose for each image the strength of the L1 norm by the sparsity of the map.

    Strengths grow by `factor` from `start` until the map is empty, which CAFO's is from
    :math:`\lambda_1 = \|g\|_\infty` on. They are solved from the strongest down, until all maps
    have fewer zeros than the range asks for: a weaker norm leaves CAFO no more, and CASO hardly
    ever. Of the maps with a sparsity in the range, the one with the highest loss is taken, by the
    second-order expansion. If there is none, the first strength with an empty map is halved, and so
    on; where that jumps over the range, the geometric mean of the nearest strengths on both sides
    takes its place.

    Args:
        loss: from `surrogate_loss` or `smooth_surrogate_loss`.
        method: `caso` or `cafo`.
        start: smallest strength. 1e-5 and the range of sparsity are recovered from the authors'
            text and program.
        factor: above 1.
        sparsity: from (inclusive) and below which the share of exact zeros among the values of a
            map has to be.
        max_rounds: of halving.
        **options: handed on to `method`.

    Raises:
        ValueError: `start`, `factor` or `sparsity` is out of its range; as `method`.

    Source: section 4.1 of Singla, Wallace, Feng and Feizi, "Understanding impacts of high-order
    loss approximations and features in deep learning interpretation" (2019) :cite:p:`singla2019`.
    """
    low, high = sparsity
    check_positive(start=start)
    if not factor > 1:
        raise ValueError(f"factor: expected a number above 1, got {factor}")
    if not 0 <= low < high <= 1:
        raise ValueError(f"sparsity: expected 0 <= low < high <= 1, got ({low}, {high})")
    peak = loss.gradient.flatten(1).abs().amax(1)  # (B,)
    grid = _strengths(start, factor, float(peak.max())).to(peak)  # (K,)
    solved: list[Interpretation] = []
    for strength in grid.flip(0):
        solved.append(method(loss, lambda1=strength.expand(1, len(peak)), **options))
        if (solved[-1].sparsity < low).all():
            break
    tried = Interpretation(*(torch.cat(parts) for parts in zip(*reversed(solved), strict=True)))
    grid = grid[-len(solved) :]
    inside = (tried.sparsity >= low) & (tried.sparsity < high)
    found = inside.any(0)
    empty_at = (grid[:, None] >= peak).int().argmax(0)
    best = torch.where(inside, tried.loss_change, -torch.inf).argmax(0)
    chosen = _pick(tried, torch.where(found, best, empty_at))
    empty = grid[empty_at]
    dense = torch.where(empty_at > 0, grid[empty_at - 1], 0)
    for _ in range(max_rounds):
        open_ = ~found & (peak > 0)
        if not open_.any():
            break
        trial = torch.where(empty / 2 > dense, empty / 2, (dense * empty).sqrt())
        once = method(loss, lambda1=torch.where(open_, trial, empty), **options)
        inside = open_ & (once.sparsity >= low) & (once.sparsity < high)
        chosen = _merge(chosen, once, inside)
        found = found | inside
        empty = torch.where(open_ & (once.sparsity >= high), trial, empty)
        dense = torch.where(open_ & (once.sparsity < low), trial, dense)
    return Choice(chosen, found, tried)


def _strengths(start: float, factor: float, peak: float) -> Tensor:
    """Return start, start * factor, ..., the last one not below the peak."""
    steps = max(0, math.ceil(math.log(peak / start, factor))) if peak > 0 else 0
    values = start * factor ** torch.arange(steps + 2, dtype=torch.float64)
    return values[: int((values < peak).sum()) + 1]


def _pick(tried: Interpretation, index: Tensor) -> Interpretation:
    """Take of each image one interpretation of the grid."""
    rows = torch.arange(len(index), device=index.device)
    return Interpretation(*(values[index, rows] for values in tried))


def _merge(old: Interpretation, new: Interpretation, take: Tensor) -> Interpretation:
    """Take the new interpretation of some images."""
    pairs = zip(old, new, strict=True)
    return Interpretation(*(torch.where(per_sample(take, a), b, a) for a, b in pairs))
