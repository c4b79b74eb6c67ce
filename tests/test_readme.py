"""The commands in the README and on the pages are ones that there are."""

import itertools
import json
import re
import shlex

import click
import pytest

from suite import cli
from suite.book.pages import headline_rows, headline_table
from suite.cli import batch, commands
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
QUICK = [["list"], ["run", "--help"], ["book", "--help"]]


def test_there_are_commands():
    assert len(COMMANDS) >= 8
    known = ("python -m suite", "git", "make", "papermill", "pip", "dask")
    assert all(line.startswith(known) for line in LINES)


def parse(words):
    """Parse a command line without running it; return what it gives to the command."""
    name, command, rest = commands.app.resolve_command(click.Context(commands.app), words)
    return name, command.make_context(name, list(rest)).params


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line):
    if line.startswith("compute"):  # by a parser of its own, which is only asked what it would do
        assert batch.run([*shlex.split(line), "--dry-run"]) == 0
        return
    name, values = parse(shlex.split(line))
    if name == "run":
        assert set(values["chapters"] or []) <= set(chapters())
        for chapter in values["chapters"] or chapters():
            assert values["profile"] in profiles(chapter)
            for parameter, _ in values["parameter"]:
                assert parameter in parameters(chapter)


@pytest.mark.parametrize("line", ["suite rnu", "suite run --profil laptop", "suite run -p x"])
def test_a_wrong_command_is_refused(line, monkeypatch):
    monkeypatch.setattr("sys.argv", shlex.split(line))
    with pytest.raises(SystemExit, match="2"):
        cli.main()


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_quick_command_runs(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["suite", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("papermill")])
def test_papermill_gets_parameters_that_there_are(line):
    words = shlex.split(line)
    assert (ROOT / words[1]).exists()
    chapter = words[1].removeprefix("notebooks/").removesuffix(".ipynb")
    for flag, name in itertools.pairwise(words):
        if flag == "-p":
            assert name in parameters(chapter)
        if flag == "-f":
            assert (ROOT / name).exists()


@pytest.mark.parametrize("line", [line for line in LINES if "make " in line])
def test_make_has_the_target(line):
    target = line.partition("make ")[2].split()[0]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_map_of_the_readme_names_what_there_is():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## The map\n\n```\n(.*?)```", text, re.DOTALL)[1]
    for line in block.splitlines():
        for name in line.split("  ")[0].split(","):
            assert (ROOT / name.strip()).exists(), name


def test_the_headlines_are_those_of_the_kept_results(kept_verdicts):
    text = (ROOT / "README.md").read_text()
    pattern = r"<!-- headlines:start -->\n(.*)\n<!-- headlines:end -->"
    table = re.search(pattern, text, re.DOTALL)[1]
    rows = headline_rows(kept_verdicts)
    assert table == headline_table(rows), "run: python -m suite judge"


def test_the_hours_of_workstation_are_those_that_it_took():
    files = (KEPT_RESULTS / "workstation").glob("*.provenance.json")
    runs = [json.loads(file.read_text()) for file in files]
    hours = [run["seconds"] / 3600 / 2 for run in runs if run.get("seconds")]
    assert len(hours) >= 5
    assert 2 <= min(hours) < 3
    assert 17 < max(hours) <= 18
    for file in (ROOT / "README.md", ROOT / "book" / "how_to_read.md"):
        assert "2 to 18 h a chapter on 2 cores" in file.read_text()
