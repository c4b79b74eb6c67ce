"""What came out of the headline claims: one row a claim, in words and in units of the paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import Claim, load_claims, load_words, published_effect
from suite.evidence.names import name_of
from suite.evidence.report import best_profile, measured, with_claims
from suite.evidence.rules import (
    CANNOT,
    HOLDS,
    NO_EFFECT,
    NOT_RUN,
    OPPOSITE,
    WITHDRAWN,
    Finding,
    Verdict,
)
from suite.evidence.tables import select

# Verdicts that say nothing of the effect.
SILENT = (CANNOT, WITHDRAWN, NOT_RUN)
TALLY = {HOLDS: "held", NO_EFFECT: "had no such effect", OPPOSITE: "came out opposite"}
TALLY |= {CANNOT: "cannot be measured here", WITHDRAWN: "being measured anew"}


def headlines(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each headline claim of a chapter: its verdict at the best profile.

    Where several data sets have one, that which the claim names goes (`shown`), else the one with
    most units.

    Args:
        chapter: whose claims.
        verdicts: see `with_claims`.

    Returns:
        The columns of `with_claims`, and `others`: verdicts on further data, in words.
    """
    best = with_claims(chapter, best_profile(verdicts))
    rows = []
    for claim in (claim for claim in load_claims(chapter) if claim["tier"] == "headline"):
        found = best[best["claim"] == claim["id"]]
        if found.empty:
            rows.append(_not_run(claim))
            continue
        shown = claim.get("shown", {})
        fits = (found["data"] == shown.get("data")) & (found["network"] == shown.get("network"))
        order = found.assign(fits=fits, order=found["n"]).sort_values(
            ["fits", "order"], ascending=False, kind="stable"
        )
        first = order.iloc[0]
        rows.append(first.drop(["fits", "order"]).to_dict() | {"others": _others(order[1:])})
    return pd.DataFrame(rows)


def _not_run(claim: Claim) -> dict[str, Any]:
    text = ("data", "network", "profile", "on", "measured", "detail", "statistic", "others")
    numbers = ("estimate", "low", "high", "p", "p_holm", "needed")
    row = dict.fromkeys(text, "") | dict.fromkeys(numbers, np.nan)
    row |= {name: claim[name] for name in ("says", "tier", "section", "published", "unit")}
    return row | {"claim": claim["id"], "verdict": NOT_RUN, "word": NOT_RUN, "n": 0}


def _others(rows: pd.DataFrame) -> str:
    """Say what came out on further data, one part for each word."""
    parts = []
    for verdict, part in rows.groupby("verdict", sort=False):
        where = part["data"].map(name_of) + " with " + part["network"].map(name_of)
        parts.append(f"{verdict} on {', '.join(where)}")
    return "; ".join(parts)


def in_short(chapter: str, verdicts: pd.DataFrame, table: pd.DataFrame | None = None) -> str:
    """Write what came out of each headline claim, and what to take from it, as a box in Markdown.

    Args:
        chapter: whose claims.
        verdicts: of all its profiles.
        table: the rows that they rest on, of which the scale is said.
    """
    rows = headlines(chapter, verdicts)
    counts = rows["verdict"].value_counts(sort=False)
    tally = ", ".join(f"{count} {TALLY.get(str(word), word)}" for word, count in counts.items())
    lines = [":::{admonition} In short", ":class: tip"]
    lines += [f"Of {len(rows)} headline claims: {tally}.", ""]
    if advice := _advice(chapter, rows):
        lines += [f"**To take from it:** {advice}", ""]
    silent = rows["verdict"].isin(SILENT)
    lines += [f"- {sentence(row)}" for _, row in rows[~silent].iterrows()]
    for (verdict, detail), part in rows[silent].groupby(["verdict", "detail"], sort=False):
        lines.append(f"- {_together(str(verdict), str(detail), part)}")
    if scales := [] if table is None else _scales(table, rows):
        lines += ["", f"*Scale:* {'; '.join(scales)}."]
    return "\n".join([*lines, ":::"])


