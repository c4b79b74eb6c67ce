"""Printing the book, with stand-ins for jupyter-book and Chromium."""

import subprocess
import sys
from pathlib import Path

import pytest

from suite.book import build
from suite.errors import RunFailed


@pytest.fixture
def target(tmp_path):
    """A PDF that was printed earlier."""
    target = tmp_path / "book.pdf"
    target.write_text("old")
    return target


def program(folder, text):
    file = folder / "browser"
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(0o755)
    return str(file)


def test_without_a_browser_no_old_pdf_stays(target, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGLIB_CHROMIUM", str(tmp_path / "none"))
    assert build.make_pdf(tmp_path, tmp_path, target) is None
    assert not target.exists()
    assert "No PDF was made" in capsys.readouterr().out


def test_the_named_browser_prints_the_single_page(target, tmp_path, monkeypatch):
    named = program(
        tmp_path,
        "import sys\n"
        "(out,) = [a.split('=')[1] for a in sys.argv if a.startswith('--print-to-pdf=')]\n"
        "open(out, 'w').write(sys.argv[-1])\n",
    )
    monkeypatch.setenv("REGLIB_CHROMIUM", named)
    built, run = [], subprocess.run

    def without_jupyter_book(command, **options):
        if "singlehtml" in command:
            built.append(command)
            return subprocess.CompletedProcess(command, 0)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", without_jupyter_book)
    assert build.make_pdf(tmp_path / "book", tmp_path / "out", target) == target
    page = (tmp_path / "out" / "_build" / "singlehtml" / "index.html").resolve()
    assert target.read_text() == page.as_uri()
    assert built[0][-4:] == ["--builder", "singlehtml", "--path-output", str(tmp_path / "out")]


def test_a_browser_that_fails_is_reported(target, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGLIB_CHROMIUM", program(tmp_path, "import sys; sys.exit('no display')"))
    run = subprocess.run
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda c, **o: subprocess.CompletedProcess(c, 0) if "singlehtml" in c else run(c, **o),
    )
    assert build.make_pdf(tmp_path, tmp_path, target) is None
    assert "no display" in capsys.readouterr().out
    assert not target.exists()


def test_names_are_tried_in_order(monkeypatch):
    monkeypatch.delenv("REGLIB_CHROMIUM", raising=False)
    there = {"google-chrome": "/opt/chrome", "chromium-browser": "/opt/chromium"}
    monkeypatch.setattr("shutil.which", there.get)
    assert build.find_chromium() == "/opt/chromium"
    assert Path(build.find_chromium()).name in build.NAMES[0]


def test_pages_that_cannot_be_built_are_told(target, tmp_path, monkeypatch):
    monkeypatch.setenv("REGLIB_CHROMIUM", program(tmp_path, ""))
    failed = subprocess.CompletedProcess([], 2, "", "no toc\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **options: failed)
    with pytest.raises(RunFailed, match="jupyter-book failed:\nno toc"):
        build.make_pdf(tmp_path, tmp_path, target)
    assert not target.exists()
