"""Marginal density: its penalty and others, by leakage, attacks, groups, noise and detection."""

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from suite.errors import check_keys, unknown
from suite.papers.marginal_density_measures import SHIFTS
from suite.store import Reader
from suite.units import FIELDS, Measurement, Training, Unit, Values, identity

TABLE_3 = ["standard", "input_gradient", "density"]
TABLE_6 = ["standard", "score_matching", "input_gradient", "density"]
TABLE_2 = [*TABLE_6, "group_dro", "group_dro_density"]
TABLE_1 = [*TABLE_3, "at_fgsm", "at_pgd", "softplus", "hessian"]
PHOTOS = [*TABLE_6, "cure"]
ATTACKED = ["standard", "at_pgd", "input_gradient", "density"]
FORMS_TRAINED = ("naive", "stable", "efficient")
SCORES = {"ood_auroc": "log_density", "ood_logit_auroc": "logit"}
SCORES |= {"ood_probability_auroc": "max_probability"}
# Ratios to the standard network, by what they divide.
RATIOS = {"leakage": "leakage_ratio", "whole": "whole_ratio"}
RATIOS |= {"shift": "shift_ratio", "centred": "centred_ratio"}
COLUMNS = ["data", "network", "seed", "value", "std", "n", "status"]
# Settings of metrics that are columns too, by the names of these.
LABELS = {"noise_std": "noise_std", "epsilon": "epsilon", "data": "foreign", "form": "form"}
# The ending of methods whose batches have as many images of each group.
BALANCED = "_balanced"
# The units are networks: values of single images are summed up before anything is read.
READS_IMAGES = False
# Parameters of the notebook of which a sweep may have its own.
OF_SWEEP = {"strengths", "other_strengths", "sweep_seeds", "few_seeds", "pgd", "battery_linf"}
OF_SWEEP |= {"auto_steps", "n_battery", "n_images", "n_curves"}
# What a panel says besides the fields of its trainings; a sweep may be a part of its own, and have
# some of the metrics only.
OF_PANEL = {"foreign", "strength", "warm_up", "seeds", "left_out", "part", "metrics"} | OF_SWEEP
PANELS = ["block_panels", "sweeps", "step_panels", "group_panels", "group_sweeps"]
PANELS += ["photo_panels", "ascent_panels"]
# Parts in which each method has the strength of the experiment.
SWEPT = ("strength", "long", "group_sweep")
# Sweeps, each with the part that compares penalties at equal clean accuracy.
EQUAL = {"strength": "equal", "long": "long_equal"}
# Clean accuracy below that of standard training at which methods are compared.
LOSSES = (0.01, 0.02, 0.03, 0.04, 0.05)
ROUNDING = 1e-9  # of an accuracy
# What is no size, and may be zero or negative: its mean is the arithmetic one.
SHARES = {"accuracy", "pgd_l2", "pgd_linf", "auto_linf", "insertion", "pixel_perturbation"}
SHARES |= {"cosine_gradient", "pgd_l2_0.2", "pgd_l2_0.01"}


class Wanted(NamedTuple):
    """A metric with its settings, and the labels of its row."""

    labels: dict[str, Any]
    metric: str
    settings: dict[str, Any]


