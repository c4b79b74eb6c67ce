"""High-order saliency: photographs shown to pretrained networks, and what is drawn of them."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import check_keys, expected
from suite.metrics import SALIENCIES
from suite.papers import second_order
from suite.papers.design import Item, Plan, measurement
from suite.papers.group_features import CLIPPED
from suite.units import Measurement, Network, Pretrained, Training, Unit, Values, training_of

ALL = "all"  # of the classes of a network
N_COMPARED = 6  # photographs in the comparison of methods
DRAWN_WIDTH = 96  # pixels of a map
UNSURE, SURE = 0.5, 0.95  # bounds of the top probability
QUALITY = "insertion deletion faithfulness entropy sparsity overlap".split()
OBJECTIVE = "caso cafo clipped_loss_gradient clipped_logit_gradient random".split()
ALIKE = 0.14  # distance of maps of norm 1 with a cosine of 0.99
OF_IMAGENET = ("foolbox-imagenet", "imagenet-samples", "imagenet-val-1000")
SCENES = ("pair", "box")
LABELS = "data network image confidence sure classes margin saliency".split()


def groups(parameters: Values) -> dict[str, list[Unit]]:
    """Return the units of the chapter by what they are for.

    Raises:
        UsageError: margins without the paper's, or a further network without its three entries.
    """
    p = SimpleNamespace(**parameters)
    network, smooth = (Pretrained(data=p.images, network=n) for n in (p.network, p.curved_network))
    further = [_shown(other) for other in p.others]
    pairs = [Training(**{**twin, "seed": 0}) for twin in p.twins]
    if second_order.MARGIN not in p.margins:  # by which λ₂ exceeds L / 2: CASO is concave
        raise expected("parameter margins", f"{second_order.MARGIN:g} among them", p.margins)
    standard = list(p.margins) == list(second_order.MARGINS)
    margins: dict[str, Any] = {} if standard else {"margins": p.margins}

    def spread(n: int, size: int) -> list[dict[str, Any]]:
        """Return which photographs `n` of all of them are, `size` in each unit."""
        step = p.n_images // max(n, 1)
        return [one | {"first": one["first"] * step, "step": step} for one in in_turn(n, size)]

    def dealt(n: int) -> list[dict[str, Any]]:
        """Return which photographs units show, so that the first units are spread over all."""
        step = -(-p.n_images // p.chunk)
        sizes = [len(range(first, p.n_images, step)) for first in range(min(step, p.n_images))]
        counts = [min(size, n - end + size) for size, end in zip(sizes, np.cumsum(sizes).tolist())]
        return [{"n_images": c, "first": i, "step": step} for i, c in enumerate(counts) if c > 0]

    def single(n: int) -> list[dict[str, Any]]:
        """Return which photographs are shown one by one; the maps of a few of them are kept."""
        drawn = {i * p.n_smooth // N_COMPARED for i in range(N_COMPARED)} if p.n_smooth else set()
        keep = {i * (p.n_images // max(p.n_smooth, 1)) for i in drawn}
        return [w | {"keep_maps": True} if w["first"] in keep else w for w in spread(n, 1)]

    found: dict[str, list[Unit]] = defaultdict(list)

    def add(group: str, of: Network, metric: str, where: list[dict[str, Any]], **more: Any) -> None:
        found[group] += [measurement(of, metric, **settings, **more) for settings in where]

    add("spectra", network, "high_order", dealt(p.n_order), **margins)
    for of, n in further:
        where = dealt(n) if of.data == p.images else in_turn(n, p.chunk)
        add("others", of, "high_order", where, **margins)
    for n in p.class_counts:
        add("few", network, "high_order", dealt(p.n_few), **margins, n_classes=n)
    add("smooth", smooth, "high_order", spread(p.n_curved, 2), **margins)
    for twin in pairs:
        add("twins", twin, "high_order", in_turn(p.n_twins, p.chunk), **margins)
        add("accuracy", twin, "accuracy", [{}])
    add("exact", network, "exact_share", spread(p.n_exact, 1))
    for one in (network, smooth):
        add("errors", one, "closed_form_error", spread(p.n_closed, 10))
    for of, _ in further:
        add("errors", of, "closed_form_error", in_turn(min(p.n_closed, 10), p.chunk))
    for twin in pairs:
        add("errors", twin, "closed_form_error", in_turn(min(p.n_twins, 10), p.chunk))
    add("pair", network, "first_and_second_order", [{"n_images": p.n_images}])
    add("sweep", network, "lambda1_sweep", [{"n_images": p.n_images, "image": p.sweep_image}])
    metric = "interpretation_quality"
    add("quality", network, metric, single(p.n_quality), saliencies=p.saliencies)
    add("quality_of_smooth", network, metric, single(p.n_smooth), saliencies=p.smooth_saliencies)
    add("objective", network, "group_objective", spread(p.n_quality, 2))
    objects = Pretrained(data=p.objects, network=p.network)
    for scene in SCENES:
        settings = {"scene": scene, "saliencies": p.object_saliencies}
        add("objects", objects, "on_object", in_turn(p.n_objects, 4), **settings)
    return found


def in_turn(n: int, size: int) -> list[dict[str, Any]]:
    """Return which photographs the first `n` are, `size` in each unit."""
    return [{"n_images": min(size, n - first), "first": first} for first in range(0, n, size)]


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists of parameters may hold."""
    known = [*SALIENCIES, *(f"{CLIPPED}{name}" for name in SALIENCIES)]
    return dict.fromkeys(("saliencies", "smooth_saliencies", "object_saliencies"), known)


