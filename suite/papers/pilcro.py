"""PILCRO: networks trained with and without penalties on their importance landscapes."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd

from reglib import data_smoothness
from suite import metrics
from suite.data import image_shape, load_data
from suite.papers.initialisation import squared_gradients_and_paths
from suite.papers.pilcro_measures import CATEGORIES
from suite.store import Reader
from suite.units import Measurement, Training, Unit

# Keys of a panel that are not fields of a training.
OF_PANEL = ("models", "few", "early")
# What tells the rows of one network from those of others.
NETWORK = ["data", "network", "model", "penalty", "alpha", "seed"]
SHORT_NAMES = {"importance_landscape": "tv", "ablation_auc": "ablation", "top_k_accuracy": "top_5"}


def label(panel: Mapping[str, Any]) -> str:
    """Return the name of data and cropping: in tables, RC+ stands as data of its own."""
    return panel["data"] + ("-cropped" if panel.get("crop_padding") else "")


def training(
    p: SimpleNamespace, panel: Mapping[str, Any], model: str, seed: int, **changes: Any
) -> Training:
    """Return a training of a panel; a model is "none", or a penalty and its alpha."""
    penalty, _, alpha = model.partition(" ")
    settings = {"strength": float(alpha or 0), "every": p.interval}
    penalties = {} if penalty == "none" else {f"landscape_{penalty}": settings}
    fields = {"learning_rate": p.learning_rate, "batch_size": p.batch_size, "penalties": penalties}
    fields |= {name: value for name, value in panel.items() if name not in OF_PANEL}
    return Training(**fields | changes, seed=seed)


def measurements(p: SimpleNamespace, network: Training, model: str) -> list[Measurement]:
    """Return what is measured of a fully trained network."""
    wanted: list[tuple[str, dict[str, Any]]] = [("accuracy", {}), ("top_k_accuracy", {"k": 5})]
    wanted += [("cross_entropy", {}), ("importance_landscape", {"n_images": p.n_landscape})]
    if network.data.startswith("digits"):
        shifts = {"data": "digits-centred", "margin": 6, "stride": 2, "n_images": p.n_location}
        wanted.append(("accuracy_by_location", shifts))
    if model in p.checked_models and network.data != "digits-centred":
        settings = {"n_images": p.n_ablated, "n_baselines": p.n_baselines, "n_steps": p.n_steps}
        wanted.append(("ablation_auc", settings | {"stride": p.stride}))
        wanted += [
            ("corruption_robustness", {"corruption": c, "level": at, "n_images": p.n_corrupted})
            for c in p.corruptions or CATEGORIES
            for at in p.levels
        ]
    return [Measurement(training=network, metric=m, settings=s) for m, s in wanted]


def _planned(parameters: Mapping[str, Any]) -> list[tuple[str, str, str, Unit]]:
    """Return each unit with its kind ("full", "early" or "printed"), model and label."""
    p = SimpleNamespace(**parameters)
    strengths = itertools.product(("target", "curvature"), p.alphas)
    models = ["none", *(f"{penalty} {alpha:.15g}" for penalty, alpha in strengths)]
    plan: list[tuple[str, str, str, Unit]] = []
    for panel in p.panels:
        seeds = dict.fromkeys((m for m in models if m in panel.get("models", models)), p.seeds)
        seeds |= {m: p.seeds[: p.few_seeds] for m in panel.get("few", []) if m in seeds}
        for model, seed in ((m, s) for m in seeds for s in seeds[m]):
            full = training(p, panel, model, seed)
            of_network: list[Unit] = [full, *measurements(p, full, model)]
            plan += [("full", model, label(panel), unit) for unit in of_network]
        if "models" not in panel:
            extra = [*_early(p, panel, seeds), *_printed(p, panel)]
            plan += [
                (kind, model, label(panel), Measurement(training=network, metric="accuracy"))
                for kind, model, network in extra
            ]
    return plan


def _early(
    p: SimpleNamespace, panel: Mapping[str, Any], seeds: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str, Training]]:
    """Go through the shorter trainings, for accuracy after a few epochs."""
    for model in (m for m in p.early_models if m in seeds):
        for seed, epochs in itertools.product(seeds[model], panel.get("early", p.early_epochs)):
            yield "early", model, training(p, panel, model, seed, epochs=epochs)


def _printed(p: SimpleNamespace, panel: Mapping[str, Any]) -> Iterator[tuple[str, str, Training]]:
    """Go through the trainings with equation 9 as printed: a sum, not a mean over positions."""
    n_positions = math.prod(image_shape(panel["data"])[1:])
    for alpha in p.printed_alphas if label(panel) == panel["data"] else []:
        settings = {"strength": float(alpha * n_positions), "every": p.interval}
        penalties = {"landscape_target": settings}
        model = f"target {alpha:.15g}"
        yield "printed", model, training(p, panel, model, p.seeds[0], penalties=penalties)


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter."""
    return [unit for *_, unit in _planned(parameters)]


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, with TV, and landscapes, targets and curves.

    Further rows are means over early epochs and over the corruptions of a category, accuracy at the
    edge and in the middle, what claims compare (`_compared`), and correlations of the theory.
    """
    p = SimpleNamespace(**parameters)
    kinds, models, labels, _ = zip(*_planned(parameters))
    computed = computed.assign(kind=kinds, model=models, data=labels)
    computed["penalty"] = [model.split()[0] for model in models]
    computed["alpha"] = [float(f"{model} 0".split()[1]) for model in models]
    full = computed[(computed["kind"] == "full") & (computed["metric"] != "corruption_robustness")]
    full = full.assign(metric=full["metric"].replace(SHORT_NAMES), epochs=0)
    tv = full[full["metric"] == "tv"].set_index(NETWORK)["value"].rename("tv")
    full = full.join(tv, on=NETWORK)
    arrays, by_location = _maps(full, store, p.seeds[0])
    for panel in p.panels:
        images = load_data(panel["data"]).train.images[: panel.get("n_train")]
        arrays[f"{label(panel)}|target"] = data_smoothness(images.split(500)).numpy()
    theory, of_theory = squared_gradients_and_paths(p.n_draws, p.theory_seeds)
    derived = [part for part in (_means(computed), by_location) if len(part)]
    derived = [part.assign(n=1, status="done", epochs=0) for part in derived]
    rows = pd.concat([full, *derived, theory], ignore_index=True)
    other = computed[computed["kind"] != "full"]
    other = other.assign(metric="accuracy_" + other["kind"])
    columns = [*NETWORK, "epochs", "metric", "category", "tv", "value", "std", "n", "status"]
    rows = pd.concat([rows, *_compared(rows), other], ignore_index=True)
    return rows.reindex(columns=columns), arrays | of_theory


def _means(computed: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracy after early epochs, and mean robustness to a category."""
    done = computed[computed["status"] == "done"]
    early = done[done["kind"] == "early"].assign(metric="early_accuracy")
    robust = done[done["metric"] == "corruption_robustness"].assign(metric="robustness")
    rows = pd.concat([early, robust]).reindex(columns=[*dict.fromkeys([*computed, "corruption"])])
    by = [*NETWORK, "metric", rows["corruption"].map(CATEGORIES).rename("category")]
    return rows.groupby(by, dropna=False)["value"].mean().reset_index()


