"""Write the generated pages of the book: evidence, status, benchmarks, agreement, records."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from suite import notebooks
from suite.book import agreement, benchmarks, front, records
from suite.data import SOURCES
from suite.errors import expected
from suite.evidence.answers import values_of
from suite.evidence.claims import TIERS, load_claims
from suite.evidence.render import markdown_table, render, words
from suite.evidence.report import all_verdicts, best_verdicts, headlines, join_claims, tally
from suite.evidence.results import load_results, save_tables
from suite.evidence.rules import NOT_RUN, RULES, WORDS, decide
from suite.networks import PRETRAINED
from suite.paths import KEPT_RESULTS, ROOT, executed_folder, read_yaml
from suite.store import Kept

TEMPLATES = Path(__file__).parent / "templates"


def write_pages(folder: Path) -> None:
    """Write all generated pages into the folder of executed chapters."""
    verdicts = all_verdicts()
    rows = headline_rows(verdicts)
    ours = rows["chapter"].isin(["side_by_side"])
    tallies = tally(rows[~ours], "the papers’ "), tally(rows[ours], "our ")
    pages = {
        "tally.md": " ".join(tallies) + "\n",
        "cards.md": f"```{{raw}} html\n{front.cards(verdicts)}\n```\n",
        "values.json": json.dumps(values(verdicts), indent=0),
        "evidence.md": evidence_page(verdicts),
        "status.md": status_page(),
        "benchmarks.md": _page("benchmarks", **benchmarks.contents(folder)),
        "agreement.md": _page("agreement", **agreement.contents(folder, chapter_name)),
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def values(verdicts: pd.DataFrame) -> dict[str, Any]:
    """Return all verdicts as JSON by `CHAPTER:CLAIM`, for the role `v` of the book."""
    return {
        f"{chapter}:{name}": asdict(value)
        for chapter, _, rows in iterate_chapters(verdicts)
        for name, value in values_of(chapter, rows).items()
    }


def iterate_chapters(verdicts: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield file, short name and verdicts of the chapters with claims, in the order of the book."""
    for chapter in chapters_with_claims():
        yield chapter, chapter_name(chapter), verdicts[verdicts["chapter"] == chapter]


def chapter_name(chapter: str) -> str:
    """Return the short name of a chapter: its title up to a colon, else the name of its file.

    >>> chapter_name("pilcro"), chapter_name("marginal_density")
    ('PILCRO', 'Marginal density')
    """
    before, colon, _ = notebooks.title(chapter).partition(":")
    return before if colon else words(chapter).capitalize()


def headline_rows(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each headline claim of all chapters, with `chapter` and `paper`."""
    parts = [
        headlines(chapter, rows).assign(chapter=chapter, paper=name)
        for chapter, name, rows in iterate_chapters(verdicts)
    ]
    return pd.concat(parts, ignore_index=True)


def headline_table(rows: pd.DataFrame) -> str:
    """Return the rows of `headline_rows` as Markdown."""
    table = [
        [r.paper, r.says, f"**{r.word}**", r.scale, r.measured, r.on] for r in rows.itertuples()
    ]
    return markdown_table(["paper", "headline claim", "verdict", "scale", "measured", "on"], table)


def judge_kept(readme: Path) -> list[Path]:
    """Judge all kept results by the present claims, and write the verdicts and the README.

    Args:
        readme: the file whose table of headlines is replaced.

    Returns:
        The written files.
    """
    files = []
    for path in Kept().archives:
        results = load_results(path.stem, path.parent.name)
        files.append(save_tables(path.stem, path.parent.name, results, KEPT_RESULTS))
    table = headline_table(headline_rows(all_verdicts(kept_only=True)))
    pattern = r"(?s)(?<=<!-- headlines:start -->\n).*(?=<!-- headlines:end -->)"
    text, count = re.subn(pattern, lambda _: f"{table}\n", readme.read_text(encoding="utf-8"))
    if not count:
        raise expected(readme.name, "<!-- headlines:start --> and :end, each on a line", "none")
    readme.write_text(text, encoding="utf-8")
    return [*files, readme]


def chapters_with_claims() -> list[str]:
    """Return the chapters with claims, in the order of the book."""
    parts = read_yaml(ROOT / "book" / "_toc.yml")["parts"]
    pages = [Path(entry["file"]).name for part in parts for entry in part["chapters"]]
    chapters = [chapter for chapter in notebooks.chapters() if load_claims(chapter)]
    return sorted(chapters, key=pages.index)


def summary_table(verdicts: pd.DataFrame) -> str:
    """Count the verdicts of each tier at the best profile of each claim, as Markdown."""
    heads, table = [word for word in WORDS if word != NOT_RUN], []
    for chapter, name, best in iterate_chapters(best_verdicts(verdicts)):
        rows = join_claims(chapter, best)
        for tier in sorted({claim["tier"] for claim in load_claims(chapter)}, key=TIERS.index):
            counts = rows[rows["tier"] == tier]["verdict"].value_counts()
            cells = [counts.get(word, 0) for word in heads]
            table.append([f"**{name}**", tier.replace("ours", "added here"), *cells])
    return markdown_table(["", "tier", *heads], table)


def evidence_page(verdicts: pd.DataFrame) -> str:
    """Return the index of the records: the rules of verdicts, and the tally of each chapter."""
    chapters = [
        {"name": name, "file": chapter, "tally": tally(headlines(chapter, rows))}
        for chapter, name, rows in iterate_chapters(verdicts)
    ]
    decision = " ".join((decide.__doc__ or "").partition("Args:")[0].split("\n\n", 1)[1].split())
    contents = {"rules": RULES, "decision": decision, "chapters": chapters}
    return _page("evidence", results=summary_table(verdicts), **contents)


def write_chapters(executed: Path, folder: Path) -> None:
    """Write the pages of the chapters, and their records, see `suite.book.records`.

    Args:
        executed: folder of the executed notebooks.
        folder: of the generated pages.
    """
    texts = {
        chapter: (records.opening(chapter, name, rows, folder), records.closing(chapter))
        for chapter, name, rows in iterate_chapters(all_verdicts())
    }
    for chapter in notebooks.chapters():
        opening, closing = texts.get(chapter, (f"# {chapter_name(chapter)}: the record", ""))
        records.split(executed / f"{chapter}.ipynb", folder, opening, closing)


def status_page() -> str:
    """Return the page of runs, with their cost and origin, and licences."""
    runs = [
        provenance | {"kind": kind}
        for kind, folder in (("here", executed_folder() / "results"), ("kept", KEPT_RESULTS))
        for file in sorted(folder.glob("*/*.provenance.json"))
        # A run that computed nothing here shows kept results.
        if (provenance := json.loads(file.read_text(encoding="utf-8"))).get("here") != 0
    ]
    profiles = [
        [words(chapter), profile, ", ".join(_data_of(notebooks.all_parameters(chapter, settings)))]
        for chapter in notebooks.chapters()
        for profile, settings in notebooks.profiles(chapter).items()
    ]
    return _page("status", runs=runs, profiles=profiles, data=SOURCES, weights=PRETRAINED)


def _data_of(settings: Mapping[str, Any]) -> list[str]:
    lists = [value for value in settings.values() if isinstance(value, list)]
    panels = [settings, *(part for value in lists for part in value if isinstance(part, dict))]
    names = [panel[key] for panel in panels for key in ("data", "images") if key in panel]
    return [f"`{name}`" for name in dict.fromkeys(names)]


def _page(name: str, **values: Any) -> str:
    """Fill in the template of a page."""
    return render(TEMPLATES / f"{name}.md.jinja", **values)
