"""Marginal density: its penalty and others, by leakage, attacks, groups, noise and detection."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from suite import methods
from suite.errors import unknown
from suite.methods import BALANCED, penalty, scheduled
from suite.papers.design import Item, Plan, Wanted, grid, measurement, panels_of, settings_of
from suite.papers.names import NAMES
from suite.units import Training, Values, training_of

METHODS = {method.name: method for method in methods.MARGINAL_DENSITY}
TABLE_3 = ["standard", "input_gradient", "density"]
TABLE_6 = ["standard", "score_matching", "input_gradient", "density"]
TABLE_2 = [*TABLE_6, "group_dro", "group_dro_density"]
TABLE_1 = [*TABLE_3, "at_fgsm", "at_pgd", "softplus", "hessian"]
PHOTOS = [*TABLE_6, "cure"]
ON_REQUEST = "pixel_perturbation_centred"  # measured in the sweeps that name it
ATTACKED = ["standard", "at_pgd", "input_gradient", "density"]
FORMS_TRAINED = ("naive", "stable", "efficient")
SCORES = {"ood_auroc": "log_density", "ood_logit_auroc": "logit"}
SCORES |= {"ood_probability_auroc": "max_probability"}
RATIOS = ["leakage", "whole", "shift", "centred"]  # to standard training
MEASURES: dict[str, Values] = NAMES["marginal_density"]["measures"]
ACCURACIES = "worst_group_accuracy usual_accuracy"
PIXELS = "insertion pixel_perturbation"  # what becomes of the logit as pixels come and go
GRADIENTS = "label_gradient others_gradient"  # of the label's logit and of others, for remark 3
# What a panel may say, too; a sweep may be a part of its own, and have some of the metrics only.
OF_PANEL: Values = {"foreign": [], "warm_up": None, "part": "strength", "metrics": []}
PANELS = "block_panels sweeps step_panels group_panels group_sweeps photo_panels ascent_panels"
# Parts in which each method has the strength of the experiment.
SWEPT = ("strength", "long", "group_sweep")
# Sweeps, each with the part that compares penalties at equal clean accuracy.
EQUAL = {"strength": "equal", "long": "long_equal"}
# Clean accuracy below that of standard training at which methods are compared.
LOSSES = (0.01, 0.02, 0.03, 0.04, 0.05)
STEP_SIZES = (0.01, 0.2)  # of PGD-20, each a quantity of its own there beside their mean
ROUNDING = 1e-9  # of an accuracy
# What is no size, and may be zero or negative: its mean is the arithmetic one.
SHARES = {"accuracy", "pgd_l2", "pgd_linf", "auto_linf", "insertion", "pixel_perturbation"}
SHARES |= {"cosine_gradient", "pgd_l2_0.2", "pgd_l2_0.01", ON_REQUEST}


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists, and keys, of parameters may be."""
    others = ["softplus", "hessian", "score_matching", "cure"]  # of strengths of their own
    every = [*TABLE_1, *TABLE_2, *PHOTOS, *(f"density_{form}" for form in FORMS_TRAINED)]
    swept = [*others, "loss_gradient"]
    return {"others": others, "other_strengths": swept, "left_out": [*dict.fromkeys(every)]}


def training(
    p: SimpleNamespace, method: str, seed: int, strength: float, norm: float = 2.0
) -> Training:
    """Return the training of a method with a strength: the β of the activations for SoftPlus.

    `norm` is that of the density's gradient. The Hessian of a logit needs activations that have
    one, so SoftPlus at its usual β. Adversarial training has a radius of its own.
    """
    fields = {"learning_rate": 1e-3, **p.fields}
    if method == "hessian":
        fields = METHODS["softplus"].apply(fields, p.others["softplus"])
    given = p.adversarial_epsilon if method.startswith("at_") else strength
    fields = METHODS[method].apply(fields, given)
    if norm != 2:
        fields = penalty("marginal_density", p=norm)(fields, strength)
    return Training(**scheduled(fields, warm_up=p.warm_up), seed=seed)


def _wanted(p: SimpleNamespace, names: str, **settings: Any) -> list[Wanted]:
    """Return measures by their names, each with further settings."""
    labels = {key: settings[key] for key in ("noise_std", "form") if key in settings}
    return [
        Wanted({"metric": name} | labels, m["metric"], settings_of(m, p) | settings)
        for name, m in ((name, MEASURES[name]) for name in names.split())
    ]


