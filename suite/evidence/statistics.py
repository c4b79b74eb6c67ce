"""Correlations with permutation tests and bootstrap intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

N_PERMUTATIONS = 9_999
N_RESAMPLES = 9_999


class Interval(NamedTuple):
    """An estimate with the ends of its 95% interval, if it has one, from `n` values."""

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


def permutation_p(x: ArrayLike, y: ArrayLike) -> float:
    """Return the two-sided p-value of Spearman's correlation under permutations of `y`.

    With 9,999 random permutations the observed order counts as one more, so the p-value is never
    zero :cite:p:`phipson2010`; up to 7 values all orders are gone through.
    """
    test = stats.permutation_test(
        (np.asarray(y, float),),
        lambda order, axis: spearman(x, order, axis),
        permutation_type="pairings",
        n_resamples=N_PERMUTATIONS,
        vectorized=True,
        rng=0,
    )
    return float(test.pvalue)


def correlation(x: ArrayLike, y: ArrayLike) -> Interval:
    """Estimate Spearman's correlation, with a bootstrap interval over pairs."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    draws = _resampled(len(x))
    return _interval(float(spearman(x, y)), spearman(x[draws], y[draws]), len(x))


def correlation_difference(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Interval:
    """Estimate corr(x, y) - corr(x, z) (Spearman), with a bootstrap interval over triples."""
    x, y, z = (np.asarray(values, float) for values in (x, y, z))
    draws = _resampled(len(x))
    values = spearman(x[draws], y[draws]) - spearman(x[draws], z[draws])
    return _interval(float(spearman(x, y) - spearman(x, z)), values, len(x))


def mean_interval(values: ArrayLike) -> Interval:
    """Estimate a mean, with the interval of Student's t-distribution, `n - 1` degrees of freedom.

    >>> [round(value, 3) for value in mean_interval([1, 2, 3])]
    [2.0, -0.484, 4.484, 3]
    """
    values = np.asarray(values, float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Interval(mean, n=n)
    half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def _resampled(n: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(n, size=(N_RESAMPLES, n))


def _interval(estimate: float, values: NDArray[np.float64], n: int) -> Interval:
    defined = values[np.isfinite(values)]  # a resample of one repeated model has no correlation
    if len(defined) == 0:
        return Interval(estimate, n=n)
    low, high = np.quantile(defined, [0.025, 0.975])
    return Interval(estimate, float(low), float(high), n)