def _maps(
    full: pd.DataFrame, store: Reader, first_seed: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return landscapes of the first seed, curves and maps of accuracy, and rows of the latter."""
    arrays: dict[str, Any] = {}
    rows = []
    for row in full[full["metric"].isin(["tv", "accuracy_by_location", "ablation"])].itertuples():
        tensors = store.read_tensors(str(row.key)) or {}
        if row.seed == first_seed or row.metric != "tv":
            start = f"{row.data}|{row.model}|{row.seed}"
            arrays |= {f"{start}|{name}": tensor.numpy() for name, tensor in tensors.items()}
        if row.metric == "accuracy_by_location" and tensors:
            accuracy = tensors["accuracy"]
            n = len(accuracy)
            edge = float(accuracy[metrics.positions("edge", n)].mean())
            middle = float(accuracy[n // 2, n // 2])
            values = {"accuracy_at_edge": edge, "accuracy_in_the_middle": middle}
            values["lost_at_edge"] = middle - edge
            network = {name: getattr(row, name) for name in NETWORK}
            rows += [network | {"metric": m, "value": value} for m, value in values.items()]
    return arrays, pd.DataFrame(rows)


def _compared(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return rows of networks trained otherwise, beside those that claims compare them with.

    On digits, "translated" is no penalty on digits anywhere; beside RC-, "cropped" is RC+.
    """
    moved = rows[(rows["data"] == "digits-anywhere") & (rows["model"] == "none")]
    moved = moved[moved["metric"].isin(["tv", "accuracy_at_edge", "accuracy_in_the_middle"])]
    names = {"none": "cropped", "target 10": "target 10 cropped"}
    cropped = rows[rows["data"].str.endswith("-cropped") & rows["model"].isin(names)]
    cropped = cropped[cropped["metric"].isin(["tv", "accuracy", "accuracy_at_edge"])]
    return [
        moved.assign(data="digits-centred", model="translated", penalty="translated"),
        cropped.assign(
            data=cropped["data"].str.removesuffix("-cropped"),
            model=cropped["model"].map(names),
            penalty="cropped",
        ),
    ]
