"""Folders of the project, names of runs, and strict reading of YAML files.

Environment variables move three folders.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from suite.errors import UsageError, expected

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
KEPT_RESULTS = ROOT / "results"
LONGEST_NAME = 120


def store_folder() -> Path:
    """Folder of computed units: `REGLIB_STORE`, else `.reglib/store` in the project."""
    return Path(os.environ.get("REGLIB_STORE") or ROOT / ".reglib" / "store").expanduser()


def data_folder() -> Path:
    """Folder of downloaded data sets: `REGLIB_DATA`, else `.reglib/data` in the project."""
    return Path(os.environ.get("REGLIB_DATA") or ROOT / ".reglib" / "data").expanduser()


def suggest_variable(path: Path) -> str:
    """Return the advice to set the variable that moves a path, or "" where no variable does."""
    folders = {"STORE": store_folder(), "EXECUTED": executed_folder(), "DATA": data_folder()}
    path = path.absolute()
    inside = [name for name, folder in folders.items() if path.is_relative_to(folder.absolute())]
    return f" or set REGLIB_{inside[0]} to another folder" if inside else ""


def executed_folder() -> Path:
    """Folder of executed chapters and their results: `REGLIB_EXECUTED`, else `book/executed`."""
    return Path(os.environ.get("REGLIB_EXECUTED") or ROOT / "book" / "executed").expanduser()


def resolve_paths(value: Any, base: Path | None = None) -> Any:
    """Make the paths in parameters absolute, since kernels start in another folder.

    These are `imagefolder:PATH`, FILE.py:FUNCTION, and paths of existing files. They are relative
    to `base`, by default the working folder. "A or B" becomes the data set B where the data folder
    has it, else A.

    >>> resolve_paths([{"data": "mnist"}, "resized:imagefolder:/my/photos:32"])
    [{'data': 'mnist'}, 'resized:imagefolder:/my/photos:32']
    >>> resolve_paths("imagefolder:/my/cats or dogs"), resolve_paths("/my/cats or dogs")
    ('imagefolder:/my/cats or dogs', '/my/cats or dogs')
    """
    if isinstance(value, dict):
        return {name: resolve_paths(part, base) for name, part in value.items()}
    if isinstance(value, list):
        return [resolve_paths(part, base) for part in value]
    if not isinstance(value, str):
        return value
    first, _, other = value.partition(" or ")
    if other and "/" not in value and "imagefolder:" not in value:
        return other if (data_folder() / other).is_dir() else first
    before, kind, path = value.partition("imagefolder:")
    base = base or Path.cwd()
    if before in ("", "resized:") and path:
        return f"{before}{kind}{base / os.path.expanduser(path)}"
    file, colon, function = value.rpartition(":") if ".py:" in value else (value, "", "")
    full_path = base / os.path.expanduser(file)
    is_path = not path and ("/" in file or "." in file) and full_path.exists()
    return f"{full_path}{colon}{function}" if is_path else value


def check_run_name(name: str) -> str:
    """Check that the name of a run can name a folder, and return it.

    Raises:
        UsageError: the name could lead out of its folder, or is too long.

    >>> check_run_name("workstation+n_images=64")
    'workstation+n_images=64'
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", name) or len(name) > LONGEST_NAME:
        what = f"a letter or digit, then letters, digits and -_.+= ({LONGEST_NAME} at most)"
        raise expected("profile, the name of a run", what, repr(name))
    return name


# For each YAML 1.1 type: how its plain text must be written, and what is expected instead.
_PLAIN = {
    "bool": (r"(?i:true|false)", "true or false; a word in quotes"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "a decimal number; text in quotes"),
    "float": (r"[-+]?[0-9_.]+([eE][-+][0-9]+)?", "a finite decimal number; text in quotes"),
    "str": (r"(?![-+]?[0-9.]+[eE][-+]?[0-9]+$)(?s:.*)", "a number as 1.0e+3; text in quotes"),
}


class _Strict(yaml.CSafeLoader):
    """A YAML loader that refuses duplicate names, and text that YAML reads as another type."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        wrong, at = "", node
        if node in self.constructed_objects:  # a mapping that was checked, then merged with others
            return super().construct_object(node, deep)
        if isinstance(node, yaml.ScalarNode) and not node.style:
            pattern, what = _PLAIN.get(node.tag.rpartition(":")[2], (".*", ""))
            wrong = "" if re.fullmatch(pattern, node.value) else f"{what}, got {node.value}"
        elif isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            again = [key for n, (key, _) in enumerate(node.value) if key.value in names[:n]]
            for key in again[:1]:
                wrong, at = f"each name once, got {key.value!r} again", key
        if wrong:
            raise yaml.MarkedYAMLError(problem=f"expected {wrong}", problem_mark=at.start_mark)
        return super().construct_object(node, deep)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a file of `name: value` lines, strictly.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or not a mapping, has a name twice, or a
            value that YAML reads as another type. The message has the file and line.
    """
    try:
        values = yaml.load(file.read_text(encoding="utf-8-sig"), _Strict)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        at = f", line {mark.line + 1}" if mark else ""
        if isinstance(error, UnicodeDecodeError):
            at = f", line {len(error.object[: error.start].splitlines()) or 1}"
            why = "expected UTF-8, got another encoding: save it as UTF-8"
        raise UsageError(f"{file}{at}: not a readable YAML file ({why})") from error
    if not isinstance(values, dict):
        got = "an empty file" if values is None else f"a {type(values).__name__}"
        raise expected(str(file), "'name: value' lines", got)
    return values
