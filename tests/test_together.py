"""Two processes that `torchrun` starts train what a chapter lacks."""

import os
import subprocess
import sys

import pytest
import torch

from reglib import notebooks
from reglib.data import load_data
from reglib.errors import RunFailed, UsageError
from reglib.runs import Store, together
from reglib.runs.compute import keys_of
from reglib.training import train
from reglib.units import Measurement, Training

PANEL = {
    "data": "digits-centred", "network": "resnet", "epochs": 2, "n_train": 60, "crop_padding": 4,
    "network_options": {"blocks": [1], "width": 2, "stem": "strided"}, "models": ["target 10"],
}  # fmt: skip
CHANGES = {"panels": [PANEL], "batch_size": 30, "interval": 1, "learning_rate": 0.001}


def torchrun(store, count=2, **changes):
    """Call `reglib train` in processes; return the exit code, output and errors."""
    pairs = [word for name, v in {**CHANGES, **changes}.items() for word in ("-p", name, repr(v))]
    command = ["-c", "from reglib.cli import main; main()", "train", "pilcro"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(count), "--no-python", sys.executable, *command, "--profile", "smoke", "--device",
         "cpu", *pairs],
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"REGLIB_STORE": str(store)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_torchrun_trains_what_is_missing_as_one_process_does_and_one_of_two_writes(tmp_path):
    code, output, errors = torchrun(tmp_path)
    assert code == 0, errors
    assert output.count("networks trained: 1, by 2 processes") == 1
    units = notebooks.units_of("pilcro", notebooks.resolve("pilcro", "smoke", CHANGES))
    (unit,) = [unit for unit in units if isinstance(unit, Training)]
    store = Store(tmp_path)
    assert not store.reports
    record, weights = store.read(keys_of([unit])[0]), store.read_tensors(keys_of([unit])[0])
    expected = train(unit, load_data(unit.data), device=torch.device("cpu"))
    assert record.status == "done"
    assert record.values["losses"] == pytest.approx(expected.losses, rel=1e-4)
    for name, weight in expected.network.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-2, atol=1e-3)
    code, output, errors = torchrun(tmp_path)
    assert code == 0, errors
    assert "networks trained: 0, by 2 processes" in output


def test_batches_that_are_too_small_for_the_processes_are_refused(tmp_path):
    code, _, errors = torchrun(tmp_path, batch_size=59)
    assert code != 0
    assert "expected batches of at least 2 images, one for each process" in errors
    assert not list(tmp_path.glob("??/*"))


def test_without_torchrun_one_process_trains(tmp_path):
    unit = Training(
        data="mnist5k", network="lenet5", n_train=20, epochs=1, learning_rate=1e-3, seed=0
    )
    store = Store(tmp_path)
    both = [unit, Measurement(training=unit, metric="accuracy")]
    with together.processes("cpu"):
        assert together.train_missing(both, store, device="cpu") == 1
        assert together.train_missing(both, store, device="cpu") == 0
    assert store.read(keys_of([unit])[0]).status == "done"
    assert store.read(keys_of([both[1]])[0]) is None


def test_an_unknown_name_is_refused_before_anything_is_trained(tmp_path):
    units = [
        Training(data="mnist5k", network=name, n_train=20, epochs=1, learning_rate=1e-3, seed=0)
        for name in ("lenet5", "lenet6")
    ]
    with pytest.raises(UsageError, match="unknown network 'lenet6'"):
        together.train_missing(units, Store(tmp_path), device="cpu")
    assert not list(tmp_path.glob("??/*"))


def test_a_training_that_fails_is_named(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError("no room")

    monkeypatch.setattr("reglib.runs.execute.train", fail)
    unit = Training(
        data="mnist5k", network="lenet5", n_train=20, epochs=1, learning_rate=1e-3, seed=0
    )
    with pytest.raises(RunFailed, match=r"training \(data=mnist5k.*MemoryError: no room"):
        together.train_missing([unit], Store(tmp_path), device="cpu")
