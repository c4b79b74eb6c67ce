import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from unittest import mock

import nbformat
import papermill
import pytest

from suite import cli, notebooks
from suite.cli import commands
from suite.errors import RunFailed, UsageError
from suite.evidence.claims import TIERS
from suite.evidence.rules import NOT_RUN, WORDS
from suite.evidence.scale import SCALES
from suite.notebooks.checks import read_cell
from suite.paths import ROOT
from suite.store import kept

CHAPTER = "gradient_regularisation"
CHAPTERS = notebooks.chapters()


@pytest.fixture
def folders(tmp_path):
    return {f"REGLIB_{n.upper()}": str(tmp_path / n) for n in ("store", "executed", "data")}


@pytest.fixture
def command(folders, tmp_path, monkeypatch, capsys):
    """Run the suite in this process; return exit code, output and errors."""

    def call(*arguments, **variables):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["suite", *arguments])
        with mock.patch.dict(os.environ, folders | variables), pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def command_in_process(folders, tmp_path):
    def call(*arguments, **variables):
        program = [sys.executable, "-m", "suite", *arguments]
        options = {"env": os.environ | folders | variables, "cwd": tmp_path, "timeout": 300}
        result = subprocess.run(program, capture_output=True, text=True, **options)
        return result.returncode, result.stdout, result.stderr

    return call


def test_list(command):
    code, out, _ = command("list")
    assert code == 0
    assert "profiles: smoke, laptop, desktop, workstation, paper" in out
    assert "n_samples: int = 20\n      noisy copies" in out


def test_keep_refuses_unfinished_run(command, tmp_path):
    code, _, err = command("keep", CHAPTER, "smoke")
    assert code == 2
    # In a checkout with changes it is refused for them.
    assert "units are not computed" in err or "the working tree has changes" in err
    code, _, err = command("keep", CHAPTER, "smoke", "--store", str(tmp_path / "nowhere"))
    assert code == 2
    assert "--store: expected a folder of results" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "gradient_regularization"], "did you mean 'gradient_regularisation'"),
        (["run", "--profile", "labtop"], "did you mean 'laptop'"),
        (["run", "-p", "n_images"], "argument -p: expected 2 arguments"),
        (["run", "-f", "nowhere.yml"], "nowhere.yml: not a readable YAML file"),
        (["run", CHAPTER, "-p", "panels", "[{data: mnist5k}]"], "written as in Python or JSON"),
        (["run", CHAPTER, "-p", "profile", "../x"], "the name of a run: expected a letter"),
        (["keep", CHAPTER, "smoke", "-p", "profile", "../../x"], "the name of a run: expected"),
        (["run", CHAPTER, "-p", "profile", "workstation"], "or --profile workstation, got"),
        (["run", CHAPTER, "--profile", "paper"], "data set 'mnist' is not at"),
        (["run", CHAPTER, "--dask", "tcp://127.0.0.1:9"], "cannot be reached"),
        (["rum"], "rum"),
        (["contrast", "a", "b"], "invalid choice: 'contrast'"),
        (["book"], "was not executed"),
    ],
)
def test_usage_errors(command, arguments, message):
    code, out, err = command(*arguments)
    assert message in err, err
    assert code == 2, err
    assert "Traceback" not in out + err


def test_debug_shows_the_traceback(command_in_process):
    _, _, err = command_in_process("--debug", "run", "--profile", "labtop")
    assert "Traceback" in err


class TestRun:
    def test_counts_kept_results_unless_fresh(self, command):
        for flags, of_kept in (([], "726 kept, 0"), (["--fresh"], "726"), (["--force"], "726")):
            code, out, _ = command("run", CHAPTER, "--dry-run", *flags, REGLIB_FRESH="")
            assert code == 0
            assert f"726 units, 0 stored (0 s spent), {of_kept} missing" in out

    def test_dry_run_names_missing_data(self, command, tmp_path):
        code, out, _ = command("run", "marginal_density", "--profile", "workstation", "--dry-run")
        assert code == 0
        missed = [line for line in out.splitlines() if "missing data" in line]
        assert len([line for line in missed if "data set 'mnist'" in line]) == 1
        assert len(missed) == len(set(missed)) == 3
        assert "download=True" in out
        assert not list((tmp_path / "store").rglob("*.json"))
        assert not (tmp_path / "executed").exists()

    @pytest.mark.parametrize(
        ("chapter", "data"), [("pilcro", "cifar10-jpeg"), ("top_gap", "imagenette160")]
    )
    def test_missing_data_of_the_page(self, chapter, data, command):
        arguments = ["run", chapter, "--profile", "workstation", "--dry-run"]
        code, out, _ = command(*arguments, REGLIB_FRESH="")
        assert (code, " kept, 0 missing" in out) == (0, True)
        assert out.count(f"data set '{data}' is not at") == 1

    def test_command_line_overrides_file(self, command, tmp_path):
        (tmp_path / "params.yml").write_text("repetitions: 4\nalpha_min: 1.0e+3\n")
        arguments = ["run", CHAPTER, "--profile", "smoke", "--dry-run", "-f", "params.yml"]
        _, four, _ = command(*arguments)
        _, one, _ = command(*arguments, "-p", "repetitions", "1")
        assert f"{CHAPTER}, run smoke+alpha_min=1000.0+repetitions=4: " in four
        counts = [int(text.partition(" units")[0].split()[-1]) for text in (four, one)]
        assert counts[0] > 3 * counts[1]

    def test_parameter_of_some_chapters(self, command):
        code, out, _ = command("run", "--dry-run", "--profile", "smoke", "-p", "alpha_min", "1e3")
        assert code == 0
        assert "differentiating_a_gradient, run smoke: no units" in out
        assert f"{CHAPTER}, run smoke+alpha_min=1000.0: " in out


