"""Training with several processes that share each batch, as `torchrun` starts them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from reglib.data import load_data
from reglib.errors import RunFailed
from reglib.runs.compute import check, keys_of
from reglib.runs.execute import Job, describe, run_job
from reglib.runs.store import Store
from reglib.training_checks import check_parallel
from reglib.units import Training, Unit, identity, training_of


@contextmanager
def processes(device: str) -> Iterator[None]:
    """Join the processes that `torchrun` started; without it, this process is alone.

    On CUDA each takes the GPU of its number on its machine.
    """
    if "RANK" not in os.environ:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def train_missing(units: Sequence[Unit], store: Store, *, device: str) -> int:
    """Train those networks of units that the store lacks, each by all processes together.

    The first process alone writes into the store. A training that was interrupted goes on from its
    last checkpoint, which all processes must be able to read.

    Args:
        units: trainings, and measurements of trainings.
        store: where results are.
        device: "cpu" or "cuda".

    Returns:
        How many networks were trained.

    Raises:
        UsageError: an unknown name, missing data, or a training that processes cannot share;
            nothing was computed.
        RunFailed: a training failed; those before it are stored.
    """
    networks = {str(identity(training_of(unit))): training_of(unit) for unit in units}
    trainings = [unit for unit in networks.values() if isinstance(unit, Training)]
    for unit in trainings:
        check(unit)
        n_images = len(load_data(unit.data).train.images[: unit.n_train])
        check_parallel(unit, n_images)
    missing = _agreed([store.read(name) is None for name in keys_of(trainings)])
    chosen = [unit for unit, absent in zip(trainings, missing, strict=True) if absent]
    for unit in chosen:
        outcome = run_job(Job((identity(unit),), str(store.folder.resolve()), device))
        if outcome.errors:
            raise RunFailed(f"{describe(unit)}: {outcome.errors[0][1]}\n\nTraceback in the "
                            f"worker:\n{outcome.errors[0][2]}")  # fmt: skip
    return len(chosen)


def _agreed(answers: list[bool]) -> list[bool]:
    """Return what the first process found: another one may look later."""
    if dist.is_initialized():
        dist.broadcast_object_list(answers)
    return answers
