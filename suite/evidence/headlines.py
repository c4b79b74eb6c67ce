"""What came out of the headline claims: one row a claim, in words and in units of the paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import COLUMNS, Claim, load_claims, load_words
from suite.evidence.names import name_of
from suite.evidence.render import render
from suite.evidence.report import best_profile, in_words, measured, with_claims
from suite.evidence.rules import NOT_RUN, SILENT, WORDS, Finding, Verdict
from suite.evidence.scale import OURS, PAPERS, REDUCED, SCALES, STAND_IN, Trainings, described
from suite.evidence.statistics import Interval
from suite.evidence.tables import interval_text

AT = {PAPERS: "at the paper's scale", REDUCED: "at reduced scale", STAND_IN: "on stand-in data"}
AT |= {OURS: "in this book's comparison"}
BOX = Path(__file__).parent / "templates" / "in_short.md.jinja"


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


def in_short(chapter: str, verdicts: pd.DataFrame, trainings: Mapping[str, Trainings]) -> str:
    """Write what came out of each headline claim, and what to take from it, as a box in Markdown.

    Args:
        chapter: whose claims.
        verdicts: of all its profiles.
        trainings: of each profile, of which data and networks are described.
    """
    rows, words = headlines(chapter, verdicts), load_words(chapter)
    quantities = {c["id"]: c["quantity"] for c in load_claims(chapter) if "quantity" in c}
    cells = []
    for _, row in rows.iterrows():
        here = row["measured"] or row["detail"]
        quantity = quantities.get(row["claim"], "") if row["measured"] else ""
        parts = [f"{quantity}: {here}" if quantity else here, name_of(row["data"])]
        parts += [accuracies(row), row["remark"] if row["measured"] else ""]
        told = "; ".join(filter(None, parts))
        cells.append([row["says"], row["published"], told, f"**{row['word']}**", row["scale"]])
    panels = rows[~rows["verdict"].isin(SILENT)][["profile", "data", "network"]].drop_duplicates()
    measured_on = [
        described(panel, trainings[panel["profile"]])
        for panel in panels.to_dict("records")
        if panel["profile"] in trainings
    ]
    advice = _advice(chapter, rows, verdicts)
    values = {"advice": advice, "rows": cells, "measured_on": measured_on}
    return render(BOX, tally=tally(rows), scale=words["scale"], **values).rstrip()


def accuracies(row: "Mapping[str, Any] | pd.Series[Any]") -> str:
    """Write the accuracy of the networks of a verdict, and that of the paper's.

    >>> accuracies({"accuracy": 0.814, "accuracy_of_paper": 0.945})
    'accuracy 0.814 (paper: 0.945)'
    """
    here, paper = (row[name] for name in ("accuracy", "accuracy_of_paper"))
    if not np.isfinite(here):
        return ""
    return f"accuracy {here:.3g}" + (f" (paper: {paper:.3g})" if np.isfinite(paper) else "")


def tally(rows: pd.DataFrame, whose: str = "") -> str:
    """Count the words of headlines, scale by scale, in a sentence."""
    ran, parts = rows[rows["verdict"] != NOT_RUN], []
    for scale in SCALES:
        counts = ran[ran["scale"] == scale]["verdict"].value_counts()
        words = [f"{counts[word]} {word}" for word in WORDS if word in counts]
        parts += [f"{AT[scale]} {', '.join(words)}"] if words else []
    parts += [f"{missing} {NOT_RUN}"] if (missing := len(rows) - len(ran)) else []
    return f"Of {whose}{len(rows)} headline claims: {'; '.join(parts)}."


def _advice(chapter: str, rows: pd.DataFrame, verdicts: pd.DataFrame) -> list[str]:
    """Return the sentences that the claims file has for these verdicts.

    One on a claim that is no headline, and so not listed below, has its numbers behind it.
    """
    best = best_profile(verdicts[verdicts["main"].astype(bool)]).set_index("claim")
    listed = dict(zip(rows["claim"], rows["verdict"]))
    parts, words = [], load_words(chapter)
    quantities = {c["id"]: f"{c['quantity']}; " for c in load_claims(chapter) if "quantity" in c}
    for part in words["advice"]:
        other = best.loc[part["claim"]] if part["claim"] in best.index else None
        verdict = listed.get(part["claim"], NOT_RUN if other is None else other["verdict"])
        text = part.get(verdict, part.get("else", ""))
        if text and other is not None and part["claim"] not in listed and verdict not in SILENT:
            ends = Interval(*other[["estimate", "low", "high"]])
            compared = in_words(other["statistic"].replace(" − ", " minus "), words["names"])
            found = f"{compared}: {interval_text(ends)}, n = {other['n']:.0f}"
            what = quantities.get(part["claim"], "")
            text = f"{text.removesuffix('.')} ({what}{name_of(other['data'])}, {found})."
        parts.append(text)
    return [part for part in parts if part]


def relative(row: "pd.Series[Any]") -> tuple[float, float, float, str]:
    """Return estimate and interval of a verdict in units of the published effect.

    Where none is printed, or one in the other direction than the claim says, in units of the
    smallest effect of interest. Positive is the claimed direction; for a claim that something stays
    within a margin, 1 is the margin.

    Returns:
        Middle, low, high, and what the unit is: "published" or "of interest".
    """
    printed = row["effect_of_paper"] > 0 and not row["within"]
    unit = row["effect_of_paper"] if printed else row["smallest"]
    middle, low, high = (
        float(row[name] / unit) for name in ("effect", "effect_low", "effect_high")
    )
    return middle, low, high, "published" if printed else "of interest"


def of_printed(found: tuple[Verdict, Finding]) -> str:
    """Say what a rule makes of the numbers that a paper prints."""
    verdict, finding = found
    row: dict[str, Any] = {**finding.interval._asdict(), "p": finding.p}
    row["statistic"] = finding.statistic
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.word}{detail} ({measured(pd.Series(row, dtype=object))})"
