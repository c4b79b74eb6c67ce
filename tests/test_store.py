import errno
import json
import math
import os
import random
import re
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

import reglib
from suite.errors import RunFailed, UsageError
from suite.runs import Store, compute
from suite.runs.executors import Resources
from suite.store import Record
from suite.units import Measurement, Training

KEY = "ab" + "0" * 30
UNIT = Training(data="d", network="n", epochs=1, learning_rate=0.1, seed=0).identity
VALUES = {"mean": 0.1 + 0.2, "per_image": [1e-17, math.nan, math.inf, -math.inf, 3.0]}
RECORD = Record(UNIT, "done", VALUES, {"seconds": 1.5})
TENSORS = {
    "maps": torch.linspace(0, 1, 6).view(1, 2, 3),
    "labels": torch.tensor([3]),
    "turned": torch.arange(6.0).view(2, 3).T,
    "not_finite": torch.tensor([math.nan, math.inf]),
}


def flip(path, position, bit=0):
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1 << bit
    path.write_bytes(contents)


def file_of(store, ending):
    return store.folder / KEY[:2] / f"{KEY}.{ending}"


def read_only(*arguments, **options):
    raise OSError(errno.EROFS, "Read-only file system")


class TestFolder:
    def test_file_in_its_place(self, tmp_path):
        (tmp_path / "file").write_text("")
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(UsageError, match=f"{place}: expected a folder.*REGLIB_STORE"):
                Store(place)

    def test_read_only(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.TemporaryFile", read_only)
        with pytest.raises(UsageError, match="can be written, got: Read-only file system"):
            Store(tmp_path)


class TestDamage:
    @pytest.mark.parametrize("ending", ["json", "safetensors", "checkpoint"])
    def test_flipped_bit(self, store, ending, monkeypatch):
        monkeypatch.setattr("suite.store.local.MOMENT", 0.0)
        store.write(KEY, RECORD, TENSORS)
        store.write_checkpoint(KEY, TENSORS)
        path, record = file_of(store, ending), file_of(store, "json")
        sound, sound_record = path.read_bytes(), record.read_bytes()
        read = store.read_checkpoint if ending == "checkpoint" else store.read
        flips = [(n, bit) for n in range(len(sound)) for bit in {0, 5, 7, n % 8}]
        for position, bit in flips:
            path.write_bytes(sound)
            record.write_bytes(sound_record)
            flip(path, position, bit)
            assert read(KEY) is None, sound[:position]
            assert not path.exists()
            assert record.exists() == (ending == "checkpoint")
        if ending == "json":
            assert len(store.reports) == len(flips)

    @pytest.mark.parametrize("ending", ["json", "safetensors", "checkpoint"])
    @pytest.mark.parametrize("length", [0, 1, 70])
    def test_file_cut_short(self, store, ending, length):
        store.write(KEY, RECORD, TENSORS)
        store.write_checkpoint(KEY, TENSORS)
        path = file_of(store, ending)
        path.write_bytes(path.read_bytes()[:length])
        read = store.read_checkpoint if ending == "checkpoint" else store.read_tensors
        assert read(KEY) is None
        aside = store.folder / "set_aside" / path.name
        assert aside.stat().st_size == length
        report = f"{path.name} does not agree with its checksum: moved to {aside}, to be computed"
        assert store.reports[0] == f"{report} anew"
        assert read(KEY) is None

    def test_missing_tensors(self, store):
        store.write(KEY, RECORD, TENSORS)
        file_of(store, "safetensors").unlink()
        assert store.read(KEY) is None
        assert "belongs to a file that is missing or damaged" in store.reports[0]

    @pytest.mark.parametrize("contents", b'null [] {} 3 {"checksum":"x"} \xff'.split())
    def test_json_without_record(self, store, contents):
        store.write(KEY, RECORD)
        file_of(store, "json").write_bytes(contents)
        assert store.read(KEY) is None
        assert len(store.reports) == 1

    def test_unreadable_record(self, store, monkeypatch):
        store.write(KEY, RECORD)
        monkeypatch.setattr(Path, "read_bytes", read_only)
        assert store.read(KEY) is None
        assert len(store.reports) == 1

    def test_record_under_replacement_is_sound(self, store, monkeypatch):
        """One process reads between the two renames of another that stores other bits."""
        store.write(KEY, RECORD, {"x": torch.zeros(2)})
        first = file_of(store, "json").read_bytes()
        store.write(KEY, RECORD, {"x": torch.ones(2)})
        second = file_of(store, "json").read_bytes()
        file_of(store, "json").write_bytes(first)
        monkeypatch.setattr(time, "sleep", lambda _: file_of(store, "json").write_bytes(second))
        assert (store.read_tensors(KEY)["x"].tolist(), store.reports) == ([1.0, 1.0], [])

    def test_damage_that_cannot_be_moved(self, store, monkeypatch):
        store.write(KEY, RECORD)
        flip(file_of(store, "json"), 5)
        monkeypatch.setattr(os, "replace", read_only)
        with pytest.raises(RunFailed, match=rf"{KEY}\.json does not agree .* cannot be moved"):
            store.read(KEY)


class TestReadAndWrite:
    def test_record_with_and_without_tensors(self, store):
        assert store.read(KEY) is None
        store.write(KEY, RECORD)
        per_image = {"per_image": [1e-17, None, None, None, 3.0]}
        expected = Record(UNIT, "done", VALUES | per_image, {"seconds": 1.5})
        assert Store(store.folder).read(KEY) == expected
        assert store.read_tensors(KEY) is None
        assert store.reports == []
        store.write(KEY, RECORD, TENSORS)
        back = store.read_tensors(KEY)
        assert back.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert back[name].dtype == tensor.dtype
            torch.testing.assert_close(back[name], tensor, rtol=0, atol=0, equal_nan=True)

    def test_checkpoint(self, store):
        assert store.read_checkpoint(KEY) is None
        store.write_checkpoint(KEY, {"losses": torch.tensor([2.0, 1.0])})
        assert store.read_checkpoint(KEY)["losses"].tolist() == [2.0, 1.0]
        store.drop_checkpoint(KEY)
        assert store.read_checkpoint(KEY) is None
        store.drop_checkpoint(KEY)

    def test_second_write_replaces_the_first(self, store):
        store.write(KEY, RECORD, {"x": torch.zeros(2)})
        store.write(KEY, Record(UNIT, "diverged", {}, {}))
        assert store.read(KEY) == Record(UNIT, "diverged", {}, {})
        assert store.read_tensors(KEY) is None
        store.write(KEY, RECORD, {"x": torch.ones(2)})
        assert (store.read_tensors(KEY)["x"].tolist(), store.reports) == ([1.0, 1.0], [])

    def test_unfinished_files_are_cleaned(self, store):
        store.write(KEY, RECORD)
        young, old = (file_of(store, "json").with_name(f".writing-{name}") for name in ("a", "b"))
        for path in (young, old):
            path.write_bytes(b'{"half":')
        os.utime(old, (0, 0))
        assert store.read(KEY) == Store(store.folder).read(KEY) is not None
        store.clean()
        assert young.exists()
        assert not old.exists()
        assert store.read(KEY) is not None

    def test_old_checkpoints_are_cleaned(self, store):
        other = "cd" + KEY[2:]
        store.write(KEY, RECORD)
        store.write_checkpoint(KEY, TENSORS)
        store.write_checkpoint(other, TENSORS)
        store.clean()
        assert store.read_checkpoint(KEY) is None
        assert store.read_checkpoint(other) is not None

    @pytest.mark.parametrize("failing", [(os, "replace"), (Path, "write_bytes")])
    def test_failing_write_keeps_old_record(self, store, failing, monkeypatch):
        store.write(KEY, RECORD, TENSORS)
        with monkeypatch.context() as patch:
            patch.setattr(*failing, read_only)
            with pytest.raises(RunFailed, match=r"cannot be written \(Read-only file system\)"):
                store.write(KEY, Record(UNIT, "diverged", {}, {}))
        assert store.read(KEY).status == "done"
        left = sorted(path.suffix for path in (store.folder / KEY[:2]).iterdir())
        assert left == [".json", ".safetensors"]

    def test_nothing_is_unpickled(self):
        forbidden = re.compile(
            r"(?<!safetensors\.)torch\.load(?!\(.*weights_only=True)|\bpickle\b|allow_pickle(?!=False)|read_pickle|joblib|\bdill\b|shelve"
        )
        sources = sorted(Path(reglib.__file__).parent.rglob("*.py"))
        assert len(sources) > 10
        for path in sources:
            assert not forbidden.search(path.read_text()), path


FIELDS = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "learning_rate": 1e-3, "seed": 0}
TRAINED = Training(**FIELDS, n_train=128, batch_size=64)
SETTINGS = {"saliency": "logit_gradient", "n_images": 4}
UNITS = [TRAINED, Measurement(training=TRAINED, metric="saliency_maps", settings=SETTINGS)]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    return folder, run(UNITS, Store(folder))


