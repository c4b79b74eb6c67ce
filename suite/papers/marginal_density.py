"""Marginal density: its penalty and others, by leakage, attacks, groups, noise and detection."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from suite.papers.marginal_density_measures import COMPARISONS, SHIFTS
from suite.store import Reader
from suite.units import Measurement, Training, Unit, identity

TABLE_3 = ["standard", "input_gradient", "density"]
TABLE_6 = ["standard", "score_matching", "input_gradient", "density"]
TABLE_2 = [*TABLE_6, "group_dro", "group_dro_density"]
TABLE_1 = [*TABLE_3, "at_fgsm", "at_pgd", "softplus", "hessian"]
PHOTOS = [*TABLE_6, "cure"]
ATTACKED = ["standard", "at_pgd", "input_gradient", "density"]
# Methods that fewer networks are trained with.
FEW = {"at_fgsm", "at_pgd", "cure", "density_stable", "density_naive"}
SCORES = {
    "ood_auroc": "log_density",
    "ood_logit_auroc": "logit",
    "ood_probability_auroc": "max_probability",
}
TIME_RATIOS = {
    "efficient_to_stable_seconds": "stable",
    "efficient_to_logsumexp_seconds": "logsumexp",
    "efficient_to_plain_seconds": "none",
}
# Ratios to the standard network, by what they divide.
RATIOS = {
    "leakage": "leakage_ratio",
    "whole": "whole_ratio",
    "shift": "shift_ratio",
    "centred": "centred_ratio",
}
COLUMNS = ["data", "network", "seed", "value", "std", "n", "status"]
# Settings of metrics that are columns too, by the names of these.
LABELS = {"noise_std": "noise_std", "epsilon": "epsilon", "data": "foreign"}


Panel = Mapping[str, Any]


class Wanted(NamedTuple):
    """A metric with its settings, and the labels of its row."""

    labels: dict[str, Any]
    metric: str
    settings: dict[str, Any]


class Experiment(NamedTuple):
    """Networks of a panel, one for each method and seed, and what is measured of them."""

    part: str
    panel: Panel
    methods: Sequence[str]
    wanted: Sequence[Wanted]
    strength: float
    norm: float = 2.0
    few: bool = False


class Design:
    """The units of a run.

    Args:
        parameters: of the notebook, by name.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.p = SimpleNamespace(**parameters)
        self.rows = list(self._rows())
        self.timings = list(self._timings())
        self.pictures = dict(self._pictures())

    def training(
        self, panel: Panel, method: str, seed: int, strength: float, norm: float = 2.0
    ) -> Training:
        """Return the training of a method; strength and norm are those of the two gradients."""
        fields = {"learning_rate": 1e-3, "seed": seed} | dict(panel)
        fields.pop("foreign", None)
        if method == "softplus":
            options = panel.get("network_options", {})
            fields["network_options"] = options | {"softplus": self.p.sharpness}
        if method.startswith("group_dro"):
            fields |= {"group_dro": 0.01, "balance_groups": True}
        return Training(**fields, penalties=self._penalties(method, strength, norm))

    def _penalties(self, method: str, strength: float, norm: float) -> dict[str, Any]:
        p, size = self.p, self.p.adversarial_epsilon
        attack = {"strength": 0.5, "epsilon": size}
        small_steps = {"step_size": size / 3, "n_steps": 3, "random_start": True}
        density: dict[str, Any] = {"strength": strength} | ({} if norm == 2 else {"p": norm})
        if method.startswith("density_"):
            density["implementation"] = method.removeprefix("density_")
        if "density" in method:
            return {"marginal_density": density}
        penalties: dict[str, dict[str, Any]] = {
            "at_fgsm": {"adversarial": attack | {"step_size": size}},
            "at_pgd": {"adversarial": attack | small_steps},
            "hessian": {"input_hessian": {"strength": p.hessian_strength}},
            "score_matching": {"score_matching": {"strength": p.score_strength, "trace": "taylor"}},
            "cure": {"cure": {"strength": p.cure_strength, "radius": [0.3, 0.6, 0.9, 1.2, 1.5]}},
            "input_gradient": {"logit_gradient": {"strength": strength}},
        }
        return penalties.get(method, {})

    def _attack(
        self, norm: str, epsilon: float, attack: str = "pgd", *, title: str = "", **settings: Any
    ) -> Wanted:
        settings |= {} if attack == "square" else {"norm": norm}
        common = {"attack": attack, "epsilon": epsilon, "n_images": self.p.n_battery}
        common |= {"counts": "correct", "keep_images": False, "attack_settings": settings}
        wanted = _wanted("robust_accuracy", **common)
        wanted.labels.update(attack=title or attack, norm=norm)
        return wanted

    def _pgd_20(self, norm: str, epsilon: float, step_size: float) -> Wanted:
        """Return accuracy under PGD-20 as the paper's tables have it."""
        relative = round(step_size / epsilon, 6)
        wanted = self._attack(norm, epsilon, steps=20, relative_step=relative)
        wanted.labels["metric"] = f"pgd_{norm}"
        wanted.settings["n_images"] = self.p.n_images
        return wanted

    def _battery(self, norm: str, epsilon: float, standard: bool) -> Iterator[Wanted]:
        """Yield attacks that fail in other ways than PGD with 20 steps does."""
        yield self._attack(norm, epsilon, "fgsm")
        pgd = self._attack(norm, epsilon, steps=20, relative_step=0.1)
        pgd.settings["keep_images"] = standard
        yield pgd
        longer = {"steps": self.p.n_steps, "relative_step": 0.1}
        yield self._attack(norm, epsilon, title="pgd, more steps", **longer)
        yield self._attack(norm, epsilon, "apgd", loss="logit_ratio", steps=20)
        if norm == "linf":
            yield self._attack(norm, epsilon, "square", steps=self.p.n_queries)
        if not standard:
            names = ("attack", "epsilon", "n_images", "attack_settings")
            settings = {name: pgd.settings[name] for name in names}
            yield Wanted(pgd.labels | {"attack": "transfer"}, "transfer_accuracy", settings)

    def _masking(
        self, panel: Panel, methods: Sequence[str], strength: float, radii: Mapping[str, float]
    ) -> Iterator[Experiment]:
        """Yield the battery, and PGD at several radii, for the methods that are attacked."""
        methods = [method for method in methods if method in ATTACKED]
        sizes = [
            self._attack("linf", size, steps=20, relative_step=0.1) for size in self.p.epsilons
        ]
        for method in methods:
            for norm, radius in radii.items():
                battery = list(self._battery(norm, radius, method == "standard"))
                yield Experiment("battery", panel, [method], battery, strength)
        yield Experiment("radii", panel, methods, sizes, strength)

    def _of_blocks(self) -> Iterator[Experiment]:
        p, n = self.p, {"n_images": self.p.n_images}
        plain = [_wanted("accuracy"), _wanted("feature_leakage", "leakage", **n)]
        plain.append(_wanted("feature_leakage", "leakage_share", **n, relative=True))
        plain += [self._pgd_20("l2", **p.pgd_l2), self._pgd_20("linf", **p.pgd_linf)]
        pairs = [_wanted("implementations", name, **n, value=name) for name in COMPARISONS]
        pairs += [_wanted("feature_leakage", f"leakage_{s}", **n, shift=s) for s in SHIFTS]
        for panel in p.block_panels:
            methods = TABLE_1 if panel is p.block_panels[0] else TABLE_3
            forms = ["density_stable"] + ["density_naive"] * (panel["network"] == "mlp")
            radii = {"l2": p.battery_l2, "linf": p.battery_linf}
            wanted = [*plain, *self._insertion(), *self._changes()]
            yield Experiment("methods", panel, methods, wanted, p.strength)
            yield Experiment("methods", panel, TABLE_3, pairs, p.strength)
            yield from self._masking(panel, methods, p.strength, radii)
            yield Experiment("implementations", panel, forms, plain, p.strength)
        panel = p.block_panels[0]  # the paper's Figures 4 and 7 have one network
        for strength in (p.strength, *p.strengths):
            methods = ["density", "input_gradient"]
            yield Experiment("strength", panel, methods, plain, strength, few=True)
        for norm in (2.0, *p.norms):
            yield Experiment("norms", panel, ["density"], plain, p.strength, norm, few=True)

    def _of_groups(self) -> Iterator[Experiment]:
        strength = self.p.group_strength
        accuracies = [_wanted("worst_group_accuracy"), _wanted("accuracy", "usual_accuracy")]
        for panel in self.p.group_panels:
            yield Experiment("groups", panel, TABLE_2, accuracies, strength)
            yield Experiment("groups", panel, TABLE_3, self._insertion(), strength)
            yield Experiment("foreign", panel, TABLE_6, self._detection(panel), strength)

    def _of_photos(self) -> Iterator[Experiment]:
        p, strength = self.p, self.p.photo_strength
        sizes = {"l2": p.photo_l2, "linf": p.photo_linf}
        radii = {norm: values[len(values) // 2] for norm, values in sizes.items()}
        attacks = [
            self._pgd_20(n, size, size / 8) for n, values in sizes.items() for size in values
        ]
        wanted = [_wanted("accuracy"), *attacks, *self._changes()]
        for panel in p.photo_panels:
            yield Experiment("photos", panel, PHOTOS, wanted, strength)
            yield Experiment("foreign", panel, PHOTOS, self._detection(panel), strength)
            yield from self._masking(panel, TABLE_3, strength, radii)

    def _insertion(self) -> list[Wanted]:
        settings = {"saliency": "integrated_gradients", "n_images": self.p.n_curves, "n_steps": 28}
        return [_wanted("insertion_auc", "insertion", **settings)]

    def _changes(self) -> Iterator[Wanted]:
        """Yield parts of the density's gradient, and changes without pixels and under noise."""
        n = {"n_images": self.p.n_images}
        for part in ("whole", "shift", "centred"):
            yield _wanted("density_gradient", part, **n, part=part)
        yield _wanted("pixel_perturbation", n_images=self.p.n_curves, n_steps=28)
        for metric in ("gradient_change", "density_change"):
            for noise in self.p.noise_levels:
                yield _wanted(metric, **n, noise_std=noise)

    def _detection(self, panel: Panel) -> list[Wanted]:
        """Return the measurements that detect out-of-distribution images."""
        n = {"n_images": self.p.n_foreign}
        return [
            _wanted("ood_auroc", name, data=data, score=score, **n)
            for data in panel.get("foreign", [])
            for name, score in SCORES.items()
        ]

    def _rows(self) -> Iterator[tuple[dict[str, Any], Measurement]]:
        """Yield the labels of each row, and its measurement."""
        experiments = itertools.chain(self._of_blocks(), self._of_groups(), self._of_photos())
        for part, panel, methods, wanted, strength, norm, few in experiments:
            for method in methods:
                penalised = method == "input_gradient" or "density" in method
                common = {"panel": part, "method": method, "p": norm}
                common["strength"] = strength if penalised else 0.0
                for seed in self.p.few_seeds if few or method in FEW else self.p.seeds:
                    training = self.training(panel, method, seed, strength, norm)
                    for labels, metric, settings in wanted:
                        unit = Measurement(training=training, metric=metric, settings=settings)
                        yield common | labels, unit

    def _timings(self) -> Iterator[Measurement]:
        p = self.p
        settings = {"n_images": 128, "n_rounds": p.n_rounds, "strength": p.strength}
        for panel in [*p.block_panels, *p.photo_panels]:
            training = self.training(panel, "standard", p.seeds[0], p.strength)
            yield Measurement(training=training, metric="step_milliseconds", settings=settings)

    def _pictures(self) -> Iterator[tuple[str, Measurement]]:
        """Yield what is drawn, by the start of the names of its arrays."""
        p = self.p
        blocks = p.block_panels[0], ATTACKED, p.strength
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
            for method in methods:
                training = self.training(panel, method, p.seeds[0], strength)
                unit = Measurement(training=training, metric=metric, settings=settings)
                yield f"{name}|{method}", unit


def _wanted(metric: str, title: str | None = None, **settings: Any) -> Wanted:
    labels = {LABELS[name]: value for name, value in settings.items() if name in LABELS}
    return Wanted({"metric": title or metric} | labels, metric, settings)


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter: what is measured, timed and drawn, and the trainings."""
    design = Design(parameters)
    measured = [unit for _, unit in design.rows] + design.timings + [*design.pictures.values()]
    trainings = {str(identity(unit.training)): unit.training for unit in measured}
    return [*measured, *trainings.values()]


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a value, also as ratios to the standard network, and what figures draw."""
    design = Design(parameters)
    labels = pd.DataFrame([labels for labels, _ in design.rows])
    rows = pd.concat([labels, computed.iloc[: len(labels)][[*COLUMNS, "key"]]], axis=1)
    rest = iter(computed["key"].iloc[len(labels) :])
    times = [_times(unit, store.read_tensors(next(rest)) or {}) for unit in design.timings]
    arrays = _arrays(rows, store)
    for name, key in zip(design.pictures, rest, strict=False):
        for part, tensor in (store.read_tensors(key) or {}).items():
            arrays[name if name.startswith("ascent") else f"{name}|{part}"] = tensor.numpy()
    rows = pd.concat([rows.drop(columns="key"), *times], ignore_index=True)
    ratios = [to_standard(rows, metric) for metric in RATIOS]
    return pd.concat([rows, *ratios], ignore_index=True), arrays


def _arrays(rows: pd.DataFrame, store: Reader) -> dict[str, Any]:
    """Return accuracies in groups, and curves of pixel perturbation as means over seeds."""
    arrays, curves = {}, defaultdict(list)
    kept = rows["metric"].isin(["worst_group_accuracy", "pixel_perturbation"])
    for row in rows[kept & (rows["status"] == "done")].itertuples():
        tensors = store.read_tensors(str(row.key)) or {}
        if "accuracies" in tensors:
            name = f"groups|{row.data}|{row.method}|{row.seed}"
            arrays[name] = tensors["accuracies"].numpy()
        else:
            curve = tensors["curves"].mean(0).numpy()
            curves[f"curve|{row.data}|{row.network}|{row.method}"].append(curve)
    return arrays | {name: np.mean(values, axis=0) for name, values in curves.items()}


def _times(unit: Measurement, tensors: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return milliseconds of a step with each form of the penalty, and ratios of them, by turn."""
    turns = pd.DataFrame({name: tensor.numpy() for name, tensor in tensors.items()})
    parts = [(form, "step_milliseconds", turns[form]) for form in turns]
    for metric, other in TIME_RATIOS.items() if len(turns) else ():
        parts.append(("density", metric, turns["efficient"] / turns[other]))
    common = {"panel": "timing", "p": 2.0, "strength": unit.settings["strength"]}
    common |= {"data": unit.training.data, "network": unit.training.network, "status": "done"}
    return pd.DataFrame(
        common | {"method": method, "metric": metric, "seed": turn, "value": value}
        for method, metric, values in parts
        for turn, value in values.items()
    )


def to_standard(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Divide a metric by that of the standard network of the same data, network and seed."""
    rows = rows[rows["panel"].isin(["methods", "photos"]) & (rows["metric"] == metric)]
    pair = ["data", "network", "seed"]
    standard = rows[rows["method"] == "standard"].set_index(pair)["value"]
    values = rows["value"] / standard.reindex(pd.MultiIndex.from_frame(rows[pair])).to_numpy()
    return rows.assign(metric=RATIOS[metric], value=values, std=np.nan)
