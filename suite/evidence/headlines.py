"""What came out of the headline claims: one row a claim, in words and in units of the paper."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import Claim, load_claims, load_words, published_effect
from suite.evidence.names import name_of
from suite.evidence.report import best_profile, in_words, measured, with_claims
from suite.evidence.rules import (
    CANNOT,
    HOLDS,
    MARGINS,
    NO_EFFECT,
    NOT_RUN,
    OPPOSITE,
    WITHDRAWN,
    WORDS,
    Finding,
    Verdict,
)
from suite.evidence.scale import scale
from suite.evidence.statistics import Interval
from suite.evidence.tables import interval_text, select
from suite.units import Training

PAIRS = ("paired", "not_worse")
# Verdicts that say nothing of the effect.
SILENT = (CANNOT, WITHDRAWN, NOT_RUN)
CERTAIN = """*How certain:* brackets hold 95% intervals over the n networks or images. The words:
*holds*, the interval lies on the claimed side and reaches what would matter; *opposite*, it lies on
the other side; *no change*, it lies within what counts as none; *no such effect*, all of it is
below what would matter, or below half of what was published; *open*, none of these or, of a
headline, no longer after correction for several tests (Holm's). {ref}`More <verdicts>`"""
TALLY = {HOLDS: "held", NO_EFFECT: "had no such effect", OPPOSITE: "came out opposite"}


def headlines(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each headline claim of a chapter: its verdict at the best profile.

    Where several data sets have one, that which the claim names goes (`shown`), else the one with
    most units.

    Args:
        chapter: whose claims.
        verdicts: see `with_claims`.

    Returns:
        The columns of `with_claims`, and `others`: verdicts on further data, in words; `mixed`: it
        holds, but on further data it came out opposite.
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
        rows.append(
            first.drop(["fits", "order"]).to_dict()
            | {"others": _others(order[1:], first["verdict"])}
        )
    result = pd.DataFrame(rows)
    opposite = result["others"].str.contains(f"{OPPOSITE} on", regex=False)
    return result.assign(mixed=(result["verdict"] == HOLDS) & opposite)


def _not_run(claim: Claim) -> dict[str, Any]:
    text = ("data", "network", "profile", "on", "measured", "detail", "statistic", "others")
    numbers = ("estimate", "low", "high", "p", "p_holm", "needed")
    row = dict.fromkeys(text, "") | dict.fromkeys(numbers, np.nan)
    row |= {name: claim[name] for name in ("says", "tier", "section", "published", "unit")}
    return row | {"claim": claim["id"], "verdict": NOT_RUN, "word": NOT_RUN, "n": 0}


def _panels(rows: pd.DataFrame, advised: Collection[str] = ()) -> pd.DataFrame:
    """Return profile, data and network of what headlines, and advised claims, were measured on."""
    named = (rows["tier"] == "headline") | rows["claim"].isin(list(advised))
    rows = rows[named & ~rows["verdict"].isin(SILENT)]
    return rows[["profile", "data", "network"]].drop_duplicates()


def _others(rows: pd.DataFrame, first: str) -> str:
    """Say what came out on further data, with numbers where it differs from the first."""
    parts = []
    alone = rows["detail"].astype(str).str.extract("^(alone it [^,]*)", expand=False)
    words = rows["verdict"] + (" (" + alone + ")").fillna("")
    for verdict, part in rows.groupby(words, sort=False):
        where = part["data"].map(name_of) + " with " + part["network"].map(name_of)
        said = verdict not in (CANNOT, first)
        numbers = [
            f" ({interval_text(Interval(*values))}, n = {n:.0f})"
            if said and np.isfinite(values[0])
            else ""
            for *values, n in part[["estimate", "low", "high", "n"]].to_numpy(float)
        ]
        parts.append(f"{verdict} on {', '.join(where + numbers)}")
    return "; ".join(parts)


def in_short(
    chapter: str,
    verdicts: pd.DataFrame,
    table: pd.DataFrame | None = None,
    trainings: Mapping[str, Sequence[Training]] | None = None,
) -> str:
    """Write what came out of each headline claim, and what to take from it, as a box in Markdown.

    Args:
        chapter: whose claims.
        verdicts: of all its profiles.
        table: the rows that they rest on, of which the scale is said.
        trainings: of each profile, for the same.
    """
    rows = headlines(chapter, verdicts)
    lines = [":::{admonition} In short", ":class: tip", tally(rows), ""]
    if advice := _advice(chapter, rows, verdicts):
        lines += [f"**To take from it:** {advice[0]}", "", *(f"- {a}" for a in advice[1:]), ""]
    silent = rows["verdict"].isin(SILENT)
    further: list[str] = []
    if table is not None:
        compared = " ".join(rows["statistic"])
        names = {kind: n for kind, n in load_words(chapter)["names"].items() if n in compared}
        first = _panels(rows)
        advised = [part["claim"] for part in load_words(chapter)["advice"]]
        all_of_them = _panels(with_claims(chapter, best_profile(verdicts)), advised)
        panels = pd.concat([first, all_of_them]).drop_duplicates().to_dict("records")
        found = [scale(table, p, (trainings or {}).get(p["profile"], ()), names) for p in panels]
        lines += [f"*Measured on* {'; '.join(found[: len(first)])}.", ""]
        others = found[len(first) :]
        further = ["", f"*Other data:* {'; '.join(others)}."] if others else []
        further += ["", f"*In the paper:* {load_words(chapter)['scale']}"]
    claims = {claim["id"]: claim for claim in load_claims(chapter)}
    said = [sentence(row, claims[row["claim"]], table) for _, row in rows[~silent].iterrows()]
    lines += [CERTAIN, "", *(f"- {text}" for text in said)]
    for (verdict, detail), part in rows[silent].groupby(["verdict", "detail"], sort=False):
        lines.append(f"- {_together(str(verdict), str(detail), part)}")
    return "\n".join([*lines, *further, ":::"])


def tally(rows: pd.DataFrame, whose: str = "") -> str:
    """Count the words of headlines, in a sentence."""
    counts = rows["verdict"].value_counts(sort=False)
    parts = {word: f"{counts[word]} {TALLY.get(word, word)}" for word in WORDS if word in counts}
    if mixed := int(rows["mixed"].sum()):
        parts[HOLDS] += f" ({mixed} of them not on all data)"
    words = ", ".join(parts.values())
    return f"Of {whose}{len(rows)} headline claims: {words}."


def _together(verdict: str, detail: str, rows: pd.DataFrame) -> str:
    """Write in one sentence what shares a verdict that says nothing of the effect, and a reason."""
    says = "; ".join(row["says"] for _, row in rows.iterrows())
    parts = [f"**{verdict[0].upper()}{verdict[1:]}:** {says}."]
    parts += [f"{detail[0].upper()}{detail[1:]}."] if detail else []
    return " ".join(parts)


def _advice(chapter: str, rows: pd.DataFrame, verdicts: pd.DataFrame) -> list[str]:
    """Return the sentences that the claims file has for these verdicts.

    One on a claim that is no headline, and so not listed below, has its numbers behind it.
    """
    best = best_profile(verdicts).sort_values("n", kind="stable")
    best = best.drop_duplicates("claim", keep="last").set_index("claim")
    listed = dict(zip(rows["claim"], rows["verdict"]))
    parts = []
    words = load_words(chapter)
    quantities = {c["id"]: f"{c['quantity']}; " for c in load_claims(chapter) if "quantity" in c}
    for part in words["advice"]:
        other = best.loc[part["claim"]] if part["claim"] in best.index else None
        verdict = listed.get(part["claim"], NOT_RUN if other is None else other["verdict"])
        text = part.get(verdict, part.get("else", ""))
        shown = part["claim"] not in listed and verdict not in SILENT
        if text and shown and other is not None:
            ends = Interval(*other[["estimate", "low", "high"]])
            compared = in_words(other["statistic"].replace(" − ", " minus "), words["names"])
            found = f"{compared}: {interval_text(ends)}, n = {other['n']:.0f}"
            what = quantities.get(part["claim"], "")
            text = f"{text.removesuffix('.')} ({what}{name_of(other['data'])}, {found})."
        parts.append(text)
    return [part for part in parts if part]


def sentence(
    row: "pd.Series[Any]", claim: Claim | None = None, table: pd.DataFrame | None = None
) -> str:
    """Write one headline: the claim, the word, what was measured and where, what was published."""
    claim = claim or {}
    says = row["says"][0].upper() + row["says"][1:]
    elsewhere = ", but not everywhere" if row.get("mixed") else ""
    parts = [f"**{says}: {row['verdict']}{elsewhere}.**"]
    rule = claim.get("test", {}).get("rule")
    if row["verdict"] == HOLDS and row["detail"] and rule not in (*MARGINS, "not_worse"):
        of = "correlation" if rule == "trend" else "effect"
        parts.append(f"The {of} is {row['detail']}.")
    kinds = rule in PAIRS and row["unit"] == "network"
    if row["verdict"] != HOLDS and row["word"] != row["verdict"]:
        rest = row["word"].partition(": ")[2]
        rest = rest.replace("networks would", "networks of each kind would") if kinds else rest
        parts.append(f"{rest[0].upper()}{rest[1:]}.")
    quantity = f"{claim['quantity']}: " if claim.get("quantity") else ""
    each = " of each kind" if kinds else " of one network" if row["unit"] == "image" else ""
    found = f"{measured(row, with_p=False)} {row['unit']}s{each}{_margin(claim)}"
    on = row["on"].removesuffix(f", {row['profile']}")
    parts.append(f"*Here* {quantity}{found}; {on}.")
    if table is not None and (plainly := _plainly(row, claim, table)):
        parts.append(plainly)
    parts.append(f"*Paper:* {row['published']}.")
    if row["others"]:
        parts.append(f"On other data: {row['others']}.")
    return " ".join(parts)


def _margin(claim: Claim) -> str:
    """Say from where on an effect matters, by the rule of a claim."""
    rule = claim.get("test", {}).get("rule", "level")
    size = claim["smallest_effect"]["size"] if rule != "level" else 0.0
    if rule in MARGINS:
        return f" (within ±{size:g} counts as none)"
    if rule == "not_worse":
        return f" (a loss below {size:g} counts as none)"
    factor = "a factor of " if claim.get("test", {}).get("settings", {}).get("ratio") else ""
    return "" if rule == "level" else f" (at least {factor}{size:g} would matter)"


def _plainly(row: "pd.Series[Any]", claim: Claim, table: pd.DataFrame) -> str:
    """Say how far a value goes: its mean in the lowest and in the highest third of a trend."""
    test = claim.get("test", {})
    if test.get("rule") not in ("trend", "no_trend") or "over" in test["settings"]:
        return ""
    where = {name: row[name] for name in ("profile", "data", "network")}
    rows = select(table, **where, **test.get("where", {})).dropna(subset="value")
    x = test["settings"]["x"]
    thirds = rows[x].rank(pct=True)
    means = [rows.loc[part, "value"].mean() for part in (thirds <= 1 / 3, thirds > 2 / 3)]
    low, high = (-mean if test.get("negated") else mean for mean in means)
    name = row["statistic"].rpartition(" ")[2]  # of x, in words
    seeds = rows.groupby(x)["seed"].nunique().max() if "seed" in rows else 1
    said = f"Its mean goes from {low:.2g} (lowest third of {name}) to {high:.2g} (highest)."
    said = said.replace("-", "−")
    return said if seeds == 1 else f"{said} The interval is over the {seeds} seeds of each {name}."


def relative(claims: Sequence[Claim], row: "pd.Series[Any]") -> tuple[float, float, float, str]:
    """Return estimate and interval of a verdict in units of the published effect.

    Where none is printed, or one in the other direction than the claim says, in units of the
    smallest effect of interest. Positive is the claimed direction; for a claim that something stays
    within a margin, 1 is the margin.

    Returns:
        Middle, low, high, and what the unit is: "published" or "of interest".
    """
    claim = next(claim for claim in claims if claim["id"] == row["claim"])
    settings = claim["test"].get("settings", {})
    printed = published_effect(claim)
    size = claim["smallest_effect"]["size"]
    ratio = bool(settings.get("ratio"))
    null = settings.get("no_effect", settings.get("opposite", 0.0))
    values = np.array([row["estimate"], row["low"], row["high"]], float) - (0 if ratio else null)
    sign = -1 if settings.get("expected") in ("fall", "lower", "below") else 1
    of_paper = 0.0 if printed is None else np.log(printed) if ratio else printed - null
    if "expected" in settings and sign * of_paper < 0:
        printed = None
    scale = (size if printed is None else printed) - (0 if ratio else null)
    if ratio:
        with np.errstate(invalid="ignore"):
            values, scale = np.log(values), float(np.log(scale))
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
