"""Figures that more than one chapter draws."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from reglib.evidence.names import name_of
from reglib.evidence.statistics import correlation, permutation_p

COLOURS = {"workstation": "#b35806", "paper": "#542788"}
COLUMNS = 3


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
        title = f"{name_of(data)}, {name_of(network)}, {profile}"
        if with_trend:
            title += "\n" + _trend(panel, x, hollow)
        axis.set_title(title, fontsize=9)
        axis.set(xscale="log", xlabel=x_label, ylabel=y_label)
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
        len(images), columns, figsize=(1.9 * columns, 1.95 * len(images)), squeeze=False,
        layout="constrained",
    )  # fmt: skip
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
