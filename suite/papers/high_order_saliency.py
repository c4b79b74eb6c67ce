"""High-order saliency: measurements of photographs with pretrained networks, and kept maps."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import check_keys, expected
from suite.metrics import SALIENCIES
from suite.papers.design import Arrays, Derived, Item, Plan, measurement
from suite.papers.group_features import CLIPPED
from suite.papers.names import NAMES
from suite.papers.second_order import MARGIN, MARGINS
from suite.units import Measurement, Network, Pretrained, Training, Values

ALL = "all"  # the logits of all classes
N_COMPARED = 6  # photographs in the comparison of methods
DRAWN_WIDTH = 96  # of a map, in pixels
UNSURE, SURE = 0.5, 0.95  # bounds of the top probability
QUALITY = ("insertion", "sparsity", "overlap", "share")  # columns with one for each method
OBJECTIVE = ("caso", "cafo", "clipped_loss_gradient", "clipped_logit_gradient", "random")
# Measures without further labels, and the columns that they are computed from.
MEASURES = ["share", "cosine", "largest_eigenvalue", "ten_distance", "map_error"]
MEASURES += ["closed_form_error", "exact_share"]
OF_MEASURES = "n_classes confidence eigenvalues_1 ten_cosine ten_norm true_caso".split()
HEADLINES = ("spectra", "errors", "objects", "objective")  # groups that are computed first
ALIKE = 0.14  # distance of maps of norm 1 with a cosine of 0.99
OF_IMAGENET = ("foolbox-imagenet", "imagenet-samples", "imagenet-val-1000")
FIGURES = ("pair", "sweep")  # groups of one unit, whose maps are drawn
LABELS = "data network image confidence sure classes margin saliency".split()


def groups(parameters: Values) -> dict[str, list[Measurement]]:
    """Return the units of the chapter by purpose.

    Raises:
        UsageError: margins without the paper's, or a further network without its three keys.
    """
    p = SimpleNamespace(**parameters)
    network, smooth = (Pretrained(data=p.images, network=n) for n in (p.network, p.curved_network))
    for other in p.others:
        check_keys("others", other, *[("data", "network", "n_images")] * 2)
    further = [(Pretrained(data=o["data"], network=o["network"]), o["n_images"]) for o in p.others]
    twins = [Training(**{**twin, "seed": 0}) for twin in p.twins]
    if MARGIN not in p.margins:  # of λ₂ over L / 2, which makes the objective of CASO concave
        raise expected("parameter margins", f"{MARGIN:g} among them", p.margins)
    margins = {} if [*p.margins] == [*MARGINS] else {"margins": p.margins}

    def spread(n: int, size: int) -> list[dict[str, Any]]:
        """Return settings for `n` evenly spaced photographs, `size` in each unit."""
        step = p.n_images // max(n, 1)
        return [w | {"first": w["first"] * step, "step": step} for w in split_range(n, size)]

    def deal(n: int) -> list[dict[str, Any]]:
        """Return settings for `n` photographs, so that each unit is spread over all of them."""
        step = -(-p.n_images // p.chunk)
        sizes = [len(range(first, p.n_images, step)) for first in range(min(step, p.n_images))]
        counts = [min(size, n - end + size) for size, end in zip(sizes, np.cumsum(sizes).tolist())]
        return [{"n_images": c, "first": i, "step": step} for i, c in enumerate(counts) if c > 0]

    def isolate(n: int) -> list[dict[str, Any]]:
        """Return settings for `n` photographs, one in each unit; the maps of a few are kept."""
        drawn = {i * p.n_smooth // N_COMPARED for i in range(N_COMPARED)} if p.n_smooth else set()
        keep = {i * (p.n_images // max(p.n_smooth, 1)) for i in drawn}
        return [w | {"keep_maps": True} if w["first"] in keep else w for w in spread(n, 1)]

    units: dict[str, list[Measurement]] = defaultdict(list)

    def add(group: str, net: Network, metric: str, where: Sequence[Values], **more: Any) -> None:
        units[group] += [measurement(net, metric, **settings, **more) for settings in where]

    add("spectra", network, "high_order", deal(p.n_order), **margins)
    for other, n in further:
        where = deal(n) if other.data == p.images else split_range(n, p.chunk)
        add("others", other, "high_order", where, **margins)
    for n in p.class_counts:
        add("few", network, "high_order", deal(p.n_few), **margins, n_classes=n)
    add("smooth", smooth, "high_order", spread(p.n_curved, 2), **margins)
    for twin in twins:
        add("twins", twin, "high_order", split_range(p.n_twins, p.chunk), **margins)
        add("accuracy", twin, "accuracy", [{}])
    add("exact", network, "exact_share", spread(p.n_exact, 1))
    for model in (network, smooth):
        add("errors", model, "closed_form_error", spread(p.n_closed, 10))
    counts: list[tuple[Network, int]] = [(other, p.n_closed) for other, _ in further]
    for net, n in counts + [(twin, p.n_twins) for twin in twins]:
        add("errors", net, "closed_form_error", split_range(min(n, 10), p.chunk))
    add("pair", network, "first_and_second_order", [{"n_images": p.n_images}])
    add("sweep", network, "lambda1_sweep", [{"n_images": p.n_images, "image": p.sweep_image}])
    metric = "map_quality"
    add("quality", network, metric, isolate(p.n_quality), saliencies=p.saliencies)
    add("quality_of_smooth", network, metric, isolate(p.n_smooth), saliencies=p.smooth_saliencies)
    add("objective", network, "group_objective", spread(p.n_quality, 2))
    objects = Pretrained(data=p.objects, network=p.network)
    where = split_range(p.n_objects, 4, p.first_object)
    for scene in ("pair", "box"):
        add("objects", objects, "on_object", where, scene=scene, saliencies=p.object_saliencies)
    return units


def split_range(n: int, size: int, first: int = 0) -> list[dict[str, Any]]:
    """Return settings for `n` photographs from `first` on, at most `size` in each unit."""
    return [{"n_images": min(size, n - s), "first": first + s} for s in range(0, n, size)]


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists of parameters may hold."""
    known = [*SALIENCIES, *(f"{CLIPPED}{name}" for name in SALIENCIES)]
    return dict.fromkeys(("saliencies", "smooth_saliencies", "object_saliencies"), known)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter, each with its group."""
    items = Plan()
    for name, units in sorted(groups(parameters).items(), key=lambda g: g[0] not in HEADLINES):
        for unit in units:
            labels = {"group": name, "network": network_name(unit.training)}
            keep = name if name in FIGURES else ""
            if unit.settings.get("keep_maps"):
                keep = f"{name}|{unit.settings['first']}"
            per_image = name not in (*FIGURES, "accuracy")
            items.append(Item(unit, labels, keep, per_image))
    return items


def network_name(network: Network) -> str:
    """Return the name of a network, with its activation if the options state one."""
    options = network.network_options if isinstance(network, Training) else {}
    return "_".join(filter(None, [network.network, options.get("activation")]))


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Return one row for each photograph and measure, and the maps to draw."""
    columns = ["data", "network", "metric", "value", "seed", "n", "status"]
    accuracy = rows[rows["group"] == "accuracy"].reindex(columns=columns).assign(seed=0)
    wide = _name_values(rows)
    long = pd.concat([_to_long(wide, parameters["margins"]), _accuracies(rows), accuracy])
    names = [n for n in arrays if n.startswith(FIGURES) and n != "pair|labels"]
    figures = {n.replace("|", "_"): arrays[n] for n in names}
    figures["sweep_index"] = np.array([parameters["sweep_image"]])
    return long, figures | _comparison(parameters, arrays, wide[wide["group"] == "quality"])


