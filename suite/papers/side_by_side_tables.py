"""The matrix of methods and measures, the guide, and the agreement of measures."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence.results import Results
from suite.evidence.statistics import holm, mean_interval, t_test_p
from suite.papers.side_by_side import METHODS, Measure, strongest_allowed

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


def short_number(value: float) -> str:
    """Write a difference with two digits and a sign, without a leading zero.

    >>> short_number(0.1234), short_number(-0.00123), short_number(12.3)
    ('+.12', '−.0012', '+12')
    """
    text = f"{value:+.2g}" if abs(value) >= 1e-4 or value == 0 else f"{value:+.0e}"
    return text.replace("0.", ".", 1).replace("-", "−", 1)


def guide(
    cells: pd.DataFrame, measures: Mapping[str, Measure], steps: Mapping[str, float]
) -> pd.DataFrame:
    """Return for each measure the method that helps most, of those whose difference stands.

    Args:
        cells, measures: see `compared`.
        steps: time of a training step with a method, over one without.

    Returns:
        What is wanted, what to take for it at which strength, what to expect of it and what it
        costs, and what helps too; where nothing helps, it says so.
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
        if best["method"] in steps:
            row["a step takes"] = f"{steps[best['method']]:.2g} × plain"
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


def matrix(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws: measures in rows, methods in columns.

    Colours are standardised differences, numbers the differences themselves; what stands is sure.
    """
    names = [name for name in measures if name in set(cells["measure"])]
    methods = [method for method in METHODS if method in set(cells["method"])]
    cells = cells.assign(numbers=cells["difference"].map(short_number))
    cells = cells.rename(columns={"deviations": "values", "stands": "sure"})
    rows, columns = [measures[name].title for name in names], [SHORT[m] for m in methods]
    parts = {}
    for part in ("values", "numbers", "sure"):
        wide = cells.pivot(index="measure", columns="method", values=part).loc[names, methods]
        parts[part] = wide.set_axis(rows).set_axis(columns, axis="columns")
    return parts


def curves(rows: pd.DataFrame, measures: Mapping[str, Measure], names: list[str]) -> pd.DataFrame:
    """Return means over seeds along the strengths of each method, from none on.

    Returns:
        `method`, `x` (clean accuracy), `value` and `measure`, in the order of the strengths.
    """
    rows = rows[rows["status"] == "done"]
    means = rows.pivot_table("value", ["method", "strength"], "metric").reset_index()
    start = means[means["method"] == "none"]
    found = []
    for method, part in means[means["method"] != "none"].groupby("method"):
        line = pd.concat([start, part.sort_values("strength")])
        for name in names:
            points = {"x": line["accuracy"], "value": line[name]}
            labels = {"method": SHORT[str(method)], "measure": measures[name].title}
            found.append(pd.DataFrame(points).assign(**labels))
    return pd.concat(found, ignore_index=True)


def gains(cells: pd.DataFrame) -> pd.DataFrame:
    """Return what a method gains over all measures but clean accuracy, and what it costs of that.

    Returns:
        `method`, `gain` (mean, in standard deviations), `cost`, `low`, `high` (points of accuracy).
    """
    others = cells[~cells["measure"].isin(PAID)]
    gain = others.groupby("method", sort=False)["deviations"].mean()
    clean = cells[cells["measure"] == "accuracy"].set_index("method")
    points = 100 * clean[["difference", "low", "high"]].astype(float)
    frame = points.rename(columns={"difference": "cost"}).assign(gain=gain)
    return frame.rename(index=SHORT).rename_axis("method").reset_index()


def triangle(
    correlations: pd.DataFrame, measures: Mapping[str, Measure]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the part of `agreement` below the diagonal, and its numbers as text."""
    titles = [measures[str(name)].title for name in correlations]
    below = correlations.where(np.tri(len(titles), k=-1, dtype=bool))
    below = below.set_axis(titles).set_axis(titles, axis="columns").iloc[1:, :-1]
    return below, below.map(lambda value: "" if np.isnan(value) else f"{value:.1f}")
