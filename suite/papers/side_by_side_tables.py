"""The matrix of methods and measures, the guide, and the agreement of measures."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.evidence.results import Results
from suite.evidence.statistics import holm, mean_interval, t_test_p
from suite.papers.side_by_side import METHODS, Measure, strongest_allowed
from suite.plots import COLOURS, GREY, WIDTH

# Of a cell: what is compared with no method, over the seeds that both have.
CELL = "measure method strength base mean difference low high n p p_holm deviations stands".split()
# What the guide is not asked for, since it is what is paid.
PAID = ("accuracy",)
SHORT = {
    "input_gradient": "input gradient",
    "finite_difference": "finite differences",
    "logit_gradient": "label's logit",
    "density": "marginal density",
    "cure": "CURE",
    "target": "landscape target",
    "curvature": "landscape curvature",
    "l1": "L1 on class maps",
    "top_gap": "Top-GAP with L1",
    "softplus": "SoftPlus",
    "noise": "noise",
    "adversarial": "PGD training",
}


def compared(rows: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Compare each method at its chosen strength with none, measure by measure, over seeds.

    Args:
        rows: of one panel and profile.
        measures: of that panel.

    Returns:
        One row a cell, with the columns `CELL`: `deviations`, the difference in standard deviations
        of all networks of the panel, positive where it is better; `stands`, whether it does after
        Holm's adjustment for all cells.
    """
    rows = rows[(rows["status"] == "done") & rows["metric"].isin([*measures])]
    spread = rows.groupby("metric")["value"].std()
    wide = rows[rows["chosen"]].pivot_table("value", ["metric", "method"], "seed")
    strengths = rows[rows["chosen"]].groupby("method")["strength"].first()
    cells = []
    for name, measure in measures.items():
        for method in METHODS:
            if method == "none" or (name, method) not in wide.index:
                continue
            pair = wide.loc[[(name, "none"), (name, method)]].dropna(axis="columns")
            base, values = pair.to_numpy()
            gap = mean_interval(values - base)
            cell = {"measure": name, "method": method, "strength": strengths[method]}
            cell |= {"base": base.mean(), "mean": values.mean(), "n": gap.n}
            cell |= {"difference": gap.estimate, "low": gap.low, "high": gap.high}
            cell |= {"deviations": measure.better * gap.estimate / (spread[name] or 1.0)}
            cells.append(cell | {"p": t_test_p(values - base)})
    frame = pd.DataFrame(cells).reindex(columns=CELL)
    tested = frame["p"].notna()
    frame.loc[tested, "p_holm"] = holm(frame.loc[tested, "p"].tolist())
    return frame.assign(stands=frame["p_holm"].astype(float) < 0.05)


