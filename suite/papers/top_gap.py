"""Top-GAP: eight variants of a network, their class maps, and a battery of attacks."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from suite.store import Reader
from suite.training.folds import data_of
from suite.units import Measurement, Training, Unit, identity

TITLES = {
    "none": "unmodified",
    "pool": "pooling",
    "l1": "L1",
    "l1+pool": "pooling with L1",
    "fpn": "pyramid",
    "fpn+pool": "pyramid with pooling",
    "fpn+l1": "pyramid with L1",
    "fpn+l1+pool": "Top-GAP",
    "k_wta": "k-WTA",
    "flc": "FLC pooling",
    "adversarial": "adversarial training",
    "last": "L1 on the last activations",
    "all": "L1 on all activations",
}
VARIANTS = list(TITLES)[:8]
ALL_THREE = "fpn+l1+pool"
IN_CLAIMS = ["none", "l1+pool", "fpn+pool", "fpn+l1", ALL_THREE]
# Locations of the class maps whose receptive fields are drawn, as shares of the last row, column.
LOCATIONS = {"corner": (0.0, 0.0), "quarter": (0.25, 0.25), "centre": (0.5, 0.5)}
RESULT = "data network epochs seed value std n undefined status seconds key".split()
# What rows are selected by, where a measurement says nothing else.
NO_ATTACK = {"attack": "", "loss": "cross_entropy", "steps": 0, "epsilon": 0.0, "counts": ""}
DEFAULTS = {"metric": "training_loss", "battery": "none", "test": "own", "part": "", **NO_ATTACK}

Settings = dict[str, Any]
# What rows are selected by, the metric, and its settings.
Measured = tuple[Settings, str, Settings]


class Model(NamedTuple):
    """A training: `variant` names the parts that are switched on, or what takes their place."""

    variant: str
    k: float
    strength: float
    seed: int
    data: str


def main_model(p: SimpleNamespace, variant: str, seed: int, data: str | None = None) -> Model:
    """Return the model of a variant at the main k and strength."""
    k = p.k_main if "pool" in variant else 1.0
    return Model(variant, k, p.strength * ("l1" in variant), seed, data or p.data)


def _is_main(p: SimpleNamespace, model: Model) -> bool:
    return model == main_model(p, model.variant, model.seed, model.data)


def _swept(p: SimpleNamespace) -> list[Model]:
    return [Model(ALL_THREE, k, p.strength, s, p.data) for k in p.k_values for s in p.sweep_seeds]


def models(parameters: Mapping[str, Any]) -> list[Model]:
    """Return the models of the chapter."""
    p = SimpleNamespace(**parameters)
    seeds, few = p.seeds, p.sweep_seeds
    strengths = {"l1": p.strengths, "last": p.last_strengths, "all": p.all_strengths}
    result = [main_model(p, v, s) for v in VARIANTS for s in (seeds if v in IN_CLAIMS else few)]
    result += _swept(p)
    result += [main_model(p, v, s) for v in ("k_wta", "flc") for s in seeds]
    result += [main_model(p, "adversarial", s) for s in p.adversarial_seeds]
    result += [
        Model(variant, 1.0, strength, s, p.data)
        for variant, values in strengths.items()
        for strength in values
        for s in (seeds if variant == "l1" else few)
    ]
    compared = ("none", "l1", ALL_THREE)
    result += [main_model(p, v, s, d) for d in p.further_data for v in compared for s in seeds]
    return list(dict.fromkeys(result))


def training(p: SimpleNamespace, model: Model) -> Training:
    """Return the training of a model."""
    variant = model.variant
    strength: Settings = {"strength": model.strength}
    penalties = {"class_map_l1": strength} if model.strength else {}
    if variant in ("last", "all"):
        penalties = {"activation_l1": strength | {"layers": variant}}
    elif variant == "adversarial":
        step = {"step_size": 1.25 * p.epsilon, "n_steps": 1, "random_start": True}
        penalties = {"adversarial": {"strength": 1.0, "epsilon": p.epsilon, **step}}
    options = {"k": model.k, "fpn": "fpn" in variant, "width": p.fpn_width}
    options |= {"k_wta": {"k_wta": p.winners}, "flc": {"flc_pooling": True}}.get(variant, {})
    if p.backbone_name == "resnet":
        options |= {"backbone_options": p.backbone}
    else:
        options |= {"backbone": p.backbone_name, "pretrained": p.pretrained}
    common = {name: getattr(p, name) for name in ("n_train", "epochs", "batch_size")}
    if p.folds:
        common |= {"folds": p.folds, "fold": model.seed % p.folds}
    return Training(
        data=model.data,
        network="top_gap",
        network_options=options,
        learning_rate=p.learning_rate,
        penalties=penalties,
        seed=model.seed,
        **common,
    )


def _attack(name: str, n_images: int, epsilon: float, **attack_settings: Any) -> Settings:
    settings = {"attack_settings": attack_settings} if attack_settings else {}
    return {"attack": name, "epsilon": epsilon, "n_images": n_images} | settings


def _battery(p: SimpleNamespace, model: Model) -> list[tuple[str, Settings]]:
    """Return the battery against gradient masking, by the names of its parts."""
    n, steps = p.n_battery, {"steps": p.pgd_steps}
    variant, swept = model.variant, model.seed in p.sweep_seeds
    attacks: list[Settings] = []
    if variant != "fpn+l1":  # which gets the sweeps only
        attacks.append(_attack("pgd", n, p.epsilon, **steps))
        attacks.append(_attack("apgd", n, p.epsilon, **steps))
        attacks.append(_attack("apgd", n, p.epsilon, **steps, loss="logit_ratio"))
        attacks.append(_attack("square", n, p.epsilon, steps=p.n_queries))
    if variant == ALL_THREE and model.seed in p.seeds:
        source = identity(training(p, main_model(p, "none", model.seed)))
        attacks.append(attacks[0] | {"source": source, "keep_images": False})
    rows = [("attacks", settings) for settings in attacks]
    if variant == ALL_THREE or swept:
        coarse = {"steps": 20, "relative_step": 0.1}
        rows += [("epsilon", _attack("pgd", n, size, **coarse)) for size in p.epsilons]
    if swept:
        rows += [("steps", _attack("pgd", n, p.epsilon, steps=s)) for s in p.steps_swept]
    return rows


def _attacks(p: SimpleNamespace, model: Model) -> list[Measured]:
    """Return the attacks on a model."""
    rows = [("none", _attack("fgsm", p.n_attacked, p.epsilon))]
    rows += [("none", _attack("pgd", p.n_attacked, p.epsilon, steps=p.pgd_steps))]
    if _is_main(p, model):
        correct = {"counts": "correct", "keep_images": False}
        rows += [("none", settings | correct) for _, settings in rows]
        if model.variant in ("none", "fpn+l1", ALL_THREE, "adversarial") and model.data == p.data:
            rows += _battery(p, model)
    measured = [(_labels(part, settings), "robust_accuracy", settings) for part, settings in rows]
    strong = [s for part, s in rows if part == "attacks" and "source" not in s]
    if strong:
        labels = _labels("attacks", strong[0]) | {"attack": "together", "loss": ""}
        each = [{k: v for k, v in settings.items() if k != "n_images"} for settings in strong]
        measured.append((labels, "robust_to_all", {"n_images": p.n_battery, "attacks": each}))
    return measured


def _labels(battery: str, settings: Settings) -> Settings:
    """Return what the rows of an attack are selected by."""
    labels = {"metric": "robust_accuracy", "battery": battery, "counts": "unchanged", "steps": 1}
    labels |= {name: settings[name] for name in ("attack", "epsilon", "counts") if name in settings}
    labels |= settings.get("attack_settings", {})
    labels.pop("relative_step", None)
    return labels | ({"attack": "transfer"} if "source" in settings else {})


def _measured(p: SimpleNamespace, model: Model) -> list[Measured]:
    """Return what is measured of a model."""
    n, here = {"n_images": p.n_images}, model.data == p.data
    compared = [main_model(p, v, s) for v in ("none", ALL_THREE) for s in p.seeds]
    rows: list[Measured] = [({}, "accuracy", {})]
    if p.shifted and here:
        rows.append(({"test": "shifted"}, "accuracy", {"data": p.shifted}))
    if p.n_corrupted and model in compared:
        settings = {"level": 1, "n_images": p.n_corrupted}
        rows.append(({"test": "corrupted"}, "corrupted_accuracy", settings))
    rows.append(({}, "class_map_sparsity", n))
    if model in _swept(p):
        predicted = n | {"class_of": "predicted"}
        rows.append(({"metric": "predicted_map_mean"}, "class_map_sparsity", predicted))
    if p.with_masks and here:
        rows.append(({}, "mask_iou", n))
    parts = ("centre", "corner", "distance")
    rows += [({"part": part}, "erf_distance", n | {"part": part}) for part in parts]
    rows = [({"metric": metric} | labels, metric, settings) for labels, metric, settings in rows]
    return rows + _attacks(p, model)


def _planned(p: SimpleNamespace) -> list[tuple[Settings, Unit]]:
    """Return every unit with what claims and figures select it by."""
    pairs: list[tuple[Settings, Unit]] = []
    for model in models(vars(p)):
        common = DEFAULTS | {name: getattr(model, name) for name in ("variant", "k", "strength")}
        common |= {"main": _is_main(p, model), "sweep": model in _swept(p)}
        common |= {"further": model.data != p.data}
        network = training(p, model)
        pairs.append((common, network))
        for labels, metric, settings in _measured(p, model):
            unit = Measurement(training=network, metric=metric, settings=settings)
            pairs.append((common | labels, unit))
    return pairs


def _drawn(p: SimpleNamespace) -> dict[str, Measurement]:
    """Return the measurements that keep what is drawn, by the names of their arrays."""
    n, first = {"n_images": p.n_images}, p.sweep_seeds[0]
    main = {variant: training(p, main_model(p, variant, first)) for variant in VARIANTS}
    of_maps = {f"maps|{variant}": network for variant, network in main.items()}
    for model in _swept(p):
        if model.seed == first:
            of_maps[f"maps_k|{model.k:g}"] = training(p, model)
    return {
        name: Measurement(training=network, metric="class_map_sparsity", settings=n)
        for name, network in of_maps.items()
    } | {
        f"erf|{variant}|{name}": Measurement(
            training=main[variant],
            metric="effective_receptive_field",
            settings=n | {"location": list(location)},
        )
        for variant in ("none", ALL_THREE)
        for name, location in LOCATIONS.items()
    }


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter."""
    p = SimpleNamespace(**parameters)
    return [*(unit for _, unit in _planned(p)), *_drawn(p).values()]


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, and images, class maps and receptive fields."""
    p = SimpleNamespace(**parameters)
    labels = pd.DataFrame([labels for labels, _ in _planned(p)])
    rows = labels.join(computed[RESULT])
    rows = pd.concat([rows, training_seconds(rows)], ignore_index=True)
    drawn = _drawn(p)
    arrays: dict[str, NDArray[Any]] = {}
    for name, key in zip(drawn, computed["key"].iloc[len(labels) :], strict=True):
        for kind, tensor in (store.read_tensors(key) or {}).items():
            arrays[name] = tensor.numpy() if kind == "field" else _uint8(tensor[: p.n_shown])
    test = data_of(training(p, main_model(p, ALL_THREE, p.sweep_seeds[0]))).test
    arrays["images"] = test.images[: p.n_shown].expand(-1, 3, -1, -1).numpy()
    arrays["labels"] = test.labels[: p.n_shown].numpy()
    return rows.assign(matched=matched(rows)), arrays


def kept_tensors(parameters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `collect` reads of the tensors of a unit: maps of the images that are shown."""
    n = parameters["n_shown"]
    return {name: t if name == "field" else t[:n] for name, t in tensors.items()}


