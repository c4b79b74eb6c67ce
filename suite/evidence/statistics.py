"""Means, proportions and correlations with 95% intervals, and p-values."""

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

N_PERMUTATIONS = 9_999
Correlate = Callable[..., NDArray[np.float64]]  # of x and y, along an axis


class _Stats:
    """`scipy.stats`, imported at its first use: units are computed without SciPy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("scipy.stats"), name)


stats = _Stats()


class Interval(NamedTuple):
    """An estimate from `n` values, with the ends of its 95% interval or NaN."""

    estimate: float
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0


def spearman(x: ArrayLike, y: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Compute Spearman's rank correlation along an axis; NaN where a side is constant.

    >>> float(spearman([1, 2, 3], [1, 4, 9]))
    1.0
    """
    return pearson(stats.rankdata(x, axis=axis), stats.rankdata(y, axis=axis), axis)


def pearson(x: ArrayLike, y: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Compute Pearson's correlation along an axis; NaN where a side is constant."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    a = a - a.mean(axis, keepdims=True)
    b = b - b.mean(axis, keepdims=True)
    scale = np.sqrt((a**2).sum(axis) * (b**2).sum(axis))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis) / np.where(scale > 0, scale, np.nan)


def permutation_p(
    x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None, statistic: Correlate = spearman
) -> float:
    """Return the two-sided p-value of a correlation under permutations of `y`.

    The observed order counts as one of 9,999 random permutations more, so the p-value is never
    zero :cite:p:`phipson2010`. One group of up to 7 values has all its permutations.

    Args:
        x, y: pairs of values.
        groups: `y` is permuted within groups, whose correlations are averaged; default: one group.
        statistic: `spearman` or `pearson`.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    positions = _positions(groups, len(x))
    if len(positions) == 1:
        how = {"permutation_type": "pairings", "n_resamples": N_PERMUTATIONS, "vectorized": True}
        return float(stats.permutation_test((y,), partial(statistic, x), **how, rng=0).pvalue)
    rng = np.random.default_rng(0)
    observed = np.mean([statistic(x[index], y[index]) for index in positions])
    orders = [rng.permuted(np.tile(index, (N_PERMUTATIONS, 1)), axis=1) for index in positions]
    permuted = np.mean([statistic(x[i], y[order]) for i, order in zip(positions, orders)], axis=0)
    counts = [np.count_nonzero(sign * permuted >= sign * observed - 1e-12) for sign in (1, -1)]
    return min(1.0, 2 * (min(counts) + 1) / (N_PERMUTATIONS + 1))


def correlation(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Interval:
    """Estimate Spearman's correlation, or its mean over groups, with an interval.

    On Fisher's scale, z = artanh ρ, the standard error of one group of n pairs is
    √((1 + ρ²/2) / (n - 3)) :cite:p:`bonett2000`. Several groups have this interval or that of
    Student's t between them, whichever is wider. A perfect order of few values counts as half a
    step less, so no interval has width zero.

    Args:
        x, y: pairs of values.
        groups: of the pairs, such as seeds, if pairs of one group are not independent.

    Returns:
        The interval, with the number of pairs; its ends are NaN where a group has fewer than four.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    positions = _positions(groups, len(x))
    rhos = np.array([spearman(x[index], y[index]) for index in positions])
    estimate, sizes = float(rhos.mean()), np.array([len(index) for index in positions])
    if sizes.min() < 4 or not np.isfinite(estimate):
        return Interval(estimate, n=len(x))
    most = 1 - 6 / (sizes * (sizes**2 - 1.0))
    z = np.arctanh(np.clip(rhos, -most, most))
    half = 1.96 * float(np.sqrt(np.sum((1 + rhos**2 / 2) / (sizes - 3)))) / len(sizes)
    if len(sizes) > 1:
        spread = mean_interval(z)
        half = max(half, spread.high - spread.estimate)
    low, high = np.tanh([z.mean() - half, z.mean() + half])
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate), len(x))


def between_correlations(first: float, second: float, other: float) -> float:
    """Return the correlation of two estimated correlations that share a variable.

    Args:
        first, second: correlations of two variables with the shared one.
        other: the correlation of the two variables.

    Source: equation 8 of :cite:t:`zou2007`.
    """
    left = (1 - first**2) * (1 - second**2)
    rest = 1 - first**2 - second**2 - other**2
    if left <= 0:
        return 0.0
    return float(np.clip(((other - first * second / 2) * rest + other**3) / left, -1, 1))


def difference(first: Interval, second: Interval, dependence: float = 0.0) -> Interval:
    """Estimate the difference of two estimates, from their intervals :cite:p:`zou2007`.

    Args:
        first, second: the estimates.
        dependence: the correlation of the two estimates.

    Returns:
        The difference; its ends are NaN where those of an estimate are.
    """
    gap = first.estimate - second.estimate

    def half(a: float, b: float) -> float:
        return float(np.sqrt(np.maximum(0.0, a**2 + b**2 - 2 * dependence * a * b)))

    below = half(first.estimate - first.low, second.high - second.estimate)
    above = half(first.high - first.estimate, second.estimate - second.low)
    return Interval(gap, gap - below, gap + above, min(first.n, second.n))


def as_ratio(gap: Interval) -> Interval:
    """Return the interval of a ratio from the interval of its logarithm."""
    estimate, low, high = np.exp(gap[:3]).tolist()
    return Interval(estimate, low, high, gap.n)


def mean_interval(values: ArrayLike) -> Interval:
    """Estimate a mean, with the interval of Student's t-distribution; NaN without values.

    >>> [round(value, 3) for value in mean_interval([1, 2, 3])]
    [2.0, -0.484, 4.484, 3]
    """
    values = np.asarray(values, float)
    n, mean = len(values), float(values.mean()) if len(values) else math.nan
    if n < 2:
        return Interval(mean, n=n)
    quantile = importlib.import_module("scipy.special").stdtrit(n - 1, 0.975)
    half = float(quantile * values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def share_interval(successes: int, n: int) -> Interval:
    """Estimate a proportion, with the exact interval of Clopper and Pearson.

    >>> [round(value, 3) for value in share_interval(0, 100)]
    [0.0, 0.0, 0.036, 100]
    """
    low, high = stats.binomtest(successes, n).proportion_ci(0.95, "exact")
    return Interval(successes / n, float(low), float(high), n)


def t_test_p(values: ArrayLike, mean: float = 0.0) -> float:
    """Return the two-sided p-value of Student's t-test of a mean; NaN for fewer than two values.

    Equal values have no spread: their p-value is that of the sign test, 2 / 2ⁿ.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan")
    if np.ptp(values) <= 1e-14 * np.abs(values).max():  # equal but for rounding
        return 1.0 if values[0] == mean else 2.0 ** (1 - len(values))
    return float(stats.ttest_1samp(values, mean).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method :cite:p:`holm1979`; NaN stays, uncounted.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.array(p, float)
    order = np.argsort(values)[: np.isfinite(values).sum()]  # NaN is last
    steps = values[order] * np.arange(len(order), 0, -1)
    values[order] = np.minimum(1, np.maximum.accumulate(steps))
    return [float(value) for value in values]


def _positions(groups: ArrayLike | None, n: int) -> list[NDArray[np.int64]]:
    """Return the positions of each group; by default all `n` positions are one group."""
    names = np.zeros(n) if groups is None else np.asarray(groups)
    return [np.flatnonzero(names == name) for name in np.unique(names)]
