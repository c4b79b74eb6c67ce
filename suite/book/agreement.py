"""The page "Does this machine agree?": the results of this machine beside the kept ones."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite import plots
from suite.evidence.names import name_of
from suite.evidence.report import machine
from suite.paths import executed_folder
from suite.store import Archive, Kept, Reader, Store

EQUAL, ROUNDED, WITHIN, ALONE, OUTSIDE = KINDS = (
    "equal to the digit",
    "equal within rounding",
    "within the spread of seeds",
    "differs, one seed only",
    "outside",
)
ROUNDING = 1e-5  # relative: the effect of another order of sums in float32
SPREADS = 2.0  # standard deviations of the kept values over seeds
PICTURE = "agreement.png"
PANEL = ["claim", "data", "network"]
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
        if not here.get("here") or (frame := compare(archive, store, *others)).empty:
            continue
        verdicts = [pd.read_csv(results.with_suffix(".verdicts.csv")) for results in (path, stem)]
        pairs = verdicts[0].merge(verdicts[1], on=PANEL, suffixes=("_kept", "_here"))
        differences = pairs[pairs["verdict_kept"] != pairs["verdict_here"]]
        name = title(chapter) + f" ({profile})" * (profile != "laptop")
        values.append(frame.assign(chapter=name))
        changed.append(differences.assign(chapter=name))
        rows.append([name, len(frame), *count(frame), len(differences)])
        machines.append([name, machine(archive.provenance), machine(here)])
        n_verdicts += len(verdicts[0])
    page = {"rows": rows, "machines": machines, "n_verdicts": n_verdicts}
    page |= {"rounding": ROUNDING, "spreads": f"{SPREADS:g}"}
    seconds = [a.provenance["seconds"] for p, a in archives.items() if p.parent.name == "laptop"]
    page["minutes"] = f"{sum(seconds) / 60:.0f}"
    if rows:
        page |= _summarise(pd.concat(values, ignore_index=True), pd.concat(changed), folder)
    return page


def _summarise(values: pd.DataFrame, changed: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the counts, differences and changed verdicts of all chapters; draw the picture."""
    counts = dict(zip(KINDS, count(values)))
    agree = sum(list(counts.values())[:3])
    on = changed["data"].map(name_of) + ", " + changed["network"].map(name_of)
    verdicts = changed.assign(claim=changed["claim"].str.replace("-", " "), on=on)
    differences = largest(values, 20)
    texts = {name: differences[name].map("{:.5g}".format) for name in ("kept", "here")}
    differences = differences.assign(metric=differences["metric"].str.replace("_", " "), **texts)
    plots.set_style()
    panels = values.rename(columns={"chapter": "panel"})
    plots.compare_with_kept(panels, KINDS).savefig(folder / PICTURE, dpi=150)
    return {
        "agree": f"{agree:,} of {len(values):,} values",
        "share": f"{agree / len(values):.1%}",
        "listed": ", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        "header": ["chapter", "compared", *counts, "verdicts changed"],
        "picture": PICTURE,
        "verdicts": verdicts[VERDICTS].to_numpy().tolist(),
        "differences": differences[DIFFERENCES].to_numpy().tolist(),
    }


def compare(archive: Archive, here: Reader, *others: Archive) -> pd.DataFrame:
    r"""Compare each kept value with the value that was computed here.

    Args:
        archive: the kept results.
        here: the results of this machine.
        others: further kept results, which may have more seeds.

    Returns:
        One row for each unit that both have: `metric`, `of` (network, data and settings), `kept`,
        `here`, `difference`, `spread` (the standard deviation of all kept values of units that
        differ in their seed alone; NaN for a single one) and `agreement`, one of `KINDS`. Two
        values agree within rounding if :math:`|a - b| \le 10^{-5} \max(|a|, |b|)`, and within the
        spread of seeds if :math:`|a - b|` is at most twice the spread. One seed has no spread.
    """
    rows = []
    for key, computed in here.read_all(archive.records).items():
        kept = archive.records[key]
        unit, same = kept.unit, kept.status == computed.status
        metric = unit.get("metric", "training loss")
        rows.append((metric, _describe(unit), _group(unit), kept.value, computed.value, same))
    frame = pd.DataFrame(rows, columns="metric of group kept here same_status".split())
    records = {key: record for a in (archive, *others) for key, record in a.records.items()}
    values = pd.Series([record.value for record in records.values()], dtype=float)
    spreads = values.groupby([_group(record.unit) for record in records.values()]).std()
    frame["spread"] = frame["group"].map(spreads)
    frame["difference"] = frame["here"] - frame["kept"]
    return frame.assign(agreement=_classify(frame)).drop(columns=["group", "same_status"])


def _classify(frame: pd.DataFrame) -> Any:
    kept, here, spread = (frame[name].to_numpy(float) for name in ("kept", "here", "spread"))
    distance = np.abs(here - kept)
    equal = (here == kept) | (np.isnan(here) & np.isnan(kept))
    rounded = distance <= ROUNDING * np.maximum(np.abs(kept), np.abs(here))
    alone = np.isfinite(distance) & np.isnan(spread)
    differs = ~frame["same_status"].to_numpy(bool)
    conditions = [differs, equal, rounded, distance <= SPREADS * spread, alone]
    return np.select(conditions, [OUTSIDE, *KINDS[:4]], OUTSIDE)


def _group(unit: Mapping[str, Any]) -> str:
    """Return the identity of a unit without its seed and the seed of its network."""
    return str({n: _group(v) if isinstance(v, dict) else v for n, v in unit.items() if n != "seed"})


def _describe(unit: Any) -> str:
    """Describe a unit in a few words."""
    network = unit.get("training", unit)
    parts = [network["network"], network["data"]]
    parts += [f"{n} {term['strength']:.3g}" for n, term in network.get("penalties", {}).items()]
    parts += [f"{name} {value}" for name, value in unit.get("settings", {}).items()]
    return ", ".join([*parts, f"seed {network.get('seed', '–')}"]).replace("_", " ")


def largest(frame: pd.DataFrame, n: int) -> pd.DataFrame:
    """Return the `n` largest differences: those outside first, in units of the spread.

    One seed has no spread: its difference is relative to the kept value.
    """
    frame = frame[frame["agreement"].isin([WITHIN, ALONE, OUTSIDE])]
    scale = frame["spread"].where(frame["spread"] > 0, frame["kept"].abs())
    size = (frame["difference"].abs() / scale).fillna(np.inf)
    return frame.iloc[np.lexsort((-size, frame["agreement"] != OUTSIDE))[:n]]


def count(frame: pd.DataFrame) -> list[int]:
    """Count the values of each of `KINDS`, in their order."""
    return frame["agreement"].value_counts().reindex(KINDS, fill_value=0).tolist()
