"""Tables, sentences and curves of the chapter on importance landscapes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from reglib import total_variation
from suite.data import image_shape
from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.metrics import CORRUPTIONS, centre_to_rim
from suite.networks import build_network
from suite.papers.names import NAMES
from suite.papers.path_counts import pascal_row, path_counts
from suite.papers.pilcro import AS_IT_IS, COMPARED_WITH, NAMED, label

ALPHAS = (0.1, 1, 3, 10, 100)
MODELS = ["none", *(f"{penalty} {a}" for penalty in ("target", "curvature") for a in ALPHAS)]
# Metric and title of columns of the paper's Tables 1 and 2.
COLUMNS = {"top_1": ("accuracy", "accuracy"), "tv": ("tv", "TV"), "loss": ("cross_entropy", "loss")}
FLATNESS = ["accuracy", "tv", "noise", "tv_less_noise", "block_tv"]
FLATNESS += ["centre_to_rim", "target_distance"]
TITLES: dict[str, str] = NAMES["pilcro"]["titles"]
TITLES |= {f"robustness, {category}": category for category in CORRUPTIONS}
Arrays = Mapping[str, NDArray[Any]]
Model = str | tuple[str, str]  # a kind of model, or two that are compared

OF_PRETRAINED = [AS_IT_IS, *COMPARED_WITH]  # landscapes of networks that were not trained here


def select(
    table: pd.DataFrame, metric: str, data: str | None = None, model: str | None = None
) -> pd.DataFrame:
    """Return the rows of a metric, or of a category as in "robustness, blur", that have a value."""
    metric, _, category = metric.partition(", ")
    wanted = {"metric": metric, "category": category, "data": data, "model": model}
    wanted = {column: value for column, value in wanted.items() if value}
    return tables.select(table, status="done", **wanted).dropna(subset="value")


def data_sets(table: pd.DataFrame, metric: str = "accuracy", model: str = "none") -> list[str]:
    """Return the data sets for which a metric of a kind of model was measured."""
    return list(dict.fromkeys(select(table, metric, model=model)["data"]))


def measured(table: pd.DataFrame, metric: str, data: str, model: Model) -> str:
    """Write the mean of a metric, or the mean difference of two kinds of model, seed by seed."""
    digits = ".4f" if metric in ("tv", "noise", "tv_less_noise", "block_tv") else ".3f"
    rows = select(table, metric, data)
    if isinstance(model, str):
        of_model = rows[rows["model"] == model]
        means = of_model.groupby(["profile", "seed"])["value"].mean()
        if len(means) == 2:
            return f"{means.mean():{digits}} (n = 2)"
        return tables.mean_text(means, digits)
    rows = rows[rows["pair"].isin(["", *model]) | rows["pair"].isna()]
    if not set(model) <= set(rows["model"]):
        return "not run"
    gap = tables.paired_difference(rows, "model", *model, ["profile", "seed"])
    if gap.n < 3:
        return f"{gap.estimate:+{digits}} (n = {gap.n})".replace("-", "−") if gap.n else "not run"
    return tables.interval_text(gap, f"+{digits}")


def with_less_noise(table: pd.DataFrame) -> pd.DataFrame:
    """Add the metric "tv_less_noise": the TV of each landscape, less the noise in it."""
    keys = ["profile", "data", "network", "model", "seed"]
    noise = select(table, "noise").set_index(keys)["value"].rename("less")
    tv = select(table, "tv").join(noise, on=keys, how="inner")
    tv = tv.assign(metric="tv_less_noise", value=tv["value"] - tv.pop("less"))
    return pd.concat([table, tv], ignore_index=True)


def _mostly_noise(table: pd.DataFrame, data: str, model: Model) -> str:
    """Say so if more than half of the TV of a kind of model is noise."""
    of_model = {"data": data, "model": model if isinstance(model, str) else ""}
    tv, noise = (select(table, metric, **of_model)["value"].mean() for metric in ("tv", "noise"))
    return " (mostly noise: too few images)" if of_model["model"] and noise > tv / 2 else ""


def compare(
    table: pd.DataFrame, metrics: Sequence[str], data: Sequence[str], *models: Model
) -> pd.DataFrame:
    """Return metrics with 95% intervals, one row a data set and kind of model, or pair of them."""
    rows = []
    for name in data:
        for model in models:
            row = {"data": name_of(name)}
            row["models"] = model if isinstance(model, str) else " − ".join(model)
            values = {TITLES.get(m, m): measured(table, m, name, model) for m in metrics}
            if "tv" in metrics:
                values["TV"] += _mostly_noise(table, name, model)
            if set(values.values()) != {"not run"}:
                rows.append(row | values)
    return pd.DataFrame(rows)


def published_values(
    published: Mapping[str, Any], number: int, cropping: bool | None = None
) -> dict[str, dict[str, float]]:
    """Return a table of the paper: its values by column, by kind of model."""
    entry = published["tables"][number - 1]
    rows = [row for row in entry["rows"] if row.get("cropping") == cropping]
    models = [f"{row['penalty']} {row['alpha']}".replace("none 0", "none") for row in rows]
    values = [dict(zip(entry["columns"], row["values"])) for row in rows]
    return dict(zip(models, values))


def table_1(published: Mapping[str, Any], table: pd.DataFrame, data: str) -> pd.DataFrame:
    """Return published and measured values, one row a kind of model: Table 2 for ImageNet."""
    number, cropping = (2, None) if data == "imagenet" else (1, data.endswith("-cropped"))
    paper = published_values(published, number, cropping)
    here = set(select(table, "accuracy", data)["model"])
    rows = []
    for model in (m for m in MODELS if m in (here or paper)):
        row = {"model": model}
        for column, (metric, title) in COLUMNS.items():
            value = paper.get(model, {}).get(column)
            text = np.format_float_positional(value, min_digits=4) if value else "–"
            row[f"{title}, published"] = text
            if here:
                row[f"{title}, here"] = measured(table, metric, data, model)
        rows.append(row)
    return pd.DataFrame(rows)


def tables_3_and_4(
    published: Mapping[str, Any], table: pd.DataFrame, metric: str, models: Sequence[str]
) -> pd.DataFrame:
    """Return published ratios and measured differences, one row a category and kind of model."""
    paper = {"CIFAR-100 RC−": published_values(published, 3, False)}
    paper["CIFAR-100 RC+"] = published_values(published, 3, True)
    paper["ImageNet"] = published_values(published, 4)
    data = dict.fromkeys(select(table, metric)["data"])
    rows = []
    for category, model in ((c, m) for c in CORRUPTIONS for m in models):
        row = {"category": category, "model": f"{model} − none"}
        for title, values in paper.items() if metric == "robustness" else ():
            levels = [f"{category}_{level}" for level in range(1, 6)]
            gap = np.mean([values[model][at] - values["none"][at] for at in levels])
            row[f"published, {title}"] = f"{gap:+.3f}"
        for name in data:
            row[name_of(name)] = measured(table, f"{metric}, {category}", name, (model, "none"))
        rows.append(row)
    return pd.DataFrame(rows)


def as_it_is(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the flatness of networks that were not trained here, and of what decides theirs."""
    index = ["data", "network", "model"]
    wide = rows.pivot_table(index=index, columns="metric", values="value", sort=False)
    wide = wide[[m for m in FLATNESS if m in wide]].map("{:.3g}".format).reset_index()
    names = {name: wide[name].map(name_of) for name in ("data", "network")}
    return wide.assign(**names).replace("nan", "–").rename(columns=TITLES | {"model": "of"})


