"""The house stays small: lines of code, floors of imports, and what a notebook may hold."""

import ast
import io
import json
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from suite.paths import NOTEBOOKS, ROOT

MODULES = [*sorted((ROOT / "reglib").rglob("*.py")), *sorted((ROOT / "suite").rglob("*.py"))]
HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
WORDS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
DEFINES = (ast.FunctionDef, ast.ClassDef, ast.Module)


def lines_of_code(text):
    """Return the number of lines without docstrings, comments and blanks."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINES) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*WORDS, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_lines_are_counted_without_docstrings_comments_and_blanks():
    text = (
        '"""Doc.\n\nMore."""\n\n# why\nx = [  # beside\n    1,\n]\n\n\ndef f():\n    """Doc."""\n'
    )
    assert lines_of_code(text) == 4


@pytest.mark.parametrize(("package", "most"), [("reglib", 2_665), ("suite", 10_646)])
def test_a_package_keeps_to_its_lines(package, most):
    files = (ROOT / package).rglob("*.py")
    assert sum(lines_of_code(file.read_text()) for file in files) <= most


def test_tests_keep_to_their_lines():
    files = (ROOT / "tests").rglob("*.py")
    assert sum(len(file.read_text().splitlines()) for file in files) <= 21_169


def code_cells(chapter):
    cells = json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [("".join(c["source"]), set(c["metadata"].get("tags", []))) for c in code]


CHAPTERS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def test_notebooks_keep_to_their_lines():
    cells = [cell for chapter in CHAPTERS for cell in code_cells(chapter)]
    lengths = [(len(source.splitlines()), tags) for source, tags in cells]
    assert sum(length for length, _ in lengths) <= 1_527
    hidden = [n for n, tags in lengths if tags & HIDDEN and "parameters" not in tags]
    assert sum(hidden) <= 913
    assert max(length for length, _ in lengths) <= 25


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_notebook_keeps_to_its_words_and_types_few_decimals(chapter):
    cells = json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text())["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert len(text.split()) <= 2_600
    # Numbers of sections, and settings in code that is to be copied.
    assert len(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text)) <= 7


def definitions(chapter):
    """Return the names of functions and classes that a notebook defines."""
    trees = [ast.parse(source) for source, _ in code_cells(chapter)]
    nodes = [node for tree in trees for node in tree.body]
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_nothing_is_defined_in_two_notebooks_or_twice_in_one():
    times = Counter(name for chapter in CHAPTERS for name in definitions(chapter))
    assert not [name for name, count in times.items() if count > 1]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_cells_that_are_seen_fit_the_page(chapter):
    # The comments of parameters stand behind them, where papermill finds them.
    seen = [source for source, tags in code_cells(chapter) if not tags & {*HIDDEN, "parameters"}]
    long = [line for source in seen for line in source.splitlines() if len(line) > 76]
    assert not long


def room(module):
    """Return the room of a module: reglib, or a module or package of the suite."""
    parts = module.split(".")
    return "reglib" if parts[0] == "reglib" else ".".join(parts[:2])


def imports(file):
    """Return the modules of the project that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "suite":
            names.update(f"suite.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name for name in names if name and name.split(".")[0] in ("reglib", "suite")}


def graph():
    """Return, for each room, the rooms that it imports."""
    arrows = {}
    for file in MODULES:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name == "suite":
            continue
        into = {room(module) for module in imports(file)} - {room(name), "suite"}
        arrows[room(name)] = arrows.get(room(name), set()) | into
    return arrows


def floors(arrows):
    """Return the floor of each room: one above all that it imports."""
    levels = {}
    while len(levels) < len(arrows):
        ready = {r for r in arrows.keys() - levels.keys() if arrows[r] <= levels.keys()}
        assert ready, f"a circle among {sorted(arrows.keys() - levels.keys())}"
        for name in ready:
            levels[name] = 1 + max((levels[r] for r in arrows[name]), default=0)
    return levels


def test_imports_have_no_circle_few_floors_and_few_arrows():
    arrows = graph()
    assert max(floors(arrows).values()) <= 8
    assert sum(map(len, arrows.values())) <= 67


def test_the_layout_page_names_every_room_and_its_floor():
    text = (ROOT / "book" / "layout.md").read_text()
    rows = re.findall(r"^\| (\d) \| ([^|]*)\|", text, re.MULTILINE)
    listed = {name: int(n) for n, names in rows for name in re.findall(r"`([\w.]+)`", names)}
    expected = floors(graph())
    assert expected.pop("reglib") == 1
    assert expected.pop("suite.__main__") == expected["suite.cli"] + 1
    assert listed == expected


def test_the_library_knows_nothing_of_the_suite():
    for file in (ROOT / "reglib").rglob("*.py"):
        assert not [name for name in imports(file) if name.startswith("suite")], file


def test_what_is_imported_is_there():
    for file in MODULES:
        for name in imports(file):
            path = ROOT / Path(*name.split("."))
            # `from suite import name` may take a module or a name of the package.
            assert path.with_suffix(".py").exists() or path.is_dir(), (file, name)
