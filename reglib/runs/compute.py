"""`compute`: read what the store has, compute the rest, return one tidy table."""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd
from tqdm import tqdm

from reglib import measure, training
from reglib.data import load_data
from reglib.errors import DataMissing, RunFailed
from reglib.paths import store_folder
from reglib.runs.execute import Job, Outcome, describe, run_job
from reglib.runs.executors import Resources
from reglib.runs.store import Record, Store
from reglib.units import (
    Measurement,
    Training,
    Unit,
    data_names,
    identity,
    key,
    training_of,
)

ATTEMPTS = 3


def compute(
    units: Iterable[Unit],
    *,
    store: Store | None = None,
    resources: Resources | None = None,
    force: bool | None = None,
    checkpoint_seconds: float = 20.0,
) -> pd.DataFrame:
    """Compute units, or read them from the store, and return a tidy table.

    Args:
        units: trainings and measurements.
        store: results so far; default: `reglib.paths.store_folder`.
        resources: device and processes; default: from the environment.
        force: compute even what is stored; default: whether REGLIB_FORCE is set.
        checkpoint_seconds: least time between two checkpoints of a training.

    Returns:
        One row a unit, in their order: the settings as columns, `value` (mean over images),
        `std`, `n` (images with a value), `undefined` (images without), `status` ("done" or
        "diverged"), `seconds`, `key`.

    Raises:
        UsageError: a unit asks for something unknown or data are missing; nothing was computed.
        RunFailed: some units failed; all others are stored.
    """
    units = list(units)
    for unit in units:
        check(unit)
    store = store or Store(store_folder())
    resources = resources or Resources.from_environment()
    force = bool(os.environ.get("REGLIB_FORCE")) if force is None else force
    keys = _keys(units)
    stored = {} if force else _stored(keys, store)
    missing = {name: unit for name, unit in keys.items() if name not in stored}
    if missing:
        jobs = [
            Job(tuple(identity(unit) for unit in group), str(store.folder),
                resources.chosen_device(), force, checkpoint_seconds)
            for group in _groups(missing.values(), resources.chosen_jobs())
        ]  # fmt: skip
        with _Progress(len(missing)) as progress:
            errors = _run(jobs, resources, store, progress)
        stored |= _stored(missing, store)
        _raise_failures(errors, [unit for name, unit in missing.items() if name not in stored])
    for report in dict.fromkeys(store.reports):
        print(report)
    names = [key(unit, _fingerprints(unit)) for unit in units]
    return pd.DataFrame([_row(unit, name, stored[name]) for unit, name in zip(units, names)])


