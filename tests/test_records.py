"""One notebook, two pages: a chapter and its record."""

import json

import nbformat
import pytest

from suite.book import records
from suite.evidence.claims import load_claims
from suite.paths import KEPT_RESULTS


@pytest.fixture
def executed(tmp_path):
    def cell(source, *tags):
        return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})

    cells = [cell("seen"), cell("p = 1", "parameters"), cell("moved", "record"), cell("end")]
    path = tmp_path / "sample.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_each_cell_has_one_page(executed, tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    page, record = records.split(executed, folder, "# first", "last")
    assert sources(page) == ["seen", "end"]
    assert sources(record) == ["# first", "moved", "p = 1", "last"]
    nbformat.validate(nbformat.read(record, as_version=4))


def test_opening_has_every_claim(tmp_path, kept_verdicts):
    rows = kept_verdicts[kept_verdicts["chapter"] == "top_gap"]
    text = records.opening("top_gap", "Top-GAP", rows, tmp_path)
    for claim in load_claims("top_gap"):
        assert f"(top-gap-{claim['id']})=" in text
        assert claim["quote"] in text


def test_closing_has_changes_and_history():
    text = records.closing("top_gap")
    rows = (KEPT_RESULTS / "verdicts_changed.csv").read_text().splitlines()
    assert text.count("workstation |") == sum(r.startswith("workstation,top_gap") for r in rows)
    assert "## History of the rules" in text
