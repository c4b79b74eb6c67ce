"""The record of a chapter: a second page with its details.

One notebook makes both pages. The record has its cells tagged `record` and the cell of parameters,
between the claims with all verdicts and the history of their rules.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite.evidence.claims import TIERS, judge_printed, load_claims, load_settings, load_words
from suite.evidence.names import name_of
from suite.evidence.render import render, words
from suite.evidence.report import best_verdicts, describe_printed, headlines, join_claims, tally
from suite.evidence.rules import NOT_RUN
from suite.evidence.scale import copies_of
from suite.paths import KEPT_RESULTS, NOTEBOOKS, read_yaml

TEMPLATES = Path(__file__).parent / "templates"
CHANGED = "verdicts_changed.csv"
KINDS = {"csv": "values", "zip": "values and settings", "verdicts.csv": "verdicts"}


def split(executed: Path, folder: Path, opening: str, closing: str) -> list[Path]:
    """Write the page and the record of an executed chapter.

    Args:
        executed: the executed notebook.
        folder: of both pages, `CHAPTER.ipynb` and `CHAPTER_record.ipynb`.
        opening, closing: Markdown around the cells of the record.

    Returns:
        Both files.
    """
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    page, record, last = list[Any](), [_markdown("opening", opening)], list[Any]()
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        (last if "parameters" in tags else record if "record" in tags else page).append(cell)
    record += [*last, _markdown("closing", closing)]
    files = {folder / executed.name: page, folder / f"{executed.stem}_record.ipynb": record}
    for file, cells in files.items():
        file.write_text(json.dumps(notebook | {"cells": cells}), encoding="utf-8")
    return [*files]


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


def opening(chapter: str, name: str, verdicts: pd.DataFrame, folder: Path) -> str:
    """Return the opening of a record: every claim with quotation, rule and all verdicts.

    Args:
        chapter, name: the file and the short name of the chapter.
        verdicts: of the chapter at all profiles.
        folder: of the generated pages, with the tables to download.
    """
    rows, best = join_claims(chapter, verdicts), join_claims(chapter, best_verdicts(verdicts))
    claims = sorted(load_claims(chapter), key=lambda claim: TIERS.index(claim["tier"]))
    return render(
        TEMPLATES / "record.md.jinja",
        chapter=chapter,
        name=name,
        target=chapter.replace("_", "-"),
        downloads=downloads(chapter, folder),
        tally=tally(headlines(chapter, verdicts)),
        scale=load_words(chapter)["scale"],
        claims=[claim | _evidence(chapter, claim, rows, best) for claim in claims],
    )


def closing(chapter: str) -> str:
    """Return the end of a record: changed verdicts, and the history of the rules."""
    table = pd.read_csv(KEPT_RESULTS / CHANGED, keep_default_na=False)
    changed = table[table["chapter"] == chapter].drop(columns="chapter")
    history = read_yaml(NOTEBOOKS / "claims" / "history.yml")
    entries = [*history.get(chapter, []), *history["all"]]
    return render(
        TEMPLATES / "record_end.md.jinja",
        header=list(map(words, map(str, changed.columns))),
        changed=changed.to_numpy().tolist(),
        history=sorted(entries, key=lambda entry: str(entry["when"])),
    )


def _evidence(
    chapter: str, claim: Mapping[str, Any], rows: pd.DataFrame, best: pd.DataFrame
) -> dict[str, Any]:
    tested = rows[(rows["claim"] == claim["id"]) & (rows["verdict"] != NOT_RUN)]
    best = best[best["claim"] == claim["id"]]
    settings = load_settings(chapter)
    copies = {name: {name, *copies_of(settings, name)} for name in claim["data_of_paper"]}
    return {
        "verdicts": tested[["on", "word", "scale", "remark", "measured"]].to_numpy().tolist(),
        "heading": ", ".join(dict.fromkeys(best["word"])) or NOT_RUN,
        "classes": " ".join("word-" + best["verdict"].drop_duplicates().str.replace(" ", "-")),
        "absent": [name_of(n) for n, data in copies.items() if data.isdisjoint(tested["data"])],
        "on_printed": describe_printed(judge_printed(claim)),
    }


def downloads(chapter: str, folder: Path) -> str:
    """Return links to the results of a chapter in the folder of the generated pages."""
    links = [
        f"{{download}}`{file.parent.name}, {file.parent.parent.name}: {KINDS[end]} <{name}>`"
        for file in sorted(folder.glob(f"*/*/{chapter}.*"))
        if (end := file.name.partition(".")[2]) in KINDS and (name := file.relative_to(folder))
    ]
    return " · ".join(links) or "none yet"