def matrix(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> Figure:
    """Draw the cells: colour by the standardised difference, the difference itself as a number."""
    table = cells.pivot(index="measure", columns="method")
    names = [name for name in measures if name in table.index]
    methods = [method for method in METHODS if method in set(cells["method"])]
    colours = table["deviations"].loc[names, methods].astype(float)
    stands = table["stands"].loc[names, methods].astype(bool)
    differences = table["difference"].loc[names, methods]
    figure, axis = plt.subplots(figsize=(WIDTH, 0.8 + 0.3 * len(names)), layout="constrained")
    sns.heatmap(
        colours.clip(-3, 3),
        vmin=-3,
        vmax=3,
        cmap="RdBu",
        linewidths=0.5,
        cbar_kws={"label": "better, in standard deviations", "shrink": 0.6},
        ax=axis,
    )
    mesh = axis.collections[0]
    mesh.set_alpha(np.where(stands.to_numpy(), 1.0, 0.25).ravel().tolist())
    for row, name in enumerate(names):
        for column, method in enumerate(methods):
            sure = bool(stands.loc[name, method])
            dark = sure and abs(colours.loc[name, method]) > 1.8
            axis.text(
                column + 0.5,
                row + 0.5,
                short_number(differences.loc[name, method]),
                ha="center",
                va="center",
                fontsize=6.2,
                color="white" if dark else "black" if sure else GREY,
            )
    axis.set_yticklabels([measures[name].title for name in names], rotation=0, fontsize=7.5)
    axis.set_xticklabels([SHORT[m] for m in methods], rotation=40, ha="right", fontsize=7.5)
    axis.set(xlabel="", ylabel="")
    axis.tick_params(length=0)
    return figure


def short_number(value: float) -> str:
    """Write a difference with two digits and a sign, without a leading zero.

    >>> short_number(0.1234), short_number(-0.00123), short_number(12.3)
    ('+.12', '−.0012', '+12')
    """
    text = f"{value:+.2g}" if abs(value) >= 1e-4 or value == 0 else f"{value:+.0e}"
    return text.replace("0.", ".", 1).replace("-", "−", 1)


def guide(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Return for each measure the method that helps most, of those whose difference stands.

    Returns:
        `wanted`, `take`, `expected`, `also costs` and `others`; where nothing helps, `take` says
        so.
    """
    accuracy = cells[cells["measure"] == "accuracy"].set_index("method")["difference"]
    rows = []
    for name, measure in measures.items():
        if name in PAID:
            continue
        of_measure = cells[cells["measure"] == name]
        helping = of_measure[of_measure["stands"] & (of_measure["deviations"] > 0)]
        helping = helping.sort_values("deviations", ascending=False)
        wanted = f"{'higher' if measure.better > 0 else 'lower'} {measure.title}"
        if helping.empty:
            rows.append({"if you want": wanted, "take": "nothing here: no difference stands"})
            continue
        best = helping.iloc[0]
        ends = f"{best['difference']:+.2g} [{best['low']:+.2g}, {best['high']:+.2g}]"
        row = {
            "if you want": wanted,
            "take": f"{METHODS[best['method']]}, {best['strength']:.3g}",
            "expect": f"{best['base']:.3g} → {best['mean']:.3g} ({ends})",
            "clean accuracy": f"{100 * accuracy[best['method']]:+.1f} points",
        }
        others = [SHORT[m] for m in helping["method"][1:4]]
        rows.append(row | {"also help": ", ".join(others) or "no other"})
    return pd.DataFrame(rows).fillna("")


def harm(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> str:
    """Say which measures each method makes worse, of differences that stand."""
    worse = cells[cells["stands"] & (cells["deviations"] < 0)]
    parts = [
        f"{SHORT[str(method)]} ({', '.join(measures[name].title for name in part['measure'])})"
        for method, part in worse.groupby("method", sort=False)
    ]
    return "; ".join(parts) if parts else "none"


def agreement(rows: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Return the rank correlations of measures, each turned so that more is better.

    The networks are those of every method, strength and seed.
    """
    rows = rows[(rows["status"] == "done") & rows["metric"].isin([*measures])]
    wide = rows.pivot_table("value", ["method", "strength", "seed"], "metric")
    wide = wide[[name for name in measures if name in wide]]
    return (wide * [measures[str(name)].better for name in wide]).corr("spearman")


def agreement_figure(correlations: pd.DataFrame, measures: Mapping[str, Measure]) -> Figure:
    """Draw `agreement`, its lower triangle."""
    titles = [measures[str(name)].title for name in correlations]
    hidden: NDArray[np.bool_] = np.triu(np.ones(correlations.shape, bool))
    figure, axis = plt.subplots(figsize=(WIDTH, WIDTH * 0.82), layout="constrained")
    sns.heatmap(
        correlations.to_numpy(),
        mask=hidden,
        vmin=-1,
        vmax=1,
        cmap="RdBu",
        annot=True,
        fmt=".1f",
        annot_kws={"fontsize": 6.2},
        cbar_kws={"label": "rank correlation", "shrink": 0.6},
        linewidths=0.5,
        ax=axis,
        xticklabels=titles,
        yticklabels=titles,
    )
    axis.tick_params(length=0, labelsize=7.5)
    plt.setp(axis.get_xticklabels(), rotation=40, ha="right")
    axis.set(xlabel="", ylabel="")
    return figure


def pairs_of_measures(
    correlations: pd.DataFrame, measures: Mapping[str, Measure], least: float = 0.7
) -> tuple[str, str]:
    """Name the pairs of measures that agree, and those that contradict each other."""
    found: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
    names = [str(name) for name in correlations]
    table = correlations.to_numpy()
    for i, first in enumerate(names):
        for j, second in enumerate(names[:i]):
            value = float(table[i, j])
            if abs(value) >= least:
                both = f"{measures[second].title} and {measures[first].title} ({value:.2f})"
                found[value > 0].append((abs(value), both))
    same, against = (
        "; ".join(text for _, text in sorted(found[side], reverse=True)) or "none"
        for side in (True, False)
    )
    return same, against


def trade_off(rows: pd.DataFrame, measures: Mapping[str, Measure], names: Sequence[str]) -> Figure:
    """Draw measures against clean accuracy: means over seeds, a line a method."""
    rows = rows[rows["status"] == "done"]
    means = rows.pivot_table("value", ["method", "strength"], "metric", sort=False)
    size = (WIDTH, 2.9 * -(-len(names) // 2) + 0.6)
    figure, axes = plt.subplots(-(-len(names) // 2), 2, figsize=size, layout="constrained")
    start = means.loc["none"].iloc[0]
    lines: dict[str, Any] = {}
    for axis, name in zip(np.ravel(axes), names, strict=False):
        for number, method in enumerate(SHORT):
            if method not in means.index:
                continue
            of_method = means.loc[method].sort_index()
            x = [start["accuracy"], *of_method["accuracy"]]
            y = [start[name], *of_method[name]]
            style = {"marker": "osD^vPX*<>hp"[number], "markersize": 3.5, "linewidth": 0.9}
            (lines[SHORT[method]],) = axis.plot(x, y, color=_colour(number), **style)
        axis.plot(start["accuracy"], start[name], "k+", markersize=10)
        axis.axvline(start["accuracy"] - 0.01, color=GREY, linewidth=0.7, linestyle=":")
        axis.set(xlabel="clean accuracy", ylabel=measures[name].title)
        axis.set_xlim(left=max(axis.get_xlim()[0], start["accuracy"] - 0.15))
    for axis in np.ravel(axes)[len(names) :]:
        axis.remove()
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=7)
    return figure


def _colour(number: int) -> Any:
    return sns.color_palette("husl", len(SHORT))[number]


def gain_and_cost(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> Figure:
    """Draw what each method gains, a mean over measures, against the clean accuracy it costs."""
    others = cells[~cells["measure"].isin(PAID)]
    gains = others.groupby("method", sort=False)["deviations"].mean()
    clean = cells[cells["measure"] == "accuracy"].set_index("method")
    figure, axis = plt.subplots(figsize=(WIDTH, 3.6), layout="constrained")
    for method, gain in gains.items():
        of = clean.loc[str(method)]
        x = 100 * of["difference"]
        ends = [[x - 100 * of["low"]], [100 * of["high"] - x]]
        axis.errorbar(x, gain, xerr=ends, color=COLOURS.get(str(method), GREY), marker="o")
        axis.annotate(SHORT[str(method)], (x, gain), (4, 4), textcoords="offset points", fontsize=8)
    axis.axhline(0, color=GREY, linewidth=0.7)
    axis.set(xlabel="change of clean accuracy, points", ylabel="mean gain, standard deviations")
    return figure


def choice(rows: pd.DataFrame) -> pd.DataFrame:
    """List the strengths of each method, what each costs, and which one is allowed and chosen."""
    allowed = strongest_allowed(rows)
    rows = rows[rows["metric"] == "choice"]
    means = rows.groupby(["method", "strength"], sort=False)["value"].mean()
    plain = means[("none", 0.0)]
    chosen = rows[rows["chosen"]].groupby("method")["strength"].first()
    listed = []
    for method in METHODS:
        if method == "none" or method not in means.index:
            continue
        costs = [f"{s:.3g}: {100 * (v - plain):+.1f}" for s, v in means[method].items()]
        row = {"method": METHODS[method], "strength: points of accuracy": "; ".join(costs)}
        row["strongest allowed"] = f"{allowed[method]:.3g}" if method in allowed else "none"
        listed.append(row | {"compared at": f"{chosen[method]:.3g}" if method in chosen else "-"})
    return pd.DataFrame(listed)


def map_grid(
    results: Results, per_row: int = 7
) -> tuple[list[list[NDArray[Any] | None]], list[list[str]]]:
    """Return images and maps of all methods of the first panel, in rows, and what they are called.

    A map is on a scale of its own, up to its 99th percentile.
    """
    names = [name.rsplit("|", 1)[0] for name in results.arrays if name.endswith("|none|maps")]
    data = names[0].split("|")[0]
    kinds = [m for m in METHODS if f"{data}|{m}|maps" in results.arrays]
    images = results.arrays[f"{data}|none|images"]
    grid: list[list[NDArray[Any] | None]] = []
    notes = []
    for index, image in enumerate(images):
        pictures: list[NDArray[Any] | None] = [(255 * image.squeeze()).round().astype(np.uint8)]
        for kind in kinds:
            values = results.arrays[f"{data}|{kind}|maps"][index, 0].astype(float)
            top = np.percentile(np.abs(values), 99) or 1.0
            pictures.append(np.clip(values / top, -1, 1))
        titles = ["image", *(SHORT.get(kind, "none") for kind in kinds)]
        for start in range(0, len(pictures), per_row):
            grid.append(pictures[start : start + per_row])
            notes.append(titles[start : start + per_row])
    return grid, notes
