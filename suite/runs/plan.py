"""What a run would do, without doing it."""

import contextlib
import functools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suite.data import load_data
from suite.errors import DataMissing, RunFailed
from suite.networks.pretrained import check_weights
from suite.paths import ROOT, data_folder
from suite.runs.code import Sources, find_other_code
from suite.runs.compute import check
from suite.runs.executors import Resources
from suite.store import Kept, Store, checksum, replace_file
from suite.training.folds import data_of
from suite.training.loop import train
from suite.units import Pretrained, Training, Unit, data_names, key, training_of

MEMORY = "fingerprints.json"
Lookups = dict[str, str | DataMissing]  # by name: the fingerprint of a data set, or the error


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        total, stored, kept: numbers of distinct units: all, those computed on this machine, and
            those in the kept results only.
        missing_data: how to get each data set that is missing.
        spent: seconds that the stored units took.
        reports: on results of other code, and on how long trainings take, where that was measured.
    """

    total: int
    stored: int
    kept: int
    missing_data: Mapping[str, str]
    spent: float
    reports: Sequence[str] = ()

    def __str__(self) -> str:
        kept = f"{self.kept} kept, " if self.kept else ""
        text = f"{self.total} units, {self.stored} stored ({self.spent:.0f} s spent), {kept}"
        text += f"{self.total - self.stored - self.kept} missing"
        missing = map("missing data: {}".format, dict.fromkeys(self.missing_data.values()))
        return "\n  ".join([text, *self.reports, *missing])


def plan(
    units: Iterable[Unit],
    store: Store,
    kept: Kept | None = None,
    *,
    page_data: Collection[str] = (),
    lookups: Lookups | None = None,
    sources: Sources | None = None,
    force: bool = False,
    timed: bool = False,
) -> Plan:
    """Return what `compute` would do, without computing anything.

    Args:
        units: trainings and measurements.
        store: what this machine has computed.
        kept: the kept results; None to ignore them.
        page_data: data sets that a page reads even if no unit is computed.
        lookups: the fingerprint of each data set, or why it is missing. Missing entries are
            added, so that several plans can share them.
        sources: the present code, which several plans can share; default: read now.
        force: stored units are computed again.
        timed: measure steps of the trainings, for seconds each.

    Raises:
        UsageError: a unit asks for something unknown.
    """
    requested = {str(unit.identity): unit for unit in units}
    check(requested.values())
    lookups = {} if lookups is None else lookups
    _look_up(requested.values(), page_data, lookups)
    # A measurement implies its training, whether that was requested or not.
    all_units = requested | _trainings(requested.values())
    fingerprints = {**kept.fingerprints} if kept else {}
    fingerprints |= {name: text for name, text in lookups.items() if isinstance(text, str)}
    known = {n: unit for n, unit in all_units.items() if fingerprints.keys() >= {*data_names(unit)}}
    keys = {name: key(unit, fingerprints) for name, unit in known.items()}
    stored = store.glance(keys.values())
    records = {**(kept.read_all(keys.values()) if kept else {}), **stored}
    by_key = {keys[name]: unit for name, unit in known.items()}
    refused, reports = find_other_code(records, by_key, sources or Sources())
    if force:
        refused, reports = set(by_key), ["everything is computed again (--force)"]
    done = {name for name, k in keys.items() if k in records and k not in refused}
    local = {name: stored[keys[name]] for name in done if keys[name] in stored}
    todo = {name: unit for name, unit in requested.items() if name not in done}
    # Kept results have no weights: a network is trained again for a further measurement.
    todo |= {n: unit for n, unit in _trainings(todo.values()).items() if n not in local}
    needed = {*page_data}.union(*map(_needs, todo.values()))
    missing = {n: e for n, e in lookups.items() if n in needed and isinstance(e, DataMissing)}
    if kept and todo and not missing:
        reports += _forecast([unit.identity for unit in todo.values()], kept)
    if timed and (new := [u for n, u in todo.items() if n in known and isinstance(u, Training)]):
        reports.append(_time_of(new, Resources.from_environment()))
    return Plan(
        total=len(requested),
        stored=len(requested.keys() & local.keys()),
        kept=len(requested.keys() & (done - local.keys())),
        missing_data={name: str(error) for name, error in missing.items()},
        spent=sum(record.provenance["seconds"] for record in local.values()),
        reports=tuple(reports),
    )


def _forecast(units: Sequence[Mapping[str, Any]], kept: Kept) -> list[str]:
    """Say how long measurements of pretrained networks take, if no other unit is among them.

    For each image it is the median over kept measurements with the same metric, whatever their
    network and computer.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for record in (r for archive in kept.archives.values() for r in archive.records.values()):
        if kind := _kind(record.unit):
            seconds[kind].append(record.provenance["seconds"] / _n_images(record.unit))
    total = sum(np.median(seconds[_kind(u)] or np.nan) * _n_images(u) for u in units)
    text = f"missing ones take about {total:.0f} s on one core, by kept results"
    return [text] if total > 0 else []


