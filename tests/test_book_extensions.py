from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document

from book._ext import book_pages, offline_mathjax
from suite.notebooks import chapters


@pytest.mark.parametrize(("alt", "warnings"), [({}, 1), ({"alt": " "}, 1), ({"alt": "a map"}, 0)])
def test_an_image_without_alt_text_is_a_warning(alt, warnings, monkeypatch):
    said = []
    logger = SimpleNamespace(warning=lambda text, **where: said.append(text))
    monkeypatch.setattr(book_pages, "logger", logger)
    document = new_document("page")
    document += nodes.image(uri="a.png", **alt)
    book_pages.require_alt_texts(None, document)
    assert len(said) == warnings


@pytest.mark.parametrize("with_pdf", [True, False])
def test_the_menu_offers_what_is_there(with_pdf, tmp_path):
    if with_pdf:
        (tmp_path / "book.pdf").touch()
    app = SimpleNamespace(outdir=str(tmp_path))
    context = {"pathto": lambda file, _: f"../{file}", "header_buttons": []}
    chapter = chapters()[0]
    book_pages.add_downloads(app, f"executed/{chapter}", "page.html", context, None)
    urls = [button["url"] for button in context["header_buttons"][0]["buttons"]]
    assert urls == [f"../notebooks/{chapter}.ipynb"] + ["../book.pdf"] * with_pdf


@pytest.mark.parametrize("page", ["layout", f"api/{chapters()[-1]}"])
def test_a_page_with_nothing_to_offer_has_no_menu(page, tmp_path):
    context = {"pathto": lambda file, _: file, "header_buttons": []}
    app = SimpleNamespace(outdir=str(tmp_path))
    book_pages.add_downloads(app, page, "page.html", context, None)
    assert context["header_buttons"] == []


@pytest.mark.parametrize(("failed", "copied"), [(None, True), (RuntimeError(), False)])
def test_mathjax_is_one_file(failed, copied, tmp_path):
    app = SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=str(tmp_path))
    offline_mathjax.copy_script(app, failed)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["tex-svg-full.js"] * copied