def _accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of networks on the photographs whose labels are ImageNet's."""
    has_labels = rows["group"].isin(("spectra", "others", "smooth"))
    rows = rows[has_labels & rows["data"].isin(OF_IMAGENET)]
    correct = (rows["predicted"] == rows["labels"]).groupby([rows["data"], rows["network"]])
    means = correct.agg(value="mean", n="size").reset_index()
    return means.assign(metric="accuracy", seed=0, status="done")


def distance_bound(largest: Any, margin: Any) -> Any:
    r"""Return a bound on the distance of CASO from CAFO, both of norm 1, for any eigenvectors.

    .. math:: \sqrt{2 - \frac{4 \sqrt\kappa}{1 + \kappa}}, \qquad
       \kappa = \frac{2 \lambda_2}{2 \lambda_2 - L} = \frac{L + 2 m}{2 m}

    by Kantorovich's inequality for a positive semi-definite H, with its largest eigenvalue L and
    the margin m.

    >>> round(float(distance_bound(20.0, 10.0)), 3)
    0.338
    """
    condition = 1 + np.maximum(largest, 0) / (2 * margin)
    return np.sqrt(2 - 4 * np.sqrt(condition) / (1 + condition))


def _name_values(rows: pd.DataFrame) -> pd.DataFrame:
    """Move values to columns named by measure; add the number of classes, and the sureness."""
    columns = [*dict.fromkeys([*rows, *MEASURES, *OF_MEASURES])]
    rows = rows[rows["group"] != "accuracy"].reset_index(drop=True).reindex(columns=columns).copy()
    for metric, name in NAMES["high_order_saliency"]["values"].items():
        has_metric = rows["metric"] == metric
        rows.loc[has_metric, name] = rows.loc[has_metric, "value"]
    few, order = rows["group"] == "few", rows["metric"] == "high_order"
    rows["classes"] = rows["n_classes"].map("{:.0f}".format).where(few, ALL).where(order, None)
    rows["largest_eigenvalue"] = rows["eigenvalues_1"].where(order)
    cosine, norm = rows["ten_cosine"], rows["ten_norm"]
    rows["ten_distance"] = np.sqrt((1 + norm**2 - 2 * norm * cosine).clip(lower=0))
    on = ["data", "network", "image"]
    confidence = rows[order & ~few].set_index(on)["confidence"]
    # The top probability among all classes; keeping only a few classes would change it.
    among_all = confidence.reindex(pd.MultiIndex.from_frame(rows[on])).to_numpy()
    rows["confidence"] = rows["confidence"].mask(rows["group"].isin(("errors", "exact")), among_all)
    return rows.assign(sure=sureness(rows["confidence"].mask(few, among_all)))