def _attack(norm: str, epsilon: float, attack: str, title: str, n: int, **settings: Any) -> Wanted:
    common = {"attack": attack, "epsilon": epsilon, "n_images": n, "counts": "correct"}
    common |= {"keep_images": False, "attack_settings": settings | {"norm": norm}}
    labels = {"metric": title, "epsilon": epsilon, "attack": attack, "norm": norm}
    return Wanted(labels, "robust_accuracy", common)


def _pgd_20(norm: str, epsilon: float, step_size: float, n: int) -> Wanted:
    """Return accuracy under PGD-20 as the paper's tables have it."""
    steps = {"steps": 20, "relative_step": round(step_size / epsilon, 6)}
    wanted = _attack(norm, epsilon, "pgd", f"pgd_{norm}", n, **steps)
    wanted.labels.update(step_size=step_size)
    return wanted


def _auto(p: SimpleNamespace, norm: str, epsilon: float, title: str, *parts: str) -> Wanted:
    settings = {"parts": list(parts), "steps": p.auto_steps, "queries": p.n_queries}
    return _attack(norm, epsilon, "auto_attack", title, p.n_battery, **settings)


def _changes(p: SimpleNamespace) -> list[Wanted]:
    """Return parts of the density's gradient, and changes under noise."""
    pairs = itertools.product(("gradient_change", "density_change"), p.noise_levels)
    changes = [_wanted(p, name, noise_std=noise) for name, noise in pairs]
    return [*_wanted(p, "whole shift centred"), *itertools.chain(*changes)]


def _detection(p: SimpleNamespace) -> list[Wanted]:
    """Return the measurements that detect out-of-distribution images."""
    settings = {"n_images": p.n_foreign}
    return [
        Wanted({"metric": n, "foreign": d}, "ood_auroc", settings | {"data": d, "score": score})
        for d, (n, score) in itertools.product(p.foreign, SCORES.items())
    ]


def _grid(
    part: str,
    p: SimpleNamespace,
    names: Sequence[str],
    wanted: Sequence[Wanted],
    strength: float,
    seeds: Sequence[int],
    norm: float = 2.0,
) -> Iterator[Item]:
    """Yield what is measured of the networks of a panel, one for each method and seed.

    `strength` is that of the penalties on the gradients of density and logit; other methods have
    their own, but for those of the parts in `SWEPT`.
    """
    for method in (name for name in names if name not in p.left_out):
        own = strength if part in SWEPT else _own_strength(p, method, strength)
        labels = {"panel": part, "method": method, "p": norm, "strength": own}
        for seed in seeds:
            networks = [(training(p, method, seed, own, norm), labels)]
            for item in grid(networks, wanted):
                keep = "" if part in SWEPT else _kept(p, item, seed, first=seed == min(seeds))
                yield item._replace(keep=keep)


def _kept(p: SimpleNamespace, item: Item, seed: int, *, first: bool) -> str:
    """Return the name of what is drawn of a measurement of the first seed, or of each one."""
    labels = item.labels or {}
    data, method, metric = p.data, labels["method"], labels["metric"]
    form = labels.get("form", method)
    return {
        "worst_group_accuracy": f"groups|{data}|{method}|{seed}",
        "pixel_perturbation": f"curve|{data}|{p.network}|{method}",  # their mean
        "training_steps": f"training_steps|{data}|{form}" * first,
        "cosine_gradient": f"cosine_gradient|{data}|{method}" * first,
    }.get(metric, "")


def _own_strength(p: SimpleNamespace, method: str, strength: float) -> float:
    own = method == "input_gradient" or "density" in method
    return strength if own else p.others.get(method, 0.0)


