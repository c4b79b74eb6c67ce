"""The record of a chapter: what its page leaves out, as a page of its own.

One notebook makes both pages. Cells tagged `record`, and the cell of parameters, are shown in the
record; the claims with all verdicts are written before them.
"""

import json
from pathlib import Path
from typing import Any

RECORD = ("record", "parameters")


def split(executed: Path, folder: Path, opening: str, closing: str = "") -> list[Path]:
    """Write the page and the record of an executed chapter.

    Args:
        executed: the notebook that was run.
        folder: where both pages go, as `CHAPTER.ipynb` and `CHAPTER_record.ipynb`.
        opening, closing: Markdown around the cells of the record.

    Returns:
        Both files.
    """
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    page, record = [], []
    for cell in notebook["cells"]:
        tags = set(cell["metadata"].get("tags", []))
        (record if tags & set(RECORD) else page).append(cell)
    around = [_markdown("opening", opening)], [_markdown("closing", closing)] if closing else []
    cells = {"": page, "_record": [*around[0], *record, *around[1]]}
    files = []
    for suffix, part in cells.items():
        file = folder / f"{executed.stem}{suffix}.ipynb"
        file.write_text(json.dumps(notebook | {"cells": part}), encoding="utf-8")
        files.append(file)
    return files


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}
