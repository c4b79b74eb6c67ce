"""The pages of the book that are written by code: evidence, status, benchmarks, results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from suite import notebooks
from suite.data import FAMILIES, SOURCES
from suite.evidence.claims import LEAST_MODELS, MARGIN, RULES, WEAK, load_claims
from suite.evidence.names import name_of
from suite.evidence.report import all_verdicts, with_claims
from suite.networks import PRETRAINED
from suite.paths import KEPT_RESULTS, ROOT, executed_folder

DECIDED = ["reproduced", "not reproduced", "underpowered"]


def write_pages(folder: Path) -> None:
    """Write all generated pages into the folder of executed chapters."""
    verdicts = all_verdicts()
    (folder / "results.md").write_text(summary_table(verdicts))
    (folder / "evidence.md").write_text(evidence_page(verdicts, folder))
    (folder / "status.md").write_text(status_page())
    (folder / "benchmarks.md").write_text(benchmark_page())


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
    parts = [
        "# Evidence",
        "Every claim of every paper: what it says, what was published, what was measured, and what "
        "the rule makes of it. Rules were written before what they test was measured; where one "
        "was added or changed later, its chapter says so.",
        "## Rules",
        f"A rule needs at least {LEAST_MODELS} models; where a row is an image, it counts as one. "
        f"A correlation closer to zero than {WEAK} is called no trend; *within the margin* means "
        f"±{MARGIN}. Intervals are 95%, by bootstrap over models for correlations and Student's t "
        "for means; p-values are two-sided, from 9,999 permutations. The p-values of "
        "different claims are not corrected for their number.",
        *(f"`{name}`\n: {' '.join((rule.__doc__ or '').split())}" for name, rule in RULES.items()),
        "## All verdicts",
        results_table(verdicts),
    ]
    for chapter, rows in _tested(verdicts).items():
        parts += [f"## {chapter_name(chapter)}", f"Raw results: {downloads(chapter, folder)}"]
        for claim in load_claims(chapter):
            parts += _claim(chapter, claim, rows[rows["claim"] == claim["id"]])
    return "\n\n".join(parts) + "\n"


def _claim(chapter: str, claim: Mapping[str, Any], tested: pd.DataFrame) -> list[str]:
    columns = ["on", "verdict", "measured", "models"]
    table = tested.assign(verdict="**" + tested["verdict"] + "**")[columns].to_numpy().tolist()
    stand_ins = {name: claim["stands_for"].get(name, [name]) for name in claim["data_of_paper"]}
    absent = [name_of(name) for name, data in stand_ins.items() if not {*data} & {*tested["data"]}]
    target = f"{chapter}-{claim['section']}".replace("_", "-")
    return [
        f"### {_words(claim['id']).capitalize()}",
        f"> {claim['quote']}",
        f"{claim['where']}; here: {{ref}}`{target}`. Published: {claim['published']}. "
        f"Rule: `{claim['test']['rule']}`.",
        *([markdown_table(columns, table)] if table else []),
        f"Untested on: {', '.join(absent) or 'none of the data sets of the paper'}.",
    ]


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
        [kind, *_run(json.loads(file.read_text()))]
        for kind, folder in (("here", executed_folder() / "results"), ("kept", KEPT_RESULTS))
        for file in sorted(folder.glob("*/*.provenance.json"))
    ]
    profiles = [
        [_words(chapter), profile, ", ".join(_data_of(settings))]
        for chapter in notebooks.chapters()
        for profile, settings in notebooks.profiles(chapter).items()
    ]
    data = [[f"`{name}`", e.about, e.licence] for name, e in {**SOURCES, **FAMILIES}.items()]
    weights = [
        [f"`{name}`", e.about, f"`{e.sha256[:8]}`", e.licence] for name, e in PRETRAINED.items()
    ]
    about = ["chapter", "profile", "units", "seconds of work", "ended", "device (threads)"]
    parts = [
        "# Status",
        "Written by code when the book was built. *Kept* results come with the project; those "
        "marked *here* are of the latest runs on this computer.",
        "## Runs",
        markdown_table(["results", *about, "torch", "commit"], runs),
        "## Profiles",
        markdown_table(["chapter", "profile", "data"], profiles),
        "## Data sets",
        "No data set and no weight file is part of the project.",
        markdown_table(["name", "what it is", "licence"], data),
        "## Weights",
        "Pretrained networks, with the first eight digits of the SHA-256 of their file.",
        markdown_table(["name", "what it is", "SHA-256", "licence"], weights),
    ]
    return "\n\n".join(parts) + "\n"


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


def benchmark_page() -> str:
    """Return the page of benchmarks, from the kept measurements."""
    parts = [
        "# Benchmarks",
        "Measured by `make bench`; every ratio compares two things that took turns in one process. "
        "Machines differ, ratios less so.",
    ]
    for file in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        parts += _benchmarks(json.loads(file.read_text()))
    return "\n\n".join(parts) + "\n"


def _benchmarks(results: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    about = [results["system"], f"threads: {results['threads']}", versions, results["date"]]
    if load := results.get("load_average"):
        about.append(f"system load at the start and the end: {load}")
    parts = [f"## {results['device']}", f"{'; '.join(about)}."]
    for title in dict.fromkeys(row["benchmark"] for row in results["rows"]):
        rows = [_benchmark(row) for row in results["rows"] if row["benchmark"] == title]
        table = markdown_table(["", "median", "quartiles", "goal", ""], rows)
        parts += [f"### {title[0].upper()}{title[1:]}", table]
    return parts


def _benchmark(row: Mapping[str, Any]) -> list[str]:
    goal = f"{row['goal']:.3g}" if isinstance(row["goal"], float) else row["goal"] or ""
    quartiles = " to ".join(map(_number, row["quartiles"] or []))
    met = {True: "met", False: "not met", None: ""}[row["met"]]
    return [row["case"], f"{_number(row['value'])} {row['unit']}", quartiles, goal, met]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _words(name: str) -> str:
    return name.replace("-", " ").replace("_", " ")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown; bars within cells are escaped.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines)
