"""The five changes on the page "Map of the project", made as a user makes them."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from base64 import b64decode
from pathlib import Path

import nbformat
import pandas as pd
import yaml

from suite import notebooks
from suite.paths import KEPT_RESULTS, ROOT
from suite.units import Training
from tests.test_pages import write_photographs

PAGE = (ROOT / "book" / "layout.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("(four-changes)=")[2].partition("\n## To add")[0]
CHANGES = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", SECTION, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Runs commands of the suite in one process, each with its own store, and prints their output.
PROGRAM = """
import contextlib, io, json, os, shlex, sys
from suite import cli

outputs = {}
for change, command in json.loads(sys.argv[1]).items():
    python, m, *sys.argv = shlex.split(command)
    assert (python, m) == ("python", "-m")
    os.environ["REGLIB_STORE"] = os.path.abspath(f"stores/{change}")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        assert not cli.main()
    outputs[change] = out.getvalue()
print(json.dumps(outputs))
"""


def texts(change: str, language: str = r"\w+") -> list[str]:
    blocks = BLOCK.findall(CHANGES[change])
    return [textwrap.dedent(text) for name, text in blocks if re.fullmatch(language, name)]


class Checkout:
    """A copy of the project in which commands run as a user runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("reglib", "suite", "notebooks"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        (folder / "results").symlink_to(KEPT_RESULTS)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        self.results = folder / "book" / "executed" / "results"

    def run(self, *words: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("REGLIB_")}
        env |= {"PATH": path, "PYTHONPATH": str(self.folder)}
        env |= {"OMP_NUM_THREADS": "1", "REGLIB_JOBS": "1"}
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write_profile(self, change: str, *, seeds: str = "seeds: [1, 2]") -> None:
        [name] = set(re.findall(r"`(notebooks/profiles/\S+\.yml)`", CHANGES[change]))
        profile = texts(change, "yaml")[0].replace("seeds: [1, 2]", seeds)
        (self.folder / name).write_text(profile, encoding="utf-8")

    def table(self, run: str, chapter: str) -> pd.DataFrame:
        return pd.read_csv(self.results / run / f"{chapter}.csv")


PENALTY, PHOTOS = "A penalty of your own, beside the others", "A chapter on images of your own"
FIGURE, CHAPTER = "Another figure", "A chapter of your own"


def add_penalty(checkout: Checkout) -> None:
    files = ("training/penalties.py", "methods.py")
    for name, text in zip(files, texts(PENALTY, "python"), strict=True):
        with (checkout.folder / "suite" / name).open("a") as file:
            file.write("\n\n" + text)
    checkout.write_profile(PENALTY, seeds="seeds: [1]")  # half of the time


def add_photographs(checkout: Checkout) -> None:
    write_photographs(checkout.folder, ("a cat", "ähre"), side=16, count=12)
    checkout.write_profile(PHOTOS)


def change_figure(checkout: Checkout) -> None:
    [name] = re.findall(r"here in `(notebooks/\w+\.ipynb)`", CHANGES[FIGURE])
    notebook = nbformat.read(checkout.folder / name, as_version=4)
    old, new = '"x_label": "top probability"', '"x_label": "confidence of the network"'
    changed = [cell for cell in notebook.cells if old in cell.source]
    assert changed
    for cell in changed:
        cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, checkout.folder / name)


def add_chapter(checkout: Checkout) -> None:
    module, heading, parameters, cell, _ = texts(CHAPTER)
    (checkout.folder / "suite" / "papers" / "noise.py").write_text(module, encoding="utf-8")
    cells = [nbformat.v4.new_markdown_cell(heading), nbformat.v4.new_code_cell(parameters)]
    cells[1].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(cell)])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel  # as Jupyter writes it
    nbformat.write(notebook, checkout.folder / "notebooks" / "noise.ipynb")


def test_at_most_three_steps() -> None:
    assert len(CHANGES) == 5
    for name, text in CHANGES.items():
        steps = re.findall(r"^(\d)\. ", text, re.MULTILINE)
        assert steps == [str(n) for n in range(1, len(steps) + 1)], name
        assert 1 <= len(steps) <= 3, name


