"""The README and the pages: their commands are ones that there are, and their Python runs."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from PIL import Image

from suite import cli
from suite.book.pages import headline_rows, headline_table
from suite.cli import commands
from suite.notebooks import chapters, parameters, profiles
from suite.paths import KEPT_RESULTS, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
PROGRAM = "python -m suite "
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"{page.stem}-{number}": code
    for page in PAGES
    for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), start=1)
    if "from suite" in code  # `tests/test_library.py` runs the others, where there is torch alone
}
# Imports once, and runs each file in a fork, which changes nothing for the next one.
FORKS = """
import os, runpy, sys, torch

torch.set_num_threads(1)
import suite.runs

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        runpy.run_path(name, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {name}")
"""


def write_photographs(root, names=("cat", "dog"), *, side=32, count=2):
    for path in [root / "photos" / part / name for part in ("train", "test") for name in names]:
        path.mkdir(parents=True)
        for n in range(count):
            image = Image.new("RGB", (side, side), (90 * names.index(path.name), 10 * n, 0))
            image.save(path / f"{n}.png")


def test_blocks_run(tmp_path):
    assert len(BLOCKS) >= 5
    write_photographs(tmp_path)
    for name, code in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", FORKS]
        + [f"{name}.py" for name in BLOCKS],
        cwd=tmp_path,
        env=os.environ | {"REGLIB_JOBS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
