"""What a run would do, without doing it."""

import contextlib
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suite.data import load_data
from suite.errors import DataMissing, RunFailed
from suite.networks import check_weights
from suite.paths import ROOT, data_folder
from suite.runs.code import Sources, find_other_code
from suite.runs.compute import check
from suite.runs.executors import Resources
from suite.store import Kept, Store, checksum, replace_file
from suite.training.folds import data_of
from suite.training.loop import train
from suite.units import Pretrained, Training, Unit, data_names, key, training_of

MEMORY = "fingerprints.json"
LONGEST = 2.0  # seconds for which a kind of training is timed on a CPU, or for two steps


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored, kept: number of units, each counted once: in all, computed on this machine,
            and those that are among the kept results only.
        missing_data: for each data set that is not there, how to get it.
        spent: seconds that went into what is stored.
        expected: seconds that what is missing takes, see `suite.store.Kept.expected`, or NaN.
        reports: of results of other code; how long trainings take, where steps were measured.
    """

    total: int
    stored: int
    kept: int
    missing_data: Mapping[str, str]
    spent: float
    expected: float = math.nan
    reports: Sequence[str] = ()

    def __str__(self) -> str:
        kept = f"{self.kept} kept, " if self.kept else ""
        text = f"{self.total} units, {self.stored} stored ({self.spent:.0f} s spent), {kept}"
        text += f"{self.total - self.stored - self.kept} missing"
        if math.isfinite(self.expected):
            text += f", which take about {self.expected:.0f} s on one core, by kept results"
        missing = map("missing data: {}".format, dict.fromkeys(self.missing_data.values()))
        return "\n  ".join([text, *self.reports, *missing])


def plan(
    units: Iterable[Unit],
    store: Store,
    kept: Kept | None = None,
    *,
    looked: dict[str, str | DataMissing] | None = None,
    sources: Sources | None = None,
    force: bool = False,
    timed: bool = False,
) -> Plan:
    """Return what `compute` would do, without computing anything.

    Args:
        units: what is wanted.
        store: what this machine has computed.
        kept: the kept results; None to ignore them.
        looked: fingerprints of data sets by name, or why they are not there; what is looked up is
            added, so that several plans may share it.
        sources: the code as it is now, which several plans may share; default: read anew.
        force: what is stored is computed again.
        timed: measure steps of the trainings, for seconds each.

    Raises:
        UsageError: a unit asks for something unknown.
    """
    wanted = {str(unit.identity): unit for unit in units}
    check(wanted.values())
    looked = {} if looked is None else looked
    missing_data = _missing_data(wanted.values(), looked)
    # A measurement brings its training with it, whether that was asked for or not.
    work = wanted | _trainings(wanted.values())
    fingerprints = {**kept.fingerprints} if kept else {}
    fingerprints |= {n: text for n, text in looked.items() if isinstance(text, str)}
    there = {n: u for n, u in work.items() if fingerprints.keys() >= set(data_names(u))}
    keys = {name: key(unit, fingerprints) for name, unit in there.items()}
    stored = store.glance(keys.values())
    records = {**(kept.read_all(keys.values()) if kept else {}), **stored}
    by_key = {keys[name]: unit for name, unit in there.items()}
    refused, reports = find_other_code(records, by_key, sources or Sources())
    if force:
        refused, reports = set(by_key), ["everything is computed again (--force)"]
    have = {name for name, k in keys.items() if k in records and k not in refused}
    here = {name: stored[keys[name]] for name in have if keys[name] in stored}
    todo = {name: unit for name, unit in wanted.items() if name not in have}
    # Kept results have no weights: a network that is to be measured further is trained again.
    todo |= {n: unit for n, unit in _trainings(todo.values()).items() if n not in here}
    needed = {name for unit in todo.values() for name in _needs(unit)}
    missing_data = {name: how for name, how in missing_data.items() if name in needed}
    seconds = math.nan
    if kept and not missing_data:
        seconds = kept.expected([unit.identity for unit in todo.values()])
    if timed and (new := [u for n, u in todo.items() if n in there and isinstance(u, Training)]):
        reports.append(_time_of(new, Resources.from_environment()))
    return Plan(
        total=len(wanted),
        stored=len(wanted.keys() & here.keys()),
        kept=len(wanted.keys() & (have - here.keys())),
        missing_data=missing_data,
        spent=sum(record.provenance["seconds"] for record in here.values()),
        expected=seconds,
        reports=tuple(reports),
    )


def _time_of(trainings: Iterable[Training], resources: Resources) -> str:
    """Estimate how long trainings take in sequence, from measured steps of each kind."""
    device, known, total = resources.resolve_device(), dict[str, float](), 0.0
    # Of those that differ in their length alone, the longest gives the others.
    ascending = sorted(trainings, key=lambda unit: unit.epochs)
    longest = {str({**unit.identity, "epochs": 0}): unit for unit in ascending}
    for unit in longest.values():
        timed = _single_step_training(unit)
        if (name := str(timed.identity)) not in known:
            known[name] = _seconds_of_a_step(timed, device, resources.double_backward)
        n_images = unit.n_train or len(data_of(unit).train.labels)
        total += unit.epochs * math.ceil(n_images / unit.batch_size) * known[name]
    on = "GPU" if device == "cuda" else "CPU (the profile is meant for one GPU)"
    text = f"trainings: {len(longest)}, about {total / 60:,.0f} min by steps measured on this {on}"
    return f"{text}; what is measured of the networks comes on top"


def _single_step_training(unit: Training) -> Training:
    """Return a training whose epochs are one step, as long as those of another, and no learning."""
    penalties = {name: {**given, "strength": 1e-9} for name, given in unit.penalties.items()}
    fields: dict[str, Any] = {"learning_rate": 1e-9, "cosine_epochs": None, "decay_epochs": ()}
    fields |= {"n_train": unit.batch_size, "epochs": 100, "seed": 0, "balance_groups": False}
    return replace(unit, **fields, penalties=penalties)


def _seconds_of_a_step(unit: Training, device: str, way: str | None) -> float:
    """Return the mean time of the last steps, one of each kind: the first ones load and prepare."""
    data, times = data_of(unit), [time.perf_counter()]
    every = max((given.get("every", 1) for given in unit.penalties.values()), default=1)

    def note(_: object) -> None:
        times.append(time.perf_counter())
        if device == "cpu" and len(times) > every + 3 and times[-1] - times[1] > LONGEST:
            raise TimeoutError

    with contextlib.suppress(TimeoutError):
        train(unit, data, device=torch.device(device), double_backward=way, on_epoch=note)
    return float(np.diff(times)[-every:].mean())


def _trainings(units: Iterable[Unit]) -> dict[str, Unit]:
    """Return the trainings of units by their identity."""
    networks = {id(network): network for network in map(training_of, units)}.values()
    trained = (network for network in networks if isinstance(network, Training) and network.epochs)
    return {str(network.identity): network for network in trained}


def _needs(unit: Unit) -> dict[str, Callable[[str], str | None]]:
    """Return by name the data and the weights that a unit needs, with what looks for each."""
    network = training_of(unit)
    weights = {network.network: check_weights} if isinstance(network, Pretrained) else {}
    return {**dict.fromkeys(data_names(unit), _fingerprint), **weights}


def _missing_data(units: Iterable[Unit], looked: dict[str, str | DataMissing]) -> dict[str, str]:
    """Return how to get each data set and each network's weights that are not there."""
    needed = {name: look for unit in units for name, look in _needs(unit).items()}
    for name in needed.keys() - looked.keys():
        try:
            looked[name] = needed[name](name) or name
        except DataMissing as error:
            looked[name] = error
    return {name: str(looked[name]) for name in needed if isinstance(looked[name], DataMissing)}


