"""PILCRO: networks trained with and without penalties on their importance landscapes."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from reglib import data_smoothness, total_variation
from reglib.landscape import scaled_norm
from suite import metrics
from suite.data import image_shape, load_data
from suite.errors import expected
from suite.evidence import quote, tables
from suite.evidence.results import Results
from suite.evidence.statistics import as_ratio, mean_interval
from suite.methods import SIDE_BY_SIDE, Change, schedule
from suite.networks import build_network
from suite.papers import design, initial_landscapes
from suite.papers.design import Item, Plan, Spec, grid, measurement, panels_of, replace, specify
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts
from suite.units import Network, Pretrained, Training, Values

APPLY: dict[str, Change] = {method.name: method.apply for method in SIDE_BY_SIDE}

OF_PANEL: Values = NAMES["pilcro"]["of_panel"]
# Columns that identify a network.
NETWORK = ["data", "network", "model", "penalty", "alpha", "seed"]
LANDSCAPE = "importance_landscape"
DERIVES_FROM = "panels"  # parameter with the data sets that `derive` reads
# Metrics whose tensors are drawn, and the endings of the names of single tensors.
DRAWN = {LANDSCAPE: "|landscape", "ablation_auc": ""}
FLATNESS = "tv noise block_tv centre_to_rim target_distance"
EARLY = "accuracy_early tv_early block_tv_early"
MEASURES: Values = NAMES["pilcro"]["measures"]
# The same images, for small ResNets and for the network that decides the headlines.
CIFAR, MAIN = "cifar10-jpeg", "resized:cifar10-jpeg:32"
CROPPED = f"{MAIN}-cropped"
LARGER = {f"target 10@{MAIN}": "α = 10: seven convolutions"}
TITLES: dict[str, str] = NAMES["pilcro"]["titles"]  # of the metrics that tables have
MODELS = ["none", "target 1", "target 3", "target 10", "curvature 10"]


def label(panel: Values) -> str:
    """Return the name of data and cropping: in tables, RC+ is a data set of its own."""
    return panel["data"] + ("-cropped" if panel.get("crop_padding") else "")


def every_model(alphas: Iterable[float]) -> list[str]:
    """Return the names of models: "none", and each penalty with each alpha."""
    pairs = itertools.product(("target", "curvature"), alphas)
    return ["none", *(f"{penalty} {alpha:.15g}" for penalty, alpha in pairs)]


def training(p: SimpleNamespace, model: str, seed: int, **changes: Any) -> Training:
    """Return a training of a panel; a model is "none", or a penalty and its alpha."""
    name, _, alpha = model.partition(" ")
    fields = {"learning_rate": p.learning_rate, "batch_size": p.batch_size, **p.fields}
    when = {"warm_up": p.warm_up} if p.warm_up else {"every": p.interval}
    fields = schedule(APPLY[name](fields, float(alpha or 0)), **when)
    return Training(**fields | changes, seed=seed)


def measures(p: SimpleNamespace) -> Iterator[Spec]:
    """Yield the measures of each network at the end of its training."""
    # The paper reports top-5 accuracy on its own data.
    names = {"accuracy cross_entropy": True, "top_5": p.data in ("cifar100", "imagenet")}
    names |= {"accuracy_off_centre": p.shift, f"{FLATNESS} {LANDSCAPE}": True}
    return specify(MEASURES, names | {"accuracy_by_location": p.data.startswith("digits")}, p)


def _robust(p: SimpleNamespace, other: Training | None = None) -> Iterator[Spec]:
    """Yield the measures under corruptions; next to another network, under ablation, too.

    The images are then those that both networks classify right.
    """
    pairs = itertools.product(p.categories or metrics.CORRUPTIONS, p.levels)
    p = replace(p, corruptions=[{"category": c, "level": level} for c, level in pairs])
    if other is None:
        return specify(MEASURES, "corrupted_accuracy", p)
    return specify(MEASURES, "robustness ablation", replace(p, beside=other.identity))


def _labels(model: str, data: str, marked: str = "") -> dict[str, Any]:
    """Return the labels of the rows of a model at the end of its training."""
    penalty, _, alpha = model.partition(" ")
    labels = {"model": f"{model}, {marked}" if marked else model, "penalty": marked or penalty}
    strength = float(alpha) if alpha and penalty in APPLY else 0.0
    return labels | {"data": data, "pair": "", "alpha": strength, "epochs": 0}


def _items(network: Network, labels: dict[str, Any], specs: Iterable[Spec]) -> Iterator[Item]:
    """Yield the measurements of a network; arrays are named by its model and by the paired one."""
    paired = f", beside {labels['pair']}" if labels["pair"] else ""
    start = f"{labels['data']}|{labels['model']}{paired}|{getattr(network, 'seed', 0)}"
    for spec in specs:
        keep = start + DRAWN[spec.metric] if spec.metric in DRAWN else ""
        yield Item(measurement(network, spec.metric, **spec.settings), labels | spec.labels, keep)


def _panel_items(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the units of a panel: final networks, earlier ones, and equation 9 as printed."""
    p = replace(p, draws=None, of=None)  # landscapes of networks, with all classes
    models = [m for m in every_model(p.alphas) if p.models is None or m in p.models]
    data = label(vars(p))
    seeds = {m: p.seeds[: None if m in p.compared else p.few_seeds] for m in models} | p.seeds_of
    paired = seeds | p.paired_seeds
    for model in models:
        checked = bool(p.checked) and model in ("none", *p.checked) and "centred" not in data
        labels = _labels(model, data, p.marked)
        for seed in seeds[model]:
            network = training(p, model, seed)
            yield Item(network, labels)
            yield from _items(network, labels, [*measures(p), *(_robust(p) if checked else ())])
            for kind in p.checked if checked and model == "none" else [model][:checked]:
                other = training(p, kind if model == "none" else "none", seed)
                if all(seed in paired.get(name, ()) for name in ("none", kind)):
                    yield from _items(network, labels | {"pair": kind}, _robust(p, other))
            for epochs in p.early_epochs if model in p.compared else ():
                earlier = training(p, model, seed, epochs=epochs), labels | {"epochs": epochs}
                yield from grid([earlier], specify(MEASURES, EARLY, p))
    n_positions = math.prod(image_shape(p.data)[1:])
    for alpha in p.printed_alphas if data == p.data and p.models is None else []:
        network = training(p, f"target {alpha * n_positions:.17g}", p.seeds[0])
        at = {"metric": "accuracy_printed", "epochs": network.epochs}
        yield Item(measurement(network, "accuracy"), _labels(f"target {alpha:.15g}", data) | at)


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that may stand in the lists and keys of parameters."""
    alphas = {a for p in [parameters, *parameters["panels"]] for a in p.get("alphas", ())}
    keys = ("compared", "checked", "models", "seeds_of", "paired_seeds")
    return dict.fromkeys(keys, every_model(alphas)) | {"categories": [*metrics.CORRUPTIONS]}


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: those of each panel, and of networks not trained here.

    Raises:
        UsageError: an unknown or missing key of a panel, or an entry of `pretrained` that is not a
            pair of names.
    """
    panels = panels_of(parameters, OF_PANEL, never=NAMES["pilcro"]["alone"].split())
    items, p = Plan(i for p in panels for i in _panel_items(p)), SimpleNamespace(**parameters)
    p = replace(p, block=p.block_pretrained, draws=None, of=None)
    as_is = replace(p, n_landscape=p.n_pretrained, draws=p.n_draws_pretrained)
    specs = {"as it is": [*specify(MEASURES, f"{FLATNESS} {LANDSCAPE}", as_is)]}
    for model, of in {"its paths": "paths", "the images": "target"}.items():
        static = specify(MEASURES, "tv block_tv centre_to_rim", replace(p, of=of))
        specs[model] = [*static, Spec({}, LANDSCAPE, {"of": of})]
    for pair in parameters["pretrained"]:
        if [type(name) for name in pair] != [str, str]:
            raise expected("pretrained", "[data, network] in each entry", pair)
        network = Pretrained(data=pair[0], network=pair[1])
        for model, specs_of_model in specs.items():
            items += _items(network, _labels(model, pair[0]), specs_of_model)
    return Plan([*items, *initial_landscapes.items(MEASURES, p)])


