"""The cost of `compute` when all units are stored: a table of 10,000 units."""

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.timing import Row, seconds_of
from suite.data import load_data
from suite.runs import Record, Store, compute
from suite.units import Measurement, Training, key

GRADIENT = {"saliency": "logit_gradient", "n_images": 128}
METRICS: list[tuple[str, dict[str, Any]]] = [
    ("accuracy", {}),
    ("entropy", GRADIENT),
    ("entropy", {"saliency": "deeplift", "n_images": 128}),
    ("faithfulness_estimate", GRADIENT),
    ("max_sensitivity", {**GRADIENT, "n_samples": 200}),
]


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Write records into a store, then read them into a table."""
    count = 500 if quick else 10_000
    units = _units(count)
    load_data("mnist5k")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        written = seconds_of(lambda: _write(units, store))
        read = seconds_of(lambda: compute(units, store=store, force=False))
    return [
        _row("a unit written, Store.write", 1000 * written / count, "ms"),
        _row("a unit read into a table, compute", 1000 * read / count, "ms", at_most=2.0),
        _row(f"{count} units read into a table", read, "s", at_most=20.0),
    ]


def _row(case: str, value: float, unit: str, at_most: float | None = None) -> Row:
    return Row("stored units", case, value, unit, at_most=at_most)


def _units(count: int) -> list[Measurement]:
    fields: dict[str, Any] = {"data": "mnist5k", "network": "lenet5", "epochs": 10}
    fields |= {"learning_rate": 1e-3, "penalties": {"input_gradient": {"strength": 0.5}}}
    trainings = [Training(**fields, seed=seed) for seed in range(count // len(METRICS))]
    return [Measurement(training=t, metric=m, settings=s) for t in trainings for m, s in METRICS]


def _write(units: Sequence[Measurement], store: Store) -> None:
    fingerprints = {"mnist5k": load_data("mnist5k").fingerprint}
    values = {"mean": 0.5, "std": 0.1, "n": 128, "undefined": 0, "per_image": [0.123456789] * 128}
    provenance = {"seconds": 1.0, "device": "cpu", "threads": 1}
    for unit in units:
        record = Record(unit.identity, "done", values, provenance)
        store.write(key(unit, fingerprints), record)
