import os
import re
import subprocess
import sys

import nbformat
import pytest

from suite import notebooks
from suite.paths import ROOT
from tests.update_references import REFERENCES, printed


def write_executed(path, text, count=2):
    cells = [
        nbformat.v4.new_code_cell("x = 1", execution_count=count),
        nbformat.v4.new_code_cell(
            "print(x)",
            execution_count=count,
            metadata={"tags": ["nbval-check-output"]},
            outputs=[nbformat.v4.new_output("stream", text=text)],
        ),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


class TestReferences:
    @pytest.mark.parametrize("chapter", notebooks.chapters())
    def test_chapter_has_one(self, chapter):
        assert (REFERENCES / f"{chapter}.txt").read_text(encoding="utf-8").strip()

    def test_only_chapters_have_one(self):
        assert {path.stem for path in REFERENCES.glob("*.txt")} == set(notebooks.chapters())

    def test_printed_text(self, tmp_path):
        write_executed(tmp_path / "sample.ipynb", "2.0\n")
        assert printed(tmp_path / "sample.ipynb") == "2.0\n"

    def test_other_number_is_seen(self, tmp_path):
        references, texts = tmp_path / "references", ("2.0", "2.1", "2.8", "3")
        references.mkdir()
        for name in texts:
            (references / f"{name}.txt").write_text("2.0\n")
            write_executed(tmp_path / "notebooks" / f"{name}.ipynb", "", count=None)
            write_executed(tmp_path / "executed" / f"{name}.ipynb", f"{name}\n")
        conftest = (REFERENCES / "conftest.py").read_text(encoding="utf-8")
        change = f"from pathlib import Path as P\nNOTEBOOKS = P({str(tmp_path / 'notebooks')!r})\n"
        (references / "conftest.py").write_text(conftest + change)
        variables = {"REGLIB_EXECUTED": str(tmp_path / "executed"), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "."],
            cwd=references,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        failed = re.findall(r"^FAILED \.::(\S+)\.ipynb::Cell 1", done.stdout, re.MULTILINE)
        assert failed == ["2.8", "3"], done.stdout
