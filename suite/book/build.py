"""Build the book: copy its pages, add the generated ones, and run jupyter-book.

With Chromium the book is printed to one PDF too.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from suite import notebooks
from suite.book import pages
from suite.errors import RunFailed, UsageError
from suite.paths import KEPT_RESULTS, ROOT, executed_folder

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update""".split()


def build(html: Path, *, pdf: bool) -> Path:
    """Build the book from the executed chapters; an older book stays until the new one is complete.

    Args:
        html: the folder of the book.
        pdf: print the book to `book.pdf` too, if there is a Chromium.

    Returns:
        The first page.

    Raises:
        UsageError: a chapter was not executed.
        RunFailed: jupyter-book failed or warned; the message has its output.
    """
    executed = executed_folder()
    for chapter in notebooks.chapters():
        if not (executed / f"{chapter}.ipynb").exists():
            raise UsageError(f"{chapter} was not executed: run 'python -m suite run {chapter}'")
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "book"), Path(folder, "output")
        _stage(source, executed)
        built = output / "_build" / "html"
        if pdf:
            make_pdf(source, output, built / "book.pdf")
        jupyter_book(source, output, "-W", "--keep-going", "-n")
        return _replace(html.resolve(), built)


def _stage(source: Path, executed: Path) -> None:
    """Lay out the sources of the book: pages, results, generated pages and executed chapters."""
    shutil.copytree(ROOT / "book", source, ignore=shutil.ignore_patterns("executed", "_build"))
    shutil.copy(ROOT / "_config.yml", source.parent)
    target = source / "executed"
    target.mkdir()
    for name, results in (("results", executed / "results"), ("kept", KEPT_RESULTS)):
        if results.is_dir():
            shutil.copytree(results, target / name)
    pages.write_pages(target)
    pages.write_chapters(executed, target)


def _replace(html: Path, built: Path) -> Path:
    html.parent.mkdir(parents=True, exist_ok=True)
    fresh = html.with_name(html.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(built, fresh)
    shutil.rmtree(html, ignore_errors=True)
    fresh.rename(html)
    return html / "index.html"


def jupyter_book(source: Path, output: Path, *options: str) -> None:
    """Build pages with jupyter-book.

    Raises:
        RunFailed: it failed or, with "-W", warned; the message has its output.
    """
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(source), "--all", *options]
    command += ["--path-output", str(output)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RunFailed("jupyter-book failed:\n" + "\n".join(lines[-40:]))


def find_chromium() -> str | None:
    """Return the browser that prints: `REGLIB_CHROMIUM`, else the first of `NAMES` on the path."""
    named = os.environ.get("REGLIB_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


def make_pdf(book: Path, output: Path, target: Path) -> None:
    """Print the book, or say on the terminal why it was not printed.

    Args:
        book: folder of the pages, with `_toc.yml`; `_config.yml` is in it or above.
        output: folder of the build, as in `jupyter-book build --path-output`.
        target: the PDF; an older file is always removed.

    Raises:
        RunFailed: jupyter-book failed.
    """
    target.unlink(missing_ok=True)
    chromium = find_chromium()
    if chromium is None:
        print(f"No PDF was made: none of {', '.join(NAMES)} is installed (REGLIB_CHROMIUM=PATH)")
        return
    jupyter_book(book, output, "--quiet", "--builder", "singlehtml")
    page = output.resolve() / "_build" / "singlehtml" / "index.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", "--no-pdf-header-footer"]
        command += ["--virtual-time-budget=30000", f"--print-to-pdf={target}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if not target.exists():
        print(f"No PDF was made: {chromium} failed: {done.stderr.strip()[-300:]}")
