"""What a worker does: train or load a network, measure it, store each result when it is there."""

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
from suite.training import checkpoints
from suite.training.checkpoints import State
from suite.training.evaluated import EvaluatedModel
from suite.training.folds import data_of
from suite.training.loop import DEFAULT, initial_network, memory_format, train
from suite.units import Measurement, Pretrained, Training, Unit, data_names, key, training_of

Failure = tuple[str, str, str]  # the unit, the message and the traceback
_ONE_JOB = threading.Lock()
NOTES: list[Path] = []  # where a worker writes what it is computing


@dataclass(frozen=True)
class Job:
    """Units of one training, to be done one after another on one worker.

    Args:
        units: what to compute.
        store: folder.
        device: "cpu" or "cuda".
        force: compute even what is stored.
        checkpoint_seconds: least time between two checkpoints of a training.
        double_backward: see `suite.training.loop.train`; None for the faster one of the device.
    """

    units: Sequence[Unit]
    store: str
    device: str
    force: bool = False
    checkpoint_seconds: float = 20.0
    double_backward: str | None = None


class _Work(NamedTuple):
    """What the units of a job share: `networks` has by key what loads one that is there."""

    job: Job
    store: Store
    sources: Sources
    networks: dict[str, Callable[[], EvaluatedModel]]

    def is_stored(self, unit: Unit) -> bool:
        """Whether the store has a unit, by the code that a user has registered now."""
        record = None if self.job.force else self.store.read(keys_of([unit])[0])
        return record is not None and not self.sources.differs("named", unit, record.provenance)


class Outcome(NamedTuple):
    """What a worker has to say: reports of its store, and what failed."""

    reports: list[str]
    errors: list[Failure]


def keys_of(units: Sequence[Unit], known: Mapping[str, str] | None = None) -> list[str]:
    """Return the name of each unit in the store, by the data of this machine.

    Args:
        units: any.
        known: fingerprints of data sets that need not be here.

    Raises:
        DataMissing: a data set is neither here nor known.
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
    kind, _, *fields = training_of(unit).identity.items()
    name = f"{kind[1]} ({', '.join(f'{name}={value}' for name, value in fields)})"
    if not isinstance(unit, Measurement):
        return name
    settings = ", ".join(f"{name}={value}" for name, value in unit.settings.items())
    return f"{unit.metric}{f' ({settings})' if settings else ''} of {name}"


def failure(unit: Unit, error: BaseException) -> Failure:
    """Describe the error of a unit."""
    trace = "".join(traceback.format_exception(error))
    return describe(unit), f"{type(error).__name__}: {error}", trace


def load_subject(unit: Training | Pretrained, store: Store, device: str = "cpu") -> EvaluatedModel:
    """Load a network that the store has, a pretrained one, or make one as it starts.

    Raises:
        RunFailed: it is not stored, or its training diverged.
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
    """Compute and store the units of a job; an error in one does not keep the others from it.

    The threads of a process take turns: they share the random state, from which networks draw.
    """
    work, errors = _Work(job, Store(job.store), Sources(), {}), list[Failure]()
    with _ONE_JOB:
        # The longest training first: it gives those that are shorter.
        for unit in sorted(job.units, key=lambda u: -getattr(training_of(u), "epochs", 0)):
            with contextlib.suppress(OSError):  # a full disk: then nobody knows
                for file in NOTES:
                    file.write_text(describe(unit), encoding="utf-8")
            try:
                if not work.is_stored(unit):
                    _finish(unit, work)
            except Exception as error:  # noqa: BLE001 - reported to the caller, with its traceback
                errors.append(failure(unit, error))
    return Outcome(work.store.reports, errors)


def _finish(unit: Unit, work: _Work) -> None:
    """Store the record of a unit; there is none of a pretrained network."""
    load = _network(training_of(unit), work)
    if not isinstance(unit, Measurement):
        return
    start = time.perf_counter()
    status, values, tensors = "diverged", {}, {}
    with contextlib.suppress(Diverged):  # the network, or one that it is compared with
        model = load()
        model.related = lambda other: _network(other, work)()
        result = measure(model, unit)
        status, values, tensors = "done", _summary(result.per_image), result.tensors
    record = Record(unit.identity, status, values, _provenance(start, unit, work))
    work.store.write(keys_of([unit])[0], record, tensors)


def _network(unit: Training | Pretrained, work: _Work) -> Callable[[], EvaluatedModel]:
    """Return what loads a network, once; when it is first asked for, it is trained if need be."""
    (name,) = keys_of([unit])
    if name not in work.networks:
        if isinstance(unit, Training) and unit.epochs and not work.is_stored(unit):
            _train(unit, name, work)
        load = functools.partial(load_subject, unit, work.store, work.job.device)
        work.networks[name] = functools.cache(load)
    return work.networks[name]


def _train(unit: Training, name: str, work: _Work) -> None:
    """Train a network, on from its last checkpoint, and store it.

    What it is after fewer epochs is stored as the shorter training, where a unit of the job is of
    that one.
    """
    start = last = time.perf_counter()
    job, store = work.job, work.store
    unfinished = f"{name}-{''.join(work.sources.provenance(unit).values())}".rstrip("-")
    resume = None if job.force else store.read_checkpoint(unfinished)
    device, way = torch.device(job.device), job.double_backward or DEFAULT[job.device]
    networks = [n for n in map(training_of, job.units) if isinstance(n, Training)]
    same = [n for n in networks if dataclasses.replace(n, epochs=unit.epochs) == unit]
    shorter = {n.epochs: n for n in same if n.epochs < unit.epochs}

    def keep(of: Training, losses: list[float], weights: State, diverged: bool) -> None:
        provenance = _provenance(start, of, work)
        provenance |= {"resumed": resume is not None, "double_backward": way}
        status = "diverged" if diverged else "done"
        record = Record(of.identity, status, {"losses": losses}, provenance)
        store.write(keys_of([of])[0], record, weights)

    def save(state: Callable[[], State]) -> None:
        nonlocal last
        if shorter:
            losses = state()["losses"].tolist()
            if len(losses) in shorter:
                weights = checkpoints.weights_of(state())
                finite = all(bool(value.isfinite().all()) for value in weights.values())
                keep(shorter[len(losses)], losses, weights, not finite)
        if time.perf_counter() - last >= job.checkpoint_seconds:
            store.write_checkpoint(unfinished, state())
            last = time.perf_counter()

    data = data_of(unit)
    trained = train(unit, data, device=device, double_backward=way, resume=resume, on_epoch=save)
    keep(unit, trained.losses, trained.network.state_dict(), trained.diverged)
    store.drop_checkpoint(unfinished)


def load_model(unit: Training | Pretrained, weights: State, device: torch.device) -> EvaluatedModel:
    """Return a network with its weights; a pretrained one brings its own."""
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
    """Summarise one value for each image; images without a finite value are counted apart."""
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
    """Say how long a unit took since `start`, on what, and by which code."""
    device = work.job.device
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"seconds": round(time.perf_counter() - start, 3), "peak_bytes": peak, "ended": ended}
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    about |= {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    about |= {"python": platform.python_version(), "reglib": reglib.__version__}
    return about | {"commit": commit(), "code": work.sources.provenance(unit)}
