import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor

import pytest
import torch
from distributed import Client

from suite.errors import RunFailed, UsageError
from suite.paths import ROOT
from suite.runs import Store, compute
from suite.runs.executors import Resources, cores
from suite.training.loop import train
from suite.units import Measurement

LONG = 20  # epochs: long enough to lose a worker before their end


def grid(small):
    trainings = [small(seed=seed) for seed in range(2)]
    settings = {"saliency": "logit_gradient", "n_images": 4}
    maps = [Measurement(training=t, metric="saliency_maps", settings=settings) for t in trainings]
    return [*trainings, *maps]


def results(store):
    records = {path.stem: store.read(path.stem) for path in store.folder.glob("??/*.json")}
    return {k: json.dumps([r.unit, r.status, r.values, r.tensors]) for k, r in records.items()}


def resumed(store):
    names = [path.stem for path in store.folder.glob("??/*.json")]
    return [store.read(name).provenance["resumed"] for name in names]


@pytest.fixture
def expected(store, here, small, tmp_path):
    reference = Store(tmp_path / "reference")
    compute(grid(small), store=reference, resources=here)
    return results(reference)


@contextlib.contextmanager
def when_checkpointed(store, count, act):
    """Act during the context, once `count` trainings have a checkpoint."""
    stop = threading.Event()

    def watch():
        while not stop.wait(0.002):
            if len(list(store.folder.glob("??/*.checkpoint"))) >= count:
                act()
                return True
        return False

    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(watch)
        try:
            yield
        finally:
            stop.set()
    assert acted.result(), "the trainings ended too soon"


def test_killed_worker_is_replaced(store, small, expected, here, tmp_path, capsys, monkeypatch):
    # Two processes get one thread each: with more, sums have other roundings.
    monkeypatch.setattr("suite.runs.executors.cores", lambda: 2)

    def kill_one():
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    slow = [small(seed=seed, epochs=LONG) for seed in range(2)]
    units, pool = [*slow, *grid(small)], Resources(device="cpu", jobs=2)
    with when_checkpointed(store, 1, kill_one):
        frame = compute(units, store=store, resources=pool, checkpoint_seconds=0)
    assert frame.status.tolist() == ["done"] * 6
    err = capsys.readouterr().err
    assert re.search(r"a worker died of SIGKILL in .*: trying again, jobs left: \d", err)
    assert results(store).items() >= expected.items()
    assert (store.reports, store.read(frame.key[0]).provenance["threads"]) == ([], 1)
    straight = Store(tmp_path / "straight")
    compute(slow[:1], store=straight, resources=here)
    assert results(straight).items() <= results(store).items()
    assert multiprocessing.active_children() == []


SCRIPT = """
import os, sys
from suite.runs import Resources, compute
from suite.training.penalties import PENALTIES
from suite.units import Training
def crash(batch):
    os.abort()

PENALTIES["crash"] = crash
fields = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "learning_rate": 1e-3, "seed": 0}
names = ("input_gradient", "crash")
units = [Training(**fields, n_train=128, penalties={name: {"strength": 0.1}}) for name in names]
"""
CALL = "compute(units, resources=Resources(device='cpu', jobs=2))"


class TestCrash:
    def run(self, folder, program):
        file = folder / "program.py"
        file.write_text(program)
        options = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "text": True}
        result = subprocess.run([sys.executable, file], capture_output=True, **options)
        assert result.returncode == 1
        return result.stderr

    def test_repeated_crash_ends_the_run(self, tmp_path):
        err = self.run(tmp_path, f"{SCRIPT}\nif __name__ == '__main__':\n    {CALL}\n")
        assert err.count("trying again") == 2
        last = err.splitlines()[-1]
        assert "a worker died of SIGABRT in training (data=mnist5k, network=lenet5" in last
        assert "'crash'" in last
        assert "what was finished is stored" in last

    def test_script_without_main_guard(self, tmp_path):
        err = self.run(tmp_path, f"{SCRIPT}\n{CALL}\n")
        assert "a worker died of exit code 1 in its start (does a script" in err.splitlines()[-1]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_bar_in_terminal_only(terminal, store, here, small, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    compute([small()], store=store, resources=here)
    assert ("0/1" in capsys.readouterr().err) is terminal


DASK_CLI = "import sys; from distributed.cli.{0} import main; sys.exit(main())"


class Cluster:
    """A Dask scheduler and its workers, each a process on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        contact = folder / "scheduler.json"
        options = "--host 127.0.0.1 --port 0 --no-dashboard --scheduler-file"
        self._open("dask_scheduler", *options.split(), str(contact))
        end = time.monotonic() + 60
        while not contact.exists() or not contact.read_text():
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)
        self.address = json.loads(contact.read_text())["address"]
        options = "--host 127.0.0.1 --nthreads 1 --no-nanny --no-dashboard --death-timeout 60"
        words = [self.address, *options.split(), "--local-directory", str(folder)]
        self.workers = [self._open("dask_worker", *words) for _ in range(2)]
        with Client(self.address) as client:
            client.wait_for_workers(2, timeout=90)

    def _open(self, program, *arguments):
        command = [sys.executable, "-c", DASK_CLI.format(program), *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.processes.append(process)
        return process

    def log(self):
        return (self.folder / "log").read_text()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path_factory):
    with contextlib.closing(Cluster(tmp_path_factory.mktemp("dask"))) as made:
        yield made


def test_dask_survives_a_lost_worker(cluster, store, small, expected):
    resources = Resources(device="cpu", dask=cluster.address)
    frame = compute(grid(small), store=store, resources=resources)
    assert (frame.status.tolist(), results(store)) == (["done"] * 4, expected)

    other = Store(store.folder.with_name("other"))
    slow = [small(seed=seed, epochs=LONG) for seed in range(3)]
    with when_checkpointed(other, 2, cluster.workers[0].kill):
        frame = compute(slow, store=other, resources=resources, checkpoint_seconds=0)
    assert frame.status.tolist() == ["done"] * 3
    assert any(resumed(other))
    assert cluster.workers[0].wait() == -signal.SIGKILL
    assert cluster.workers[1].poll() is None

    lost = Store(store.folder.with_name("lost"))
    with (
        when_checkpointed(lost, 1, cluster.processes[0].kill),
        pytest.raises(RunFailed, match=r"workers were lost, and then: Dask scheduler .* reached"),
    ):
        compute(slow, store=lost, resources=resources, checkpoint_seconds=0)


def test_scheduler_that_does_not_answer(store, small, capfd, caplog):
    """The address is invalid, or another server listens; for a closed port see `test_cli.py`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        other = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for address, seconds in (("nonsense://x", 5), (other, 15)):
            start, resources = time.monotonic(), Resources(device="cpu", dask=address)
            refused = rf"Dask scheduler {address}: cannot be reached \("
            with pytest.raises(UsageError, match=refused):
                compute([small()], store=store, resources=resources)
            assert time.monotonic() - start < seconds
    assert (list(store.folder.iterdir()), caplog.records) == ([], [])
    assert "Traceback" not in capfd.readouterr().err


class Losing(Executor):
    """Loses the worker of each job, or answers with an error of its own."""

    def __init__(self, error):
        self.error = error

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self.error is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.error)
        return future


