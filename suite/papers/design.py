"""The plan of a chapter: its units, what the rows of each are selected by, and what is drawn."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from suite.errors import RunFailed, check_keys, expected
from suite.units import FIELDS, Measurement, Network, Unit, Values, training_of

# Columns of the table of units that the rows have, unless a label of that name takes their place.
RESULT = "data network epochs seed metric value std n undefined status seconds key".split()
# Data whose images in colour may be kept: those of the user, and toys on free photographs.
OWN_IMAGES = ("imagefolder:", "textured")
Tensors = Mapping[str, Tensor]
Arrays = dict[str, Any]  # by the name of what is drawn
Derived = tuple[pd.DataFrame, Arrays]  # the rows of a chapter, and its arrays


class Item(NamedTuple):
    """A unit of a plan.

    `labels` are what its row is selected by, None where it has no row; with `per_image` it has one
    for each image. `keep` names its arrays, see `Plan.arrays`; none are read where it is empty.
    """

    unit: Unit
    labels: Values | None = None
    keep: str = ""
    per_image: bool = False


class Spec(NamedTuple):
    """A metric with its settings, and the labels of its row."""

    labels: dict[str, Any]
    metric: str
    settings: dict[str, Any]


class Plan(list[Item]):
    """The units of a chapter in their order, each with what becomes of it."""

    def units(self) -> list[Unit]:
        """Return the units, each once, as `suite.runs.compute` takes them."""
        return [*{name(item.unit): item.unit for item in self}.values()]

    def collect(
        self, paper: Any, parameters: Values, computed: pd.DataFrame, store: Any
    ) -> Derived:
        """Return the rows that claims are judged on, and the arrays that figures draw.

        Args:
            paper: the module of the chapter. It may have `shrink(parameters, tensors)`, which makes
                what is drawn, and kept, of the tensors of a unit, and `derive(parameters, rows,
                arrays)`, which makes the rows and arrays of the chapter of those of the plan.
            parameters: of the run.
            computed: a row for each of `units`, in their order, from `suite.runs.compute`.
            store: where their values and tensors are.
        """
        by_unit = computed.set_axis([*map(name, self.units())])
        rows, arrays = self.rows(by_unit, store), self.arrays(paper, parameters, by_unit, store)
        return getattr(paper, "derive", lambda _, *found: found)(parameters, rows, arrays)

    def rows(self, by_unit: pd.DataFrame, store: Any) -> pd.DataFrame:
        """Return the rows of the items that have labels: what was measured, and these."""
        whole = [item for item in self if item.labels is not None and not item.per_image]
        found = by_unit.loc[[name(item.unit) for item in whole]]
        measured = found[[column for column in RESULT if column in found]].to_dict("records")
        parts = [pd.DataFrame([row | dict(i.labels or {}) for row, i in zip(measured, whole)])]
        parts += [image_rows(i, by_unit["key"][name(i.unit)], store) for i in self if i.per_image]
        return pd.concat(parts, ignore_index=True)

    def arrays(self, paper: Any, parameters: Values, by_unit: pd.DataFrame, store: Any) -> Arrays:
        """Return what is drawn of the items that `keep` it.

        An array that is alone in its unit has that name, others NAME|PART. Of several of one name
        it is the mean.
        """
        found = defaultdict(list)
        for item in (item for item in self if item.keep):
            tensors = store.read_tensors(by_unit["key"][name(item.unit)]) or {}
            shown = select_tensors(paper, parameters, item.unit, tensors)
            for part, tensor in shown.items():
                half = tensor.dtype == torch.float16
                array = (tensor.float() if half else tensor).numpy()
                found[item.keep if len(shown) == 1 else f"{item.keep}|{part}"].append(array)
        means = ((key, np.mean(arrays, axis=0), arrays[0].dtype) for key, arrays in found.items())
        return {key: mean.astype(dtype) for key, mean, dtype in means}


def name(unit: Unit) -> str:
    """Return what tells a unit from all others."""
    return str(unit.identity)


def select_tensors(paper: Any, parameters: Values, unit: Unit, tensors: Tensors) -> Tensors:
    """Return what is drawn, and so what is kept, of the tensors of a unit.

    Test images in colour are photographs, which results that are kept must not hold.
    """
    free = training_of(unit).data.startswith(OWN_IMAGES)
    if getattr(unit, "metric", "") != "activation_ascent" and not free:
        colour = [n for n in tensors.keys() & {"image", "images"} if tensors[n].shape[-3] != 1]
        tensors = {name: tensor for name, tensor in tensors.items() if name not in colour}
    return paper.shrink(parameters, tensors) if hasattr(paper, "shrink") else dict(tensors)


def image_rows(item: Item, key: str, store: Any) -> pd.DataFrame:
    """Return what was measured of each image.

    Args:
        item: a measurement; its settings may have `first` and `step` where it does not take the
            first images.
        key: of its unit.
        store: where it is.

    Returns:
        One row an image: the labels, data, network, metric, image (its position in the test split),
        the settings that are numbers or names, value, a column for each tensor with a number an
        image, and NAME_1, NAME_2, ... for each with several, at most 20, or NAME_A, NAME_B, ... for
        the `saliencies` of the unit.

    Raises:
        RunFailed: the measurement is not stored, or has no values for single images.
    """
    record, unit = store.read(key), item.unit
    values = None if record is None else record.values.get("per_image")
    if values is None or not isinstance(unit, Measurement):
        raise RunFailed(f"{unit}: expected values for each image in the store, got none")
    settings = {"first": 0, "step": 1, **unit.settings}
    first, step, _ = (settings.pop(part) for part in ("first", "step", "n_images"))
    kinds = settings.pop("saliencies", range(1, 21))
    columns = {"image": range(first, first + len(values) * step, step), "value": values}
    for part, tensor in (store.read_tensors(key) or {}).items():
        if tensor.shape == (len(values),):
            columns[part] = tensor.numpy()
        elif tensor.ndim == 2 and len(tensor) == len(values) and tensor.shape[1] <= 20:
            columns |= {f"{part}_{n}": v.numpy() for n, v in zip(kinds, tensor.unbind(1))}
    settings = {part: v for part, v in settings.items() if not isinstance(v, Mapping | list)}
    of = {"data": unit.training.data, "network": unit.training.network, "metric": unit.metric}
    return pd.DataFrame(columns).assign(**{**of, **settings, **(item.labels or {})})


def measurement(network: Network, metric: str, **settings: Any) -> Measurement:
    """Return a measurement by its settings."""
    return Measurement(training=network, metric=metric, settings=settings)


def grid(networks: Iterable[tuple[Network, Values]], specs: Iterable[Spec]) -> Iterator[Item]:
    """Yield the measurement of each spec on each network; a row has the labels of both."""
    for (network, common), (labels, metric, settings) in itertools.product(networks, specs):
        yield Item(measurement(network, metric, **settings), {**common, **labels})


def settings_of(measure: Values, p: SimpleNamespace) -> dict[str, Any]:
    """Return the settings of a measure.

    Args:
        measure: its `settings`, and its `parameters`: further ones, that `p` has by other names,
            or that are such settings themselves.
        p: parameters of a panel; those that are None are left out.
    """
    own = {
        key: settings_of(of, p) if isinstance(of, Mapping) else getattr(p, of)
        for key, of in measure.get("parameters", {}).items()
    }
    return measure.get("settings", {}) | {n: value for n, value in own.items() if value is not None}


def replace(p: SimpleNamespace, **changes: Any) -> SimpleNamespace:
    """Return the parameters of a panel with some that are others, or new."""
    return SimpleNamespace(**{**vars(p), **changes})


def specify(measures: Values, names: str | Values, p: SimpleNamespace) -> Iterator[Spec]:
    """Yield measures, once `each` for what they are measured at in a panel, which labels the rows.

    Args:
        measures: by name: `metric`, what `settings_of` takes, further `labels`, and `each`, the
            parameter of the panel that lists what it is measured at, if there is one.
        names: of measures, with spaces between; or whether each of them is taken.
        p: parameters of the panel.
    """
    if isinstance(names, Mapping):
        names = " ".join(name for name, is_taken in names.items() if is_taken)
    for name in names.split():
        measure = measures[name]
        for at in getattr(p, measure["each"]) if "each" in measure else [{}]:
            settings = settings_of(measure, replace(p, **at))
            labels = {"metric": name.format(**at), **at, **measure.get("labels", {})}
            yield Spec(labels, measure["metric"], settings)


def panels_of(
    parameters: Values,
    own: Values = MappingProxyType({}),
    required: Collection[str] = ("data", "network", "epochs"),
    *,
    kind: str = "panels",
    never: Collection[str] = (),
    alone: bool = False,
) -> list[SimpleNamespace]:
    """Return the parameters of panels: each one's own before those of the chapter.

    Args:
        parameters: of the chapter.
        own: further keys of a panel, with what they are where it does not say it. Besides, it may
            have any parameter of the chapter, and fields of its trainings, which are in `fields`.
        required: keys that a panel must have.
        kind: name of the parameter that holds them, for messages.
        never: fields and parameters that they must not have, besides penalties and the seed.
        alone: whether each must have a data set of its own.

    Raises:
        UsageError: a key that is not known, one that is missing, or two panels of one data set.
    """
    known, found = FIELDS | own.keys() | parameters.keys() - {kind, "profile"}, []
    for panel in parameters[kind]:
        check_keys(kind, panel, known - {"penalties", "seed", *never}, required)
        fields = {key: value for key, value in panel.items() if key in FIELDS}
        found.append(SimpleNamespace(**{**own, **parameters, **panel}, fields=fields))
    names = [p.data for p in found]
    if alone and len(set(names)) < len(names):
        raise expected(kind, "one for a data set", names)
    return found
