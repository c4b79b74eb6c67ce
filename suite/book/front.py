"""The first page: one card for each chapter, with a picture, an answer and its first claim."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite import plots
from suite.evidence import html
from suite.evidence.answers import here_text, value_of, values_of
from suite.evidence.claims import Claim, load_claims, load_settings
from suite.evidence.quote import sentence
from suite.evidence.report import accuracies, headlines
from suite.evidence.rules import HOLDS, NOT_RUN
from suite.evidence.scale import OURS, Trainings, trainings_of
from suite.paths import ROOT, read_yaml
from suite.store import archive_path, read_archive

CARDS, KEPT = ROOT / "book" / "cards.yml", "workstation"


def cards(verdicts: pd.DataFrame) -> str:
    """Return the cards as HTML.

    Args:
        verdicts: of all chapters.
    """
    entries = []
    for card in read_yaml(CARDS)["cards"]:
        chapter = card["chapter"]
        rows = verdicts[verdicts["chapter"] == chapter]
        values, rows = values_of(chapter, rows), headlines(chapter, rows)
        first, held = rows.iloc[0], (rows["verdict"] == HOLDS).sum()
        claims = {claim["id"]: claim for claim in load_claims(chapter)}
        claim, kept = claims[first["claim"]], read_archive(archive_path(chapter, KEPT))
        trainings = trainings_of(kept.records.values()) if first["profile"] == KEPT else []
        epochs = _write_epochs(trainings, chapter, first, claim)
        value, accuracy = value_of(first, claim), accuracies(chapter, first.to_frame().T)
        entry = {
            "link": f"executed/{chapter}.html",
            "picture": _picture(card, kept.arrays),
            "text": sentence(card["answer"], values, card["expects"]).strip("*"),
            "verdict": html.badge(value.shown, value.scale),
            "claim": first["says"],
            "paper": value.published if first["scale"] != OURS else "",
            "here": here_text(first, claims, values).replace("<br>", "; ") or NOT_RUN,
            "network": f"{card['network']}{epochs}, accuracy {accuracy}",
            "held": f"{held} of {len(rows)} claims held",
        }
        entries.append(card | entry)
    return html.cards(entries)


def _write_epochs(trainings: Trainings, chapter: str, row: "pd.Series[Any]", claim: Claim) -> str:
    """Write the epochs of the networks of a verdict, and the epochs of the paper."""
    panel = {"data": row["data"], "network": row["network"]} | claim.get("trained", {})
    fits = [t for t in trainings if "epochs" in t and panel.items() <= t.items()]
    here = sorted({training["epochs"] for training in fits})
    settings = [s for s in load_settings(chapter) if row["data"] in s.data and s.epochs]
    paper = [f" (paper: {s.epochs})" for s in settings if s.network == row["network"]]
    return f", {' or '.join(map(str, here))} epochs{''.join(paper[:1])}" if here else ""


def _picture(card: Mapping[str, Any], kept: Mapping[str, NDArray[Any]]) -> str:
    plots.set_style()
    titles = [title for title, *_ in card["pictures"]]
    row = [_to_uint8_or_map(kept[name], name, index) for _, name, index in card["pictures"]]
    file = plots.as_bytes(plots.pictures([row], titles=titles, side=0.8))
    return html.picture(file, alt=f"{card['title']}: {', '.join(titles)}")


def _to_uint8_or_map(array: NDArray[Any], name: str, index: int | None) -> NDArray[Any]:
    """Return an array, or its part at an index, for `plots.pictures`: uint8, or a signed map."""
    picture, is_image = array if index is None else array[index], name.endswith("images")
    picture = picture[0] if picture.ndim == 3 and picture.shape[0] == 1 else picture
    if picture.dtype == np.uint8 or not (is_image or picture.min() >= 0):
        return picture
    low = picture.min() if is_image else 0.0
    return (255 * (picture - low) / (picture.max() - low)).astype(np.uint8)
