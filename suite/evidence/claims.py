"""Claims of the papers, and the rules, fixed before any run, that decide them.

Each rule gives *reproduced*, *not reproduced*, or *underpowered* where its interval decides
neither way; a claim about data or networks that were not run is *untested*.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from suite.paths import NOTEBOOKS

# Correlations closer to zero than this are called no trend; two that differ by less agree.
WEAK = 0.3
MARGIN = 0.5
LEAST_MODELS = 6


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a claim for one data set and network.

    Args:
        claim: its id.
        data, network: for which it was tested.
        verdict: "reproduced", "not reproduced", "underpowered" or "untested".
        statistic: what was estimated, in words.
        estimate, low, high, n: estimate with its 95% interval, and number of models.
        p: two-sided p-value of the permutation test, where the rule has one.
    """

    claim: str
    data: str
    network: str
    verdict: str
    statistic: str
    estimate: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0
    p: float = float("nan")


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
        One row a verdict, with the fields of `Verdict` as columns.

    Raises:
        UsageError: a claim asks for a rule that does not exist.
    """
    verdicts = []
    for claim in claims:
        if claim["test"]["rule"] not in RULES:
            raise unknown(f"rule of claim {claim['id']!r}", claim["test"]["rule"], RULES)
        rule = RULES[claim["test"]["rule"]]
        about = frame[frame["network"].isin(claim["networks"]) & frame["data"].isin(claim["data"])]
        panels = list(about.groupby(["data", "network"], sort=False))
        for (data, network), rows in panels:
            verdicts.append(_decide(claim, str(data), str(network), rows, rule))
        tested = {data for (data, _), _ in panels}
        for data in claim["data_of_paper"]:
            if not tested & set(claim["stands_for"].get(data, [data])):
                networks = " or ".join(claim["networks"])
                verdicts.append(Verdict(claim["id"], data, networks, "untested", "not run"))
    return pd.DataFrame(verdicts)


def _decide(
    claim: Mapping[str, Any], data: str, network: str, rows: pd.DataFrame, rule: "Rule"
) -> Verdict:
    rows = _select(rows, claim["test"].get("where", {}))
    rows = rows[(rows["status"] == "done") & rows["value"].notna()]
    models = len(rows[["seed", claim["test"]["settings"]["x"]]].drop_duplicates())
    if models < LEAST_MODELS:
        about = f"only {models} models; the rule needs {LEAST_MODELS}"
        return Verdict(claim["id"], data, network, "underpowered", about, n=models)
    verdict, statistic, interval, p = rule(rows, **claim["test"]["settings"])
    return Verdict(claim["id"], data, network, verdict, statistic, *interval, p)


def _select(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    for column, value in where.items():
        if column not in rows:
            raise UsageError(f"claims: expected a column {column!r}, got {list(rows)}")
        rows = rows[rows[column].isin(value) if isinstance(value, list) else rows[column] == value]
    return rows


Decision = tuple[str, str, Interval, float]
Rule = Callable[..., Decision]


def trend(rows: pd.DataFrame, *, x: str, expected: str) -> Decision:
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
    return verdict, f"Spearman's ρ with {x}", interval, p


def no_trend(rows: pd.DataFrame, *, x: str) -> Decision:
    """Decide whether the value has no clear trend with `x`.

    Reproduced: the interval of the correlation lies within ±0.5. Not reproduced: it lies outside.
    """
    interval = correlation(rows[x], rows["value"])
    p = permutation_p(rows[x], rows["value"])
    return _within_margin(interval), f"Spearman's ρ with {x}", interval, p


def same_trend(rows: pd.DataFrame, *, x: str, between: str) -> Decision:
    """Decide whether the correlations with `x` agree for the two values of a column.

    Reproduced: the interval of their difference lies within ±0.5. Not reproduced: it lies outside.
    """
    names = sorted(rows[between].unique())
    if len(names) != 2:
        raise UsageError(f"same_trend: expected two values of {between!r}, got {names}")
    pairs = rows.pivot_table(index=[x, "seed"], columns=between, values="value").dropna()
    interval = correlation_difference(pairs.index.get_level_values(x), *(pairs[n] for n in names))
    statistic = f"ρ({names[0]}) − ρ({names[1]})"
    return _within_margin(interval), statistic, interval, float("nan")


def cut_off(rows: pd.DataFrame, *, x: str, plateau_below: float) -> Decision:
    """Decide whether the value has a clear cut-off in `x`.

    The plateau is the mean value for `x` below `plateau_below`; values are means over seeds.
    Reproduced: the value falls to half the plateau, and does so within 2.5 decades after it was
    last at 95% of it. Not reproduced: it falls over more than that, or never below 80%.
    """
    means = rows.groupby(x)["value"].mean()
    plateau = means[means.index < plateau_below].mean()
    share = means / plateau
    lowest = Interval(float(share.min()), float("nan"), float("nan"), len(rows))
    if share.min() >= 0.8:
        return "not reproduced", "smallest share of the plateau", lowest, float("nan")
    if share.min() > 0.5:
        return "underpowered", "smallest share of the plateau", lowest, float("nan")
    half = share.index[share <= 0.5][0]
    before = share.index[(share >= 0.95) & (share.index < half)]
    width = float(np.log10(half / before[-1])) if len(before) else float("inf")
    verdict = "reproduced" if width <= 2.5 else "not reproduced"
    interval = Interval(width, float("nan"), float("nan"), len(rows))
    return verdict, "decades from 95% to 50% of the plateau", interval, float("nan")


def level(
    rows: pd.DataFrame,
    *,
    x: str,
    expected: str,
    limit: float,
    at_least: float = -np.inf,
    at_most: float = np.inf,
) -> Decision:
    """Decide whether the mean value, where `x` is in a range, lies below or above a limit.

    Reproduced: the interval of the mean lies on the expected side of the limit. Not reproduced: it
    lies on the other side. With fewer than six rows in the range: underpowered.
    """
    values = rows["value"][rows[x].between(at_least, at_most)]
    where = f"mean, {x} from {at_least:g}" if np.isinf(at_most) else f"mean, {x} to {at_most:g}"
    where = "mean" if np.isinf(at_least) and np.isinf(at_most) else where
    if len(values) < LEAST_MODELS:
        nothing = Interval(float("nan"), float("nan"), float("nan"), len(values))
        return "underpowered", f"{where}: only {len(values)} rows", nothing, float("nan")
    interval = mean_interval(values)
    sign = {"above": 1, "below": -1}[expected]
    return _on_side(interval, limit, sign), f"{where} (limit {limit:g})", interval, float("nan")


def paired(
    rows: pd.DataFrame,
    *,
    x: str,
    between: str,
    first: str,
    second: str,
    expected: str,
    margin: float = 0.0,
) -> Decision:
    """Decide whether the value is lower, or higher, for one value of a column than for another.

    The mean difference, first minus second, over pairs with the same `x`, and a margin by which the
    first may lose. Lower is reproduced where the interval lies below the margin and not reproduced
    where it lies above it; higher the other way round, with minus the margin. Fewer than
    `LEAST_MODELS` pairs are too few, even if there are more models without a partner.
    """
    pairs = rows.pivot_table(index=[x, "seed"], columns=between, values="value")
    if missing := {first, second} - set(pairs.columns):
        raise UsageError(f"paired: expected {between} {sorted(missing)}, got {list(pairs.columns)}")
    interval = mean_interval((pairs[first] - pairs[second]).dropna())
    sign = {"higher": 1, "lower": -1}[expected]
    few = interval.n < LEAST_MODELS
    verdict = "underpowered" if few else _on_side(interval, -sign * margin, sign)
    return verdict, f"{first} − {second}", interval, float("nan")


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
    "trend": trend,
    "no_trend": no_trend,
    "same_trend": same_trend,
    "cut_off": cut_off,
    "level": level,
    "paired": paired,
}
