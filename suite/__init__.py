"""The suite: runs, measures and judges what `reglib` holds. Used from a checkout of the project."""

from pathlib import Path

if not (Path(__file__).parents[1] / "notebooks").is_dir():
    raise ImportError(
        "suite: it is used from a checkout of the project, beside its notebooks, and is not part "
        "of the package reglib; clone the repository and run 'make book' in it"
    )
