"""The plan of a chapter: its units, the labels of their rows, and the arrays of its figures."""

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

# Columns of the table of units that rows keep, unless a label has the same name.
RESULT = "data network epochs seed metric value std n undefined status seconds key".split()
# Data whose colour images may be kept: the user's own, and toys on free photographs.
OWN_IMAGES = ("imagefolder:", "textured")
Tensors = Mapping[str, Tensor]
Arrays = dict[str, Any]  # by name; figures draw them
Derived = tuple[pd.DataFrame, Arrays]  # the rows of a chapter, and its arrays


class Item(NamedTuple):
    """A unit of a plan.

    `labels` select its row; None: it has no row. With `per_image` it has a row for each image.
    `keep` names its arrays, see `Plan.arrays`; if it is empty, no array is read.
    """

    unit: Unit
    labels: Values | None = None
    keep: str = ""
    per_image: bool = False


class Spec(NamedTuple):
    """What to measure: a metric with its settings, and the labels of the row."""

    labels: dict[str, Any]
    metric: str
    settings: dict[str, Any]


class Plan(list[Item]):
    """The units of a chapter in order, with the rows and arrays that each gives."""

    def units(self) -> list[Unit]:
        """Return the units, each once, in the order that `suite.runs.compute` keeps."""
        return [*{name(item.unit): item.unit for item in self}.values()]

    def collect(
        self, paper: Any, parameters: Values, computed: pd.DataFrame, store: Any
    ) -> Derived:
        """Return the rows that claims are judged on, and the arrays that figures draw.

        Args:
            paper: the module of the chapter. It may have `shrink(parameters, tensors)`, which
                reduces the tensors of a unit to those that figures draw and archives keep. It may
                have `derive(parameters, rows, arrays)`, which turns the rows and arrays of the plan
                into those of the chapter.
            parameters: of the run.
            computed: a row for each of `units`, in their order, from `suite.runs.compute`.
            store: holds the values and tensors of the units.
        """
        by_unit = computed.set_axis([*map(name, self.units())])
        derived = self.rows(by_unit, store), self.arrays(paper, parameters, by_unit, store)
        return paper.derive(parameters, *derived) if hasattr(paper, "derive") else derived

    def rows(self, by_unit: pd.DataFrame, store: Any) -> pd.DataFrame:
        """Return the rows of the items that have labels: the results, and the labels."""
        items = [item for item in self if item.labels is not None and not item.per_image]
        columns = [column for column in RESULT if column in by_unit]
        results = by_unit.loc[[name(i.unit) for i in items], columns].to_dict("records")
        parts = [pd.DataFrame([row | dict(i.labels or {}) for row, i in zip(results, items)])]
        parts += [image_rows(i, by_unit["key"][name(i.unit)], store) for i in self if i.per_image]
        return pd.concat(parts, ignore_index=True)

    def arrays(self, paper: Any, parameters: Values, by_unit: pd.DataFrame, store: Any) -> Arrays:
        """Return the arrays of the items that have a name, `keep`.

        The only array of a unit has this name; several are called NAME|PART. Arrays of the same
        name are averaged.
        """
        by_name = defaultdict(list)
        for item in (item for item in self if item.keep):
            tensors = store.read_tensors(by_unit["key"][name(item.unit)]) or {}
            tensors = select_tensors(paper, parameters, item.unit, tensors)
            for part, tensor in tensors.items():
                half = tensor.dtype == torch.float16
                array = (tensor.float() if half else tensor).numpy()
                by_name[item.keep if len(tensors) == 1 else f"{item.keep}|{part}"].append(array)
        return {n: np.mean(a, axis=0).astype(a[0].dtype) for n, a in by_name.items()}


def name(unit: Unit) -> str:
    """Return the name of a unit: its identity as text."""
    return str(unit.identity)


def select_tensors(paper: Any, parameters: Values, unit: Unit, tensors: Tensors) -> Tensors:
    """Return the tensors of a unit that are drawn, and so kept, as the chapter shrinks them.

    Test images in colour are photographs, which kept results must not hold.
    """
    free = training_of(unit).data.startswith(OWN_IMAGES)
    if getattr(unit, "metric", "") != "activation_ascent" and not free:
        colour = [n for n in tensors.keys() & {"image", "images"} if tensors[n].shape[-3] != 1]
        tensors = {name: tensor for name, tensor in tensors.items() if name not in colour}
    return paper.shrink(parameters, tensors) if hasattr(paper, "shrink") else dict(tensors)