def _to_long(rows: pd.DataFrame, margins: Sequence[float]) -> pd.DataFrame:
    """Return one row for each photograph and measure; some only for the paper's margin."""
    labelled, parts = rows[[label for label in LABELS if label in rows]], []

    def add(metric: Any, values: Any, **labels: Any) -> None:
        parts.append(labelled.assign(metric=metric, value=values, **labels).dropna(subset="value"))

    for name in MEASURES:
        add(name, rows[name])
    for column in map(str, rows):
        metric, _, name = column.partition("_")
        if metric in QUALITY and name:
            add("on_" + rows["scene"] if metric == "share" else metric, rows[column], saliency=name)
    for name in OBJECTIVE if "true_random" in rows else ():
        add("group_loss", rows[f"true_{name}"], saliency=name)
    for n, margin in enumerate(margins, start=1):
        add_at, distance = partial(add, margin=margin), rows[f"differences_{n}"]
        add_at("difference", distance)
        for name in ("cafo", "caso"):
            add_at("true_loss", rows[f"true_{name}_{n}"], saliency=name)
        if margin == MARGIN:
            add_at("alike", (distance < ALIKE).astype(float).where(distance.notna()))
            bound = distance_bound(rows["largest_eigenvalue"], margin)
            add_at("relative_distance", distance / bound)
            for order in ("first", "second"):
                gap = (rows[f"{order}_cafo_{n}"] - rows[f"true_cafo_{n}"]).abs()
                add_at("expansion_error", gap, saliency=f"{order} order")
    long = pd.concat(parts).reindex(columns=[*LABELS, "metric", "value"])
    return long.assign(seed=0, std=np.nan, n=1, status="done")


def sureness(confidence: Any) -> NDArray[Any]:
    """Classify top probabilities as low, between or high; None for NaN.

    >>> sureness(np.array([0.5, 0.6, 0.95, np.nan])).tolist()
    ['low', 'between', 'high', None]
    """
    p = np.asarray(confidence, float)
    cases = [np.isnan(p), p <= UNSURE, p >= SURE]
    return np.select(cases, [np.array(None), np.array("low"), np.array("high")], "between")


def _comparison(parameters: Values, arrays: Arrays, quality: pd.DataFrame) -> Arrays:
    """Return the maps of all methods for a few photographs, with the network's predictions."""
    keys = [name.split("|") for name in arrays if name.endswith("|maps")]
    images = sorted(int(image) for group, image, *_ in keys if group == "quality")
    if not images:
        return {}
    rows = quality.set_index("image").loc[images]
    compared = {"index": np.array(images), "predicted": rows["predicted"].to_numpy(int)}
    compared["confidence"] = rows["confidence"].to_numpy()
    for group, methods in (("quality_of_smooth", "smooth_saliencies"), ("quality", "saliencies")):
        names = [f"{group}|{image}|maps" for image in images]
        if arrays.keys() >= {*names}:
            maps = np.stack([arrays[name][0] for name in names], 1)
            compared |= zip(parameters[methods], maps, strict=True)
    return {f"compared_{name}": array for name, array in compared.items()}


def shrink(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a unit as figures draw them: maps at most `DRAWN_WIDTH` pixels wide."""
    return {n: _shrink(t) if n.endswith("maps") else t for n, t in tensors.items()}


def _shrink(maps: Tensor) -> Tensor:
    """Shrink maps (..., H, W) to at most `DRAWN_WIDTH` pixels; keep smaller ones as they are."""
    size = min(DRAWN_WIDTH, maps.shape[-1])
    means = torch.nn.functional.adaptive_avg_pool2d(maps.float().flatten(0, -3)[:, None], size)
    return means.round().byte().view(*maps.shape[:-2], size, size)
