"""Pieces of a page as HTML: badges, tables that fold on a phone, tab sets, sliders.

They need no script besides the slider's one line, so they work in Jupyter, in the book on a disk
and, as still pictures, on paper.
"""

import base64
import html
import itertools
import re
from collections.abc import Mapping, Sequence

import pandas as pd

# What a word looks like, see book/_static/reglib.css.
KINDS = {
    "holds": "good",
    "smaller than claimed": "part",
    "no effect": "none",
    "contradicted": "bad",
    "inconclusive": "open",
}
_numbers = itertools.count()


def badge(word: str, scale: str = "", link: str = "") -> str:
    """Return a verdict as a coloured word, and beside it the scale.

    >>> badge("holds", "reduced: CIFAR-10")
    '<span class="verdict good">holds</span> <span class="scale">reduced: CIFAR-10</span>'
    """
    kind = next((k for start, k in KINDS.items() if word.startswith(start)), "blank")
    text = html.escape(word)
    text = f'<a href="{link}">{text}</a>' if link else text
    beside = f' <span class="scale">{html.escape(scale)}</span>' if scale else ""
    return f'<span class="verdict {kind}">{text}</span>{beside}'


def table(rows: pd.DataFrame, kind: str = "") -> str:
    """Return a table whose rows become blocks on a phone, each value with its column before it.

    Args:
        rows: cells are HTML, not text.
        kind: a further class.
    """
    head = "".join(f"<th>{name}</th>" for name in rows.columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{_label(name)}">{cell}</td>'
            for name, cell in zip(rows.columns, row, strict=True)
        )
        + "</tr>"
        for row in rows.astype(str).to_numpy()
    )
    return (
        f'<table class="folds {kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _label(name: object) -> str:
    return html.escape(re.sub("<[^>]*>", "", str(name)), quote=True)


def tabs(pieces: Mapping[str, str]) -> str:
    """Return a tab set; the first tab is open.

    Args:
        pieces: HTML by the title of its tab; empty ones are left out.
    """
    group = f"tabs-{next(_numbers)}"
    parts = []
    for place, (title, text) in enumerate((t, p) for t, p in pieces.items() if p):
        name, checked = f"{group}-{place}", " checked" if place == 0 else ""
        parts.append(
            f'<input{checked} id="{name}" name="{group}" type="radio">'
            f'<label class="sd-tab-label" for="{name}">{html.escape(title)}</label>'
            f'<div class="sd-tab-content">{text}</div>'
        )
    return f'<div class="sd-tab-set">{"".join(parts)}</div>'


def picture(data: bytes, alt: str, caption: str = "", form: str = "png") -> str:
    """Return a picture with its bytes in it, and a caption below."""
    kind = {"png": "image/png", "svg": "image/svg+xml"}[form]
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    image = f'<img src="{source}" alt="{html.escape(alt, quote=True)}">'
    return f'{image}<p class="caption">{caption}</p>' if caption else image


CHANGE = (
    "const box=this.closest('.slides'),at=+this.value;"
    "box.querySelectorAll('img').forEach((image,k)=>image.hidden=k!==at);"
    "box.querySelector('output').value=this.dataset.names.split('|')[at]"
)


def slider(frames: Mapping[str, bytes], *, alt: str, label: str, caption: str = "") -> str:
    """Return pictures of which a range input shows one; on paper the last one is there.

    Args:
        frames: PNG files by what each shows, in the order of the slider.
        alt: what all of them show.
        label: what the slider changes.
        caption: below.
    """
    names = [html.escape(name, quote=True) for name in frames]
    images = [
        picture(data, f"{alt}: {name}").replace("<img", f"<img{' hidden' * (place > 0)}", 1)
        for place, (name, data) in enumerate(frames.items())
    ]
    return (
        f'<div class="slides">{"".join(images)}<p><input type="range" min="0" '
        f'max="{len(names) - 1}" value="0" aria-label="{html.escape(label, quote=True)}" '
        f'data-names="{"|".join(names)}" oninput="{CHANGE}"> <output>{names[0]}</output></p>'
        f'<p class="caption">{caption}</p></div>'
    )


def cards(entries: Sequence[Mapping[str, str]]) -> str:
    """Return cards that are links: each with `link`, `picture`, `title`, `text` and `foot`."""
    parts = [
        f'<a class="card" href="{e["link"]}">{e["picture"]}<b>{e["title"]}</b> {e["text"]}'
        f'<span class="foot">{e["foot"]}</span></a>'
        for e in entries
    ]
    return f'<div class="cards">{"".join(parts)}</div>'