class TestCellOfParameters:
    @pytest.mark.parametrize("chapter", CHAPTERS)
    def test_has_values_of_desktop(self, chapter):
        cell = read_cell(notebooks.source(chapter))
        desktop = notebooks.profiles(chapter)["desktop"]
        assert {n: entry.default for n, entry in cell.items()} == {n: desktop[n] for n in cell}
        assert papermill.inspect_notebook(str(notebooks.source(chapter))).keys() == cell.keys()
        assert len(cell) <= 16  # with the name of the profile

    @pytest.mark.parametrize("profile", notebooks.PROFILES)
    def test_other_parameters_from_named_profile(self, profile):
        cell = read_cell(notebooks.source("top_gap"))
        values = {name: entry.default for name, entry in cell.items()} | {"profile": profile}
        of_profile = notebooks.resolve("top_gap", profile, {})
        assert notebooks.notebook_parameters("top_gap", values) == of_profile
        changed = notebooks.notebook_parameters("top_gap", values | {"n_shown": 1})
        assert changed == of_profile | {"n_shown": 1, "profile": f"{profile}+n_shown=1"}
        values |= {"In": ["# Parameters\nepochs = 8\n"]}  # set, though it is as in desktop
        assert notebooks.notebook_parameters("top_gap", values)["epochs"] == 8

    def test_has_parameters_that_cells_use(self):
        for chapter in CHAPTERS:
            cells = nbformat.read(notebooks.source(chapter), as_version=4).cells
            trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
            names = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)]
            assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            free = {node.id for node in names} - assigned
            assert not free & notebooks.parameters(chapter).keys(), chapter


def test_papermill_runs_a_profile(tmp_path):
    chapter = "differentiating_a_gradient"
    profile = notebooks.NOTEBOOKS / "profiles" / chapter / "smoke.yml"
    program = [sys.executable, "-m", "papermill", str(notebooks.source(chapter)), "out.ipynb"]
    program += ["-f", str(profile), "-k", "python3", "-p", "profile", "mine"]
    subprocess.run(program, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")
    injected = next(c for c in cells if "injected-parameters" in c.metadata.get("tags", []))
    assert "n_epsilons = 7" in injected.source
    assert 'profile = "mine"' in injected.source


class TestReport:
    def test_json_has_fields_of_verdict(self, command):
        code, out, _ = command("report", "--json")
        assert code == 0
        for verdict in json.loads(out):
            assert verdict["verdict"] in WORDS
            assert verdict["tier"] in TIERS
            assert verdict["scale"] in SCALES or verdict["verdict"] == NOT_RUN
            assert verdict["word"].startswith(verdict["verdict"])

    def test_damage_is_named(self, command, tmp_path):
        folder = tmp_path / "executed" / "results" / "desktop"
        folder.mkdir(parents=True)
        names = (f"{CHAPTER}.verdicts.csv", f"{CHAPTER}.provenance.json", "pilcro.zip")
        for name, text in zip(names, ("claim\na\n", "{", "PK")):
            (folder / name).write_text(text)
        code, out, err = command("report")
        assert (code, "Traceback" in err) == (1, False)
        assert "verdict" in out
        for name in names:
            assert f"{name}: " in err
        assert err.count("\n") == 1 + len(names)


class TestBeforeWork:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        """Run a chapter whose units are counted, not computed."""
        called = []
        monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
        monkeypatch.setattr("suite.runs.compute", lambda *of, **options: called.append("units"))
        monkeypatch.setattr(commands, "_execute", lambda *of: called.append("chapters"))

        def call():
            commands.run_words(["run", CHAPTER, "--profile", "smoke"])

        call.called = called
        return call

    def test_folder_of_executed_chapters(self, run, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "file"))
        with pytest.raises(UsageError, match=r"folder of executed chapters .*REGLIB_EXECUTED"):
            run()
        assert run.called == []

    def test_loopback_network(self, run, monkeypatch):
        def unreachable(*of, **options):
            raise OSError(101, "Network is unreachable")

        monkeypatch.setattr(socket, "create_connection", unreachable)
        with pytest.raises(UsageError, match=r"unreachable: notebooks need 127\.0\.0\.1"):
            run()
        assert run.called == []

    @pytest.mark.parametrize("known", [True, False])
    def test_commit(self, run, monkeypatch, capsys, known):
        monkeypatch.setattr("suite.runs.code.commit", lambda: "abc" if known else "unknown")
        run()
        assert ("'keep' will refuse this run" in capsys.readouterr().err) is not known
        assert run.called == ["units", "chapters"]

    def test_failure_stops_the_run(self, run, monkeypatch):
        def fail(*of, **options):
            raise RunFailed("units that failed: 1")

        monkeypatch.setattr("suite.runs.compute", fail)
        with pytest.raises(RunFailed, match="units that failed: 1"):
            run()
        assert run.called == []


