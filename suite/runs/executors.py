"""Where units are computed: here, in local processes, or on a Dask cluster."""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from suite.errors import UsageError


@dataclass(frozen=True)
class Resources:
    """What a run may use.

    Args:
        device: "auto", "cpu" or "cuda".
        jobs: local processes; None for one a core on the CPU, and one in all on a GPU.
        dask: address of a Dask scheduler, instead of local processes.
        double_backward: see `suite.training.loop.train`; None for the faster one of the device.

    Raises:
        UsageError: a device that is unknown or not there, `jobs` below 1, or an unknown way of
            double backpropagation.
    """

    device: str = "auto"
    jobs: int | None = None
    dask: str | None = None
    double_backward: str | None = None

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device: expected auto, cpu or cuda, got {self.device!r}")
        if self.device == "cuda" and not self.dask and not torch.cuda.is_available():
            raise UsageError(
                "device: cuda was asked for, but torch finds no CUDA device; use --device cpu"
            )
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs: expected a positive number of processes, got {self.jobs}")
        if self.double_backward not in (None, "fast", "stock"):
            raise UsageError(
                f"double_backward: expected fast or stock, got {self.double_backward!r}"
            )

    @classmethod
    def from_environment(cls) -> "Resources":
        """Read REGLIB_DEVICE, REGLIB_JOBS, REGLIB_DASK and REGLIB_DOUBLE_BACKWARD."""
        jobs = os.environ.get("REGLIB_JOBS")
        if jobs and not jobs.isdigit():
            raise UsageError(f"REGLIB_JOBS: expected a number of processes, got {jobs!r}")
        return cls(
            device=os.environ.get("REGLIB_DEVICE") or "auto",
            jobs=int(jobs) if jobs else None,
            dask=os.environ.get("REGLIB_DASK") or None,
            double_backward=os.environ.get("REGLIB_DOUBLE_BACKWARD") or None,
        )

    def chosen_device(self) -> str:
        """Resolve "auto"."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def chosen_jobs(self) -> int:
        """Resolve the number of local processes."""
        return self.jobs or (1 if self.chosen_device() == "cuda" else cores())

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor]:
        """Open the executor; it is closed, and what waits in it dropped, at the end.

        Raises:
            UsageError: the Dask scheduler cannot be reached.
        """
        if self.dask:
            with _dask_executor(self.dask) as executor:
                yield executor
            return
        jobs = self.chosen_jobs()
        local = InProcess() if jobs == 1 else local_processes(jobs)
        try:
            yield local
        finally:
            local.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InProcess(Executor):
    """An executor that calls the function at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it to the caller
            future.set_exception(error)
        return future


def local_processes(jobs: int) -> ProcessPoolExecutor:
    """Open a pool whose processes share the cores, and end when this process does.

    The number of threads depends on `jobs` alone, never on how much there is to do: results of a
    run that was interrupted have the bits of one that was not.
    """
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(max(1, cores() // jobs), os.getpid()),
    )


def _start_worker(threads: int, parent: int) -> None:
    torch.set_num_threads(threads)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextlib.contextmanager
def _dask_executor(address: str) -> Iterator[Executor]:
    from distributed import Client

    try:
        client = Client(address, timeout=10)
    except Exception as error:
        raise UsageError(
            f"Dask scheduler {address}: cannot be reached ({error}); start one with "
            "'dask scheduler' and workers with 'dask worker ADDRESS --nthreads 1'"
        ) from error
    try:
        if not client.nthreads():
            print(f"Dask scheduler {address} has no workers yet: waiting", file=sys.stderr)
        yield client.get_executor(retries=3)
    finally:
        client.close()
