"""Verdicts as tables and sentences, and the comparison of two sets of results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.errors import UsageError
from suite.evidence.claims import load_claims
from suite.evidence.names import name_of
from suite.evidence.results import load_results
from suite.evidence.statistics import correlation, permutation_p
from suite.paths import KEPT_RESULTS, NOTEBOOKS, executed_folder

RESULT_COLUMNS = {
    "value",
    "std",
    "n",
    "undefined",
    "status",
    "seconds",
    "key",
    "profile",
    "t_alpha",
    "over_regularised",
}


def all_verdicts(*, kept_only: bool = False) -> pd.DataFrame:
    """Collect the verdicts of the latest runs, which go before, and of the kept results.

    The profile `smoke` is left out: its results are not evidence.
    """
    found = []
    for folder in [KEPT_RESULTS] if kept_only else [executed_folder() / "results", KEPT_RESULTS]:
        for file in sorted(folder.glob("*/*.verdicts.csv")):
            chapter = file.name.partition(".")[0]
            if (NOTEBOOKS / f"{chapter}.ipynb").exists() and file.parent.name != "smoke":
                verdicts = pd.read_csv(file)
                verdicts.insert(0, "chapter", chapter)
                found.append(verdicts)
    if not found:
        return pd.DataFrame()
    together = pd.concat(found, ignore_index=True)
    return together.drop_duplicates(["chapter", "profile", "claim", "data", "network"])


def verdict_table(chapter: str, verdicts: pd.DataFrame, section: str | None = None) -> pd.DataFrame:
    """Put what was published and what was measured into one row a claim, data set and network."""
    rows = []
    for claim in load_claims(chapter):
        if section is not None and claim["section"] != section:
            continue
        for _, verdict in verdicts[verdicts["claim"] == claim["id"]].iterrows():
            rows.append(
                {
                    "claim": claim["id"],
                    "data": verdict["data"],
                    "network": verdict["network"],
                    "profile": verdict["profile"],
                    "published": claim["published"],
                    "measured": measured(verdict),
                    "models": verdict["n"],
                    "verdict": verdict["verdict"],
                }
            )
    return pd.DataFrame(rows)


def section_verdicts(
    chapter: str,
    verdicts: pd.DataFrame,
    section: str,
    *,
    stand_ins: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, str]:
    """Put the verdicts of a section into a table, and say what none of the profiles has tested.

    Args:
        chapter, verdicts, section: see `verdict_table`.
        stand_ins: for data of the paper what takes their place here; they are not named where that
            was tested.

    Returns:
        The `narrow` table of the claims that were tested, and a sentence, empty if all were.
    """
    rows = verdict_table(chapter, verdicts, section)
    tested = rows[rows["verdict"] != "untested"]
    done = set(zip(tested["claim"], tested["data"], strict=True))
    absent: dict[str, list[str]] = {}
    for claim, data in dict.fromkeys(zip(rows["claim"], rows["data"], strict=True)):
        if not done & {(claim, data), (claim, (stand_ins or {}).get(data))}:
            absent.setdefault(data, []).append(claim)
    of_others = set(tested["data"])
    parts = [
        f"{', '.join(claims)} on {name_of(data)}" if data in of_others else name_of(data)
        for data, claims in absent.items()
    ]
    return narrow(tested), f"Not run, hence untested: {'; '.join(parts)}." if parts else ""


def narrow(rows: pd.DataFrame) -> pd.DataFrame:
    """Put data, network and profile of a table of verdicts into one column, by their names."""
    where = [
        f"{name_of(row['data'])}, {name_of(row['network'])}, {row['profile']}"
        for _, row in rows.iterrows()
    ]
    rest = rows.drop(columns=["data", "network", "profile", "verdict"])
    rest.insert(1, "on", where)
    rest.insert(2, "verdict", rows["verdict"])
    return rest


def measured(verdict: "pd.Series[Any]") -> str:
    """Write the estimate of a verdict with its interval and p-value."""
    if not np.isfinite(verdict["estimate"]):
        return str(verdict["statistic"])
    text = f"{verdict['statistic']}: {verdict['estimate']:.2f}"
    if np.isfinite(verdict["low"]):
        text += f" [{verdict['low']:.2f}, {verdict['high']:.2f}]"
    return text + (f", p = {verdict['p']:.2g}" if np.isfinite(verdict["p"]) else "")


def readable(value: Any) -> str:
    """Write a value of a provenance without brackets.

    >>> readable({"first": "a", "last": "b"}), readable([1, 2]), readable(1_200_000.5)
    ('first a, last b', '1, 2', '1,200,000')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def trend_sentence(frame: pd.DataFrame, *, x: str, symbol: str) -> str:
    """Say how the value of each data set, network and profile goes with `x`, in one sentence."""
    parts = []
    for (profile, data, network), panel in frame.groupby(
        ["profile", "data", "network"], sort=False
    ):
        panel = panel[(panel["status"] == "done") & panel["value"].notna()]
        if len(panel) < 3 or panel["value"].nunique() < 2:
            continue
        interval = correlation(panel[x], panel["value"])
        p = permutation_p(panel[x], panel["value"])
        word = "rises" if interval.estimate > 0 else "falls"
        word = word if p < 0.05 else "shows no significant trend"
        by_x = panel.groupby(x)["value"].mean()
        parts.append(
            f"{word} on {name_of(data)} with {name_of(network)} ({profile}: from "
            f"{by_x.iloc[0]:.3g} at the smallest {symbol} to {by_x.iloc[-1]:.3g} at the largest, "
            f"ρ = {interval.estimate:.2f}, p = {p:.2g})"
        )
    return "; ".join(parts) + "." if parts else "has too few models for a trend."


def varies(column: "pd.Series[Any]") -> bool:
    """Say whether a column has more than one value."""
    return column.nunique(dropna=False) > 1


def compare_folders(first: Path, second: Path) -> pd.DataFrame:
    """Compare two result sets of a profile, value by value.

    Args:
        first, second: folders such as `results/workstation`.

    Returns:
        One row a chapter and setting in both: the settings that vary, the two values, their
        difference, twice its standard error (over images), and whether it is within that.

    Raises:
        UsageError: a folder has no results, or they have no chapter in common.
    """
    for folder in (first, second):
        if not list(folder.glob("*.csv")):
            raise UsageError(f"{folder}: expected results such as results/workstation, found none")
    names = [{path.name.partition(".")[0] for path in f.glob("*.csv")} for f in (first, second)]
    tables = []
    for chapter in sorted(names[0] & names[1]):
        a, b = (load_results(chapter, f.name, f.parent).frame for f in (first, second))
        on = [column for column in a if column in b and column not in RESULT_COLUMNS]
        both = a.merge(b, on=on, suffixes=("_first", "_second"))
        variances = [both[f"std_{s}"] ** 2 / both[f"n_{s}"] for s in ("first", "second")]
        both["difference"] = both["value_second"] - both["value_first"]
        both["spread"] = 2 * np.sqrt(variances[0] + variances[1])
        both["agrees"] = both["difference"].abs() <= both["spread"].fillna(0)
        both.insert(0, "chapter", chapter)
        shown = ["value_first", "value_second", "difference", "spread", "agrees"]
        tables.append(both[["chapter", *(name for name in on if varies(both[name])), *shown]])
    if not tables or all(table.empty for table in tables):
        raise UsageError(f"{first} and {second}: expected results of the same settings, found none")
    return pd.concat(tables, ignore_index=True)
