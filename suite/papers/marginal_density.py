"""Marginal density: its penalty and others, by leakage, attacks, groups, noise and detection."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from suite import methods
from suite.errors import unknown
from suite.methods import penalty, schedule
from suite.papers import design
from suite.papers.design import Arrays, Derived, Item, Plan, Wanted, changed, panels_of
from suite.papers.names import NAMES
from suite.units import Training, Values, training_of

METHODS = {method.name: method for method in methods.MARGINAL_DENSITY}
# Lists of methods, measures, sets of these, and what is measured of which networks.
NAMED: dict[str, Any] = NAMES["marginal_density"]
LISTS: dict[str, list[str]] = NAMED["lists"]
ON_REQUEST = "pixel_perturbation_centred"  # measured in the sweeps that name it
RATIOS = ["leakage", "whole", "shift", "centred"]  # to standard training
# What a panel may say, too; a sweep may be a part of its own, and have some of the metrics only.
OF_PANEL: Values = {"foreign": [], "warm_up": None, "part": "strength", "metrics": []}
PANELS = "block_panels sweeps step_panels group_panels group_sweeps photo_panels ascent_panels"
# Parts in which each method has the strength of the experiment.
SWEPT = ("strength", "long", "group_sweep")
# Sweeps, each with the part that compares penalties at equal clean accuracy.
EQUAL = {"strength": "equal", "long": "long_equal"}
# Clean accuracy below that of standard training at which methods are compared.
LOSSES = (0.01, 0.02, 0.03, 0.04, 0.05)
ROUNDING = 1e-9  # of an accuracy
# What is no size, and may be zero or negative: its mean is the arithmetic one.
SHARES: list[str] = NAMED["shares"]


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists, and keys, of parameters may be."""
    others = ["softplus", "hessian", "score_matching", "cure"]  # of strengths of their own
    swept, listed = [*others, "loss_gradient"], [*itertools.chain(*LISTS.values())]
    return {"others": others, "other_strengths": swept, "left_out": listed}


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
    return Training(**schedule(fields, warm_up=p.warm_up), seed=seed)


def _wanted(p: SimpleNamespace, names: str) -> Iterator[Wanted]:
    """Yield measures, and those of sets: see `suite.papers.design.wanted`."""
    every = " ".join(NAMED["sets"].get(name, name) for name in names.split())
    for each in design.wanted(NAMED["measures"], every, p):
        each.labels.pop("relative_step", None)  # follows from others
        each.labels["attack"] = each.settings.get("attack")
        yield each


def _grid(
    p: SimpleNamespace,
    part: str,
    names: Iterable[str],
    strengths: Sequence[float],
    seeds: Sequence[int],
    wanted: Sequence[Wanted],
    norms: Sequence[float] = (2.0,),
) -> Iterator[Item]:
    """Yield what is measured of the networks of a panel, one for each method and seed.

    `strengths` are those of the penalties on the gradients of density and logit; other methods have
    their own, but for those of the parts in `SWEPT`.
    """
    names = [name for name in names if name not in p.left_out]
    for method, strength, norm in itertools.product(names, strengths, norms):
        given = part in SWEPT or method == "input_gradient" or "density" in method
        own = strength if given else p.others.get(method, 0.0)
        labels = {"panel": part, "method": method, "p": norm, "strength": own}
        for seed in seeds:
            for item in design.grid([(training(p, method, seed, own, norm), labels)], wanted):
                found = {**vars(p), **(item.labels or {}), "seed": seed}
                measure = NAMED["measures"].get(found["metric"], {})
                shown = part not in SWEPT and (seed == min(seeds) or not measure.get("of_first"))
                keep = measure.get("keep", "").format(**found) if shown else ""
                yield Item(item.unit, None if measure.get("only_drawn") else item.labels, keep)


def _reading(norm: str, epsilon: float, step_size: float) -> dict[str, Any]:
    """Return an attack of 20 steps, whose measure asks for steps as a part of the radius."""
    part = round(step_size / epsilon, 6)
    return {"norm": norm, "epsilon": epsilon, "step_size": step_size, "relative_step": part}


def _panels(parameters: Values) -> dict[str, list[SimpleNamespace]]:
    """Return the panels of each kind, and what is measured at other radii, seeds and norms.

    Each has the strength that is usual in it, and what its measures are taken at. The first panel
    with a null block has all attacks of 20 steps, the others the first one.
    """
    found, usual = {}, {"group_panels": "group_strength", "photo_panels": "photo_strength"}
    usual["ascent_panels"] = "photo_strength"
    for kind in PANELS.split():
        common = parameters if kind == "block_panels" else {**parameters, "left_out": []}
        found[kind] = panels_of(common, OF_PANEL, kind=kind, never=(*PANELS.split(), "n_maps"))
        for p in found[kind]:
            p.usual, p.none = [getattr(p, usual.get(kind, "strength"))], [0.0]
            p.all_seeds, p.first_seed = parameters["seeds"], p.seeds[:1]
            p.shared_seeds = [seed for seed in p.all_seeds if seed in p.seeds]
            p.readings = [_reading(**p.pgd[0])]
            p.balls = [{"norm": n, "epsilon": getattr(p, f"battery_{n}")} for n in ("l2", "linf")]
            p.noises = [{"noise_std": noise} for noise in p.noise_levels]
            p.sets = [{"foreign": name} for name in p.foreign]
            p.forms = [{"form": form} for form in ("naive", "stable", "efficient")]
    first, sweep = found["block_panels"][0], found["sweeps"][0]
    first.readings = [_reading(**reading) for reading in first.pgd]
    for p in found["photo_panels"]:
        sizes = [("l2", size) for size in p.photo_l2] + [("linf", size) for size in p.photo_linf]
        p.readings = [_reading(norm, size, size / 8) for norm, size in sizes]
    radii = changed(first, balls=[{"norm": "linf", "epsilon": size} for size in first.epsilons])
    orders = [2.0, *sweep.norms]
    norms = changed(sweep, few_seeds=parameters["few_seeds"], orders=orders)
    long = changed(first, orders=orders)
    mlps = [p for p in found["block_panels"] if p.network == "mlp"]
    found |= {"first": [first], "mlps": mlps, "radii": [radii], "norms": [norms], "long": [long]}
    return found | {"first_groups": found["group_panels"][:1]}


