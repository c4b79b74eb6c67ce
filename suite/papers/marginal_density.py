"""Marginal density: its penalty and others, by leakage, robustness, groups and detection."""

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
from suite.papers.design import Arrays, Derived, Item, Plan, Spec, panels_of, replace
from suite.papers.names import NAMES
from suite.units import Training, Values, training_of

METHODS = {method.name: method for method in methods.MARGINAL_DENSITY}
# Lists of methods, measures, sets of measures, and the measures of each part.
NAMED: dict[str, Any] = NAMES["marginal_density"]
LISTS: dict[str, list[str]] = NAMED["lists"]
ON_REQUEST = "pixel_perturbation_centred"  # measured in the sweeps that name it
RATIOS = ["leakage", "whole", "shift", "centred"]  # to standard training
# Optional keys of a panel; a sweep may name its part, and restrict its metrics.
OF_PANEL: Values = {"foreign": [], "warm_up": None, "part": "strength", "metrics": []}
PANELS = "block_panels sweeps step_panels group_panels group_sweeps photo_panels ascent_panels"
# Parts in which the sweep sets the strength of every method.
SWEPT = ("strength", "long", "group_sweep")
# For each sweep, the part that compares its penalties at equal clean accuracy.
EQUAL = {"strength": "equal", "long": "long_equal"}
# Losses of clean accuracy, against standard training, at which methods are compared.
LOSSES = (0.01, 0.02, 0.03, 0.04, 0.05)
ROUNDING = 1e-9  # of an accuracy
# Metrics that may be zero or negative: their means are arithmetic, others' geometric.
SHARES: list[str] = NAMED["shares"]


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that parameters may use, as items of lists or as keys."""
    others = ["softplus", "hessian", "score_matching", "cure"]  # with strengths of their own
    swept, listed = [*others, "loss_gradient"], [*itertools.chain(*LISTS.values())]
    return {"others": others, "other_strengths": swept, "left_out": listed}


def training(
    p: SimpleNamespace, method: str, seed: int, strength: float, norm: float = 2.0
) -> Training:
    """Return the training of a method with a strength, which for SoftPlus is its β.

    The p-norm of the density's gradient is `norm`. The penalty on the Hessian of a logit needs
    smooth activations: SoftPlus at its usual β. Adversarial training has its own radius.
    """
    fields = {"learning_rate": 1e-3, **p.fields}
    if method == "hessian":
        fields = METHODS["softplus"].apply(fields, p.others["softplus"])
    size = p.adversarial_epsilon if method.startswith("at_") else strength
    fields = METHODS[method].apply(fields, size)
    if norm != 2:
        fields = penalty("marginal_density", p=norm)(fields, strength)
    return Training(**schedule(fields, warm_up=p.warm_up), seed=seed)


def _measures(p: SimpleNamespace, names: str) -> Iterator[Spec]:
    """Yield measures, where names of sets stand for their members: see `design.specify`."""
    members = " ".join(NAMED["sets"].get(name, name) for name in names.split())
    for measure in design.specify(NAMED["measures"], members, p):
        measure.labels.pop("relative_step", None)  # follows from other labels
        measure.labels["attack"] = measure.settings.get("attack")
        yield measure


def _grid(
    p: SimpleNamespace,
    part: str,
    names: Iterable[str],
    strengths: Sequence[float],
    seeds: Sequence[int],
    measures: Sequence[Spec],
    norms: Sequence[float] = (2.0,),
) -> Iterator[Item]:
    """Yield the measurements of the networks of a panel, one network for each method and seed.

    The penalties on the gradients of density and logit have the `strengths`. Other methods have
    their own, except in the parts in `SWEPT`.
    """
    names = [name for name in names if name not in p.left_out]
    for method, size, norm in itertools.product(names, strengths, norms):
        is_set = part in SWEPT or method == "input_gradient" or "density" in method
        strength = size if is_set else p.others.get(method, 0.0)
        labels = {"panel": part, "method": method, "p": norm, "strength": strength}
        for seed in seeds:
            network = training(p, method, seed, strength, norm)
            for item in design.grid([(network, labels)], measures):
                fields = {**vars(p), **(item.labels or {}), "seed": seed}
                measure = NAMED["measures"].get(fields["metric"], {})
                is_drawn = part not in SWEPT and (seed == min(seeds) or not measure.get("of_first"))
                keep = measure.get("keep", "").format(**fields) if is_drawn else ""
                yield Item(item.unit, None if measure.get("only_drawn") else item.labels, keep)


def _pgd_settings(norm: str, epsilon: float, step_size: float) -> dict[str, Any]:
    """Return the settings of PGD-20; its measure takes the step as a fraction of the radius."""
    fraction = round(step_size / epsilon, 6)
    return {"norm": norm, "epsilon": epsilon, "step_size": step_size, "relative_step": fraction}


def _panels(parameters: Values) -> dict[str, list[SimpleNamespace]]:
    """Return the panels by kind, and variants with other radii, seeds and norms.

    Each panel has its usual strength, and the values that its measures are taken at. The first
    panel with a null block has all settings of PGD-20, the others the first of them.
    """
    panels, usual = {}, {"group_panels": "group_strength", "photo_panels": "photo_strength"}
    usual["ascent_panels"] = "photo_strength"
    for kind in PANELS.split():
        common = parameters if kind == "block_panels" else {**parameters, "left_out": []}
        panels[kind] = panels_of(common, OF_PANEL, kind=kind, never=(*PANELS.split(), "n_maps"))
        for p in panels[kind]:
            p.usual, p.none = [getattr(p, usual.get(kind, "strength"))], [0.0]
            p.all_seeds, p.first_seed = parameters["seeds"], p.seeds[:1]
            p.shared_seeds = [seed for seed in p.all_seeds if seed in p.seeds]
            p.readings = [_pgd_settings(**p.pgd[0])]
            p.balls = [{"norm": n, "epsilon": getattr(p, f"battery_{n}")} for n in ("l2", "linf")]
            p.noises = [{"noise_std": noise} for noise in p.noise_levels]
            p.sets = [{"foreign": name} for name in p.foreign]
            p.forms = [{"form": form} for form in ("naive", "stable", "efficient")]
    first, sweep = panels["block_panels"][0], panels["sweeps"][0]
    first.readings = [_pgd_settings(**pgd) for pgd in first.pgd]
    for p in panels["photo_panels"]:
        sizes = [("l2", size) for size in p.photo_l2] + [("linf", size) for size in p.photo_linf]
        p.readings = [_pgd_settings(norm, size, size / 8) for norm, size in sizes]
    radii = replace(first, balls=[{"norm": "linf", "epsilon": size} for size in first.epsilons])
    orders = [2.0, *sweep.norms]
    norms = replace(sweep, few_seeds=parameters["few_seeds"], orders=orders)
    small, larger = first.long_norm_strengths[:1], first.long_norm_strengths[1:]
    long = replace(first, orders=orders, small=small, larger=larger)
    mlps = [p for p in panels["block_panels"] if p.network == "mlp"]
    panels |= {"first": [first], "mlps": mlps, "radii": [radii], "norms": [norms], "long": [long]}
    return panels | {"first_groups": panels["group_panels"][:1]}


def _sweep_items(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the measurements of a sweep: each method at each of its strengths."""
    blocks = p.data.startswith("blockmnist")
    readings = [_pgd_settings(**pgd) for pgd in p.pgd if pgd["norm"] == "l2" or not blocks]
    swept = replace(p, readings=readings, balls=p.balls[1:], noises=p.noises[-1:])
    names = "swept_blocks" if blocks else "cosine_gradient"
    measures = [*_measures(swept, f"swept {names} {ON_REQUEST * (ON_REQUEST in p.metrics)}")]
    known = {measure.labels["metric"] for measure in measures}
    for key, values, choices in (("part", [p.part], EQUAL), ("metric", p.metrics, known)):
        if wrong := [value for value in values if value not in choices]:
            raise unknown(f"{key} of a sweep", wrong[0], choices)
    measures = [m for m in measures if not p.metrics or m.labels["metric"] in p.metrics]
    for labels in (measure.labels for measure in measures if p.part == "long"):
        labels["metric"] += f"_{labels['step_size']:g}" if "step_size" in labels else ""
    strengths = {"standard": [0.0], "density": p.strengths, "input_gradient": p.strengths}
    for method, sizes in [*strengths.items(), *p.other_strengths.items()]:
        seeds = p.sweep_seeds if method in strengths else p.few_seeds
        yield from _grid(p, p.part, [method], sizes, seeds, measures)


