"""Figures of the book: one style, and a fixed colour for each method.

Frames are tidy: they have one row for each network (or image), with the columns `profile`, `data`,
`network` and the measured `value`. Each function returns a figure at most `WIDTH` inches wide.
"""

import itertools
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.core.getipython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Locator, LogLocator, NullLocator

from suite.evidence.names import name_of
from suite.evidence.statistics import mean_interval, spearman
from suite.evidence.tables import mean_text, unit_of
from suite.methods import BLACK, BLUE, BROWN, GREEN, GREY, METHODS, ORANGE, PINK, RED, SKY
from suite.plots.pictures import WIDTH, as_bytes, as_html, columns_as_html, pictures

CYCLE = [BLUE, ORANGE, GREEN, RED, PINK, SKY, BROWN, GREY]
# Profiles have colours of no method.
COLOURS = {method.name: method.colour for method in METHODS if method.colour}
COLOURS |= {"desktop": "#2b5c8a", "smoke": "#2b5c8a", "laptop": "#3f7f6b"}
COLOURS |= {"workstation": "#8a4b1c", "paper": "#5d3a7d"}
PANELS = ("data", "network", "profile")
FEW, LONG = 6, 16  # up to so many values of x get a tick each; more letters in all are slanted
MANY = 12  # with more values of x, intervals are bands
DOT = {"marker": "o", "linestyle": ""}  # in a legend
Frame = pd.DataFrame


def set_style() -> None:
    """Set the style of all figures; a notebook then shows them as SVG, and pictures as PNG.

    Two runs give the same bytes: the SVG has no date, and its identifiers have a fixed salt.
    """
    rc = {"svg.fonttype": "none", "svg.hashsalt": "reglib", "legend.frameon": False}
    rc |= {f"axes.spines.{side}": False for side in ("right", "top")}
    rc |= {"axes.labelsize": 9, "axes.titlesize": 9, "figure.dpi": 100}
    sns.set_theme("paper", "ticks", palette=CYCLE, font_scale=1.03, rc=rc)
    shell: Any = get_ipython()
    if shell is not None:
        plt.switch_backend(plt.get_backend())  # registers formatters, which ours then replace
        plt.uninstall_repl_displayhook()  # the hook would draw each figure a second time
        for mime, form in (("image/svg+xml", "svg"), ("image/png", "png")):
            formatter = shell.display_formatter.formatters[mime]
            formatter.for_type(Figure, partial(_render, form=form))


def _render(figure: Figure, form: str) -> str | bytes | None:
    """Return a figure as SVG or PNG, or None if the other format suits it better."""
    if any(axis.images for axis in figure.axes) != (form == "png"):
        return None
    return print_figure(figure, form, metadata={"Date": None} if form == "svg" else None)


def palette_of(methods: "pd.Series[Any]", names: Mapping[Any, str]) -> dict[Any, str]:
    """Return a colour for each method; methods without one of their own get unused colours.

    Among several strengths of a method ("target 3", "target 10"), the last gets its colour.
    """
    present = dict.fromkeys(methods)
    order = [*(name for name in names if name in present), *(m for m in present if m not in names)]
    last = {str(m).partition(" ")[0]: m for m in order}
    colours = dict.fromkeys(order) | {m: COLOURS.get(word) for word, m in last.items()}
    colours |= {m: COLOURS[m] for m in order if m in COLOURS}
    spare = itertools.cycle([c for c in CYCLE if c not in colours.values()] or CYCLE)
    return {m: colour or next(spare) for m, colour in colours.items()}


def draw_notice(reason: str = "not run at the profiles that are shown") -> Figure:
    """Draw a figure that only says why nothing can be drawn."""
    figure, axis = plt.subplots(figsize=(5.7, 1.2), layout="constrained")
    axis.text(0.5, 0.5, reason, ha="center", va="center", color=GREY)
    axis.set_axis_off()
    return figure


