"""Verdicts on the claims of a chapter: values for sentences, and a table for a page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from suite.errors import check_name
from suite.evidence.claims import Claim, load_claims, published_effect
from suite.evidence.html import badge
from suite.evidence.names import name_of
from suite.evidence.quote import Value
from suite.evidence.report import headlines
from suite.evidence.rules import NOT_RUN, NOT_TESTABLE
from suite.evidence.tables import best_rows, select

LONGEST = 60  # characters of a reason in a cell; the record has every reason
MEANING = "../how_to_read.html#verdicts"


def value_of(row: "pd.Series[Any]", claim: Claim) -> Value:
    """Return a verdict as a value for sentences.

    Args:
        row: of `claims.judge`, with `profile`.
        claim: the claim of the row.
    """
    estimate, low, high = (float(row[name]) for name in ("estimate", "low", "high"))
    words = {"word": row["verdict"], "shown": row["word"]}
    words |= {"scale": scale_text(row), "published": paper_text(claim), "on": name_of(row["data"])}
    return Value(estimate, low, high, n=int(np.nan_to_num(row["n"])), **words)


def scale_text(row: "Mapping[Any, Any] | pd.Series[Any]") -> str:
    """Write the scale of a verdict, its data, and the number of looks if there were several.

    >>> scale_text({"verdict": "holds", "scale": "reduced", "data": "mnist", "looks": 2})
    'reduced: MNIST, read 2×'
    """
    if row["verdict"] == NOT_RUN:
        return ""
    again = row["looks"] > 1 and row["verdict"] != NOT_TESTABLE
    looks = f", read {row['looks']:.0f}×" if again else ""
    return f"{row['scale']}: {name_of(row['data'])}{looks}"


def paper_text(claim: Claim) -> str:
    """Write the published effect in the form of the claim, or the words for it."""
    effect = Value(published_effect(claim))
    if not effect or "paper" in claim:
        return str(claim.get("paper", "no number"))
    return format(effect, f"{claim['form']}~" if "form" in claim else ".2g")


def claim_value(
    chapter: str, verdicts: pd.DataFrame, name: str, data: str = "", network: str = ""
) -> Value:
    """Return the verdict on a claim as a value.

    Args:
        chapter: the chapter of the claim.
        verdicts: of the chapter at all its profiles.
        name: the id of the claim.
        data, network: of the panel; default: the main panel.

    Raises:
        UsageError: there is no such claim.
    """
    claims = {claim["id"]: claim for claim in load_claims(chapter)}
    check_name("claim", name, claims)
    panel: dict[str, Any] = {k: v for k, v in (("data", data), ("network", network)) if v}
    ran = verdicts[verdicts["verdict"] != NOT_RUN]
    rows = best_rows(select(ran, claim=name, **(panel or {"main": True})))
    return Value() if rows.empty else value_of(rows.iloc[0], claims[name])


def values_of(chapter: str, verdicts: pd.DataFrame) -> dict[str, Value]:
    """Return the verdicts of a chapter: main panels by `CLAIM`, all panels by `CLAIM@DATA/NETWORK`.

    `CLAIM@DATA` is the verdict on the first network of a data set.
    """
    values = {}
    for claim in load_claims(chapter):
        name, rows = claim["id"], verdicts[verdicts["claim"] == claim["id"]]
        values[name] = claim_value(chapter, rows, name)
        for data, network in dict.fromkeys(zip(rows["data"], rows["network"])):
            value = claim_value(chapter, rows, name, data, network)
            values[f"{name}@{data}/{network}"] = value
            values.setdefault(f"{name}@{data}", value)
    return values


def here_text(row: "pd.Series[Any]", claims: Mapping[str, Claim], values: dict[str, Value]) -> str:
    """Format the measured effect of a claim with its interval and n, and the effects beside it.

    Args:
        row: of `headlines`.
        claims: of the chapter, by their ids.
        values: of `values_of`.

    Returns:
        HTML; "" where nothing was measured.
    """
    claim = claims[row["claim"]]
    if not (value := value_of(row, claim)):
        return ""
    statistic, _, x = str(row["statistic"]).partition(" with ")
    rank = f"rank correlation with {x.replace('alpha', 'α')} " * statistic.startswith("Spearman")
    more = f"; about {row['needed']:.0f} needed to tell" if row["needed"] > value.n else ""
    if "correction" in row["detail"]:
        more = f"; corrected p = {row['p_holm']:.2g}"
    if claim["test"]["settings"].get("expected") == "none":
        more = f"; to hold: within ±{claim['smallest_effect']['size']}"
    text = f"{rank}{value:{claim.get('form', '')}} ({value.n} {row['unit']}s{more})"
    for other, words in claim.get("beside", {}).items():
        text += f"<br>{words}: {values[other]:{claims[other].get('form', '')}}"
    return text


def headline_cells(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of the abstract as cells of HTML: claim, paper, here, verdict and scale.

    Each claim is a link to its entry in the record, and each word a link to its meaning.

    Args:
        chapter: the chapter of the claims.
        verdicts: of the chapter at all its profiles.
    """
    claims = {claim["id"]: claim for claim in load_claims(chapter)}
    values, table = values_of(chapter, verdicts), []
    for _, row in headlines(chapter, verdicts).iterrows():
        value = value_of(row, claims[row["claim"]])
        anchor = f"{chapter}-{row['claim']}".replace("_", "-")
        link = f'<a href="{chapter}_record.html#{anchor}">{row["says"]}</a>'
        reason = row["detail"] if len(row["detail"]) < LONGEST else ""
        here = here_text(row, claims, values) or reason or "–"
        table.append([link, value.published, here, badge(value.shown, value.scale, MEANING)])
    heads = ["What the paper claims", "Paper", "Here", "Verdict and scale"]
    return pd.DataFrame(table, columns=heads)
