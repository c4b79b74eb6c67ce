"""What came out of the headline claims: one row a claim, in words and in units of the paper."""

from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import COLUMNS, Claim, load_claims, load_settings
from suite.evidence.names import name_of
from suite.evidence.report import best_profile, measured, with_claims
from suite.evidence.rules import HOLDS, NOT_RUN, Finding, Verdict
from suite.evidence.scale import OURS, PAPERS, REDUCED, SCALES, STAND_IN

AT = {PAPERS: "at the paper's scale", REDUCED: "at reduced scale", STAND_IN: "on stand-in data"}
AT |= {OURS: "in this book's comparison"}


def headlines(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each headline claim of a chapter: that of its main panel.

    Args:
        chapter: whose claims.
        verdicts: see `with_claims`.

    Returns:
        The columns of `with_claims`; a claim that no profile tested is *not run*.
    """
    best = with_claims(chapter, best_profile(verdicts[verdicts["main"].astype(bool)]))
    rows = []
    for claim in (claim for claim in load_claims(chapter) if claim["tier"] == "headline"):
        found = best[best["claim"] == claim["id"]]
        rows.append(_not_run(claim) if found.empty else found.iloc[0].to_dict())
    return pd.DataFrame(rows)


def _not_run(claim: Claim) -> dict[str, Any]:
    text = ("data", "network", "profile", "on", "measured", "detail", "remark", "statistic")
    row = dict.fromkeys(COLUMNS, np.nan) | dict.fromkeys((*text, "scale"), "")
    row |= {name: claim[name] for name in ("says", "tier", "section", "published", "unit")}
    row |= {"detail": claim.get("elsewhere", ""), "main": True, "within": False, "looks": 0}
    return row | {"claim": claim["id"], "verdict": NOT_RUN, "word": NOT_RUN, "n": 0}


def accuracies(chapter: str, rows: pd.DataFrame) -> str:
    """Write the accuracy of the networks of verdicts, and that of the paper's.

    >>> rows = {"claim": [""] * 2, "accuracy": [0.8141, 0.79], "accuracy_of_paper": [0.945, np.nan]}
    >>> accuracies("top_gap", pd.DataFrame(rows))
    '0.79 to 0.814 (paper: 0.945)'
    """
    here, paper = rows["accuracy"].dropna(), rows["accuracy_of_paper"].max()
    if here.empty:
        return ""
    ends = dict.fromkeys(f"{value:.3g}" for value in (here.min(), here.max()))
    text, settings = " to ".join(ends), load_settings(chapter)
    if np.isfinite(paper):
        return f"{text} (paper: {paper:.3g})"
    claims = [c for c in load_claims(chapter) if c["id"] in set(rows["claim"])]
    there = {data for claim in claims for data in claim["data_of_paper"]}
    for setting in settings if set(rows["scale"]) == {STAND_IN} else ():
        if setting.data[0] in there and np.isfinite(setting.accuracy):
            return f"{text} (paper: {setting.accuracy:.3g} on {name_of(setting.data[0])})"
    return f"{text} (paper: no number)" if settings else text


def tally(rows: pd.DataFrame, whose: str = "") -> str:
    """Count the headlines that held, scale by scale, in a sentence."""
    ran, parts = rows[rows["verdict"] != NOT_RUN], []
    for scale in SCALES:
        held = (words := ran[ran["scale"] == scale]["verdict"]).eq(HOLDS).sum()
        parts += [f"{held} of {len(words)} {AT[scale]}"] if len(words) else []
    parts += [f"{missing} {NOT_RUN}"] if (missing := len(rows) - len(ran)) else []
    text = f"{whose}headline claims that held: {', '.join(parts)}."
    return text[0].upper() + text[1:]


def of_printed(found: tuple[Verdict, Finding]) -> str:
    """Say what a rule makes of the numbers that a paper prints."""
    verdict, finding = found
    row = finding.interval._asdict() | {"p": finding.p, "statistic": finding.statistic}
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.word}{detail} ({measured(pd.Series(row, dtype=object))})"
