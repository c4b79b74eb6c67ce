"""The pages of the book that are written by code: evidence, status, benchmarks, results."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from suite import notebooks
from suite.book import agreement, benchmarks, front, records
from suite.data import SOURCES
from suite.errors import UsageError
from suite.evidence.answers import values_of
from suite.evidence.claims import TIERS, load_claims
from suite.evidence.render import markdown_table, render, words
from suite.evidence.report import all_verdicts, best_profile, headlines, tally, with_claims
from suite.evidence.results import load_results, save_tables
from suite.evidence.rules import NOT_RUN, RULES, WORDS, decide
from suite.networks import PRETRAINED
from suite.paths import KEPT_RESULTS, ROOT, executed_folder, read_yaml
from suite.store import Kept, Store

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
        "agreement.md": agreement_page(folder),
    }
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def values(verdicts: pd.DataFrame) -> dict[str, Any]:
    """Return all verdicts as JSON by `CHAPTER:CLAIM`, for the role `v` of the book.

    Raises:
        UsageError: two values have one name.
    """
    found: dict[str, Any] = {}
    for chapter in with_evidence():
        named = values_of(chapter, verdicts[verdicts["chapter"] == chapter])
        entries = {f"{chapter}:{name}": asdict(value) for name, value in named.items()}
        if twice := found.keys() & entries.keys():
            raise UsageError(f"values: expected one value a name, got two of {sorted(twice)}")
        found |= entries
    return found


def agreement_page(folder: Path) -> str:
    """Return the page that compares this machine with the kept results; its picture is drawn."""
    kept = Kept()
    parts = agreement.compared(Store(), kept)
    names = {part.chapter: chapter_name(part.chapter) for part in parts}
    laptop = [a.provenance for path, a in kept.archives.items() if path.parent.name == "laptop"]
    seconds = sum(provenance["seconds"] for provenance in laptop)
    contents = agreement.contents(parts, names, folder, seconds=seconds)
    return _page("agreement", **contents)


def chapter_name(chapter: str) -> str:
    """Return the short name of a chapter: its title up to a colon, or the name of its file.

    >>> chapter_name("pilcro"), chapter_name("marginal_density")
    ('PILCRO', 'Marginal density')
    """
    before, colon, _ = notebooks.title(chapter).partition(":")
    return before if colon else words(chapter).capitalize()


def headline_rows(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the headline claims of all chapters: one row a claim, with `chapter` and `paper`."""
    parts = [
        headlines(chapter, verdicts[verdicts["chapter"] == chapter]).assign(
            chapter=chapter, paper=chapter_name(chapter)
        )
        for chapter in with_evidence()
    ]
    return pd.concat(parts, ignore_index=True)


def headline_table(rows: pd.DataFrame) -> str:
    """Return the headline claims as Markdown; `rows` are those of `headline_rows`."""
    table = [
        [r.paper, r.says, f"**{r.word}**", r.scale, r.measured, r.on] for r in rows.itertuples()
    ]
    return markdown_table(["paper", "headline claim", "verdict", "scale", "measured", "on"], table)


def judge_kept(readme: Path) -> list[Path]:
    """Judge all kept results by the claims as they are now; write the verdicts and the README.

    Args:
        readme: whose table of headlines is replaced.

    Returns:
        The files that were written.
    """
    files = []
    for path in Kept().archives:
        results = load_results(path.stem, path.parent.name, anew=True)
        files.append(save_tables(path.stem, path.parent.name, results, KEPT_RESULTS))
    rows = headline_rows(all_verdicts(kept_only=True))
    before, start, rest = readme.read_text(encoding="utf-8").partition("<!-- headlines:start -->\n")
    _, end, after = rest.partition("<!-- headlines:end -->")
    if not (start and end):
        why = f"{readme.name}: expected <!-- headlines:start --> and :end, each on a line"
        raise UsageError(why)
    table = headline_table(rows)
    readme.write_text(f"{before}{start}{table}\n{end}{after}", encoding="utf-8")
    return [*files, readme]


