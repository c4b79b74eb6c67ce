import os
import subprocess
import sys
import types

import pytest

from suite.paths import ROOT
from suite.runs import code, compute
from suite.runs.code import Sources
from suite.runs.plan import plan
from suite.training.penalties import PENALTIES
from suite.units import Measurement, Training

FIRST = """
SCALE = 1.0

def helper(logits):
    return SCALE * logits.square().mean(1)

def mine(batch):
    "What it does."
    return helper(batch.logits)  # a comment
"""
OTHER = FIRST.replace("square", "abs")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Register the penalty `mine` from a file of the user."""
    number = iter(range(99))

    def call(text):
        module = types.ModuleType(f"users_{next(number)}")
        file = tmp_path / f"{module.__name__}.py"
        file.write_text(text)
        exec(compile(text, str(file), "exec"), vars(module))
        monkeypatch.setitem(PENALTIES, "mine", module.mine)

    return call


@pytest.fixture
def units(small):
    mine = small(penalties={"mine": {"strength": 0.1}})
    return [small(), mine, Measurement(training=mine, metric="accuracy")]


def read_results(table, store):
    keys = table["key"].tolist()
    files = [store.folder / key[:2] / f"{key}.json" for key in keys]
    return keys, [file.stat().st_mtime_ns for file in files], table["value"].tolist()


class TestPenaltyOfAUser:
    def test_changed_function_is_computed_anew(self, write, units, store, here, capsys):
        write(FIRST)
        keys, before, values = read_results(compute(units, store=store, resources=here), store)
        assert "computed anew" not in capsys.readouterr().out
        write(OTHER)
        again, after, others = read_results(compute(units, store=store, resources=here), store)
        assert (again, after[0]) == (keys, before[0])
        assert others[1] != values[1]
        assert after[2] != before[2]
        assert "because functions that they name changed: 2 units" in capsys.readouterr().out
        _, last, _ = read_results(compute(units, store=store, resources=here), store)
        assert last == after

    @pytest.mark.parametrize("commit", [None, "abc"])
    def test_whole_file_counts(self, write, units, monkeypatch, commit):
        """Without a commit, and with one in a tree without changes."""
        if commit:
            monkeypatch.setattr(code, "commit", lambda: commit)
            monkeypatch.setattr(code, "changes", lambda *paths: [])
        write(FIRST)
        provenance = {"code": Sources().provenance(units[1])}
        provenance |= {"commit": commit} if commit else {}
        assert not Sources().differs("named", units[1], provenance)
        for text in (OTHER, FIRST.replace("SCALE = 1.0", "SCALE = 2.0")):
            write(text)
            assert Sources().differs("named", units[1], provenance)
        if commit:
            assert not Sources().differs("tree", units[1], provenance)
        assert not Sources().differs("named", units[0], {})

    def test_dry_run(self, write, units, store, here):
        write(FIRST)
        compute(units, store=store, resources=here)
        write(OTHER)
        planned = plan(units, store)
        assert (planned.total, planned.stored) == (3, 1)
        assert "computed anew, because functions that they name changed: 2" in str(planned)
        forced = plan(units, store, force=True)
        assert "3 units, 0 stored (0 s spent), 3 missing" in str(forced)
        assert "everything is computed again (--force)" in str(forced)

    def test_checkpoint_of_other_code(self, write, units, store, here, monkeypatch):
        write(FIRST)
        monkeypatch.setattr(store.__class__, "drop_checkpoint", lambda *arguments: None)
        key = compute(units[1:2], store=store, resources=here, checkpoint_seconds=0)["key"][0]
        for text, resumed in ((FIRST, True), (OTHER, False)):
            write(text)
            (store.folder / key[:2] / f"{key}.json").unlink()
            monkeypatch.setattr(store.__class__, "clean", lambda *arguments: None)
            compute(units[1:2], store=store, resources=here, checkpoint_seconds=0)
            assert store.read(key).provenance["resumed"] is resumed


class TestCodeOfTheProject:
    def test_committed_code_has_no_checksum(self, units, monkeypatch):
        monkeypatch.setattr(code, "_committed_text", lambda file: file.read_text())
        monkeypatch.setattr(code, "changes", lambda *paths: ["a file"])
        sources = Sources()
        named = [v for table in code.REGISTRIES for name, v in table.items() if name != "mine"]
        assert len(named) > 50
        assert "".join(map(sources._new_source, named)) == ""

    @pytest.mark.parametrize(
        ("penalty", "function"),
        [
            ("landscape_target", "landscape_target"),
            ("input_gradient", "penalty"),
            ("input_gradient", "input_gradient_penalty"),  # of the library, behind the other
        ],
    )
    def test_changed_function_is_named(self, penalty, function, small, monkeypatch):
        names = (penalty, "activation_l1")
        changed, other = (small(penalties={name: {"strength": 0.1}}) for name in names)
        old, new = f"def {function}(", "def x("
        monkeypatch.setattr(code, "changes", lambda *paths: ["a file"])
        monkeypatch.setattr(code, "_committed_text", lambda f: f.read_text().replace(old, new))
        assert Sources().differs("named", changed, {"commit": "abc"})
        assert not Sources().differs("named", other, {"commit": "abc"})

    def test_checksums_agree_between_processes(self):
        """The order of sets differs between processes."""
        unit = {"data": "d", "network": "resnet", "epochs": 1, "learning_rate": 1.0, "seed": 0}
        program = "from suite.runs.code import Sources; from suite.units import Training\n"
        program += f"print(Sources().provenance(Training(**{unit})))"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        here = Sources().provenance(Training(**unit))
        assert (here.keys(), done.stdout) == ({"named", "tree"}, f"{here}\n")


class TestChangedTree:
    def test_results_of_other_tree(self, units, store, here, capsys, monkeypatch):
        monkeypatch.setattr(code, "changes", lambda *paths: [" M suite/data/files.py"])
        compute(units[:1], store=store, resources=here)
        compute(units[:1], store=store, resources=here)
        assert "other code" not in capsys.readouterr().out
        monkeypatch.setattr(code, "_sha256", lambda texts: "other" if texts else "")
        compute(units[:1], store=store, resources=here)
        out = capsys.readouterr().out
        assert "other code changed (M suite/data/files.py): 1 units; --force computes" in out

    def test_differs_from_a_commit(self, units, monkeypatch):
        for changed in ([], [" M suite/data/files.py"]):
            monkeypatch.setattr(code, "changes", lambda *paths, now=changed: now)
            assert Sources().differs("tree", units[0], {"commit": "abc"}) is bool(changed)


class TestWithoutGit:
    @pytest.fixture(autouse=True)
    def _no_git(self, monkeypatch):
        monkeypatch.setattr(code, "commit", lambda: "unknown")
        monkeypatch.setattr(code, "_committed_text", lambda file: "")
        monkeypatch.setattr(code, "changes", lambda *paths: [])

    def test_results_of_commits_are_read(self, units):
        assert not Sources().differs("named", units[0], {"commit": "abc"})

    def test_changed_function_is_other_code(self, units):
        provenance = {"commit": "unknown", "code": Sources().provenance(units[0])}
        assert provenance["code"]["named"]
        assert not Sources().differs("named", units[0], provenance)
        provenance["code"]["named"] = "other"
        assert Sources().differs("named", units[0], provenance)
