"""Building the book: a copy of its pages, the generated ones added, and jupyter-book."""

import shutil
import tempfile
from pathlib import Path

from suite import notebooks
from suite.book import pages
from suite.book.pdf import jupyter_book, make_pdf
from suite.errors import UsageError
from suite.paths import KEPT_RESULTS, ROOT, executed_folder


def build(html: Path, *, pdf: bool) -> Path:
    """Build the book from the executed chapters; an older one stays until the new one is whole.

    Args:
        html: folder to put it into.
        pdf: print it to `book.pdf` too, where there is a Chromium.

    Returns:
        Its first page.

    Raises:
        UsageError: a chapter was not executed.
        RunFailed: jupyter-book failed or warned; the message has what it said.
    """
    executed = executed_folder()
    for chapter in notebooks.chapters():
        if not (executed / f"{chapter}.ipynb").exists():
            raise UsageError(
                f"chapter {chapter} was not executed: run 'python -m suite run {chapter}'"
            )
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "book"), Path(folder, "output")
        _stage(source, executed)
        built = output / "_build" / "html"
        if pdf:
            make_pdf(source, output, built / "book.pdf")
        jupyter_book(source, output, "-W", "--keep-going", "-n")
        return _replace(html.resolve(), built)


def _stage(source: Path, executed: Path) -> None:
    """Lay out the sources of the book, with executed chapters, results and generated pages."""
    shutil.copytree(ROOT / "book", source, ignore=shutil.ignore_patterns("executed", "_build"))
    shutil.copy(ROOT / "_config.yml", source.parent)
    target = source / "executed"
    target.mkdir()
    for chapter in notebooks.chapters():
        shutil.copy(executed / f"{chapter}.ipynb", target)
    for name, results in (("results", executed / "results"), ("kept", KEPT_RESULTS)):
        if results.is_dir():
            shutil.copytree(results, target / name)
    pages.write_pages(target)


def _replace(html: Path, built: Path) -> Path:
    html.parent.mkdir(parents=True, exist_ok=True)
    fresh = html.with_name(html.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(built, fresh)
    shutil.rmtree(html, ignore_errors=True)
    fresh.rename(html)
    return html / "index.html"
