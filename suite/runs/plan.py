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
from suite.store import Kept, Layers, Store
from suite.units import Measurement, Pretrained, Training, Unit, data_names, identity, training_of


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored, kept: number of units, each counted once: in all, computed on this machine,
            and those that are among the kept results only.
        missing_data: for each data set that is not there, how to get it.
        seconds: estimate for what is missing, by similar units that are stored or kept, else by
            `typical`.
        unknown: number of missing units without an estimate.
        spent: seconds that went into what is stored.
    """

    total: int
    stored: int
    kept: int
    missing_data: Mapping[str, str]
    seconds: float
    unknown: int
    spent: float

    def __str__(self) -> str:
        kept = f"{self.kept} kept, " if self.kept else ""
        lines = [
            f"{self.total} units, {self.stored} stored ({self.spent:.0f} s spent), {kept}"
            f"{self.total - self.stored - self.kept} missing"
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
    units: Iterable[Unit],
    store: Store,
    kept: Kept | None = None,
    *,
    typical: Mapping[str, float] | None = None,
) -> Plan:
    """Say what `compute` would do, without computing anything.

    Args:
        units: what is wanted.
        store: what this machine has computed.
        kept: the kept results; None to ignore them.
        typical: seconds of a "training" and of each metric, where nothing similar is stored.

    Raises:
        UsageError: a unit asks for something unknown.
    """
    wanted = {str(identity(unit)): unit for unit in units}
    for unit in wanted.values():
        check(unit)
    missing_data = _missing_data(wanted.values())
    # A measurement brings its training with it, whether that was asked for or not.
    work = wanted | _trainings(wanted.values())
    absent = missing_data.keys() - (kept.fingerprints if kept else {}).keys()
    there = [n for n, unit in work.items() if not absent & set(data_names(unit))]
    keys = keys_of([work[name] for name in there], kept.fingerprints if kept else {})
    have = {n: r for n, k in zip(there, keys) if (r := Layers(store, kept).read(k))}
    here = {n: r for n, k in zip(there, keys) if (r := store.read(k))}
    todo = {name: unit for name, unit in wanted.items() if name not in have}
    # Kept results have no weights: a network that is to be measured further is trained again.
    todo |= {n: unit for n, unit in _trainings(todo.values()).items() if n not in here}
    costs = defaultdict(list)
    for name, record in have.items():
        costs[_similar(work[name])].append(record.provenance["seconds"])
    estimates = {kind: median(seconds) for kind, seconds in costs.items()}
    kinds = [_similar(unit) for unit in todo.values()]
    each = [estimates.get(kind, (typical or {}).get(kind[0])) for kind in kinds]
    needed = {name for unit in todo.values() for name in _needs(unit)}
    return Plan(
        total=len(wanted),
        stored=len(wanted.keys() & here.keys()),
        kept=len(wanted.keys() & (have.keys() - here.keys())),
        missing_data={name: how for name, how in missing_data.items() if name in needed},
        seconds=sum(seconds for seconds in each if seconds is not None),
        unknown=each.count(None),
        spent=sum(record.provenance["seconds"] for record in here.values()),
    )


def _trainings(units: Iterable[Unit]) -> dict[str, Unit]:
    """Return the trainings of units by their identity."""
    networks = [network for network in map(training_of, units) if isinstance(network, Training)]
    return {str(identity(network)): network for network in networks}


def _needs(unit: Unit) -> list[str]:
    """Return the names of the data, and of the weights, that a unit needs."""
    network = training_of(unit)
    return data_names(unit) + ([network.network] if isinstance(network, Pretrained) else [])


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
