"""Measurements image by image, as a table."""

from collections.abc import Iterable

import pandas as pd

from suite.errors import RunFailed
from suite.runs.execute import describe, keys_of
from suite.store import Store
from suite.units import Measurement

WHICH = ("n_images", "first", "step")
MOST_COLUMNS = 20


def per_image(units: Iterable[Measurement], store: Store) -> pd.DataFrame:
    """Return what was measured of each image.

    Args:
        units: stored measurements, with the settings `first` and `step` where they do not take the
            first images.
        store: where they are.

    Returns:
        One row an image and measurement: data, network, metric, image (its place in the test
        split), the settings, value, a column for each tensor with a number an image, and
        NAME_1, NAME_2, ... for each with several, at most 20.

    Raises:
        RunFailed: a measurement is not stored, or has no values for single images.
    """
    units = list(units)
    return pd.concat(
        [_rows(unit, key, store) for unit, key in zip(units, keys_of(units), strict=True)],
        ignore_index=True,
    )


def _rows(unit: Measurement, key: str, store: Store) -> pd.DataFrame:
    record = store.read(key)
    values = None if record is None else record.values.get("per_image")
    if values is None:
        raise RunFailed(f"{describe(unit)}: expected values for each image in the store, got none")
    first, step = unit.settings.get("first", 0), unit.settings.get("step", 1)
    columns = {"image": range(first, first + len(values) * step, step), "value": values}
    for name, tensor in (store.read_tensors(key) or {}).items():
        if tensor.shape == (len(values),):
            columns[name] = tensor.numpy()
        elif tensor.ndim == 2 and len(tensor) == len(values) and tensor.shape[1] <= MOST_COLUMNS:
            numbered = enumerate(tensor.unbind(1), start=1)
            columns |= {f"{name}_{number}": column.numpy() for number, column in numbered}
    settings = {name: value for name, value in unit.settings.items() if name not in WHICH}
    of = unit.training
    named = {"data": of.data, "network": of.network, "metric": unit.metric, **settings}
    return pd.DataFrame(columns).assign(**named)
