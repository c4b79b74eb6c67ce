"""High-order saliency: photographs shown to pretrained networks, and what is drawn of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from suite.papers.names import NAMES
from suite.units import Measurement, Network, Pretrained, Training, Unit, Values, training_of

ALL = "all"  # of the classes of a network
N_COMPARED = 6  # photographs in the comparison of methods
DRAWN_WIDTH = 96  # pixels of a map
UNSURE, SURE = 0.5, 0.95  # bounds of the top probability
QUALITY = ("insertion", "sparsity", "overlap", "share")  # of each saliency
OBJECTIVE = ("caso", "cafo", "clipped_loss_gradient", "clipped_logit_gradient", "random")
# Measures without further labels, and of what they are.
MEASURES = ["share", "cosine", "largest_eigenvalue", "ten_distance", "map_error"]
MEASURES += ["closed_form_error", "exact_share"]
OF_MEASURES = "n_classes confidence eigenvalues_1 ten_cosine ten_norm true_caso".split()
HEADLINES = ("spectra", "errors", "objects", "objective")  # groups that are computed first
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
    metric = "map_quality"
    add("quality", network, metric, single(p.n_quality), saliencies=p.saliencies)
    add("quality_of_smooth", network, metric, single(p.n_smooth), saliencies=p.smooth_saliencies)
    add("objective", network, "group_objective", spread(p.n_quality, 2))
    objects = Pretrained(data=p.objects, network=p.network)
    for scene in SCENES:
        settings = {"scene": scene, "saliencies": p.object_saliencies}
        add("objects", objects, "on_object", in_turn(p.n_objects, 4, p.first_object), **settings)
    return found


def in_turn(n: int, size: int, first: int = 0) -> list[dict[str, Any]]:
    """Return which photographs `n` from `first` on are, `size` in each unit."""
    return [{"n_images": min(size, n - s), "first": first + s} for s in range(0, n, size)]


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
        for name, units in sorted(groups(parameters).items(), key=lambda g: g[0] not in HEADLINES)
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
    columns = ["data", "network", "metric", "value", "seed", "n", "status"]
    accuracy = rows[rows["group"] == "accuracy"].reindex(columns=columns).assign(seed=0)
    measured = _named(rows)
    made = pd.concat([_long(measured, parameters["margins"]), _accuracies(rows), accuracy])
    of_figures = {n: a for n, a in arrays.items() if n.startswith(("pair|", "sweep|"))}
    figures = {n.replace("|", "_"): a for n, a in of_figures.items() if n != "pair|labels"}
    figures["sweep_index"] = np.array([parameters["sweep_image"]])
    quality = measured[measured["group"] == "quality"]
    return made, figures | _compared(parameters, arrays, quality)


def _accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of networks on those photographs whose labels are ImageNet's."""
    of_imagenet = rows["group"].isin(("spectra", "others", "smooth"))
    shown = rows[of_imagenet & rows["data"].isin(OF_IMAGENET)]
    right = (shown["predicted"] == shown["labels"]).groupby([shown["data"], shown["network"]])
    means = right.agg(value="mean", n="size").reset_index()
    return means.assign(metric="accuracy", seed=0, status="done")


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


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return photographs with their measures by name, their classes, and how sure they are."""
    known = [*dict.fromkeys([*rows, *MEASURES, *OF_MEASURES])]
    rows = rows[rows["group"] != "accuracy"].reset_index(drop=True).reindex(columns=known).copy()
    for metric, name in NAMES["high_order_saliency"]["values"].items():
        of_metric = rows["metric"] == metric
        rows.loc[of_metric, name] = rows.loc[of_metric, "value"]
    few, order = rows["group"] == "few", rows["metric"] == "high_order"
    rows["classes"] = rows["n_classes"].map("{:.0f}".format).where(few, ALL).where(order, None)
    rows["largest_eigenvalue"] = rows["eigenvalues_1"].where(order)
    cosine, norm = rows["ten_cosine"], rows["ten_norm"]
    rows["ten_distance"] = np.sqrt((1 + norm**2 - 2 * norm * cosine).clip(lower=0))
    on = ["data", "network", "image"]
    whole = rows[order & ~few].set_index(on)["confidence"]
    # The top probability among all classes, which keeping a few would change.
    among_all = whole.reindex(pd.MultiIndex.from_frame(rows[on])).to_numpy()
    unknown = rows["group"].isin(("errors", "exact"))
    rows["confidence"] = rows["confidence"].mask(unknown, among_all)
    return rows.assign(sure=sureness(rows["confidence"].mask(few, among_all)))


def _long(rows: pd.DataFrame, margins: Sequence[float]) -> pd.DataFrame:
    """Return one row for each photograph and measure."""
    parts: list[dict[str, Any]] = [{"metric": name, "value": rows[name]} for name in MEASURES]
    for column in map(str, rows):
        metric, _, name = column.partition("_")
        if metric in QUALITY and name:
            metrics = "on_" + rows["scene"] if metric == "share" else metric
            parts.append({"metric": metrics, "saliency": name, "value": rows[column]})
    for name in OBJECTIVE if "true_random" in rows else ():
        loss = rows[f"true_{name}"]
        parts.append({"metric": "group_loss", "saliency": name, "value": loss})
    for n, margin in enumerate(margins, start=1):
        at = {"margin": margin}
        parts.append(at | {"metric": "difference", "value": rows[f"differences_{n}"]})
        for name in ("cafo", "caso"):
            loss = rows[f"true_{name}_{n}"]
            parts.append(at | {"metric": "true_loss", "saliency": name, "value": loss})
        if margin == second_order.MARGIN:
            parts += [at | part for part in _at_margin(rows, n)]
    known = rows[[label for label in LABELS if label in rows]]
    made = pd.concat([known.assign(**part).dropna(subset="value") for part in parts])
    made = made.reindex(columns=[*LABELS, "metric", "value"])
    return made.assign(seed=0, std=np.nan, n=1, status="done")


def _at_margin(rows: pd.DataFrame, n: int) -> Iterator[dict[str, Any]]:
    """Yield what is measured at the paper's margin, the n-th, alone."""
    distance = rows[f"differences_{n}"]
    bound = distance_bound(rows["largest_eigenvalue"], second_order.MARGIN)
    close = (distance < ALIKE).astype(float).where(distance.notna())
    yield {"metric": "alike", "value": close}
    yield {"metric": "relative_distance", "value": distance / bound}
    for kind in ("first", "second"):
        gap = (rows[f"{kind}_cafo_{n}"] - rows[f"true_cafo_{n}"]).abs()
        yield {"metric": "expansion_error", "saliency": f"{kind} order", "value": gap}


def sureness(confidence: Any) -> NDArray[Any]:
    """Say whether top probabilities are high, low, or between; None where there is none.

    >>> sureness(np.array([0.5, 0.6, 0.95, np.nan])).tolist()
    ['low', 'between', 'high', None]
    """
    p = np.asarray(confidence, float)
    cases = [np.isnan(p), p <= UNSURE, p >= SURE]
    return np.select(cases, [np.array(None), np.array("low"), np.array("high")], "between")


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
