"""High-order saliency: photographs shown to pretrained networks, and what is drawn of them."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import RunFailed
from suite.papers import second_order
from suite.store import Reader
from suite.units import Measurement, Pretrained, Training, Unit

ALL_CLASSES = 1000
N_COMPARED = 6  # photographs in the comparison of methods
DRAWN_WIDTH = 112  # pixels of a map
# Columns of a table of photographs that become rows, by the group of units that has them.
MEASURES = {
    "high_order": ["difference", "share", "cosine", "moved", "largest_eigenvalue"],
    "quality": "insertion deletion faithfulness entropy max_sensitivity sparsity overlap".split(),
    "errors": ["closed_form_error"],
    "exact": ["exact_share", "decomposition_seconds"],
}
LABELS = ["data", "network", "image", "confidence", "n_classes", "saliency"]


def groups(parameters: Mapping[str, Any]) -> dict[str, list[Unit]]:
    """Return the units of the chapter by what they are for."""
    p = SimpleNamespace(**parameters)
    network = Pretrained(data=p.images, network=p.network)
    smooth = Pretrained(data=p.images, network=p.curved_network)
    digits = Training(
        data="mnist5k", network="lenet5", n_train=128, epochs=1, learning_rate=1e-3, seed=0
    )

    def one(of: Pretrained | Training, metric: str, **settings: Any) -> list[Unit]:
        return [Measurement(training=of, metric=metric, settings=settings)]

    def spread(of: Pretrained, metric: str, n: int, size: int = p.chunk, **more: Any) -> list[Unit]:
        """Return the units that measure `n` photographs, spread over all, `size` in each."""
        step = p.n_images // max(n, 1)
        where = [(min(size, n - start), start * step) for start in range(0, n, size)]
        each = ({"n_images": count, "first": first, "step": step} for count, first in where)
        return [unit for settings in each for unit in one(of, metric, **settings, **more)]

    def quality(saliency: str) -> list[Unit]:
        noisy = p.n_samples and not saliency.startswith("smooth_c")
        settings = {"saliency": saliency} | ({"n_samples": p.n_samples} if noisy else {})
        return spread(network, "interpretation_quality", p.n_quality, 2, **settings)

    return {
        "spectra": spread(network, "high_order", p.n_images),
        "few": [
            unit
            for c in p.class_counts
            for unit in spread(network, "high_order", p.n_few, n_classes=c)
        ],
        "smooth": spread(smooth, "high_order", p.n_curved, size=2),
        "exact": spread(network, "exact_share", p.n_exact, size=1),
        "errors": [
            u for of in (network, smooth) for u in spread(of, "closed_form_error", p.n_closed)
        ],
        "pair": one(network, "first_and_second_order", n_images=p.n_images),
        "sweep": one(network, "lambda1_sweep", n_images=p.n_images, image=p.sweep_image),
        "quality": [unit for saliency in p.saliencies for unit in quality(saliency)],
        "ways": [
            unit
            for way in second_order.WAYS
            for unit in one(digits, "largest_eigenvalue", way=way, n_images=1)
        ],
    }


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter."""
    return [unit for group in groups(parameters).values() for unit in group]