def check(unit: Unit) -> None:
    """Check all names in a unit before any time is spent.

    Raises:
        UsageError: something unknown.
    """
    training.check(training_of(unit))
    if isinstance(unit, Measurement):
        measure.check(unit)


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored: number of units.
        missing_data: for each data set that is not there, how to get it.
        seconds: estimate for the units that are missing, if similar ones are stored.
        unknown: number of units that no stored one is similar to.
    """

    total: int
    stored: int
    missing_data: Mapping[str, str]
    seconds: float
    unknown: int
    spent: float


def plan(units: Iterable[Unit], store: Store) -> Plan:
    """Say what `compute` would do, without computing anything."""
    units = list(units)
    missing_data = {}
    for name in dict.fromkeys(name for unit in units for name in data_names(unit)):
        try:
            load_data(name)
        except DataMissing as error:
            missing_data[name] = str(error)
    there = [unit for unit in units if not missing_data.keys() & set(data_names(unit))]
    for unit in there:
        check(unit)
    keys = _keys(there)
    stored = _stored(keys, store)
    costs = defaultdict(list)
    for name, record in stored.items():
        costs[_similar(keys[name])].append(record.provenance["seconds"])
    todo = Counter(_similar(unit) for name, unit in keys.items() if name not in stored)
    todo.update(_similar(unit) for unit in units if unit not in there)
    return Plan(
        total=len(keys) + len(units) - len(there),
        stored=len(stored),
        missing_data=missing_data,
        seconds=sum(count * median(costs[kind]) for kind, count in todo.items() if kind in costs),
        unknown=sum(count for kind, count in todo.items() if kind not in costs),
        spent=sum(record.provenance["seconds"] for record in stored.values()),
    )


def _similar(unit: Unit) -> tuple[Any, ...]:
    """Group units that take about the same time."""
    of = training_of(unit)
    size = (of.data, of.network, str(of.network_options), of.epochs, of.n_train)
    if isinstance(unit, Training):
        return size
    return (*size[:3], unit.metric, str(sorted(unit.settings.items())))


def _keys(units: Iterable[Unit]) -> dict[str, Unit]:
    return {key(unit, _fingerprints(unit)): unit for unit in units}


def _fingerprints(unit: Unit) -> dict[str, str]:
    return {name: load_data(name).fingerprint for name in data_names(unit)}


def _stored(keys: Iterable[str], store: Store) -> dict[str, Record]:
    records = ((name, store.read(name)) for name in keys)
    return {name: record for name, record in records if record is not None}


def _groups(units: Iterable[Unit], jobs: int) -> list[list[Unit]]:
    """Put units of one training together, unless that leaves processes without work."""
    by_training: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        by_training[str(identity(training_of(unit)))].append(unit)
    groups = list(by_training.values())
    if len(groups) >= jobs:
        return groups
    return [group[start::jobs] for group in groups for start in range(min(jobs, len(group)))]


def _run(
    jobs: Sequence[Job], resources: Resources, store: Store, progress: "_Progress"
) -> list[tuple[str, str, str]]:
    """Run jobs; those of a pool that lost a process are tried again in a new pool."""
    errors: list[tuple[str, str, str]] = []
    for attempt in range(1, ATTEMPTS + 1):
        with resources.executor() as executor:
            jobs = _attempt(jobs, executor, store, progress, errors)
        if not jobs:
            return errors
        print(f"a worker was lost; {len(jobs)} jobs are tried again ({attempt} of {ATTEMPTS})")
    raise RunFailed(f"workers were lost {ATTEMPTS} times; what was finished is stored, run again")


def _attempt(
    jobs: Sequence[Job],
    executor: Executor,
    store: Store,
    progress: "_Progress",
    errors: list[tuple[str, str, str]],
) -> list[Job]:
    """Run jobs once; return those whose worker was lost."""
    lost = []
    futures = {}
    for job in jobs:
        try:
            futures[executor.submit(run_job, job)] = job
        except BrokenExecutor:
            lost.append(job)
    for future in as_completed(futures):
        try:
            outcome: Outcome = future.result()
        except BrokenExecutor:
            lost.append(futures[future])
            continue
        store.reports += outcome.reports
        errors += outcome.errors
        progress.add(len(futures[future].units))
    return lost


def _raise_failures(errors: Sequence[tuple[str, str, str]], absent: Sequence[Unit]) -> None:
    if errors:
        unit, message, trace = errors[0]
        raise RunFailed(
            f"{len(errors)} units failed; all others are stored. The first: {unit}: {message}"
            f"\n\nTraceback in the worker:\n{trace}"
        )
    if absent:
        raise RunFailed(
            f"{len(absent)} units were computed but are not in the store, the first: "
            f"{describe(absent[0])}; do the workers see the same store folder?"
        )


def _row(unit: Unit, name: str, record: Record) -> dict[str, Any]:
    of = training_of(unit)
    row: dict[str, Any] = {"data": of.data, "network": of.network, "seed": of.seed}
    row |= {f"{penalty}_strength": s["strength"] for penalty, s in of.penalties.items()}
    if isinstance(unit, Measurement):
        row |= {"metric": unit.metric, **unit.settings}
        values = record.values
    else:
        losses = record.values.get("losses") or [None]
        row["metric"] = "training_loss"
        values = {"mean": losses[-1], "n": of.n_train}
    row |= {
        "value": values.get("mean"), "std": values.get("std"), "n": values.get("n"),
        "undefined": values.get("undefined", 0), "status": record.status,
        "seconds": record.provenance["seconds"], "key": name,
    }  # fmt: skip
    return row


class _Progress:
    """A bar with the time left; under the runner, the numbers go into the file it reads."""

    def __init__(self, total: int) -> None:
        self.file = os.environ.get("REGLIB_PROGRESS")
        self.done = 0
        self.total = total
        self.bar = tqdm(total=total, unit="unit", disable=bool(self.file), file=sys.stderr)

    def __enter__(self) -> "_Progress":
        self.add(0)
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.close()

    def add(self, count: int) -> None:
        """Count finished units."""
        self.done += count
        self.bar.update(count)
        if self.file:
            with open(self.file, "w") as file:
                file.write(f"{self.done} {self.total}")