def derive(parameters: Values, rows: pd.DataFrame, arrays: design.Arrays) -> design.Derived:
    """Return a row for each network and metric, with TV; and landscapes, targets and curves.

    With trained networks, further rows have correlations of the theory.
    """
    rows["seed"] = rows["seed"].fillna(0).astype(int) if "seed" in rows else 0
    rows = rows[rows["metric"] != LANDSCAPE]
    tv = rows[rows["metric"] == "tv"].set_index(NETWORK)["value"].rename("tv")
    rows = rows.join(tv, on=NETWORK)
    for panel in parameters["panels"]:
        images = load_data(panel["data"]).train.images[: panel.get("n_train")]
        arrays[f"{label(panel)}|target"] = data_smoothness(images.split(500)).numpy()
    if parameters["panels"]:
        numbers = parameters["n_draws"], parameters["theory_seeds"]
        theory = initial_landscapes.squared_gradients_and_paths(*numbers)
        rows, arrays = pd.concat([rows, theory[0]], ignore_index=True), arrays | theory[1]
    start = initial_landscapes.compare_maps(arrays)
    rows, arrays = pd.concat([rows, pd.DataFrame(start[0])], ignore_index=True), arrays | start[1]
    columns = [*NETWORK, "epochs", "metric", "category", "level", "pair", "tv", "value", "std", "n"]
    return rows.reindex(columns=[*columns, "status"]), arrays