def printed_equation(published: Mapping[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy with equation 9 as printed, a sum, beside that with the mean."""
    paper = published_values(published, 1, False)
    rows = []
    for _, printed in select(table, "accuracy_printed").iterrows():
        mean = select(table, "accuracy", printed["data"], printed["model"])
        mean = mean[mean["seed"] == printed["seed"]]
        row = {"data": name_of(printed["data"]), "profile": printed["profile"]}
        row["α"] = f"{printed['alpha']:g}"
        row["accuracy, mean over positions"] = tables.mean_text(mean["value"])
        row["accuracy, sum as printed"] = f"{printed['value']:.3f}"
        published_accuracy = paper.get(printed["model"], {}).get("top_1")
        row["published, RC−"] = f"{published_accuracy:g}" if published_accuracy else "–"
        rows.append(row)
    return pd.DataFrame(rows)


def arrays_by_data(
    results: Sequence[Results], part: str
) -> dict[str, dict[str, list[NDArray[Any]]]]:
    """Return the arrays of a name such as "landscape", of all seeds, by data set and model."""
    arrays: dict[str, dict[str, list[NDArray[Any]]]] = {}
    for name, array in ((n, a) for r in results for n, a in r.arrays.items()):
        data, *model_and_seed, last = name.split("|")
        if last == part:
            model = model_and_seed[0] if model_and_seed else part
            arrays.setdefault(data, {}).setdefault(model, []).append(array)
    return arrays


def not_trained_here(
    landscapes: Mapping[str, Mapping[str, list[NDArray[Any]]]], trained: Mapping[str, Any]
) -> tuple[list[list[NDArray[Any]]], list[str]]:
    """Return a row of landscapes of networks of other data than those of `trained`, and names."""
    others = {data: maps for data, maps in landscapes.items() if data not in trained}
    found = [(name, maps[0]) for of_data in others.values() for name, maps in of_data.items()]
    return [[array for _, array in found]], [name_of(name) for name, _ in found]


def training_curves(
    results: Sequence[Results], table: pd.DataFrame, metric: str, models: Sequence[str]
) -> pd.DataFrame:
    """Return a metric after the early epochs and at the end of each training."""
    panels = [panel for r in results for panel in r.provenance["parameters"]["panels"]]
    last = select(table, metric)
    last = last.assign(epochs=last["data"].map({label(p): p["epochs"] for p in panels}))
    early = select(table, NAMED["early"][metric])
    rows = pd.concat([early, last[last["data"].isin(early["data"])]])
    return pd.concat([rows[rows["model"] == model] for model in models])


def ablation_curves(results: Sequence[Results]) -> pd.DataFrame:
    """Return the curves of all seeds: value against the share of replaced pixels."""
    counts, x = arrays_by_data(results, "counts"), "share of replaced pixels"
    return pd.concat(
        pd.DataFrame({"data": data, "model": model, x: k / k[-1], "value": curve})
        for data, models in arrays_by_data(results, "curve").items()
        for model, curves in models.items()
        for k, curve in zip(counts[data][model], curves)
    )


def shares_of_paths(depths: Sequence[int]) -> pd.DataFrame:
    """Return the shares of the paths of convolutions of width 3, in units of their sigma.

    The last curve is the normal density, to which they tend.
    """
    curves = []
    for depth in depths:
        sigma = math.sqrt(depth * 8 / 12)
        shares = np.array(pascal_row(depth, 3), dtype=float) / 3.0**depth
        positions = (np.arange(len(shares)) - depth) / sigma
        curve = {"position / σ": positions, "value": shares * sigma, "model": f"{depth} layers"}
        curves.append(pd.DataFrame(curve))
    grid = np.linspace(-4, 4, 200)
    normal = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    curves.append(pd.DataFrame({"position / σ": grid, "value": normal, "model": "normal"}))
    rows = pd.concat(curves)
    return rows[rows["position / σ"].abs() <= 4]


def squared_gradients(arrays: Arrays) -> pd.DataFrame:
    """Return squared gradients of convolutions at initialisation, and what the paths predict."""
    rows = []
    for kind in ("convolutions", "convolutions with ReLU"):
        mean, paths = (arrays[f"initialisation|{kind}|{part}"] for part in ("mean", "paths"))
        for model, curve in [("estimates", m[0]) for m in mean] + [("from the paths", paths[0])]:
            columns = {"data": kind, "model": model, "value": curve}
            rows.append(pd.DataFrame(columns).rename_axis("position").reset_index())
    return pd.concat(rows)


def theory_table(arrays: Arrays, table: pd.DataFrame) -> pd.DataFrame:
    """Return how near squared gradients at initialisation come to what the paths predict."""
    rows = []
    for kind, values in select(table, "path_correlation").groupby("network", sort=False)["value"]:
        parts = (arrays[f"initialisation|{kind}|{part}"] for part in ("mean", "error", "paths"))
        mean, error, paths = parts
        inside = np.abs(mean - paths) < 1.96 * error.clip(1e-300)
        row = {"network": name_of(kind)}
        row["95% bands that hold the prediction"] = f"{inside.mean():.0%}"
        row["mean / predicted mean"] = f"{mean.mean() / paths.mean():.2f}"
        row["correlation with the path counts"] = f"{values.mean():.3f} (least {values.min():.3f})"
        rows.append(row)
    return pd.DataFrame(rows)


def checkerboards(boards: Mapping[str, NDArray[Any]]) -> pd.DataFrame:
    """Return how far path counts of images of 224 x 224, with a mean of one, are from flat."""
    rows = []
    for name, board in boards.items():
        high, low = np.quantile(board[56:168, 56:168], [0.99, 0.01])
        row = {"network": name, "largest / mean": board.max()}
        row["99% / 1% quantile of the middle"] = high / low
        row["corner / mean"] = board[0, 0]
        unit = torch.from_numpy(board / np.sqrt((board**2).mean()))
        rows.append(row | {"TV": float(total_variation(unit))})
    return pd.DataFrame(rows)


def middles(table: pd.DataFrame, panels: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return how the middle outweighs the rim in residual networks, untrained and trained.

    Args:
        table: rows of one run.
        panels: those of its trainings.

    Returns:
        A row a panel of ResNets that was trained without penalty. Untrained are the paths of the
        network with seed 0 (`path_counts`), trained the landscapes of the table.
    """
    rows = []
    for panel in panels:
        trained = select(table, "centre_to_rim", label(panel), "none")
        trained = trained[(trained["epochs"] == 0) & (trained["network"] == "resnet")]
        if panel["network"] != "resnet" or "marked" in panel or trained.empty:
            continue
        shape, options = image_shape(panel["data"]), panel.get("network_options", {})
        untrained = build_network(panel["network"], shape, 10, options=options, seed=0)
        board = path_counts(untrained, shape, squared=True)[0]
        row = {"data": name_of(label(panel)), "untrained": float(centre_to_rim(board))}
        rows.append(row | {"trained": tables.mean_text(trained["value"], ".2f")})
    return pd.DataFrame(rows)


def location_maps(
    results: Sequence[Results], models: Sequence[str]
) -> tuple[list[list[NDArray[Any] | None]], list[list[str]]]:
    """Return mean accuracy by shift, a row a data set, and in words in the middle and least."""
    accuracy = arrays_by_data(results, "accuracy").values()
    maps = [[np.mean(by[m], axis=0) if m in by else None for m in models] for by in accuracy]
    notes = [
        [
            "" if m is None else f"middle {m[len(m) // 2, len(m) // 2]:.2f}\nleast {m.min():.2f}"
            for m in row
        ]
        for row in maps
    ]
    return maps, notes