def _of_block(p: SimpleNamespace, seeds: Sequence[int], first: bool) -> Iterator[Item]:
    attacked = [_pgd_20(**reading, n=p.n_images) for reading in (p.pgd if first else p.pgd[:1])]
    plain = [*_wanted(p, "accuracy leakage leakage_share"), *attacked]
    shifts = _wanted(p, "leakage_centred leakage_log_probability" + " leakage_alone" * first)
    wanted = [*plain, *_changes(p)]
    if first:
        wanted += _wanted(p, f"{PIXELS} {GRADIENTS} cosine_gradient")
    forms = ["density_stable"] + ["density_naive"] * (p.network == "mlp")
    yield from _grid("methods", p, TABLE_3, wanted, p.strength, p.seeds)
    if first:
        others = [name for name in TABLE_1 if name not in TABLE_3]
        yield from _grid("methods", p, others, wanted, p.strength, seeds)
    few = [seed for seed in seeds if seed in p.seeds]
    yield from _grid("methods", p, TABLE_3, shifts, p.strength, few)
    yield from _grid("implementations", p, forms, plain, p.strength, p.few_seeds)


def _masking(p: SimpleNamespace, seeds: Sequence[int]) -> Iterator[Item]:
    """Yield attacks that fail in other ways than PGD-20 does, and PGD at several radii."""
    n, crossing = p.n_battery, {"steps": 20, "relative_step": 0.1}
    for norm, radius in {"l2": p.battery_l2, "linf": p.battery_linf}.items():
        battery = [
            _attack(norm, radius, "fgsm", "fgsm", n),
            _attack(norm, radius, "pgd", "pgd", n, **crossing),
            _attack(norm, radius, "pgd", "longer", n, steps=100, relative_step=0.1),
            _auto(p, norm, radius, "square", "square"),
            _auto(p, norm, radius, "auto", "apgd-ce", "apgd-t", "fab-t", "square"),
        ]
        yield from _grid("battery", p, ATTACKED, battery, p.strength, seeds)
    sizes = [_attack("linf", size, "pgd", "pgd", n, **crossing) for size in p.epsilons]
    yield from _grid("radii", p, ATTACKED, sizes, p.strength, seeds)


