"""The commands in the README and on the pages are ones that there are."""

import itertools
import json
import re
import shlex

import pytest

from suite import cli
from suite.book.pages import headline_rows, headline_table
from suite.cli import commands
from suite.notebooks import chapters, parameters, profiles
from suite.paths import KEPT_RESULTS, ROOT

PROGRAM = "python -m suite "
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
LINES = [
    line.removeprefix("$ ").removesuffix(" &")
    for page in PAGES
    for block in CONSOLE.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
]
INLINE = [
    command
    for page in PAGES
    for command in re.findall(r"`((?:\.venv/bin/)?python -m suite [a-z][^`]*)`", page.read_text())
]
COMMANDS = sorted({line.partition(PROGRAM)[2] for line in LINES + INLINE if PROGRAM in line})


def test_has_commands():
    assert len(COMMANDS) >= 8
    known = ("python -m suite", "git", "make", "papermill", "pip", "dask")
    assert all(line.startswith(known) for line in LINES)


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line):
    args = commands.parse(shlex.split(line))
    if args.command in (commands.run, commands.compute_units):
        assert {*args.chapters} <= set(chapters())
        for chapter in args.chapters or chapters():
            assert args.profile in profiles(chapter)
            assert {name for name, _ in args.parameter} <= parameters(chapter).keys()


@pytest.mark.parametrize("command", ["run", "book"])
def test_command_has_help(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["suite", command, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main()
    assert capsys.readouterr().out


def test_papermill_gets_existing_parameters():
    for line in [line for line in LINES if line.startswith("papermill")]:
        words = shlex.split(line)
        assert (ROOT / words[1]).exists()
        chapter = words[1].removeprefix("notebooks/").removesuffix(".ipynb")
        for flag, name in itertools.pairwise(words):
            assert flag != "-p" or name in parameters(chapter), line
            assert flag != "-f" or (ROOT / name).exists(), line


def test_make_has_the_targets():
    makefile = (ROOT / "Makefile").read_text()
    for line in [line for line in LINES if "make " in line]:
        target = line.partition("make ")[2].split()[0]
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), line


def test_map_names_existing_files():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## The map\n\n```\n(.*?)```", text, re.DOTALL)[1]
    for line in block.splitlines():
        for name in line.split("  ")[0].split(","):
            assert (ROOT / name.strip()).exists(), name


def test_headlines_are_the_kept_results(kept_verdicts):
    text = (ROOT / "README.md").read_text()
    pattern = r"<!-- headlines:start -->\n(.*)\n<!-- headlines:end -->"
    table, rows = re.search(pattern, text, re.DOTALL)[1], headline_rows(kept_verdicts)
    assert table == headline_table(rows), "run: python -m suite judge"


def test_hours_of_workstation():
    files = (KEPT_RESULTS / "workstation").glob("*.provenance.json")
    runs = [json.loads(file.read_text()) for file in files]
    hours = [run["seconds"] / 3600 / 2 for run in runs if run.get("seconds")]
    assert len(hours) >= 5
    assert 2 <= min(hours) < 3
    assert 18.5 <= max(hours) < 19.5
    for file in (ROOT / "README.md", ROOT / "book" / "how_to_read.md"):
        assert "2 to 19 h a chapter on 2 cores" in file.read_text()
