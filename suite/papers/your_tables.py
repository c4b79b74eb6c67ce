"""The card of "your network": each dial with its words, and the networks beside it."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import load_data
from suite.evidence.names import name_of
from suite.evidence.quote import Value
from suite.evidence.render import render
from suite.evidence.results import Arrays
from suite.evidence.statistics import Interval, difference
from suite.papers.your_network import DIALS, NAMES, REFERENCE, REFERENCES_SHOWN, YOURS, Subject

CHAPTER = "your_network"
PARTS = ("answer", "maps", "tested", "landscape", "steady", "advice")
LIKE = "no clear difference"
SHOWN = 5  # of the most and the least steady images, at most
ENDS = ["value", "low", "high"]
Row = dict[Any, Any]
BAR = {"scale": (0.0, 2.0), "scale_label": "importance, mean square 1", "side": 2.2}


def page(subject: Subject, entries: Sequence[Row], arrays: Arrays) -> tuple[Row, Row]:
    """Return the pictures of the page, and its sentences by where they stand, see the template."""
    given = {"subject": subject, "entries": entries, "shown": (shown := drawn(subject, arrays))}
    return shown, {part: write(part, **given) for part in PARTS}


def write(part: str, **values: Any) -> str:
    """Write a part of the template."""
    template = Path(__file__).with_name(f"{CHAPTER}.md.jinja")
    given = {"advice": NAMES["advice"], "name_of": name_of, "others": REFERENCES_SHOWN}
    return render(template, part=part, **given, **values).strip()


def card(table: pd.DataFrame, profile: str, why: str) -> list[dict[str, Any]]:
    """Return what the card shows of each dial.

    Args:
        table: rows of this run, then of kept ones.
        profile: of this run.
        why: there are no labels.
    """
    own = table[(table["profile"] == profile) & (table["who"] == YOURS)]
    others = table[(table["who"] == REFERENCE) & (table["name"] != own["name"].iloc[0])]
    others = others.dropna(subset=ENDS).drop_duplicates(["dial", "name"])
    rows = {row["dial"]: row for row in own.to_dict("records")}
    return [_dial(n, rows.get(n), others[others["dial"] == n], why) for n in DIALS]


def _dial(name: str, own: Row | None, others: pd.DataFrame, why: str) -> dict[str, Any]:
    about = DIALS[name]
    entry: dict[str, Any] = {"name": name, "title": about["title"], "what": about["what"]}
    entry |= {"text": "–", "n": 0, "dots": [], "word": "", "kind": "none"}
    if own is None or not np.isfinite(own["value"]):
        return entry | {"reason": write("reason", about=about, own=own, why=why)}
    mine, rows = Interval(*(own[part] for part in ENDS)), others.to_dict("records")
    alike = [row for row in rows if row["alike"] == own["alike"]]
    entry |= {"text": text(own), "n": own["n"]}
    entry["own"] = np.nan_to_num(mine[:3], nan=mine.estimate)
    entry["dots"] = [(r["value"], name_of(r["name"]), text(r), r in alike) for r in rows]
    if not alike or np.isnan(mine.low):
        settings = [json.loads(row["alike"]) for row in (*rows[:1], own)]
        return entry | {"reason": write("difference", settings=settings, alike=alike)}
    gaps = [difference(mine, Interval(*(row[part] for part in ENDS))) for row in alike]
    low, high = all(gap.high < 0 for gap in gaps), all(gap.low > 0 for gap in gaps)
    if (low or high) and "better" in about:
        entry["kind"] = "good" if high == (about["better"] > 0) else "part"
    return entry | {"word": about["low"] if low else about["high"] if high else LIKE}


def text(row: Row) -> str:
    """Write the value of a row as its dial does; curvature from its logarithm."""
    about = DIALS[row["dial"]]
    ends = np.array([row[part] for part in ENDS], float)
    return f"{Value(*(10**ends if 'sure' in about else ends)):{about['form']}}"


def drawn(subject: Subject, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Return the pictures of the page: maps by method, landscapes, and images by steadiness."""
    images = load_data(subject.predicted.data).test.images.numpy()
    kinds: dict[str, dict[str, NDArray[Any]]] = {"maps": {}, "landscape": {}}
    for name, array in arrays.items():
        kind, _, title = name.partition("|")
        kinds.setdefault(kind, {})[title] = array
    landscapes, changes = kinds["landscape"], arrays["steady"]
    order = np.argsort(changes)[: np.isfinite(changes).sum() or None]
    half = min(SHOWN, (len(order) + 1) // 2)
    ranked = np.stack([order[:half], order[::-1][:half]])
    notes = [[f"{changes[n]:.2f}" for n in rows] for rows in ranked]
    return {
        "maps": {t: [[*itertools.chain(*zip(images, m))]] for t, m in kinds["maps"].items()},
        "landscape": {"rows": [[*landscapes.values()]], "titles": [*landscapes], **BAR},
        "steady": {"rows": images[ranked], "notes": notes},
    }
