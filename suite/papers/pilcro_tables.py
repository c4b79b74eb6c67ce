"""Figures and ratios of the chapter on importance landscapes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from reglib import total_variation
from reglib.landscape import scaled_norm
from suite.data import image_shape
from suite.evidence import quote, tables
from suite.evidence.results import Results
from suite.evidence.statistics import as_ratio, mean_interval
from suite.networks import build_network
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts

CIFAR = "cifar10-jpeg"
TITLES: dict[str, str] = NAMES["pilcro"]["titles"]  # of the metrics that tables have
SHOWN = ["none", "target 1", "target 3", "target 10", "curvature 10"]
Arrays = Mapping[str, NDArray[Any]]


def times(table: pd.DataFrame, model: str) -> quote.Value:
    """Return TV on CIFAR-10 over that without penalty: the geometric mean of pairs of a seed."""
    pairs = against_none(table, "tv").set_index("model")["value"]
    if model not in pairs:
        return quote.Value()
    return quote.Value(*as_ratio(mean_interval(np.log(pairs.loc[[model]]))))


def strengths(table: pd.DataFrame) -> dict[str, str]:
    """Return what kinds of model are called: by the TV that they reach, over none."""
    reached = {model: times(table, model) for model in SHOWN[1:]}
    kinds = {model: "curvature," if "curvature" in model else "TV" for model in reached}
    names = {m: f"{kinds[m]} × {value:.2f}" for m, value in reached.items() if value}
    return {"none": "no penalty"} | names


def against_none(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric of each network on CIFAR-10 over that without penalty of its seed.

    Accuracy is in points, and the difference.
    """
    rows = tables.select(table, metric=metric, data=CIFAR, status="done").dropna(subset="value")
    keys = ["profile", "seed", "category", "pair"]
    rows = rows.fillna({"category": "", "pair": ""})
    plain = rows[rows["model"] == "none"].set_index(keys)["value"].rename("plain")
    rows = rows[rows["model"] != "none"].join(plain, on=keys, how="inner")
    share, points = rows["value"] / rows["plain"], 100 * (rows["value"] - rows["plain"])
    return rows.assign(value=points if metric == "accuracy" else share)


def published_against_none(published: Mapping[str, Any], number: int) -> pd.DataFrame:
    """Return a table of the paper, without random cropping, as `against_none` has it.

    It has a row a kind of model.
    """
    entry = published["tables"][number - 1]
    rows = [row for row in entry["rows"] if not row.get("cropping")]
    models = [f"{row['penalty']} {row['alpha']}".replace("none 0", "none") for row in rows]
    values = pd.DataFrame([row["values"] for row in rows], models, entry["columns"])
    points = 100 * (values - values.loc["none"]).filter(["top_1"])
    return (values / values.loc["none"]).join(points.rename(columns={"top_1": "accuracy"}))


def means(table: pd.DataFrame, *data: str, names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return means of what Table 1 has, and of further measures, by kind of model.

    Args:
        table: of the chapter; rows of the theory have kinds of network in place of model.
        data: which data sets.
        names: of the kinds of model that are shown.
    """
    names = names or {kind: kind for kind in SHOWN}
    rows = quote.best(tables.select(table, metric=[*TITLES], data=[*data], status="done"))
    rows = rows[rows["model"].isin(names) | rows["model"].isna()]
    rows = rows.fillna({"model": rows["network"]})
    look = {"digits": ".3g", "half": ".2g"}
    return tables.means(rows, ["data", "model"], names={**TITLES, **names}, **look)


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
    maps, (target,) = maps_of(results, "landscape"), maps_of(results, "target")["target"]
    rows = tables.select(table, data=CIFAR, status="done")
    names = strengths(rows)
    paper, notes = published_against_none(published, 1)["tv"], []
    alpha = {model: f"α = {model.rpartition(' ')[2]},\n" for model in names}
    titles = [alpha[model] * ("TV" in name) + name for model, name in names.items()]
    titles = [title.replace("no ", "no\n").replace(", ", ",\n") for title in titles]
    for model in names:
        of = rows[rows["model"] == model].set_index("metric")["value"]
        right = tables.mean_text(100 * of.loc[["accuracy"]], ".1f").replace(" ±", "%\n±")
        below = f"paper\n× {paper[model]:.2f}" if model in paper else ""
        below = f"TV {of.loc[['tv']].mean():.4f}" if model == "none" else below
        notes.append(f"{right}\n{below}")
    ends = [f"TV {float(total_variation(torch.as_tensor(m))):.2g}" for m in (board, target)]
    means = [np.mean(maps[model], axis=0) for model in names]
    return {
        "rows": [[board.numpy(), *means, target]],
        "titles": ["untrained,\nby paths", *titles, "target S,\nedges"],
        "notes": [[f"not\ntrained\n{ends[0]}", *notes, f"\n\n{ends[1]}"]],
        "scale": (0, 2),
        "scale_label": "importance",
    }


def maps_of(results: Sequence[Results], part: str) -> dict[str, list[NDArray[Any]]]:
    """Return the arrays of CIFAR-10 of a name such as "landscape", of all seeds, by model.

    They are of the first run that has some.
    """
    found: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for result in (result for result in results if not found):
        for name in sorted(result.arrays):
            data, *model, last = name.split("|")
            if (data, last) == (CIFAR, part):
                found[(model or [part])[0]].append(result.arrays[name])
    return dict(found)


def untrained(panel: Mapping[str, Any], seed: int = 0) -> torch.Tensor:
    """Return the landscape that its paths give a network of a panel before any training."""
    shape, options = image_shape(panel["data"]), panel.get("network_options", {})
    network = build_network(panel["network"], shape, 10, options=options, seed=seed)
    return scaled_norm(path_counts(network, shape, squared=True))


def squared_gradients(arrays: Arrays) -> pd.DataFrame:
    """Return squared gradients of convolutions at initialisation, and what the paths predict."""
    rows = []
    for kind in ("convolutions", "convolutions with ReLU"):
        mean, paths = (arrays[f"initialisation|{kind}|{part}"] for part in ("mean", "paths"))
        for model, curve in [("estimates", m[0]) for m in mean] + [("from the paths", paths[0])]:
            columns = {"data": kind, "model": model, "value": curve}
            rows.append(pd.DataFrame(columns).rename_axis("position").reset_index())
    return pd.concat(rows)
