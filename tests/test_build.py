import subprocess
import sys

import pytest

from suite.book import build
from suite.errors import RunFailed

WRITE_PAGE = """
(out,) = [a.split("=")[1] for a in sys.argv if a.startswith("--print-to-pdf=")]
open(out, "w").write(sys.argv[-1])
"""


@pytest.fixture
def target(tmp_path):
    target = tmp_path / "book.pdf"
    target.write_text("old")
    return target


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Set the program of the browser and the exit code of jupyter-book; return its commands."""
    commands, run = [], subprocess.run

    def install(program, code=0):
        def run_or_record(command, **options):
            if "singlehtml" not in command:
                return run(command, **options)
            commands.append(command)
            return subprocess.CompletedProcess(command, code, "", "no toc\n")

        browser = tmp_path / "browser"
        browser.write_text(f"#!{sys.executable}\nimport sys\n{program}")
        browser.chmod(0o755)
        monkeypatch.setenv("REGLIB_CHROMIUM", str(browser))
        monkeypatch.setattr(subprocess, "run", run_or_record)
        return commands

    return install


def test_no_browser_removes_old_pdf(target, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGLIB_CHROMIUM", str(tmp_path / "none"))
    build.make_pdf(tmp_path, tmp_path, target)
    assert not target.exists()
    assert "No PDF was made" in capsys.readouterr().out


def test_named_browser_prints_the_page(target, tmp_path, stand_in):
    commands, output = stand_in(WRITE_PAGE), tmp_path / "out"
    build.make_pdf(tmp_path / "book", output, target)
    page = (output / "_build" / "singlehtml" / "index.html").resolve()
    assert target.read_text() == page.as_uri()
    assert commands[0][-4:] == ["--builder", "singlehtml", "--path-output", str(output)]


def test_failure_of_browser_is_reported(target, tmp_path, stand_in, capsys):
    stand_in("sys.exit('no display')")
    build.make_pdf(tmp_path, tmp_path, target)
    assert "no display" in capsys.readouterr().out
    assert not target.exists()


def test_failure_of_jupyter_book_is_reported(target, tmp_path, stand_in):
    stand_in("", code=2)
    with pytest.raises(RunFailed, match="jupyter-book failed:\nno toc"):
        build.make_pdf(tmp_path, tmp_path, target)
    assert not target.exists()


def test_browsers_are_tried_in_order(monkeypatch):
    monkeypatch.delenv("REGLIB_CHROMIUM", raising=False)
    paths = {"google-chrome": "/opt/chrome", "chromium-browser": "/opt/chromium"}
    monkeypatch.setattr("shutil.which", paths.get)
    assert build.find_chromium() == "/opt/chromium"