def test_status_reads_archives_once(monkeypatch, capsys):
    times, read = Counter(), kept.read_archive
    monkeypatch.setattr(kept, "read_archive", lambda p: [times.update([p]), read(p)][1])
    monkeypatch.setenv("REGLIB_FRESH", "")
    chapters = ["differentiating_a_gradient", "high_order_saliency"]
    monkeypatch.setattr(notebooks, "chapters", lambda: chapters)
    commands.run_words(["status"])
    out = capsys.readouterr().out
    assert "high_order_saliency, laptop: 14 units, 0 stored (0 s spent), 14 kept, 0 missing" in out
    assert set(times.values()) == {1}


OUT_OF_RANGE = [
    ("high_order_saliency", "n_images", "4", "parameter n_order: expected at most n_images"),
    ("top_gap", "batch_size", "0", "unknown parameter of top_gap 'batch_size'"),
    ("top_gap", "pgd_steps", "-3", "parameter pgd_steps: expected a positive number, got -3"),
    ("pilcro", "levels", "[9]", "parameter levels[0]: expected a number from 1 to 5, got 9"),
    ("marginal_density", "adversarial_epsilon", "1e400", "expected a finite number, got inf"),
]
PROGRAM = f"""
import contextlib, io, sys
from suite import cli, notebooks

notebooks.parameters("pilcro")
for chapter, name, value, message in {OUT_OF_RANGE}:
    sys.argv = ["suite", "run", chapter, "--profile", "workstation", "-p", name, value]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
        cli.main()
    if message not in said.getvalue():
        print(message, said.getvalue())
print(sorted({{"torch", "pandas", "papermill", "matplotlib"}} & sys.modules.keys()))
"""


def test_range_is_checked_before_imports():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_parameter_in_json_or_python(command):
    panel = '[{"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 2, "flip": %s}]'
    for word in ("true", "True"):
        change = ["-p", "panels", panel % word]
        code, out, err = command("run", CHAPTER, "--profile", "smoke", *change, "--dry-run")
        assert code == 0, err
        assert "run smoke+panels=data-mnist5k-net-" in out


class TestEncoding:
    @pytest.mark.parametrize(
        ("name", "variables"),
        [
            ("list", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
            ("report", {"PYTHONIOENCODING": "ascii"}),
        ],
    )
    def test_ascii_output(self, command_in_process, name, variables):
        code, out, err = command_in_process(name, **variables)
        assert (code, err) == (0, "")
        assert r"smallest \u03b1" in out or name != "list"

    def test_ascii_print(self, tmp_path):
        """Text printed by other code than the command."""
        program = "from suite import cli; from suite.cli import commands; "
        program += "commands.run_words = lambda _: print('α'); cli.main()"
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
        assert (done.returncode, done.stdout) == (0, b"\\u03b1\n"), done.stderr

    def test_files_are_opened_with_encoding(self):
        """Text files must not depend on the locale."""
        for file in [*(ROOT / "suite").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if getattr(getattr(node, "func", None), "attr", "") in ("read_text", "write_text"):
                    assert "encoding" in {k.arg for k in node.keywords}, f"{file}:{node.lineno}"


def test_stray_notebook_is_no_chapter(monkeypatch, tmp_path, capsys):
    folder, strays = tmp_path / "notebooks", (f"{CHAPTER}-Copy1", "Untitled")
    shutil.copytree(notebooks.NOTEBOOKS, folder)
    for name in strays:
        (folder / f"{name}.ipynb").write_text("{}")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", folder)
    assert notebooks.chapters() == CHAPTERS
    commands.run_words(["list"])
    shown = capsys.readouterr()
    for name in strays:
        assert shown.err.count(f"notebooks/{name}.ipynb is no chapter: no profile") == 1
        assert name not in shown.out
