"""Where things lie. Three folders can be moved by environment variables."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
KEPT_RESULTS = ROOT / "results"


def store_folder() -> Path:
    """Folder of computed units: `REGLIB_STORE`, else `.reglib/store` in the project."""
    return Path(os.environ.get("REGLIB_STORE") or ROOT / ".reglib" / "store").expanduser()


def data_folder() -> Path:
    """Folder of downloaded data sets: `REGLIB_DATA`, else `.reglib/data` in the project."""
    return Path(os.environ.get("REGLIB_DATA") or ROOT / ".reglib" / "data").expanduser()


def executed_folder() -> Path:
    """Folder of executed chapters and their results: `REGLIB_EXECUTED`, else `book/executed`."""
    return Path(os.environ.get("REGLIB_EXECUTED") or ROOT / "book" / "executed").expanduser()
