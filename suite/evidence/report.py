"""Verdicts as tables and sentences."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import load_claims
from suite.evidence.names import PANEL, name_of
from suite.evidence.statistics import Interval, correlation, permutation_p
from suite.evidence.tables import interval_text
from suite.paths import KEPT_RESULTS, NOTEBOOKS, executed_folder

VERDICT_COLUMNS = [
    *("chapter", "claim", "data", "network", "verdict", "statistic"),
    *("estimate", "low", "high", "n", "p", "profile"),
]


def all_verdicts() -> pd.DataFrame:
    """Collect the verdicts of the latest runs, which go before, and of the kept results.

    The profile `smoke` is left out: its results are not evidence.
    """
    tables = [pd.DataFrame(columns=VERDICT_COLUMNS)]
    for folder in (executed_folder() / "results", KEPT_RESULTS):
        for file in sorted(folder.glob("*/*.verdicts.csv")):
            chapter = file.name.partition(".")[0]
            if (NOTEBOOKS / f"{chapter}.ipynb").exists() and file.parent.name != "smoke":
                tables.append(pd.read_csv(file).assign(chapter=chapter)[VERDICT_COLUMNS])
    verdicts = pd.concat(tables[1:] or tables, ignore_index=True)
    return verdicts.drop_duplicates(["chapter", "profile", "claim", "data", "network"])


def with_claims(chapter: str, verdicts: pd.DataFrame, section: str | None = None) -> pd.DataFrame:
    """Join the verdicts of a chapter to its claims, in their order.

    Args:
        chapter: whose claims.
        verdicts: of `judge`, with the column `profile`.
        section: of the claims; default: all.

    Returns:
        One row a verdict: the columns of `verdicts`, and section, published, `on` (data, network
        and profile by their names), measured (in words) and models.
    """
    claims = pd.DataFrame(load_claims(chapter), columns=["id", "section", "published"])
    claims = claims if section is None else claims[claims["section"] == section]
    rows = claims.rename(columns={"id": "claim"}).merge(verdicts, on="claim")
    on = rows["data"].map(name_of) + ", " + rows["network"].map(name_of) + ", " + rows["profile"]
    return rows.assign(
        on=on, measured=[measured(row) for _, row in rows.iterrows()], models=rows["n"]
    )


COLUMNS = ["claim", "on", "verdict", "published", "measured", "models"]


def verdict_table(chapter: str, verdicts: pd.DataFrame, section: str | None = None) -> pd.DataFrame:
    """Put what was published beside what was measured for each claim that was tested."""
    rows = with_claims(chapter, verdicts, section)
    return rows.loc[rows["verdict"] != "untested", COLUMNS].reset_index(drop=True)


def section_verdicts(
    chapter: str,
    verdicts: pd.DataFrame,
    section: str,
    *,
    stand_ins: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, str]:
    """Put the verdicts of a section into a table, and say what none of the profiles has tested.

    Args:
        chapter, verdicts, section: see `with_claims`.
        stand_ins: for data of the paper what takes their place here; they are not named where that
            was tested.

    Returns:
        The `verdict_table`, and a sentence, empty if all claims were tested.
    """
    rows = with_claims(chapter, verdicts, section)
    tested = rows[rows["verdict"] != "untested"]
    done = set(zip(tested["claim"], tested["data"], strict=True))
    absent: dict[str, list[str]] = {}
    for claim, data in dict.fromkeys(zip(rows["claim"], rows["data"], strict=True)):
        if not done & {(claim, data), (claim, (stand_ins or {}).get(data))}:
            absent.setdefault(data, []).append(claim)
    parts = [
        f"{', '.join(claims)} on {name_of(data)}" if data in set(tested["data"]) else name_of(data)
        for data, claims in absent.items()
    ]
    sentence = f"Not run, hence untested: {'; '.join(parts)}." if parts else ""
    return verdict_table(chapter, verdicts, section), sentence


def measured(verdict: "pd.Series[Any]") -> str:
    """Write the estimate of a verdict with its interval and p-value."""
    if not np.isfinite(verdict["estimate"]):
        return str(verdict["statistic"])
    interval = Interval(*verdict[["estimate", "low", "high"]])
    text = f"{verdict['statistic']}: {interval_text(interval, '.2f')}"
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


def origin(provenance: Mapping[str, Any]) -> str:
    """Say in one line where the numbers of a run come from.

    Args:
        provenance: of the run; `here` counts the units that this machine has computed, and is not
            there for kept results of a larger run.
    """
    units, here = provenance["units"], provenance.get("here", 0)
    where = f"{machine(provenance)}, in {minutes(provenance['seconds'])} of work"
    if here == units:
        return f"*{provenance['profile']}*: {units} units, all computed on this machine: {where}."
    again = "; `make rerun` computes them here" if provenance["profile"] == "laptop" else ""
    kept = f"{units - here} kept units" + (f" and {here} of this machine" if here else "")
    return f"*{provenance['profile']}*: {kept}, computed on {where}{again}."


def machine(provenance: Mapping[str, Any]) -> str:
    """Say what the numbers of a run were computed on, and by which code."""
    counts = readable(provenance["threads"])
    threads = f"{counts} thread{'s' * (counts != '1')} a process"
    devices = " and ".join(provenance["device"])
    return f"{devices} with {threads}, at commit {readable(provenance['commit'])}"


def minutes(seconds: float) -> str:
    """Write a duration.

    >>> minutes(20), minutes(290), minutes(8000)
    ('20 s', '5 min', '2.2 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def trend_sentence(frame: pd.DataFrame, *, x: str, symbol: str) -> str:
    """Say how the value goes with `x` in each panel, in one sentence."""
    parts = []
    for (profile, data, network), panel in frame.groupby(PANEL, sort=False):
        panel = panel[(panel["status"] == "done") & panel["value"].notna()]
        if len(panel) < 3 or panel["value"].nunique() < 2:
            continue
        rho = correlation(panel[x], panel["value"]).estimate
        p = permutation_p(panel[x], panel["value"])
        word = "shows no significant trend" if p >= 0.05 else "rises" if rho > 0 else "falls"
        by_x = panel.groupby(x)["value"].mean()
        parts.append(
            f"{word} on {name_of(data)} with {name_of(network)} ({profile}: from "
            f"{by_x.iloc[0]:.3g} at the smallest {symbol} to {by_x.iloc[-1]:.3g} at the largest, "
            f"ρ = {rho:.2f}, p = {p:.2g})"
        )
    return "; ".join(parts) + "." if parts else "has too few models for a trend."