WORKERS_LOST = r"workers were lost 3 times .*what was finished is stored"
UNIT_FAILED = r"units that failed: 1.*training .*No module named"


@pytest.mark.parametrize(
    ("error", "message", "tries"),
    [
        (BrokenExecutor("x"), WORKERS_LOST, 2),
        (CancelledError("x"), WORKERS_LOST, 2),
        (None, WORKERS_LOST, 2),
        (ModuleNotFoundError("No module named 'reglib'"), UNIT_FAILED, 0),
    ],
)
def test_lost_workers_end_the_run(error, message, tries, store, here, small, monkeypatch, capsys):
    monkeypatch.setattr(Resources, "executor", lambda self: contextlib.nullcontext(Losing(error)))
    with pytest.raises(RunFailed, match=message):
        compute([small()], store=store, resources=here)
    assert capsys.readouterr().err.count("trying again, jobs left: 1") == tries


def test_threads_take_turns(store, small, monkeypatch):
    """Threads share the random state: two at a time would draw from each other's seeds."""
    turn = threading.Lock()

    def train_alone(*arguments, **options):
        assert turn.acquire(blocking=False), "two trainings at a time"
        time.sleep(0.05)
        trained = train(*arguments, **options)
        turn.release()
        return trained

    monkeypatch.setattr("suite.runs.execute.train", train_alone)
    with ThreadPoolExecutor(4) as threads:
        monkeypatch.setattr(Resources, "executor", lambda self: contextlib.nullcontext(threads))
        units = [small(seed=seed) for seed in range(4)]
        compute(units, store=store, resources=Resources(device="cpu", jobs=4))


SLOW = "double_backward: expected fast, stock or captured, got 'slow'"


class TestResources:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"device": "gpu"}, "device: expected auto, cpu or cuda, got 'gpu'"),
            ({"jobs": 0}, "jobs: expected a positive number of processes, got 0"),
            ({"jobs": -2}, "jobs: expected a positive number of processes, got -2"),
            ({"double_backward": "slow"}, SLOW),
        ],
    )
    def test_refused(self, arguments, message):
        with pytest.raises(UsageError, match=f"^{message}$"):
            Resources(**arguments)

    def test_missing_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UsageError, match="finds no CUDA device; use --device cpu"):
            Resources(device="cuda")
        assert Resources(device="cuda", dask="tcp://elsewhere:8786").resolve_device() == "cuda"
        assert (Resources().resolve_device(), Resources().resolve_jobs()) == ("cpu", cores())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert (Resources().resolve_device(), Resources().resolve_jobs()) == ("cuda", 1)

    def test_from_environment(self, monkeypatch):
        assert Resources.from_environment() == Resources()
        values = {"device": "cpu", "jobs": 3, "dask": "tcp://a:1", "double_backward": "stock"}
        for name, value in values.items():
            monkeypatch.setenv(f"REGLIB_{name.upper()}", str(value))
        assert Resources.from_environment() == Resources(**values)
        for bad in ("two", "-1", "1.5"):
            monkeypatch.setenv("REGLIB_JOBS", bad)
            with pytest.raises(UsageError, match=f"^REGLIB_JOBS: expected a number .*'{bad}'$"):
                Resources.from_environment()
