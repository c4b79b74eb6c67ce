"""The page "Does this machine agree?": compare what was computed here with kept results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from suite.evidence import agreement
from suite.evidence.names import name_of
from suite.evidence.report import machine
from suite.paths import executed_folder
from suite.store import Archive, Kept, Store

N_LARGEST = 20
PICTURE = "agreement.png"
VERDICTS = ["chapter", "claim", "on", "verdict_kept", "verdict_here"]
DIFFERENCES = ["chapter", "metric", "of", "kept", "here", "agreement"]


@dataclass(frozen=True, eq=False)
class Compared:
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
        if not stem.with_suffix(".provenance.json").exists():
            continue
        here = json.loads(stem.with_suffix(".provenance.json").read_text(encoding="utf-8"))
        others = [a for p, a in kept.archives.items() if p.stem == chapter and p != path]
        if not here.get("here") or (values := agreement.compare(archive, store, *others)).empty:
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
    shown = {p: names[p.chapter] + f" ({p.profile})" * (p.profile != "laptop") for p in parts}
    values = pd.concat([p.values.assign(chapter=title) for p, title in shown.items()])
    changed = pd.concat([p.changed.assign(chapter=title) for p, title in shown.items()])
    counts = agreement.counts(values)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    agree = sum(counts[kind] for kind in agreement.KINDS[:3])
    on = changed["data"].map(name_of) + ", " + changed["network"].map(name_of)
    verdicts = changed.assign(claim=changed["claim"].str.replace("-", " "), on=on)
    largest = agreement.largest(values, N_LARGEST)
    texts = {name: largest[name].map("{:.5g}".format) for name in ("kept", "here")}
    largest = largest.assign(metric=largest["metric"].str.replace("_", " "), **texts)
    counted = ((t, p, agreement.counts(p.values).values()) for p, t in shown.items())
    rows = [[title, len(p.values), *counts, len(p.changed)] for title, p, counts in counted]
    machines = [[t, machine(p.archive.provenance), machine(p.here)] for p, t in shown.items()]
    return {
        "chapters": parts,
        "agree": f"{agree:,} of {len(values):,} values",
        "share": f"{agree / len(values):.1%}",
        "listed": listed,
        "rounding": agreement.ROUNDING,
        "spreads": f"{agreement.SPREADS:g}",
        "header": ["chapter", "compared", *agreement.KINDS, "verdicts changed"],
        "rows": rows,
        "picture": _draw(values, folder / PICTURE),
        "verdicts": verdicts[VERDICTS].to_numpy().tolist(),
        "n_verdicts": sum(part.n_verdicts for part in parts),
        "differences": largest[DIFFERENCES].to_numpy().tolist(),
        "machines": machines,
    }


def _draw(values: pd.DataFrame, file: Path) -> str:
    from suite import plots

    plots.set_style()
    panels = values.rename(columns={"chapter": "panel"}).reset_index(drop=True)
    plots.kept_against_here(panels, agreement.KINDS).savefig(file, dpi=150)
    return file.name
