"""The work of a worker: train or load networks, measure them, and store each result at once."""

import contextlib
import dataclasses
import functools
import platform
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import reglib
from suite.data import load_data
from suite.errors import DataMissing, Diverged, RunFailed
from suite.networks import load_pretrained
from suite.papers.measure import measure
from suite.runs.code import Sources, commit
from suite.store import Record, Store
from suite.training.evaluated import EvaluatedModel
from suite.training.folds import data_of
from suite.training.loop import DEFAULT, State, initial_network, memory_format, train
from suite.units import Measurement, Pretrained, Training, Unit, data_names, key, training_of

Failure = tuple[str, str, str]  # the unit, the message and the traceback
_ONE_JOB = threading.Lock()
NOTES: list[Path] = []  # files in which a worker notes the unit that it computes


@dataclass(frozen=True)
class Job:
    """Units of one training, computed in sequence by one worker.

    Args:
        units: trainings and measurements.
        store: folder.
        device: "cpu" or "cuda".
        force: also compute stored units.
        checkpoint_seconds: least time between two checkpoints of a training.
        double_backward: see `suite.training.loop.train`; None for the faster way on the device.
    """

    units: Sequence[Unit]
    store: str
    device: str
    force: bool = False
    checkpoint_seconds: float = 20.0
    double_backward: str | None = None


class _Work(NamedTuple):
    """State that the units of a job share; `networks` are functions by key that load a network."""

    job: Job
    store: Store
    sources: Sources
    networks: dict[str, Callable[[], EvaluatedModel]]

    def is_stored(self, unit: Unit) -> bool:
        """Whether the store has a unit, computed by the functions that are registered now."""
        record = None if self.job.force else self.store.read(keys_of([unit])[0])
        return record is not None and not self.sources.differs("named", unit, record.provenance)


class Outcome(NamedTuple):
    """Reports of a worker's store, and the units that failed."""

    reports: list[str]
    errors: list[Failure]


def keys_of(units: Sequence[Unit], known: Mapping[str, str] | None = None) -> list[str]:
    """Return the key of each unit, by the data of this machine.

    Args:
        units: trainings and measurements.
        known: fingerprints of data sets that may be missing.

    Raises:
        DataMissing: a data set is missing, and its fingerprint unknown.
    """
    fingerprints = fingerprints_of(units, known or {})
    return [key(unit, fingerprints) for unit in units]


