"""The built book in Chromium: every page, from the files on disk, without the network."""

import os
import re
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from suite.book.build import FLAGS, find_chromium
from suite.evidence.claims import load_claims
from suite.notebooks import chapters
from suite.paths import ROOT

pytestmark = pytest.mark.browser

BOOK = Path(os.environ.get("REGLIB_BOOK_HTML") or ROOT / "_build" / "html").resolve()
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
PAGES = [TOC["root"], *(entry["file"] for part in TOC["parts"] for entry in part["chapters"])]
CHAPTERS = [f"executed/{name}" for name in chapters()]
DESK, PHONE = 1350, 390
SCREENS = {"desk": (DESK, 1000), "phone": (PHONE, 844)}
LIMITS = yaml.safe_load((ROOT / "tests" / "budgets.yml").read_text(encoding="utf-8"))

LOOK = """() => {
  const article = document.querySelector('article') || document.body;
  const all = (selector, root = article) => [...root.querySelectorAll(selector)];
  const text = article.cloneNode(true);
  all('pre, code, mjx-container, script, style, svg', text).forEach(node => node.remove());
  return {
    images: all('img').map(i => ({src: i.src, width: i.naturalWidth, alt: i.alt.trim()})),
    math: all('.math').map(m => ({
      tex: m.textContent, drawn: !!m.querySelector('mjx-container svg'),
    })),
    errors: all('[data-mml-node="merror"], mjx-merror, merror').length,
    text: text.textContent,
    captions: all('figcaption').map(c => c.innerText.trim()),
    figures: all('figure').length,
    told: all('figcaption, p.caption').length,
    tables: all('table').length,
    headings: all('h1').length,
    answer: article.querySelector('table.headlines')?.getBoundingClientRect().top,
    before: all('.cell_input, .cell details').filter(node => {
      const box = article.querySelector('table.headlines');
      return box && node.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING;
    }).map(node => node.tagName),
    bars: all('details').filter(node => {
      const next = node.closest('.cell')?.nextElementSibling;
      return next && next.matches('.cell') && next.querySelector('details')
        && !node.closest('.cell').querySelector('.cell_output');
    }).length,
    links: all('a', document).map(a => a.href?.baseVal  // of a link inside a picture
      ? new URL(a.href.baseVal, document.baseURI).href : a.href).filter(Boolean),
    ids: all('[id]', document).map(e => e.id),
  };
}"""

# What a reader meets: the size of a page, and what of it is on a screen of its width and height.
SIZE = """(height) => {
  const article = document.querySelector('article') || document.body;
  const shown = node => node && node.checkVisibility({visibilityProperty: true});
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  const apart = 'table, figcaption, .caption, pre, code, .math, svg, script, style, .scale, .foot,'
    + 'label';
  let words = 0, prose = '';
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!shown(parent) || parent.closest('script, style, .math, svg, .headerlink')) continue;
    words += (node.textContent.match(/\\S+/g) || []).length;
    if (!parent.closest(apart)) prose += node.textContent + (
      parent.closest('p, li, h1, h2, h3, dd')?.lastChild === node ? '\\n' : '');
  }
  const above = node => shown(node) && node.getBoundingClientRect().top < height;
  const pictures = [...article.querySelectorAll('img, svg')].filter(node => {
    const box = node.getBoundingClientRect();
    return shown(node) && box.width > 60 && box.height > 40 && box.top + 40 < height;
  });
  return {
    height: document.documentElement.scrollHeight, words: words,
    numbers: (prose.match(/\\[[^\\]]*\\d[^\\]]*\\]|\\d+\\.\\d+%?|\\d+%/g) || []).length,
    pictures: pictures.length,
    question: above(article.querySelector('h1')),
    sentence: [...article.querySelectorAll('p > strong')].some(above),
    verdict: [...article.querySelectorAll('.verdict')].filter(
      node => shown(node) && node.getBoundingClientRect().bottom < height).length,
    unlabelled: [...article.querySelectorAll('table.folds td')].filter(
      node => !node.dataset.label && node.cellIndex > 0).length,
  };
}"""

# Elements that reach over the right edge, and no box around them that scrolls.
CUT_OFF = """() => {
  const scrolls = node => node && (/(auto|scroll)/.test(getComputedStyle(node).overflowX)
    || (node !== document.body && scrolls(node.parentElement)));
  const article = document.querySelector('article') || document.body;
  const wide = [...article.querySelectorAll('*')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.right > innerWidth + 1 && !scrolls(node);
  });
  return {
    page: document.documentElement.scrollWidth, nodes: wide.map(n => n.outerHTML.slice(0, 90)),
  };
}"""

# A new size of the window takes effect with the next frame.
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

