"""Where things lie. Three folders can be moved by environment variables."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def store_folder() -> Path:
    """Folder of computed results: `REGLIB_STORE`, else `.reglib/store` in the project."""
    return Path(os.environ.get("REGLIB_STORE") or ROOT / ".reglib" / "store").expanduser()


def data_folder() -> Path:
    """Folder of downloaded data sets: `REGLIB_DATA`, else `.reglib/data` in the project."""
    return Path(os.environ.get("REGLIB_DATA") or ROOT / ".reglib" / "data").expanduser()


def fresh_results_folder() -> Path:
    """Folder of the results of the latest runs: `REGLIB_RESULTS`, else `book/executed/results`."""
    return Path(os.environ.get("REGLIB_RESULTS") or ROOT / "book" / "executed" / "results")


def kept_results_folder() -> Path:
    """Folder of the results that are kept with the project."""
    return ROOT / "results"
