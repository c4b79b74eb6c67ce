"""What a run would do, and how long it would take, without doing it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from suite.data import load_data
from suite.errors import DataMissing
from suite.networks import check_weights
from suite.runs.compute import check, keys_of
from suite.store import Store
from suite.units import Measurement, Pretrained, Training, Unit, data_names, identity, training_of


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored: number of units, each counted once.
        missing_data: for each data set that is not there, how to get it.
        seconds: estimate for what is missing, by similar units that are stored, else by `typical`.
        unknown: number of missing units that there is nothing to go by for.
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
    wanted = _distinct(units)
    for unit in wanted:
        check(unit)
    missing_data = _missing_data(wanted)
    # A measurement brings its training with it, whether that was asked for or not.
    trainings = [network for network in map(training_of, wanted) if isinstance(network, Training)]
    work = _distinct([*wanted, *trainings])
    there = [unit for unit in work if not missing_data.keys() & set(data_names(unit))]
    keys = dict(zip(map(_name, there), keys_of(there)))
    records = store.read_all(keys.values())
    costs = defaultdict(list)
    todo: Counter[tuple[Any, ...]] = Counter()
    for unit in work:
        record = records.get(keys.get(_name(unit), ""))
        if record is None:
            todo[_similar(unit)] += 1
        else:
            costs[_similar(unit)].append(record.provenance["seconds"])
    each = {kind: median(seconds) for kind, seconds in costs.items()}
    for kind in todo.keys() - each.keys():
        if typical and kind[0] in typical:
            each[kind] = typical[kind[0]]
    return Plan(
        total=len(wanted),
        stored=sum(keys.get(_name(unit)) in records for unit in wanted),
        missing_data=missing_data,
        seconds=sum(count * each[kind] for kind, count in todo.items() if kind in each),
        unknown=sum(count for kind, count in todo.items() if kind not in each),
        spent=sum(record.provenance["seconds"] for record in records.values()),
    )


def _missing_data(units: Iterable[Unit]) -> dict[str, str]:
    """Return how to get each data set and each network's weights that are not there."""
    missing = {}
    for name in dict.fromkeys(name for unit in units for name in data_names(unit)):
        try:
            load_data(name)
        except DataMissing as error:
            missing[name] = str(error)
    pretrained = [of.network for of in map(training_of, units) if isinstance(of, Pretrained)]
    for name in dict.fromkeys(pretrained):
        try:
            check_weights(name)
        except DataMissing as error:
            missing[name] = str(error)
    return missing


def _distinct(units: Iterable[Unit]) -> list[Unit]:
    return list({_name(unit): unit for unit in units}.values())


def _name(unit: Unit) -> str:
    return str(identity(unit))


def _similar(unit: Unit) -> tuple[Any, ...]:
    """Group units that take about the same time."""
    of = training_of(unit)
    size: tuple[Any, ...] = (of.data, of.network)
    if isinstance(of, Training):
        size = (*size, str(of.network_options), of.epochs, of.n_train)
    if not isinstance(unit, Measurement):
        return ("training", *size)
    settings = {name: value for name, value in unit.settings.items() if name != "first"}
    return (unit.metric, *size[:3], str(sorted(settings.items())))