def shrink(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that figures draw: landscapes in half precision."""
    return {n: t.half() if n == "landscape" else t for n, t in tensors.items()}


def times(table: pd.DataFrame, model: str, data: str = CIFAR, metric: str = "tv") -> quote.Value:
    """Return a metric over that without penalty: the geometric mean of pairs of a seed."""
    pairs = tables.select(against_none(table, metric, data), model=model)["value"]
    return quote.Value(*as_ratio(mean_interval(np.log(pairs)))) if len(pairs) else quote.Value()


def strengths(table: pd.DataFrame, data: str = CIFAR) -> dict[str, str]:
    """Return the names of models: the TV that they reach, over that without penalty."""
    names = {m: f"TV × {value:.2f}" for m in MODELS[1:] if (value := times(table, m, data))}
    curved = {m: n.replace("TV", "curvature,") for m, n in names.items() if "curvature" in m}
    return {"none": "no penalty"} | names | curved


def against_none(table: pd.DataFrame, metric: str, *data: str) -> pd.DataFrame:
    """Return a metric of each network over that of the network without penalty of its seed.

    Of accuracy it is the difference, in points. The data are CIFAR-10 unless others are named; the
    `kind` of a row is its model, and on other data the model and the data.
    """
    rows = tables.select(table, metric=metric, data=[*data] or CIFAR, status="done")
    rows = rows.dropna(subset="value").fillna({"category": "", "pair": "", "level": 0})
    keys = ["profile", "data", "seed", "category", "level", "pair"]
    plain = rows[rows["model"] == "none"].set_index(keys)["value"].rename("plain")
    rows = rows[rows["model"] != "none"].join(plain, on=keys, how="inner")
    ratios, points = rows["value"] / rows["plain"], 100 * (rows["value"] - rows["plain"])
    kind = rows["model"].where(rows["data"] == CIFAR, rows["model"] + "@" + rows["data"])
    return rows.assign(value=points if metric == "accuracy" else ratios, kind=kind)


def published_against_none(published: Mapping[str, Any], number: int) -> pd.DataFrame:
    """Return a published table without random cropping: ratios as in `against_none`, by model."""
    entry = published["tables"][number - 1]
    rows = [row for row in entry["rows"] if not row.get("cropping")]
    models = [f"{row['penalty']} {row['alpha']}".replace("none 0", "none") for row in rows]
    values = pd.DataFrame([row["values"] for row in rows], models, entry["columns"])
    values = values.join(values.T.groupby(lambda name: name[:-2]).mean().T)  # over levels
    points = 100 * (values - values.loc["none"]).filter(["top_1"])
    ratios = (values / values.loc["none"]).join(points.rename(columns={"top_1": "accuracy"}))
    return pd.concat([ratios, ratios.loc[["target 10"]].set_axis([*LARGER])])


def means(table: pd.DataFrame, *data: str, names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Tabulate means of the measures of Table 1, and of further ones, by model.

    Args:
        table: of the chapter; rows of the theory have a network in place of a model.
        data: names of data sets.
        names: titles of the models that the table has.
    """
    names = names or dict(zip(MODELS, MODELS))
    rows = tables.best_rows(tables.select(table, metric=[*TITLES], data=[*data], status="done"))
    rows = rows[rows["model"].isin(names) | rows["model"].isna()]
    rows = rows.fillna({"model": rows["network"]})
    names = {**TITLES, **names}
    return tables.means(rows, ["data", "model"], names=names, digits=".3g", half=".2g")


def landscapes(
    results: Sequence[Results], table: pd.DataFrame, published: Values, panels: Sequence[Values]
) -> dict[str, Any]:
    """Return mean landscapes, from untrained to the target, for `suite.plots.pictures`.

    Args:
        results, table, published: of the chapter.
        panels: of a profile that has the main network.
    """
    start = initial_landscape(panels, MAIN)
    target = torch.as_tensor(maps_of(results, "target", MAIN)["target"][0])
    ends = [f"TV {float(total_variation(end)):.2g}" for end in (start, target)]
    titles, notes, maps = ["by its\npaths"], [f"not\ntrained\n{ends[0]}"], [start.numpy()]
    paper = published_against_none(published, 1)["tv"]
    for data, how in ((MAIN, "trained"), (CROPPED, "crops")):
        names = strengths(table, data)
        for model, landscapes_of_model in maps_of(results, "landscape", data).items():
            rows = tables.select(table, data=data, model=model, status="done").set_index("metric")
            accuracy = tables.mean_text(100 * rows.loc[["accuracy"], "value"], ".1f")
            tv = rows.loc[["tv"], "value"].mean()
            below = f"TV {tv:.4f}" if model == "none" else f"paper\n× {paper[model]:.2f}"
            titles.append(names[model].replace("no", f"{how},\nno").replace("TV", "α = 10,\nTV"))
            notes.append(accuracy.replace(" ±", "%\n±") + f"\n{below}")
            maps.append(np.mean(landscapes_of_model, axis=0))
    look = {"titles": [*titles, "target S,\nedges"], "notes": [[*notes, f"\n\n{ends[1]}"]]}
    return {"rows": [[*maps, target.numpy()]], "scale": (0, 2), "scale_label": "importance", **look}


def maps_of(
    results: Sequence[Results], part: str, data: str = CIFAR
) -> dict[str, list[NDArray[Any]]]:
    """Return the arrays of all seeds by model, from the first run that has some.

    `part` is the last part of their names, such as "landscape".
    """
    arrays: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for result in (result for result in results if not arrays):
        for name in sorted(result.arrays):
            first, *model, last = name.split("|")
            if (first, last) == (data, part):
                arrays[(model or [part])[0]].append(result.arrays[name])
    return dict(arrays)


def initial_landscape(panels: Sequence[Values], data: str, seed: int = 0) -> Tensor:
    """Return the landscape of the paths of the untrained network of a panel."""
    panel = next(panel for panel in panels if panel["data"] == data)
    shape, options = image_shape(data), panel.get("network_options", {})
    network = build_network(panel["network"], shape, 10, options=options, seed=seed)
    return scaled_norm(path_counts(network, shape, squared=True))


def squared_gradients(arrays: Values) -> pd.DataFrame:
    """Return squared gradients of untrained convolutions, and the prediction by their paths."""
    rows = []
    for kind in ("convolutions", "convolutions with ReLU"):
        mean, paths = (arrays[f"initialisation|{kind}|{part}"] for part in ("mean", "paths"))
        for model, curve in [("estimates", m[0]) for m in mean] + [("from the paths", paths[0])]:
            rows.append(pd.DataFrame({"data": kind, "model": model, "value": curve}))
    return pd.concat(rows).rename_axis("position").reset_index()