class TestCompute:
    @pytest.mark.parametrize("ending", ["json", "safetensors"])
    @pytest.mark.parametrize("which", [0, 1], ids=["training", "measurement"])
    def test_repairs_a_flipped_bit(self, done, ending, which, tmp_path, capsys):
        store, name = Store(shutil.copytree(done[0], tmp_path / "store")), done[1].key[which]
        path = store.folder / name[:2] / f"{name}.{ending}"
        draw = random.Random(f"{ending}{which}")
        flip(path, draw.randrange(path.stat().st_size), draw.randrange(8))
        frame = run(UNITS, store)
        pd.testing.assert_frame_equal(*(f.drop(columns="seconds") for f in (frame, done[1])))
        assert values(store, frame) == values(Store(done[0]), frame)
        tensors = f"{name[:2]}/{name}.safetensors"
        assert (store.folder / tensors).read_bytes() == (done[0] / tensors).read_bytes()
        assert capsys.readouterr().out.count(f"{path.name} does not agree with its checksum") == 1
        assert (store.folder / "set_aside" / path.name).exists()
        assert list(store.folder.rglob("*.checkpoint")) == []
        run(UNITS, store)
        assert capsys.readouterr().out == "", "it is reported once"

    def test_damaged_checkpoint_restarts_training(self, done, store, capsys):
        name = done[1].key[0]
        store.write_checkpoint(name, TENSORS)
        path = store.folder / name[:2] / f"{name}.checkpoint"
        flip(path, 99)
        frame = run(UNITS, store)
        assert values(store, frame) == values(Store(done[0]), frame)
        assert f"{path.name} does not agree with its checksum" in capsys.readouterr().out
        assert store.read(name).provenance["resumed"] is False

    def test_full_disk(self, store, here, small, monkeypatch):
        units = [small(seed=seed) for seed in range(3)]
        written = []

        def until_full(self, contents):
            written.append(self)
            full = len(written) > 3  # the first training is stored, the second has its weights
            with open(self, "wb") as file:
                file.write(contents[:10] if full else contents)
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", until_full)
            with pytest.raises(RunFailed) as caught:
                compute(units, store=store, resources=here)
        message = str(caught.value)
        assert "units that failed: 2; all others are stored" in message
        for part in ("seed=1", "cannot be written (No space left on device)", "make room"):
            assert part in message
        assert len(list(store.folder.glob("??/*.json"))) == 1
        assert list(store.folder.glob("??/.writing-*")) == []
        assert compute(units, store=store, resources=here).status.tolist() == ["done"] * 3
        assert store.reports == []


def run(units, store):
    return compute(units, store=store, resources=Resources(device="cpu", jobs=1))


def values(store, frame):
    """Return the stored results as text, except when and where they were computed."""
    records = [store.read(name) for name in frame.key]
    return [json.dumps([record.values, record.status, record.tensors]) for record in records]
