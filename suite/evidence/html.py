"""Pieces of a page as HTML: badges, tables that fold on a phone, tab sets, sliders.

They work in Jupyter, in the book on a disk and, as still pictures, on paper. What they look like is
in `templates/pieces.html.jinja` and book/_static/reglib.css.
"""

import base64
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from suite.paths import read_yaml

# How a word looks; others look alike, as they say nothing of the effect.
KINDS: dict[str, str] = read_yaml(Path(__file__).with_name("templates") / "badges.yml")
_numbers = itertools.count()


@functools.cache
def _pieces() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    options: dict[str, Any] = {"trim_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(loader=loader, **options).get_template("pieces.html.jinja").module


def badge(word: str, scale: str = "", link: str = "") -> str:
    """Return a verdict as a coloured word, and with it the scale.

    >>> badge("holds", "reduced: CIFAR-10")
    '<span class="verdict good">holds</span> <span class="scale">reduced: CIFAR-10</span>'
    """
    kind = next((k for start, k in KINDS.items() if word.startswith(start)), "blank")
    return str(_pieces().badge(word, kind, scale, link))


def table(rows: pd.DataFrame, kind: str = "", *, ordered: str = "") -> str:
    """Return a table whose rows become blocks on a phone, each value with its column before it.

    Args:
        rows: cells are HTML, not text.
        kind: a further class.
        ordered: the column that rows are ordered by. Then headings are buttons that order them
            anew: from the largest, or from the smallest where the heading has a "↓".
    """
    heads, cells = list(map(str, rows.columns)), rows.astype(str).to_numpy()
    return str(_pieces().table(heads, cells, kind, ordered))


def dials(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a card of dials, see `suite.papers.your_network.card` for what each has."""
    return str(_pieces().dials(entries))


def tabs(pieces: Mapping[str, str]) -> str:
    """Return a tab set whose first tab is open.

    Args:
        pieces: HTML by the title of its tab; empty ones are left out.
    """
    shown = [(title, text) for title, text in pieces.items() if text]
    return str(_pieces().tabs(f"tabs-{next(_numbers)}", shown))


def picture(*data: bytes, alt: str, caption: str = "", form: str = "png") -> str:
    """Return a picture, or several side by side, with their bytes in them, and a caption below."""
    return str(_pieces().picture([_source(file, form) for file in data], alt, caption))


def _source(data: bytes, form: str = "png") -> str:
    kind = {"png": "image/png", "svg": "image/svg+xml"}[form]
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def slider(frames: Mapping[str, bytes], *, alt: str, label: str, caption: str = "") -> str:
    """Return pictures with a range input that shows one of them; on paper, the first.

    Args:
        frames: PNG files by what each shows, in the order of the slider.
        alt: what all of them show.
        label: what the slider changes.
        caption: below.
    """
    sources = [(name, _source(data)) for name, data in frames.items()]
    return str(_pieces().slider(sources, alt, label, caption))


def cards(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return cards that are links, see `cards` in the templates for what each has."""
    return str(_pieces().cards(entries))
