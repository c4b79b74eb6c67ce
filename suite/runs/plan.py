"""What a run would do, and how long it would take, without doing it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from suite.data import load_data
from suite.errors import DataMissing
from suite.networks import check_weights
from suite.runs.compute import check
from suite.runs.execute import keys_of
from suite.store import Store
from suite.units import Measurement, Pretrained, Training, Unit, data_names, identity, training_of


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored: number of units, each counted once.
        missing_data: for each data set that is not there, how to get it.
        seconds: estimate for what is missing, by similar units that are stored, else by `typical`.
        unknown: number of missing units without an estimate.
        spent: seconds that went into what is stored.
    """

    total: int
    stored: int
    missing_data: Mapping[str, str]
    seconds: float
    unknown: int
    spent: float

    def __str__(self) -> str:
        lines = [
            f"{self.total} units, {self.stored} stored ({self.spent:.0f} s spent), "
            f"{self.total - self.stored} missing"
        ]
        if self.seconds:
            more = f"; {self.unknown} units have none to go by" if self.unknown else ""
            lines.append(
                f"  estimate: {self.seconds:,.0f} s of one worker, by stored and kept results{more}"
            )
        elif self.unknown:
            lines.append("  no estimate: nothing similar is stored or kept")
        messages = dict.fromkeys(self.missing_data.values())
        return "\n".join([*lines, *(f"  missing data: {message}" for message in messages)])


def plan(
    units: Iterable[Unit], store: Store, *, typical: Mapping[str, float] | None = None
) -> Plan:
    """Say what `compute` would do, without computing anything.

    Args:
        units: what is wanted.
        store: what there is.
        typical: seconds of a "training" and of each metric, where nothing similar is stored.

    Raises:
        UsageError: a unit asks for something unknown.
    """
    wanted = {str(identity(unit)): unit for unit in units}
    for unit in wanted.values():
        check(unit)
    missing_data = _missing_data(wanted.values())
    # A measurement brings its training with it, whether that was asked for or not.
    trainings = [u for u in map(training_of, wanted.values()) if isinstance(u, Training)]
    work = wanted | {str(identity(unit)): unit for unit in trainings}
    there = [n for n, unit in work.items() if not missing_data.keys() & set(data_names(unit))]
    keys = dict(zip(there, keys_of([work[name] for name in there])))
    records = store.read_all(keys.values())
    spent = {n: records[k].provenance["seconds"] for n, k in keys.items() if k in records}
    costs = defaultdict(list)
    for name, seconds in spent.items():
        costs[_similar(work[name])].append(seconds)
    estimates = {kind: median(seconds) for kind, seconds in costs.items()}
    todo = [_similar(unit) for name, unit in work.items() if name not in spent]
    each = [estimates.get(kind, (typical or {}).get(kind[0])) for kind in todo]
    return Plan(
        total=len(wanted),
        stored=len(wanted.keys() & spent.keys()),
        missing_data=missing_data,
        seconds=sum(seconds for seconds in each if seconds is not None),
        unknown=each.count(None),
        spent=sum(spent.values()),
    )


def _missing_data(units: Collection[Unit]) -> dict[str, str]:
    """Return how to get each data set and each network's weights that are not there."""
    needed: list[tuple[Callable[[str], object], str]]
    needed = [(load_data, name) for unit in units for name in data_names(unit)]
    pretrained = [u for u in map(training_of, units) if isinstance(u, Pretrained)]
    missing = {}
    for get, name in dict.fromkeys([*needed, *((check_weights, u.network) for u in pretrained)]):
        try:
            get(name)
        except DataMissing as error:
            missing[name] = str(error)
    return missing


def _similar(unit: Unit) -> tuple[Any, ...]:
    """Return what units have in common that take about the same time."""
    network = training_of(unit)
    size: tuple[Any, ...] = (network.data, network.network)
    if isinstance(network, Training):
        size = (*size, str(network.network_options), network.epochs, network.n_train)
    if not isinstance(unit, Measurement):
        return ("training", *size)
    settings = {name: value for name, value in unit.settings.items() if name != "first"}
    return (unit.metric, *size[:3], str(sorted(settings.items())))