def per_image(units: Iterable[Unit], keys: Iterable[str], store: Reader) -> pd.DataFrame:
    """Return what was measured of each image.

    Args:
        units: stored measurements, with the settings `first` and `step` where they do not take the
            first images.
        keys: of the units.
        store: where they are.

    Returns:
        One row an image and measurement: data, network, metric, image (its position in the test
        split), the settings, value, a column for each tensor with a number an image, and
        NAME_1, NAME_2, ... for each with several, at most 20.

    Raises:
        RunFailed: a measurement is not stored, or has no values for single images.
    """
    tables = [_rows(unit, key, store) for unit, key in zip(units, keys, strict=True)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _rows(unit: Unit, key: str, store: Reader) -> pd.DataFrame:
    record = store.read(key)
    values = None if record is None else record.values.get("per_image")
    if values is None or not isinstance(unit, Measurement):
        raise RunFailed(f"{unit}: expected values for each image in the store, got none")
    settings = {"first": 0, "step": 1, **unit.settings}
    first, step, _ = (settings.pop(name) for name in ("first", "step", "n_images"))
    columns = {"image": range(first, first + len(values) * step, step), "value": values}
    for name, tensor in (store.read_tensors(key) or {}).items():
        if tensor.shape == (len(values),):
            columns[name] = tensor.numpy()
        elif tensor.ndim == 2 and len(tensor) == len(values) and tensor.shape[1] <= 20:
            columns |= {f"{name}_{n}": v.numpy() for n, v in enumerate(tensor.unbind(1), start=1)}
    named = {"data": unit.training.data, "network": unit.training.network, "metric": unit.metric}
    return pd.DataFrame(columns).assign(**named, **settings)


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a photograph and measure, and the maps that are drawn."""
    by_group = groups(parameters)
    sizes = [len(group) for group in by_group.values()]
    parts = [computed.iloc[end - size : end] for size, end in zip(sizes, np.cumsum(sizes))]
    done = dict(zip(by_group, parts, strict=True))
    tables = {
        name: per_image(group, done[name]["key"], store)
        for name, group in by_group.items()
        if name not in ("pair", "sweep")  # which are for pictures only
    }
    rows = _long(tables, done["exact"]["seconds"].tolist())
    arrays = _pictures(parameters, tables["quality"], {n: d["key"] for n, d in done.items()}, store)
    arrays["ways_value"] = tables["ways"]["value"].to_numpy()
    arrays["ways_seconds"] = tables["ways"]["seconds"].to_numpy()
    spectra = tables["spectra"]
    arrays["n_right"] = np.array((spectra["predicted"] == spectra["labels"]).sum())
    return rows, arrays


def _long(tables: dict[str, pd.DataFrame], seconds: list[float]) -> pd.DataFrame:
    confidence = tables["spectra"].set_index("image")["confidence"]
    columns = {"eigenvalues_1": "largest_eigenvalue", "value": "difference"}
    three = [tables["spectra"].assign(n_classes=ALL_CLASSES), tables["few"], tables["smooth"]]
    wide = {
        "high_order": pd.concat(three).rename(columns=columns).fillna({"n_classes": ALL_CLASSES}),
        "quality": tables["quality"].rename(columns={"value": "insertion"}),
    }
    for group, name in (("errors", "closed_form_error"), ("exact", "exact_share")):
        if len(tables[group]):
            wide[group] = tables[group].rename(columns={"value": name})
            wide[group]["confidence"] = wide[group]["image"].map(confidence)
    if "exact" in wide:
        wide["exact"]["decomposition_seconds"] = seconds
    melted = [
        table.melt(
            id_vars=[label for label in LABELS if label in table],
            value_vars=MEASURES[group],
            var_name="metric",
        )
        for group, table in wide.items()
    ]
    rows = pd.concat(melted, ignore_index=True).dropna(subset="value")
    rows = rows.reindex(columns=[*LABELS, "metric", "value"])
    return rows.assign(seed=0, std=np.nan, n=1, status="done")


def _pictures(
    parameters: Mapping[str, Any], quality: pd.DataFrame, keys: dict[str, Any], store: Reader
) -> dict[str, NDArray[Any]]:
    """Return the maps that are drawn, and what stands beside them."""
    p = SimpleNamespace(**parameters)
    pair, sweep = (store.read_tensors(keys[name].iloc[0]) or {} for name in ("pair", "sweep"))
    arrays = {f"pair_{name}": pair[name].numpy() for name in ("index", "predicted", "confidence")}
    arrays["pair_maps"] = _shrunk(pair["maps"]).numpy()
    arrays |= {f"sweep_{name}": v.numpy() for name, v in sweep.items() if v.ndim == 1}
    for name in ("cafo_maps", "caso_maps", "clipped_maps"):
        arrays[f"sweep_{name}"] = _shrunk(sweep[name]).numpy()
    arrays["sweep_index"] = np.array([p.sweep_image])
    everything = sorted(quality["image"].unique())
    n = min(N_COMPARED, len(everything))
    drawn = [everything[i * len(everything) // n] for i in range(n)]
    first = quality[quality["saliency"] == p.saliencies[0]].set_index("image").loc[drawn]
    arrays["compared_index"] = np.array(drawn)
    arrays["compared_predicted"] = first["predicted"].to_numpy(int)
    arrays["compared_confidence"] = first["confidence"].to_numpy()
    maps = [(store.read_tensors(key) or {})["maps"] for key in keys["quality"]]
    for saliency, group in quality.assign(row=range(len(quality))).groupby("saliency"):
        rows = group.set_index("image")["row"].loc[drawn].tolist()
        arrays[f"compared_{saliency}"] = _shrunk(torch.cat(maps)[rows]).numpy()
    return arrays


def kept_tensors(parameters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is drawn of the tensors of a unit: no photographs, maps as small as drawn."""
    return {
        name: _shrunk(tensor) if name.endswith("maps") else tensor
        for name, tensor in tensors.items()
        if name not in ("image", "images")
    }


def _shrunk(maps: Tensor) -> Tensor:
    """Return maps (..., H, W) at most 112 pixels wide; small ones as they are."""
    size = min(DRAWN_WIDTH, maps.shape[-1])
    means = torch.nn.functional.adaptive_avg_pool2d(maps.float().flatten(0, -3)[:, None], size)
    return means.round().byte().view(*maps.shape[:-2], size, size)
