"""Figures of the book: one style, and a fixed colour for each method.

Frames are tidy: one row for each network (or image), with the columns `profile`, `data`, `network`
and the measured `value`. Each function returns a figure at most `WIDTH` inches wide.
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
from numpy.typing import NDArray

from suite.evidence import html
from suite.evidence.names import name_of
from suite.evidence.statistics import correlation, mean_interval, permutation_p, spearman
from suite.evidence.tables import mean_text
from suite.methods import BLACK, BLUE, BROWN, GREEN, GREY, METHODS, ORANGE, PINK, RED, SKY

CYCLE = [BLUE, ORANGE, GREEN, RED, PINK, SKY, BROWN, GREY]
# Profiles have colours of no method.
COLOURS = {method.name: method.colour for method in METHODS if method.colour}
COLOURS |= {"desktop": "#2b5c8a", "smoke": "#2b5c8a", "laptop": "#3f7f6b"}
COLOURS |= {"workstation": "#8a4b1c", "paper": "#5d3a7d"}
PANELS = ("data", "network", "profile")
WIDTH = 7.0
FEW, LONG = 6, 16  # so many different x get a tick each, slanted if longer than so many letters
MANY = 12  # with more different x, intervals are bands
BELOW: dict[str, Any] = {"loc": "outside lower center", "ncols": 4, "fontsize": 7}
Frame = pd.DataFrame


def set_style() -> None:
    """Set the style of all figures, and in a notebook show them as SVG, pictures as PNG.

    Two runs give the same bytes: the SVG has no date, and its identifiers a fixed salt.
    """
    rc = {"svg.fonttype": "none", "svg.hashsalt": "reglib", "legend.frameon": False}
    rc |= {f"axes.spines.{side}": False for side in ("right", "top")}
    rc |= {"axes.labelsize": 9, "axes.titlesize": 9, "figure.dpi": 100}
    sns.set_theme("paper", "ticks", palette=CYCLE, font_scale=1.03, rc=rc)
    shell: Any = get_ipython()
    if shell is not None:
        plt.switch_backend(plt.get_backend())  # its formatters first, then ours in their place
        for mime, form in (("image/svg+xml", "svg"), ("image/png", "png")):
            formatter = shell.display_formatter.formatters[mime]
            formatter.for_type(Figure, partial(_rendered, form=form))


def _rendered(figure: Figure, form: str) -> str | bytes | None:
    """Return a figure as SVG or PNG, or None if the other one is better for it."""
    if any(axis.images for axis in figure.axes) != (form == "png"):
        return None
    return print_figure(figure, form, metadata={"Date": None} if form == "svg" else None)


def value_against(
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
    level: str | None = None,
    published: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Figure:
    """Draw the mean of `value` against `x`, one line a method, with 95% intervals.

    Args:
        frame: one row a network (or point of a curve): `x`, value, `hue`, `panels`.
        x, x_label, y_label: column and labels.
        hue: column of methods; lines have the order of `names`, else of the frame.
        panels: columns; each combination of their values has a panel, and is its title.
        names: what the legend calls the values of `hue`.
        log: logarithmic axes: "x", "y", "xy" or "".
        dots: draw each row too.
        level: column, constant in each panel, drawn as a dashed line and named so.
        published: x and value of the paper by what they are of, by the title of their panel: black
            diamonds.
    """
    names = names or {}
    frame = frame[frame["value"].notna()].astype({hue: object})
    palette = _palette(frame[hue], names)

    def draw(axis: Axes, panel: Frame) -> None:
        few = frame[x].nunique() <= MANY
        look: dict[str, Any] = {"err_style": "bars", "marker": "o"} if few else {}
        _lines(axis, panel, x=x, hue=hue, palette=palette, errorbar=_ends, **look)
        if dots:
            colours = [palette[method] for method in panel[hue]]
            axis.scatter(panel[x], panel["value"], 12, colours, alpha=0.5, linewidth=0)
        if level is not None:
            axis.axhline(panel[level].iloc[0], color=GREY, linestyle="--", zorder=0)
        for name, at in (published or {}).get(axis.get_title().replace("\n", " "), {}).items():
            axis.plot(*at, "D", ms=5, color=BLACK, zorder=3)
            axis.annotate(name, at, (0, 7), ha="center", size=7, textcoords="offset points")
        _label(axis, panel[x], x_label, y_label, log=log)

    lines = {names.get(m, str(m)): Line2D([], [], color=c) for m, c in palette.items()}
    dashed = {level: Line2D([], [], color=GREY, linestyle="--")} if level else {}
    return _figure(_split(frame, panels), draw, lines | dashed)


def dots_against(
    frame: Frame,
    *,
    x: str,
    x_label: str,
    y_label: str,
    hue: str | None = None,
    size: str | None = None,
    panels: Sequence[str] = PANELS,
    hollow: str | None = None,
    with_trend: bool = True,
    log: str = "x",
) -> Figure:
    """Draw one dot a network: `value` against `x`, with 95% intervals of the mean over images.

    Args:
        frame: one row a network: value, std, n, status, profile, `x`, `panels`.
        x, x_label, y_label: column and labels.
        hue: column of methods; by default the colour is that of the profile.
        size: column that the size of the dots grows with.
        panels: columns; each combination of their values has a panel, and is its title.
        hollow: column of networks to draw hollow and to leave out of the trend.
        with_trend: write Spearman's correlation, its p-value and n into the title.
        log: logarithmic axes: "x", "y", "xy" or "".
    """
    frame = frame[(frame["status"] == "done") & frame["value"].notna()]
    if frame.empty:
        return not_run()
    methods = frame[hue] if hue else frame["profile"].str.partition(",")[0]
    frame, palette = frame.assign(method=methods.astype(object)), _palette(methods, {})

    def draw(axis: Axes, panel: Frame) -> None:
        colours: Any = [palette[method] for method in panel["method"]]
        sizes: Any = 18
        if size:
            sizes = np.interp(panel[size], [panel[size].min(), panel[size].max()], [12, 60])
        out = panel[hollow].astype(bool) if hollow else pd.Series(False, panel.index)
        error = 1.96 * panel["std"] / np.sqrt(panel["n"])
        axis.errorbar(panel[x], panel["value"], error, fmt="none", ecolor=colours, alpha=0.35)
        look: dict[str, Any] = {"c": np.where(out, "white", colours), "edgecolors": colours}
        axis.scatter(panel[x], panel["value"], sizes, **look, linewidths=0.33)
        if with_trend:
            axis.set_title(f"{axis.get_title()}\n{_trend(panel[~out], x)}")
        _label(axis, panel[x], x_label, y_label, log=log)

    return _figure(_split(frame, panels), draw, _round(palette) if hue else {})


def by_method(frame: Frame, method: str, y_label: str, names: Mapping[Any, str]) -> Figure:
    """Draw `value` by method: a dot a network, and means with 95% intervals.

    Args:
        frame: one row a network: profile (only the last is drawn), data, network, value, `method`.
        method, y_label: column and label.
        names: what the axis calls the methods, in its order.
    """
    frame = frame[frame["value"].notna() & frame[method].isin(list(names))]
    if frame.empty:
        return not_run()
    frame = frame[frame["profile"] == frame["profile"].iloc[-1]]
    palette = _palette(frame[method].astype(object), names)

    def draw(axis: Axes, panel: Frame) -> None:
        same: dict[str, Any] = {"x": method, "y": "value", "ax": axis, "order": list(palette)}
        sns.stripplot(panel, **same, hue=method, palette=palette, size=3.5, legend=False)
        look: dict[str, Any] = {"color": BLACK, "linestyle": "none", "marker": "_", "capsize": 0.15}
        sns.pointplot(panel, **same, **look, errorbar=_ends, err_kws={"linewidth": 1.2})
        axis.set_xticks(range(len(palette)), [names[name] for name in palette])
        axis.tick_params(axis="x", rotation=30)
        _label(axis, panel[method], "", y_label, log="")

    return _figure(_split(frame.astype({method: object}), PANELS), draw)


def dots(
    panels: Mapping[str, pd.DataFrame],
    names: Mapping[Any, str],
    *,
    method: str,
    x_label: str,
    published: Mapping[str, Mapping[Any, float]] | None = None,
    share: bool = True,
) -> Figure:
    """Draw means with 95% intervals, a row a method, a number beside each.

    Args:
        panels: rows by the title of their panel: `method`, `seed` and `value`, which is averaged
            within a seed first.
        names: what methods are called, in their order from the top; others are not drawn.
        method, x_label: column and label.
        published: numbers of the paper, drawn as black diamonds, by panel and method.
        share: values are shares, shown in percent.
    """
    factor, unit, digits = (100, "%", ".1f") if share else (1, "", ".2f")
    count = len(panels)
    shown = [
        name for name in names if any((rows[method] == name).any() for rows in panels.values())
    ]
    if not shown:
        return not_run()
    size = (WIDTH, 0.3 * len(shown) + 0.85)
    figure, axes = plt.subplots(1, count, figsize=size, squeeze=False, layout="constrained")
    palette = _palette(pd.Series(shown, dtype=object), names)
    for axis, (title, rows) in zip(axes.flat, panels.items()):
        printed = (published or {}).get(title, {})
        values = [*rows.loc[rows[method].isin(shown), "value"], *map(printed.get, printed)]
        room = 0.35 * (100 if share else np.ptp(values))
        for place, name in enumerate(shown):
            seeds = rows[rows[method] == name].groupby("seed")["value"].mean() * factor
            mean = mean_interval(seeds) if len(seeds) else None
            beside: dict[str, Any] = {"va": "center", "size": 8.5, "textcoords": "offset points"}
            if mean:
                colour, ends = palette[name], (mean.low, mean.high)
                axis.plot(mean.estimate, place, "o", ms=6, color=colour, zorder=2)
                axis.plot(ends, [place, place], linewidth=2, color=colour, zorder=2)
                text = mean_text(seeds, digits).replace("-", "−") + unit
                end = np.nanmax([mean.estimate, mean.high])
                mark = printed.get(name, end) * (factor if name in printed else 1)
                at = max(end, mark) if mark - end < room else end, place  # beyond a diamond
                axis.annotate(text, at, (6, 0), color=colour, **beside)
            elif name not in printed:
                axis.annotate("not run", (0, place), (6, 0), color="0.5", **beside)
            if name in printed:
                at = printed[name] * factor, place
                axis.plot(*at, "D", ms=5, color=BLACK, zorder=3)
                if mean is None or (share and not -22 < mean.estimate - at[0] < 48):  # room
                    axis.annotate(f"paper {at[0]:{digits}}{unit}", at, (6, 0), **beside)
        axis.set_title(title, loc="left", weight="bold")
        axis.set(xlabel=x_label, ylim=(len(shown) - 0.5, -0.5))
        axis.set_yticks(range(len(shown)), [names[name] for name in shown])
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
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    x: str,
    x_label: str,
    y_label: str,
    beyond: str = "",
) -> Figure:
    """Draw the median of each decade of `x` with its quartiles, a line each, in panels.

    Args:
        rows: `line`, `panel`, value, `x`, `beyond`.
        looks: colour and style by line; default: a colour each.
        x, x_label, y_label: column and labels; its axis is logarithmic.
        beyond: column, constant in a panel: what lies beyond is shaded.
    """
    rows = rows[rows["value"].notna()]
    rows = rows.assign(decade=np.floor(np.log10(rows[x])))
    looks = looks or {n: {"color": c} for n, c in zip(dict.fromkeys(rows["line"]), CYCLE)}
    looks = {line: {"marker": "o", "markersize": 3, **look} for line, look in looks.items()}

    def draw(axis: Axes, panel: Frame) -> None:
        for line, look in looks.items():
            decades = panel[panel["line"] == line].groupby("decade")
            low, middle, high = (decades["value"].quantile(q) for q in (0.25, 0.5, 0.75))
            at = decades[x].median()
            axis.plot(at, middle, **look)
            axis.fill_between(at, low, high, color=look["color"], alpha=0.15, linewidth=0)
        if beyond and np.isfinite(start := float(panel[beyond].iloc[0])):
            axis.axvspan(start, panel[x].max(), color="0.92", zorder=0)
            place: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "rotation": 90}
            axis.text(start, 0.03, "cut-off", size=7.5, color=GREY, **place)
        axis.tick_params(labelleft=True)  # on a phone panels stand alone
        _label(axis, panel[x], x_label, y_label, log="x")

    lines = {line: Line2D([], [], **look) for line, look in looks.items()}
    return _figure(_split(rows, ["panel"]), draw, lines, share={"sharex": True, "sharey": True})


def medians_as_html(rows: Frame, *, caption: str, **options: Any) -> str:
    """Return `medians` as pictures, see `as_html`."""
    alt = f"Lines of {options['y_label']} against {options['x_label']}."
    return as_html(medians(rows, **options), alt=alt, caption=caption)


def dots_with_bins(
    frame: Frame,
    *,
    x: str,
    x_label: str,
    y_label: str,
    panels: Sequence[str] = PANELS,
    bound: str | None = None,
    n_bins: int = 8,
) -> Figure:
    """Draw one dot an image: `value` against `x`, and the means of bins with equally many images.

    Args:
        frame: one row an image: profile, data, network, value, `x`.
        x, x_label, y_label: column and labels.
        panels: columns; each combination of their values has a panel, and is its title.
        bound: column of which a grey line shows the medians of bins.
        n_bins: bins, at least five images in each, whose means are drawn with 95% intervals.

    Returns:
        The figure; Spearman's correlation and n are in the titles.
    """

    def draw(axis: Axes, panel: Frame) -> None:
        panel = panel.sort_values(x)
        parts = np.array_split(panel[x], max(1, min(n_bins, len(panel) // 5)))
        centres = np.concatenate([np.full(len(part), part.mean()) for part in parts])
        (colour,) = _palette(panel["profile"], {}).values()
        look: dict[str, Any] = {"alpha": min(1, max(0.2, 60 / len(panel))), "linewidth": 0}
        axis.scatter(panel[x], panel["value"], 14, colour, **look)
        look = {"err_style": "bars", "marker": "s", "linestyle": "", "color": BLACK}
        sns.lineplot(panel.assign(x=centres), x="x", y="value", ax=axis, errorbar=_ends, **look)
        if bound:
            line = panel.groupby(centres)[bound].median()
            axis.plot(line, color=GREY, linewidth=1.5, zorder=0)
        rho = float(spearman(panel[x], panel["value"]))
        axis.set_title(f"{axis.get_title()}\nρ = {rho:.2f}, n = {len(panel)}".strip())
        _label(axis, panel[x], x_label, y_label, log="")

    return _figure(_split(frame, panels), draw)


def _palette(methods: "pd.Series[Any]", names: Mapping[Any, str]) -> dict[Any, str]:
    """Give each method its colour; those without one get the colours that are left.

    Of strengths of one method ("target 3", "target 10") the last has its colour.
    """
    present = dict.fromkeys(methods)
    order = [*(name for name in names if name in present), *(m for m in present if m not in names)]
    last = {str(m).partition(" ")[0]: m for m in order}
    colours = dict.fromkeys(order) | {m: COLOURS.get(word) for word, m in last.items()}
    colours |= {m: COLOURS[m] for m in order if m in COLOURS}
    spare = itertools.cycle([c for c in CYCLE if c not in colours.values()] or CYCLE)
    return {m: colour or next(spare) for m, colour in colours.items()}


def _lines(axis: Axes, panel: Frame, *, palette: Mapping[Any, str], **look: Any) -> None:
    """Draw the mean of `value`, one line a method, in the order of the palette."""
    look |= {"palette": palette, "hue_order": list(palette), "legend": False, "ax": axis}
    sns.lineplot(panel, y="value", mew=0, **look)


def _round(palette: Mapping[Any, str]) -> dict[str, Line2D]:
    """Return what a legend shows for dots."""
    dot = partial(Line2D, [], [], marker="o", linestyle="")
    return {str(method): dot(color=colour) for method, colour in palette.items()}


def _styles(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give each of many methods a marker and a colour: once filled, once hollow and dashed."""
    colours = sns.color_palette("colorblind", -(-len(methods) // 2))
    second = {"linestyle": "--", "markerfacecolor": "white"}
    looks = zip(itertools.cycle("osD^vPX*<>hp"), itertools.product(({}, second), colours))
    return {m: {"marker": k, "color": c} | more for m, (k, (more, c)) in zip(methods, looks)}


def _split(frame: Frame, columns: Sequence[str]) -> list[tuple[str, Frame]]:
    """Return the rows of each combination of values, with its title."""
    groups: Any = (
        frame.groupby(list(columns), sort=False) if columns and len(frame) else [((), frame)]
    )
    return [(", ".join(map(name_of, values)), panel) for values, panel in groups if len(panel)]


def _figure(
    panels: Sequence[tuple[str, Frame]],
    draw: Callable[[Axes, Frame], None],
    legend: Mapping[str, Line2D] | None = None,
    *,
    across: int | None = None,
    size: tuple[float, float] | None = None,
    share: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw panels with their titles, three in a row (four: two), and a legend below them."""
    if not panels:
        return not_run()
    across = across or (2 if len(panels) == 4 else min(3, len(panels)))
    rows = -(-len(panels) // across)
    size = size or (WIDTH if across > 1 else 4.6, (3.0, 2.9, 2.6)[across - 1] * rows)
    look: dict[str, Any] = {"figsize": size, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, across, **look, **(share or {}))
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, panel) in zip(axes.flat, panels):
        width = max(12, min(60, 84 // across))
        axis.set_title(textwrap.fill(title, width, break_on_hyphens=False))
        draw(axis, panel)
    if legend:
        columns = max(1, int(WIDTH * 11 / (7 + max(map(len, legend)))))
        look = {"loc": "outside lower center", "ncols": min(columns, len(legend))}
        figure.legend([*legend.values()], [*legend], **look)
    return figure


def _label(axis: Axes, x: "pd.Series[Any]", x_label: str, y_label: str, *, log: str) -> None:
    """Label an axis, the y only in the first column, with ticks that do not collide."""
    place = axis.get_subplotspec()
    first = place is None or place.is_first_col()
    scales = {f"{side}scale": "log" for side in log}
    axis.set(xlabel=x_label, ylabel=y_label if first else "", **scales)
    ticks = x.drop_duplicates().sort_values().tolist() if "x" in log else []
    few = len(ticks) <= FEW
    if ticks and (few or ticks[-1] < 100 * ticks[0]):
        _numbers(axis, FixedLocator(ticks) if few else LogLocator(subs=(1, 2, 5)))
        if few and sum(len(f"{tick:g}") for tick in ticks) > LONG:
            axis.tick_params(axis="x", rotation=45)


def _numbers(axis: Axes, locator: Locator) -> None:
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())


def _ends(values: "pd.Series[Any]") -> tuple[float, float]:
    interval = mean_interval(values)
    return interval.low, interval.high


def _trend(panel: Frame, x: str) -> str:
    if len(panel) < 3 or panel["value"].nunique() < 2:
        return f"n = {len(panel)}: too few for a trend"
    rho = correlation(panel[x], panel["value"]).estimate
    return f"ρ = {rho:.2f}, p = {permutation_p(panel[x], panel['value']):.2g}, n = {len(panel)}"


def ratios(frame: Frame, titles: Mapping[str, tuple[str, str]]) -> Figure:
    """Draw ratios of times as dots with their quartiles, one panel a benchmark, one row a method.

    Args:
        frame: one row a ratio: panel, method, network, ratio, low, high.
        titles: of the panels that are drawn, in order, with the label of the axis.
    """
    parts = {name: frame[frame["panel"] == name] for name in titles}
    panels = [("", part) for part in parts.values() if len(part)]
    counts = [(part["method"].nunique(), part["network"].nunique()) for _, part in panels]
    heights = [methods * max(1, networks / 3) + 2.5 for methods, networks in counts]

    def draw(axis: Axes, panel: Frame) -> None:
        title, x_label = titles[panel["panel"].iloc[0]]
        methods = list(dict.fromkeys(panel["method"]))
        networks = dict(zip(dict.fromkeys(panel["network"]), CYCLE))
        for n, (network, colour) in enumerate(networks.items()):
            rows = panel[panel["network"] == network]
            apart = (n - (len(networks) - 1) / 2) * 0.7 / max(3, len(networks))
            look: dict[str, Any] = {"fmt": "o", "ms": 4, "color": colour, "label": network}
            look["xerr"] = [rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]]
            axis.errorbar(rows["ratio"], rows["method"].map(methods.index) + apart, **look)
        axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
        axis.set(title=title, xlabel=x_label, xscale="log")
        axis.set_yticks(range(len(methods)), methods)
        _numbers(axis, FixedLocator([1, 2, 3, 5, 10, 20, 50, 100, 200]))
        axis.invert_yaxis()
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))

    size = (WIDTH, 0.24 * sum(heights) + 0.4)
    return _figure(panels, draw, across=1, size=size, share={"height_ratios": heights})


def kept_against_here(frame: Frame, kinds: Sequence[str]) -> Figure:
    """Draw values of this machine against kept ones, one panel a chapter.

    Args:
        frame: one row a value: panel, kept, here, agreement.
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
        for side, part in (("x", axis.xaxis), ("y", axis.yaxis)):
            getattr(axis, f"set_{side}scale")("symlog", linthresh=smallest)
            part.set_major_locator(FixedLocator(_few_powers(panel["kept"], smallest)))

    frame = frame[frame[["kept", "here"]].notna().all(axis=1)]
    return _figure(_split(frame, ["panel"]), draw, _round(palette))


def _few_powers(values: "pd.Series[float]", smallest: float) -> list[float]:
    """Return zero and at most two powers of ten on each side, none near zero."""
    last = int(np.floor(np.log10(values.abs().max())))
    first = int(np.ceil(np.log10(smallest))) + 1
    powers = [10.0**n for n in {last, max(first, last - max(1, (last - first) // 2 + 1))}]
    negative = [-power for power in powers if values.min() < -power]
    return sorted([*negative, 0.0, *powers])


def picture_grid(
    rows: Sequence[Sequence[NDArray[Any] | None]],
    *,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
    marked: Collection[tuple[int, int]] = (),
    scale: tuple[float, float] | None = None,
    scale_label: str | None = None,
    side: float = 1.4,
) -> Figure:
    """Draw photographs (3, H, W) and maps (H, W) in rows.

    Args:
        rows: uint8 photographs, uint8 maps (black is zero), and maps of real numbers: with `scale`
            by one colour bar, otherwise each scaled to its largest absolute value (red positive,
            blue negative, white zero). None for a picture that is not available.
        titles, labels: of the columns and the rows.
        notes: text below each picture, rows as in `rows`.
        marked: (row, column) of pictures that get a green frame.
        scale: values at the ends of the colour bar of maps of real numbers.
        scale_label: label of that bar.
        side: of a picture, in inches; less where there are many.
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
            axis.set_xlabel(_wrapped(notes[r][c], side))
        if (r, c) in marked:
            axis.spines[:].set(color=GREEN, linewidth=3)
    for axis, title in zip(axes[0], titles):
        axis.set_title(_wrapped(title, side))
    for axis, label in zip(axes[:, 0], labels):
        axis.set_ylabel(_wrapped(label, side))
    scaled = [i for axis in axes.flat for i in axis.images if scale and i.get_clim() == scale]
    if scaled:
        figure.colorbar(scaled[0], ax=axes, label=scale_label, aspect=30)
    return figure


def _show(axis: Axes, picture: NDArray[Any], scale: tuple[float, float] | None) -> None:
    # Each pixel is a square, unless the picture has more of them than there is room for.
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


def _wrapped(text: str, inches: float) -> str:
    return "\n".join(textwrap.fill(line, int(15 * inches)) for line in text.splitlines())


def as_bytes(figure: Figure, form: str = "png", **options: Any) -> bytes:
    """Return a figure as a file, and close it; two runs give the same bytes."""
    metadata = {"Date": None} if form == "svg" else None
    data = print_figure(figure, form, metadata=metadata, **options)
    plt.close(figure)
    return data.encode() if isinstance(data, str) else data


def as_html(*figures: Figure, alt: str, caption: str = "") -> str:
    """Return figures as pictures, one a panel, which a narrow screen puts below each other."""
    files = [file for figure in figures for file in _panels(figure)]
    return html.picture(*files, alt=alt, caption=caption, form="svg")


def _panels(figure: Figure) -> list[bytes]:
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # as it is now, whatever part is saved
    parts = [(part, part.get_tightbbox()) for part in (*figure.axes, *figure.legends)]
    inches, files = figure.dpi_scale_trans.inverted(), []
    for part, box in parts:
        for legend in figure.legends:
            legend.set_visible(legend is part)
        if box is not None:  # an axis that is on
            panel = box.padded(3).transformed(inches)
            files.append(as_bytes(figure, "svg", bbox_inches=panel))
    return files


def columns_as_html(
    rows: Sequence[Sequence[NDArray[Any] | None]],
    *,
    titles: Sequence[str],
    notes: Sequence[Sequence[str]],
    alt: str,
    caption: str = "",
) -> str:
    """Return the columns of a `picture_grid` as pictures: four side by side, two on a phone."""
    columns = zip(zip(*rows, strict=True), titles, zip(*notes, strict=True), strict=True)
    files = []
    for part, title, under in columns:
        column = [[picture] for picture in part], [[note] for note in under]
        figure = picture_grid(column[0], titles=[title], notes=column[1], side=1.45)
        figure.set_size_inches(1.55, figure.get_figheight())
        files.append(as_bytes(figure, bbox_inches=None))
    return html.picture(*files, alt=alt, caption=caption)


def saliency_grid(
    images: NDArray[np.float32] | None,
    maps: Mapping[str, NDArray[np.float32]],
    titles: Sequence[str],
) -> Figure:
    """Draw images in the first column and their saliency maps, each on its own scale, beside them.

    Args:
        images: (B, C, H, W); None for maps alone.
        maps: by title of the column, each (B, 1, H, W).
        titles: of the images, B of them.
    """
    rows = [[values[n, 0] for values in maps.values()] for n in range(len(titles))]
    if images is None:
        return picture_grid(rows, titles=list(maps), labels=titles)
    low, high = images.min(), images.max()
    pictures = (255 * (images - low) / (high - low)).round().astype(np.uint8)
    rows = [[image.squeeze(), *row] for image, row in zip(pictures, rows, strict=True)]
    return picture_grid(rows, titles=["image", *maps], labels=titles)


def matrix(
    values: Frame, numbers: Frame, *, label: str, limit: float, sure: Frame | None = None
) -> Figure:
    """Draw a table as coloured cells: blue above zero, red below.

    Args:
        values: that the colours stand for; one that is not a number has no cell.
        numbers: text in the cells.
        label: of the colours.
        limit: the value of the darkest colour.
        sure: cells that are not sure are pale; None if all are.
    """
    if values.empty:
        return not_run()
    certain = np.ones(values.shape, bool) if sure is None else sure.to_numpy(bool)
    levels = values.to_numpy(float)
    figure, axis = plt.subplots(figsize=(WIDTH, 1.0 + 0.3 * len(values)), layout="constrained")
    look: dict[str, Any] = {"vmin": -limit, "vmax": limit, "cmap": "RdBu", "linewidths": 0.5}
    look |= {"xticklabels": list(values), "yticklabels": list(values.index)}
    bar = {"label": label, "shrink": 0.7}
    sns.heatmap(levels.clip(-limit, limit), cbar_kws=bar, ax=axis, **look)
    alphas: Any = np.where(certain, 1.0, 0.25).ravel()
    axis.collections[0].set_alpha(alphas)
    for (row, column), level in np.ndenumerate(levels):
        if np.isfinite(level):
            dark = certain[row, column] and abs(level) > 0.6 * limit
            colour = "white" if dark else BLACK if certain[row, column] else GREY
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.8}
            text = str(numbers.iloc[row, column])
            axis.text(column + 0.5, row + 0.5, text, color=colour, **place)
    axis.tick_params(length=0, labelsize=7.5)
    plt.setp(axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    plt.setp(axis.get_yticklabels(), rotation=0)
    return figure


def trade_offs(rows: Frame, *, x_label: str, most: float) -> Figure:
    """Draw measures against what is paid for them, one line a method, from one common point.

    Args:
        rows: `measure`, `method`, `x`, `value`, in the order of the lines.
        x_label: of what is paid.
        most: what is drawn of it below the common point.
    """
    styles = _styles(list(dict.fromkeys(rows["method"])))

    def draw(axis: Axes, panel: Frame) -> None:
        start = panel.iloc[0]
        for method, style in styles.items():
            line = panel[panel["method"] == method]
            line = line[line["x"] >= line["x"].iloc[0] - most]
            axis.plot(line["x"], line["value"], **style, markersize=3.5, linewidth=0.9)
        axis.plot(start["x"], start["value"], "+", color=BLACK, markersize=11, zorder=5)
        axis.axvline(start["x"] - 0.01, color=GREY, linewidth=0.7, linestyle=":")
        axis.set(title="", xlabel=x_label, ylabel=start["measure"])

    panels = _split(rows, ["measure"])
    figure = _figure(panels, draw, across=2, size=(WIDTH, 2.6 * -(-len(panels) // 2) + 0.7))
    lines = [Line2D([], [], **style, markersize=3.5, linewidth=0.9) for style in styles.values()]
    figure.legend(lines, list(styles), **BELOW)
    return figure


def gain_and_cost(
    rows: Frame, *, gain_label: str, cost_label: str, own: Collection[str] = ()
) -> Figure:
    """Draw what methods gain against what they cost, a named point with both intervals a method.

    Args:
        rows: `method`, and `gain` and `cost` with their ends `..._low` and `..._high`.
        gain_label, cost_label: of the two axes.
        own: methods that are blue; the others are grey.
    """

    def draw(axis: Axes, rows: Frame) -> None:
        # One network of each has no interval.
        ends = "gain_low gain_high cost_low cost_high".split()
        rows = rows.assign(**{end: rows[end].fillna(rows[end[:4]]) for end in ends})
        apart = 0.045 * (rows["gain_high"].max() - rows["gain_low"].min())
        left = rows["cost"] < rows["cost"].median()
        low, high = rows["cost_low"].min(), rows["cost_high"].max()
        for side, edge, part in (("right", low, rows[left]), ("left", high, rows[~left])):
            at = np.inf
            for row in part.sort_values("gain", ascending=False).to_dict("records"):
                colour = BLUE if row["method"] in own else GREY
                gain, cost = (
                    [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
                    for name in ("gain", "cost")
                )
                look: dict[str, Any] = {"color": colour, "elinewidth": 0.5, "fmt": "o"}
                axis.errorbar(row["cost"], row["gain"], gain, cost, **look)
                at = min(at - apart, row["gain"] + apart)  # of the name, below the one before
                axis.plot([row["cost"], edge], [row["gain"], at], color=colour, linewidth=0.5)
                axis.text(edge, at, f" {row['method']} ", color=colour, va="center", ha=side)
        for line in (axis.axvline, axis.axhline):
            line(0, color=GREY, linewidth=0.7, zorder=0)
        room = 0.32 * (high - low) or 1.0  # for the names
        axis.set(xlabel=cost_label, ylabel=gain_label, xlim=(low - room, high + room))

    return _figure(_split(rows, ()), draw, size=(WIDTH, 4.4))


def not_run(reason: str = "not run at the profiles that are shown") -> Figure:
    """Draw a figure that only says why there is no figure."""
    figure, axis = plt.subplots(figsize=(5.7, 1.2), layout="constrained")
    axis.text(0.5, 0.5, reason, ha="center", va="center", color=GREY)
    axis.set_axis_off()
    return figure
