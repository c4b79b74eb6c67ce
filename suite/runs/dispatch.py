"""Handing jobs to an executor, watching them, and trying again what lost its worker."""

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed

from tqdm import tqdm

from suite.errors import RunFailed, UsageError
from suite.runs.execute import Job, Outcome, describe, run_job
from suite.runs.executors import Resources
from suite.store import Store
from suite.units import from_identity

ATTEMPTS = 3

Failure = tuple[str, str, str]  # unit, message, traceback


def run_jobs(jobs: Sequence[Job], resources: Resources, store: Store) -> list[Failure]:
    """Run jobs; those whose worker was lost are tried again with new workers.

    Reports of the workers' stores are added to those of `store`.

    Returns:
        What failed.

    Raises:
        RunFailed: workers were lost again and again.
        UsageError: the Dask scheduler cannot be reached.
    """
    with _Progress(sum(len(job.units) for job in jobs)) as progress:
        return _run(jobs, resources, store, progress)


def _run(
    jobs: Sequence[Job], resources: Resources, store: Store, progress: "_Progress"
) -> list[Failure]:
    errors: list[Failure] = []
    for attempt in range(ATTEMPTS):
        if attempt:
            print(f"a worker was lost: trying again, jobs left: {len(jobs)}", file=sys.stderr)
        lost = []
        try:
            with resources.executor() as executor:
                for job, future in _settled(jobs, executor):
                    if future is None or _lost(future):
                        lost.append(job)
                        continue
                    outcome = _outcome(job, future)
                    store.reports += outcome.reports
                    errors += outcome.errors
                    progress.add(len(job.units))
        except UsageError as error:
            if attempt:
                raise RunFailed(f"workers were lost, and then: {error}") from error
            raise
        if not lost:
            return errors
        jobs = lost
    raise RunFailed(
        f"workers were lost {ATTEMPTS} times (were they killed, did memory run out, or does a "
        "script lack 'if __name__ == \"__main__\":'?); what was finished is stored, run again"
    )


def _settled(
    jobs: Iterable[Job], executor: Executor
) -> Iterator[tuple[Job, Future[Outcome] | None]]:
    """Submit jobs and yield each as soon as it has ended; None where it found no workers."""
    waiting: dict[Future[Outcome], Job] = {}
    for job in jobs:
        try:
            future = executor.submit(run_job, job)
        except BrokenExecutor:
            yield job, None
            continue
        if future.done():
            yield job, future
        else:
            waiting[future] = job
    for future in as_completed(waiting):
        yield waiting[future], future


def _lost(future: Future[Outcome]) -> bool:
    return future.cancelled() or isinstance(future.exception(), BrokenExecutor | CancelledError)


def _outcome(job: Job, future: Future[Outcome]) -> Outcome:
    """Return what a worker said, or why it could not even start."""
    error = future.exception()
    if error is None:
        return future.result()
    trace = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"
    return Outcome(
        errors=[(describe(from_identity(values)), message, trace) for values in job.units]
    )


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
