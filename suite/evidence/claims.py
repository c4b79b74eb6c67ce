"""Claims of the papers, and the rules, fixed before any run, that decide them.

Each rule gives *reproduced*, *not reproduced*, or *underpowered* where its interval decides
neither way; a claim about data or networks that were not run is *untested*.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from suite.errors import UsageError, unknown
from suite.evidence.statistics import (
    Interval,
    correlation,
    correlation_difference,
    mean_interval,
    permutation_p,
)
from suite.evidence.tables import paired_difference, select
from suite.paths import NOTEBOOKS

# Correlations closer to zero than this are called no trend; two that differ by less agree.
WEAK = 0.3
MARGIN = 0.5
LEAST_MODELS = 6
NAN = float("nan")


class Verdict(NamedTuple):
    """What a rule says of a claim for one data set and network.

    Args:
        verdict: "reproduced", "not reproduced", "underpowered" or "untested".
        statistic: what was estimated, in words.
        interval: estimate with its 95% interval, and number of models.
        p: two-sided p-value of the permutation test, where the rule has one.
    """

    verdict: str
    statistic: str
    interval: Interval = Interval(NAN)
    p: float = NAN


Rule = Callable[..., Verdict]


@functools.cache
def load_claims(chapter: str) -> list[dict[str, Any]]:
    """Read the claims of a chapter from `notebooks/claims`; one without that file has none."""
    file = NOTEBOOKS / "claims" / f"{chapter}.yml"
    return yaml.safe_load(file.read_text())["claims"] if file.exists() else []


@functools.cache
def load_published(chapter: str) -> dict[str, Any]:
    """Read what the paper published from `notebooks/published`."""
    return yaml.safe_load((NOTEBOOKS / "published" / f"{chapter}.yml").read_text())


def judge(claims: Sequence[Mapping[str, Any]], frame: pd.DataFrame) -> pd.DataFrame:
    """Decide each claim for each data set and network that it speaks of.

    Args:
        claims: from `load_claims`.
        frame: one row a model and metric, with the columns data, network, metric, value, status,
            those that the claims select by, and those that they take as `x`.

    Returns:
        One row a verdict: claim, data, network, verdict, statistic, estimate, low, high, n, p.

    Raises:
        UsageError: a claim asks for a rule that does not exist.
    """
    rows = []
    for claim in claims:
        if claim["test"]["rule"] not in RULES:
            raise unknown(f"rule of claim {claim['id']!r}", claim["test"]["rule"], RULES)
        about = frame[frame["network"].isin(claim["networks"]) & frame["data"].isin(claim["data"])]
        verdicts = {
            where: _decide(claim, panel)
            for where, panel in about.groupby(["data", "network"], sort=False)
        }
        tested = {data for data, _ in verdicts}
        for data in claim["data_of_paper"]:
            if not tested & set(claim["stands_for"].get(data, [data])):
                verdicts[data, " or ".join(claim["networks"])] = Verdict("untested", "not run")
        for (data, network), (verdict, statistic, interval, p) in verdicts.items():
            row = {"claim": claim["id"], "data": data, "network": network, "verdict": verdict}
            rows.append(row | {"statistic": statistic, **interval._asdict(), "p": p})
    return pd.DataFrame(rows)


def _decide(claim: Mapping[str, Any], rows: pd.DataFrame) -> Verdict:
    rows = select(rows, **claim["test"].get("where", {}))
    rows = rows[(rows["status"] == "done") & rows["value"].notna()]
    models = len(rows[["seed", claim["test"]["settings"]["x"]]].drop_duplicates())
    if models < LEAST_MODELS:
        statistic = f"only {models} models; the rule needs {LEAST_MODELS}"
        return Verdict("underpowered", statistic, Interval(NAN, n=models))
    return RULES[claim["test"]["rule"]](rows, **claim["test"]["settings"])


def trend(rows: pd.DataFrame, *, x: str, expected: str) -> Verdict:
    """Decide whether the value rises or falls with `x`.

    Reproduced: the permutation test has p < 0.05 and the correlation the expected sign. Not
    reproduced: p < 0.05 with the other sign, or the interval excludes an expected correlation
    of 0.3 or more.
    """
    sign = {"rise": 1, "fall": -1}[expected]
    interval = correlation(rows[x], rows["value"])
    p = permutation_p(rows[x], rows["value"])
    largest = max(sign * interval.low, sign * interval.high)
    if p < 0.05:
        verdict = "reproduced" if sign * interval.estimate > 0 else "not reproduced"
    else:
        verdict = "not reproduced" if largest < WEAK else "underpowered"
    return Verdict(verdict, f"Spearman's ρ with {x}", interval, p)


def no_trend(rows: pd.DataFrame, *, x: str) -> Verdict:
    """Decide whether the value has no clear trend with `x`.

    Reproduced: the interval of the correlation lies within ±0.5. Not reproduced: it lies outside.
    """
    interval = correlation(rows[x], rows["value"])
    p = permutation_p(rows[x], rows["value"])
    return Verdict(_within_margin(interval), f"Spearman's ρ with {x}", interval, p)


def same_trend(rows: pd.DataFrame, *, x: str, between: str) -> Verdict:
    """Decide whether the correlations with `x` agree for the two values of a column.

    Reproduced: the interval of their difference lies within ±0.5. Not reproduced: it lies outside.
    """
    names = sorted(rows[between].unique())
    if len(names) != 2:
        raise UsageError(f"same_trend: expected two values of {between!r}, got {names}")
    pairs = rows.pivot_table(index=[x, "seed"], columns=between, values="value").dropna()
    interval = correlation_difference(pairs.index.get_level_values(x), *(pairs[n] for n in names))
    statistic = f"ρ({names[0]}) − ρ({names[1]})"
    return Verdict(_within_margin(interval), statistic, interval)


def cut_off(rows: pd.DataFrame, *, x: str, plateau_below: float) -> Verdict:
    """Decide whether the value has a clear cut-off in `x`.

    The plateau is the mean value for `x` below `plateau_below`; values are means over seeds.
    Reproduced: the value falls to half the plateau, and does so within 2.5 decades after it was
    last at 95% of it. Not reproduced: it falls over more than that, or never below 80%.
    """
    means = rows.groupby(x)["value"].mean()
    plateau = means[means.index < plateau_below].mean()
    share = means / plateau
    if share.min() > 0.5:
        verdict = "not reproduced" if share.min() >= 0.8 else "underpowered"
        lowest = Interval(float(share.min()), n=len(rows))
        return Verdict(verdict, "smallest share of the plateau", lowest)
    half = share.index[share <= 0.5][0]
    before = share.index[(share >= 0.95) & (share.index < half)]
    width = float(np.log10(half / before[-1])) if len(before) else float("inf")
    verdict = "reproduced" if width <= 2.5 else "not reproduced"
    return Verdict(verdict, "decades from 95% to 50% of the plateau", Interval(width, n=len(rows)))


def level(
    rows: pd.DataFrame,
    *,
    x: str,
    expected: str,
    limit: float,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> Verdict:
    """Decide whether the mean value, where `x` is in a range, lies below or above a limit.

    Reproduced: the interval of the mean lies on the expected side of the limit. Not reproduced: it
    lies on the other side. With fewer than six rows in the range: underpowered.
    """
    values = rows["value"][rows[x].between(at_least, at_most)]
    where = f"mean, {x} from {at_least:g}" if np.isinf(at_most) else f"mean, {x} to {at_most:g}"
    where = "mean" if np.isinf(at_least) and np.isinf(at_most) else where
    if (n := len(values)) < LEAST_MODELS:
        return Verdict("underpowered", f"{where}: only {n} rows", Interval(NAN, n=n))
    interval = mean_interval(values)
    verdict = _on_side(interval, limit, {"above": 1, "below": -1}[expected])
    return Verdict(verdict, f"{where} (limit {limit:g})", interval)


def paired(
    rows: pd.DataFrame,
    *,
    x: str,
    between: str,
    first: str,
    second: str,
    expected: str,
    margin: float = 0.0,
) -> Verdict:
    """Decide whether the value is lower, or higher, for one value of a column than for another.

    The mean difference, first minus second, over pairs with the same `x`, and a margin by which the
    first may lose. Lower is reproduced where the interval lies below the margin and not reproduced
    where it lies above it; higher the other way round, with minus the margin. Fewer than
    `LEAST_MODELS` pairs are too few, even if there are more models without a partner.
    """
    interval = paired_difference(rows, between, first, second, [x, "seed"])
    sign = {"higher": 1, "lower": -1}[expected]
    few = interval.n < LEAST_MODELS
    verdict = "underpowered" if few else _on_side(interval, -sign * margin, sign)
    return Verdict(verdict, f"{first} − {second}", interval)


def _on_side(interval: Interval, limit: float, sign: int) -> str:
    low, high = sorted((sign * interval.low, sign * interval.high))
    if low > sign * limit:
        return "reproduced"
    return "not reproduced" if high < sign * limit else "underpowered"


def _within_margin(interval: Interval) -> str:
    if interval.low > -MARGIN and interval.high < MARGIN:
        return "reproduced"
    if interval.low > MARGIN or interval.high < -MARGIN:
        return "not reproduced"
    return "underpowered"


RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (trend, no_trend, same_trend, cut_off, level, paired)
}