def lines(
    frame: Frame,
    *,
    x: str,
    hue: str,
    x_label: str,
    y_label: str,
    panels: Sequence[str] = PANELS,
    names: Mapping[Any, str] | None = None,
    log: str = "x",
    dots: bool = False,
    published: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw the mean of `value` against `x` with 95% intervals, one line for each method.

    Args:
        frame: one row for each network (or point of a curve): `x`, value, `hue`, `panels`.
        x, x_label, y_label: column and labels.
        hue: column of methods; lines have the order of `names`, else that of the frame.
        panels: columns; each combination of their values has a panel, whose title it is.
        names: what the legend calls the values of `hue`.
        log: logarithmic axes: "x", "y", "xy" or "".
        dots: draw each row too.
        published: the paper's points (x, value), drawn as black diamonds; their names by the title
            of their panel.
    """
    names = names or {}
    frame = frame[frame["value"].notna()].astype({hue: object})
    palette = palette_of(frame[hue], names)
    style: dict[str, Any] = {"x": x, "y": "value", "hue": hue, "palette": palette, "mew": 0}
    style |= {"hue_order": list(palette), "legend": False, "errorbar": _ends}
    if frame[x].nunique() <= MANY:
        style |= {"err_style": "bars", "marker": "o"}

    def draw(axis: Axes, panel: Frame) -> None:
        sns.lineplot(panel, ax=axis, **style)
        if dots:
            colours = [palette[method] for method in panel[hue]]
            axis.scatter(panel[x], panel["value"], 12, colours, alpha=0.5, linewidth=0)
        points = (published or {}).get(axis.get_title().replace("\n", " "), {})
        for name, point in points.items():
            axis.plot(*point, "D", ms=5, color=BLACK, zorder=3)
            axis.annotate(name, point, (0, 7), ha="center", size=7, textcoords="offset points")
        _label(axis, panel[x], x_label, y_label, log=log)

    legend = {names.get(m, str(m)): {"color": c} for m, c in palette.items()}
    return _arrange(_split(frame, panels), draw, legend)


def dots(
    panels: Mapping[str, pd.DataFrame],
    names: Mapping[Any, str],
    *,
    method: str,
    x_label: str,
    published: Mapping[str, Mapping[Any, float]] | None = None,
    share: bool = True,
) -> Figure:
    """Draw means with 95% intervals, one row for each method, with the number next to it.

    Args:
        panels: rows by the title of their panel: `method`, `seed` (or `image`) and `value`, which
            is first averaged within a seed.
        names: names of the methods to draw, in their order from the top.
        method, x_label: column and label.
        published: numbers of the paper by panel and method, drawn as black diamonds.
        share: values are shares, drawn in percent.
    """
    factor, unit, digits = (100, "%", ".1f") if share else (1, "", ".2f")
    present = {name for rows in panels.values() for name in rows[method]}
    methods = [name for name in names if name in present]
    if not methods:
        return draw_notice()
    size = (WIDTH, 0.3 * len(methods) + 0.85)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    palette = palette_of(pd.Series(methods, dtype=object), names)
    for axis, (title, rows) in zip(axes.flat, panels.items()):
        points = (published or {}).get(title, {})
        printed = {name: factor * value for name, value in points.items()}
        values = [*rows.loc[rows[method].isin(methods), "value"], *printed.values()]
        room = 0.35 * (100 if share else np.ptp(values))
        for y, name in enumerate(methods):
            units = rows[rows[method] == name].groupby(unit_of(rows))["value"].mean() * factor
            mean = mean_interval(units) if len(units) else None
            style: dict[str, Any] = {"va": "center", "size": 8.5, "textcoords": "offset points"}
            if mean:
                colour, ends = palette[name], (mean.low, mean.high)
                axis.plot(mean.estimate, y, "o", ms=6, color=colour, zorder=2)
                axis.plot(ends, [y, y], linewidth=2, color=colour, zorder=2)
                text = mean_text(units, digits).replace("-", "−") + unit
                end = np.nanmax([mean.estimate, mean.high])
                mark = printed.get(name, end)
                close = mark - end < room  # the text goes to the left of a diamond, or beyond it
                left = share and close and mark > end and mean.low > 25
                at = (mean.low if left else max(end, mark) if close else end, y)
                place = {"xytext": (-6, 0), "ha": "right"} if left else {"xytext": (6, 0)}
                axis.annotate(text, at, color=colour, **place, **style)
            elif name not in printed:
                axis.annotate("not run", (0, y), (6, 0), color="0.5", **style)
            if name in printed:
                point = printed[name], y
                axis.plot(*point, "D", ms=5, color=BLACK, zorder=3)
                if mean is None or (share and not -room < end - point[0] < 48):
                    axis.annotate(f"paper {point[0]:{digits}}{unit}", point, (6, 0), **style)
        axis.set_title(title, loc="left", weight="bold")
        axis.set(xlabel=x_label, ylim=(len(methods) - 0.5, -0.5))
        axis.set_yticks(range(len(methods)), [names[name] for name in methods])
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color="0.92", zorder=0)
        if share:
            axis.set_xlim(-3, 112)
            axis.set_xticks(range(0, 101, 25))
            axis.xaxis.set_major_formatter("{x:g}%")
        sns.despine(ax=axis, left=True)
    return figure


def medians(
    rows: Frame,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    x: str,
    x_label: str,
    y_label: str,
    beyond: str = "",
) -> Figure:
    """Draw the median and quartiles of `value` in each decade of `x`, as lines in panels.

    Args:
        rows: `line`, `panel`, value, `x`, `beyond`.
        styles: colour and style by line; by default each line has a colour.
        x, x_label, y_label: column and labels; the axis is logarithmic.
        beyond: column that is constant in a panel; larger values of `x` are shaded.
    """
    rows = rows.dropna(subset="value").assign(decade=lambda r: np.floor(np.log10(r[x])))
    present, dot = dict.fromkeys(rows["line"]), {"marker": "o", "markersize": 3}
    styles = styles or {n: {"color": c} for n, c in zip(present, CYCLE)}
    styles = {n: dot | {**style} for n, style in styles.items() if n in present}

    def draw(axis: Axes, panel: Frame) -> None:
        for line, style in styles.items():
            decades = panel[panel["line"] == line].groupby("decade")
            low, middle, high = (decades["value"].quantile(q) for q in (0.25, 0.5, 0.75))
            centres = decades[x].median()
            axis.plot(centres, middle, **style)
            axis.fill_between(centres, low, high, color=style["color"], alpha=0.15, linewidth=0)
        if beyond and np.isfinite(start := float(panel[beyond].iloc[0])):
            axis.axvspan(start, panel[x].max(), color="0.92", zorder=0)
            options: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "rotation": 90}
            axis.text(start, 0.03, "cut-off", size=7.5, color=GREY, **options)
        axis.tick_params(labelleft=True)  # on a phone panels stand alone
        _label(axis, panel[x], x_label, y_label, log="x")

    return _arrange(_split(rows, ["panel"]), draw, styles, sharex=True, sharey=True)


def medians_as_html(rows: Frame, *, caption: str, **options: Any) -> str:
    """Return `medians` as pictures in HTML, see `as_html`."""
    alt = f"Lines of {options['y_label']} against {options['x_label']}."
    return as_html(medians(rows, **options), alt=alt, caption=caption)


def scatter(
    frame: Frame,
    *,
    x: str,
    x_label: str,
    y_label: str,
    panels: Sequence[str] = PANELS,
    bound: str | None = None,
    n_bins: int = 8,
    hollow: str | None = None,
    log: str = "",
) -> Figure:
    """Draw `value` against `x`: a dot for each image or network, and means of bins of equal size.

    Args:
        frame: one row for each image or network: profile, data, network, value, `x`.
        x, x_label, y_label: column and labels.
        panels: columns; each combination of their values has a panel, whose title it is.
        bound: column whose medians in the bins are drawn as a grey line.
        n_bins: number of bins of at least five dots; their means are drawn with 95% intervals.
        hollow: column that marks dots to draw hollow, and to leave out of bins and correlation.
        log: logarithmic axes: "x", "y", "xy" or "".

    Returns:
        The figure; Spearman's correlation and n are in the titles.
    """
    frame = frame[frame["value"].notna()]

    def draw(axis: Axes, panel: Frame) -> None:
        panel = panel.sort_values(x)
        out = panel[hollow].astype(bool) if hollow else pd.Series(False, panel.index)
        (colour,) = palette_of(panel["profile"], {}).values()
        style: dict[str, Any] = {"alpha": min(1, max(0.2, 60 / len(panel)))}
        excluded, panel = panel[out], panel[~out]
        axis.scatter(panel[x], panel["value"], 14, colour, **style, linewidth=0)
        if len(excluded):
            axis.scatter(excluded[x], excluded["value"], 14, "white", **style, edgecolors=colour)
        bins = np.array_split(panel[x], max(1, min(n_bins, len(panel) // 5)))
        centres = np.concatenate([np.full(len(values), values.mean()) for values in bins])
        style = {"err_style": "bars", "marker": "s", "linestyle": "", "color": BLACK}
        sns.lineplot(panel.assign(x=centres), x="x", y="value", ax=axis, errorbar=_ends, **style)
        if bound:
            axis.plot(panel.groupby(centres)[bound].median(), color=GREY, linewidth=1.5, zorder=0)
        rho = float(spearman(panel[x], panel["value"]))
        axis.set_title(f"{axis.get_title()}\nρ = {rho:.2f}, n = {len(panel)}".strip())
        _label(axis, panel[x], x_label, y_label, log=log)

    return _arrange(_split(frame, panels), draw)


def intervals(rows: Frame, texts: Mapping[Any, str]) -> Figure:
    """Draw values with their intervals: a panel for each title, and in it a row for each run.

    Args:
        rows: `title`, `run`, `value`, `low` and `high`.
        texts: by title, a text that is appended to it.
    """
    colours = dict(zip(dict.fromkeys(rows["run"]), itertools.cycle(CYCLE)))

    def draw(axis: Axes, panel: Frame) -> None:
        for y, row in enumerate(panel.to_dict("records")):
            colour = colours[row["run"]]
            axis.plot([row["low"], row["high"]], [y, y], color=colour)
            axis.plot(row["value"], y, "o", color=colour)
        axis.set_title(f"{axis.get_title()}: {texts[panel['title'].iloc[0]]}", size=7.5)
        axis.set(yticks=[], ylim=(len(colours) - 0.5, -0.5))

    panels = _split(rows, ["title"])
    size = (WIDTH, (0.7 + 0.15 * len(colours)) * -(-len(panels) // 3) + 0.4)
    legend = {run: DOT | {"color": colour} for run, colour in colours.items()}
    return _arrange(panels, draw, legend, across=3, size=size)


def _split(frame: Frame, columns: Sequence[str]) -> list[tuple[str, Frame]]:
    """Return the rows of each combination of values, with its title."""
    groups: Any = frame.groupby([*columns], sort=False) if columns else [((), frame)]
    return [(", ".join(map(name_of, values)), panel) for values, panel in groups if len(panel)]


def _arrange(
    panels: Sequence[tuple[str, Frame]],
    draw: Callable[[Axes, Frame], None],
    legend: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    across: int | None = None,
    size: tuple[float, float] | None = None,
    **options: Any,
) -> Figure:
    """Arrange panels with their titles, three in a row (of four: two), and a legend above them.

    Args:
        panels: title and rows of each panel.
        draw: draws the rows of a panel.
        legend: properties of a line by its name in the legend.
        across: number of panels in a row.
        size: of the figure, in inches.
        options: further arguments of `matplotlib.pyplot.subplots`.
    """
    if not panels:
        return draw_notice()
    across = across or (2 if len(panels) == 4 else min(3, len(panels)))
    rows = -(-len(panels) // across)
    size = size or (WIDTH if across > 1 else 4.6, (3.0, 2.9, 2.6)[across - 1] * rows)
    options |= {"figsize": size, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, across, **options)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, panel) in zip(axes.flat, panels):
        width = max(12, min(60, 84 // across))
        axis.set_title(textwrap.fill(title, width, break_on_hyphens=False))
        draw(axis, panel)
    if legend:
        handles = [Line2D([], [], **style) for style in legend.values()]
        columns = min(len(legend), max(1, int(WIDTH * 11 / (7 + max(map(len, legend))))))
        figure.legend(handles, [*legend], loc="outside upper center", ncols=columns)
    return figure


def _label(axis: Axes, x: "pd.Series[Any]", x_label: str, y_label: str, *, log: str) -> None:
    """Label the axes of a panel, y in the first column only, with ticks that do not collide.

    `log` names the axes that have a logarithmic scale: "", "x", "y" or "xy".
    """
    position = axis.get_subplotspec()
    first = position is None or position.is_first_col()
    scales = {f"{side}scale": "log" for side in log}
    axis.set(xlabel=x_label, ylabel=y_label if first else "", **scales)
    ticks = x.drop_duplicates().sort_values().tolist() if "x" in log else []
    few = len(ticks) <= FEW
    if ticks and (few or ticks[-1] < 100 * ticks[0]):
        _set_ticks(axis, FixedLocator(ticks) if few else LogLocator(subs=(1, 2, 5)))
        if few and sum(len(f"{tick:g}") for tick in ticks) > LONG:
            axis.tick_params(axis="x", rotation=45)


def _set_ticks(axis: Axes, locator: Locator) -> None:
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())


def _ends(values: "pd.Series[Any]") -> tuple[float, float]:
    interval = mean_interval(values)
    return interval.low, interval.high


def ratios(frame: Frame, titles: Mapping[str, tuple[str, str]]) -> Figure:
    """Draw ratios of times with their quartiles: a panel for each benchmark, a row a method.

    Args:
        frame: one row for each ratio: panel, method, network, ratio, low, high.
        titles: for each panel to draw, in order, its title and the label of its axis.
    """
    panels = [("", rows) for name in titles if len(rows := frame[frame["panel"] == name])]
    counts = [(rows["method"].nunique(), rows["network"].nunique()) for _, rows in panels]
    heights = [methods * max(1, networks / 3) + 2.5 for methods, networks in counts]

    def draw(axis: Axes, panel: Frame) -> None:
        title, x_label = titles[panel["panel"].iloc[0]]
        methods = list(dict.fromkeys(panel["method"]))
        networks = dict(zip(dict.fromkeys(panel["network"]), CYCLE))
        for n, (network, colour) in enumerate(networks.items()):
            rows = panel[panel["network"] == network]
            offset = (n - (len(networks) - 1) / 2) * 0.7 / max(3, len(networks))
            style: dict[str, Any] = {"fmt": "o", "ms": 4, "color": colour, "label": network}
            style["xerr"] = [rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]
            axis.errorbar(rows["ratio"], rows["method"].map(methods.index) + offset, **style)
        axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
        axis.set(title=title, xlabel=x_label, xscale="log")
        axis.set_yticks(range(len(methods)), methods)
        _set_ticks(axis, FixedLocator([1, 2, 3, 5, 10, 20, 50, 100, 200]))
        axis.invert_yaxis()
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))

    size = (WIDTH, 0.24 * sum(heights) + 0.4)
    return _arrange(panels, draw, across=1, size=size, height_ratios=heights)


def compare_with_kept(frame: Frame, kinds: Sequence[str]) -> Figure:
    """Draw the values of this machine against the kept ones, one panel for each chapter.

    Args:
        frame: one row for each value: panel, kept, here, agreement.
        kinds: values of `agreement`, the best first.
    """
    palette = dict(zip(kinds, (SKY, BLUE, ORANGE, GREY, BLACK), strict=True))

    def draw(axis: Axes, panel: Frame) -> None:
        panel = panel.sort_values("agreement", key=lambda column: column.map(list(kinds).index))
        smallest = float(panel["kept"].abs()[panel["kept"] != 0].quantile(0.05))
        axis.axline((0, 0), slope=1, color=GREY, linewidth=0.8, zorder=0)
        colours = [palette[kind] for kind in panel["agreement"]]
        axis.scatter(panel["kept"], panel["here"], 14, colours, linewidth=0)
        axis.set(xlabel="kept", ylabel="here")
        for set_scale, ticks in ((axis.set_xscale, axis.xaxis), (axis.set_yscale, axis.yaxis)):
            set_scale("symlog", linthresh=smallest)
            ticks.set_major_locator(FixedLocator(_few_powers(panel["kept"], smallest)))

    frame = frame[frame[["kept", "here"]].notna().all(axis=1)]
    legend = {kind: DOT | {"color": colour} for kind, colour in palette.items()}
    return _arrange(_split(frame, ["panel"]), draw, legend)


def _few_powers(values: "pd.Series[float]", smallest: float) -> list[float]:
    """Return zero and at most two powers of ten on each side, none near zero."""
    last = int(np.floor(np.log10(values.abs().max())))
    first = int(np.ceil(np.log10(smallest))) + 1
    powers = [10.0**n for n in {last, max(first, last - max(1, (last - first) // 2 + 1))}]
    negative = [-power for power in powers if values.min() < -power]
    return sorted([*negative, 0.0, *powers])


def matrix(values: Frame, numbers: Frame, sure: Frame, *, label: str, limit: float) -> Figure:
    """Draw a table as coloured cells: blue above zero, red below.

    Args:
        values: numbers that become colours; NaN has no cell.
        numbers: text in the cells.
        sure: whether a cell is certain; others are pale.
        label: label of the colour bar.
        limit: the value of the darkest colour.
    """
    if values.empty:
        return draw_notice()
    certain, levels = sure.to_numpy(bool), values.to_numpy(float)
    figure, axis = plt.subplots(figsize=(WIDTH, 1.0 + 0.3 * len(values)), layout="constrained")
    style: dict[str, Any] = {"vmin": -limit, "vmax": limit, "cmap": "RdBu", "linewidths": 0.5}
    style |= {"xticklabels": list(values), "yticklabels": list(values.index)}
    style |= {"annot": numbers, "fmt": "", "annot_kws": {"fontsize": 6.8}}
    bar = {"label": label, "shrink": 0.7}
    sns.heatmap(levels.clip(-limit, limit), cbar_kws=bar, ax=axis, **style)
    alphas: Any = np.where(certain, 1.0, 0.25).ravel()
    axis.collections[0].set_alpha(alphas)
    for text, clear in zip(axis.texts, certain[np.isfinite(levels)]):
        if not clear:
            text.set_color(GREY)
    axis.tick_params(length=0, labelsize=7.5)
    plt.setp(axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    plt.setp(axis.get_yticklabels(), rotation=0)
    return figure


def gain_and_cost(
    rows: Frame, *, gain_label: str, cost_label: str, highlighted: Collection[str] = ()
) -> Figure:
    """Draw the gain of methods against their cost, a named point with intervals for each.

    Args:
        rows: `method`, and `gain` and `cost` with their ends `..._low` and `..._high`.
        gain_label, cost_label: labels of the two axes.
        highlighted: methods to draw in blue; the others are grey.
    """

    def draw(axis: Axes, rows: Frame) -> None:
        # A single network has no interval.
        ends = "gain_low gain_high cost_low cost_high".split()
        rows = rows.assign(**{end: rows[end].fillna(rows[end[:4]]) for end in ends})
        spacing = 0.045 * (rows["gain_high"].max() - rows["gain_low"].min())
        left = rows["cost"] < rows["cost"].median()
        low, high = rows["cost_low"].min(), rows["cost_high"].max()
        for side, edge, half in (("right", low, rows[left]), ("left", high, rows[~left])):
            height = np.inf
            for row in half.sort_values("gain", ascending=False).to_dict("records"):
                colour = BLUE if row["method"] in highlighted else GREY
                axis.plot(row["cost"], row["gain"], "o", color=colour)
                axis.hlines(row["gain"], row["cost_low"], row["cost_high"], colour, linewidth=0.5)
                axis.vlines(row["cost"], row["gain_low"], row["gain_high"], colour, linewidth=0.5)
                height = min(height - spacing, row["gain"] + spacing)  # below the name before
                axis.plot([row["cost"], edge], [row["gain"], height], color=colour, linewidth=0.5)
                axis.text(edge, height, f" {row['method']} ", color=colour, va="center", ha=side)
        for line in (axis.axvline, axis.axhline):
            line(0, color=GREY, linewidth=0.7, zorder=0)
        room = 0.32 * (high - low) or 1.0  # for the names
        axis.set(xlabel=cost_label, ylabel=gain_label, xlim=(low - room, high + room))

    return _arrange(_split(rows, ()), draw, size=(WIDTH, 4.4))
