"""A run that is killed at any write and started again gives the results of an undisturbed run."""

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
# A run, or its workers, stops at a write: killed after half of the file, before it gets its name,
# or after that; or it pauses there.
SCRIPT = """
import itertools
import os
import signal
import sys

import torch

torch.set_num_threads(1)

from suite.data import load_data
from suite.runs import Store, compute
from suite.runs.executors import Resources
from suite.units import Measurement, Training

writes, rename = itertools.count(1), os.replace


def rename_or_stop(source, target):
    moment, number = os.environ.get("STOP", "never:0").split(":")
    stop = next(writes) == int(number)
    if stop and moment == "half":
        os.truncate(source, os.path.getsize(source) // 2)
    if not stop or moment == "after":
        rename(source, target)
    if stop and moment == "pause":
        signal.pause()
    elif stop:
        os.kill(os.getpid(), signal.SIGKILL)


def run(folder, jobs):
    fields = {"data": "mnist5k", "network": "lenet5", "epochs": 4, "learning_rate": 1e-3}
    fields |= {"n_train": 256, "penalties": {"input_gradient": {"strength": 0.1}}}
    trainings = [Training(**fields, seed=seed) for seed in range(3)]
    settings = {"saliency": "logit_gradient", "n_images": 4}
    maps = [Measurement(training=t, metric="saliency_maps", settings=settings) for t in trainings]
    resources = Resources(device="cpu", jobs=jobs)
    compute([*maps, *trainings], store=Store(folder), resources=resources, checkpoint_seconds=0)


os.replace = rename_or_stop  # in workers, too, which import this file
if __name__ == "__main__":
    load_data("mnist5k")
    for line in sys.stdin:
        order, *arguments = line.split()
        if order == "start":
            child = os.fork()
            if child == 0:
                os.environ["STOP"] = arguments[2]
                run(arguments[0], int(arguments[1]))
                os._exit(0)
            print(child, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(int(arguments[0]), 0)[1]), flush=True)
"""
UNITS = 6


class Runs:
    def __init__(self, process):
        self.process = process
        self.started = []

    def start(self, folder, jobs=1, stop="never:0"):
        self.started.append(self._ask(f"start {folder} {jobs} {stop}"))
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
                    os.kill(run, signal.SIGKILL)
            process.kill()


@pytest.fixture(scope="module")
def undisturbed(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert runs.wait(runs.start(folder)) == 0
    assert len(results(folder)) == UNITS
    assert not any(resumed(folder, name) for name in records(folder))
    return results(folder)


def results(folder):
    store = Store(folder)
    stored = {path.stem: store.read(path.stem) for path in folder.glob("??/*.json")}
    assert store.reports == []
    return {k: json.dumps([r.unit, r.status, r.values, r.tensors]) for k, r in stored.items()}


def records(folder):
    return {path.stem: path.stat().st_mtime_ns for path in folder.glob("??/*.json")}


def checkpoints(folder):
    return {path.stem.partition("-")[0] for path in folder.glob("??/*.checkpoint")}


def resumed(folder, name):
    return Store(folder).read(name).provenance.get("resumed", False)


@pytest.mark.parametrize("moment", ["half", "before", "after"])
def test_killed_run_goes_on(moment, runs, undisturbed, tmp_path):
    draw, folder = random.Random(moment), tmp_path / "store"
    begun, stored, kills, code = set(), {}, -1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        code, kills = runs.wait(runs.start(folder, 1, f"{moment}:{draw.randint(1, 7)}")), kills + 1
        assert records(folder).items() >= stored.items(), "a stored unit was computed again"
        stored = records(folder)
        begun |= checkpoints(folder) - stored.keys()
    assert (code, results(folder)) == (0, undisturbed)
    assert kills > 2
    assert begun
    assert all(resumed(folder, name) for name in begun)


def test_workers_end_with_their_parent(runs, undisturbed, tmp_path):
    folder = tmp_path / "store"
    run = runs.start(folder, 2, "pause:2")
    end = time.monotonic() + 600
    while len(checkpoints(folder)) < 2:
        assert time.monotonic() < end, "the workers do not write"
        time.sleep(0.05)
    workers = psutil.Process(run).children(recursive=True)
    assert len(workers) >= 2
    os.kill(run, signal.SIGKILL)
    assert runs.wait(run) == -signal.SIGKILL
    _, alive = psutil.wait_procs(workers, timeout=300)
    assert alive == [], "workers outlive their parent"
    assert (runs.wait(runs.start(folder)), results(folder)) == (0, undisturbed)


def test_two_runs_share_a_store(runs, undisturbed, tmp_path):
    folder = tmp_path / "store"
    both = [runs.start(folder), runs.start(folder)]
    assert ([runs.wait(run) for run in both], results(folder)) == ([0, 0], undisturbed)
    assert not (folder / "set_aside").exists()
    assert [path for path in folder.rglob(".writing-*") if path.is_file()] == []
