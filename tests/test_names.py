"""What pages and docstrings name exists, and pages name all of the library."""

import importlib
import json
import pkgutil
import re
from typing import NamedTuple

import pytest
import yaml

import reglib
from book._ext.api_reference import skip_fields
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


PAGES = ROOT / "book" / "api"
PACKAGES = {m.name for m in pkgutil.iter_modules(reglib.__path__) if not m.name.startswith("_")}
REFERENCES = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "reglib").rglob("*.py"))


def test_each_package_has_a_page_in_the_table_of_contents():
    contents = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    (part,) = [part for part in contents["parts"] if part["caption"] == "API reference"]
    files = {chapter["file"] for chapter in part["chapters"]}
    assert files == {"api/index"} | {f"api/{name}" for name in PACKAGES}
    for name in PACKAGES:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert f".. automodule:: reglib.{name}\n   :members:" in page


def test_the_first_page_names_all_that_stands_at_the_top():
    page = (PAGES / "index.md").read_text(encoding="utf-8")
    assert set(reglib.__all__) <= set(re.findall(r"`(\w+)`", page))


@pytest.mark.parametrize("package", ["", *(f".{name}" for name in sorted(PACKAGES))])
def test_public_names_are_there_and_say_what_they_do(package):
    module = importlib.import_module(f"reglib{package}")
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        assert not callable(value) or value.__doc__, name


def test_fields_of_named_tuples_are_described_once():
    class Pair(NamedTuple):
        left: int

    assert skip_fields(None, "class", "left", Pair.left, False, None)
    assert skip_fields(None, "class", "function", skip_fields, False, None) is None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_citations_say_who_what_and_when(path):
    text = " ".join(path.read_text(encoding="utf-8").split())
    keys = re.findall(r":cite:\w:`([^`]+)`", text)
    readable = re.findall(r"\((\d{4})\) :cite:p:`(\w+)`", text)
    assert keys == [key for _, key in readable]
    for year, key in readable:
        entry = REFERENCES[REFERENCES.index(f"{{{key},") :].split("\n}\n")[0]
        assert f"{{{year}}}" in entry, key
        author = re.search(r"author\s*= \{+(\w[\w' -]*)", entry)[1].split()[-1]
        assert author.lower() in text[: text.index(f"({year}) :cite:p:`{key}`")][-250:].lower(), key