def image_rows(item: Item, key: str, store: Any) -> pd.DataFrame:
    """Return the rows of a measurement, one for each image.

    Args:
        item: the measurement. Its settings may have `first` and `step`, the first image and the
            distance between images.
        key: of its unit.
        store: holds the unit.

    Returns:
        The labels, data, network, metric, image (its position in the test split), the settings that
        are numbers or names, and the value. A tensor (B,) is a column of its name; a tensor (B, K)
        with K <= 20 is columns NAME_1, NAME_2, ..., or NAME_A, NAME_B, ... for the `saliencies` of
        the unit.

    Raises:
        RunFailed: the measurement is not stored, or has no values for single images.
    """
    record, unit = store.read(key), item.unit
    values = None if record is None else record.values.get("per_image")
    if values is None or not isinstance(unit, Measurement):
        raise RunFailed(f"{unit}: expected values for each image in the store, got none")
    settings = {"first": 0, "step": 1, **unit.settings}
    first, step, _ = map(settings.pop, ("first", "step", "n_images"))
    endings = settings.pop("saliencies", range(1, 21))
    columns = {"image": range(first, first + len(values) * step, step), "value": values}
    for part, tensor in (store.read_tensors(key) or {}).items():
        if tensor.shape == (len(values),):
            columns[part] = tensor.numpy()
        elif tensor.ndim == 2 and len(tensor) == len(values) and tensor.shape[1] <= 20:
            columns |= {f"{part}_{n}": v.numpy() for n, v in zip(endings, tensor.unbind(1))}
    settings = {name: v for name, v in settings.items() if not isinstance(v, Mapping | list)}
    about = {"data": unit.training.data, "network": unit.training.network, "metric": unit.metric}
    return pd.DataFrame(columns).assign(**{**about, **settings, **(item.labels or {})})


def measurement(network: Network, metric: str, **settings: Any) -> Measurement:
    """Return the measurement of a metric on a network."""
    return Measurement(training=network, metric=metric, settings=settings)


def grid(networks: Iterable[tuple[Network, Values]], specs: Iterable[Spec]) -> Iterator[Item]:
    """Yield the measurement of each spec on each network; a row has the labels of both."""
    for (network, common), (labels, metric, settings) in itertools.product(networks, specs):
        yield Item(measurement(network, metric, **settings), {**common, **labels})


def settings_of(measure: Values, p: SimpleNamespace) -> dict[str, Any]:
    """Return the settings of a measure.

    Args:
        measure: its `settings` are fixed. Its `parameters` map further settings to the parameters
            of `p` that have their values, or to such a measure, for settings that are a mapping.
        p: parameters of a panel; a setting whose parameter is None is left out.
    """
    values = {
        key: settings_of(source, p) if isinstance(source, Mapping) else getattr(p, source)
        for key, source in measure.get("parameters", {}).items()
    }
    return measure.get("settings", {}) | {n: v for n, v in values.items() if v is not None}


def replace(p: SimpleNamespace, **changes: Any) -> SimpleNamespace:
    """Return the parameters of a panel with some replaced or added."""
    return SimpleNamespace(**{**vars(p), **changes})


def specify(measures: Values, names: str | Values, p: SimpleNamespace) -> Iterator[Spec]:
    """Yield the specs of measures in a panel.

    Args:
        measures: by name: `metric`, what `settings_of` takes, and further `labels`. A measure with
            `each` is taken once for each entry of this parameter of the panel. An entry overrides
            parameters, or the one that `as` names, and labels the row.
        names: of the measures, separated by spaces; or a mapping to whether they are taken.
        p: parameters of the panel.
    """
    if isinstance(names, Mapping):
        names = " ".join(name for name, is_taken in names.items() if is_taken)
    for name in names.split():
        measure = measures[name]
        for at in getattr(p, measure["each"]) if "each" in measure else [{}]:
            at = at if isinstance(at, Mapping) else {measure["as"]: at}
            settings = settings_of(measure, replace(p, **at))
            labels = {"metric": name.format(**at), **at, **measure.get("labels", {})}
            yield Spec(labels, measure["metric"], settings)


def panels_of(
    parameters: Values,
    defaults: Values = MappingProxyType({}),
    required: Collection[str] = ("data", "network", "epochs"),
    *,
    kind: str = "panels",
    never: Collection[str] = (),
    unique_data: bool = False,
) -> list[SimpleNamespace]:
    """Return the parameters of panels: their own take precedence over those of the chapter.

    A panel may have any parameter of the chapter, the keys of `defaults`, and fields of its
    trainings, which are in `fields`, too.

    Args:
        parameters: of the chapter.
        defaults: of further keys of a panel.
        required: keys that a panel must have.
        kind: name of the parameter that holds the panels, for messages.
        never: fields and parameters that a panel must not have, besides penalties and the seed.
        unique_data: whether each panel must have a data set of its own.

    Raises:
        UsageError: a key is unknown or missing, a value is no mapping where its default is one, or
            two panels have the same data set.
    """
    panels, values = [], {**defaults, **parameters}
    mappings = {key for key, value in values.items() if isinstance(value, Mapping)}
    known = FIELDS | values.keys() - {kind, "profile"}
    for panel in parameters[kind]:
        check_keys(kind, panel, known - {"penalties", "seed", *never}, required)
        for key in mappings & panel.keys():
            if not isinstance(value := panel[key], Mapping):
                raise expected(f"{kind}, {panel['data']}: {key}", "a mapping of names", value)
        fields = {key: value for key, value in panel.items() if key in FIELDS}
        panels.append(SimpleNamespace(**values | panel, fields=fields))
    names = [p.data for p in panels]
    if unique_data and len(set(names)) < len(names):
        raise expected(kind, "one for each data set", names)
    return panels
