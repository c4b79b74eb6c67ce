"""The first page: a card a chapter, with a picture, an answer, and what came of its first claim."""

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
        mine = verdicts[verdicts["chapter"] == chapter]
        rows = headlines(chapter, mine)
        first, held = rows.iloc[0], (rows["verdict"] == HOLDS).sum()
        claims = {claim["id"]: claim for claim in load_claims(chapter)}
        claim, values = claims[first["claim"]], values_of(chapter, mine)
        value, kept = value_of(first, claim), read_archive(archive_path(chapter, KEPT))
        trained = trainings_of(kept.records.values()) if first["profile"] == KEPT else []
        epochs = _epochs(trained, chapter, first, claim)
        accuracy = accuracies(chapter, first.to_frame().T)
        entry = {
            "link": f"executed/{chapter}.html",
            "picture": _picture(card, kept.arrays),
            "text": sentence(card["answer"], values, card["expects"]).strip("*"),
            "verdict": html.badge(value.shown, value.scale),
            "claim": first["says"],
            "paper": value.published if first["scale"] != OURS else "",
            "here": here_text(first, claims, values) or NOT_RUN,
            "network": f"{card['network']}{epochs}, accuracy {accuracy}",
            "held": f"{held} of {len(rows)} claims held",
        }
        entries.append(card | entry)
    return html.cards(entries)


def _epochs(trained: Trainings, chapter: str, row: "pd.Series[Any]", claim: Claim) -> str:
    """Write for how many epochs the networks of a verdict, and the paper's, were trained."""
    panel = {"data": row["data"], "network": row["network"]} | claim.get("trained", {})
    here = sorted({t["epochs"] for t in trained if "epochs" in t and panel.items() <= t.items()})
    fits = [s for s in load_settings(chapter) if row["data"] in s.data and s.epochs]
    paper = [setting.epochs for setting in fits if setting.network == row["network"]]
    there = f" (paper: {paper[0]})" if paper else ""
    return f", {' or '.join(map(str, here))} epochs{there}" if here else ""


def _picture(card: Mapping[str, Any], kept: Mapping[str, NDArray[Any]]) -> str:
    plots.set_style()
    titles, names, places = zip(*card["pictures"])
    arrays = [kept[name] if n is None else kept[name][n] for name, n in zip(names, places)]
    row = [_to_uint8_or_map(a, is_image=name.endswith("images")) for a, name in zip(arrays, names)]
    file = plots.as_bytes(plots.pictures([row], titles=titles, side=0.8))
    return html.picture(file, alt=f"{card['title']}: {', '.join(titles)}")


def _to_uint8_or_map(picture: NDArray[Any], *, is_image: bool) -> NDArray[Any]:
    """Return a picture as `plots.pictures` takes it: bytes, or a map of both signs."""
    picture = picture[0] if picture.ndim == 3 and picture.shape[0] == 1 else picture
    if picture.dtype == np.uint8 or not (is_image or picture.min() >= 0):
        return picture
    low, high = (picture.min(), picture.max()) if is_image else (0.0, picture.max())
    return (255 * (picture - low) / (high - low)).astype(np.uint8)
