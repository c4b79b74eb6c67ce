"""Let nbval compare the chapters as `python -m suite run --profile smoke` left them.

`CHAPTER.txt` has what the cells of a chapter that are tagged nbval-check-output print. nbval asks a
kernel to run each cell. Here the kernel is the executed notebook, which gives back the outputs that
it holds: so a chapter is executed once, and the page of the book is what is compared.

Processors round differently, which a training amplifies: decimals within `TOLERANCE` are equal.
"""

import math
import re
import tempfile
from pathlib import Path
from queue import Empty

import nbformat
import pytest
from nbval import plugin

from suite.paths import NOTEBOOKS, executed_folder

TOLERANCE = {"rel_tol": 0.15, "abs_tol": 0.02}
COMPARED, INJECTED = "nbval-check-output", "injected-parameters"
FOLDER = tempfile.TemporaryDirectory()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Make a notebook of the text that a chapter prints and of the chapter's own cells."""
    if file_path.suffix != ".txt" or not parent.config.option.nbval_lax:
        return None
    notebook = nbformat.read(NOTEBOOKS / f"{file_path.stem}.ipynb", as_version=4)
    compared = [c for c in notebook.cells if COMPARED in c.metadata.get("tags", [])]
    if len(compared) != 1:
        raise RuntimeError(f"{file_path.stem}: expected one cell tagged {COMPARED}")
    printed = file_path.read_text(encoding="utf-8")
    compared[0].execution_count = 1
    compared[0].outputs = [nbformat.v4.new_output("stream", text=printed)]
    reference = Path(FOLDER.name, f"{file_path.stem}.ipynb")
    nbformat.write(notebook, reference)
    return plugin.IPyNbFile.from_parent(parent, path=reference)


def agrees(text: str, expected: str) -> bool:
    """Whether words and whole numbers are the same, and decimals within `TOLERANCE`."""
    pairs = [*zip(text.split(), expected.split(), strict=False)]
    return len(text.split()) == len(expected.split()) and all(
        a == b
        or (
            all(re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", word) for word in (a, b))
            and "." in a + b
            and math.isclose(float(a), float(b), **TOLERANCE)
        )
        for a, b in pairs
    )


class ExecutedNotebook:
    """What nbval takes for a kernel: the outputs of a notebook that was executed."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise RuntimeError(f"{path}: run 'python -m suite run --profile smoke' first")
        cells = nbformat.read(path, as_version=4).cells
        code = [cell for cell in cells if cell.cell_type == "code"]
        self.cells = iter(c for c in code if INJECTED not in c.metadata.get("tags", []))
        self.expected = (Path(__file__).parent / f"{path.stem}.txt").read_text(encoding="utf-8")
        self.messages: list[dict] = []

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        cell = next(self.cells)
        if cell.source != source:
            raise RuntimeError(f"the executed notebook has another cell: {cell.source[:200]}")
        for output in cell.outputs:
            if COMPARED in cell.metadata.get("tags", []) and agrees(output.text, self.expected):
                output.text = self.expected
            self._say(output.output_type, output)
        self._say("status", {"execution_state": "idle"})
        return "replayed"

    def _say(self, kind: str, content: dict) -> None:
        header = {"msg_id": "replayed"}
        self.messages.append({"msg_type": kind, "content": content, "parent_header": header})

    def get_message(self, stream: str, timeout: float | None = None) -> dict:
        if not self.messages:
            raise Empty
        return self.messages.pop(0)

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """All cells have run already."""

    def await_idle(self, parent_id: str, timeout: float | None = None) -> None:
        """All cells have run already."""

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None:
        """There is no process to end."""


def setup(file: plugin.IPyNbFile) -> None:
    """Take the executed notebook of the same name for the kernel."""
    file.kernel = ExecutedNotebook(executed_folder() / file.path.name)
    file.setup_sanitize_files()


plugin.IPyNbFile.setup = setup