def _fingerprint(name: str) -> str:
    """Return the fingerprint of a data set, remembered while no file that it is made of changes."""
    memory, files = data_folder() / MEMORY, _files(data_folder())
    if not files or "imagefolder:" in name:  # images elsewhere, or from packages alone
        return load_data(name).fingerprint
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # it is not there, or was cut
        known = json.loads(memory.read_text(encoding="utf-8")).get(files, {})
    if name not in known:
        known[name] = load_data(name).fingerprint
        with contextlib.suppress(RunFailed):  # the next one reads the data again
            replace_file(memory, json.dumps({files: known}).encode())
    return known[name]


@functools.cache
def _files(folder: Path) -> str:
    """Return a checksum of sizes and times of all data files, and of the code that reads them."""
    if not folder.is_dir():
        return ""
    walked = [*os.walk(folder, followlinks=True), *os.walk(ROOT / "suite" / "data")]
    made = [str(folder / "decoded") + os.sep, str(folder / MEMORY)]  # by the suite, of the others
    paths = sorted(os.path.join(place, n) for place, _, names in walked for n in names)
    files = [p for p in paths if not p.startswith(tuple(made)) and not p.endswith(".pyc")]
    there = [(p, os.stat(p)) for p in files if os.path.exists(p)]  # and no link to nothing
    about = [[p, entry.st_size, entry.st_mtime_ns] for p, entry in there]
    return checksum(json.dumps(about).encode())