def _shown(other: Values) -> tuple[Pretrained, int]:
    """Return a further network with its photographs, and how many of these.

    Raises:
        UsageError: it has not the three entries.
    """
    check_keys("others", other, *[("data", "network", "n_images")] * 2)
    return Pretrained(data=other["data"], network=other["network"]), other["n_images"]


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter, each with the group that it is of."""
    return Plan(
        Item(
            unit,
            {"group": name, "network": network_name(training_of(unit))},
            keep=_kept(name, unit),
            each=name not in ("pair", "sweep", "accuracy"),
        )
        for name, units in groups(parameters).items()
        for unit in units
    )


def _kept(group: str, unit: Unit) -> str:
    """Return the name of what is drawn of a unit."""
    if isinstance(unit, Measurement) and unit.settings.get("keep_maps"):
        return f"{group}|{unit.settings['first']}"
    return group if group in ("pair", "sweep") else ""


def network_name(of: Network) -> str:
    """Return the name of a network, with its activation where that is not ReLU."""
    options = of.network_options if isinstance(of, Training) else {}
    return "_".join([of.network, *([options["activation"]] if "activation" in options else [])])


def derive(
    parameters: Values, rows: pd.DataFrame, arrays: dict[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a photograph and measure, and the maps that are drawn."""
    tables = defaultdict(pd.DataFrame)
    for name, part in rows.groupby("group"):
        tables[str(name)] = part.dropna(axis="columns", how="all")
    for name in ("quality", "quality_of_smooth"):
        tables[name] = tables[name].rename(columns={"value": "confidence"})
    columns = ["data", "network", "metric", "value", "seed", "n", "status"]
    accuracy = tables["accuracy"].assign(seed=0).reindex(columns=columns)
    rows = pd.concat([_long(tables, parameters["margins"]), _accuracies(tables), accuracy])
    of_figures = {n: a for n, a in arrays.items() if n.startswith(("pair|", "sweep|"))}
    figures = {n.replace("|", "_"): a for n, a in of_figures.items() if n != "pair|labels"}
    figures["sweep_index"] = np.array([parameters["sweep_image"]])
    return rows, figures | _compared(parameters, arrays, tables["quality"])


