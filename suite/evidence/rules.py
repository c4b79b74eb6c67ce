"""Rules that decide claims: each estimates one effect and the expectation of the claim.

A rule takes the rows of one data set and network and returns a `Finding`; `decide` turns it into a
word. The unit of the claim is one observation: a network (one seed), an image or a scene. Rows of
one unit are averaged first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from suite.errors import expected
from suite.evidence import statistics
from suite.evidence.statistics import Interval, mean_interval, stats, t_test_p

HOLDS, SMALLER, NO_EFFECT = "holds", "smaller than claimed", "no effect"
CONTRADICTED, INCONCLUSIVE = "contradicted", "inconclusive"
NOT_TESTABLE, NOT_RUN = "not testable here", "not run"
WORDS = (HOLDS, SMALLER, NO_EFFECT, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE, NOT_RUN)

LEAST_UNITS = 3
NAN = float("nan")
Frame = pd.DataFrame
# Quantiles of the normal distribution: both ends of a 95% interval, and a chance of 80%.
Z_95, Z_80 = 1.959964, 0.841621
UNIT_COLUMNS = {"network": "seed", "seed": "seed", "image": "image", "scene": "image"}
# The side of the claimed effect, by its word.
SIGNS = {"rise": 1, "higher": 1, "above": 1, "fall": -1, "lower": -1, "below": -1}


@dataclass(frozen=True)
class Finding:
    """The estimate of a rule.

    Args:
        statistic: the estimated quantity in words.
        interval: the estimate with its interval and the number of units.
        p: two-sided p-value against `bound`.
        sign: the claimed side is above (1) or below (-1) the bound, or within ± the bound (0).
        bound: the value at which the claimed side begins.
        null: the value of no effect.
        least: the smallest effect of interest, as a distance from `null`; 0 if any counts.
        scale: "linear"; "ratio" (compared by logarithms) or "correlation" (Fisher's).
    """

    statistic: str
    interval: Interval
    p: float = NAN
    sign: int = 1
    bound: float = 0.0
    null: float = 0.0
    least: float = 0.0
    scale: str = "linear"

    def effect(self, value: float) -> float:
        """Return the distance of a value from no effect; positive in the claimed direction."""
        if self.scale == "ratio":
            return (self.sign or 1) * float(np.log(value) - np.log(self.null))
        return (self.sign or 1) * (value - self.null)


class Verdict(NamedTuple):
    """A word, a detail, the units that would settle an inconclusive verdict, and its finding."""

    word: str
    detail: str = ""
    needed: float = NAN
    finding: Finding | None = None


def decide(finding: Finding, published: float = NAN) -> Verdict:
    """Turn a finding into a word.

    The 95% interval [l, u], the smallest effect of interest s and the published effect P are
    distances from no effect in the claimed direction:

    - *holds*: l > 0 (or above the limit of the claim), and u reaches s; its detail is the size:
      *as large as published*, *smaller than published*, *larger than published*;
    - *smaller than claimed*: l > 0, but u is below s, or below half of P;
    - *no effect*: [l, u] is inside (-s, s);
    - *contradicted*: u < 0, and l reaches -s;
    - *inconclusive*: none of these;
    - *not testable here*: a precondition fails, or there is no interval.

    A claim that a value stays within ± a margin *holds* if the interval is inside the margin, and
    is *contradicted* if the interval is outside. A claim that a loss is less than a margin has the
    same rule with one margin. A claim with two limits is *inconclusive* between them.

    Args:
        finding: of a rule.
        published: the published effect, on the scale of the estimate; NaN for none.
    """
    ends = finding.interval.low, finding.interval.high
    if not np.isfinite(ends).all():
        return Verdict(NOT_TESTABLE, f"no interval can be had from {finding.interval.n} values")
    low, high = sorted(map(finding.effect, ends))
    mean, least = finding.effect(finding.interval.estimate), finding.least
    bound = finding.effect(finding.bound)
    if finding.sign == 0 or bound < 0:  # a margin on both sides, or on one
        inside = low > -abs(bound) and (finding.sign != 0 or high < bound)
        outside = high < -abs(bound) or (finding.sign == 0 and low > bound)
        word = HOLDS if inside else CONTRADICTED if outside else INCONCLUSIVE
        gap = abs(abs(bound) - abs(mean)) if finding.sign == 0 else abs(mean - bound)
        return Verdict(word) if word != INCONCLUSIVE else Verdict(word, "", _n_more(finding, gap))
    printed = finding.effect(published)
    if least and low > 0 and high < np.nanmax([least, printed / 2]):
        return Verdict(SMALLER, "" if high < least else "less than half of the published effect")
    if low > bound:
        return Verdict(HOLDS, _compare_with_published(low, high, printed))
    if high < 0 and low <= -least:
        return Verdict(CONTRADICTED)
    if -least < low and high < least:
        return Verdict(NO_EFFECT)
    if low >= 0 and high <= bound:
        return Verdict(INCONCLUSIVE, "between the two limits")
    return Verdict(INCONCLUSIVE, "", _n_more(finding, max(mean - bound, -mean, least - abs(mean))))


def _compare_with_published(low: float, high: float, published: float) -> str:
    if np.isnan(published):
        return ""
    if high < published:
        return "smaller than published"
    return "larger than published" if low > published else "as large as published"


def _n_more(finding: Finding, distance: float) -> float:
    """Return the number of units for a power of 80%, if estimate and spread do not change.

    Args:
        finding: an inconclusive finding.
        distance: from the estimate to the farthest bound that would decide it.
    """
    estimate, low, high, n = finding.interval
    if distance <= 0 or n < 2:
        return NAN
    offset = 0
    if finding.scale == "correlation":
        bound = estimate - np.copysign(distance, estimate)
        bound, estimate, low, high = np.arctanh(np.clip([bound, estimate, low, high], -0.99, 0.99))
        distance, offset = abs(float(bound - estimate)), 3
    elif finding.scale == "ratio":
        low, high = np.log([low, high])
    half = float(high - low) / 2
    if finding.scale != "correlation":
        half *= Z_95 / float(stats.t.ppf(0.975, n - 1))
    more = (half / distance * (Z_95 + Z_80) / Z_95) ** 2
    return max(n + 1.0, float(np.ceil((n - offset) * more) + offset))


def trend(
    rows: Frame, *, unit: str, size: float, x: str, expected: str, over: str | None = None
) -> Finding:
    """Estimate the trend of the value with `x`, by Spearman's correlation; one for each seed.

    The claim of no trend is that |ρ| is below `size`. Its p-value is against |ρ| = `size`, on
    Fisher's scale.

    Args:
        rows: with `value`.
        unit: "network", "image" or "scene".
        size: the smallest correlation of interest.
        x: column.
        expected: "rise", "fall" or "none".
        over: column of kinds; the mean of a kind is one pair.
    """
    pairs, groups = _pairs(rows, unit, [x], over)
    interval = statistics.correlation(pairs[x], pairs["value"], groups)
    statistic = f"Spearman's ρ with {x}"
    if expected == "none":
        ends = np.arctanh(np.clip([interval.low, interval.high, size], -0.9999, 0.9999))
        gap = Interval(float(ends[2] - abs(ends[0] + ends[1]) / 2), float(ends[0]), float(ends[1]))
        return Finding(statistic, interval, _normal_p(gap), 0, size, scale="correlation")
    p = statistics.permutation_p(pairs[x], pairs["value"], groups) if len(pairs) > 2 else NAN
    return Finding(statistic, interval, p, SIGNS[expected], least=size, scale="correlation")


def trend_against(
    rows: Frame, *, unit: str, size: float, x: str, expected: str, reference: Frame, named: str
) -> Finding:
    """Estimate how far a trend is above or below that of other rows, or alike within ± `size`.

    The interval accounts for the dependence of two trends of the same units.

    Args:
        rows, unit, size, x: see `trend`.
        expected: whether ρ of the rows is "higher" or "lower" than the reference, or "alike".
        reference: the other rows.
        named: the name of the reference.
    """
    trends, means = [], []
    on = [UNIT_COLUMNS[unit], x, *sorted({"data", "network"} & {*rows} & {*reference})]
    for name, side in (("a", rows), ("b", reference)):
        pairs, groups = _pairs(side, unit, [x])
        trends.append(statistics.correlation(pairs[x], pairs["value"], groups))
        means.append(side.groupby(on)["value"].mean().rename(name))
    shared = pd.concat(means, axis=1, join="inner").reset_index()
    dependence = 0.0
    if len(shared) > 3:
        rho = shared[[x, "a", "b"]].corr("spearman").to_numpy()
        dependence = statistics.between_correlations(rho[0, 1], rho[0, 2], rho[1, 2])
    gap = statistics.difference(trends[0], trends[1], dependence)
    statistic = f"ρ here − ρ of {named}"
    if expected == "alike":
        return Finding(statistic, gap, NAN, 0, size)
    return Finding(statistic, gap, _normal_p(gap), SIGNS[expected], least=size)


def _normal_p(gap: Interval) -> float:
    error = (gap.high - gap.low) / 2 / Z_95
    return float(2 * stats.norm.sf(abs(gap.estimate) / error)) if error > 0 else NAN


def level(
    rows: Frame,
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
    """Estimate the mean value, which is claimed to be above or below the limit `size`.

    Args:
        rows, unit: see `trend`.
        size: the limit.
        expected: "above" or "below".
        no_effect: the value of no effect; default: the limit.
        opposite: the limit of the opposite claim, if the range between them decides nothing.
        x, at_least, at_most: a column and a range of it, which select rows.
    """
    if x is not None:
        rows = rows[rows[x].between(at_least, at_most)]
    values = rows.groupby(UNIT_COLUMNS[unit])["value"].mean()
    interval, statistic = _exact_interval(values, rows), f"mean (to hold: {expected} {size:g})"
    null = next((limit for limit in (no_effect, opposite) if limit is not None), size)
    least = 0.0 if no_effect is None else abs(size - null)
    p = t_test_p(values, null if SIGNS[expected] * (interval.estimate - null) < 0 else size)
    return Finding(statistic, interval, p, SIGNS[expected], size, null, least)


class Sides(NamedTuple):
    """Two values of a column, compared in pairs of one unit.

    Args:
        between: the column.
        first, second: its two values: first minus second, or over second with `ratio`.
        match: columns that are equal in a pair; the pairs of a unit are averaged.
        ratio: take ratios, of pairs of positive values.
    """

    between: str
    first: str
    second: str
    match: Sequence[str] = ()
    ratio: bool = False

    def gaps(self, rows: Frame, unit: str) -> "pd.Series[float]":
        """Return the difference (of logarithms, for a ratio) of each unit that has both sides.

        Args:
            rows, unit: see `trend`.

        Raises:
            UsageError: no row has one of the two values.
        """
        column = UNIT_COLUMNS[unit]
        rows = rows.assign(**{name: rows[name].fillna("") for name in self.match})
        wide = rows.pivot_table(index=[column, *self.match], columns=self.between, values="value")
        if missing := {self.first, self.second} - set(wide.columns):
            raise expected("paired", f"{self.between} {sorted(missing)}", list(wide.columns))
        wide = wide.where(wide > 0).apply(np.log) if self.ratio else wide
        return (wide[self.first] - wide[self.second]).dropna().groupby(column).mean()


def paired(rows: Frame, *, unit: str, size: float, expected: str, **sides: Any) -> Finding:
    """Estimate the lead of one value of a column over another, in pairs of one unit.

    Args:
        rows, unit: see `trend`.
        size: the smallest difference of interest; with `ratio` a factor above 1.
        expected: "higher" or "lower".
        sides: see `Sides`; the mean of ratios is geometric.
    """
    pair = Sides(**sides)
    gaps, sign = pair.gaps(rows, unit), SIGNS[expected]
    p, statistic = t_test_p(gaps), f"{pair.first} {'÷' if pair.ratio else '−'} {pair.second}"
    if pair.ratio:
        ratio = statistics.as_ratio(mean_interval(gaps))
        return Finding(statistic, ratio, p, sign, 1.0, 1.0, np.log(size), "ratio")
    interval = _exact_interval(gaps, rows[rows[pair.between].isin([pair.first, pair.second])])
    return Finding(statistic, interval, p, sign, least=size)


def not_worse(
    rows: Frame, *, unit: str, size: float, better: str = "higher", **sides: Any
) -> Finding:
    """Estimate whether one value of a column loses less than `size` against another.

    Args:
        rows, unit: see `trend`.
        size: the loss that still counts as none.
        better: whether "higher" or "lower" values are better.
        sides: see `Sides`.
    """
    pair = Sides(**sides)
    gaps, bound = pair.gaps(rows, unit), -SIGNS[better] * size
    statistic, p = f"{pair.first} − {pair.second}", t_test_p(gaps, bound)
    return Finding(statistic, mean_interval(gaps), p, SIGNS[better], bound)


def _exact_interval(values: "pd.Series[float]", rows: Frame) -> Interval:
    """Return the interval of a mean, or of a share without spread.

    Shares that are all 0 or all 1, or their differences, have no spread. Their interval is the
    exact interval of one network's images.
    """
    mean, low, high, n = interval = mean_interval(values)
    has_spread = n < 2 or high > low or not rows["value"].isin([0.0, 1.0]).all()
    if has_spread or "n" not in rows or rows["n"].min() < 2:
        return interval
    width = statistics.share_interval(0, int(rows["n"].min())).high
    shares = rows["value"].nunique() == 1 and mean == rows["value"].iloc[0]
    low, high = (0.0, 1.0) if shares else (-np.inf, np.inf)
    return Interval(mean, max(mean - width, low), min(mean + width, high), n)


def _pairs(
    rows: Frame, unit: str, x: list[str], over: str | None = None
) -> tuple[Frame, "pd.Series[str] | None"]:
    """Return one row for each pair of `x` and value, and the seed of each pair as its group.

    Pairs of one value for each seed, or of one seed, are independent: they have no groups.
    """
    column = UNIT_COLUMNS[unit]
    if over is not None:
        return rows.groupby(over)[[*x, "value"]].mean().reset_index(), None
    pairs = rows.groupby([column, *x])["value"].mean().reset_index()
    sizes = pairs.groupby(column).size()
    return pairs, None if sizes.max() == 1 or len(sizes) == 1 else pairs[column]


Rule = Callable[..., Finding]
RULES: dict[str, Rule] = {r.__name__: r for r in (trend, trend_against, level, paired, not_worse)}