def _part_items(panels: Mapping[str, list[SimpleNamespace]]) -> Iterator[Item]:
    """Yield the measurements of all parts in `names.yml`; sweeps are not among them."""
    for row in NAMED["parts"]:
        for p in panels[row["of"]]:
            methods, measures = LISTS[row["methods"]], [*_measures(p, row["measures"])]
            strengths, seeds = getattr(p, row.get("strengths", "usual")), row.get("seeds", "seeds")
            norms = getattr(p, row.get("norms", ""), (2.0,))
            yield from _grid(p, row["part"], methods, strengths, getattr(p, seeds), measures, norms)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: measurements, maps to draw, and trainings.

    Raises:
        UsageError: an unknown or missing key of a panel, or an unknown part or metric of a sweep.
    """
    panels = _panels(parameters)
    items = Plan([*_part_items(panels), *itertools.chain(*map(_sweep_items, panels["sweeps"]))])
    return Plan([*items, *(Item(training_of(unit)) for unit in items.units())])


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Add rows of ratios to standard training, and of comparisons at equal clean accuracy."""
    parts = [rows.assign(against=""), divide_by_standard(rows), match_accuracy(rows)]
    return pd.concat([part for part in parts if len(part)], ignore_index=True), arrays


def shrink(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a unit as figures draw them: curves as their mean over images."""
    return {n: t.view(-1, t.shape[-1]).mean(0) if n == "curves" else t for n, t in tensors.items()}


def match_accuracy(rows: pd.DataFrame, losses: Sequence[float] = LOSSES) -> pd.DataFrame:
    """Compare density with each other penalty where both cost the same clean accuracy.

    For each seed, isotonic regression makes the loss of clean accuracy monotone in the strength,
    since single networks scatter. Each metric is interpolated at the `losses` that lie between
    measured strengths of both methods, then averaged over them. Metrics outside `SHARES` are
    interpolated and averaged as logarithms.

    Args:
        rows: of the sweeps, the keys of `EQUAL`, and perhaps of other parts, which are ignored.
        losses: of clean accuracy, against standard training.

    Returns:
        Rows of the parts that are the values of `EQUAL`: `method`; `against`, the penalty that
        density is compared with; and `n`, the number of losses.
    """
    rows = rows[rows["panel"].isin(list(EQUAL)) & (rows["status"] == "done")]
    pgd = rows[(rows["metric"] == "pgd_l2") & rows["step_size"].isin([0.01, 0.2])]
    names = pgd["step_size"].astype(object).map("pgd_l2_{:g}".format)
    rows, lines = pd.concat([rows, pgd.assign(metric=names)]), []
    keys = ["panel", "data", "network", "seed", "status"]
    for values, part in rows.groupby(keys):
        curves = _curves(part)
        for other in sorted(curves.keys() - {"density"}):
            pair = {name: curves[name] for name in ("density", other)}
            first = max(curve.index[0] for curve in pair.values()) - ROUNDING
            last = min(curve.index[-1] for curve in pair.values()) + ROUNDING
            shared = [loss for loss in losses if first <= loss <= last]
            for method, curve in pair.items() if shared else ():
                labels = dict(zip(keys, values), method=method, against=other, n=len(shared))
                for metric, column in curve.items():
                    mean = np.interp(shared, curve.index, column).mean()
                    value = float(mean if metric in SHARES else np.exp(mean))
                    lines.append(labels | {"metric": metric, "value": value})
    return pd.DataFrame(lines).replace({"panel": EQUAL})


def _curves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the metrics of each method by its loss of accuracy; those not in `SHARES` as logs."""
    if not {"standard", "density"} <= {*rows["method"]}:
        return {}
    from scipy.optimize import isotonic_regression

    wide, curves = rows.pivot_table("value", ["method", "strength"], "metric"), {}
    start = wide.loc["standard"]["accuracy"].iloc[0]
    sizes = wide.columns.difference(SHARES)
    wide[sizes] = np.log(wide[sizes])
    for method in set(rows["method"]) - {"standard"}:
        # A smaller β makes SoftPlus smoother.
        curve = wide.loc[method].sort_index(ascending=method != "softplus")
        curves[method] = curve.set_index(isotonic_regression(start - curve["accuracy"]).x)
    return curves


def divide_by_standard(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide the metrics in `RATIOS` by those of standard training with the same seed."""
    rows = rows[rows["panel"].isin(["methods", "photos"]) & rows["metric"].isin(RATIOS)]
    pair = ["data", "network", "seed", "metric"]
    standard = rows[rows["method"] == "standard"].set_index(pair)["value"]
    values = rows["value"] / standard.reindex(pd.MultiIndex.from_frame(rows[pair])).to_numpy()
    return rows.assign(metric=rows["metric"] + "_ratio", value=values, std=np.nan)
