"""Tables, sentences and curves of the chapter on importance landscapes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from reglib import total_variation
from reglib.landscape import scaled_norm
from suite.data import image_shape
from suite.evidence import quote, tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.metrics import CORRUPTIONS
from suite.networks import build_network
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts
from suite.papers.pilcro import AS_IT_IS, COMPARED_WITH, label

CIFAR = "cifar10-jpeg"
ALPHAS = (0.1, 1, 3, 10, 100)
MODELS = ["none", *(f"{penalty} {a}" for penalty in ("target", "curvature") for a in ALPHAS)]
FLATNESS = "accuracy tv noise tv_less_noise block_tv centre_to_rim target_distance".split()
TITLES: dict[str, str] = NAMES["pilcro"]["titles"]
TITLES |= {
    f"{metric}, {c}": c for metric in ("robustness", "corrupted_accuracy") for c in CORRUPTIONS
}
PARTS = ("mean", "error", "paths")
Arrays = Mapping[str, NDArray[Any]]
Model = str | tuple[str, str]  # a kind of model, or two that are compared

PANELS = {"accuracy": "Accuracy, points", "tv": "Total variation, times"}
SHOWN = ["none", "target 1", "target 3", "target 10", "curvature 10"]
OF_PRETRAINED = [AS_IT_IS, *COMPARED_WITH]  # landscapes of networks that were not trained here


def select(
    table: pd.DataFrame, metric: str, data: str | None = None, model: str | None = None
) -> pd.DataFrame:
    """Return the rows of a metric, or of a category as in "robustness, blur", that have a value."""
    metric, _, category = metric.partition(", ")
    wanted = {"metric": metric, "category": category, "data": data, "model": model}
    wanted = {column: value for column, value in wanted.items() if value}
    return tables.select(table, status="done", **wanted).dropna(subset="value")


def measured(table: pd.DataFrame, metric: str, data: str, model: Model) -> str:
    """Write the mean of a metric, or the mean difference of two kinds of model, seed by seed."""
    digits = ".4f" if metric in ("tv", "noise", "tv_less_noise", "block_tv") else ".3f"
    rows, sign = select(table, metric, data), ""
    if isinstance(model, str):
        values = rows[rows["model"] == model].groupby(["profile", "seed"])["value"].mean()
    else:
        rows, sign = rows[rows["pair"].isin(["", *model]) | rows["pair"].isna()], "+"
        wide = rows.pivot_table("value", ["profile", "seed"], "model").reindex(columns=[*model])
        values = (wide[model[0]] - wide[model[1]]).dropna()
    if len(values) == 2:
        return f"{values.mean():{sign}{digits}} (n = 2)".replace("-", "−")
    return tables.mean_text(values, sign + digits, digits).replace("-", "−")


def with_less_noise(table: pd.DataFrame) -> pd.DataFrame:
    """Add the metric "tv_less_noise": the TV of each landscape, less the noise in it."""
    keys = ["profile", "data", "network", "model", "seed"]
    noise = select(table, "noise").set_index(keys)["value"].rename("less")
    tv = select(table, "tv").join(noise, on=keys, how="inner")
    tv = tv.assign(metric="tv_less_noise", value=tv["value"] - tv.pop("less"))
    return pd.concat([table, tv], ignore_index=True)


def times(table: pd.DataFrame, metric: str, model: str, data: str = CIFAR) -> quote.Value:
    """Return a metric over that without penalty: the geometric mean of networks of one seed."""
    rows = select(table, metric, data)
    gap = quote.paired(rows.assign(value=np.log(rows["value"])), "model", model, "none")
    low, middle, high = (math.exp(end) for end in (gap.low, gap.estimate, gap.high))
    return replace(gap, estimate=middle, low=low, high=high)


def strengths(table: pd.DataFrame, data: str = CIFAR) -> dict[str, str]:
    """Return what kinds of model are called: by the TV that they reach, over none."""
    reached = {model: times(table, "tv", model, data) for model in SHOWN[1:]}
    kinds = {model: "curvature," if "curvature" in model else "TV" for model in reached}
    names = {m: f"{kinds[m]} × {value:.2f}" for m, value in reached.items() if value}
    return {"none": "no penalty"} | names


def against_none(
    table: pd.DataFrame, metric: str, by: Sequence[str] = (), data: str = CIFAR
) -> pd.DataFrame:
    """Return a metric of each network over that without penalty of its seed.

    Accuracy is in points, and the difference. `by` names further columns that are equal in a pair.
    """
    keys = ["profile", "seed", *by]
    rows = select(table, metric, data)
    plain = rows[rows["model"] == "none"].set_index(keys)["value"].rename("plain")
    rows = rows[rows["model"] != "none"].join(plain, on=keys, how="inner")
    share, points = rows["value"] / rows["plain"], 100 * (rows["value"] - rows["plain"])
    return rows.assign(value=points if metric == "accuracy" else share)


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
            if set(values.values()) != {"not run"}:
                rows.append(row | values)
    return pd.DataFrame(rows)


def by_strength(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return metrics on CIFAR-10 by what penalties reach, with their α and how many networks."""
    names = strengths(table)
    n = select(table, "accuracy", CIFAR).groupby("model")["seed"].nunique()
    rows = compare(table, metrics, [CIFAR], *names).drop(columns="data")
    alphas = [model.partition(" ")[2] or "0" for model in rows["models"]]
    heads = [f"{names[m]} (α = {a}, n = {n[m]})" for m, a in zip(rows["models"], alphas)]
    return rows.assign(models=heads).rename(columns={"models": ""})