def test_changes_are_run(tmp_path: Path) -> None:
    """One copy has all changes, and one process runs its chapters, to save time."""
    checkout = Checkout(tmp_path / "project")
    for make in (add_penalty, add_photographs, change_figure, add_chapter):
        make(checkout)
    changes = (PENALTY, PHOTOS, FIGURE, CHAPTER)
    commands = {change: texts(change, "console")[0].removeprefix("$ ") for change in changes}
    outputs = json.loads(checkout.run(sys.executable, "-c", PROGRAM, json.dumps(commands)))
    pages = {change: Path(out.strip().partition(": ")[2]) for change, out in outputs.items()}

    rows = checkout.table("mine", "side_by_side")
    assert set(rows["method"]) == {"none", "input_gradient", "logit_power"}
    chosen = rows[rows["chosen"]]
    assert (chosen.groupby("method")["metric"].nunique() == chosen["metric"].nunique()).all()
    assert "logit power" in pages[PENALTY].read_text(encoding="utf-8")

    rows = checkout.table("photos", "gradient_regularisation")
    assert set(rows["data"]) == {f"imagefolder:{checkout.folder}/photos"}
    assert rows["alpha"].nunique() == 2

    cells = nbformat.read(pages[FIGURE], as_version=4).cells
    pictures = [picture(out) for cell in cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("confidence of the network" in text for text in pictures)
    assert not list((checkout.folder / "stores" / FIGURE).rglob("*.json")), "kept results were read"
    # The tests of the book run this command, which takes minutes.
    assert texts(FIGURE, "console")[1] == "$ python -m suite book\n"

    rows = checkout.table("desktop", "noise")
    assert rows.groupby("noise")["seed"].nunique().to_dict() == {0.0: 2, 0.5: 2}
    assert picture(nbformat.read(pages[CHAPTER], as_version=4).cells[-1].outputs[-1])


def picture(output: nbformat.NotebookNode) -> str:
    data = output.get("data", {})
    embedded = re.findall(r"svg\+xml;base64,([^\"']+)", data.get("text/html", ""))
    return data.get("image/svg+xml", "") + "".join(b64decode(part).decode() for part in embedded)


PAPERMILL = """#!{python}
import json, sys
with open("calls", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
"""


def test_runs_of_papermill_make_one_table(tmp_path: Path) -> None:
    """A stand-in records the calls; `tests/test_cli.py` runs papermill itself."""
    checkout, change = Checkout(tmp_path / "project"), "Six runs, and one table"
    stand_in = checkout.folder / "bin" / "papermill"
    stand_in.parent.mkdir()
    stand_in.write_text(PAPERMILL.format(python=sys.executable))
    stand_in.chmod(0o755)
    [console] = texts(change, "console")
    checkout.run("bash", "-ec", f"PATH={stand_in.parent}:$PATH; {console.removeprefix('$ ')}")
    calls = [json.loads(line) for line in (checkout.folder / "calls").read_text().splitlines()]
    runs = []
    for notebook, out, *options in calls:
        chapter = Path(notebook).stem
        assert (checkout.folder / notebook).exists()
        assert out == "out.ipynb"
        assert options[:2] == ["-f", f"notebooks/profiles/{chapter}/smoke.yml"]
        pairs = zip(options[3::3], options[4::3], strict=True)
        values = {name: yaml.safe_load(value) for name, value in pairs}
        name = values.pop("profile")
        values["alpha_max"] = float(values["alpha_max"])  # as papermill reads it
        parameters = notebooks.resolve(chapter, "smoke", values)
        units = notebooks.units_of(chapter, parameters)
        trainings = [unit for unit in units if isinstance(unit, Training)]
        assert {unit.batch_size for unit in trainings} == {values["batch_size"]}
        runs.append((name, values["batch_size"], parameters["alpha_max"]))
        rows = pd.DataFrame({"profile": [name], "alpha": 1.0, "metric": "accuracy", "value": 0.5})
        (checkout.results / name).mkdir(parents=True)
        rows.to_csv(checkout.results / name / f"{chapter}.csv")
    sizes, tops = (16, 32, 64), ("1e6", "1e8")
    assert runs == [(f"size-{n}-{top}", n, float(top)) for n in sizes for top in tops]
    program = checkout.folder / "join.py"
    program.write_text(*texts(change, "python"))
    table = checkout.run("python", str(program))
    assert all(name in table for name, *_ in runs)
