"""What a worker does: train or load a network, measure it, store each result when it is there."""

import functools
import platform
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import reglib
from suite.data import load_data
from suite.errors import RunFailed
from suite.networks import load_pretrained
from suite.papers.measure import measure
from suite.paths import ROOT
from suite.store import Record, Store
from suite.training.evaluated import EvaluatedModel
from suite.training.folds import data_of
from suite.training.loop import DEFAULT, initial_network, memory_format, train
from suite.units import (
    Measurement,
    Network,
    Pretrained,
    Training,
    Unit,
    data_names,
    from_identity,
    identity,
    key,
    training_of,
)

_ONE_JOB = threading.Lock()


@dataclass(frozen=True)
class Job:
    """Units of one training, to be done one after another on one worker.

    Args:
        units: identities.
        store: folder.
        device: "cpu" or "cuda".
        force: compute even what is stored.
        checkpoint_seconds: least time between two checkpoints of a training.
        double_backward: see `suite.training.loop.train`; None for the faster one of the device.
    """

    units: tuple[Mapping[str, Any], ...]
    store: str
    device: str
    force: bool = False
    checkpoint_seconds: float = 20.0
    double_backward: str | None = None


@dataclass
class Outcome:
    """What a worker has to say: reports of its store, and (unit, message, traceback) of errors."""

    reports: list[str] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)


def run_job(job: Job) -> Outcome:
    """Compute and store the units of a job; an error in one does not keep the others from it.

    The threads of a process take turns: they share the random state, from which networks draw.
    """
    store = Store(job.store)
    outcome = Outcome(reports=store.reports)
    worker = _Worker(job, store)
    with _ONE_JOB:
        for values in job.units:
            unit = from_identity(values)
            try:
                worker.finish(unit)
            except Exception as error:  # noqa: BLE001 - reported to the caller, with its traceback
                message = f"{type(error).__name__}: {error}"
                outcome.errors.append((describe(unit), message, traceback.format_exc()))
    return outcome


def describe(unit: Unit) -> str:
    """Say what a unit is, in one line."""
    values = identity(training_of(unit))
    of = _listed({k: v for k, v in values.items() if k not in ("unit", "version")})
    if not isinstance(unit, Measurement):
        return f"{values['unit']} ({of})"
    settings = f" ({_listed(unit.settings)})" if unit.settings else ""
    return f"{unit.metric}{settings} of {values['unit']} ({of})"


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


class _Worker:
    """The training of a job, made or loaded once, when it is first needed."""

    def __init__(self, job: Job, store: Store) -> None:
        self.job = job
        self.store = store
        self.device = torch.device(job.device)
        self.models: dict[str, EvaluatedModel | None] = {}

    def finish(self, unit: Unit) -> None:
        """Bring the record of a unit into the store; there is none of a pretrained network."""
        name = _key(unit)
        if not self.job.force and self.store.read(name) is not None:
            return
        model = self.model(training_of(unit))
        if not isinstance(unit, Measurement):
            return
        start = time.perf_counter()
        if model is None:
            record = Record(identity(unit), "diverged", {}, self.provenance(start))
            self.store.write(name, record)
            return
        model.related = self.related
        result = measure(model, unit)
        values = _summary(result.per_image)
        record = Record(identity(unit), "done", values, self.provenance(start))
        self.store.write(name, record, result.tensors)

    def related(self, unit: Network) -> EvaluatedModel:
        """Return another network that a metric asks for."""
        model = self.model(unit)
        if model is None:
            raise RunFailed(f"{describe(unit)}: diverged, so there is no network to load")
        return model

    def model(self, unit: Network) -> EvaluatedModel | None:
        """Return the trained network, or None where training diverged."""
        name = _key(unit)
        if isinstance(unit, Pretrained):
            if name not in self.models:
                self.models[name] = pretrained_subject(unit, self.device)
            return self.models[name]
        if name not in self.models:
            record = None if self.job.force else self.store.read(name)
            weights = None if record is None else self.store.read_tensors(name)
            if record is None or weights is None:
                self.models[name] = self._train(name, unit)
            elif record.status == "diverged":
                self.models[name] = None
            else:
                self.models[name] = _subject(unit, weights, self.device)
        return self.models[name]

    def _train(self, name: str, unit: Training) -> EvaluatedModel | None:
        start = last = time.perf_counter()

        def save(state: Any) -> None:
            nonlocal last
            if time.perf_counter() - last >= self.job.checkpoint_seconds:
                self.store.write_checkpoint(name, state())
                last = time.perf_counter()

        data = data_of(unit)
        resume = None if self.job.force else self.store.read_checkpoint(name)
        chosen = self.job.double_backward or DEFAULT[self.device.type]
        trained = train(
            unit, data, device=self.device, double_backward=chosen, resume=resume, on_epoch=save
        )
        provenance = self.provenance(start)
        provenance |= {"resumed": resume is not None, "double_backward": chosen}
        status = "diverged" if trained.diverged else "done"
        record = Record(identity(unit), status, {"losses": trained.losses}, provenance)
        self.store.write(name, record, trained.network.state_dict())
        self.store.drop_checkpoint(name)
        return None if trained.diverged else EvaluatedModel(trained.network, unit, data)

    def provenance(self, start: float) -> dict[str, Any]:
        """Say how long it took since `start`, and on what."""
        return {
            "seconds": round(time.perf_counter() - start, 3),
            **_memory(self.device),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **_surroundings(self.job.device),
        }


def _key(unit: Unit) -> str:
    return key(unit, {name: load_data(name).fingerprint for name in data_names(unit)})


def pretrained_subject(unit: Pretrained, device: torch.device) -> EvaluatedModel:
    """Load a network that others have trained, with the images that it is shown."""
    network = load_pretrained(unit.network).to(device)
    layout = memory_format(network, device)
    return EvaluatedModel(network.to(memory_format=layout), unit, load_data(unit.data))


def _subject(unit: Training, weights: Mapping[str, Tensor], device: torch.device) -> EvaluatedModel:
    data = data_of(unit)
    network = initial_network(unit, data).to(device).eval()
    network.load_state_dict(weights)
    return EvaluatedModel(network.to(memory_format=memory_format(network, device)), unit, data)


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


def _memory(device: torch.device) -> dict[str, int]:
    if device.type == "cuda":
        return {"peak_bytes": torch.cuda.max_memory_allocated()}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


@functools.cache
def _surroundings(device: str) -> dict[str, Any]:
    """Say which device, versions and commit this process has."""
    cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "reglib": reglib.__version__,
        "commit": commit(),
    }


@functools.cache
def commit() -> str:
    """Return the commit of the project, with "+changes" where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        status = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if status.strip() else "")


def load_subject(unit: Network, store: Store, device: str = "cpu") -> EvaluatedModel:
    """Load a network that the store has, or one that others have trained.

    Raises:
        RunFailed: it is not stored, or its training diverged.
    """
    if isinstance(unit, Pretrained):
        return pretrained_subject(unit, torch.device(device))
    name = _key(unit)
    record = store.read(name)
    weights = None if record is None else store.read_tensors(name)
    if record is None or weights is None:
        raise RunFailed(f"{describe(unit)}: not in the store {store.folder}; compute it first")
    if record.status == "diverged":
        raise RunFailed(f"{describe(unit)}: diverged, so there is no network to load")
    return _subject(unit, weights, torch.device(device))
