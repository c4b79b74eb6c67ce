"""The book as one PDF: one long page, printed by Chromium, where there is one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Return the program to print with: `REGLIB_CHROMIUM`, else the first of `NAMES`."""
    named = os.environ.get("REGLIB_CHROMIUM")
    found = (shutil.which(name) for name in ([named] if named else NAMES))
    return next((path for path in found if path), None)


def make_pdf(book: Path, output: Path, target: Path) -> Path | None:
    """Print the book.

    Args:
        book: folder of the pages, with `_toc.yml`; `_config.yml` lies in it or above.
        output: folder of the build, as in `jupyter-book build --path-output`.
        target: the PDF; an older one is removed in any case.

    Returns:
        `target`, or None, said on the terminal, where nothing was printed.
    """
    target.unlink(missing_ok=True)
    chromium = find_chromium()
    if chromium is None:
        print(f"No PDF was made: none of {', '.join(NAMES)} is installed (REGLIB_CHROMIUM=PATH)")
        return None
    jupyter_book = [sys.executable, "-c", JUPYTER_BOOK, "build", str(book), "--quiet", "--all"]
    options = ["--builder", "singlehtml", "--path-output", str(output)]
    subprocess.run([*jupyter_book, *options], check=True)
    page = output / "_build" / "singlehtml" / "index.html"
    with tempfile.TemporaryDirectory() as profile:
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [
            chromium,
            *FLAGS,
            f"--user-data-dir={profile}",
            "--no-pdf-header-footer",
            "--virtual-time-budget=30000",
            f"--print-to-pdf={target}",
        ]
        done = subprocess.run([*command, page.resolve().as_uri()], capture_output=True, text=True)
    if not target.exists():
        print(f"No PDF was made: {chromium} failed: {done.stderr.strip()[-300:]}")
        return None
    return target
