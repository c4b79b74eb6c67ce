"""Rules that decide claims: each estimates one effect, and says what the claim expects of it.

A rule takes the rows of one data set and network and gives a `Finding`; `decide` turns that into a
word. What counts as one observation is the unit of the claim: a network (one seed), image or scene.
Rows of one unit are averaged before anything is tested.
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
# The side on which a claim expects an effect, by its word.
SIGNS = {"rise": 1, "higher": 1, "above": 1, "fall": -1, "lower": -1, "below": -1}


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
        """Return how far a value is from no effect; positive in the claimed direction."""
        if self.scale == "ratio":
            return (self.sign or 1) * float(np.log(value) - np.log(self.null))
        return (self.sign or 1) * (value - self.null)


class Verdict(NamedTuple):
    """A word, a detail, how many units would settle what is inconclusive, and what it rests on."""

    word: str
    detail: str = ""
    needed: float = NAN
    finding: Finding | None = None


def decide(finding: Finding, published: float = NAN) -> Verdict:
    """Turn a finding into a word.

    With the 95% interval [l, u], the smallest effect of interest s and the published effect P, all
    as distances from no effect in the claimed direction:

    - *holds*: l > 0 (or above the limit that the claim names), and u reaches s; with it the size:
      *as large as published*, *smaller than published*, *larger than published*;
    - *smaller than claimed*: l > 0, but u is below s, or below half of P;
    - *no effect*: [l, u] is inside (-s, s);
    - *contradicted*: u < 0, and l reaches -s;
    - *inconclusive*: none of these;
    - *not testable here*: a precondition fails, or there is no interval.

    A claim that something stays within ± a margin *holds* where the interval is inside the margin,
    and is *contradicted* where it is outside. A claim that less than a margin is lost does the same
    with its one margin. A claim with two limits is *inconclusive* between them.

    Args:
        finding: of a rule.
        published: the effect that the paper prints, on the scale of the estimate; NaN for none.
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
    """Return how many units decide with a chance of 80%, if estimate and spread stay as they are.

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
    rows: Frame, *, unit: str, size: float, x: str, expected: str, over: str | None = None
) -> Finding:
    """Estimate the trend of the value with `x`, by Spearman's correlation; one for each seed.

    That there is no trend is the claim that |ρ| is below `size`; its p-value is that of |ρ| =
    `size`, on Fisher's scale, as a correlation of zero is not what the claim has to rule out.

    Args:
        rows: with `value`.
        unit: "network", "image" or "scene".
        size: the smallest correlation of interest.
        x: column.
        expected: "rise", "fall" or "none".
        over: column whose values are kinds, averaged before; one kind is then one pair.
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

    Where both come from the same units, their correlations are not independent, and the interval
    takes that in.

    Args:
        rows, unit, size, x: see `trend`.
        expected: "higher", "lower" or "alike": where ρ of the rows is, against the reference.
        reference: the other rows.
        named: what the reference is called.
    """
    trends, sides = [], (rows, reference)
    for part in sides:
        pairs, groups = _pairs(part, unit, [x])
        trends.append(statistics.correlation(pairs[x], pairs["value"], groups))
    on = [UNIT_COLUMNS[unit], x, *sorted({"data", "network"} & {*rows} & {*reference})]
    means = [part.groupby(on)["value"].mean().rename(name) for part, name in zip(sides, "ab")]
    both = pd.concat(means, axis=1, join="inner").reset_index()
    together = 0.0
    if len(both) > 3:
        rho = both[[x, "a", "b"]].corr("spearman").to_numpy()
        together = statistics.between_correlations(rho[0, 1], rho[0, 2], rho[1, 2])
    gap = statistics.difference(trends[0], trends[1], together)
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
    """Estimate the mean value, which is claimed to lie above or below the limit `size`.

    Args:
        rows, unit: see `trend`.
        size: the limit.
        expected: "above" or "below".
        no_effect: that value, if the other side of the limit is not the opposite.
        opposite: where the opposite begins, if nothing is decided between that and the limit.
        x, at_least, at_most: a column and its range, for a part of the rows.
    """
    if x is not None:
        rows = rows[rows[x].between(at_least, at_most)]
    values = rows.groupby(UNIT_COLUMNS[unit])["value"].mean()
    interval, statistic = _exact_interval(values, rows), f"mean (to hold: {expected} {size:g})"
    start = next((end for end in (no_effect, opposite) if end is not None), size)
    least = 0.0 if no_effect is None else abs(size - start)
    p = t_test_p(values, start if SIGNS[expected] * (interval.estimate - start) < 0 else size)
    return Finding(statistic, interval, p, SIGNS[expected], size, start, least)


class Sides(NamedTuple):
    """Two values of a column that are compared, in pairs of one unit.

    Args:
        between, first, second: first minus second (over second, with `ratio`) in that column.
        match: further columns that are equal in a pair, averaged over after.
        ratio: take ratios, of the units where both values are positive.
    """

    between: str
    first: str
    second: str
    match: Sequence[str] = ()
    ratio: bool = False

    def gaps(self, rows: Frame, unit: str) -> "pd.Series[float]":
        """Return one difference (of logarithms, for a ratio) for each unit that has both sides.

        Args:
            rows, unit: see `trend`.

        Raises:
            UsageError: no row has one of the two.
        """
        column = UNIT_COLUMNS[unit]
        rows = rows.assign(**{name: rows[name].fillna("") for name in self.match})
        wide = rows.pivot_table(index=[column, *self.match], columns=self.between, values="value")
        if missing := {self.first, self.second} - set(wide.columns):
            raise expected("paired", f"{self.between} {sorted(missing)}", list(wide.columns))
        wide = wide.where(wide > 0).apply(np.log) if self.ratio else wide
        return (wide[self.first] - wide[self.second]).dropna().groupby(column).mean()


def paired(rows: Frame, *, unit: str, size: float, expected: str, **sides: Any) -> Finding:
    """Estimate by how much one value of a column is ahead of another, over pairs of one unit.

    Args:
        rows, unit: see `trend`.
        size: the smallest difference of interest; with `ratio` a factor above 1.
        expected: "higher" or "lower".
        sides: see `Sides`; the mean of ratios is the geometric one.
    """
    of = Sides(**sides)
    gaps, sign = of.gaps(rows, unit), SIGNS[expected]
    p, statistic = t_test_p(gaps), f"{of.first} {'÷' if of.ratio else '−'} {of.second}"
    if of.ratio:
        shown = statistics.as_ratio(_mean(gaps))
        return Finding(statistic, shown, p, sign, 1.0, 1.0, np.log(size), "ratio")
    interval = _exact_interval(gaps, rows[rows[of.between].isin([of.first, of.second])])
    return Finding(statistic, interval, p, sign, least=size)


def not_worse(
    rows: Frame, *, unit: str, size: float, better: str = "higher", **sides: Any
) -> Finding:
    """Estimate whether one value of a column loses less than `size` against another.

    Args:
        rows, unit: see `trend`.
        size: the loss that still counts as none.
        better: "higher" or "lower" values.
        sides: see `Sides`.
    """
    of = Sides(**sides)
    gaps, sign = of.gaps(rows, unit), SIGNS[better]
    p, interval = t_test_p(gaps, -sign * size), _mean(gaps)
    return Finding(f"{of.first} − {of.second}", interval, p, sign, -sign * size)


def _mean(values: "pd.Series[float]") -> Interval:
    return mean_interval(values) if len(values) else Interval(NAN)


def _exact_interval(values: "pd.Series[float]", rows: Frame) -> Interval:
    """Return the interval of a mean; where all are equal, as wide as the images allow.

    Shares that are all 0 or all 1, or differences of two such, have no spread; the exact interval
    of one network's images takes its place.
    """
    mean, low, high, n = interval = _mean(values)
    spread = n < 2 or high > low or not rows["value"].isin([0.0, 1.0]).all()
    if spread or "n" not in rows or rows["n"].min() < 2:
        return interval
    width = statistics.share_interval(0, int(rows["n"].min())).high
    shares = rows["value"].nunique() == 1 and mean == rows["value"].iloc[0]
    low, high = (0.0, 1.0) if shares else (-np.inf, np.inf)
    return Interval(mean, max(mean - width, low), min(mean + width, high), n)


def _pairs(
    rows: Frame, unit: str, x: list[str], over: str | None = None
) -> tuple[Frame, "pd.Series[str] | None"]:
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
RULES: dict[str, Rule] = {r.__name__: r for r in (trend, trend_against, level, paired, not_worse)}