def published_values(
    published: Mapping[str, Any], number: int, cropping: bool | None = None
) -> dict[str, dict[str, float]]:
    """Return a table of the paper: its values by column, by kind of model."""
    entry = published["tables"][number - 1]
    rows = [row for row in entry["rows"] if row.get("cropping") == cropping]
    models = [f"{row['penalty']} {row['alpha']}".replace("none 0", "none") for row in rows]
    values = [dict(zip(entry["columns"], row["values"])) for row in rows]
    return dict(zip(models, values))


def printed_against_none(published: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return accuracy, in points, and TV, in times, of the paper's networks against no penalty."""
    paper = published_values(published, 1, False)
    plain = paper["none"]
    return {
        PANELS["accuracy"]: {m: 100 * (v["top_1"] - plain["top_1"]) for m, v in paper.items()},
        PANELS["tv"]: {m: v["tv"] / plain["tv"] for m, v in paper.items()},
    }


def printed_robustness(
    published: Mapping[str, Any],
    number: int = 3,
    cropping: bool | None = False,
    levels: Sequence[int] = range(1, 6),
) -> dict[str, float]:
    """Return what corruptions leave with the target penalty, α = 10, over none, by category."""
    paper = published_values(published, number, cropping)
    left, plain = paper["target 10"], paper["none"]
    return {
        c: sum(left[f"{c}_{n}"] for n in levels) / sum(plain[f"{c}_{n}"] for n in levels)
        for c in CORRUPTIONS
    }


def landscapes(
    results: Sequence[Results],
    table: pd.DataFrame,
    published: Mapping[str, Any],
    board: torch.Tensor,
) -> dict[str, Any]:
    """Return what `pictures` takes: mean landscapes, from untrained to the target.

    Args:
        results, table, published: of the chapter.
        board: landscape of the untrained network, see `untrained`.
    """
    maps, names = mean_maps(results, "landscape")[CIFAR], strengths(table)
    target = mean_maps(results, "target")[CIFAR]["target"]
    paper, notes = printed_against_none(published)[PANELS["tv"]], []
    titles = [f"penalty,\n{name}" if "TV" in name else name for name in names.values()]
    titles = [title.replace("no ", "no\n").replace(", ", ",\n") for title in titles]
    for model in names:
        accuracy, tv = (select(table, m, CIFAR, model)["value"] for m in ("accuracy", "tv"))
        right = tables.mean_text(100 * accuracy, ".1f").replace(" ±", "%\n±")
        printed = f"\npaper {paper[model]:.2f}" if paper.get(model, 1) < 1 else ""
        notes.append(f"{right}\nTV {tv.mean():.4f}{printed}")
    ends = [f"TV {float(total_variation(torch.as_tensor(m))):.2g}" for m in (board, target)]
    return {
        "rows": [[board.numpy(), *(maps[model] for model in names), target]],
        "titles": ["untrained,\nby paths", *titles, "target S,\nedges"],
        "notes": [[f"not\ntrained\n{ends[0]}", *notes, f"\n\n{ends[1]}"]],
        "scale": (0, 2),
        "scale_label": "importance",
    }


def arrays_by_data(
    results: Sequence[Results], part: str
) -> dict[str, dict[str, list[NDArray[Any]]]]:
    """Return the arrays of a name such as "landscape", of all seeds, by data set and model.

    They are of the first run that has some of a data set.
    """
    arrays: dict[str, dict[str, list[NDArray[Any]]]] = {}
    for result in results[::-1]:
        of_run: dict[str, dict[str, list[NDArray[Any]]]] = {}
        for name in sorted(name for name in result.arrays if name.endswith(f"|{part}")):
            data, *model, _ = name.split("|")
            of_model = of_run.setdefault(data, {}).setdefault((model or [part])[0], [])
            of_model.append(result.arrays[name])
        arrays |= of_run
    return arrays


def mean_maps(results: Sequence[Results], part: str) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the means over seeds of `arrays_by_data`."""
    found = arrays_by_data(results, part).items()
    return {data: {m: np.mean(maps, axis=0) for m, maps in by.items()} for data, by in found}


def untrained(panel: Mapping[str, Any], seed: int = 0) -> torch.Tensor:
    """Return the landscape that its paths give a network of a panel before any training."""
    shape, options = image_shape(panel["data"]), panel.get("network_options", {})
    network = build_network(panel["network"], shape, 10, options=options, seed=seed)
    return scaled_norm(path_counts(network, shape, squared=True))


def training_curves(
    results: Sequence[Results], table: pd.DataFrame, metric: str, models: Sequence[str]
) -> pd.DataFrame:
    """Return a metric after the early epochs and at the end of each training."""
    panels = [panel for r in results for panel in r.provenance["parameters"]["panels"]]
    last = select(table, metric)
    last = last.assign(epochs=last["data"].map({label(p): p["epochs"] for p in panels}))
    early = select(table, f"{metric}_early")
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


def squared_gradients(arrays: Arrays) -> pd.DataFrame:
    """Return squared gradients of convolutions at initialisation, and what the paths predict."""
    rows = []
    for kind in ("convolutions", "convolutions with ReLU"):
        mean, _, paths = (arrays[f"initialisation|{kind}|{p}"] for p in PARTS)
        for model, curve in [("estimates", m[0]) for m in mean] + [("from the paths", paths[0])]:
            columns = {"data": kind, "model": model, "value": curve}
            rows.append(pd.DataFrame(columns).rename_axis("position").reset_index())
    return pd.concat(rows)


def theory_table(arrays: Arrays, table: pd.DataFrame) -> pd.DataFrame:
    """Return how near squared gradients at initialisation come to what the paths predict."""
    rows = []
    for kind, values in select(table, "path_correlation").groupby("network", sort=False)["value"]:
        mean, error, paths = (arrays[f"initialisation|{kind}|{p}"] for p in PARTS)
        inside = np.abs(mean - paths) < 1.96 * error.clip(1e-300)
        row = {"network": name_of(kind), "95% bands that hold the prediction": inside.mean()}
        row |= {"mean / predicted mean": mean.mean() / paths.mean()}
        rows.append(row | {"correlation with the path counts": values.mean()})
    return pd.DataFrame(rows).round(3)
