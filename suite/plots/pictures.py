"""Photographs and maps in rows, and figures as files and as the HTML of a page."""

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.core.pylabtools import print_figure
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from numpy.typing import NDArray

from suite.evidence import html

WIDTH = 7.0  # of a figure, in inches


def pictures(
    rows: Sequence[Sequence[NDArray[Any] | None]],
    *,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
    scale: tuple[float, float] | None = None,
    scale_label: str | None = None,
    side: float = 1.4,
) -> Figure:
    """Draw photographs (3, H, W) and maps (H, W) in rows.

    Args:
        rows: uint8 photographs, uint8 maps (black is zero), and maps of real numbers. With `scale`
            the latter share a colour bar; otherwise each is scaled to its largest absolute value
            (red positive, blue negative, white zero). None for a picture that is not available.
        titles, labels: titles of the columns, and labels of the rows.
        notes: text below each picture, in rows as in `rows`.
        scale: values at the ends of the colour bar of maps of real numbers.
        scale_label: label of the colour bar.
        side: side of a picture, in inches; smaller where a row has many.
    """
    n = max(map(len, rows))
    side = min(side, (WIDTH - 0.8) / n)
    size = (side * n + 0.4, (side + (0.25 if notes else 0.05)) * len(rows) + 0.4)
    figure, axes = plt.subplots(len(rows), n, figsize=size, squeeze=False, layout="constrained")
    for (r, c), axis in np.ndenumerate(axes):
        axis.set(xticks=[], yticks=[], box_aspect=1)
        axis.spines[:].set_visible(True)
        if c >= len(rows[r]):
            axis.set_axis_off()
        elif (picture := rows[r][c]) is None:
            axis.text(0.5, 0.5, "not\nkept", ha="center", va="center", transform=axis.transAxes)
        else:
            _show(axis, picture, scale)
        if r < len(notes) and c < len(notes[r]):
            axis.set_xlabel(_wrap(notes[r][c], side))
    for axis, title in zip(axes[0], titles):
        axis.set_title(_wrap(title, side))
    for axis, label in zip(axes[:, 0], labels):
        axis.set_ylabel(_wrap(label, side))
    scaled = [i for axis in axes.flat for i in axis.images if scale and i.get_clim() == scale]
    if scaled:
        figure.colorbar(scaled[0], ax=axes, label=scale_label, aspect=30)
    return figure


def _show(axis: Axes, picture: NDArray[Any], scale: tuple[float, float] | None) -> None:
    # Draw each pixel as a square, unless the picture has more pixels than the page has room for.
    interpolation: Any = "nearest" if max(picture.shape) <= 100 else "auto"
    if picture.ndim == 3:
        axis.imshow(picture.transpose(1, 2, 0), interpolation=interpolation)
        return
    if picture.dtype == np.uint8:
        colours, low, high = "gray", 0.0, 255.0
    elif scale:
        colours, (low, high) = "viridis", scale
    else:
        high = float(np.abs(picture).max()) or 1.0
        colours, low = "RdBu_r", -high
    axis.imshow(picture, cmap=colours, vmin=low, vmax=high, interpolation=interpolation)


def _wrap(text: str, inches: float) -> str:
    return "\n".join(textwrap.fill(line, int(15 * inches)) for line in text.splitlines())


def as_bytes(figure: Figure, form: str = "png", **options: Any) -> bytes:
    """Return a figure as a file, and close it; two runs give the same bytes."""
    data = print_figure(figure, form, metadata={"Date": None} if form == "svg" else None, **options)
    plt.close(figure)
    return data.encode() if isinstance(data, str) else data


def as_html(*figures: Figure, alt: str, caption: str = "") -> str:
    """Return figures as pictures, one for each panel; a narrow screen stacks them."""
    files = [file for figure in figures for file in _save_artists(figure)]
    legends = [data for artist, data in files if isinstance(artist, Legend)]
    panels = [data for artist, data in files if not isinstance(artist, Legend)]
    above = html.picture(*legends, alt="Legend of the figure", form="svg") if legends else ""
    return above + html.picture(*panels, alt=alt, caption=caption, form="svg")


def _save_artists(figure: Figure) -> list[tuple[Artist, bytes]]:
    """Return each panel and legend with its SVG file."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # keep the layout, whatever is visible
    boxes = [(artist, artist.get_tightbbox()) for artist in (*figure.axes, *figure.legends)]
    inches, files = figure.dpi_scale_trans.inverted(), []
    for artist, box in boxes:
        for other, _ in boxes:
            other.set_visible(other is artist)
        if box is not None:  # an axis that is on
            panel = box.padded(3).transformed(inches)
            files.append((artist, as_bytes(figure, "svg", bbox_inches=panel)))
    return files


def columns_as_html(
    rows: Sequence[Sequence[NDArray[Any] | None]],
    *,
    titles: Sequence[str],
    notes: Sequence[Sequence[str]],
    alt: str,
    caption: str = "",
) -> str:
    """Return the columns of `pictures` as pictures: four side by side, two on a phone."""
    columns = zip(zip(*rows, strict=True), titles, zip(*notes, strict=True), strict=True)
    files = []
    for column, title, texts in columns:
        below = [[text] for text in texts]
        figure = pictures([[picture] for picture in column], titles=[title], notes=below, side=1.45)
        figure.set_size_inches(1.55, figure.get_figheight())
        files.append(as_bytes(figure, bbox_inches=None))
    return html.picture(*files, alt=alt, caption=caption)
