"""How many networks or images would settle what is open, and what they cost."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from suite.evidence.report import MOST_NEEDED, best_profile, measured, minutes, with_claims
from suite.evidence.results import load_results
from suite.evidence.rules import OPEN
from suite.evidence.tables import select


def power_rows(verdicts: pd.DataFrame, title: Callable[[str], str]) -> list[list[str]]:
    """Return a row for each open verdict at the best profile of its claim, headlines first.

    The cost is that of the run so far, for the share of its rows that are on this data set and
    network, times the units that are missing over those that there are.

    Args:
        verdicts: of all chapters.
        title: gives the name of a chapter.

    Returns:
        Paper, tier, claim, where, measured, units there are, units needed, cost.
    """
    rows = []
    best = best_profile(verdicts)
    for chapter, part in best[best["verdict"] == OPEN].groupby("chapter", sort=False):
        open_ = with_claims(str(chapter), part)
        runs = {name: load_results(str(chapter), name) for name in open_["profile"].unique()}
        for _, row in open_.iterrows():
            run, needed = runs[row["profile"]], row["needed"]
            settled = np.isfinite(needed) and needed <= MOST_NEEDED
            cost = "–"
            if settled and len(run.frame) and row["n"]:
                panel = select(run.frame, data=row["data"], network=row["network"])
                share = len(panel) / len(run.frame)
                spent = float(run.provenance["seconds"]) * share
                cost = minutes(spent * max(0.0, needed / row["n"] - 1))
            count = f"{needed:.0f}" if settled else "no number: see the page Evidence"
            says = [
                title(str(chapter)),
                "added here" if row["tier"] == "ours" else row["tier"],
                row["says"],
                row["on"],
                measured(row),
            ]
            rows.append([*says, f"{row['n']:.0f} {row['unit']}s", count, cost])
    tiers = {"headline": 0, "supporting": 1, "added here": 2}
    return sorted(rows, key=lambda row: tiers[row[1]])