def _of_sweep(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the trade-off: what each method gives, at each strength, for clean accuracy."""
    blocks = p.data.startswith("blockmnist")
    readings = [_reading(**each) for each in p.pgd if each["norm"] == "l2" or not blocks]
    here = changed(p, readings=readings, balls=p.balls[1:], noises=p.noises[-1:])
    own = "swept_blocks" if blocks else "cosine_gradient"
    wanted = [*_wanted(here, f"swept {own} {ON_REQUEST * (ON_REQUEST in p.metrics)}")]
    known = {each.labels["metric"] for each in wanted}
    for name, named, choices in (("part", [p.part], EQUAL), ("metric", p.metrics, known)):
        if wrong := [each for each in named if each not in choices]:
            raise unknown(f"{name} of a sweep", wrong[0], choices)
    wanted = [each for each in wanted if not p.metrics or each.labels["metric"] in p.metrics]
    for labels in (each.labels for each in wanted if p.part == "long"):
        labels["metric"] += f"_{labels['step_size']:g}" if "step_size" in labels else ""
    strengths = {"standard": [0.0], "density": p.strengths, "input_gradient": p.strengths}
    for method, sizes in [*strengths.items(), *p.other_strengths.items()]:
        seeds = p.sweep_seeds if method in strengths else p.few_seeds
        yield from _grid(p, p.part, [method], sizes, seeds, wanted)


def _of_parts(panels: Mapping[str, list[SimpleNamespace]]) -> Iterator[Item]:
    """Yield what `names.yml` has of each part but sweeps."""
    for row in NAMED["parts"]:
        for p in panels[row["of"]]:
            named, wanted = LISTS[row["methods"]], [*_wanted(p, row["measures"])]
            strengths, seeds = getattr(p, row.get("strengths", "usual")), row.get("seeds", "seeds")
            norms = getattr(p, row.get("norms", ""), (2.0,))
            yield from _grid(p, row["part"], named, strengths, getattr(p, seeds), wanted, norms)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: what is measured and drawn, and the trainings.

    Raises:
        UsageError: a key of a panel that is not known or is missing, or a part or metric of a sweep
            that is not known.
    """
    panels = _panels(parameters)
    found = Plan([*_of_parts(panels), *itertools.chain(*map(_of_sweep, panels["sweeps"]))])
    return Plan([*found, *(Item(training_of(unit)) for unit in found.units())])


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Return one row a value, also as ratios to the standard network and at equal accuracy."""
    parts = [rows.assign(against=""), to_standard(rows), at_equal_accuracy(rows)]
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
    apart = rows[(rows["metric"] == "pgd_l2") & rows["step_size"].isin([0.01, 0.2])]
    names = apart["step_size"].astype(object).map("pgd_l2_{:g}".format)
    rows, found = pd.concat([rows, apart.assign(metric=names)]), []
    keys = ["panel", "data", "network", "seed", "status"]
    for values, part in rows.groupby(keys):
        curves = _curves(part)
        for other in sorted(curves.keys() - {"density"}):
            pair = {name: curves[name] for name in ("density", other)}
            first = max(curve.index[0] for curve in pair.values()) - ROUNDING
            reached = min(curve.index[-1] for curve in pair.values()) + ROUNDING
            at = [loss for loss in losses if first <= loss <= reached]
            for method, curve in pair.items() if at else ():
                labels = dict(zip(keys, values), method=method, against=other, n=len(at))
                for metric, column in curve.items():
                    mean = np.interp(at, curve.index, column).mean()
                    value = float(mean if metric in SHARES else np.exp(mean))
                    found.append(labels | {"metric": metric, "value": value})
    return pd.DataFrame(found).replace({"panel": EQUAL})


def _curves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each method what was measured, of sizes the logarithm, by the accuracy lost."""
    if not {"standard", "density"} <= {*rows["method"]}:
        return {}
    from scipy.optimize import isotonic_regression

    wide, curves = rows.pivot_table("value", ["method", "strength"], "metric"), {}
    start = wide.loc["standard"]["accuracy"].iloc[0]
    sizes = wide.columns.difference(SHARES)
    wide[sizes] = np.log(wide[sizes])
    for method in set(rows["method"]) - {"standard"}:
        # SoftPlus is the smoother the smaller its β.
        curve = wide.loc[method].sort_index(ascending=method != "softplus")
        curves[method] = curve.set_index(isotonic_regression(start - curve["accuracy"]).x)
    return curves


def to_standard(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide `RATIOS` by those of the standard network of the same data, network and seed."""
    rows = rows[rows["panel"].isin(["methods", "photos"]) & rows["metric"].isin(RATIOS)]
    pair = ["data", "network", "seed", "metric"]
    standard = rows[rows["method"] == "standard"].set_index(pair)["value"]
    values = rows["value"] / standard.reindex(pd.MultiIndex.from_frame(rows[pair])).to_numpy()
    return rows.assign(metric=rows["metric"] + "_ratio", value=values, std=np.nan)
