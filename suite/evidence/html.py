"""Pieces of a page as HTML: badges, tables that fold on a phone, tab sets, sliders.

They work in Jupyter, in the book, and as still pictures on paper. Their markup is in
`templates/pieces.html.jinja`, their style in `book/_static/reglib.css`.
"""

import base64
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from suite.evidence.render import templates
from suite.paths import read_yaml

TEMPLATES = Path(__file__).with_name("templates")
# The look of a word by its beginning; words without an entry say nothing about the effect.
KINDS: dict[str, str] = read_yaml(TEMPLATES / "badges.yml")
_numbers = itertools.count()


def _piece(name: str, *values: Any) -> str:
    """Fill in a macro of the templates."""
    pieces = templates(TEMPLATES).get_template("pieces.html.jinja").module
    return str(getattr(pieces, name)(*values))


def badge(word: str, scale: str = "", link: str = "") -> str:
    """Return a verdict as a coloured word, followed by its scale.

    >>> badge("holds", "reduced: CIFAR-10")
    '<span class="verdict good">holds</span> <span class="scale">reduced: CIFAR-10</span>'
    """
    kind = next((k for start, k in KINDS.items() if word.startswith(start)), "blank")
    return _piece("badge", word, kind, scale, link)


def table(rows: pd.DataFrame, kind: str = "", *, ordered: str = "") -> str:
    """Return a table whose rows become blocks on a phone, each value after its column.

    Args:
        rows: with cells of HTML, not text.
        kind: a further class.
        ordered: the column that orders the rows. It turns the headings into buttons that sort:
            from the largest value, or from the smallest where the heading has a "↓".
    """
    heads, cells = list(map(str, rows.columns)), rows.astype(str).to_numpy()
    return _piece("table", heads, cells, kind, ordered)


def dials(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a card of dials; `suite.papers.your_network.card` makes the entries."""
    return _piece("dials", entries)


def tabs(pieces: Mapping[str, str]) -> str:
    """Return a tab set whose first tab is open.

    Args:
        pieces: HTML by the title of its tab; an empty piece has no tab.
    """
    filled = [(title, text) for title, text in pieces.items() if text]
    return _piece("tabs", f"tabs-{next(_numbers)}", filled)


def picture(*data: bytes, alt: str, caption: str = "", form: str = "png") -> str:
    """Return a picture, or several side by side, as embedded bytes with a caption below."""
    return _piece("picture", [_source(file, form) for file in data], alt, caption)


def _source(data: bytes, form: str = "png") -> str:
    return f"data:image/{form.replace('svg', 'svg+xml')};base64,{base64.b64encode(data).decode()}"


def slider(frames: Mapping[str, bytes], *, alt: str, label: str, caption: str = "") -> str:
    """Return pictures with a range input that shows one of them; paper shows the first.

    Args:
        frames: PNG files by their labels, in the order of the slider.
        alt: the alternative text of all pictures.
        label: the quantity that the slider changes.
        caption: the text below.
    """
    sources = [(name, _source(data)) for name, data in frames.items()]
    return _piece("slider", sources, alt, label, caption)


def cards(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return cards that are links; `cards` in the templates names the keys of an entry."""
    return _piece("cards", entries)
