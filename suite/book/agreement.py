"""The page "Does this machine agree?": compare what was computed here with kept results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from suite.evidence import agreement
from suite.evidence.names import name_of
from suite.evidence.report import machine
from suite.paths import executed_folder
from suite.store import Archive, Kept, Store

N_LARGEST = 20
PICTURE = "agreement.png"


class Compared(NamedTuple):
    """A chapter and profile: its kept archive, and what was computed here.

    Args:
        chapter, profile: which.
        archive: what is kept.
        values: of `suite.evidence.agreement.compare`.
        changed: verdicts that changed.
        n_verdicts: how many were compared.
        here: provenance of what was computed here.
    """

    chapter: str
    profile: str
    archive: Archive
    values: pd.DataFrame
    changed: pd.DataFrame
    n_verdicts: int
    here: Mapping[str, Any]


def compared(store: Store, kept: Kept) -> list[Compared]:
    """Compare the chapters that were executed with what this machine has computed."""
    parts = []
    for path, archive in kept.archives.items():
        chapter, profile = path.stem, path.parent.name
        stem = executed_folder() / "results" / profile / chapter
        others = [a for p, a in kept.archives.items() if p.stem == chapter and p != path]
        values = agreement.compare(archive, store, *others)
        if values.empty or not stem.with_suffix(".provenance.json").exists():
            continue
        here = json.loads(stem.with_suffix(".provenance.json").read_text(encoding="utf-8"))
        if not here.get("here"):
            continue
        verdicts = path.with_suffix(".verdicts.csv"), stem.with_suffix(".verdicts.csv")
        old, new = (pd.read_csv(file) for file in verdicts)
        changed = agreement.changed_verdicts(old, new)
        parts.append(Compared(chapter, profile, archive, values, changed, len(old), here))
    return parts


def contents(
    parts: list[Compared], names: Mapping[str, str], folder: Path, *, seconds: float
) -> dict[str, Any]:
    """Return what the template of the page needs; the picture is drawn into the folder.

    Args:
        parts: of `compared`.
        names: of the chapters.
        folder: of the page.
        seconds: of work that went into the kept results of the profile `laptop`.
    """
    if not parts:
        return {"chapters": [], "minutes": f"{seconds / 60:.0f}"}
    counts = {part.chapter: agreement.counts(part.values) for part in parts}
    rows = [
        [_title(part, names), len(part.values), *counts[part.chapter].values(), len(part.changed)]
        for part in parts
    ]
    whole = agreement.total(counts.values())
    return {
        "chapters": parts,
        "summary": _summary(whole, sum(len(part.changed) for part in parts)),
        "rounding": agreement.ROUNDING,
        "spreads": f"{agreement.SPREADS:g}",
        "header": ["chapter", "compared", *agreement.KINDS, "verdicts changed"],
        "rows": rows,
        "picture": _draw(parts, names, folder / PICTURE),
        "alt": f"Kept values against those of this machine: {_listed(whole)}",
        "verdicts": [row for part in parts for row in _changed(part, names)],
        "n_verdicts": sum(part.n_verdicts for part in parts),
        "differences": _largest(parts, names),
        "machines": [
            [_title(part, names), machine(part.archive.provenance), machine(part.here)]
            for part in parts
        ],
    }


def _title(part: Compared, names: Mapping[str, str]) -> str:
    return names[part.chapter] + ("" if part.profile == "laptop" else f" ({part.profile})")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _summary(counts: Mapping[str, int], changed: int) -> str:
    n = sum(counts.values())
    agree = sum(counts[kind] for kind in agreement.KINDS[:3])
    verdicts = {0: "every verdict is the same", 1: "one verdict differs"}.get(
        changed, f"{changed} verdicts differ"
    )
    return (
        f"**{agree:,} of {n:,} values agree with the kept ones ({agree / n:.1%}), and "
        f"{verdicts}**: {_listed(counts)}."
    )


def _changed(part: Compared, names: Mapping[str, str]) -> list[list[str]]:
    rows = part.changed.assign(
        chapter=_title(part, names),
        claim=part.changed["claim"].str.replace("-", " "),
        on=part.changed["data"].map(name_of) + ", " + part.changed["network"].map(name_of),
    )
    return rows[["chapter", "claim", "on", "verdict_kept", "verdict_here"]].to_numpy().tolist()


def _largest(parts: list[Compared], names: Mapping[str, str]) -> list[list[str]]:
    each = [part.values.assign(chapter=_title(part, names)) for part in parts]
    rows = agreement.largest(pd.concat(each, ignore_index=True), N_LARGEST)
    rows = rows.assign(
        metric=rows["metric"].str.replace("_", " "),
        kept=rows["kept"].map("{:.5g}".format),
        here=rows["here"].map("{:.5g}".format),
    )
    return rows[["chapter", "metric", "of", "kept", "here", "agreement"]].to_numpy().tolist()


def _draw(parts: list[Compared], names: Mapping[str, str], file: Path) -> str:
    from suite import plots

    plots.set_style()
    each = [part.values.assign(panel=_title(part, names)) for part in parts]
    figure = plots.kept_against_here(pd.concat(each, ignore_index=True), agreement.KINDS)
    figure.savefig(file, dpi=150)
    return file.name