def _together(verdict: str, detail: str, rows: pd.DataFrame) -> str:
    """Write in one sentence what shares a verdict that says nothing of the effect, and a reason."""
    says = "; ".join(row["says"] for _, row in rows.iterrows())
    parts = [f"**{verdict[0].upper()}{verdict[1:]}:** {says}."]
    parts += [f"{detail[0].upper()}{detail[1:]}."] if detail else []
    return " ".join(parts)


def _advice(chapter: str, rows: pd.DataFrame) -> str:
    """Return the sentences that the claims file has for these verdicts."""
    found = dict(zip(rows["claim"], rows["verdict"]))
    parts = [
        part.get(found[part["claim"]], part.get("else", ""))
        for part in load_words(chapter)["advice"]
    ]
    return " ".join(filter(None, parts))


def _scales(table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """Say how the networks that headlines rest on were trained, and how good they are."""
    accuracy = table[table["metric"] == "accuracy"]
    by = ["data", "network", "profile"]
    result = []
    for where in rows.loc[rows["data"] != "", by].drop_duplicates().to_dict("records"):
        part = select(accuracy, **{str(name): value for name, value in where.items()})
        if part.empty:
            continue
        words = [", ".join((name_of(where["data"]), name_of(where["network"]), where["profile"]))]
        for name, unit in (("epochs", "epochs"), ("n_train", "images")):
            most = part[name].max() if name in part else np.nan
            words += [f"{most:,.0f} {unit}"] if most > 0 else []
        words.append(f"median accuracy {part['value'].median():.2f}")
        result.append(f"{words[0]}: {', '.join(words[1:])}")
    return result


def sentence(row: "pd.Series[Any]") -> str:
    """Write one headline: the claim, the word, what was measured and where, what was published."""
    says = row["says"][0].upper() + row["says"][1:]
    parts = [f"**{says}: {row['verdict']}.**"]
    if row["verdict"] == HOLDS and row["detail"]:
        parts.append(f"The effect is {row['detail']}.")
    elif row["word"] != row["verdict"]:
        rest = row["word"].partition(": ")[2]
        parts.append(f"{rest[0].upper()}{rest[1:]}.")
    parts.append(f"*Here* {measured(row, with_p=False)} {row['unit']}s; {row['on']}.")
    parts.append(f"*Paper:* {row['published']}.")
    if row["others"]:
        parts.append(f"Also: {row['others']}.")
    return " ".join(parts)


def relative(claims: Sequence[Claim], row: "pd.Series[Any]") -> tuple[float, float, float, str]:
    """Return estimate and interval of a verdict in units of the published effect.

    Where none is printed, in units of the smallest effect of interest. Positive is the claimed
    direction; for a claim that something stays within a margin, 1 is the margin.

    Returns:
        Middle, low, high, and what the unit is: "published" or "of interest".
    """
    claim = next(claim for claim in claims if claim["id"] == row["claim"])
    settings = claim["test"].get("settings", {})
    printed = published_effect(claim)
    size = claim["smallest_effect"]["size"]
    ratio = bool(settings.get("ratio"))
    null = settings.get("no_effect", 0.0)
    values = np.array([row["estimate"], row["low"], row["high"]], float) - (0 if ratio else null)
    scale = (size if printed is None else printed) - (0 if ratio else null)
    if ratio:
        with np.errstate(invalid="ignore"):
            values, scale = np.log(values), float(np.log(scale))
    sign = -1 if settings.get("expected") in ("fall", "lower", "below") else 1
    scale = sign * abs(scale) if printed is None else scale
    middle, *ends = values / scale
    low, high = sorted(ends)
    return float(middle), float(low), float(high), "of interest" if printed is None else "published"


def of_printed(found: tuple[Verdict, Finding]) -> str:
    """Say what a rule makes of the numbers that a paper prints."""
    verdict, finding = found
    row: dict[str, Any] = {**finding.interval._asdict(), "p": finding.p}
    row["statistic"] = finding.statistic
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.word}{detail} ({measured(pd.Series(row, dtype=object))})"