def _accuracies(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the accuracy of networks on those photographs whose labels are ImageNet's."""
    of_imagenet = ("spectra", "others", "smooth")
    shown = pd.concat([tables[name] for name in of_imagenet], ignore_index=True)
    shown = shown[shown["data"].isin(OF_IMAGENET)]
    right = (shown["predicted"] == shown["labels"]).groupby([shown["data"], shown["network"]])
    rows = right.agg(value="mean", n="size").reset_index()
    return rows.assign(metric="accuracy", seed=0, status="done")


def distance_bound(largest: Any, margin: float) -> Any:
    r"""Return the largest distance of CASO from CAFO, of norm 1, whatever the eigenvectors.

    .. math:: \sqrt{2 - \frac{4 \sqrt\kappa}{1 + \kappa}}, \qquad
       \kappa = \frac{2 \lambda_2}{2 \lambda_2 - L} = \frac{L + 2 m}{2 m}

    Kantorovich's inequality for a positive semi-definite H; L is its largest eigenvalue and m the
    margin.

    >>> round(float(distance_bound(20.0, 10.0)), 3)
    0.338
    """
    condition = 1 + np.maximum(largest, 0) / (2 * margin)
    return np.sqrt(2 - 4 * np.sqrt(condition) / (1 + condition))


def _long(tables: dict[str, pd.DataFrame], margins: Sequence[float]) -> pd.DataFrame:
    """Return one row for each photograph and measure."""
    whole = ("spectra", "others", "smooth", "twins")
    order = [tables[name].assign(classes=ALL) for name in whole if len(tables[name])]
    if len(tables["few"]):
        counts = tables["few"]["n_classes"].astype(int).astype(str)
        order.append(tables["few"].assign(classes=counts))
    spectra = pd.concat(order, ignore_index=True)
    on = ["data", "network", "image"]
    confidence = spectra[spectra["classes"] == ALL].set_index(on)["confidence"]

    def among_all(table: pd.DataFrame) -> Any:
        """Return the top probability among all classes, which keeping a few would change."""
        return confidence.reindex(pd.MultiIndex.from_frame(table[on])).to_numpy()

    spectra["sure"] = sureness(among_all(spectra))
    parts = [*_of_order(spectra, margins), *_of_groups(tables)]
    for group, names in (
        ("errors", {"value": "closed_form_error"}),
        ("exact", {"value": "exact_share", "map_error": "map_error"}),
    ):
        if len(tables[group]):
            table = tables[group].rename(columns=names)
            table["confidence"] = among_all(table)
            parts += _melted(table, {name: name for name in names.values()})
    rows = pd.concat(parts, ignore_index=True).dropna(subset="value")
    rows = rows.reindex(columns=[*LABELS, "metric", "value"])
    rows["sure"] = rows["sure"].fillna(pd.Series(sureness(rows["confidence"]), rows.index))
    return rows.assign(seed=0, std=np.nan, n=1, status="done")


def sureness(confidence: Any) -> NDArray[Any]:
    """Say whether top probabilities are high, low, or between; None where there is none.

    >>> sureness(np.array([0.5, 0.6, 0.95, np.nan])).tolist()
    ['low', 'between', 'high', None]
    """
    p = np.asarray(confidence, float)
    cases = [np.isnan(p), p <= UNSURE, p >= SURE]
    return np.select(cases, [np.array(None), np.array("low"), np.array("high")], "between")


def _melted(table: pd.DataFrame, metrics: Mapping[str, str], **labels: Any) -> list[pd.DataFrame]:
    """Return columns as rows of metrics, by their names, with the labels that the table has."""
    known = table[[label for label in LABELS if label in table]]
    return [known.assign(value=table[c], metric=m, **labels) for c, m in metrics.items()]


def _of_order(spectra: pd.DataFrame, margins: Sequence[float]) -> list[pd.DataFrame]:
    """Return the rows of what `high_order` measures."""
    same = {name: name for name in ("cosine", "moved")}
    parts = _melted(spectra, {"value": "share", **same, "eigenvalues_1": "largest_eigenvalue"})
    whole = spectra[spectra["classes"] == ALL]
    for n, margin in enumerate(margins, start=1):
        at = {"margin": margin}
        parts += _melted(spectra, {f"differences_{n}": "difference"}, **at)
        parts += _melted(whole, {f"norms_{n}": "norm"}, **at)
        for name in ("cafo", "caso"):
            parts += _melted(whole, {f"true_{name}_{n}": "true_loss"}, **at, saliency=name)
        if margin != second_order.MARGIN:
            continue
        distance = spectra[f"differences_{n}"]
        relative = distance / distance_bound(spectra["eigenvalues_1"], margin)
        of_distance = spectra.assign(close=(distance < ALIKE).astype(float), relative=relative)
        parts += _melted(of_distance, {"close": "alike", "relative": "relative_distance"}, **at)
        parts += _melted(whole, {f"true_random_{n}": "true_loss"}, **at, saliency="random")
        for kind in ("first", "second"):
            gap = (whole[f"{kind}_cafo_{n}"] - whole[f"true_cafo_{n}"]).abs()
            labels = at | {"saliency": f"{kind} order"}
            parts += _melted(whole.assign(gap=gap), {"gap": "expansion_error"}, **labels)
    return parts


def _of_groups(tables: dict[str, pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the rows of what is measured of maps with and without groups of pixels."""
    parts = []
    for group, name in itertools.product(("quality", "quality_of_smooth"), QUALITY):
        parts += _by_saliency(tables[group], f"{name}_", name)
    if len(tables["objective"]):
        objective = tables["objective"].rename(columns={"value": "true_caso"})
        for name in OBJECTIVE:
            parts += _melted(objective, {f"true_{name}": "group_loss"}, saliency=name)
        cosine, norm = objective["ten_cosine"], objective["ten_norm"]
        apart = np.sqrt((1 + norm**2 - 2 * norm * cosine).clip(lower=0))
        ten = {name: name for name in ("ten_cosine", "ten_norm", "ten_distance")}
        parts += _melted(objective.assign(ten_distance=apart), ten)
    objects = tables["objects"].dropna(axis="columns", how="all")
    for scene in SCENES if len(objects) else ():
        parts += _by_saliency(objects[objects["scene"] == scene], "share_", f"on_{scene}")
    return [part for part in parts if len(part)]


def _by_saliency(table: pd.DataFrame, start: str, metric: str) -> list[pd.DataFrame]:
    """Return the columns whose names start so as rows of a metric; how they end is the saliency."""
    endings = [str(c).removeprefix(start) for c in table if str(c).startswith(start)]
    return [
        part
        for ending in endings
        for part in _melted(table, {f"{start}{ending}": metric}, saliency=ending)
    ]


def _compared(
    parameters: Values, arrays: Mapping[str, Any], quality: pd.DataFrame
) -> dict[str, NDArray[Any]]:
    """Return the maps of the photographs that all methods have, and what the network says."""
    saliencies = {"quality": parameters["saliencies"]}
    saliencies |= {"quality_of_smooth": parameters["smooth_saliencies"]}
    found: dict[int, dict[str, NDArray[Any]]] = defaultdict(dict)
    for name, maps in arrays.items():
        group, *image = name.split("|")
        if group in saliencies and image[1:] == ["maps"]:
            found[int(image[0])] |= zip(saliencies[group], maps[0], strict=True)
    every = sorted(image for image in found if parameters["saliencies"][0] in found[image])
    if not every:
        return {}
    shown = quality.set_index("image").loc[every]
    compared = {"compared_index": np.array(every)}
    compared["compared_predicted"] = shown["predicted"].to_numpy(int)
    compared["compared_confidence"] = shown["confidence"].to_numpy()
    for saliency in dict.fromkeys([*parameters["smooth_saliencies"], *parameters["saliencies"]]):
        if all(saliency in found[image] for image in every):
            compared[f"compared_{saliency}"] = np.stack([found[i][saliency] for i in every])
    return compared


def drawn(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is drawn of the tensors of a unit: maps of at most `DRAWN_WIDTH` pixels."""
    return {n: _shrunk(t) if n.endswith("maps") else t for n, t in tensors.items()}


def _shrunk(maps: Tensor) -> Tensor:
    """Return maps (..., H, W) at most `DRAWN_WIDTH` pixels wide; small ones as they are."""
    size = min(DRAWN_WIDTH, maps.shape[-1])
    means = torch.nn.functional.adaptive_avg_pool2d(maps.float().flatten(0, -3)[:, None], size)
    return means.round().byte().view(*maps.shape[:-2], size, size)