def _uint8(maps: Tensor) -> NDArray[np.uint8]:
    return (255 * maps).round().clamp(0, 255).byte().numpy()


def training_seconds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of the main trainings, over those of the unmodified network."""
    trained = rows[(rows["metric"] == "training_loss") & rows["main"] & (rows["status"] == "done")]
    plain = trained[trained["variant"] == "none"].set_index(["data", "seed"])["seconds"]
    index = pd.MultiIndex.from_frame(trained[["data", "seed"]])
    ratio = trained["seconds"] / plain.reindex(index).to_numpy()
    changes = {"metric": "relative_training_seconds", "value": ratio, "std": math.nan, "n": 1}
    return trained.assign(**changes)[ratio.notna()]


def matched(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Mark the network with all three parts, and L1 alone where its clean accuracy is nearest."""
    clean = rows[(rows["metric"] == "accuracy") & (rows["test"] == "own") & ~rows["further"]]
    clean = clean[clean["status"] == "done"]
    goal = clean[clean["main"] & (clean["variant"] == ALL_THREE)]["value"].mean()
    by_strength = clean[clean["variant"] == "l1"].groupby("strength")["value"].mean()
    nearest = (by_strength - goal).abs().idxmin()
    alone = (rows["variant"] == "l1") & (rows["strength"] == nearest)
    return (alone | ((rows["variant"] == ALL_THREE) & rows["main"])) & ~rows["further"]
