"""A run that is killed at any moment and started again gives what an undisturbed one gives."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from suite.runs import Store

# One process imports once and forks a run at each "start"; "wait" gives the exit code of a run.
SCRIPT = """
import os
import sys

import torch

torch.set_num_threads(1)

from suite.data import load_data
from suite.runs import Store, compute
from suite.runs.executors import Resources
from suite.units import Measurement, Training


def run(folder, jobs):
    trainings = [
        Training(
            data="mnist5k", network="lenet5", epochs=8, learning_rate=1e-3, seed=seed, n_train=256,
            penalties={"input_gradient": {"strength": 0.1}},
        )
        for seed in range(3)
    ]
    settings = {"saliency": "logit_gradient", "n_images": 4}
    maps = [Measurement(training=t, metric="saliency_maps", settings=settings) for t in trainings]
    compute(
        [*maps, *trainings],
        store=Store(folder),
        resources=Resources(device="cpu", jobs=jobs),
        checkpoint_seconds=0,
    )


if __name__ == "__main__":
    load_data("mnist5k")
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "start":
            child = os.fork()
            if child == 0:
                run(arguments[0], int(arguments[1]))
                os._exit(0)
            os.setpgid(child, child)  # here, so that its group is there as soon as it is known
            print(child, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(int(arguments[0]), 0)[1]), flush=True)
"""
UNITS = 6


class Runs:
    """Starts runs, kills them and waits for them."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.started: list[int] = []

    def start(self, folder: Path, jobs: int = 1) -> int:
        self.started.append(self._ask(f"start {folder} {jobs}"))
        return self.started[-1]

    def wait(self, run: int) -> int:
        self.started.remove(run)
        return self._ask(f"wait {run}")

    def _ask(self, order: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    script = tmp_path_factory.mktemp("script") / "grid.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        result = Runs(process)
        try:
            yield result
        finally:
            for run in result.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run, signal.SIGKILL)
            process.kill()


@pytest.fixture(scope="module")
def undisturbed(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert runs.wait(runs.start(folder)) == 0
    return folder


def results(folder: Path) -> dict[str, str]:
    """Return all that is in a store, but when and where it was computed."""
    store = Store(folder)
    found = {}
    for path in folder.glob("??/*.json"):
        record = store.read(path.stem)
        assert record is not None
        found[path.stem] = json.dumps([record.unit, record.status, record.values, record.tensors])
    assert store.reports == []
    return found


def records(folder: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_mtime_ns for path in folder.glob("??/*.json")}


def checkpoints(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("??/*.checkpoint")}


def resumed(folder: Path, name: str) -> bool:
    record = Store(folder).read(name)
    assert record is not None
    return bool(record.provenance["resumed"])


def ended(run: int) -> bool:
    return psutil.Process(run).status() == psutil.STATUS_ZOMBIE


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments(seed: int, runs: Runs, undisturbed: Path, tmp_path: Path) -> None:
    draw = random.Random(seed)
    folder = tmp_path / "store"
    begun: set[str] = set()
    stored: dict[str, int] = {}
    kills = 0
    while kills < 10:
        run = runs.start(folder)
        if kills % 2:  # every other one in the middle of a training that was checkpointed
            wait_until(lambda run=run: checkpoints(folder) or ended(run))
        time.sleep(draw.uniform(0, 0.2))
        os.killpg(run, signal.SIGKILL)
        if runs.wait(run) == 0:
            break
        kills += 1
        now = records(folder)
        assert now.items() >= stored.items(), "a stored unit was computed again"
        stored = now
        begun |= checkpoints(folder) - stored.keys()
    assert runs.wait(runs.start(folder)) == 0

    assert kills >= 2
    assert results(folder) == results(undisturbed)
    assert len(results(folder)) == UNITS
    assert records(folder).items() >= stored.items(), "a stored unit was computed again"
    assert begun
    assert all(resumed(folder, name) for name in begun)
    assert not any(resumed(undisturbed, name) for name in begun)


def test_workers_end_when_their_parent_is_killed(
    runs: Runs, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    run = runs.start(folder, jobs=2)
    wait_until(lambda: checkpoints(folder))
    workers = psutil.Process(run).children(recursive=True)
    assert len(workers) >= 2
    os.kill(run, signal.SIGKILL)
    assert runs.wait(run) == -signal.SIGKILL
    again = runs.start(folder)  # for a moment the orphans work beside it
    _, alive = psutil.wait_procs(workers, timeout=3)
    assert alive == [], "workers outlive their parent"
    assert runs.wait(again) == 0
    assert results(folder) == results(undisturbed)


def test_two_runs_share_a_store(runs: Runs, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    both = [runs.start(folder), runs.start(folder)]
    assert [runs.wait(run) for run in both] == [0, 0]
    assert results(folder) == results(undisturbed)
    assert not (folder / "set_aside").exists()
    assert [path for path in folder.rglob(".writing-*") if path.is_file()] == []
