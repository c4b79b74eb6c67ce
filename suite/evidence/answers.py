"""What came out of the claims of an abstract, as the table that a page begins with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.claims import Claim, load_claims, published_effect
from suite.evidence.html import badge
from suite.evidence.names import name_of
from suite.evidence.quote import ORDER, Value
from suite.evidence.rules import NOT_RUN

HELD = "how_to_read.html#verdicts"


def main_rows(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return for each claim the verdict of its main panel at the best profile that tested it.

    Args:
        verdicts: of `claims.judge` for one chapter, with `profile`.
    """
    rank = verdicts["profile"].map({name: place for place, name in enumerate(ORDER)}).fillna(-1)
    order = verdicts.assign(rank=rank, silent=verdicts["verdict"] == NOT_RUN)
    order = order[order["main"].astype(bool) | order["silent"]]
    order = order.sort_values(["silent", "rank"], kind="stable")
    return order.drop_duplicates("claim").drop(columns=["rank", "silent"])


def value_of(row: "pd.Series[Any]", claim: Claim) -> Value:
    """Return a verdict as a value that sentences take."""
    return Value(
        *(float(row[name]) for name in ("estimate", "low", "high")),
        n=int(row["n"]) if np.isfinite(row["n"]) else 0,
        word=str(row["verdict"]),
        shown=str(row["word"]),
        scale=scale_text(row),
        published=printed(claim),
        on=name_of(row["data"]),
        profile=str(row["profile"]),
    )


def values_of(chapter: str, verdicts: pd.DataFrame) -> dict[str, Value]:
    """Return all verdicts of a chapter by `CLAIM@DATA/NETWORK`, and main ones by `CLAIM`."""
    claims = {claim["id"]: claim for claim in load_claims(chapter)}
    rank = verdicts["profile"].map({name: place for place, name in enumerate(ORDER)}).fillna(-1)
    ordered = verdicts.assign(rank=rank).sort_values("rank", kind="stable")
    values: dict[str, Value] = {}
    for _, row in ordered.iterrows():
        key = f"{row['claim']}@{row['data']}/{row['network']}"
        values.setdefault(key, value_of(row, claims[row["claim"]]))
    for _, row in main_rows(verdicts).iterrows():
        values[row["claim"]] = value_of(row, claims[row["claim"]])
    return values


def scale_text(row: Mapping[Any, Any]) -> str:
    """Write the scale of a verdict, and how often its data were looked at.

    >>> scale_text({"verdict": "holds", "scale": "reduced", "data": "mnist", "looks": 2})
    'reduced: MNIST, looked at 2 times'
    """
    if row["verdict"] == NOT_RUN:
        return ""
    looks = f", looked at {row['looks']:.0f} times" if row["looks"] > 1 else ""
    return f"{row['scale']}: {name_of(row['data'])}{looks}"


def printed(claim: Claim) -> str:
    """Return the published effect in the form of the claim, or the words that stand for it."""
    effect = published_effect(claim)
    if effect is None or "paper" in claim:
        return str(claim.get("paper", "no number"))
    form = claim.get("form", "")
    return format(Value(effect), f"{form}~" if form else ".2g")


def headline_cells(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of the abstract as cells of HTML: claim, paper, here, verdict and scale.

    Each claim leads to its entry in the record of the chapter, each word to what it means.
    """
    claims = [claim for claim in load_claims(chapter) if claim["tier"] == "headline"]
    rows = {row["claim"]: row for _, row in main_rows(verdicts).iterrows()}
    table = []
    for claim in claims:
        row = rows.get(claim["id"])
        value = Value() if row is None else value_of(row, claim)
        anchor = f"{chapter}-{claim['id']}".replace("_", "-")
        link = f"{chapter}_record.html#{anchor}"
        count = f" ({value.n} {claim['unit']}s)" if value and value.n else ""
        word = value.shown or NOT_RUN
        table.append(
            {
                "What the paper claims": f'<a href="{link}">{claim["says"]}</a>',
                "Paper": printed(claim),
                "Here": f"{value:{claim.get('form', '')}}{count}" if value else "–",
                "Verdict and scale": badge(word, value.scale, f"../{HELD}"),
            }
        )
    return pd.DataFrame(table)
