"""The plan of a chapter: its units, what the rows of each are selected by, and what is drawn."""

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import check_keys, expected
from suite.store import Reader
from suite.units import FIELDS, Measurement, Network, Unit, Values


class Item(NamedTuple):
    """A unit of a plan.

    `labels` are what its row is selected by, None where it has no row. `keep` is what the names of
    its arrays start with; none are read where it is empty.
    """

    unit: Unit
    labels: Values | None = None
    keep: str = ""


class Plan(list[Item]):
    """The units of a chapter in their order, each with what becomes of it."""

    def units(self) -> list[Unit]:
        """Return the units, as `suite.runs.compute` takes them."""
        return [item.unit for item in self]

    def labels(self) -> pd.DataFrame:
        """Return the labels of the items that have a row, a row each."""
        return pd.DataFrame([item.labels for item in self if item.labels is not None])

    def rows(self, computed: pd.DataFrame, columns: Collection[str] | None = None) -> pd.DataFrame:
        """Return the rows of the items that have labels.

        Args:
            computed: the table of the units, from `suite.runs.compute`.
            columns: of that table, to stand behind the labels; all, before the labels, if None.
        """
        pairs = zip(computed.index, self, strict=True)
        of_rows = computed.loc[[n for n, item in pairs if item.labels is not None]]
        labels = self.labels().set_index(of_rows.index)
        return of_rows.assign(**labels) if columns is None else labels.join(of_rows[[*columns]])

    def arrays(
        self,
        computed: pd.DataFrame,
        store: Reader,
        change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict,
    ) -> dict[str, NDArray[Any]]:
        """Return what is drawn, by the names NAME|PART of the items that have one.

        Args:
            computed: the table of the units.
            store: where their tensors are.
            change: makes what is drawn of the tensors of a unit.
        """
        return {
            f"{item.keep}|{part}": tensor.numpy()
            for item, key in zip(self, computed["key"], strict=True)
            if item.keep
            for part, tensor in change(store.read_tensors(key) or {}).items()
        }


def measurement(network: Network, metric: str, **settings: Any) -> Measurement:
    """Return a measurement by its settings."""
    return Measurement(training=network, metric=metric, settings=settings)


def settings_of(measure: Values, p: SimpleNamespace) -> dict[str, Any]:
    """Return the settings of a measure.

    Args:
        measure: its `settings`, and its `parameters`: further ones, that `p` has by other names.
        p: parameters of a panel; those that are None are left out.
    """
    own = {name: getattr(p, of) for name, of in measure.get("parameters", {}).items()}
    return measure.get("settings", {}) | {n: value for n, value in own.items() if value is not None}


def panel_of(
    parameters: Values,
    panel: Values,
    own: Values,
    required: Collection[str] = ("data", "network", "epochs"),
    *,
    kind: str = "panels",
    never: Collection[str] = ("penalties", "seed"),
) -> SimpleNamespace:
    """Return the parameters of a panel: its own before those of the chapter.

    Args:
        parameters: of the chapter.
        panel: keys that are fields of its trainings, which are in `fields`, and others.
        own: the others that it may have, with what they are where neither says it.
        required: keys that it must have.
        kind: name of the parameter that holds it, for messages.
        never: fields of a training that it must not have.

    Raises:
        UsageError: a key that is not known, or one that is missing.
    """
    check_keys(kind, panel, FIELDS - {*never} | own.keys(), required)
    fields = {name: value for name, value in panel.items() if name in FIELDS}
    return SimpleNamespace(**{**own, **parameters, **panel}, fields=fields)


def panels_of(
    parameters: Values, own: Values, required: Collection[str], **options: Any
) -> list[SimpleNamespace]:
    """Return the parameters of the panels of a chapter, each of a data set of its own.

    Args:
        parameters, own, required, options: see `panel_of`.

    Raises:
        UsageError: as `panel_of`, or two panels of one data set.
    """
    panels = parameters["panels"]
    found = [panel_of(parameters, panel, own, required, **options) for panel in panels]
    names = [p.data for p in found]
    if len(set(names)) < len(names):
        raise expected("panels", "one for a data set", names)
    return found
