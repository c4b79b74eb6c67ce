"""The references that nbval runs have the code of the chapters, and something to compare."""

import nbformat
import pytest

from suite import notebooks
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
