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
from suite.evidence.report import all_verdicts, measured
from suite.networks import PRETRAINED
from suite.paths import KEPT_RESULTS, ROOT, executed_folder

VERDICTS = ("reproduced", "not reproduced", "underpowered", "untested")


def write_pages(folder: Path) -> None:
    """Write all generated pages into the folder of executed chapters."""
    verdicts = all_verdicts()
    (folder / "results.md").write_text(summary_table(verdicts) + "\n")
    (folder / "evidence.md").write_text(evidence_page(verdicts, folder))
    (folder / "status.md").write_text(status_page(folder))
    (folder / "benchmarks.md").write_text(benchmark_page())


def summary_table(verdicts: pd.DataFrame) -> str:
    """Return the number of verdicts of each kind, one row a chapter, as Markdown."""
    rows = []
    for chapter in _chapters_with_claims():
        own = verdicts[verdicts["chapter"] == chapter] if len(verdicts) else verdicts
        counts = [str((own["verdict"] == kind).sum()) if len(own) else "0" for kind in VERDICTS[:3]]
        profiles = dict.fromkeys(own[own["verdict"] != "untested"]["profile"]) if len(own) else ()
        rows.append([f"**{chapter_name(chapter)}**", ", ".join(profiles) or "–", *counts])
    return markdown_table(["verdicts on claims of", "profiles", *VERDICTS[:3]], rows)


def chapter_name(chapter: str) -> str:
    """Return the short name of a chapter: what stands before a colon in its title, else its file's.

    >>> chapter_name("pilcro"), chapter_name("marginal_density")
    ('PILCRO', 'Marginal density')
    """
    before, colon, _ = notebooks.title(chapter).partition(":")
    return before if colon else chapter.replace("_", " ").capitalize()


def results_table(verdicts: pd.DataFrame) -> str:
    """Return what came out, one row a claim that was tested, as Markdown."""
    rows = []
    for chapter in _chapters_with_claims():
        rows.append([f"**{chapter_name(chapter)}**", "", "", ""])
        for claim in load_claims(chapter):
            found = _of(verdicts, chapter, claim["id"])
            row = [claim["id"].replace("-", " ")]
            for verdict in VERDICTS[:3]:
                those = found[found["verdict"] == verdict] if len(found) else found
                row.append(", ".join(_where(v) for _, v in those.iterrows()) or "–")
            if set(row[1:]) != {"–"}:
                rows.append(row)
    return markdown_table(["claim", *VERDICTS[:3]], rows)


def evidence_page(verdicts: pd.DataFrame, folder: Path) -> str:
    """Return the page of all claims with quotation, published, measured, test and verdict."""
    lines = [
        "# Evidence",
        "",
        "Every claim of every paper: what it says, what was published, what was measured, and what "
        "the rule makes of it. Rules were written before what they test was measured; where one "
        "was added or changed later, its chapter says so.",
        "",
        "## Rules",
        "",
        f"A rule needs at least {LEAST_MODELS} models; where a row is an image, it counts as one. "
        f"A correlation nearer to zero than {WEAK} is called no trend; *within the margin* means "
        f"±{MARGIN}. Intervals are 95%, by bootstrap over models for correlations and Student's t "
        "for means; p-values are two-sided, from 9,999 permutations. The p-values of "
        "different claims are not corrected for their number.",
        "",
        "## All verdicts",
        "",
        results_table(verdicts),
        "",
    ]
    for name, rule in RULES.items():
        first, _, rest = (rule.__doc__ or "").partition("\n")
        lines += [f"`{name}`", f": {first} {' '.join(rest.split())}", ""]
    for chapter in _chapters_with_claims():
        lines += [f"## {chapter_name(chapter)}", ""]
        lines += [f"Raw results: {downloads(chapter, folder)}", ""]
        for claim in load_claims(chapter):
            lines += _claim(chapter, claim, _of(verdicts, chapter, claim["id"]))
    return "\n".join(lines) + "\n"


def _claim(chapter: str, claim: Mapping[str, Any], verdicts: pd.DataFrame) -> list[str]:
    tested = verdicts[verdicts["verdict"] != "untested"] if len(verdicts) else verdicts
    rows = [
        [
            name_of(v["data"]),
            name_of(v["network"]),
            v["profile"],
            measured(v),
            str(v["n"]),
            f"**{v['verdict']}**",
        ]
        for _, v in tested.iterrows()
    ]
    header = ["data", "network", "profile", "measured", "models", "verdict"]
    names = claim["data_of_paper"]
    stands = {name: claim["stands_for"].get(name, [name]) for name in names}
    ran = set(tested["data"]) if len(tested) else set()
    absent = [name_of(name) for name in names if not ran & set(stands[name])]
    target = f"{chapter}-{claim['section']}".replace("_", "-")
    return [
        f"### {claim['id'].replace('-', ' ').capitalize()}",
        "",
        f"> {claim['quote']}",
        "",
        f"{claim['where']}; here: {{ref}}`{target}`. Published: {claim['published']}. "
        f"Rule: `{claim['test']['rule']}`.",
        "",
        markdown_table(header, rows) if rows else "",
        "",
        f"Untested on: {', '.join(absent) or 'none of the data sets of the paper'}.",
        "",
    ]


