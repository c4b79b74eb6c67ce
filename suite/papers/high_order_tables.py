"""Tables, sentences and pictures of the chapter on high-order saliency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import class_names, load_data
from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.evidence.statistics import mean_interval, spearman
from suite.evidence.tables import mean_text
from suite.papers.high_order_saliency import ALL, OBJECTIVE, QUALITY
from suite.papers.names import NAMES
from suite.papers.second_order import MARGIN

# Networks that are not piecewise linear.
SMOOTH = ["efficientnet_lite0_smooth", "resnet_swish", "se_resnet50"]
TITLES: dict[str, str] = NAMES["high_order_saliency"]["titles"]
SWEPT = {"cafo": "CAFO", "caso": "CASO", "clipped": "clipped gradient"}
SURENESS = {"low": "at most 0.5", "between": "between", "high": "at least 0.95"}
ENDS = {"low": "at most 0.5", "high": "at least 0.95"}
LEAST = 3  # photographs of which a mean is shown
SHAPE = {"share": "share of λ₁²", "cosine": "|cos(g, v₁)|", "difference": "‖CASO − CAFO‖"}
QUALITY_COLUMNS = {name: name for name in QUALITY}
SCENE_COLUMNS = {"on_box": "on the object of a box", "on_pair": "on the named one of a pair"}
Rows = list[list[NDArray[Any] | None]]


def select(
    table: pd.DataFrame,
    metric: str,
    *,
    smooth: bool | None = False,
    classes: str = ALL,
    **where: Any,
) -> pd.DataFrame:
    """Return the rows of a metric, of the networks that are piecewise linear or of the smooth ones.

    With `smooth` None those of both, and with `classes` those where so many were kept (or where
    none could be left out). Further columns have the values of `where`.
    """
    rows = tables.select(table, metric=metric, **where)
    if smooth is not None:
        rows = rows[rows["network"].isin(SMOOTH) == smooth]
    return rows[rows["classes"].isna() | (rows["classes"] == classes)]


def main(result: Results, metric: str | None = None, **where: Any) -> pd.DataFrame:
    """Return the rows of the main network and photographs of a profile; see `select`."""
    p = result.provenance["parameters"]
    rows = result.frame
    rows = rows[(rows["network"] == p["network"]) & (rows["data"] == p["images"])]
    return rows if metric is None else select(rows, metric, **where)


def of_main(results: Sequence[Results], metric: str, **where: Any) -> pd.DataFrame:
    """Return those rows of several profiles."""
    return pd.concat([main(result, metric, **where) for result in results])


def by_margin(result: Results, metric: str) -> pd.DataFrame:
    """Return the main rows of a metric, with the margin in place of the network."""
    rows = main(result, metric)
    return rows.assign(network=[f"margin {margin:g}" for margin in rows["margin"]])


def by_classes(
    table: pd.DataFrame, metric: str, counts: Sequence[int], **where: Any
) -> pd.DataFrame:
    """Return the rows of the last profile, with the number of classes in place of the network.

    They are of the photographs for which there are all numbers of classes.
    """
    last = table[table["profile"] == table["profile"].iloc[-1]]
    parts = [select(last, metric, classes=str(count), **where) for count in counts]
    shown = set.intersection(*(set(part["image"]) for part in parts))
    network = parts[0]["network"].iloc[0]
    everything = select(last[last["network"] == network], metric, **where)
    parts = [*parts, everything[everything["data"] == parts[0]["data"].iloc[0]]]
    names = [*(f"{count} classes" for count in counts), "all classes"]
    return pd.concat(
        part[part["image"].isin(shown)].assign(network=name) for part, name in zip(parts, names)
    )


def what_was_measured(results: Sequence[Results]) -> Any:
    """Return how many photographs each network was shown at each profile, and how sure it was."""
    lines = []
    for result in results:
        rows = select(result.frame, "difference", smooth=None, margin=MARGIN)
        for (data, network), part in rows.groupby(["data", "network"], sort=False):
            line = {"profile": result.provenance["profile"], "network": name_of(network)}
            line |= {"photographs": name_of(data), "n": len(part)}
            right = result.frame[result.frame["metric"] == "accuracy"]
            right = right[(right["data"] == data) & (right["network"] == network)]
            line["classified right"] = f"{right['value'].mean():.0%}" if len(right) else "–"
            line["top probability, quartiles"] = _quartiles(part["confidence"])
            lines.append(line | {w: f"{(part['sure'] == sure).sum()}" for sure, w in ENDS.items()})
    return pd.DataFrame(lines).style.hide()


def _quartiles(values: "pd.Series[float]") -> str:
    return ", ".join(f"{value:.2f}" for value in values.quantile([0.25, 0.5, 0.75]))


def fractions(result: Results, limits: Mapping[str, tuple[str, float, int]], **where: Any) -> Any:
    """Return which share of photographs lies on one side of limits, by confidence.

    Args:
        result: of a profile.
        limits: for each column its metric, the limit, and 1 for above or -1 for below.
        where: of the rows, see `select`.
    """
    lines = []
    for (data, network), rows in result.frame.groupby(["data", "network"], sort=False):
        if network in SMOOTH:
            continue
        for sure, words in SURENESS.items():
            line = {"photographs, network": f"{name_of(data)}, {name_of(network)}"}
            line |= {"top probability": words}
            for column, (metric, limit, side) in limits.items():
                part = select(rows, metric, sure=sure, **where)
                line["n"] = f"{len(part)}"
                line[column] = f"{(side * part['value'] > side * limit).mean():.0%}"
            if int(line["n"]) >= LEAST:
                lines.append(line)
    return pd.DataFrame(lines).style.hide()


def quality_table(rows: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return means over photographs with half-widths of their 95% intervals, a row a method.

    Args:
        rows: of one profile.
        columns: metrics and what their columns are called.
    """
    groups = rows[rows["metric"].isin(columns)].groupby(["saliency", "metric"])
    cells = {key: mean_text(part["value"], ".3g", ".2g") for key, part in groups}
    counts = groups["value"].count().unstack().reindex(columns=list(columns))
    numbers = counts.apply(_distinct, axis=1)
    wide = pd.Series(cells).unstack().reindex(columns=list(columns)).astype(object).fillna("–")
    wide = wide.reindex([name for name in TITLES if name in wide.index])
    wide.insert(0, "n", numbers.reindex(wide.index))
    wide.index = [TITLES[name].replace("\n", " ") for name in wide.index]
    return wide.rename(columns=columns)


