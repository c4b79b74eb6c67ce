"""PILCRO: networks trained with and without penalties on their importance landscapes."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor

from reglib import data_smoothness
from suite import metrics
from suite.data import image_shape, load_data
from suite.errors import check_keys, expected
from suite.papers.initialisation import squared_gradients_and_paths
from suite.store import Reader
from suite.units import FIELDS, Measurement, Network, Pretrained, Training, Unit, Values, identity

# Keys of a panel that stand for parameters of the chapter, and further ones that are not fields of
# a training; "shift": pixels by which so many test images are moved off their centre, "warm_up":
# steps in which the strength rises, of a penalty that then acts in every step; "seeds_of": models
# that have seeds of their own, "paired_seeds": of which these share images with "none"; "marked":
# what the names of models end in, where a panel is another one's but for its training.
INSTEAD = ("alphas", "checked", "n_landscape", "block", "seeds")
FURTHER = {"shift": 0, "n_shifted": None, "warm_up": 0}
OF_PANEL = ("models", "few", "early", "seeds_of", "paired_seeds", "marked", *FURTHER, *INSTEAD)
# What tells the rows of one network from those of others.
NETWORK = ["data", "network", "model", "penalty", "alpha", "seed"]
SHORT_NAMES = {
    "ablation_auc": "ablation",
    "corruption_robustness": "robustness",
    "shifted_accuracy": "accuracy_off_centre",
    "top_k_accuracy": "top_5",
}
# What is measured before the end of a training, or with equation 9 as printed.
NAMED = {
    "early": {"accuracy": "accuracy_early", "tv": "tv_early", "block_tv": "block_tv_early"},
    "printed": {"accuracy": "accuracy_printed"},
}
MANY_CLASSES = ("cifar100", "imagenet")  # the data of the paper, of which it has top-5 accuracy
AS_IT_IS = "as it is"
LANDSCAPE = "importance_landscape"
COMPARED_WITH = {"its paths": "paths", "the images": "target"}  # `of` of the measure "flatness"
STATIC = ("tv", "block_tv", "centre_to_rim")
FLATNESS = ("tv", "noise", "block_tv", "centre_to_rim", "target_distance")


class Planned(NamedTuple):
    """A unit: "full", "early", "printed" or "pretrained", of a model, by the name of its data.

    `pair` names the model whose images, right with and without penalty, it is measured on.
    """

    kind: str
    model: str
    data: str
    pair: str
    unit: Unit


def label(panel: Values) -> str:
    """Return the name of data and cropping: in tables, RC+ stands as data of its own."""
    return panel["data"] + ("-cropped" if panel.get("crop_padding") else "")


def training(p: SimpleNamespace, panel: Values, model: str, seed: int, **changes: Any) -> Training:
    """Return a training of a panel; a model is "none", or a penalty and its alpha."""
    penalty, _, alpha = model.partition(" ")
    settings = {"strength": float(alpha or 0), "every": p.interval}
    if panel.get("warm_up"):
        settings = {"strength": settings["strength"], "warm_up": panel["warm_up"]}
    penalties = {} if penalty == "none" else {f"landscape_{penalty}": settings}
    fields = {"learning_rate": p.learning_rate, "batch_size": p.batch_size, "penalties": penalties}
    fields |= {name: value for name, value in panel.items() if name not in OF_PANEL}
    return Training(**fields | changes, seed=seed)


def _flatness(
    p: SimpleNamespace, network: Network, *parts: str, block: int, **settings: Any
) -> Iterator[Measurement]:
    settings = {"n_images": p.n_landscape, **settings}
    for part in parts or FLATNESS:
        of_part = {"part": part} | ({"block": block} if part == "block_tv" else {})
        yield Measurement(training=network, metric="flatness", settings=of_part | settings)
    if not parts:
        yield Measurement(training=network, metric=LANDSCAPE, settings=settings)


def measurements(p: SimpleNamespace, network: Training) -> Iterator[Measurement]:
    """Go through what is measured of each network at the end of its training."""
    names = ["accuracy", "cross_entropy"]
    names += ["top_k_accuracy"] if network.data in MANY_CLASSES else []
    for name in names:
        yield Measurement(training=network, metric=name)
    if p.shift:
        settings = {"pixels": p.shift, "n_images": p.n_shifted}
        yield Measurement(training=network, metric="shifted_accuracy", settings=settings)
    yield from _flatness(p, network, block=p.block)
    if network.data.startswith("digits"):
        shifts = {"data": "digits-centred", "margin": 6, "stride": 2, "n_images": p.n_location}
        yield Measurement(training=network, metric="accuracy_by_location", settings=shifts)


def _robust(p: SimpleNamespace, network: Training, other: Training | None) -> Iterator[Measurement]:
    """Go through what is measured on images that two networks classify right."""
    pixels = {"n_images": p.n_corrupted}
    corruptions = [
        {"category": category, "level": level, **pixels}
        for category in p.categories or metrics.CORRUPTIONS
        for level in p.levels
    ]
    for settings in corruptions if other is None else ():
        yield Measurement(training=network, metric="corrupted_accuracy", settings=settings)
    if other is not None:
        beside = {"beside": identity(other)}
        for settings in corruptions:
            settings = settings | beside
            yield Measurement(training=network, metric="corruption_robustness", settings=settings)
        ablation = {"n_images": p.n_ablated, "n_baselines": p.n_baselines, "stride": p.stride}
        ablation |= {"n_steps": p.n_steps} | beside
        yield Measurement(training=network, metric="ablation_auc", settings=ablation)


def _of_panel(p: SimpleNamespace, panel: Values) -> Iterator[Planned]:
    """Go through the units of a panel: final networks, earlier ones, and equation 9 as printed."""
    own = {name: panel[name] for name in (*INSTEAD, *FURTHER) if name in panel}
    p = SimpleNamespace(**{**FURTHER, **vars(p), **own})
    strengths = itertools.product(("target", "curvature"), p.alphas)
    models = ["none", *(f"{penalty} {alpha:.15g}" for penalty, alpha in strengths)]
    models = [m for m in models if m in panel.get("models", models)]
    few = panel.get("few", [m for m in models if m not in p.compared])
    data = label(panel)
    seeds = {m: p.seeds[: p.few_seeds] if m in few else p.seeds for m in models}
    seeds |= panel.get("seeds_of", {})
    paired = seeds | panel.get("paired_seeds", {})
    for model in models:
        checked = bool(p.checked) and model in ("none", *p.checked) and "centred" not in data
        for seed in seeds[model]:
            network = training(p, panel, model, seed)
            name = f"{model}, {panel['marked']}" if "marked" in panel else model
            units: list[Unit] = [network, *measurements(p, network)]
            units += _robust(p, network, None) if checked else []
            yield from (Planned("full", name, data, "", unit) for unit in units)
            for kind in p.checked if checked and model == "none" else [model][:checked]:
                beside = training(p, panel, kind if model == "none" else "none", seed)
                if all(seed in paired.get(one, ()) for one in ("none", kind)):
                    robust = _robust(p, network, beside)
                    yield from (Planned("full", name, data, kind, unit) for unit in robust)
            for epochs in panel.get("early", p.early_epochs) if model in p.compared else ():
                earlier = training(p, panel, model, seed, epochs=epochs)
                units = [Measurement(training=earlier, metric="accuracy")]
                units += _flatness(p, earlier, "tv", "block_tv", block=p.block)
                yield from (Planned("early", name, data, "", unit) for unit in units)
    n_positions = math.prod(image_shape(panel["data"])[1:])
    for alpha in p.printed_alphas if data == panel["data"] and "models" not in panel else []:
        settings = {"strength": float(alpha * n_positions), "every": p.interval}
        penalties = {"landscape_target": settings}
        network = training(p, panel, f"target {alpha:.15g}", p.seeds[0], penalties=penalties)
        unit = Measurement(training=network, metric="accuracy")
        yield Planned("printed", f"target {alpha:.15g}", data, "", unit)


def choices(parameters: Values) -> dict[str, Collection[str]]:
    """Return the names that lists, and keys, of parameters may be."""
    panels = [parameters, *parameters["panels"]]
    alphas = {alpha for panel in panels for alpha in panel.get("alphas", ())}
    models = [f"{kind} {alpha:.15g}" for kind in ("target", "curvature") for alpha in alphas]
    named = ("compared", "checked", "models", "few", "seeds_of", "paired_seeds")
    return {name: ["none", *models] for name in named} | {"categories": metrics.CORRUPTIONS}


def _planned(parameters: Values) -> list[Planned]:
    p = SimpleNamespace(**parameters)
    for panel in p.panels:
        check_keys("panels", panel, {*FIELDS, *OF_PANEL}, ("data", "network", "epochs"))
    for pair in p.pretrained:
        if [type(part) for part in pair] != [str, str]:
            raise expected("pretrained", "[data, network] in each entry", pair)
    plan = [planned for panel in p.panels for planned in _of_panel(p, panel)]
    for data, name in p.pretrained:
        network = Pretrained(data=data, network=name)
        images = {"n_images": p.n_pretrained, "n_draws": p.n_draws_pretrained}
        for unit in _flatness(p, network, block=p.block_pretrained, **images):
            plan.append(Planned("pretrained", AS_IT_IS, data, "", unit))
        for model, of in COMPARED_WITH.items():
            of_model = [*_flatness(p, network, *STATIC, block=p.block_pretrained, of=of)]
            drawn = Measurement(training=network, metric=LANDSCAPE, settings={"of": of})
            plan += [Planned("pretrained", model, data, "", unit) for unit in (*of_model, drawn)]
    return plan


def units(parameters: Values) -> list[Unit]:
    """Return the units of the chapter."""
    return [planned.unit for planned in _planned(parameters)]


def collect(
    parameters: Values, computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, with TV, and landscapes, targets and curves.

    Further rows are accuracy at the edge and in the middle, what claims compare (`_compared`), and
    correlations of the theory.
    """
    p = SimpleNamespace(**parameters)
    plan = _planned(parameters)
    rows = computed.assign(
        kind=[one.kind for one in plan],
        model=[one.model for one in plan],
        data=[one.data for one in plan],
        pair=[one.pair for one in plan],
    )
    kinds, _, marks = zip(*(one.model.partition(", ") for one in plan), strict=True)
    rows["penalty"] = [mark or kind.split()[0] for kind, mark in zip(kinds, marks, strict=True)]
    alphas = pd.Series(kinds).str.extract(r" ([\d.e+-]+)$")[0].astype(float)
    rows["alpha"] = alphas.fillna(0.0).to_numpy()
    rows["seed"] = rows["seed"].fillna(0).astype(int) if "seed" in rows else 0
    names = rows["metric"].replace(SHORT_NAMES)
    rows["metric"] = names.where(rows["metric"] != "flatness", rows.get("part"))
    arrays, by_location = _maps(rows, store)
    rows = rows[rows["metric"] != "importance_landscape"]
    final = rows["kind"].isin(["full", "pretrained"])
    for kind, named in NAMED.items():
        of_kind = rows["kind"] == kind
        rows.loc[of_kind, "metric"] = rows.loc[of_kind, "metric"].map(named)
    rows.loc[final, "epochs"] = 0
    tv = rows[rows["metric"] == "tv"].set_index(NETWORK)["value"].rename("tv")
    rows = rows.join(tv, on=NETWORK)
    panels = [panel for panel in p.panels if label(panel) in set(rows["data"])]
    for panel in panels:
        images = load_data(panel["data"]).train.images[: panel.get("n_train")]
        arrays[f"{label(panel)}|target"] = data_smoothness(images.split(500)).numpy()
    theory: tuple[pd.DataFrame, dict[str, Any]] = (pd.DataFrame(), {})
    if panels:  # once, beside networks that are trained
        theory = squared_gradients_and_paths(p.n_draws, p.theory_seeds)
    rows = pd.concat([rows, by_location, theory[0]], ignore_index=True)
    columns = [*NETWORK, "epochs", "metric", "category", "level", "pair", "tv", "value", "std", "n"]
    rows = pd.concat([rows, *_compared(rows)], ignore_index=True)
    return rows.reindex(columns=[*columns, "status"]), arrays | theory[1]