def downloads(chapter: str, folder: Path) -> str:
    """Return links to the tables of a chapter, below the folder of the generated pages."""
    files = sorted(folder.glob(f"*/*/{chapter}*.csv"))
    links = []
    for file in files:
        kind = "verdicts" if ".verdicts" in file.name else "values"
        text = f"{file.parent.name}, {file.parent.parent.name}: {kind}"
        links.append(f"{{download}}`{text} <{file.relative_to(folder)}>`")
    return " · ".join(links) or "none yet"


def status_page(folder: Path) -> str:
    """Return the page of runs, with their cost and origin, and of licences."""
    lines = [
        "# Status",
        "",
        "Written by code when the book was built. *Kept* results come with the project; the others "
        "are those of the latest runs on this computer.",
        "",
        "## Runs",
        "",
    ]
    rows = []
    for kind, results in (("this computer", executed_folder() / "results"), ("kept", KEPT_RESULTS)):
        for file in sorted(results.glob("*/*.provenance.json")):
            rows.append([kind, *_run(json.loads(file.read_text()))])
    header = [
        "",
        "chapter",
        "profile",
        "units",
        "seconds of work",
        "ended",
        "device (threads)",
        "torch",
        "commit",
    ]
    lines += [markdown_table(header, rows), "", "## Profiles", ""]
    rows = [
        [chapter.replace("_", " "), profile, ", ".join(_data_of(settings))]
        for chapter in notebooks.chapters()
        for profile, settings in notebooks.profiles(chapter).items()
    ]
    lines += [markdown_table(["chapter", "profile", "data"], rows), "", "## Data sets", ""]
    lines += [
        "No data set and no weight file is part of the project.",
        "",
        markdown_table(
            ["name", "what it is", "licence"],
            [
                [f"`{name}`", entry.about, entry.licence]
                for name, entry in {**SOURCES, **FAMILIES}.items()
            ],
        ),
        "",
        "## Weights",
        "",
        "Pretrained networks, with how the SHA-256 of their file begins.",
        "",
        markdown_table(
            ["name", "what it is", "SHA-256", "licence"],
            [
                [f"`{name}`", entry.about, f"`{entry.sha256[:8]}`", entry.licence]
                for name, entry in PRETRAINED.items()
            ],
        ),
        "",
    ]
    return "\n".join(lines) + "\n"


def _run(provenance: Mapping[str, Any]) -> list[str]:
    listed = {
        name: ", ".join(map(str, values))
        for name, values in provenance.items()
        if isinstance(values, list)
    }
    return [
        provenance["chapter"].replace("_", " "),
        provenance["profile"],
        str(provenance["units"]),
        f"{provenance['seconds']:,.0f}",
        provenance["ended"].get("last", "")[:10],
        f"{listed['device']} ({listed['threads']})",
        listed["torch"],
        listed["commit"],
    ]


def _data_of(settings: Mapping[str, Any]) -> list[str]:
    lists = [value for value in settings.values() if isinstance(value, list)]
    places = [settings, *(part for value in lists for part in value if isinstance(part, dict))]
    names = [place[key] for place in places for key in ("data", "images") if key in place]
    return [f"`{name}`" for name in dict.fromkeys(names)]


def benchmark_page() -> str:
    """Return the page of benchmarks, from the kept measurements."""
    lines = [
        "# Benchmarks",
        "",
        "Measured by `make bench`; every ratio compares two things that took turns in one process. "
        "Machines differ, ratios less so.",
        "",
    ]
    for file in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        lines += _benchmarks(json.loads(file.read_text()))
    return "\n".join(lines) + "\n"


def _benchmarks(results: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    load = results.get("load_average")
    lines = [
        f"## {results['device']}",
        "",
        f"{results['system']}; threads: {results['threads']}; {versions}; {results['date']}"
        + (f"; load of the machine at the start and the end: {load}" if load else "")
        + ".",
        "",
    ]
    for title in dict.fromkeys(row["benchmark"] for row in results["rows"]):
        rows = [
            [
                row["case"],
                f"{_number(row['value'])} {row['unit']}",
                _spread(row["quartiles"]),
                _goal(row["goal"]),
                {True: "met", False: "not met", None: ""}[row["met"]],
            ]
            for row in results["rows"]
            if row["benchmark"] == title
        ]
        header = ["", "median", "quartiles", "goal", ""]
        lines += [f"### {title[0].upper()}{title[1:]}", "", markdown_table(header, rows), ""]
    return lines


def _spread(quartiles: Sequence[float] | None) -> str:
    return " to ".join(_number(value) for value in quartiles) if quartiles else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _goal(goal: Any) -> str:
    return "" if goal is None else f"{goal:.3g}" if isinstance(goal, float) else str(goal)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; bars within cells are escaped.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines)


def _chapters_with_claims() -> list[str]:
    return [chapter for chapter in notebooks.chapters() if load_claims(chapter)]


def _of(verdicts: pd.DataFrame, chapter: str, claim: str) -> pd.DataFrame:
    if verdicts.empty:
        return verdicts
    return verdicts[(verdicts["chapter"] == chapter) & (verdicts["claim"] == claim)]


def _where(verdict: "pd.Series[Any]") -> str:
    return f"{name_of(verdict['data'])} {name_of(verdict['network'])} ({verdict['profile']})"
