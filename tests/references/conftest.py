"""Let nbval compare the chapters as `python -m suite run --profile smoke` left them.

nbval asks a kernel to run each cell. Here the kernel is the executed notebook, which gives back the
outputs that it holds: so a chapter is executed once, and the page of the book is what is compared.
"""

from pathlib import Path
from queue import Empty

import nbformat
from nbval import plugin

from suite.paths import executed_folder


class ExecutedNotebook:
    """What nbval takes for a kernel: the outputs of a notebook that was executed."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise RuntimeError(f"{path}: run 'python -m suite run --profile smoke' first")
        cells = nbformat.read(path, as_version=4).cells
        self.cells = iter([cell for cell in cells if cell.cell_type == "code"])
        self.messages: list[dict] = []

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        cell = next(self.cells)
        if cell.source != source:
            raise RuntimeError(f"the executed notebook has another cell: {cell.source[:200]}")
        for output in cell.outputs:
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
