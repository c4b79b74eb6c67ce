"""Where things lie, what may name a folder, and how files that people write are read.

Three folders can be moved by environment variables.
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
    """Return the advice to set the variable that moves a path; "" if no variable does."""
    folders = {"STORE": store_folder(), "EXECUTED": executed_folder(), "DATA": data_folder()}
    path = path.absolute()
    inside = [name for name, folder in folders.items() if path.is_relative_to(folder.absolute())]
    return f" or set REGLIB_{inside[0]} to another folder" if inside else ""


def executed_folder() -> Path:
    """Folder of executed chapters and their results: `REGLIB_EXECUTED`, else `book/executed`."""
    return Path(os.environ.get("REGLIB_EXECUTED") or ROOT / "book" / "executed").expanduser()


def resolve_paths(value: Any, base: Path | None = None) -> Any:
    """Return parameters in which each folder of own images has its whole path.

    So has each other path to what is there, and FILE.py:FUNCTION. Of "A or B" it is the data set B,
    where its folder is among the data, else A. A path is relative to `base`, or to where the
    command was started: a kernel starts elsewhere.

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
    whole = base / os.path.expanduser(file)
    is_path = not path and ("/" in file or "." in file) and whole.exists()
    return f"{whole}{colon}{function}" if is_path else value


def check_run_name(name: str) -> str:
    """Return the name of a run, which names a folder, as it is.

    Raises:
        UsageError: it could lead out of its folder, or is too long for one.

    >>> check_run_name("workstation+n_images=64")
    'workstation+n_images=64'
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*", name) or len(name) > LONGEST_NAME:
        what = f"a letter or digit, then letters, digits and -_.+= ({LONGEST_NAME} at most)"
        raise expected("profile, the name of a run", what, repr(name))
    return name


# How plain text must be written to be of the type that YAML 1.1 gives it, and what to do.
_PLAIN = {
    "bool": (r"(?i:true|false)", "true or false; a word in quotes"),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", "a decimal number; text in quotes"),
    "float": (r"[-+]?[0-9_.]+([eE][-+][0-9]+)?", "a finite decimal number; text in quotes"),
    "str": (r"(?![-+]?[0-9.]+[eE][-+]?[0-9]+$)(?s:.*)", "a number as 1.0e+3; text in quotes"),
}


class _Strict(yaml.CSafeLoader):
    """YAML without its traps: each name once, numbers and words that are what they look like."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        wrong, at = "", node
        if node in self.constructed_objects:  # checked, and merged with others since
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
        UsageError: it cannot be read, is not in UTF-8 or not such a file, has a name twice, or a
            value that YAML takes for another than it looks like; with file and line.
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