def _distinct(counts: "pd.Series[float]") -> str:
    """Write counts, each once, in their order."""
    return ", ".join(f"{count:.0f}" for count in dict.fromkeys(counts.dropna()))


def objective_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what the loss rises by along CASO and CAFO of the same norm, by confidence.

    Args:
        rows: of one profile, data set and network.
    """
    lines = []
    for sure, words in SURENESS.items():
        for margin in sorted(select(rows, "true_loss", smooth=None)["margin"].unique()):
            part = select(rows, "true_loss", smooth=None, margin=margin, sure=sure)
            part = part[part["saliency"].isin(["caso", "cafo"])]
            if len(part) < 2 * LEAST:
                continue
            wide = part.pivot_table(index="image", columns="saliency", values="value")
            norms = select(rows, "norm", smooth=None, margin=margin, sure=sure)
            first, second = wide["cafo"], wide["caso"]
            line = {"top probability": words, "margin of λ₂": f"{margin:g}", "n": len(wide)}
            line |= {"norm, median": f"{norms['value'].median():.2g}"}
            line |= {"loss gained, CAFO": f"{first.mean():.3g}", "CASO": f"{second.mean():.3g}"}
            line |= {"CASO ÷ CAFO": _ratio(second, first)}
            lines.append(line | {"CASO is ahead": f"{(second > first).mean():.0%}"})
    return pd.DataFrame(lines)


def _ratio(first: "pd.Series[float]", second: "pd.Series[float]") -> str:
    """Write the geometric mean of ratios with its interval, of pairs that are positive."""
    positive = (first > 0) & (second > 0)
    interval = mean_interval(np.log(first[positive] / second[positive]))
    middle, low, high = np.exp(interval[:3])
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def groups_table(results: Sequence[Results]) -> pd.DataFrame:
    """Return what the loss rises by along groups of as many values and of the same norm."""
    lines = []
    for result in results:
        for sure, words in SURENESS.items():
            rows = main(result, "group_loss", sure=sure)
            if rows["image"].nunique() < LEAST:
                continue
            wide = rows.pivot_table(index="image", columns="saliency", values="value")
            line = {"profile": result.provenance["profile"], "top probability": words}
            line |= {"n": f"{len(wide)}", "CASO": f"{wide['caso'].mean():.3g}"}
            for name in OBJECTIVE[1:]:
                line[TITLES[name].replace("\n", " ")] = f"{wide[name].mean():.3g}"
            clipped = _ratio(wide["caso"], wide["clipped_loss_gradient"])
            lines.append(line | {"CASO ÷ clipped loss gradient": clipped})
    return pd.DataFrame(lines)


def advantage(result: Results) -> pd.DataFrame:
    """Return by which factor CASO raises the true loss by more than CAFO, a row a photograph."""
    rows = by_margin(result, "true_loss")
    index = ["profile", "data", "network", "image", "confidence"]
    wide = rows.pivot_table(index=index, columns="saliency", values="value")
    wide = wide[(wide[["cafo", "caso"]] > 0).all(axis=1)].reset_index()
    order = {name: place for place, name in enumerate(dict.fromkeys(rows["network"]))}
    wide = wide.sort_values("network", key=lambda names: names.map(order))
    return wide.assign(value=wide["caso"] / wide["cafo"])


def expansion_table(results: Sequence[Results]) -> pd.DataFrame:
    """Return the errors of both expansions of the loss, by confidence."""
    lines = []
    for result in results:
        for sure, words in SURENESS.items():
            rows = main(result, "expansion_error", sure=sure)
            if len(rows) < 2 * LEAST:
                continue
            wide = rows.pivot_table(index="image", columns="saliency", values="value")
            true = main(result, "true_loss", margin=MARGIN, sure=sure, saliency="cafo")
            medians = {
                "true rise, median": true["value"],
                "error to first order, median": wide["first order"],
                "to second order": wide["second order"],
            }
            line = {"profile": result.provenance["profile"], "top probability": words}
            line |= {"n": len(wide)} | {n: f"{v.median():.3g}" for n, v in medians.items()}
            ratio = _ratio(wide["second order"], wide["first order"])
            lines.append(line | {"second ÷ first": ratio})
    return pd.DataFrame(lines)


def curved_table(result: Results) -> pd.DataFrame:
    """Return what the Hessian is like in smooth networks, and in the same ones with ReLU."""
    names = [*SMOOTH, "resnet", "efficientnet_lite0"]
    lines = []
    for (data, network), rows in result.frame.groupby(["data", "network"], sort=False):
        if network not in names:
            continue
        line = {"network": name_of(network), "photographs": name_of(data)}
        accuracy = select(rows, "accuracy", smooth=None)["value"]
        line["accuracy"] = f"{accuracy.mean():.2f}" if len(accuracy) else "–"
        for metric in ("cosine", "share", "difference"):
            column, part = SHAPE[metric], select(rows, metric, smooth=None, **_margin_of(metric))
            rho = spearman(part["confidence"], part["value"]) if len(part) >= LEAST else np.nan
            line["n"] = f"{len(part)}"
            line[column] = f"{part['value'].median():.2f} ({_quartiles(part['value'])})"
            line[f"{column}, ρ with confidence"] = f"{float(rho):.2f}"
        lines.append(line)
    return pd.DataFrame(lines)


def classes_table(result: Results) -> pd.DataFrame:
    """Return shares, cosines and distances of the same photographs with fewer classes."""
    counts = result.provenance["parameters"]["class_counts"]
    means = {}
    for metric in SHAPE:
        rows = by_classes(result.frame, metric, counts, **_margin_of(metric))
        for network, part in rows.groupby("network", sort=False):
            means[network, metric] = mean_text(part["value"], ".3f")
            means[network, "n"] = f"{len(part)}"
    wide = pd.Series(means).unstack().reindex(columns=["n", *SHAPE])
    wide = wide.reindex([*(f"{count} classes" for count in counts), "all classes"])
    return wide.rename(columns=SHAPE).rename_axis("classes").reset_index()


def _margin_of(metric: str) -> dict[str, Any]:
    return {"margin": MARGIN} if metric == "difference" else {}


def pictures(result: Results, name: str) -> tuple[list[NDArray[Any] | None], list[str]]:
    """Return the photographs of a kept figure, and the class and probability of each.

    A photograph that is not at hand is None.
    """
    a = result.arrays
    beside = zip(a[f"{name}_predicted"], a[f"{name}_confidence"], strict=True)
    labels = [f"{class_names()[c][:22]}\n{confidence:.2f}" for c, confidence in beside]
    try:
        pixels = load_data(result.provenance["parameters"]["images"]).test.images
    except ValueError:
        return [None] * len(labels), labels
    return [pixels[i].numpy() for i in a[f"{name}_index"]], labels


def pair_grid(result: Results) -> dict[str, Any]:
    """Return the two photographs of Figure 2 as `suite.plots.picture_grid` takes them."""
    photographs, labels = pictures(result, "pair")
    rows = [[p, *maps] for p, maps in zip(photographs, result.arrays["pair_maps"], strict=True)]
    return {"rows": rows, "labels": labels, "titles": ["photograph", "CAFO", "CASO", "difference"]}


def sweep_grid(result: Results) -> dict[str, Any]:
    """Return the maps of one photograph for each strength, the chosen ones marked."""
    a = result.arrays
    marked = {
        (row, column)
        for row, method in enumerate(["cafo", "caso"])
        for column in np.flatnonzero(np.isclose(a["sweep_lambda1"], a[f"sweep_{method}_chosen"][0]))
    }
    return {
        "rows": [[*a[f"sweep_{method}_maps"]] for method in SWEPT],
        "notes": [[f"zeros {share:.1%}" for share in a[f"sweep_{m}_sparsity"]] for m in SWEPT],
        "titles": [f"λ₁ = {strength:.0e}" for strength in a["sweep_lambda1"]],
        "labels": list(SWEPT.values()),
        "marked": marked,
    }


def comparison_grid(result: Results) -> dict[str, Any]:
    """Return the maps of all methods beside their photographs."""
    photographs, labels = pictures(result, "compared")
    methods = [name for name in TITLES if f"compared_{name}" in result.arrays]
    columns = [photographs, *(result.arrays[f"compared_{name}"] for name in methods)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    titles = ["photograph", *(TITLES[name] for name in methods)]
    return {"rows": rows, "labels": labels, "titles": titles}
