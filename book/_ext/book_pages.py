"""Notebooks and PDF to download from the pages, and an alt text for each image."""

import os
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from suite.paths import NOTEBOOKS

logger = logging.getLogger(__name__)


def add_downloads(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put a menu into the head of the page: the notebook as it was before it ran, and the PDF."""
    chapter = page.removeprefix("executed/")  # other pages may have the name of a chapter
    offers = [(f"notebooks/{chapter}.ipynb", ".ipynb", "This chapter as a notebook, to run")]
    offers += [("book.pdf", ".pdf", "The whole book, to print")]
    there = {f"notebooks/{path.name}" for path in NOTEBOOKS.glob("*.ipynb")}
    there |= {path.name for path in Path(app.outdir).glob("book.pdf")}
    buttons = [
        {"type": "link", "url": context["pathto"](file, 1), "text": text, "tooltip": tooltip}
        for file, text, tooltip in offers
        if file in there and "pathto" in context
    ]
    if buttons:
        menu = {"type": "group", "tooltip": "Download", "icon": "fas fa-download"}
        context.setdefault("header_buttons", []).insert(0, menu | {"buttons": buttons})


def copy_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Copy the notebooks, which lie outside the folder of the pages."""
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir, "notebooks")
        target.mkdir(exist_ok=True)
        for notebook in NOTEBOOKS.glob("*.ipynb"):
            shutil.copyfile(notebook, target / notebook.name)


def require_alt_texts(app: Sphinx, doctree: nodes.document) -> None:
    """Warn of images that say nothing to those who do not see them."""
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            logger.warning(
                "image without alt text: set mystnb.image.alt in the metadata of its cell, or "
                "write ![text](file)",
                location=image,
            )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("doctree-read", require_alt_texts)
    app.connect("html-page-context", add_downloads, priority=900)
    app.connect("build-finished", copy_notebooks)
    # Pages are read and written on all cores. Sections are numbered when all pages are read, by an
    # extension that does not say whether it is safe.
    app.parallel = os.cpu_count() or 1
    app.extensions["sphinx_multitoc_numbering"].parallel_read_safe = True
    return {"parallel_read_safe": True, "parallel_write_safe": True}
