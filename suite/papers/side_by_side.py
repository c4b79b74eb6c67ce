"""Side by side: every method at several strengths, by the measures of all papers."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd

from suite.errors import check_keys, expected, unknown
from suite.papers.names import NAMES
from suite.store import Reader
from suite.training import penalties
from suite.units import FIELDS, Measurement, Training, Unit

Settings = dict[str, Any]

# The methods in their order, and what they are called.
METHODS: dict[str, str] = NAMES["side_by_side"]["methods"]
# Whose strength is that of one penalty.
PENALTIES: dict[str, str] = NAMES["side_by_side"]["penalties"]
# Any other penalty is a method of its own name.
_OTHERS = penalties.PENALTIES.keys() - METHODS.keys() - {*PENALTIES.values()}
PENALTIES |= {name: name for name in sorted(_OTHERS)}
METHODS |= {name: name.replace("_", " ") for name in sorted(_OTHERS)}
CURE_RADIUS = 1.5  # in the last epoch; it rises from the first on
PGD_STEPS = 3
# Clean accuracy that a method may cost, on the images that strengths are chosen on.
MOST_LOST = 0.01
ROUNDING = 1e-9
# The smallest difference that matters, as in the claims; of other measures it is a factor, of
# the entropy one of the number of pixels that it stands for.
SMALLEST = {"accuracy": 0.01, "calibration": 0.01, "corrupted": 0.01, "shifted": 0.01}
SMALLEST |= {"attacked": 0.05, "faithful": 0.05, "formula": 0.05, "insertion": 0.01}
FACTOR = 1.1
SMALLEST |= {"pointing": 0.02, "on_object": 0.02, "beyond": 0.02, "swapped": 0.01}
SMALLEST |= {"entropy": math.log(FACTOR)}
COLUMNS = ["data", "network", "seed", "value", "std", "n", "status"]
OF_TRAINING = FIELDS - {"penalties", "seed"}
# Keys of a panel that are not fields of a training: `warm_up` is that of every penalty, `measured`
# says whether networks that choose strengths get more than their accuracy, `only` names measures
# where not all are taken, and the others are those of the chapter, for this panel alone.
OF_PANEL = {"strengths", "chosen", "top_gap", "epsilon", "shift", "warm_up", "measured", "only"}
OF_PANEL |= {"seeds", "n_few", "n_least", "n_attacked", "auto_steps", "n_queries", "n_corrupted"}
OF_PANEL |= {"n_landscape", "block", "patch", "n_shifted", "n_targets"}
# Measures that need a null block, or masks and backgrounds: taken where a panel asks for them.
ASKED_FOR = {"leakage", "leakage_share", "on_object", "beyond", "swapped"}
REQUIRED = {"data", "network", "epochs", "learning_rate", "strengths", "chosen", "epsilon", "shift"}
# The units are networks: values of single images are summed up before anything is read.
READS_IMAGES = False


class Measure(NamedTuple):
    """What is measured of each network.

    `better` is 1 where a larger value is better, -1 where a smaller one is, 0 where neither is.
    `of` is the chapter whose paper measures it, or "all". `turned` gives the value the other sign.
    """

    title: str
    better: int
    of: str
    metric: str
    settings: Settings
    turned: bool = False


def measures(p: SimpleNamespace) -> dict[str, Measure]:
    """Return the measures of a panel, by their names in tables of results.

    Accuracy, which is always one, is that of one half of the test images; by the other half
    strengths are chosen.

    Raises:
        UsageError: `only` names a measure that is not known.
    """
    few, least = {"n_images": p.n_few}, {"n_images": p.n_least}
    maps = few | {"saliency": "logit_gradient"}
    attack = {"attack": "auto_attack", "epsilon": p.epsilon, "n_images": p.n_attacked}
    attack |= {"counts": "correct", "keep_images": False}
    parts = ["apgd-ce", "apgd-t", "square"]
    auto = {"parts": parts, "steps": p.auto_steps, "queries": p.n_queries}
    attack["attack_settings"] = auto | ({"n_targets": p.n_targets} if p.n_targets else {})
    corrupted = {"level": p.level, "n_images": p.n_corrupted}
    shifted = {"pixels": p.shift} | ({"n_images": p.n_shifted} if p.n_shifted else {})
    # Of a linear network with its gradient as the map, it is about -0.5 on dark images: no better.
    faith = [maps | {"patch": p.patch, "score": score} for score in ("logit", "confidence")]
    noisy = maps | {"n_samples": p.n_samples}
    scaled = noisy | {"normalised": True}
    noise, swapped = few | {"noise_std": p.noise_std}, {"data": f"{p.data}_swapped"}
    curve = few | {"saliency": "integrated_gradients", "n_steps": 28}
    flat = {"part": "block_tv", "block": p.block, "n_images": p.n_landscape}
    regular, density, high = "gradient_regularisation", "marginal_density", "high_order_saliency"
    lipschitz, faithful = "local_lipschitz_estimate", "faithfulness_estimate"
    relative, beyond, on_object = {"relative": True}, {"beyond_others": True}, "share_on_object"
    found = {
        "accuracy": ("clean accuracy", 1, "all", "accuracy", {"half": 1}),
        "calibration": ("calibration error", -1, "all", "calibration_error", {}),
        "attacked": ("accuracy, attacked", 1, "all", "robust_accuracy", attack),
        "corrupted": ("accuracy, corruptions", 1, "all", "corrupted_accuracy", corrupted),
        "shifted": ("accuracy, off centre", 1, "pilcro", "shifted_accuracy", shifted),
        "faithful": ("Faithfulness (Quantus)", 0, regular, faithful, faith[0]),
        "formula": ("Faithfulness (formula)", 0, regular, faithful, faith[1]),
        "lipschitz": ("normalised Lipschitz estimate", -1, regular, lipschitz, scaled),
        "sensitivity": ("max-sensitivity", -1, regular, "max_sensitivity", noisy),
        "entropy": ("entropy of the map", -1, regular, "entropy", maps),
        "insertion": ("insertion", 1, density, "insertion_auc", curve),
        "change": ("change of the gradient by noise", -1, density, "gradient_change", noise),
        "share": ("share of the first eigenvalue", 0, high, "exact_share", least),
        "distance": ("distance of CASO from CAFO", 0, high, "second_order_distance", least),
        "flatness": ("unevenness of the landscape", -1, "pilcro", "flatness", flat),
        "pointing": ("share on one image of four", 1, "top_gap", "grid_pointing", maps),
        "leakage": ("leakage into the null block", -1, density, "feature_leakage", few),
        "leakage_share": ("share of leakage", -1, density, "feature_leakage", few | relative),
        "on_object": ("share on the object", 1, "top_gap", on_object, maps),
        "beyond": ("beyond other objects'", 1, "top_gap", on_object, maps | beyond),
        "swapped": ("accuracy, backgrounds swapped", 1, "top_gap", "accuracy", swapped),
    }
    for name in p.only or ():
        if name not in found:
            raise unknown("measure", name, [*found])
    turned = {"faithful"}  # the software takes f(x) - f(x_i), the formula f(x_i) - f(x)
    wanted = found.keys() - ASKED_FOR if p.only is None else {"accuracy", *p.only}
    return {n: Measure(*values, turned=n in turned) for n, values in found.items() if n in wanted}


class Network(NamedTuple):
    """A network of a panel: `chosen` ones are compared, the others say which strength to choose."""

    method: str
    strength: float
    seed: int
    chosen: bool


def panels(parameters: Mapping[str, Any]) -> list[SimpleNamespace]:
    """Return the parameters of each panel: its own before those of the chapter.

    Raises:
        UsageError: a key that is not known or is missing, a method that is not known or is chosen
            at a strength that is not among its own, or two panels of one data set.
    """
    found = []
    for panel in parameters["panels"]:
        check_keys("panels", panel, OF_TRAINING | OF_PANEL, REQUIRED)
        strengths, chosen = panel["strengths"], panel["chosen"]
        for method in [*strengths, *chosen]:
            if method not in METHODS or method == "none":
                raise unknown("method", method, [name for name in METHODS if name != "none"])
        for method, strength in chosen.items():
            if strength not in strengths.get(method, []):
                among = f"one of its strengths, {strengths.get(method, [])}"
                raise expected(f"chosen, {method}", among, strength)
        own = {"warm_up": 0, "measured": True, "n_shifted": None, "n_targets": None}
        own["only"] = None
        own |= {**parameters, **panel}
        found.append(SimpleNamespace(**own, fields=panel.keys() & OF_TRAINING))
    names = [p.data for p in found]
    if len(set(names)) < len(names):
        raise expected("panels", "one for a data set", names)
    return found


def is_fine_tuned(p: SimpleNamespace) -> bool:
    """Say whether the networks of a panel are fine-tuned: trained as they evaluate."""
    return bool(getattr(p, "fixed_statistics", False))


def networks(p: SimpleNamespace) -> list[Network]:
    """Return the networks of a panel: all strengths, and the chosen ones with seeds of their own.

    Raises:
        UsageError: a seed is among both, so that what chose a strength would be compared as well.
    """
    if both := {*p.seeds} & {*p.sweep_seeds}:
        raise expected("seeds", "none of sweep_seeds", sorted(both))
    settings = [("none", 0.0)]
    settings += [(method, s) for method, strengths in p.strengths.items() for s in strengths]
    swept = [Network(m, s, seed, False) for m, s in settings for seed in p.sweep_seeds]
    compared = [("none", 0.0), *p.chosen.items()]
    return swept + [Network(m, s, seed, True) for m, s in compared for seed in p.seeds]


def training(p: SimpleNamespace, network: Network) -> Training:
    """Return the training of a network.

    The strength of a method is that of its penalty; for SoftPlus it is one over the sharpness β,
    for noise its standard deviation, and for PGD training the radius, in the maximum norm: half of
    the loss is that of the attacked images, found in three steps of half the radius.
    """
    fields = {name: getattr(p, name) for name in p.fields}
    options = dict(fields.pop("network_options", {}))
    method, strength = network.method, network.strength
    if method == "top_gap":
        options |= p.top_gap
    if method == "softplus":
        options |= {"softplus": 1 / strength}
    if method == "noise":
        fields["input_noise"] = strength
    terms: Settings = {}
    if method in PENALTIES:
        own: Settings = {"radius": cure_radii(p.epochs)} if method == "cure" else {}
        own |= {"warm_up": p.warm_up} if p.warm_up else {}
        terms = {PENALTIES[method]: {"strength": strength} | own}
    if method == "adversarial":
        attack = {"epsilon": strength, "step_size": strength / 2, "n_steps": PGD_STEPS}
        terms = {"adversarial": {"strength": 0.5, "random_start": True} | attack}
    return Training(**fields, network_options=options, penalties=terms, seed=network.seed)


def cure_radii(epochs: int) -> list[float]:
    """Return the radius of CURE in each epoch, which rises by equal steps."""
    return [round(CURE_RADIUS * (epoch + 1) / epochs, 6) for epoch in range(epochs)]


def _planned(parameters: Mapping[str, Any]) -> list[tuple[Settings, Measurement]]:
    """Return the labels of each row, and its measurement."""
    pairs = []
    for p in panels(parameters):
        wanted = measures(p)
        choice = Measure("", 1, "", "accuracy", {"half": 0})
        for network in networks(p):
            unit = training(p, network)
            common = network._asdict()
            del common["seed"]
            full = network.chosen or p.measured
            of_network = wanted if full else {"accuracy": wanted["accuracy"]}
            for name, measure in {"choice": choice, **of_network}.items():
                labels = common | {"metric": name, "turned": measure.turned}
                taken = Measurement(training=unit, metric=measure.metric, settings=measure.settings)
                pairs.append((labels, taken))
    return pairs


def _drawn(parameters: Mapping[str, Any]) -> dict[str, Measurement]:
    """Return the measurements that keep images and maps, by the start of the names of their arrays.

    They are those of the first panel: photographs of others must not get into kept results.
    """
    found = {}
    for p in panels(parameters)[:1]:
        for network in networks(p):
            if network.chosen and network.seed == p.seeds[0]:
                found[f"{p.data}|{network.method}"] = Measurement(
                    training=training(p, network),
                    metric="saliency_maps",
                    settings={"saliency": "logit_gradient", "n_images": p.n_maps},
                )
    return found


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter: what is measured and drawn, and the trainings."""
    planned = _planned(parameters)
    measured = [unit for _, unit in planned]
    trainings = [unit.training for labels, unit in planned if labels["metric"] == "choice"]
    return [*measured, *_drawn(parameters).values(), *trainings]


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and measure, and images and maps."""
    labels = pd.DataFrame([labels for labels, _ in _planned(parameters)])
    rows = pd.concat([labels, computed.iloc[: len(labels)][COLUMNS]], axis=1)
    rows["value"] = rows["value"].where(~rows["turned"], -rows["value"])
    arrays = {
        f"{name}|{part}": tensor.numpy()
        for name, key in zip(_drawn(parameters), computed["key"].iloc[len(labels) :], strict=False)
        for part, tensor in (store.read_tensors(key) or {}).items()
    }
    return rows.drop(columns="turned"), arrays


def strongest_allowed(rows: pd.DataFrame, most_lost: float = MOST_LOST) -> dict[str, float]:
    """Return for each method its strongest strength that costs no more clean accuracy than allowed.

    Args:
        rows: of one panel; of the metric "choice", those that are not compared are looked at.
        most_lost: mean loss against the networks without a method, of the same seeds.

    Returns:
        A strength by method; a method of which each strength costs more, or diverges, has none.
    """
    losses = lost(rows)
    allowed = losses[losses["lost"] <= most_lost + ROUNDING]  # not where a training diverged
    strongest = allowed.groupby("method", sort=False)["strength"].max()
    return {str(method): float(strength) for method, strength in strongest.items()}


def lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the clean accuracy that each strength costs, a mean over seeds: `lost`.

    Rows are those of `strongest_allowed`.
    """
    rows = rows[(rows["metric"] == "choice") & ~rows["chosen"].astype(bool)]
    plain = rows[rows["method"] == "none"].set_index("seed")["value"]
    rows = rows[rows["method"] != "none"]
    gaps = rows.assign(lost=rows["seed"].map(plain) - rows["value"])
    means = gaps.groupby(["method", "strength"], sort=False)["lost"]
    return means.agg(lambda values: values.mean(skipna=False)).reset_index()
