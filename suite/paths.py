"""Where things lie. Three folders can be moved by environment variables."""

import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
KEPT_RESULTS = ROOT / "results"


def store_folder() -> Path:
    """Folder of computed units: `REGLIB_STORE`, else `.reglib/store` in the project."""
    return Path(os.environ.get("REGLIB_STORE") or ROOT / ".reglib" / "store").expanduser()


def data_folder() -> Path:
    """Folder of downloaded data sets: `REGLIB_DATA`, else `.reglib/data` in the project."""
    return Path(os.environ.get("REGLIB_DATA") or ROOT / ".reglib" / "data").expanduser()


def moved_by(path: Path) -> str:
    """Say which variable moves a file or folder, for a message; "" where none does."""
    folders = {"STORE": store_folder(), "EXECUTED": executed_folder(), "DATA": data_folder()}
    path = path.absolute()
    inside = [name for name, folder in folders.items() if path.is_relative_to(folder.absolute())]
    return f" or set REGLIB_{inside[0]} to another folder" if inside else ""


def executed_folder() -> Path:
    """Folder of executed chapters and their results: `REGLIB_EXECUTED`, else `book/executed`."""
    return Path(os.environ.get("REGLIB_EXECUTED") or ROOT / "book" / "executed").expanduser()


def with_whole_paths(value: Any, base: Path | None = None) -> Any:
    """Return parameters in which each folder of own images has its whole path.

    A path is relative to `base`, or to where the command was started: a kernel starts elsewhere.

    >>> with_whole_paths([{"data": "mnist"}, "resized:imagefolder:/my/photos:32"])
    [{'data': 'mnist'}, 'resized:imagefolder:/my/photos:32']
    """
    if isinstance(value, dict):
        return {name: with_whole_paths(part, base) for name, part in value.items()}
    if isinstance(value, list):
        return [with_whole_paths(part, base) for part in value]
    if not isinstance(value, str):
        return value
    before, kind, path = value.partition("imagefolder:")
    if before not in ("", "resized:") or not path:
        return value
    return f"{before}{kind}{(base or Path.cwd()) / os.path.expanduser(path)}"
