from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from suite.errors import UsageError
from suite.papers.design import Item, Plan
from suite.runs import Store, compute
from suite.runs.code import changes, git
from suite.runs.keep import keep, provenance_of
from suite.store import Kept, Record, archive_path, read_archive
from suite.store.kept import without_images
from suite.units import Measurement
from tests.test_kept import ABOUT

CHAPTER = "gradient_regularisation"
PARAMETERS = {"profile": "laptop", "seeds": [0, 1]}
MAPS = {"saliency": "logit_gradient", "n_images": 2}
LABELS = {"place": "plateau", "changed": "pixels", "alpha": 1.0, "saliency": None, "score": None}
LABELS |= dict.fromkeys(("over_regularised", "beyond_t_alpha", "normalised"), False)
PAPER = SimpleNamespace()


def plan_of(units, each=False):
    items = [Item(unit, LABELS, keep="map" * isinstance(unit, Measurement)) for unit in units]
    return Plan([*items, *(Item(unit, LABELS, per_image=True) for unit in units[2:] if each)])


@pytest.fixture
def units(small):
    maps = Measurement(training=small(), metric="saliency_maps", settings=MAPS)
    return [small(), small(seed=1), maps]


@pytest.fixture
def clean(monkeypatch):
    monkeypatch.setattr("suite.runs.execute.commit", lambda: "abc123")
    monkeypatch.setattr("suite.runs.keep.changes", list)
    monkeypatch.setattr("suite.runs.keep.git", lambda *command: command[-1] + "0" * 34)


@pytest.fixture
def kept_run(tmp_path, units):
    def call(*stores, each=False, paper=PAPER, folder=tmp_path / "kept"):
        return keep(CHAPTER, PARAMETERS, plan_of(units, each), paper, stores=stores, folder=folder)

    return call


