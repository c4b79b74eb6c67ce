"""The first page: a card a chapter with a picture and an answer, and what came out as a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite import plots
from suite.evidence import html
from suite.evidence.answers import headline_cells
from suite.evidence.claims import load_claims
from suite.evidence.headlines import headlines
from suite.evidence.rules import HOLDS, NOT_RUN
from suite.paths import ROOT, read_yaml
from suite.store import archive_path, read_archive

CARDS = ROOT / "book" / "cards.yml"


def cards(verdicts: pd.DataFrame) -> str:
    """Return the cards as HTML.

    Args:
        verdicts: of all chapters.
    """
    entries = []
    for card in read_yaml(CARDS)["cards"]:
        rows = headlines(card["chapter"], verdicts[verdicts["chapter"] == card["chapter"]])
        shown = rows[rows["verdict"] != NOT_RUN]
        scales = ", ".join(shown["scale"].value_counts().index)
        held = f"{(rows['verdict'] == HOLDS).sum()} of {len(rows)} claims held"
        entries.append(
            {
                "link": f"executed/{card['chapter']}.html",
                "picture": html.picture(_picture(card), f"{card['title']}: {_titles(card)}"),
                "title": card["title"],
                "text": answer(card, dict(zip(rows["claim"], rows["verdict"]))),
                "foot": html.badge(held, scales),
            }
        )
    return html.cards(entries)


def answer(card: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """Return the answer of a card, or what came where a verdict is another than it was written for.

    Args:
        card: of `cards.yml`.
        words: verdicts of the headlines, by claim.
    """
    for claim, word in card["expects"].items():
        if (came := words.get(claim, NOT_RUN)) != word:
            return f"(written for “{word}” of {claim}; now “{came}”)"
    return str(card["answer"])


def table(verdicts: pd.DataFrame) -> str:
    """Return what each paper says, printed and measured, as HTML: the main claim of each card."""
    rows = []
    for card in (card for card in read_yaml(CARDS)["cards"] if "use" in card):
        chapter = card["chapter"]
        cells = headline_cells(chapter, verdicts[verdicts["chapter"] == chapter], "executed/")
        claims = [claim["id"] for claim in load_claims(chapter) if claim["tier"] == "headline"]
        row = cells.iloc[claims.index(card["main"])]
        name = f'<a href="executed/{chapter}.html">{card["title"]}</a>'
        rows.append({"": name, **row, "Use it?": card["use"]})
    return html.table(pd.DataFrame(rows))


def _titles(card: Mapping[str, Any]) -> str:
    return ", ".join(title for title, _, _ in card["pictures"])


def _picture(card: Mapping[str, Any]) -> bytes:
    kept = read_archive(archive_path(card["chapter"], "workstation")).arrays
    plots.set_style()
    row = [
        _flat(kept[name] if n is None else kept[name][n], is_image=name.endswith("images"))
        for _, name, n in card["pictures"]
    ]
    titles = [title for title, _, _ in card["pictures"]]
    return plots.as_bytes(plots.picture_grid([row], titles=titles, side=0.8))


def _flat(picture: NDArray[Any], *, is_image: bool) -> NDArray[Any]:
    """Return a picture as `plots.picture_grid` takes it: bytes, or a map of both signs."""
    picture = picture[0] if picture.ndim == 3 and picture.shape[0] == 1 else picture
    if picture.dtype == np.uint8 or not (is_image or picture.min() >= 0):
        return picture
    low, high = (picture.min(), picture.max()) if is_image else (0.0, picture.max())
    return (255 * (picture - low) / (high - low)).astype(np.uint8)
