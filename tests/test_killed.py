"""A run that is killed at any moment and started again gives what an undisturbed one gives."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

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
    fields = {"data": "mnist5k", "network": "lenet5", "epochs": 8, "learning_rate": 1e-3}
    fields |= {"n_train": 256, "penalties": {"input_gradient": {"strength": 0.1}}}
    trainings = [Training(**fields, seed=seed) for seed in range(3)]
    settings = {"saliency": "logit_gradient", "n_images": 4}
    maps = [Measurement(training=t, metric="saliency_maps", settings=settings) for t in trainings]
    resources = Resources(device="cpu", jobs=jobs)
    compute([*maps, *trainings], store=Store(folder), resources=resources, checkpoint_seconds=0)


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

    def __init__(self, process):
        self.process = process
        self.started = []

    def start(self, folder, jobs=1):
        self.started.append(self._ask(f"start {folder} {jobs}"))
        return self.started[-1]

    def wait(self, run):
        self.started.remove(run)
        return self._ask(f"wait {run}")

    def _ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "grid.py"
    script.write_text(SCRIPT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    pipes |= {"text": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as process:
        result = Runs(process)
        try:
            yield result
        finally:
            for run in result.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run, signal.SIGKILL)
            process.kill()


@pytest.fixture(scope="module")
def undisturbed(runs, tmp_path_factory):
    """Return the store of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert runs.wait(runs.start(folder)) == 0
    return folder


def results(folder):
    """Return all that is in a store, but when and where it was computed."""
    store = Store(folder)
    records = {path.stem: store.read(path.stem) for path in folder.glob("??/*.json")}
    assert store.reports == []
    return {k: json.dumps([r.unit, r.status, r.values, r.tensors]) for k, r in records.items()}


def records(folder):
    return {path.stem: path.stat().st_mtime_ns for path in folder.glob("??/*.json")}


def checkpoints(folder):
    return {path.stem.partition("-")[0] for path in folder.glob("??/*.checkpoint")}


def resumed(folder, name):
    return bool(Store(folder).read(name).provenance["resumed"])


def ended(run):
    return psutil.Process(run).status() == psutil.STATUS_ZOMBIE


def wait_until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


class TestKilled:
    @pytest.mark.parametrize("seed", range(2))
    def test_at_random_moments(self, seed, runs, undisturbed, tmp_path):
        draw, folder = random.Random(seed), tmp_path / "store"
        begun, stored, kills = set(), {}, 0
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
        assert (results(folder), len(results(folder))) == (results(undisturbed), UNITS)
        assert records(folder).items() >= stored.items(), "a stored unit was computed again"
        assert begun
        assert all(resumed(folder, name) for name in begun)
        assert not any(resumed(undisturbed, name) for name in begun)

    def test_workers_end_with_their_parent(self, runs, undisturbed, tmp_path):
        folder = tmp_path / "store"
        run = runs.start(folder, jobs=2)
        wait_until(lambda: checkpoints(folder))
        workers = psutil.Process(run).children(recursive=True)
        assert len(workers) >= 2
        os.kill(run, signal.SIGKILL)
        assert runs.wait(run) == -signal.SIGKILL
        again = runs.start(folder)  # for a moment the orphans work beside it
        _, alive = psutil.wait_procs(workers, timeout=15)
        assert alive == [], "workers outlive their parent"
        assert (runs.wait(again), results(folder)) == (0, results(undisturbed))


def test_two_runs_share_a_store(runs, undisturbed, tmp_path):
    folder = tmp_path / "store"
    both = [runs.start(folder), runs.start(folder)]
    assert ([runs.wait(run) for run in both], results(folder)) == ([0, 0], results(undisturbed))
    assert not (folder / "set_aside").exists()
    assert [path for path in folder.rglob(".writing-*") if path.is_file()] == []