def _of_sweep(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the trade-off: what each method gives, at each strength, for clean accuracy."""
    blocks = p.data.startswith("blockmnist")
    readings = [each for each in p.pgd if each["norm"] == "l2" or not blocks]
    wanted = [
        *_wanted(p, "accuracy" + " leakage leakage_share" * blocks),
        *(_pgd_20(**reading, n=p.n_images) for reading in readings),
        *_wanted(p, "leakage_other" * blocks),
        _auto(p, "linf", p.battery_linf, "auto_linf", "apgd-ce", "apgd-t"),
        *_wanted(p, GRADIENTS + " cosine_gradient" * (not blocks)),
        *_wanted(p, PIXELS),
        *_wanted(p, ON_REQUEST * (ON_REQUEST in p.metrics)),
        *_wanted(p, "gradient_change absolute_change", noise_std=p.noise_levels[-1]),
    ]
    known = {each.labels["metric"] for each in wanted}
    for name, named, choices in (("part", [p.part], EQUAL), ("metric", p.metrics, known)):
        if wrong := [each for each in named if each not in choices]:
            raise unknown(f"{name} of a sweep", wrong[0], choices)
    wanted = [each for each in wanted if not p.metrics or each.labels["metric"] in p.metrics]
    for labels in (each.labels for each in wanted if p.part == "long"):
        labels["metric"] += f"_{labels['step_size']:g}" if "step_size" in labels else ""
    yield from _grid(p.part, p, ["standard"], wanted, 0.0, p.sweep_seeds)
    for strength in p.strengths:
        both = ["density", "input_gradient"]
        yield from _grid(p.part, p, both, wanted, strength, p.sweep_seeds)
    for method, strengths in p.other_strengths.items():
        for strength in strengths:
            yield from _grid(p.part, p, [method], wanted, strength, p.few_seeds)


def _of_norms(p: SimpleNamespace, seeds: Sequence[int]) -> Iterator[Item]:
    plain = [*_wanted(p, "accuracy leakage leakage_share"), _pgd_20(**p.pgd[0], n=p.n_images)]
    for strength in p.norm_strengths:
        for norm in (2.0, *p.norms):
            yield from _grid("norms", p, ["density"], plain, strength, seeds, norm)


def _of_steps(p: SimpleNamespace) -> Iterator[Item]:
    """Yield Figure 2: what each form gives in the steps of a training."""
    wanted = [each for form in FORMS_TRAINED for each in _wanted(p, "training_steps", form=form)]
    yield from _grid("training", p, ["standard"], wanted, 0.0, p.few_seeds)


def _of_groups(p: SimpleNamespace, seeds: Sequence[int]) -> Iterator[Item]:
    dro, strength = [name for name in TABLE_2 if name not in TABLE_3], p.group_strength
    accuracies = _wanted(p, ACCURACIES)
    yield from _grid("groups", p, TABLE_3, accuracies, strength, p.seeds)
    yield from _grid("groups", p, dro, accuracies, strength, seeds)
    yield from _grid("groups", p, TABLE_3, _wanted(p, "insertion"), strength, seeds)
    yield from _grid("foreign", p, TABLE_6, _detection(p), strength, seeds)


def _of_group_sweep(p: SimpleNamespace) -> Iterator[Item]:
    for strength in (0.0, *p.group_strengths):
        names = ["density", "input_gradient"] if strength else ["standard"]
        both = [name + end for name in names for end in ("", BALANCED)]
        accuracies = _wanted(p, ACCURACIES)
        yield from _grid("group_sweep", p, both, accuracies, strength, p.group_seeds)


def _of_photos(p: SimpleNamespace) -> Iterator[Item]:
    attacks = [
        _pgd_20(norm, size, size / 8, p.n_images)
        for norm, values in {"l2": p.photo_l2, "linf": p.photo_linf}.items()
        for size in values
    ]
    wanted = [*_wanted(p, "accuracy"), *attacks, *_changes(p)]
    yield from _grid("photos", p, PHOTOS, wanted, p.photo_strength, p.seeds)
    yield from _grid("foreign", p, PHOTOS, _detection(p), p.photo_strength, p.seeds)


def _drawn(panels: Mapping[str, list[SimpleNamespace]]) -> Iterator[Item]:
    """Yield what is drawn: maps of the first panels, and images that activate a class."""
    block, groups = panels["block_panels"][0], panels["group_panels"][0]
    photos = [*panels["photo_panels"], *panels["ascent_panels"]]
    maps = {"saliency": "integrated_gradients", "n_images": block.n_maps}
    ascent = {"n_classes": 8, "n_steps": 40, "step_size": 0.5}
    pictures = [("maps|block", block, ATTACKED, block.strength)]
    pictures += [("maps|groups", groups, TABLE_3, groups.group_strength)]
    pictures += [("ascent|block", block, ATTACKED, block.strength)]
    pictures += [("ascent|photo", p, PHOTOS, p.photo_strength) for p in photos]
    kinds = {"maps": ("saliency_maps", maps), "ascent": ("activation_ascent", ascent)}
    for name, p, shown, strength in pictures:
        metric, settings = kinds[name.partition("|")[0]]
        start = f"{name}|{p.data}|{p.network}" if name.startswith("ascent") else name
        for method in (name for name in shown if name not in p.left_out):
            network = training(p, method, p.seeds[0], _own_strength(p, method, strength))
            yield Item(measurement(network, metric, **settings), keep=f"{start}|{method}")


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: what is measured and drawn, and the trainings.

    Raises:
        UsageError: a key of a panel that is not known or is missing, or a part or metric of a sweep
            that is not known.
    """
    panels = {}
    for kind in PANELS.split():
        common = parameters if kind == "block_panels" else {**parameters, "left_out": []}
        panels[kind] = panels_of(common, OF_PANEL, kind=kind, never=(*PANELS.split(), "n_maps"))
    seeds, blocks, sweeps = parameters["seeds"], panels["block_panels"], panels["sweeps"]
    parts = [
        *(_of_block(p, seeds, number == 0) for number, p in enumerate(blocks)),
        _masking(blocks[0], seeds),
        *map(_of_sweep, sweeps),
        _of_norms(sweeps[0], parameters["few_seeds"]),
        *map(_of_steps, panels["step_panels"]),
        *(_of_groups(p, seeds) for p in panels["group_panels"]),
        *map(_of_group_sweep, panels["group_sweeps"]),
        *map(_of_photos, panels["photo_panels"]),
        _drawn(panels),
    ]
    found = Plan(itertools.chain(*parts))
    return Plan([*found, *(Item(training_of(unit)) for unit in found.units())])


def derive(
    parameters: Values, rows: pd.DataFrame, arrays: dict[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a value, also as ratios to the standard network and at equal accuracy."""
    ratios = [to_standard(rows, metric) for metric in RATIOS]
    parts = [rows.assign(against=""), *ratios, at_equal_accuracy(rows)]
    return pd.concat([part for part in parts if len(part)], ignore_index=True), arrays


def drawn(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is drawn of the tensors of a unit: of curves their mean over images."""
    return {n: t.view(-1, t.shape[-1]).mean(0) if n == "curves" else t for n, t in tensors.items()}


def at_equal_accuracy(rows: pd.DataFrame, losses: Sequence[float] = LOSSES) -> pd.DataFrame:
    """Compare density with each other penalty where both cost the same clean accuracy.

    Along its strengths a method loses ever more clean accuracy against standard training, by
    isotonic regression, since single networks scatter. What is measured is interpolated, for each
    seed, to where `losses` of it are lost, for sizes by logarithms, and averaged over those losses
    that lie between measured strengths of both methods.

    Args:
        rows: of the sweeps, the keys of `EQUAL`, among others.
        losses: of clean accuracy, against standard training.

    Returns:
        Rows of the parts that are the values of `EQUAL`: `method`, and `against`, the penalty that
        density is compared with there.
    """
    rows = rows[rows["panel"].isin(list(EQUAL)) & (rows["status"] == "done")]
    apart = rows[(rows["metric"] == "pgd_l2") & rows["step_size"].isin(STEP_SIZES)]
    names = apart["step_size"].astype(object).map("pgd_l2_{:g}".format)
    rows, found = pd.concat([rows, apart.assign(metric=names)]), []
    for (name, data, network, seed), part in rows.groupby(["panel", "data", "network", "seed"]):
        curves = _curves(part)
        for other in sorted(curves.keys() - {"density"}):
            pair = [curves[name] for name in ("density", other) if name in curves]
            first = max(curve.index[0] for curve in pair) - ROUNDING
            reached = min(curve.index[-1] for curve in pair) + ROUNDING
            common_losses = [loss for loss in losses if first <= loss <= reached]
            if len(pair) < 2 or not common_losses:
                continue
            common = {"panel": EQUAL[str(name)], "data": data, "network": network, "seed": seed}
            common |= {"against": other, "n": len(common_losses), "status": "done"}
            for method, curve in zip(("density", other), pair, strict=True):
                for metric in curve.columns:
                    value = _mean_at(common_losses, curve[metric], metric)
                    found.append(common | {"method": method, "metric": metric, "value": value})
    return pd.DataFrame(found)


def _curves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each method what was measured, a column a metric, by the clean accuracy lost."""
    wide = rows.pivot_table("value", ["method", "strength"], "metric")
    if "standard" not in wide.index:
        return {}
    from scipy.optimize import isotonic_regression

    start = float(wide.loc["standard"]["accuracy"].iloc[0])
    curves = {}
    for method in set(rows["method"]) - {"standard"}:
        # SoftPlus is the smoother the smaller its β.
        curve = wide.loc[method].sort_index(ascending=method != "softplus")
        lost = isotonic_regression(start - curve["accuracy"].to_numpy()).x
        curves[method] = curve.set_index(np.asarray(lost))
    return curves


def _mean_at(losses: Sequence[float], values: "pd.Series[float]", metric: str) -> float:
    """Return the mean of interpolated values, of their logarithms where they are sizes."""
    of_shares = metric in SHARES
    points = values.to_numpy() if of_shares else np.log(values.to_numpy())
    mean = float(np.interp(losses, values.index.to_numpy(float), points).mean())
    return mean if of_shares else float(np.exp(mean))


def to_standard(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Divide a metric by that of the standard network of the same data, network and seed."""
    rows = rows[rows["panel"].isin(["methods", "photos"]) & (rows["metric"] == metric)]
    pair = ["data", "network", "seed"]
    standard = rows[rows["method"] == "standard"].set_index(pair)["value"]
    values = rows["value"] / standard.reindex(pd.MultiIndex.from_frame(rows[pair])).to_numpy()
    return rows.assign(metric=f"{metric}_ratio", value=values, std=np.nan)
