"""Where units are computed: here, in local processes, or on a Dask cluster."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from suite.errors import RunFailed, UsageError, expected
from suite.runs.execute import NOTES, Failure, Job, Outcome, failure, run_job
from suite.store import Store
from suite.training.loop import WAYS

ATTEMPTS = 3
START = "its start (does a script that calls compute lack 'if __name__ == \"__main__\":'?)"


@dataclass(frozen=True)
class Resources:
    """The device, processes and methods of a run.

    Args:
        device: "auto", "cpu" or "cuda".
        jobs: local processes; None for one on each core of the CPU, or one in all on a GPU.
        dask: address of a Dask scheduler, instead of local processes.
        double_backward: see `suite.training.loop.train`; None for the faster way on the device.

    Raises:
        UsageError: the device is unknown or missing, `jobs` is below 1, or the way of double
            backpropagation is unknown.
    """

    device: str = "auto"
    jobs: int | None = None
    dask: str | None = None
    double_backward: str | None = None

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise expected("device", "auto, cpu or cuda", repr(self.device))
        if self.device == "cuda" and not self.dask and not torch.cuda.is_available():
            why = "device: cuda was asked for, but torch finds no CUDA device; use --device cpu"
            raise UsageError(why)
        if self.jobs is not None and self.jobs < 1:
            raise expected("jobs", "a positive number of processes", self.jobs)
        if self.double_backward not in (None, *WAYS):
            raise expected("double_backward", "fast, stock or captured", repr(self.double_backward))

    @classmethod
    def from_environment(cls) -> "Resources":
        """Read REGLIB_DEVICE, REGLIB_JOBS, REGLIB_DASK and REGLIB_DOUBLE_BACKWARD."""
        texts = {spec.name: os.environ.get(f"REGLIB_{spec.name.upper()}") for spec in fields(cls)}
        values: dict[str, Any] = {name: text for name, text in texts.items() if text}
        if "jobs" in values:
            if not values["jobs"].isdigit():
                raise expected("REGLIB_JOBS", "a number of processes", repr(values["jobs"]))
            values["jobs"] = int(values["jobs"])
        return cls(**values)

    def resolve_device(self) -> str:
        """Resolve "auto"."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def resolve_jobs(self) -> int:
        """Resolve the number of local processes."""
        return self.jobs or (1 if self.resolve_device() == "cuda" else cores())

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor]:
        """Open the executor; at the end it is closed, and waiting jobs are dropped.

        The threads of a local process depend on `jobs` only, not on the number of units, so that
        an interrupted run gives the same bits as an uninterrupted one.

        Raises:
            UsageError: the Dask scheduler cannot be reached.
        """
        jobs = self.resolve_jobs()
        if self.dask:
            with _dask_executor(self.dask) as cluster:
                yield cluster
        elif jobs == 1:
            yield InProcess()
        else:
            with tempfile.TemporaryDirectory() as notes, LocalPool(jobs, notes) as pool:
                yield pool


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalPool(futures.ProcessPoolExecutor):
    """Local processes; `deaths` are the causes of unexpected deaths, by the unit in progress.

    Args:
        jobs: number of processes.
        notes: folder in which processes note the unit that they compute.
    """

    def __init__(self, jobs: int, notes: str) -> None:
        context, threads = multiprocessing.get_context("spawn"), max(1, cores() // jobs)
        super().__init__(jobs, context, _start_worker, (threads, notes))
        self._notes, self._others = Path(notes), {*multiprocessing.active_children()}
        self.started: set[Any] = set()
        self.deaths: dict[str, str] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call: see `concurrent.futures.Executor`."""
        future = super().submit(fn, *args, **kwargs)
        self.started |= {*multiprocessing.active_children()} - self._others
        return future

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """End all processes, at once after an error, and fill `deaths`."""
        for process in self.started if kind else ():
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)
        for process in self.started:
            if (code := process.exitcode) and code != -signal.SIGTERM:
                note = self._notes / str(process.pid)
                unit = note.read_text(encoding="utf-8") if note.exists() else START
                self.deaths[unit] = signal.Signals(-code).name if code < 0 else f"exit code {code}"


class InProcess(Executor):
    """An executor that calls the function at once in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))  # `run_job` returns the errors of units
        return future


def _start_worker(threads: int, notes: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interrupted parent ends this process
    torch.set_num_threads(threads)
    NOTES.append(Path(notes, str(os.getpid())))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _dask_executor(address: str) -> Iterator[Executor]:
    from distributed import Client

    try:
        client = Client(address, timeout=10)
    except Exception as error:
        why = f"Dask scheduler {address}: cannot be reached ({error}); start one with 'dask "
        why += "scheduler' and workers with 'dask worker ADDRESS --nthreads 1'"
        raise UsageError(why) from error
    with client:
        if not client.nthreads():
            start = f"'dask worker {address} --nthreads 1'"
            print(f"Dask scheduler {address}: waiting for a worker, {start}", file=sys.stderr)
        yield client.get_executor(retries=3)


def run_jobs(jobs: Sequence[Job], resources: Resources, store: Store) -> list[Failure]:
    """Run jobs; a job whose worker was lost is tried again with new workers.

    Reports of the workers' stores are added to those of `store`; progress goes to the terminal.

    Returns:
        The units that failed.

    Raises:
        RunFailed: workers were lost repeatedly.
        UsageError: the Dask scheduler cannot be reached.
    """
    errors: list[Failure] = []
    waiting, total = list(jobs), sum(len(job.units) for job in jobs)
    loss = ""
    # The bar appears in a terminal or a notebook only.
    off = False if "ipykernel" in type(sys.stderr).__module__ else None
    with tqdm(total=total, unit="unit", leave=False, mininterval=0.5, disable=off) as bar:
        for attempt in range(ATTEMPTS):
            if attempt:
                bar.write(f"{loss}: trying again, jobs left: {len(waiting)}", sys.stderr)
            try:
                with resources.executor() as executor:
                    for job, future in _submit_all(tuple(waiting), executor):
                        if (outcome := _outcome(job, future)) is None:
                            continue
                        waiting.remove(job)
                        store.reports += outcome.reports
                        errors += outcome.errors
                        bar.update(len(job.units))
            except UsageError as error:
                if attempt:
                    raise RunFailed(f"workers were lost, and then: {error}") from error
                raise
            if not waiting:
                return errors
            deaths = getattr(executor, "deaths", {})
            loss = "; ".join(f"a worker died of {how} in {unit}" for unit, how in deaths.items())
            loss = loss or "a worker was lost"
    why = f"workers were lost {ATTEMPTS} times (the last: {loss}; were they killed, or did memory "
    raise RunFailed(f"{why}run out?); what was finished is stored, run again")


def _submit_all(jobs: Sequence[Job], executor: Executor) -> Iterator[tuple[Job, Future[Outcome]]]:
    """Submit jobs, and yield each with its future as soon as that is done."""
    running: dict[Future[Outcome], Job] = {}
    for job in jobs:
        with contextlib.suppress(futures.BrokenExecutor):
            future = executor.submit(run_job, job)
            if future.done():
                yield job, future
            else:
                running[future] = job
    yield from ((running[future], future) for future in futures.as_completed(running))


def _outcome(job: Job, future: Future[Outcome]) -> Outcome | None:
    """Return the outcome of a job, or why it could not start; None if its worker was lost."""
    try:
        return future.result()
    except (futures.BrokenExecutor, futures.CancelledError):
        return None
    except Exception as error:  # noqa: BLE001 - reported to the caller, with its traceback
        return Outcome([], [failure(unit, error) for unit in job.units])
