"""The five changes that the page "Map of the project" shows, made as a user makes them."""

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
import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from suite import notebooks
from suite.paths import KEPT_RESULTS, ROOT
from suite.units import Training

PAGE = (ROOT / "book" / "layout.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("(four-changes)=")[2].partition("\n## To add")[0]
CHANGES = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", SECTION, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(change: str) -> dict[str, str]:
    """Return the blocks of a change by their language."""
    return {name: textwrap.dedent(text) for name, text in BLOCK.findall(CHANGES[change])}


class Checkout:
    """A copy of the project in which commands run as a user runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("reglib", "suite", "notebooks"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        (folder / "results").symlink_to(KEPT_RESULTS)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        self.results = folder / "book" / "executed" / "results"

    def run(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        own |= {"REGLIB_STORE": str(self.folder / "store"), "REGLIB_JOBS": "1"}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("REGLIB_")}
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.folder,
            env=kept | own,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write_profile(self, change: str, *, seeds: str = "seeds: [1, 2]") -> None:
        [name] = set(re.findall(r"`(notebooks/profiles/\S+\.yml)`", CHANGES[change]))
        profile = blocks(change)["yaml"].replace("seeds: [1, 2]", seeds)
        (self.folder / name).write_text(profile, encoding="utf-8")

    def console(self, change: str) -> str:
        return blocks(change)["console"].removeprefix("$ ")

    def table(self, run: str, chapter: str) -> pd.DataFrame:
        return pd.read_csv(self.results / run / f"{chapter}.csv")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "project")


def test_changes_take_three_steps_at_most() -> None:
    assert len(CHANGES) == 5
    for name, text in CHANGES.items():
        steps = re.findall(r"^(\d)\. ", text, re.MULTILINE)
        assert steps == [str(n) for n in range(1, len(steps) + 1)], name
        assert 1 <= len(steps) <= 3, name


def test_penalty_is_compared(checkout: Checkout) -> None:
    change = "A penalty of your own, beside the others"
    texts = [
        textwrap.dedent(text) for name, text in BLOCK.findall(CHANGES[change]) if name == "python"
    ]
    for name, text in zip(("training/penalties.py", "methods.py"), texts, strict=True):
        with (checkout.folder / "suite" / name).open("a") as file:
            file.write("\n\n" + text)
    checkout.write_profile(change, seeds="seeds: [1]")  # half of the time
    page = checkout.run(checkout.console(change)).strip().partition(": ")[2]
    rows = checkout.table("mine", "side_by_side")
    assert set(rows["method"]) == {"none", "input_gradient", "logit_power"}
    chosen = rows[rows["chosen"]]
    assert (chosen.groupby("method")["metric"].nunique() == chosen["metric"].nunique()).all()
    assert "logit power" in Path(page).read_text(encoding="utf-8")


def test_images_of_ones_own_are_run(checkout: Checkout) -> None:
    change = "A chapter on images of your own"
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        for name in ("a cat", "ähre"):
            for number in range(count):
                path = checkout.folder / "photos" / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    checkout.write_profile(change)
    checkout.run(checkout.console(change))
    rows = checkout.table("photos", "gradient_regularisation")
    assert set(rows["data"]) == {f"imagefolder:{checkout.folder}/photos"}
    assert rows["alpha"].nunique() == 2


PAPERMILL = """#!{python}
import json, sys
with open("calls", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
"""


def test_runs_of_papermill_make_one_table(checkout: Checkout) -> None:
    """Papermill itself is run by `tests/test_cli.py`; here it notes what it is asked for."""
    change = "Six runs, and one table"
    stand_in = checkout.folder / "bin" / "papermill"
    stand_in.parent.mkdir()
    stand_in.write_text(PAPERMILL.format(python=sys.executable))
    stand_in.chmod(0o755)
    checkout.run(f"PATH={stand_in.parent}:$PATH; {checkout.console(change)}")
    calls = [json.loads(line) for line in (checkout.folder / "calls").read_text().splitlines()]
    found = []
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
        found.append((name, values["batch_size"], parameters["alpha_max"]))
        rows = pd.DataFrame({"profile": [name], "alpha": 1.0, "metric": "accuracy", "value": 0.5})
        (checkout.results / name).mkdir(parents=True)
        rows.to_csv(checkout.results / name / f"{chapter}.csv")
    sizes, tops = (16, 32, 64), ("1e6", "1e8")
    assert found == [(f"size-{n}-{top}", n, float(top)) for n in sizes for top in tops]
    program = checkout.folder / "join.py"
    program.write_text(blocks(change)["python"])
    table = checkout.run(f"python {program}")
    assert all(name in table for name, *_ in found)


def test_chapter_of_ones_own_is_run(checkout: Checkout) -> None:
    change = "A chapter of your own"
    texts = [textwrap.dedent(text) for _, text in BLOCK.findall(CHANGES[change])]
    module, heading, parameters, cell, _ = texts
    (checkout.folder / "suite" / "papers" / "noise.py").write_text(module, encoding="utf-8")
    cells = [nbformat.v4.new_markdown_cell(heading), nbformat.v4.new_code_cell(parameters)]
    cells[1].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(cell)])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel  # as Jupyter writes it
    nbformat.write(notebook, checkout.folder / "notebooks" / "noise.ipynb")
    page = checkout.run(checkout.console(change)).strip().partition(": ")[2]
    rows = checkout.table("desktop", "noise")
    assert rows.groupby("noise")["seed"].nunique().to_dict() == {0.0: 2, 0.5: 2}
    assert picture(nbformat.read(page, as_version=4).cells[-1].outputs[-1])


def picture(output: nbformat.NotebookNode) -> str:
    """Return the pictures of an output as SVG, those within HTML too."""
    data = output.get("data", {})
    within = re.findall(r"svg\+xml;base64,([^\"']+)", data.get("text/html", ""))
    return data.get("image/svg+xml", "") + "".join(b64decode(part).decode() for part in within)


def test_figure_is_drawn_anew(checkout: Checkout) -> None:
    change = "Another figure"
    [name] = re.findall(r"here in `(notebooks/\w+\.ipynb)`", CHANGES[change])
    notebook = nbformat.read(checkout.folder / name, as_version=4)
    old, new = '"x_label": "top probability"', '"x_label": "confidence of the network"'
    changed = [cell for cell in notebook.cells if old in cell.source]
    assert changed
    for cell in changed:
        cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, checkout.folder / name)
    run, build = (textwrap.dedent(text) for _, text in BLOCK.findall(CHANGES[change]))
    assert build == "$ python -m suite book\n"  # which takes minutes; the tests of the book run it
    page = checkout.run(run.removeprefix("$ ")).strip().partition(": ")[2]
    cells = nbformat.read(page, as_version=4).cells
    shown = [picture(out) for cell in cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("confidence of the network" in text for text in shown)
    assert not list((checkout.folder / "store").rglob("*.json")), "what is kept was read"
