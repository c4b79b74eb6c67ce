"""The pages of the book that are written by code: evidence, status, benchmarks, results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from suite import notebooks
from suite.book import agreement, benchmarks
from suite.data import FAMILIES, SOURCES
from suite.evidence.claims import LEAST_MODELS, MARGIN, RULES, WEAK, load_claims
from suite.evidence.names import name_of
from suite.evidence.report import all_verdicts, with_claims
from suite.networks import PRETRAINED
from suite.paths import KEPT_RESULTS, executed_folder
from suite.store import Kept, Store

TEMPLATES = Path(__file__).parent / "templates"
DECIDED = ["reproduced", "not reproduced", "underpowered"]


def write_pages(folder: Path) -> None:
    """Write all generated pages into the folder of executed chapters."""
    verdicts = all_verdicts()
    (folder / "results.md").write_text(summary_table(verdicts))
    (folder / "evidence.md").write_text(evidence_page(verdicts, folder))
    (folder / "status.md").write_text(status_page())
    (folder / "benchmarks.md").write_text(_page("benchmarks", **benchmarks.contents(folder)))
    (folder / "agreement.md").write_text(agreement_page(folder))


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
    """Return the short name of a chapter: what stands before a colon in its title, else its file's.

    >>> chapter_name("pilcro"), chapter_name("marginal_density")
    ('PILCRO', 'Marginal density')
    """
    before, colon, _ = notebooks.title(chapter).partition(":")
    return before if colon else _words(chapter).capitalize()


def _tested(verdicts: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Join the verdicts of each chapter that has claims to those that were tested."""
    chapters = [chapter for chapter in notebooks.chapters() if load_claims(chapter)]
    tested = verdicts[verdicts["verdict"] != "untested"]
    return {name: with_claims(name, tested[tested["chapter"] == name]) for name in chapters}


def summary_table(verdicts: pd.DataFrame) -> str:
    """Return the number of verdicts of each kind, one row a chapter, as Markdown."""
    table = []
    for chapter, rows in _tested(verdicts).items():
        counts = rows["verdict"].value_counts().reindex(DECIDED, fill_value=0)
        profiles = ", ".join(sorted(rows["profile"].unique())) or "–"
        table.append([f"**{chapter_name(chapter)}**", profiles, *counts])
    return markdown_table(["verdicts on claims of", "profiles", *DECIDED], table)


def results_table(verdicts: pd.DataFrame) -> str:
    """Return what came out, one row a claim that was tested, as Markdown."""
    table: list[Sequence[str]] = []
    for chapter, tested in _tested(verdicts).items():
        table.append([f"**{chapter_name(chapter)}**", "", "", ""])
        for claim, rows in tested.groupby("claim", sort=False):
            where = rows.groupby("verdict")["on"].agg("; ".join)
            table.append([_words(str(claim)), *(where.get(kind, "–") for kind in DECIDED)])
    return markdown_table(["claim", *DECIDED], table)


def evidence_page(verdicts: pd.DataFrame, folder: Path) -> str:
    """Return the page of all claims with quotation, published, measured, test and verdict."""
    chapters = [
        {
            "name": chapter_name(chapter),
            "downloads": downloads(chapter, folder),
            "claims": [
                claim | _evidence(chapter, claim, rows[rows["claim"] == claim["id"]])
                for claim in load_claims(chapter)
            ],
        }
        for chapter, rows in _tested(verdicts).items()
    ]
    limits = {"least_models": LEAST_MODELS, "weak": WEAK, "margin": MARGIN}
    results = results_table(verdicts)
    return _page("evidence", rules=RULES, results=results, chapters=chapters, **limits)


def _evidence(chapter: str, claim: Mapping[str, Any], tested: pd.DataFrame) -> dict[str, Any]:
    columns = ["on", "verdict", "measured", "models"]
    table = tested.assign(verdict="**" + tested["verdict"] + "**")[columns]
    stand_ins = {name: claim["stands_for"].get(name, [name]) for name in claim["data_of_paper"]}
    absent = [name_of(name) for name, data in stand_ins.items() if not {*data} & {*tested["data"]}]
    target = f"{chapter}-{claim['section']}".replace("_", "-")
    return {"verdicts": table.to_numpy().tolist(), "absent": absent, "target": target}


def downloads(chapter: str, folder: Path) -> str:
    """Return links to the tables of a chapter, below the folder of the generated pages."""
    links = []
    for file in sorted(folder.glob(f"*/*/{chapter}*.csv")):
        kind = "verdicts" if ".verdicts" in file.name else "values"
        text = f"{file.parent.name}, {file.parent.parent.name}: {kind}"
        links.append(f"{{download}}`{text} <{file.relative_to(folder)}>`")
    return " · ".join(links) or "none yet"


def status_page() -> str:
    """Return the page of runs, with their cost and origin, and of licences."""
    runs = [
        [kind, *_run(provenance)]
        for kind, folder in (("here", executed_folder() / "results"), ("kept", KEPT_RESULTS))
        for file in sorted(folder.glob("*/*.provenance.json"))
        # A run that computed nothing here shows what is kept.
        if (provenance := json.loads(file.read_text())).get("here") != 0
    ]
    profiles = [
        [_words(chapter), profile, ", ".join(_data_of(settings))]
        for chapter in notebooks.chapters()
        for profile, settings in notebooks.profiles(chapter).items()
    ]
    data = {**SOURCES, **FAMILIES}
    return _page("status", runs=runs, profiles=profiles, data=data, weights=PRETRAINED)


def _run(provenance: Mapping[str, Any]) -> list[str]:
    names = ("device", "threads", "torch", "commit")
    device, threads, *versions = (", ".join(map(str, provenance[name])) for name in names)
    work, ended = f"{provenance['seconds']:,.0f}", provenance["ended"].get("last", "")[:10]
    run = [_words(provenance["chapter"]), provenance["profile"], str(provenance["units"])]
    return [*run, work, ended, f"{device} ({threads})", *versions]


def _data_of(settings: Mapping[str, Any]) -> list[str]:
    lists = [value for value in settings.values() if isinstance(value, list)]
    panels = [settings, *(part for value in lists for part in value if isinstance(part, dict))]
    names = [panel[key] for panel in panels for key in ("data", "images") if key in panel]
    return [f"`{name}`" for name in dict.fromkeys(names)]


def _words(name: str) -> str:
    return name.replace("-", " ").replace("_", " ")


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown; bars within cells are escaped.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _page(name: str, **values: Any) -> str:
    """Fill in the template of a page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"words": _words, "cell": _cell}
    page = environment.get_template(f"{name}.md.jinja").render(values, table=markdown_table)
    return page.rstrip() + "\n"