class Experiment(NamedTuple):
    """Networks of a panel, one for each method and seed, and what is measured of them.

    `strength` is that of the penalties on the gradients of density and logit; other methods have
    their own, but for those of the part "strength". `seeds` are those of the run if None.
    """

    part: str
    panel: Values
    methods: Sequence[str]
    wanted: Sequence[Wanted]
    strength: float
    norm: float = 2.0
    seeds: Sequence[int] | None = None


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists, and keys, of parameters may be."""
    others = ["softplus", "hessian", "score_matching", "cure"]  # of strengths of their own
    methods = [*TABLE_1, *TABLE_2, *PHOTOS, *(f"density_{form}" for form in FORMS_TRAINED)]
    swept = [*others, "loss_gradient"]
    return {"others": others, "other_strengths": swept, "left_out": [*dict.fromkeys(methods)]}


class Design:
    """The units of a run.

    Args:
        parameters: of the notebook, by name.
    """

    def __init__(self, parameters: Values) -> None:
        self.p = SimpleNamespace(**parameters)
        for name in PANELS:
            for panel in parameters[name]:
                check_keys(name, panel, FIELDS | OF_PANEL, ("data", "network", "epochs"))
        self.rows = list(self._rows())
        self.pictures = dict(self._pictures())

    def training(
        self, panel: Values, method: str, seed: int, strength: float, norm: float = 2.0
    ) -> Training:
        """Return the training of a method with a strength: the β of the activations for SoftPlus.

        `norm` is that of the density's gradient. The Hessian of a logit needs activations that have
        one, so SoftPlus at its usual β.
        """
        given = {name: value for name, value in panel.items() if name not in OF_PANEL}
        fields = {"learning_rate": 1e-3, "seed": seed} | given
        if method in ("softplus", "hessian"):
            sharpness = strength if method == "softplus" else self.p.others["softplus"]
            fields["network_options"] = panel.get("network_options", {}) | {"softplus": sharpness}
        if method.startswith("group_dro"):
            fields |= {"group_dro": 0.01, "balance_groups": True}
        if method.endswith(BALANCED):
            fields |= {"balance_groups": True}
            method = method.removesuffix(BALANCED)
        penalties = self._penalties(method, strength, norm)
        if "warm_up" in panel:
            rising = {"warm_up": panel["warm_up"]}
            penalties = {name: settings | rising for name, settings in penalties.items()}
        return Training(**fields, penalties=penalties)

    def _penalties(self, method: str, strength: float, norm: float) -> dict[str, Any]:
        size = self.p.adversarial_epsilon
        attack = {"strength": 0.5, "epsilon": size}
        small_steps = {"step_size": size / 3, "n_steps": 3, "random_start": True}
        density: dict[str, Any] = {"strength": strength} | ({} if norm == 2 else {"p": norm})
        if method.startswith("density_"):
            density["implementation"] = method.removeprefix("density_")
        if "density" in method:
            return {"marginal_density": density}
        radii = {"radius": [0.3, 0.6, 0.9, 1.2, 1.5]}
        penalties: dict[str, dict[str, Any]] = {
            "at_fgsm": {"adversarial": attack | {"step_size": size}},
            "at_pgd": {"adversarial": attack | small_steps},
            "hessian": {"input_hessian": {"strength": strength, "of": "logit"}},
            "score_matching": {"score_matching": {"strength": strength, "trace": "taylor"}},
            "cure": {"cure": {"strength": strength} | radii},
            "input_gradient": {"logit_gradient": {"strength": strength}},
            "loss_gradient": {"input_gradient": {"strength": strength}},
        }
        return penalties.get(method, {})

    def _attack(
        self, norm: str, epsilon: float, attack: str, title: str, n: int, **settings: Any
    ) -> Wanted:
        common = {"attack": attack, "epsilon": epsilon, "n_images": n}
        common |= {"counts": "correct", "keep_images": False}
        wanted = _wanted(
            "robust_accuracy", title, **common, attack_settings=settings | {"norm": norm}
        )
        wanted.labels.update(attack=attack, norm=norm)
        return wanted

    def _pgd_20(self, norm: str, epsilon: float, step_size: float, n: int) -> Wanted:
        """Return accuracy under PGD-20 as the paper's tables have it."""
        steps = {"steps": 20, "relative_step": round(step_size / epsilon, 6)}
        wanted = self._attack(norm, epsilon, "pgd", f"pgd_{norm}", n, **steps)
        wanted.labels.update(step_size=step_size)
        return wanted

    def _auto(self, norm: str, epsilon: float, n: int, title: str, *parts: str) -> Wanted:
        settings = {"parts": list(parts), "steps": self.p.auto_steps, "queries": self.p.n_queries}
        return self._attack(norm, epsilon, "auto_attack", title, n, **settings)

    def _masking(self, panel: Values) -> Iterator[Experiment]:
        """Yield attacks that fail in other ways than PGD-20 does, and PGD at several radii."""
        p, n = self.p, self.p.n_battery
        crossing = {"steps": 20, "relative_step": 0.1}
        for norm, radius in {"l2": p.battery_l2, "linf": p.battery_linf}.items():
            parts = ("apgd-ce", "apgd-t", "fab-t", "square")
            battery = [
                self._attack(norm, radius, "fgsm", "fgsm", n),
                self._attack(norm, radius, "pgd", "pgd", n, **crossing),
                self._attack(norm, radius, "pgd", "longer", n, steps=100, relative_step=0.1),
                self._auto(norm, radius, n, "square", "square"),
                self._auto(norm, radius, n, "auto", *parts),
            ]
            yield Experiment("battery", panel, ATTACKED, battery, _strength(panel, p))
        sizes = [self._attack("linf", size, "pgd", "pgd", n, **crossing) for size in p.epsilons]
        yield Experiment("radii", panel, ATTACKED, sizes, _strength(panel, p))

    def _leakage(self, n: int) -> list[Wanted]:
        return [
            _wanted("feature_leakage", "leakage", n_images=n),
            _wanted("feature_leakage", "leakage_share", n_images=n, relative=True),
        ]

    def _of_blocks(self) -> Iterator[Experiment]:
        p = self.p
        for panel in p.block_panels:
            first, n = panel is p.block_panels[0], panel.get("n_images", p.n_images)
            strength = _strength(panel, p)
            readings = p.pgd if first else p.pgd[:1]
            attacked = [self._pgd_20(**reading, n=n) for reading in readings]
            plain = [_wanted("accuracy"), *self._leakage(n), *attacked]
            shifts = [
                _wanted("feature_leakage", f"leakage_{s}", n_images=n, shift=s) for s in SHIFTS
            ]
            wanted = [*plain, *self._changes(n)]
            if first:
                wanted += [*self._of_pixels(), *self._gradients(n, cosine=True)]
                shifts.append(_wanted("feature_leakage", "leakage_alone", n_images=n, alone=True))
            forms = ["density_stable"] + ["density_naive"] * (panel["network"] == "mlp")
            seeds = panel.get("seeds")
            yield Experiment("methods", panel, TABLE_3, wanted, strength, seeds=seeds)
            if first:
                others = [name for name in TABLE_1 if name not in TABLE_3]
                yield Experiment("methods", panel, others, wanted, strength)
            few = None if seeds is None else [seed for seed in p.seeds if seed in seeds]
            yield Experiment("methods", panel, TABLE_3, shifts, strength, seeds=few)
            few = panel.get("few_seeds", p.few_seeds)
            yield Experiment("implementations", panel, forms, plain, strength, seeds=few)
        yield from self._masking(p.block_panels[0])

    def _of_sweeps(self) -> Iterator[Experiment]:
        for panel in self.p.sweeps:
            design = copy.copy(self)
            own = {name: panel[name] for name in OF_SWEEP & set(panel)}
            design.p = SimpleNamespace(**vars(self.p) | own)
            yield from design._of_strengths(panel)
        yield from self._of_norms(self.p.sweeps[0])

    def _of_strengths(self, panel: Values) -> Iterator[Experiment]:
        """Yield the trade-off: what each method gives, at each strength, for clean accuracy."""
        p, n = self.p, self.p.n_images
        part, blocks = panel.get("part", SWEPT[0]), panel["data"].startswith("blockmnist")
        noise = {"n_images": n, "noise_std": p.noise_levels[-1]}
        wanted = [
            _wanted("accuracy"),
            *(self._leakage(n) if blocks else ()),
            *[self._pgd_20(**r, n=n) for r in p.pgd if r["norm"] == "l2" or not blocks],
            *[_wanted("feature_leakage", "leakage_other", n_images=n, other=True)] * blocks,
            self._auto("linf", p.battery_linf, p.n_battery, "auto_linf", "apgd-ce", "apgd-t"),
            *self._gradients(n, cosine=not blocks),
            *self._of_pixels(),
            _wanted("gradient_change", **noise),
            _wanted("gradient_change", "absolute_change", **noise, relative=False),
        ]
        only, known = panel.get("metrics", []), {each.labels["metric"] for each in wanted}
        for name, named, choices in (("part", [part], EQUAL), ("metric", only, known)):
            if wrong := [each for each in named if each not in choices]:
                raise unknown(f"{name} of a sweep", wrong[0], choices)
        wanted = [each for each in wanted if not only or each.labels["metric"] in only]
        for labels in (each.labels for each in wanted if part == "long"):
            labels["metric"] += f"_{labels['step_size']:g}" if "step_size" in labels else ""
        both, seeds = ["density", "input_gradient"], p.sweep_seeds
        yield Experiment(part, panel, ["standard"], wanted, 0.0, seeds=seeds)
        for strength in p.strengths:
            yield Experiment(part, panel, both, wanted, strength, seeds=seeds)
        for method, strengths in p.other_strengths.items():
            for strength in strengths:
                yield Experiment(part, panel, [method], wanted, strength, seeds=p.few_seeds)

    def _of_norms(self, panel: Values) -> Iterator[Experiment]:
        p, n = self.p, panel.get("n_images", self.p.n_images)
        plain = [_wanted("accuracy"), *self._leakage(n), self._pgd_20(**p.pgd[0], n=n)]
        for strength in p.norm_strengths:
            for norm in (2.0, *p.norms):
                yield Experiment("norms", panel, ["density"], plain, strength, norm, p.few_seeds)

    def _of_steps(self) -> Iterator[Experiment]:
        """Yield Figure 2: what each form gives in the steps of a training."""
        settings = {"n_steps": self.p.n_training_steps, "strength": self.p.steps_strength}
        wanted = [_wanted("training_steps", form=form, **settings) for form in FORMS_TRAINED]
        for panel in self.p.step_panels:
            yield Experiment("training", panel, ["standard"], wanted, 0.0, seeds=self.p.few_seeds)

    def _of_groups(self) -> Iterator[Experiment]:
        strength = self.p.group_strength
        accuracies = [_wanted("worst_group_accuracy"), _wanted("accuracy", "usual_accuracy")]
        for panel in self.p.group_panels:
            dro = [name for name in TABLE_2 if name not in TABLE_3]
            seeds = panel.get("seeds")
            yield Experiment("groups", panel, TABLE_3, accuracies, strength, seeds=seeds)
            yield Experiment("groups", panel, dro, accuracies, strength)
            yield Experiment("groups", panel, TABLE_3, self._insertion(), strength)
            yield Experiment("foreign", panel, TABLE_6, self._detection(panel), strength)
        both = ["", BALANCED]
        for panel in self.p.group_sweeps:
            seeds = {"seeds": self.p.group_seeds}
            for strength in (0.0, *self.p.group_strengths):
                names = ["density", "input_gradient"] if strength else ["standard"]
                methods = [name + end for name in names for end in both]
                yield Experiment("group_sweep", panel, methods, accuracies, strength, **seeds)

    def _of_photos(self) -> Iterator[Experiment]:
        p, strength = self.p, self.p.photo_strength
        attacks = [
            self._pgd_20(n, size, size / 8, p.n_images)
            for n, values in {"l2": p.photo_l2, "linf": p.photo_linf}.items()
            for size in values
        ]
        wanted = [_wanted("accuracy"), *attacks, *self._changes(p.n_images)]
        for panel in p.photo_panels:
            seeds, foreign = panel.get("seeds"), self._detection(panel)
            yield Experiment("photos", panel, PHOTOS, wanted, strength, seeds=seeds)
            yield Experiment("foreign", panel, PHOTOS, foreign, strength, seeds=seeds)

    def _insertion(self) -> list[Wanted]:
        settings = {"saliency": "integrated_gradients", "n_images": self.p.n_curves, "n_steps": 28}
        return [_wanted("insertion_auc", "insertion", **settings, score="logit", fractional=True)]

    def _of_pixels(self) -> list[Wanted]:
        """Return what becomes of the logit as pixels come and go."""
        settings = {"n_images": self.p.n_curves, "n_steps": 28, "over": "mean"}
        return [*self._insertion(), _wanted("pixel_perturbation", **settings)]

    def _gradients(self, n: int, cosine: bool = False) -> list[Wanted]:
        """Return sizes of gradients of the label's logit and of others, for remark 3."""
        parts = ["label", "others"] + ["cosine"] * cosine
        return [_wanted("logit_gradient", f"{p}_gradient", n_images=n, part=p) for p in parts]

    def _changes(self, n: int) -> Iterator[Wanted]:
        """Yield parts of the density's gradient, and changes under noise."""
        for part in ("whole", "shift", "centred"):
            yield _wanted("density_gradient", part, n_images=n, part=part)
        for metric in ("gradient_change", "density_change"):
            for noise in self.p.noise_levels:
                yield _wanted(metric, n_images=n, noise_std=noise)

    def _detection(self, panel: Values) -> list[Wanted]:
        """Return the measurements that detect out-of-distribution images."""
        n = {"n_images": self.p.n_foreign}
        return [
            _wanted("ood_auroc", name, data=data, score=score, **n)
            for data in panel.get("foreign", [])
            for name, score in SCORES.items()
        ]

    def _rows(self) -> Iterator[tuple[dict[str, Any], Measurement]]:
        """Yield the labels of each row, and its measurement."""
        parts = [self._of_blocks(), self._of_sweeps(), self._of_steps()]
        parts += [self._of_groups(), self._of_photos()]
        for part, panel, methods, wanted, strength, norm, seeds in itertools.chain(*parts):
            for method in self._kept(panel, methods):
                own = self._own_strength(method, strength, swept=part in SWEPT)
                common = {"panel": part, "method": method, "p": norm, "strength": own}
                for seed in self.p.seeds if seeds is None else seeds:
                    training = self.training(panel, method, seed, own, norm)
                    for labels, metric, settings in wanted:
                        unit = Measurement(training=training, metric=metric, settings=settings)
                        yield common | labels, unit

    def _kept(self, panel: Values, methods: Sequence[str]) -> list[str]:
        of_blocks = any(panel is other for other in self.p.block_panels)
        left_out = panel.get("left_out", self.p.left_out if of_blocks else ())
        return [method for method in methods if method not in left_out]

    def _own_strength(self, method: str, strength: float, *, swept: bool = False) -> float:
        if swept or method == "input_gradient" or "density" in method:
            return strength
        return self.p.others.get(method, 0.0)

    def _pictures(self) -> Iterator[tuple[str, Measurement]]:
        """Yield what is drawn, by the start of the names of its arrays."""
        p = self.p
        blocks = p.block_panels[0], ATTACKED, _strength(p.block_panels[0], p)
        groups = p.group_panels[0], TABLE_3, p.group_strength
        maps = {"saliency": "integrated_gradients", "n_images": p.n_maps}
        ascent = {"n_classes": 8, "n_steps": 40, "step_size": 0.5}
        drawn: list[Any] = [("maps|block", *blocks), ("maps|groups", *groups)]
        wanted = [(*each, "saliency_maps", maps) for each in drawn]
        drawn = [("block", *blocks)]
        for panel in [*p.photo_panels, *p.ascent_panels]:
            drawn.append(("photo", panel, PHOTOS, p.photo_strength))
        for kind, panel, methods, strength in drawn:
            name = f"ascent|{kind}|{panel['data']}|{panel['network']}"
            wanted.append((name, panel, methods, strength, "activation_ascent", ascent))
        for name, panel, methods, strength, metric, settings in wanted:
            for method in self._kept(panel, methods):
                own = self._own_strength(method, strength)
                training = self.training(panel, method, panel.get("seeds", p.seeds)[0], own)
                unit = Measurement(training=training, metric=metric, settings=settings)
                yield f"{name}|{method}", unit


