"""Rules that decide claims: each estimates one effect, and says where it would have to lie.

A rule takes the rows of one data set and network and gives a `Finding`; `decide` turns that into a
word. What counts as one observation is the unit of the claim: a network (one seed) or an image.
Rows of one unit are averaged before anything is tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from suite.errors import UsageError
from suite.evidence.statistics import (
    Interval,
    as_ratio,
    between_correlations,
    correlation,
    difference,
    mean_interval,
    permutation_p,
    share_interval,
    spearman,
    t_test_p,
)

HOLDS, NO_EFFECT, OPPOSITE, OPEN = "holds", "no such effect", "opposite", "open"
CANNOT, NOT_RUN, WITHDRAWN = "cannot be measured here", "not run", "withdrawn"
WORDS = (HOLDS, NO_EFFECT, OPPOSITE, OPEN, CANNOT, NOT_RUN, WITHDRAWN)

LEAST_UNITS = 3
NAN = float("nan")
# Quantiles of the normal distribution: both ends of a 95% interval, and a chance of 80%.
Z_95, Z_80 = 1.959964, 0.841621
UNIT_COLUMNS = {"network": "seed", "image": "image"}


@dataclass(frozen=True)
class Finding:
    """What a rule has estimated.

    Args:
        statistic: what that is, in words.
        interval: with the number of units.
        p: two-sided p-value against `bound`.
        sign: the claimed side is above (1) or below (-1) the bound, or within ± the bound (0).
        bound: where the claimed side begins.
        null: the value that is no effect.
        least: the smallest effect of interest, as a distance from `null`; 0 if any counts.
        scale: "linear"; "ratio" (compared by logarithms) or "correlation" (Fisher's).
        undecided: whether nothing is decided between `null` and `bound`.
    """

    statistic: str
    interval: Interval
    p: float = NAN
    sign: int = 1
    bound: float = 0.0
    null: float = 0.0
    least: float = 0.0
    scale: str = "linear"
    undecided: bool = False


class Verdict(NamedTuple):
    """A word, what stands beside it, and how many units would settle what is open."""

    word: str
    detail: str = ""
    needed: float = NAN


def decide(finding: Finding, published: float | None = None) -> Verdict:
    """Say what a finding means for a claim.

    With the interval [low, high] turned so that the claim says "above":

    - *holds*: low is above the bound, and high reaches the smallest effect of interest;
    - *opposite*: high is below no effect (and below the bound);
    - *no such effect*: high is below the smallest effect of interest, or below half of the
      published one;
    - *open*: none of these;
    - *cannot be measured here*: there is no interval.

    Where nothing is decided between the bound and no effect, an interval that lies between them is
    *open*, too.

    A claim that something stays within ± a bound *holds* where the interval lies within, and is
    *opposite* where it lies outside.

    Args:
        finding: of a rule.
        published: the effect that the paper prints, on the scale of the estimate.
    """
    ends = finding.interval.low, finding.interval.high
    if not np.isfinite(ends).all():
        return Verdict(CANNOT, f"no interval can be had from {finding.interval.n} values")
    if finding.sign == 0:
        if -finding.bound < ends[0] and ends[1] < finding.bound:
            return Verdict(HOLDS)
        if ends[0] > finding.bound or ends[1] < -finding.bound:
            return Verdict(OPPOSITE)
        distance = abs(finding.bound - abs(finding.interval.estimate))
        return Verdict(OPEN, needed=_needed(finding, distance))
    low, high = sorted(_turned(finding, end) for end in ends)
    bound = _turned(finding, finding.bound)
    printed = NAN if published is None else _turned(finding, published)
    least = np.nanmax([finding.least, printed / 2]) if bound >= 0 else NAN
    if low > bound and not (bound >= 0 and high < finding.least):
        return Verdict(HOLDS, _beside(low, high, printed))
    if high < min(0.0, bound):
        return Verdict(OPPOSITE)
    if finding.undecided and low >= 0 and high <= bound:
        return Verdict(OPEN, "between the two limits")
    if high < least and not finding.undecided:
        few = high < finding.least
        return Verdict(NO_EFFECT, "" if few else "less than half of the published size")
    mean = _turned(finding, finding.interval.estimate)
    distance = np.nanmax([mean - bound, min(0.0, bound) - mean, least - mean])
    return Verdict(OPEN, needed=_needed(finding, float(distance)))


def _turned(finding: Finding, value: float) -> float:
    """Return how far a value lies from no effect, positive on the claimed side."""
    if finding.scale == "ratio":
        return finding.sign * float(np.log(value) - np.log(finding.null))
    return finding.sign * (value - finding.null)


def _beside(low: float, high: float, published: float) -> str:
    if np.isnan(published):
        return ""
    if high < published:
        return "smaller than published"
    return "larger than published" if low > published else "as large as published"


def _needed(finding: Finding, distance: float) -> float:
    """Return the units with which the interval decides with a chance of 80%, if all stays so.

    Args:
        finding: an open one.
        distance: from the estimate to where it would be decided, the farthest such place.
    """
    estimate, low, high, n = finding.interval
    if distance <= 0 or n < 2:
        return NAN
    offset = 0
    if finding.scale == "correlation":
        place = estimate - np.copysign(distance, estimate)
        place, estimate, low, high = np.arctanh(np.clip([place, estimate, low, high], -0.99, 0.99))
        distance, offset = abs(float(place - estimate)), 3
    elif finding.scale == "ratio":
        low, high = np.log([low, high])
    half = float(high - low) / 2
    if finding.scale != "correlation":
        half *= Z_95 / float(stats.t.ppf(0.975, n - 1))
    more = (half / distance * (Z_95 + Z_80) / Z_95) ** 2
    return max(n + 1.0, float(np.ceil((n - offset) * more) + offset))


def trend(
    rows: pd.DataFrame, *, unit: str, size: float, x: str, expected: str, over: str | None = None
) -> Finding:
    """Estimate how the value goes with `x`, by Spearman's correlation; one a seed if many.

    Args:
        rows: with `value`.
        unit: "network" or "image".
        size: the smallest correlation of interest.
        x: column.
        expected: "rise" or "fall".
        over: column whose values are kinds, averaged before; one kind is then one pair.
    """
    pairs, groups = _pairs(rows, unit, [x], over)
    interval = correlation(pairs[x], pairs["value"], groups)
    p = permutation_p(pairs[x], pairs["value"], groups) if len(pairs) > 2 else NAN
    sign = {"rise": 1, "fall": -1}[expected]
    return Finding(f"Spearman's ρ with {x}", interval, p, sign, least=size, scale="correlation")


def no_trend(rows: pd.DataFrame, *, unit: str, size: float, x: str) -> Finding:
    """Estimate whether the value has no clear trend with `x`: |ρ| below `size`.

    The p-value is that of |ρ| = `size`, on Fisher's scale: a correlation of zero is not what the
    claim has to rule out.
    """
    pairs, groups = _pairs(rows, unit, [x])
    interval = correlation(pairs[x], pairs["value"], groups)
    places = np.arctanh(np.clip([interval.low, interval.high, size], -0.9999, 0.9999))
    error = (places[1] - places[0]) / 2 / Z_95
    gap = places[2] - abs(places[0] + places[1]) / 2
    p = float(2 * stats.norm.sf(abs(gap) / error)) if error > 0 else NAN
    return Finding(f"Spearman's ρ with {x}", interval, p, 0, size, scale="correlation")


def same_trend(rows: pd.DataFrame, *, unit: str, size: float, x: str, between: str) -> Finding:
    """Estimate whether the correlations with `x` agree for the two values of a column.

    Raises:
        UsageError: it has not two values.
    """
    names = sorted(rows[between].unique())
    if len(names) != 2:
        raise UsageError(f"same_trend: expected two values of {between!r}, got {names}")
    first, second = (rows[rows[between] == name] for name in names)
    # The same units give both, so the two estimates rise and fall together.
    both = rows.pivot_table(index=[UNIT_COLUMNS[unit], x], columns=between, values="value")
    both = both.dropna().reset_index()
    of_both = [(x, names[0]), (x, names[1]), tuple(names)]
    shared = between_correlations(*(float(spearman(both[a], both[b])) for a, b in of_both))
    gap = _trend_gap(first, second, unit, x, shared)
    return Finding(f"ρ({names[0]}) − ρ({names[1]})", gap, NAN, 0, size)


def similar_trend(
    rows: pd.DataFrame, *, unit: str, size: float, x: str, reference: pd.DataFrame, named: str
) -> Finding:
    """Estimate whether the correlation with `x` agrees with that on other data, within ± `size`.

    Args:
        rows, unit, x: see `trend`.
        size: the margin.
        reference, named: see `stronger_trend`.
    """
    gap = _trend_gap(rows, reference, unit, x)
    return Finding(f"ρ here − ρ on {named}", gap, NAN, 0, size)


def stronger_trend(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    x: str,
    expected: str,
    reference: pd.DataFrame,
    named: str,
) -> Finding:
    """Estimate by how much a trend is stronger, or weaker, than on other data.

    Args:
        rows, unit, size, x: see `trend`.
        expected: "higher" or "lower": whether ρ here is above or below that of the reference.
        reference: its rows.
        named: what the reference is called.
    """
    sign, gap = {"higher": 1, "lower": -1}[expected], _trend_gap(rows, reference, unit, x)
    return Finding(f"ρ here − ρ on {named}", gap, _normal_p(gap), sign, least=size)


def _trend_gap(
    rows: pd.DataFrame, other: pd.DataFrame, unit: str, x: str, together: float = 0.0
) -> Interval:
    both = []
    for part in (rows, other):
        pairs, groups = _pairs(part, unit, [x])
        both.append(correlation(pairs[x], pairs["value"], groups))
    return difference(both[0], both[1], together)


def apart(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    between: str,
    first: str,
    second: str,
    expected: str,
) -> Finding:
    """Estimate by how much units of one kind are ahead of other units, which are no pairs.

    Args:
        rows, unit, between, first, second, expected: see `paired`.
        size: the smallest difference of interest.
    """
    sign = {"higher": 1, "lower": -1}[expected]
    gap, p = _apart(rows, unit, between, first, second, ratio=False)
    return Finding(f"{first} − {second}", gap, p, sign, least=size)


def unequal_change(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    between: str,
    first: str,
    second: str,
    reference: pd.DataFrame,
    named: str,
) -> Finding:
    """Estimate by which factor a change, first over second, differs from that on other data.

    Either direction counts, so the claim is on the side of the estimate: it holds where the
    interval leaves out 1, and there is no such effect where it lies within `size`.

    Args:
        rows, unit, between, first, second: see `apart`.
        size: the smallest factor of interest, above 1.
        reference, named: see `stronger_trend`.
    """
    here, there = (_apart(p, unit, between, first, second, True)[0] for p in (rows, reference))
    gap = difference(here, there)
    sign = 1 if gap.estimate > 0 else -1
    shown, p = as_ratio(gap), _normal_p(gap)
    statistic = f"{first} ÷ {second}, here ÷ on {named}"
    return Finding(statistic, shown, p, sign, 1.0, 1.0, np.log(size), "ratio")


def _apart(
    rows: pd.DataFrame, unit: str, between: str, first: str, second: str, ratio: bool
) -> tuple[Interval, float]:
    """Return the difference of two means (of logarithms) by Welch's test, and its p-value."""
    units = rows.groupby([between, UNIT_COLUMNS[unit]])["value"].mean()
    values = np.log(units) if ratio else units
    kinds = values.index.get_level_values(0)
    if missing := {first, second} - set(kinds):
        raise UsageError(f"apart: expected {between} {sorted(missing)}, got {sorted(set(kinds))}")
    sides = [values[first].to_numpy(), values[second].to_numpy()]
    n, gap = min(map(len, sides)), float(sides[0].mean() - sides[1].mean())
    if n < 2:
        return Interval(gap, n=n), NAN
    test = stats.ttest_ind(*sides, equal_var=False)
    low, high = test.confidence_interval(0.95)
    return Interval(gap, float(low), float(high), n), float(test.pvalue)


def _normal_p(gap: Interval) -> float:
    error = (gap.high - gap.low) / 2 / Z_95
    return float(2 * stats.norm.sf(abs(gap.estimate) / error)) if error > 0 else NAN


def cut_off(rows: pd.DataFrame, *, unit: str, size: float, x: str, plateau_below: float) -> Finding:
    """Estimate over how many decades of `x` the value falls from 95% to 50% of its plateau.

    The plateau is the mean for `x` below `plateau_below`; both ends are interpolated in log x.
    With three seeds or more the interval is that of their widths; with fewer, what the grid leaves
    open: the narrowest and the widest fall that has the same values on the grid. A value that never
    falls to half has no width.
    """
    # Where each value of x has a network of its own, all of them make one curve.
    alone = rows.groupby("seed")[x].nunique().max() == 1
    curves = [rows] if alone else [part for _, part in rows.groupby("seed")]
    of_seeds = [_width(part, x, plateau_below) for part in curves]
    found = [width for width in of_seeds if np.isfinite(width[0])]
    statistic = "decades from 95% to 50% of the plateau"
    if len(found) < len(of_seeds) or not found:
        interval = Interval(NAN, n=len(of_seeds))
    elif len(found) < LEAST_UNITS:
        middle, low, high = (float(np.mean(part)) for part in zip(*found))
        interval = Interval(middle, low, high, len(found))
    else:
        interval = mean_interval([width for width, _, _ in found])
    return Finding(statistic, interval, NAN, -1, size, null=size)


def _width(rows: pd.DataFrame, x: str, plateau_below: float) -> tuple[float, float, float]:
    means = rows.groupby(x)["value"].mean()
    share = (means / means[means.index < plateau_below].mean()).to_numpy()
    places = np.log10(means.index.to_numpy(float))
    low = np.flatnonzero(share <= 0.5)
    high = np.flatnonzero(share[: low[0]] >= 0.95) if len(low) else low
    if not len(high):
        return NAN, NAN, NAN
    i, j = high[-1], low[0]
    start = np.interp(-0.95, -share[i : i + 2], places[i : i + 2])
    end = np.interp(-0.5, -share[j - 1 : j + 1], places[j - 1 : j + 1])
    return end - start, max(0.0, places[j - 1] - places[i + 1]), places[j] - places[i]


def level(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    expected: str,
    no_effect: float | None = None,
    opposite: float | None = None,
    x: str | None = None,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> Finding:
    """Estimate the mean value, which is claimed to lie above or below the limit `size`.

    Args:
        rows, unit: see `trend`.
        size: the limit.
        expected: "above" or "below".
        no_effect: that value, if the other side of the limit is not the opposite.
        opposite: where the opposite begins, if between that and the limit nothing is decided.
        x, at_least, at_most: a column and its range, for a part of the rows.
    """
    if x is not None:
        rows = rows[rows[x].between(at_least, at_most)]
    values = rows.groupby(UNIT_COLUMNS[unit])["value"].mean()
    interval, sign = _exact(values, rows), {"above": 1, "below": -1}[expected]
    ends = [end for end in (no_effect, opposite) if end is not None]
    start = ends[0] if ends else size
    p, least = t_test_p(values, size), abs(size - start)
    statistic = f"mean (to hold: {expected} {size:g})"
    two = opposite is not None
    return Finding(statistic, interval, p, sign, size, start, least, undecided=two)


def paired(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    between: str,
    first: str,
    second: str,
    expected: str,
    match: Sequence[str] = (),
    ratio: bool = False,
) -> Finding:
    """Estimate by how much one value of a column is ahead of another, over pairs of one unit.

    Args:
        rows, unit: see `trend`.
        size: the smallest difference of interest; with `ratio` a factor above 1.
        between, first, second: first minus second (over second, with `ratio`) in that column.
        expected: "higher" or "lower".
        match: further columns that are equal in a pair, averaged over after.
        ratio: take the geometric mean of ratios, of the units where both values are positive.
    """
    gaps = _gaps(rows, unit, between, first, second, match, ratio)
    sign = {"higher": 1, "lower": -1}[expected]
    if ratio:
        interval = _mean(gaps)
        shown, statistic = as_ratio(interval), f"{first} ÷ {second}"
        return Finding(statistic, shown, t_test_p(gaps), sign, 1.0, 1.0, np.log(size), "ratio")
    sides = rows[rows[between].isin([first, second])]
    interval = _exact(gaps, sides)
    return Finding(f"{first} − {second}", interval, t_test_p(gaps), sign, least=size)


def not_worse(
    rows: pd.DataFrame,
    *,
    unit: str,
    size: float,
    between: str,
    first: str,
    second: str,
    better: str = "higher",
    match: Sequence[str] = (),
) -> Finding:
    """Estimate whether one value of a column loses less than `size` against another.

    Args:
        rows, unit, between, first, second, match: see `paired`.
        size: the loss that still counts as none.
        better: "higher" or "lower" values.
    """
    gaps = _gaps(rows, unit, between, first, second, match)
    sign = {"higher": 1, "lower": -1}[better]
    p, interval = t_test_p(gaps, -sign * size), _mean(gaps)
    return Finding(f"{first} − {second}", interval, p, sign, -sign * size)


def _gaps(
    rows: pd.DataFrame,
    unit: str,
    between: str,
    first: str,
    second: str,
    match: Sequence[str],
    ratio: bool = False,
) -> "pd.Series[float]":
    """Return one difference (of logarithms, for a ratio) for each unit that has both sides."""
    column = UNIT_COLUMNS[unit]
    rows = rows.assign(**{name: rows[name].fillna("") for name in match})
    wide = rows.pivot_table(index=[column, *match], columns=between, values="value")
    if missing := {first, second} - set(wide.columns):
        raise UsageError(f"paired: expected {between} {sorted(missing)}, got {list(wide.columns)}")
    if ratio:
        wide = wide.where(wide > 0).apply(np.log)
    sides = [wide[name] for name in (first, second)]
    return (sides[0] - sides[1]).dropna().groupby(column).mean()


def _mean(values: "pd.Series[float]") -> Interval:
    return mean_interval(values) if len(values) else Interval(NAN)


def _exact(values: "pd.Series[float]", rows: pd.DataFrame) -> Interval:
    """Return the interval of a mean; where all are equal, as wide as the images allow.

    Shares that are all 0 or all 1, or differences of two such, have no spread; the exact interval
    of one network's images takes its place.
    """
    interval = _mean(values)
    if len(values) < 2 or interval.high > interval.low or "n" not in rows:
        return interval
    n = float(rows["n"].min())
    if n < 2 or not rows["value"].isin([0.0, 1.0]).all():
        return interval
    width = share_interval(0, n).high
    mean = interval.estimate
    shares = rows["value"].nunique() == 1 and mean == rows["value"].iloc[0]
    low = mean - width if mean > 0 or not shares else mean
    high = mean + width if mean < 1 or not shares else mean
    return Interval(mean, low, high, interval.n)


def _pairs(
    rows: pd.DataFrame, unit: str, x: list[str], over: str | None = None
) -> tuple[pd.DataFrame, "pd.Series[str] | None"]:
    """Return one row for each pair, and the groups of pairs that belong together, if there are.

    Seeds are groups where each has at least four values of `x`. Where each has one, pairs are
    independent. Anything between has no correlation of its own.
    """
    column = UNIT_COLUMNS[unit]
    if over is not None:
        return rows.groupby(over)[[*x, "value"]].mean().reset_index(), None
    pairs = rows.groupby([column, *x])["value"].mean().reset_index()
    sizes = pairs.groupby(column).size()
    return pairs, None if sizes.max() == 1 or len(sizes) == 1 else pairs[column]


Rule = Callable[..., Finding]
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        trend,
        no_trend,
        same_trend,
        similar_trend,
        stronger_trend,
        apart,
        unequal_change,
        cut_off,
        level,
        paired,
        not_worse,
    )
}
# Rules that claim that something stays within a margin.
MARGINS = ("no_trend", "same_trend", "similar_trend")
