"""Write tests/references, after `python -m suite run --profile smoke`.

Run it by `python -m tests.update_references`, and review the difference before you commit.
"""

from pathlib import Path

import nbformat

from suite import notebooks
from suite.paths import executed_folder

REFERENCES = Path(__file__).parent / "references"


def printed(notebook: Path) -> str:
    """Return the printed output of the cells tagged nbval-check-output."""
    cells = nbformat.read(notebook, as_version=4).cells
    compared = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
    return "".join(output.text for cell in compared for output in cell.outputs)


def main() -> None:
    for chapter in notebooks.chapters():
        text = printed(executed_folder() / f"{chapter}.ipynb")
        (REFERENCES / f"{chapter}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
