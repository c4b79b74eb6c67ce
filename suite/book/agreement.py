"""The page "Does this machine agree?": the results of this machine beside the kept ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from suite import plots
from suite.evidence import agreement
from suite.evidence.names import name_of
from suite.evidence.report import machine
from suite.paths import executed_folder
from suite.store import Kept, Store

PICTURE = "agreement.png"
VERDICTS = ["chapter", "claim", "on", "verdict_kept", "verdict_here"]
DIFFERENCES = ["chapter", "metric", "of", "kept", "here", "agreement"]


def contents(folder: Path, title: Callable[[str], str]) -> dict[str, Any]:
    """Compare this machine with the kept results; return the values of the template.

    Args:
        folder: of the page and its picture.
        title: returns the short name of a chapter.
    """
    archives, store = Kept().archives, Store()
    values, changed, rows, machines, n_verdicts = [], [], [], [], 0
    for path, archive in archives.items():
        chapter, profile = path.stem, path.parent.name
        stem = executed_folder() / "results" / profile / chapter
        if not (file := stem.with_suffix(".provenance.json")).exists():
            continue
        here = json.loads(file.read_text(encoding="utf-8"))
        others = [a for p, a in archives.items() if p.stem == chapter and p != path]
        if not here.get("here") or (frame := agreement.compare(archive, store, *others)).empty:
            continue
        verdicts = [pd.read_csv(results.with_suffix(".verdicts.csv")) for results in (path, stem)]
        differences = agreement.changed_verdicts(*verdicts)
        name = title(chapter) + f" ({profile})" * (profile != "laptop")
        values.append(frame.assign(chapter=name))
        changed.append(differences.assign(chapter=name))
        rows.append([name, len(frame), *agreement.counts(frame).values(), len(differences)])
        machines.append([name, machine(archive.provenance), machine(here)])
        n_verdicts += len(verdicts[0])
    page = {"rows": rows, "machines": machines, "n_verdicts": n_verdicts}
    page |= {"rounding": agreement.ROUNDING, "spreads": f"{agreement.SPREADS:g}"}
    seconds = [a.provenance["seconds"] for p, a in archives.items() if p.parent.name == "laptop"]
    page["minutes"] = f"{sum(seconds) / 60:.0f}"
    if rows:
        page |= _summarise(pd.concat(values, ignore_index=True), pd.concat(changed), folder)
    return page


def _summarise(values: pd.DataFrame, changed: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the counts, differences and changed verdicts of all chapters; draw the picture."""
    counts = agreement.counts(values)
    agree = sum(counts[kind] for kind in agreement.KINDS[:3])
    on = changed["data"].map(name_of) + ", " + changed["network"].map(name_of)
    verdicts = changed.assign(claim=changed["claim"].str.replace("-", " "), on=on)
    largest = agreement.largest(values, 20)
    texts = {name: largest[name].map("{:.5g}".format) for name in ("kept", "here")}
    largest = largest.assign(metric=largest["metric"].str.replace("_", " "), **texts)
    plots.set_style()
    panels = values.rename(columns={"chapter": "panel"})
    plots.compare_with_kept(panels, agreement.KINDS).savefig(folder / PICTURE, dpi=150)
    return {
        "agree": f"{agree:,} of {len(values):,} values",
        "share": f"{agree / len(values):.1%}",
        "listed": ", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        "header": ["chapter", "compared", *counts, "verdicts changed"],
        "picture": PICTURE,
        "verdicts": verdicts[VERDICTS].to_numpy().tolist(),
        "differences": largest[DIFFERENCES].to_numpy().tolist(),
    }