def kept_tensors(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `collect` reads of the tensors of a unit: landscapes in half precision."""
    half = {name: tensor.half() for name, tensor in tensors.items() if name == "landscape"}
    return {**tensors, **half}


def _maps(rows: pd.DataFrame, store: Reader) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return landscapes, curves and maps of accuracy, and rows of the latter."""
    arrays: dict[str, Any] = {}
    found = []
    drawn = ["importance_landscape", "accuracy_by_location", "ablation"]
    for row in rows[rows["metric"].isin(drawn)].itertuples():
        tensors = store.read_tensors(str(row.key)) or {}
        name = f"{row.model!s}, beside {row.pair!s}" if row.pair else str(row.model)
        name = str(row.network) if row.model == AS_IT_IS else name
        start = f"{row.data!s}|{name}|{row.seed!s}"
        arrays |= {f"{start}|{name}": tensor.float().numpy() for name, tensor in tensors.items()}
        if row.metric == "accuracy_by_location" and tensors:
            accuracy = tensors["accuracy"]
            n = len(accuracy)
            edge = float(accuracy[metrics.positions("edge", n)].mean())
            middle = float(accuracy[n // 2, n // 2])
            values = {"accuracy_at_edge": edge, "accuracy_in_the_middle": middle}
            values["lost_at_edge"] = middle - edge
            network = {name: getattr(row, name) for name in [*NETWORK, "pair"]}
            same = network | {"n": 1, "status": "done", "epochs": 0}
            found += [same | {"metric": m, "value": value} for m, value in values.items()]
    return arrays, pd.DataFrame(found)


def _compared(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return rows of networks trained otherwise, beside those that claims compare them with.

    On digits, "translated" is no penalty on digits anywhere; beside RC-, "cropped" is RC+.
    """
    wanted = ["tv", "block_tv", "centre_to_rim", "accuracy_at_edge"]
    moved = rows[(rows["data"] == "digits-anywhere") & (rows["model"] == "none")]
    moved = moved[moved["metric"].isin([*wanted, "accuracy_in_the_middle"])]
    names = {"none": "cropped", "target 10": "target 10 cropped"}
    cropped = rows[rows["data"].str.endswith("-cropped") & rows["model"].isin(names)]
    cropped = cropped[cropped["metric"].isin([*wanted, "accuracy"])]
    return [
        moved.assign(data="digits-centred", model="translated", penalty="translated"),
        cropped.assign(
            data=cropped["data"].str.removesuffix("-cropped"),
            model=cropped["model"].map(names),
            penalty="cropped",
        ),
    ]