def with_evidence() -> list[str]:
    """Return the chapters that have claims, in the order of the book."""
    parts = read_yaml(ROOT / "book" / "_toc.yml")["parts"]
    pages = [Path(entry["file"]).name for part in parts for entry in part["chapters"]]
    chapters = [chapter for chapter in notebooks.chapters() if load_claims(chapter)]
    return sorted(chapters, key=pages.index)


def summary_table(verdicts: pd.DataFrame) -> str:
    """Return how many claims of each tier have each verdict at their best profile, as Markdown."""
    best = best_profile(verdicts)
    table = []
    for chapter in with_evidence():
        rows = with_claims(chapter, best[best["chapter"] == chapter])
        for tier in TIERS:
            counts = rows[rows["tier"] == tier]["verdict"].value_counts()
            shown = [counts.get(word, 0) for word in WORDS if word != NOT_RUN]
            if any(entry["tier"] == tier for entry in load_claims(chapter)):
                name = tier.replace("ours", "added here")
                table.append([f"**{chapter_name(chapter)}**", name, *shown])
    return markdown_table(["", "tier", *(w for w in WORDS if w != NOT_RUN)], table)


def evidence_page(verdicts: pd.DataFrame) -> str:
    """Return the index of the records: how a verdict is decided, and the words of each chapter."""
    chapters = []
    for chapter in with_evidence():
        rows = headlines(chapter, verdicts[verdicts["chapter"] == chapter])
        about = {"name": chapter_name(chapter), "file": chapter, "tally": tally(rows)}
        chapters.append(about)
    decision = " ".join((decide.__doc__ or "").partition("Args:")[0].split("\n\n", 1)[1].split())
    contents = {"rules": RULES, "decision": decision, "chapters": chapters}
    return _page("evidence", results=summary_table(verdicts), **contents)


def write_chapters(executed: Path, folder: Path) -> None:
    """Write the pages of the chapters, and their records, see `suite.book.records`.

    Args:
        executed: folder of the notebooks that were run.
        folder: of the generated pages.
    """
    verdicts, recorded = all_verdicts(), with_evidence()
    for chapter in notebooks.chapters():
        first, last = f"# {chapter_name(chapter)}: the record", ""
        if chapter in recorded:
            rows = verdicts[verdicts["chapter"] == chapter]
            first = records.opening(chapter, chapter_name(chapter), rows, folder)
            last = records.closing(chapter)
        records.split(executed / f"{chapter}.ipynb", folder, first, last)


def status_page() -> str:
    """Return the page of runs, with their cost and origin, and of licences."""
    runs = [
        [kind, *_run(provenance)]
        for kind, folder in (("here", executed_folder() / "results"), ("kept", KEPT_RESULTS))
        for file in sorted(folder.glob("*/*.provenance.json"))
        # A run that computed nothing here shows what is kept.
        if (provenance := json.loads(file.read_text(encoding="utf-8"))).get("here") != 0
    ]
    profiles = [
        [words(chapter), profile, ", ".join(_data_of(notebooks.all_parameters(chapter, settings)))]
        for chapter in notebooks.chapters()
        for profile, settings in notebooks.profiles(chapter).items()
    ]
    return _page("status", runs=runs, profiles=profiles, data=SOURCES, weights=PRETRAINED)


def _run(provenance: Mapping[str, Any]) -> list[str]:
    names = ("device", "threads", "torch", "commit")
    device, threads, *versions = (", ".join(map(str, provenance[name])) for name in names)
    work, ended = f"{provenance['seconds']:,.0f}", provenance["ended"].get("last", "")[:10]
    run = [words(provenance["chapter"]), provenance["profile"], str(provenance["units"])]
    return [*run, work, ended, f"{device} ({threads})", *versions]


def _data_of(settings: Mapping[str, Any]) -> list[str]:
    lists = [value for value in settings.values() if isinstance(value, list)]
    panels = [settings, *(part for value in lists for part in value if isinstance(part, dict))]
    names = [panel[key] for panel in panels for key in ("data", "images") if key in panel]
    return [f"`{name}`" for name in dict.fromkeys(names)]


def _page(name: str, **values: Any) -> str:
    """Fill in the template of a page."""
    return render(TEMPLATES / f"{name}.md.jinja", **values)
