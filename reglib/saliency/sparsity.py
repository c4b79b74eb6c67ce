"""Choose the strength of the L1 norm by the sparsity of the map, without supervision."""

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
    """The chosen interpretation of each image, with a sparsity in a given range.

    Args:
        interpretation: the chosen interpretation; its `lambda1` is the chosen strength.
        found: whether its sparsity is in the range, (B,). If not, no strength that was tried gave
            a map in the range, and the chosen map is empty.
        grid: the interpretations of the first round, (K, B, ...), weakest solved strength first;
            `grid.lambda1[:, 0]` are the strengths.
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

    Strengths grow by `factor` from `start` until the map is empty; CAFO's is empty from
    :math:`\lambda_1 = \|g\|_\infty` on. They are solved from the strongest down, until all maps
    are too dense for the range: a weaker norm never gives CAFO more zeros, and hardly ever CASO.
    Among the maps in the range, the one with the largest `loss_change` is chosen.

    If no map is in the range, the weakest strength with an empty map is halved repeatedly. Where
    halving jumps over the range, the next strength is the geometric mean of the nearest strengths
    on both sides.

    Args:
        loss: from `surrogate_loss` or `smooth_surrogate_loss`.
        method: `caso` or `cafo`.
        start: smallest strength. The default and the default `sparsity` come from the authors' text
            and program.
        factor: ratio of consecutive strengths, above 1.
        sparsity: low (inclusive) and high (exclusive) bound of the share of exact zeros of a map.
        max_rounds: largest number of halvings.
        **options: further arguments of `method`.

    Returns:
        The choice for each image, and the grid of the first round.

    Raises:
        ValueError: `start`, `factor` or `sparsity` is out of range; as `method`.

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
    results: list[Interpretation] = []
    for strength in grid.flip(0):
        results.append(method(loss, lambda1=strength.expand(1, len(peak)), **options))
        if (results[-1].sparsity < low).all():
            break
    candidates = Interpretation(*map(torch.cat, zip(*reversed(results), strict=True)))
    grid = grid[-len(results) :]
    inside = (candidates.sparsity >= low) & (candidates.sparsity < high)
    found = inside.any(0)
    empty_at = (grid[:, None] >= peak).int().argmax(0)
    best = torch.where(inside, candidates.loss_change, -torch.inf).argmax(0)
    index = torch.where(found, best, empty_at), torch.arange(len(peak), device=peak.device)
    chosen = Interpretation(*(values[index] for values in candidates))
    empty = grid[empty_at]
    dense = torch.where(empty_at > 0, grid[empty_at - 1], 0)
    for _ in range(max_rounds):
        searching = ~found & (peak > 0)
        if not searching.any():
            break
        trial = torch.where(empty / 2 > dense, empty / 2, (dense * empty).sqrt())
        result = method(loss, lambda1=torch.where(searching, trial, empty), **options)
        inside = searching & (result.sparsity >= low) & (result.sparsity < high)
        chosen = _merge(chosen, result, inside)
        found = found | inside
        empty = torch.where(searching & (result.sparsity >= high), trial, empty)
        dense = torch.where(searching & (result.sparsity < low), trial, dense)
    return Choice(chosen, found, candidates)


def _strengths(start: float, factor: float, peak: float) -> Tensor:
    """Return start, start * factor, ..., up to the first strength not below the peak."""
    steps = max(0, math.ceil(math.log(peak / start, factor))) if peak > 0 else 0
    values = start * factor ** torch.arange(steps + 2, dtype=torch.float64)
    return values[: int((values < peak).sum()) + 1]


def _merge(old: Interpretation, new: Interpretation, take: Tensor) -> Interpretation:
    """Replace the interpretations of some images, where `take` (B,) is true."""
    pairs = zip(old, new, strict=True)
    return Interpretation(*(torch.where(per_sample(take, a), b, a) for a, b in pairs))