def _strength(panel: Values, p: SimpleNamespace) -> float:
    return panel.get("strength", p.strength)


def _wanted(metric: str, title: str | None = None, **settings: Any) -> Wanted:
    labels = {LABELS[name]: value for name, value in settings.items() if name in LABELS}
    return Wanted({"metric": title or metric} | labels, metric, settings)


def units(parameters: Values) -> list[Unit]:
    """Return the units of the chapter: what is measured and drawn, and the trainings."""
    design = Design(parameters)
    measured = [unit for _, unit in design.rows] + [*design.pictures.values()]
    trainings = {str(identity(unit.training)): unit.training for unit in measured}
    return [*measured, *trainings.values()]


def collect(
    parameters: Values, computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a value, also as ratios to the standard network, and what figures draw."""
    design = Design(parameters)
    labels = pd.DataFrame([labels for labels, _ in design.rows])
    rows = pd.concat([labels, computed.iloc[: len(labels)][[*COLUMNS, "key"]]], axis=1)
    rest = iter(computed["key"].iloc[len(labels) :])
    arrays = _arrays(rows, store)
    for name, key in zip(design.pictures, rest, strict=False):
        for part, tensor in (store.read_tensors(key) or {}).items():
            arrays[name if name.startswith("ascent") else f"{name}|{part}"] = tensor.numpy()
    rows = rows.drop(columns="key")
    ratios = [to_standard(rows, metric) for metric in RATIOS]
    parts = [rows.assign(against=""), *ratios, at_equal_accuracy(rows)]
    return pd.concat([part for part in parts if len(part)], ignore_index=True), arrays


def kept_tensors(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `collect` reads of the tensors of a unit: of curves their mean over images."""
    means = {name: t.mean(0, keepdim=True) for name, t in tensors.items() if name == "curves"}
    return {**tensors, **means}


def _arrays(rows: pd.DataFrame, store: Reader) -> dict[str, Any]:
    """Return what is drawn: accuracies in groups, curves (means over seeds), steps, cosines."""
    arrays, curves = {}, defaultdict(list)
    metrics = ["worst_group_accuracy", "pixel_perturbation", "training_steps", "cosine_gradient"]
    kept = rows["metric"].isin(metrics) & ~rows["panel"].isin(SWEPT)
    for row in rows[kept & (rows["status"] == "done")].itertuples():
        tensors = store.read_tensors(str(row.key)) or {}
        if "accuracies" in tensors:
            name = f"groups|{row.data}|{row.method}|{row.seed}"
            arrays[name] = tensors["accuracies"].numpy()
        elif "curves" in tensors:
            curve = tensors["curves"].mean(0).numpy()
            curves[f"curve|{row.data}|{row.network}|{row.method}"].append(curve)
        elif row.seed == rows["seed"].min():
            kind = str(row.form) if row.metric == "training_steps" else str(row.method)
            for part, tensor in tensors.items():
                arrays[f"{row.metric}|{row.data}|{kind}|{part}"] = tensor.numpy()
    return arrays | {name: np.mean(values, axis=0) for name, values in curves.items()}


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
    found = []
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
    return rows.assign(metric=RATIOS[metric], value=values, std=np.nan)
