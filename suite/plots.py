"""Figures that more than one chapter draws."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.evidence.names import name_of
from suite.evidence.statistics import correlation, mean_interval, permutation_p, spearman

COLOURS = {"workstation": "#b35806", "paper": "#542788"}
COLUMNS = 3
FEW = 6
# Characters that fit an axis of 3.4 inches: its labels together, a line of its title.
LONG, WIDE = 20, 44


def panels_against(
    frame: pd.DataFrame,
    *,
    x: str,
    x_label: str,
    y_label: str,
    hollow: str | None = None,
    with_trend: bool = True,
) -> Figure:
    """Draw `value` against `x` (logarithmic), one panel a data set, network and profile.

    Args:
        frame: one row a model: data, network, profile, value, std, n, status, `x`, `hollow`.
        x, x_label, y_label: column and labels.
        hollow: column of models to draw hollow and to leave out of the trend.
        with_trend: write Spearman's correlation, its p-value and n into the title.

    Returns:
        The figure; error bars are 95% intervals of the mean over images.
    """
    panels = list(frame.groupby(["profile", "data", "network"], sort=False))
    if not panels:
        return not_run("not run at the profiles that are shown")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 3.1 * rows), squeeze=False, layout="constrained"
    )
    for axis, ((profile, data, network), panel) in zip(axes.flat, panels):
        _points(axis, panel, x, hollow, COLOURS.get(str(profile).partition(",")[0], "#2166ac"))
        title = textwrap.fill(f"{name_of(data)}, {name_of(network)}, {profile}", WIDE)
        if with_trend:
            title += "\n" + _trend(panel, x, hollow)
        axis.set_title(title, fontsize=9)
        axis.set(xscale="log", xlabel=x_label, ylabel=y_label)
        if len(ticks := sorted(panel[x].unique())) <= FEW:  # labels of a short axis would collide
            labels = [f"{tick:g}" for tick in ticks]
            slanted = {"rotation": 45} if len("".join(labels)) > LONG else {}
            axis.set_xticks(ticks, labels, **slanted)
            axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    return figure


def _points(axis: Axes, panel: pd.DataFrame, x: str, hollow: str | None, colour: str) -> None:
    panel = panel[panel["status"] == "done"]
    error = 1.96 * panel["std"] / np.sqrt(panel["n"])
    axis.errorbar(
        panel[x], panel["value"], error, fmt="none", ecolor=colour, alpha=0.35, elinewidth=1
    )
    out = panel[hollow].astype(bool) if hollow else pd.Series(False, index=panel.index)
    axis.scatter(panel[x][~out], panel["value"][~out], s=16, color=colour)
    axis.scatter(panel[x][out], panel["value"][out], s=16, facecolor="white", edgecolor=colour)


def _trend(panel: pd.DataFrame, x: str, hollow: str | None) -> str:
    panel = panel[(panel["status"] == "done") & panel["value"].notna()]
    if hollow:
        panel = panel[~panel[hollow].astype(bool)]
    if len(panel) < 3 or panel["value"].nunique() < 2:
        return f"n = {len(panel)}: too few for a trend"
    rho = correlation(panel[x], panel["value"]).estimate
    return f"ρ = {rho:.2f}, p = {permutation_p(panel[x], panel['value']):.2g}, n = {len(panel)}"


def dots_with_bins(
    frame: pd.DataFrame, *, x: str, x_label: str, y_label: str, n_bins: int = 8, log: bool = False
) -> Figure:
    """Draw `value` against `x`, one dot an image and one panel a data set, network and profile.

    Args:
        frame: one row an image: data, network, profile, value, `x`.
        x, x_label, y_label: column and labels.
        n_bins: bins with equally many images, at least five in each, whose means are drawn with
            95% intervals.
        log: whether `value` has a logarithmic axis.

    Returns:
        The figure; Spearman's correlation and n are in the titles.
    """
    panels = list(frame.groupby(["profile", "data", "network"], sort=False))
    if not panels:
        return not_run("not run at the profiles that are shown")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(4.2 if columns == 1 else 7.6, 3.3 * rows),
        squeeze=False,
        layout="constrained",
        sharey=True,
    )
    for axis, ((profile, data, network), panel) in zip(axes.flat, panels):
        colour = COLOURS.get(str(profile), "#2166ac")
        axis.scatter(
            panel[x], panel["value"], s=12, color=colour, alpha=min(1, max(0.2, 60 / len(panel)))
        )
        ordered = panel.sort_values(x)
        for places in np.array_split(np.arange(len(panel)), max(1, min(n_bins, len(panel) // 5))):
            part = ordered.iloc[places]
            mean = mean_interval(part["value"])
            axis.errorbar(
                part[x].mean(),
                mean.estimate,
                np.abs([[mean.estimate - mean.low], [mean.high - mean.estimate]]),
                fmt="s",
                color="black",
                markersize=4,
                elinewidth=1,
                capsize=2,
            )
        rho = float(spearman(panel[x], panel["value"]))
        axis.set_title(
            f"{name_of(data)}\n{name_of(network)}, {profile}\nρ = {rho:.2f}, n = {len(panel)}",
            fontsize=9,
        )
        axis.set(xlabel=x_label, yscale="log" if log else "linear")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    return figure


def picture_grid(
    rows: Sequence[Sequence[NDArray[Any] | None]],
    *,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
    marked: Collection[tuple[int, int]] = (),
) -> Figure:
    """Draw photographs (3, H, W) and maps (H, W), both in bytes, in rows.

    Args:
        rows: pictures; None for one that is not at hand.
        titles, labels: of the columns and the rows.
        notes: text below each picture, rows as in `rows`.
        marked: (row, column) of pictures that get a green frame.

    Returns:
        The figure; maps are black where they are zero.
    """
    n = max(map(len, rows))
    side = min(1.45, 8.8 / n)
    figure, axes = plt.subplots(
        len(rows),
        n,
        figsize=(side * n, (side + (0.15 if notes else 0.05)) * len(rows) + 0.5),
        squeeze=False,
        layout="constrained",
    )
    for r, row in enumerate(rows):
        for c, axis in enumerate(axes[r]):
            axis.set(xticks=[], yticks=[])
            picture = row[c] if c < len(row) else None
            if c >= len(row):
                axis.set_axis_off()
            elif picture is None:
                axis.text(0.5, 0.5, "image not\nat hand", ha="center", va="center", fontsize=7)
            else:
                photograph = picture.ndim == 3
                axis.imshow(
                    picture.transpose(1, 2, 0) if photograph else picture,
                    cmap=None if photograph else "gray",
                    vmin=0,
                    vmax=255,
                )
            if r < len(notes) and c < len(notes[r]):
                axis.set_xlabel(notes[r][c], fontsize=7)
            if (r, c) in marked:
                for spine in axis.spines.values():
                    spine.set(color="#1b9e3e", linewidth=3)
        if r < len(labels):
            axes[r, 0].set_ylabel(labels[r], fontsize=7)
    for c, title in enumerate(titles):
        axes[0, c].set_title(title, fontsize=8)
    return figure


def saliency_grid(
    images: NDArray[np.float32], maps: Mapping[str, NDArray[np.float32]], titles: Sequence[str]
) -> Figure:
    """Draw images in the first column and their saliency maps beside them.

    Args:
        images: (B, C, H, W).
        maps: by title of the column, each (B, 1, H, W).
        titles: of the images, B of them.

    Returns:
        The figure; red is positive, blue negative, white zero, scaled to the largest absolute
        value of each map.
    """
    columns = 1 + len(maps)
    figure, axes = plt.subplots(
        len(images),
        columns,
        figsize=(1.9 * columns, 1.95 * len(images)),
        squeeze=False,
        layout="constrained",
    )
    low, high = images.min(), images.max()
    for row, image in enumerate(images):
        shown = ((image - low) / (high - low)).transpose(1, 2, 0)
        axes[row, 0].imshow(shown.squeeze(), cmap="gray", interpolation="nearest")
        axes[row, 0].set_ylabel(titles[row], fontsize=9)
        for column, (title, values) in enumerate(maps.items(), start=1):
            largest = np.abs(values[row, 0]).max() or 1.0
            axes[row, column].imshow(
                values[row, 0], cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest"
            )
            axes[0, column].set_title(title, fontsize=9)
    axes[0, 0].set_title("image", fontsize=9)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def not_run(reason: str) -> Figure:
    """Draw an empty frame that says why there is no figure."""
    figure, axis = plt.subplots(figsize=(5.7, 1.2), layout="constrained")
    axis.text(0.5, 0.5, reason, ha="center", va="center", color="#555555")
    axis.set(xticks=[], yticks=[])
    return figure
