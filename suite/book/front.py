"""The first page: a card a chapter with a picture and an answer, and what came out as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite import plots
from suite.evidence import html
from suite.evidence.answers import main_rows, printed, value_of
from suite.evidence.claims import load_claims
from suite.evidence.results import load_arrays
from suite.evidence.rules import NOT_RUN
from suite.paths import ROOT, read_yaml

CARDS = ROOT / "book" / "cards.yml"


def cards(verdicts: pd.DataFrame) -> str:
    """Return the cards as HTML.

    Args:
        verdicts: of all chapters.
    """
    entries = []
    for card in read_yaml(CARDS):
        mains = _mains(verdicts, card["chapter"])
        row = mains[card["main"]]
        own = [r for r in mains.values() if r["tier"] == "headline"]
        entries.append(
            {
                "link": f"executed/{card['chapter']}.html",
                "picture": html.picture(_picture(card), f"{card['title']}: {_titles(card)}"),
                "title": card["title"],
                "text": answer(card, mains),
                "foot": html.badge(_held(own), row["scale"]),
            }
        )
    return html.cards(entries)


def answer(card: Mapping[str, Any], mains: Mapping[str, Mapping[Any, Any]]) -> str:
    """Return the answer of a card, or what came where a verdict is another than it was written for.

    Args:
        card: of `cards.yml`.
        mains: verdicts of the main panels, by claim.
    """
    for claim, word in card["expects"].items():
        came = mains[claim]["verdict"] if claim in mains else NOT_RUN
        if came != word:
            return f"(written for “{word}” of {claim}; now “{came}”)"
    return str(card["answer"])


def _held(rows: Sequence[Mapping[Any, Any]]) -> str:
    held = sum(row["verdict"] == "holds" for row in rows)
    return f"{held} of {len(rows)} claims held"


def _mains(verdicts: pd.DataFrame, chapter: str) -> dict[str, Any]:
    rows = main_rows(verdicts[verdicts["chapter"] == chapter])
    return {row["claim"]: row for _, row in rows.iterrows()}


def table(verdicts: pd.DataFrame) -> str:
    """Return what each paper says, printed and measured, as HTML: the main claim of each card."""
    rows = []
    for card in read_yaml(CARDS):
        chapter = card["chapter"]
        claim = next(c for c in load_claims(chapter) if c["id"] == card["main"])
        value = value_of(_mains(verdicts, chapter)[card["main"]], claim)
        if claim["tier"] == "headline" and chapter != "side_by_side":
            here = f"{value:{claim.get('form', '')}} ({value.n} {claim['unit']}s)"
            name = f'<a href="executed/{chapter}.html">{card["title"]}</a>'
            cells = [name, claim["says"], printed(claim), here, card["use"]]
            rows.append(dict(zip(("", "It says", "Its number", "Here", "Use it?"), cells)))
    return html.table(pd.DataFrame(rows))


def _titles(card: Mapping[str, Any]) -> str:
    return ", ".join(title for title, _, _ in card["pictures"])


def _picture(card: Mapping[str, Any]) -> bytes:
    kept = load_arrays(card["chapter"], "workstation")
    plots.set_style()
    row = [_flat(kept[name] if n is None else kept[name][n]) for _, name, n in card["pictures"]]
    titles = [title for title, _, _ in card["pictures"]]
    return plots.as_bytes(plots.picture_grid([row], titles=titles))


def _flat(image: NDArray[Any]) -> NDArray[Any]:
    """Return an image as `plots.picture_grid` takes it: a map (H, W), or bytes."""
    image = image[0] if image.ndim == 3 and image.shape[0] == 1 else image
    if image.dtype != np.uint8 and image.min() >= 0:
        return (255 * image / image.max()).astype(np.uint8)
    return image
