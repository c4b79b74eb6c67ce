"""The references that nbval compares have the code of the chapters, and something to compare."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from suite import notebooks
from suite.paths import ROOT
from tests.update_references import REFERENCES


def code_of(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    return [c.source for c in code if "injected-parameters" not in c.metadata.get("tags", [])]


@pytest.mark.parametrize("chapter", notebooks.chapters())
def test_code_of_the_reference_is_that_of_the_chapter(chapter):
    assert code_of(REFERENCES / f"{chapter}.ipynb") == code_of(notebooks.source(chapter))


@pytest.mark.parametrize("chapter", notebooks.chapters())
def test_reference_holds_the_outputs_that_are_compared(chapter):
    cells = nbformat.read(REFERENCES / f"{chapter}.ipynb", as_version=4).cells
    compared = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
    assert compared
    assert all(cell.outputs for cell in compared)


def write_executed(path, printed):
    cells = [
        nbformat.v4.new_code_cell("x = 1", execution_count=1),
        nbformat.v4.new_code_cell(
            "print(x)",
            execution_count=2,
            metadata={"tags": ["nbval-check-output"]},
            outputs=[nbformat.v4.new_output("stream", text=printed)],
        ),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.mark.parametrize(("printed", "passes"), [("2.0\n", True), ("2.0002\n", False)])
def test_a_number_that_an_executed_notebook_has_otherwise_is_seen(tmp_path, printed, passes):
    references = tmp_path / "references"
    write_executed(references / "sample.ipynb", "2.0\n")
    shutil.copy(REFERENCES / "conftest.py", references)
    write_executed(tmp_path / "executed" / "sample.ipynb", printed)
    variables = {"REGLIB_EXECUTED": str(tmp_path / "executed"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "."],
        cwd=references,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode == 0) is passes, done.stdout
    assert passes or "2.0002" in done.stdout
