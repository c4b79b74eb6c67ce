"""Modules, functions and classes that pages and docstrings name exist."""

import importlib
import json
import re

import pytest

from suite.paths import NOTEBOOKS, ROOT

NAME = re.compile(r"`~?((?:reglib|suite|benchmarks)(?:\.\w+)+)")
FILES = [
    ROOT / "README.md",
    *sorted((ROOT / "book").glob("**/*.md")),
    *sorted(NOTEBOOKS.glob("*.ipynb")),
    *(file for top in ("reglib", "suite", "benchmarks") for file in (ROOT / top).rglob("*.py")),
]
FILES = [file for file in FILES if "executed" not in file.relative_to(ROOT).parts]


def text_of(file):
    if file.suffix != ".ipynb":
        return file.read_text()
    return "\n".join("".join(cell["source"]) for cell in json.loads(file.read_text())["cells"])


def exists(name):
    """Whether a dotted name is a module, or an attribute of one, at any depth."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for attribute in parts[end:]:
            fields = getattr(value, "__annotations__", {})
            if not hasattr(value, attribute) and attribute not in fields:
                return False
            value = getattr(value, attribute, None)
        return True
    return False


def test_missing_name_does_not_exist():
    assert exists("reglib.regularizers.input_gradient_penalty")
    assert exists("suite.units.Training.penalties")
    assert not exists("reglib.regularizers.input_gradient_penalties")
    assert not exists("reglib.nothing")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_in_file_exist(file):
    assert not [name for name in sorted(set(NAME.findall(text_of(file)))) if not exists(name)]
