"""Write tests/references anew, after `python -m suite run --profile smoke`.

Run it by `python -m tests.update_references`.
A reference is a chapter as the profile `smoke` ran it, with only the outputs that nbval compares.
Look at the difference before you commit it.
"""

from pathlib import Path

import nbformat

from suite import notebooks
from suite.paths import executed_folder

REFERENCES = Path(__file__).parent / "references"


def main() -> None:
    """Copy each executed chapter, outputs of cells tagged nbval-check-output only."""
    REFERENCES.mkdir(exist_ok=True)
    for chapter in notebooks.chapters():
        notebook = nbformat.read(executed_folder() / f"{chapter}.ipynb", as_version=4)
        for cell in notebook.cells:
            compared = "nbval-check-output" in cell.metadata.get("tags", [])
            if cell.cell_type == "code" and not compared:
                cell.execution_count = None
                cell.outputs = []
        nbformat.write(notebook, REFERENCES / f"{chapter}.ipynb")


if __name__ == "__main__":
    main()