def fingerprints_of(units: Sequence[Unit], known: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of each data set that units read, see `keys_of`."""
    fingerprints = {}
    for name in dict.fromkeys(name for unit in units for name in data_names(unit)):
        try:
            fingerprints[name] = load_data(name).fingerprint
        except DataMissing:
            if name not in known:
                raise
            fingerprints[name] = known[name]
    return fingerprints


def describe(unit: Unit) -> str:
    """Describe a unit in one line."""
    fields = {**training_of(unit).identity}
    kind, _ = fields.pop("unit"), fields.pop("version")
    text = f"{kind} ({', '.join(f'{name}={value}' for name, value in fields.items())})"
    if not isinstance(unit, Measurement):
        return text
    settings = ", ".join(f"{name}={value}" for name, value in unit.settings.items())
    return f"{unit.metric}{f' ({settings})' if settings else ''} of {text}"


def failure(unit: Unit, error: BaseException) -> Failure:
    """Describe the error of a unit."""
    trace = "".join(traceback.format_exception(error))
    return describe(unit), f"{type(error).__name__}: {error}", trace


def load_subject(unit: Training | Pretrained, store: Store, device: str = "cpu") -> EvaluatedModel:
    """Load a stored network or a pretrained one, or build an initial one.

    Raises:
        RunFailed: the network is not stored, or its training diverged.
    """
    weights: State = {}
    if isinstance(unit, Training) and unit.epochs:
        (name,) = keys_of([unit])
        record, weights = store.read(name), store.read_tensors(name) or {}
        if record is None:
            raise RunFailed(f"{describe(unit)}: not in the store {store.folder}; compute it first")
        if record.status == "diverged":
            raise Diverged(f"{describe(unit)}: diverged, so there is no network to load")
    return load_model(unit, weights, torch.device(device))


def run_job(job: Job) -> Outcome:
    """Compute and store the units of a job; an error in one unit does not stop the others.

    The threads of a process take turns, since they share the random state.
    """
    work, errors = _Work(job, Store(job.store), Sources(), {}), list[Failure]()
    with _ONE_JOB:
        # The longest training comes first, since it gives the shorter ones.
        for unit in sorted(job.units, key=lambda u: -getattr(training_of(u), "epochs", 0)):
            with contextlib.suppress(OSError):  # on a full disk the note is lost
                for file in NOTES:
                    file.write_text(describe(unit), encoding="utf-8")
            try:
                if not work.is_stored(unit):
                    _finish(unit, work)
            except Exception as error:  # noqa: BLE001 - reported to the caller, with its traceback
                errors.append(failure(unit, error))
    return Outcome(work.store.reports, errors)


def _finish(unit: Unit, work: _Work) -> None:
    """Compute and store a unit; a pretrained network has no record."""
    load = _network(training_of(unit), work)
    if not isinstance(unit, Measurement):
        return
    start = time.perf_counter()
    status, values, tensors = "diverged", {}, {}
    with contextlib.suppress(Diverged):  # of the network, or of a network compared with it
        model = load()
        model.related = lambda other: _network(other, work)()
        result = measure(model, unit)
        status, values, tensors = "done", _summary(result.per_image), result.tensors
    record = Record(unit.identity, status, values, _provenance(start, unit, work))
    work.store.write(keys_of([unit])[0], record, tensors)


def _network(unit: Training | Pretrained, work: _Work) -> Callable[[], EvaluatedModel]:
    """Return a cached function that loads a network, which is trained first if necessary."""
    (name,) = keys_of([unit])
    if name not in work.networks:
        if isinstance(unit, Training) and unit.epochs and not work.is_stored(unit):
            _train(unit, name, work)
        load = functools.partial(load_subject, unit, work.store, work.job.device)
        work.networks[name] = functools.cache(load)
    return work.networks[name]


def _train(unit: Training, name: str, work: _Work) -> None:
    """Train a network, from its last checkpoint if there is one, and store it.

    The network after fewer epochs is stored, too, if the job has a unit of that shorter training.
    """
    start = last = time.perf_counter()
    job, store = work.job, work.store
    checkpoint = f"{name}-{''.join(work.sources.provenance(unit).values())}".rstrip("-")
    resume = None if job.force else store.read_checkpoint(checkpoint)
    device, way = torch.device(job.device), job.double_backward or DEFAULT[job.device]
    networks = [n for n in map(training_of, job.units) if isinstance(n, Training)]
    same = [n for n in networks if dataclasses.replace(n, epochs=unit.epochs) == unit]
    shorter = {n.epochs: n for n in same if n.epochs < unit.epochs}

    def store_network(unit: Training, losses: list[float], weights: State, diverged: bool) -> None:
        provenance = _provenance(start, unit, work)
        provenance |= {"resumed": resume is not None, "double_backward": way}
        status = "diverged" if diverged else "done"
        record = Record(unit.identity, status, {"losses": losses}, provenance)
        store.write(keys_of([unit])[0], record, weights)

    def save(state: Callable[[], State]) -> None:
        nonlocal last
        if shorter:
            losses, weights = state()["losses"], state()["network"]
            if len(losses) in shorter:
                finite = all(bool(value.isfinite().all()) for value in weights.values())
                store_network(shorter[len(losses)], losses, weights, not finite)
        if time.perf_counter() - last >= job.checkpoint_seconds:
            store.write_checkpoint(checkpoint, state())
            last = time.perf_counter()

    data = data_of(unit)
    trained = train(unit, data, device=device, double_backward=way, resume=resume, on_epoch=save)
    store_network(unit, trained.losses, trained.network.state_dict(), trained.diverged)
    store.drop_checkpoint(checkpoint)


def load_model(unit: Training | Pretrained, weights: State, device: torch.device) -> EvaluatedModel:
    """Build a network with these weights, or load a pretrained one."""
    data = data_of(unit)
    if isinstance(unit, Pretrained):
        network = load_pretrained(unit.network, unit.options).to(device)
    else:
        network = initial_network(unit, data).to(device).eval()
        if unit.epochs:
            network.load_state_dict(weights)
    network = network.to(memory_format=memory_format(network, device))
    model = EvaluatedModel(network, unit, data)
    if isinstance(unit, Pretrained) and unit.n_images:
        model.relabel(unit.n_images, unit.labels)
    return model


def _summary(per_image: Tensor) -> dict[str, Any]:
    """Summarise the values of images, (B,); values that are not finite are counted apart."""
    values = per_image.double().cpu()
    finite = values[values.isfinite()]
    summary: dict[str, Any] = {
        "mean": float(finite.mean()) if len(finite) else None,
        "std": float(finite.std()) if len(finite) > 1 else None,
        "n": len(finite),
        "undefined": len(values) - len(finite),
    }
    if len(values) <= 1000:
        summary["per_image"] = values.tolist()
    return summary


def _provenance(start: float, unit: Unit, work: _Work) -> dict[str, Any]:
    """Return the time since `start`, and the machine, versions and code of a unit."""
    device = work.job.device
    if device == "cuda":
        name, peak = torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    else:
        name, peak = f"{platform.machine()} CPU", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"seconds": round(time.perf_counter() - start, 3), "peak_bytes": peak, "ended": ended}
    about |= {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    about |= {"python": platform.python_version(), "reglib": reglib.__version__}
    return about | {"commit": commit(), "code": work.sources.provenance(unit)}