def _kind(unit: Mapping[str, Any]) -> str:
    """Return what the time of a measurement of a pretrained network depends on, or ""."""
    if unit.get("training", {}).get("unit") != "pretrained":
        return ""
    settings = unit.get("settings", {})
    return f"{unit['metric']} {settings.get('saliency')} {settings.get('attack')}"


def _n_images(unit: Mapping[str, Any]) -> int:
    return int(unit.get("settings", {}).get("n_images", 1))


def _time_of(trainings: Iterable[Training], resources: Resources) -> str:
    """Estimate how long trainings take in sequence, from measured steps of each kind."""
    device, known, total = resources.resolve_device(), dict[str, float](), 0.0
    # The longest of trainings that differ only in length gives the others.
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
    """Return a training of one step an epoch, as long as a step of `unit`, without learning."""
    penalties = {name: {**settings, "strength": 1e-9} for name, settings in unit.penalties.items()}
    fields: dict[str, Any] = {"learning_rate": 1e-9, "cosine_epochs": None, "decay_epochs": ()}
    fields |= {"n_train": unit.batch_size, "epochs": 1, "seed": 0, "balance_groups": False}
    return replace(unit, **fields, penalties=penalties)


def _seconds_of_a_step(unit: Training, device: str, way: str | None) -> float:
    """Return the mean time of a cycle of last steps: the first steps load and prepare."""
    data, times = data_of(unit), [time.perf_counter()]
    every = max((penalty.get("every", 1) for penalty in unit.penalties.values()), default=1)
    options: dict[str, Any] = {"device": torch.device(device), "double_backward": way}
    unit = replace(unit, epochs=10 + every)
    train(unit, data, **options, on_epoch=lambda _: times.append(time.perf_counter()))
    return float(np.diff(times)[-every:].mean())


def _trainings(units: Iterable[Unit]) -> dict[str, Unit]:
    """Return the trainings of units by their identity."""
    networks = {id(network): network for network in map(training_of, units)}.values()
    return {str(n.identity): n for n in networks if isinstance(n, Training) and n.epochs}


def _needs(unit: Unit) -> dict[str, Callable[[str], str | None]]:
    """Return the data and weights that a unit needs, each with the function that looks it up."""
    network = training_of(unit)
    weights = {network.network: check_weights} if isinstance(network, Pretrained) else {}
    return {**dict.fromkeys(data_names(unit), _fingerprint), **weights}


def _look_up(units: Iterable[Unit], data: Iterable[str], lookups: Lookups) -> None:
    """Add the data sets and the weights that units and a page need, and `lookups` lacks."""
    needed = {name: look_up for unit in units for name, look_up in _needs(unit).items()}
    needed |= dict.fromkeys(data, _fingerprint)
    for name in (name for name in needed if name not in lookups):
        try:
            lookups[name] = needed[name](name) or name
        except DataMissing as error:
            lookups[name] = error


def _fingerprint(name: str) -> str:
    """Return the fingerprint of a data set, remembered while no data file changes."""
    memory, files = data_folder() / MEMORY, _files(data_folder())
    if not files or "imagefolder:" in name:  # images in other folders, or from packages only
        return load_data(name).fingerprint
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # the file is missing, or was cut
        known = json.loads(memory.read_text(encoding="utf-8")).get(files, {})
    if name not in known:
        print(f"looking for {name}; what is read is remembered")
        known[name] = load_data(name).fingerprint
        with contextlib.suppress(RunFailed):  # the next plan reads the data again
            replace_file(memory, json.dumps({files: known}).encode())
    return known[name]


@functools.cache
def _files(folder: Path) -> str:
    """Return a checksum of sizes and times of all data files, and of the code that reads them."""
    if not folder.is_dir():
        return ""
    walks = [*os.walk(folder, followlinks=True), *os.walk(ROOT / "suite" / "data")]
    derived = str(folder / "decoded") + os.sep, str(folder / MEMORY)  # files that the suite makes
    paths = sorted(os.path.join(parent, name) for parent, _, names in walks for name in names)
    files = [p for p in paths if not p.startswith(derived) and not p.endswith(".pyc")]
    stats = [(p, os.stat(p)) for p in files if os.path.exists(p)]  # no broken links
    sizes = [[p, stat.st_size, stat.st_mtime_ns] for p, stat in stats]
    return checksum(json.dumps(sizes).encode())
