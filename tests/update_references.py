"""Write tests/references anew, after `python -m suite run --profile smoke`.

Run it by `python -m tests.update_references`. Look at the difference before you commit it.
"""

from pathlib import Path

import nbformat

from suite import notebooks
from suite.paths import executed_folder

REFERENCES = Path(__file__).parent / "references"


def printed(notebook: Path) -> str:
    """Return what the cells tagged nbval-check-output of an executed notebook printed."""
    cells = nbformat.read(notebook, as_version=4).cells
    compared = [c for c in cells if "nbval-check-output" in c.metadata.get("tags", [])]
    return "".join(output.text for cell in compared for output in cell.outputs)


def main() -> None:
    """Write what each executed chapter printed."""
    for chapter in notebooks.chapters():
        text = printed(executed_folder() / f"{chapter}.ipynb")
        (REFERENCES / f"{chapter}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