# Smallest contrast of text and background, by the formula of WCAG 2.
CONTRAST = """() => {
  const parse = colour => (colour.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const article = document.querySelector('article') || document.body;
  return [...article.querySelectorAll('p, li, td, th, h1, h2, h3, a, code, pre span')]
    .filter(node => node.innerText && node.innerText.trim() && node.offsetWidth)
    .map(node => {
      const [a, b] = [parse(getComputedStyle(node).color), behind(node)].map(light);
      return {
        ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
        text: node.tagName + ' ' + node.innerText.slice(0, 40),
      };
    });
}"""


@pytest.fixture(scope="module")
def browser():
    lacking = None
    if find_chromium() is None:
        lacking = "there is no Chromium"
    elif not (BOOK / "index.html").exists():
        lacking = f"there is no book in {BOOK}: make book"
    if lacking and os.environ.get("CI"):
        pytest.fail(f"{lacking}, and CI is set")
    if lacking:
        pytest.skip(f"the book was NOT tested in a browser: {lacking}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": find_chromium(), "args": list(FLAGS)}
        chromium = playwright.chromium.launch(**options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def look(browser):
    @cache
    def at(file):
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        seen = {"console": [], "requests": []}
        page.on("console", lambda m: m.type == "error" and seen["console"].append(m.text))
        page.on("pageerror", lambda error: seen["console"].append(str(error)))
        page.on("request", lambda request: seen["requests"].append(request.url))
        page.goto(file.as_uri())
        page.evaluate("() => window.MathJax?.startup?.promise")
        page.add_style_tag(content="* { transition: none !important }")
        seen |= page.evaluate(LOOK)
        seen["light"] = page.evaluate(CONTRAST)
        seen["themes"] = [page.evaluate("document.documentElement.dataset.theme")]
        button = page.locator(".theme-switch-button:visible")
        for _ in range(3 if button.count() else 0):
            if seen["themes"][-1] != "dark":
                button.first.click()
                seen["themes"].append(page.evaluate("document.documentElement.dataset.theme"))
        seen["dark"] = page.evaluate(CONTRAST)
        for name, (width, height) in SCREENS.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function("width => innerWidth === width", arg=width)
            page.evaluate(DRAWN)
            seen[name] = page.evaluate(CUT_OFF) | page.evaluate(SIZE, height)
        page.close()
        return seen

    return at


def html(page):
    return BOOK / f"{page}.html"


def mathematics(seen):
    faults = [piece["tex"] for piece in seen["math"] if not piece["drawn"]]
    faults += re.findall(r".{0,30}(?:\$|\\\(|\\\[).{0,30}", seen["text"])
    return faults + ["merror"] * seen["errors"]


def captions(seen):
    faults = [text for text in seen["captions"] if not re.match(r"(Fig\.|Table) \d", text)]
    return faults + ["a figure without a caption"] * (seen["figures"] - len(seen["captions"]))


def cut_off(seen, screen):
    width = seen[screen]["page"]
    wide = [f"the page is {width} wide"] * (width > SCREENS[screen][0])
    return wide + seen[screen]["nodes"]


def contrast(seen):
    pieces = [(mode, piece) for mode in ("light", "dark") for piece in seen[mode]]
    return [f"{mode}: {piece}" for mode, piece in pieces if piece["ratio"] < 4.5]


def links(seen):
    faults = []
    for link in sorted(set(seen["links"])):
        parts = urlsplit(link)
        file, anchor = Path(unquote(parts.path)), unquote(parts.fragment)
        if parts.scheme != "file":
            faults += [] if parts.scheme in ("https", "http", "mailto") else [link]
        elif not file.is_file() or (anchor and anchor not in anchors(file)):
            faults.append(link)
    return faults


@cache
def anchors(file):
    return set(re.findall(r'\bid="([^"]+)"', file.read_text(encoding="utf-8")))


# The faults of a page.
CHECKS = {
    "console": lambda seen: seen["console"],
    "requests": lambda seen: [
        url for url in seen["requests"] if not url.startswith(("file:", "data:"))
    ],
    "images": lambda seen: [str(i) for i in seen["images"] if not (i["width"] and i["alt"])],
    "mathematics": mathematics,
    "captions": captions,
    "desk": partial(cut_off, screen="desk"),
    "phone": partial(cut_off, screen="phone"),
    "contrast": contrast,
    "theme": lambda seen: (
        [seen["themes"]] * (seen["themes"][0] != "light" or "dark" not in seen["themes"])
    ),
    "headings": lambda seen: [f"{seen['headings']} titles"] * (seen["headings"] != 1),
    "links": links,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("page", PAGES)
def test_page(page, check, look):
    assert CHECKS[check](look(html(page))) == []


def test_the_book_has_its_pages(browser):
    assert len(PAGES) >= 10
    assert CHAPTERS
    assert set(CHAPTERS) <= set(PAGES)
    assert not list((BOOK / "_static").rglob("*thebe*"))


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_has_what_is_checked(page, look):
    seen = look(html(page))
    figures = 3 if load_claims(Path(page).name) else 1
    assert len(seen["math"]) >= 3
    assert len(seen["images"]) >= figures
    assert seen["told"] >= figures
    assert seen["tables"] >= 1
    assert len(seen["dark"]) >= 30


@pytest.mark.parametrize("page", [page for page in CHAPTERS if load_claims(Path(page).name)])
def test_a_chapter_answers_on_its_first_screen(page, look):
    seen = look(html(page))
    assert 0 < seen["answer"] < 700
    assert len(seen["before"]) <= 2  # the folded parameters: a bar with its code
    assert seen["bars"] == 0


class TestBudgets:
    @pytest.mark.parametrize("page", LIMITS["budgets"])
    @pytest.mark.parametrize("what", ["height", "words", "numbers"])
    def test_size(self, page, what, look):
        assert look(html(page))["desk"][what] <= LIMITS["budgets"][page][what]

    @pytest.mark.parametrize("page", LIMITS["budgets"])
    def test_first_screen(self, page, look):
        desk, phone = (look(html(page))[name] for name in SCREENS)
        assert desk["pictures"]
        assert phone["question"]
        assert phone["sentence" if page == "executed/your_network" else "verdict"]
        assert not desk["unlabelled"]

    def test_every_page_of_results_is_listed(self):
        assert set(CHAPTERS) <= set(LIMITS["budgets"])


class TestSorting:
    ROWS = "table => [...table.tBodies[0].rows].map(row => row.cells[5].textContent)"

    @pytest.fixture
    def table(self, browser):
        page = browser.new_page()
        page.goto(html("executed/side_by_side").as_uri())
        yield page.locator("table.sorts").first
        page.close()

    def column(self, table):
        head = table.locator("th").nth(5)  # the leakage of methods, which some have not
        texts = table.evaluate(self.ROWS)
        numbers = [float(text.partition(" ")[0]) for text in texts if text != "–"]
        return head, head.get_attribute("aria-sort"), numbers, texts

    @pytest.mark.parametrize("how", ["click", "Enter", "Space"])
    def test_by_click_and_by_keyboard(self, table, how):
        head, order, before, _ = self.column(table)
        button = head.get_by_role("button")
        assert order == "none"
        for expected in ("ascending", "descending"):
            button.click() if how == "click" else button.press(how)
            _, order, numbers, texts = self.column(table)
            assert (order, numbers) == (expected, sorted(before, reverse=expected == "descending"))
            assert texts[-1] == "–"  # missing ones last, either way
        assert table.locator("th:not([aria-sort=none])").count() == 1

    def test_headings_are_there_on_a_phone(self, table):
        table.page.set_viewport_size({"width": PHONE, "height": 844})
        assert table.get_by_role("button").count() == table.locator("th").count() >= 8
        assert all(button.is_visible() for button in table.get_by_role("button").all())


def test_the_notation_is_mathematics(look):
    assert len(look(html("notation"))["math"]) >= 30


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_offers_its_source_notebook(page, look):
    name = f"notebooks/{Path(page).name}.ipynb"
    assert (BOOK / name).as_uri() in look(html(page))["links"]
    assert (BOOK / name).read_bytes() == (ROOT / name).read_bytes()


def test_tables_of_results_can_be_downloaded(look):
    assert [link for link in look(html("executed/evidence"))["links"] if link.endswith(".csv")]


def test_the_pdf_is_offered_if_there_is_one(look):
    pdf = BOOK / "book.pdf"
    assert (pdf.as_uri() in look(html("index"))["links"]) == pdf.exists()
    assert not pdf.exists() or pdf.read_bytes().startswith(b"%PDF")


FAULTY = """<!DOCTYPE html><html data-theme="dark"><body>
<img src="none.png" alt=""> <p style="color: #888; background: #777">grey on grey</p>
<span class="math">x</span> <p>raw $x$</p> <figure><figcaption>no number</figcaption></figure>
<div style="width: 1500px">wide</div> <a href="none.html">dead</a> <a href="#none">dead</a>
<svg xmlns:xlink="http://www.w3.org/1999/xlink"><a xlink:href="drawn.html"><path/></a></svg>
<script src="http://127.0.0.1:9/x.js"></script><script>throw new Error("on purpose")</script>
</body></html>"""


def test_every_check_finds_a_fault(look, tmp_path):
    file = tmp_path / "faulty.html"
    file.write_text(FAULTY)
    seen = look(file)
    assert ([name for name, check in CHECKS.items() if not check(seen)], len(links(seen))) == (
        [],
        3,
    )