@pytest.mark.usefixtures("clean")
class TestKeep:
    def test_values_of_single_images(self, kept_run, units, store, here, tmp_path):
        compute(units, store=store, resources=here)
        for reads in (True, False):
            archive = read_archive(kept_run(store, each=reads, folder=tmp_path / str(reads)))
            values = [r.values for r in archive.records.values() if "mean" in r.values]
            assert values
            assert all(("per_image" in each) == reads for each in values)

    def test_finished_run_is_kept(self, kept_run, units, store, here, tmp_path):
        table, path = compute(units, store=store, resources=here), kept_run(store)
        archive = read_archive(path)
        assert path == archive_path(CHAPTER, "laptop", tmp_path / "kept")
        kept, computed = archive.records, store.read_all(table["key"])
        assert kept == {k: replace(r, values=without_images(r.values)) for k, r in computed.items()}
        assert archive.provenance["commit"] == ["abc123"]
        assert archive.provenance["parameters"] == PARAMETERS
        assert archive.provenance["fingerprints"].keys() == {"mnist5k"}
        # Weights, which no figure needs, are left out.
        measured = table["key"].iloc[-1]
        assert {name.partition("/")[0] for name in archive.tensors} == {measured}
        maps = torch.from_numpy(archive.arrays["map|maps"])
        assert torch.equal(maps, archive.tensors[f"{measured}/maps"])
        assert path.with_suffix(".verdicts.csv").exists()
        empty, kept = Store(tmp_path / "e"), Kept(tmp_path / "kept")
        pd.testing.assert_frame_equal(compute(units, store=empty, kept=kept, resources=here), table)

    def test_tensors_are_shrunk(self, kept_run, units, store, here):
        compute(units, store=store, resources=here)
        first = SimpleNamespace(shrink=lambda _, tensors: {n: t[:1] for n, t in tensors.items()})
        tensors = read_archive(kept_run(store, paper=first)).tensors
        assert {len(tensor) for tensor in tensors.values()} == {1}

    def test_unfinished_run_is_refused(self, kept_run, units, store, here):
        compute(units[:2], store=store, resources=here)
        expected = "1 of 3 units are not computed: run 'python -m suite run"
        with pytest.raises(UsageError, match=expected):
            kept_run(store)

    def test_merges_parts_of_several_stores(self, kept_run, units, store, here, tmp_path):
        other = Store(tmp_path / "other")
        compute(units[:1], store=store, resources=here)
        compute(units[1:], store=other, resources=here)
        assert len(read_archive(kept_run(store, other)).records) == 3
        # What is kept already need not be in a store.
        assert len(read_archive(kept_run(Store(tmp_path / "third"))).records) == 3

    def test_other_code_is_refused(self, kept_run, units, store, here, monkeypatch):
        compute(units, store=store, resources=here)
        monkeypatch.setattr("suite.runs.keep.changes", lambda: [" M reglib/autodiff.py"])
        with pytest.raises(UsageError, match=r"has changes \(M reglib/autodiff\.py\): commit them"):
            kept_run(store)
        monkeypatch.setattr("suite.runs.keep.changes", list)
        monkeypatch.setattr("suite.runs.keep.git", lambda *command: "")
        with pytest.raises(UsageError, match=r"abc123, which is not in the history .* --unshallow"):
            kept_run(store)

    @pytest.mark.parametrize("commit", ["abc123+changes", "unknown"])
    def test_no_commit_is_refused(self, kept_run, units, store, here, monkeypatch, commit):
        monkeypatch.setattr("suite.runs.execute.commit", lambda: commit)
        compute(units, store=store, resources=here)
        with pytest.raises(UsageError, match=r"computed by uncommitted code .* see 'git status'"):
            kept_run(store)

    def test_disagreement_is_named(self, kept_run, units, store, here, tmp_path):
        compute(units, store=store, resources=here)
        path = kept_run(store)
        archive = read_archive(path)
        key = next(k for k, r in archive.records.items() if "metric" not in r.unit)
        nothing = {"provenance": {}, "tensors": None}
        wrong = replace(archive.records[key], status="diverged", values={}, **nothing)
        other = archive_path("pilcro", "workstation", tmp_path / "kept")
        path.unlink()
        wrong = {"records": {key: wrong}, "tensors": {}, "arrays": {}, "provenance": {}}
        replace(archive, **wrong).write(other)
        with pytest.raises(UsageError, match=r"pilcro\.zip and .*regularisation\.zip disagree"):
            kept_run(store)


def test_changes_of_tracked_files(tmp_path, monkeypatch):
    monkeypatch.setattr("suite.runs.code.ROOT", tmp_path)
    assert changes() == []  # no repository
    git("init", "--quiet")
    for name in ("code.py", "results/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    assert changes() == []
    for name in ("code.py", "results/a.csv", "new.py"):
        (tmp_path / name).write_text("2")
    assert changes() == ["M code.py"]


def record(seconds, ended, metric=None, **changes):
    unit = {"unit": "measurement", "metric": metric} if metric else {"unit": "training"}
    return Record(unit, "done", {}, ABOUT | changes | {"seconds": seconds, "ended": ended})


def test_provenance_counts_units_once(store):
    store.write("a" * 32, record(4.0, "2026-01-01T00:00:00Z"))
    store.write("b" * 32, record(6.0, "2026-01-03T00:00:00Z", peak_bytes=30, commit="def"))
    store.write("c" * 32, record(1.0, "2026-01-02T00:00:00Z", metric="entropy"))
    keys = ["a" * 32, "b" * 32, "c" * 32, "a" * 32, "d" * 32]
    parameters = {"profile": "smoke", "seeds": [0]}
    summary = provenance_of("chapter", parameters, store.read_all(keys).values())
    assert (summary["units"], summary["seconds"], summary["peak_bytes"]) == (3, 11.0, 30)
    assert summary["ended"] == {"first": "2026-01-01T00:00:00Z", "last": "2026-01-03T00:00:00Z"}
    assert (summary["device"], summary["commit"]) == (["a CPU"], ["abc", "def"])
    assert summary["parameters"] == parameters
