"""The page "Does this machine agree?": compare what was computed here with kept results."""

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
    """Compare what was executed with what is kept; return what the template of the page needs.

    Args:
        folder: of the page, into which the picture is drawn.
        title: returns the short name of a chapter.
    """
    kept, store = Kept(), Store()
    values, changed, rows, machines, n_verdicts = [], [], [], [], 0
    for path, archive in kept.archives.items():
        chapter, profile = path.stem, path.parent.name
        stem = executed_folder() / "results" / profile / chapter
        if not (beside := stem.with_suffix(".provenance.json")).exists():
            continue
        here = json.loads(beside.read_text(encoding="utf-8"))
        others = [a for p, a in kept.archives.items() if p.stem == chapter and p != path]
        if not here.get("here") or (found := agreement.compare(archive, store, *others)).empty:
            continue
        verdicts = [pd.read_csv(file.with_suffix(".verdicts.csv")) for file in (path, stem)]
        differ = agreement.changed_verdicts(*verdicts)
        name = title(chapter) + f" ({profile})" * (profile != "laptop")
        values.append(found.assign(chapter=name))
        changed.append(differ.assign(chapter=name))
        rows.append([name, len(found), *agreement.counts(found).values(), len(differ)])
        machines.append([name, machine(archive.provenance), machine(here)])
        n_verdicts += len(verdicts[0])
    about = {"rows": rows, "machines": machines, "n_verdicts": n_verdicts}
    about |= {"rounding": agreement.ROUNDING, "spreads": f"{agreement.SPREADS:g}"}
    laptop = [a.provenance for path, a in kept.archives.items() if path.parent.name == "laptop"]
    about["minutes"] = f"{sum(provenance['seconds'] for provenance in laptop) / 60:.0f}"
    return about | _summarise(pd.concat(values), pd.concat(changed), folder) if rows else about


def _summarise(values: pd.DataFrame, changed: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return what is said of the values and changed verdicts of all chapters."""
    counts = agreement.counts(values)
    agree = sum(counts[kind] for kind in agreement.KINDS[:3])
    on = changed["data"].map(name_of) + ", " + changed["network"].map(name_of)
    verdicts = changed.assign(claim=changed["claim"].str.replace("-", " "), on=on)
    largest = agreement.largest(values, 20)
    texts = {name: largest[name].map("{:.5g}".format) for name in ("kept", "here")}
    largest = largest.assign(metric=largest["metric"].str.replace("_", " "), **texts)
    plots.set_style()
    panels = values.rename(columns={"chapter": "panel"}).reset_index(drop=True)
    plots.kept_against_here(panels, agreement.KINDS).savefig(folder / PICTURE, dpi=150)
    return {
        "agree": f"{agree:,} of {len(values):,} values",
        "share": f"{agree / len(values):.1%}",
        "listed": ", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        "header": ["chapter", "compared", *counts, "verdicts changed"],
        "picture": PICTURE,
        "verdicts": verdicts[VERDICTS].to_numpy().tolist(),
        "differences": largest[DIFFERENCES].to_numpy().tolist(),
    }
