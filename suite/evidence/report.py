"""Verdicts as tables and sentences, and one row for each headline claim."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.errors import UsageError
from suite.evidence.claims import COLUMNS, Claim, load_claims, load_settings, load_words
from suite.evidence.names import name_of, readable
from suite.evidence.results import read_verdicts
from suite.evidence.rules import HOLDS, INCONCLUSIVE, NOT_RUN, NOT_TESTABLE, Verdict
from suite.evidence.scale import AT, SCALES, STAND_IN
from suite.evidence.statistics import Interval
from suite.evidence.tables import PROFILES, best_rows, interval_text
from suite.paths import KEPT_RESULTS, NOTEBOOKS, executed_folder
from suite.store import read_archive

VERDICT_COLUMNS = ["chapter", *COLUMNS, "profile"]
MOST_NEEDED = 10_000  # units that a plan may ask for
AGAIN = {"laptop": "; `make rerun` repeats it", "desktop": "; `make rerun` repeats a part of it"}


def all_verdicts(*, kept_only: bool = False, every: bool = False) -> pd.DataFrame:
    """Collect the verdicts of the latest runs, then of the kept results.

    The profile `smoke` is omitted: its results are not evidence.

    Args:
        kept_only: omit the latest runs.
        every: include runs with a profile outside `PROFILES`, which pages do not take as evidence,
            and skip damaged files, which `damaged_results` names.

    Returns:
        One row for each verdict: `chapter`, the columns of `claims.judge`, and `profile`.

    Raises:
        UsageError: a file is damaged or of an older version; it names the file.
    """
    tables = [pd.DataFrame(columns=VERDICT_COLUMNS)]
    folders = [KEPT_RESULTS] if kept_only else [executed_folder() / "results", KEPT_RESULTS]
    for file in (path for folder in folders for path in sorted(folder.glob("*/*.verdicts.csv"))):
        chapter, run = file.name.partition(".")[0], file.parent.name
        is_evidence = run.partition("+")[0] != "smoke" if every else run in PROFILES[:-1]
        if (NOTEBOOKS / f"{chapter}.ipynb").exists() and is_evidence:
            with contextlib.suppress(*[UsageError] * every):
                table = read_verdicts(file).assign(chapter=chapter)
                tables += [table[VERDICT_COLUMNS]] if len(table) else []  # a chapter without claims
    verdicts = pd.concat(tables[1:] or tables, ignore_index=True)
    return verdicts.drop_duplicates(["chapter", "profile", "claim", "data", "network"])


def damaged_results() -> list[str]:
    """Return one line for each file of results that cannot be read, with the reason."""
    readers: dict[str, Callable[[Path], object]] = {".csv": partial(pd.read_csv, dtype=str)}
    readers |= {".verdicts.csv": read_verdicts, ".zip": read_archive}
    readers |= {".provenance.json": lambda file: json.loads(file.read_bytes())}
    lines, latest = [], executed_folder() / "results"
    for file in sorted([*latest.glob("*/*.*"), *KEPT_RESULTS.glob("*/*.*")]):
        try:
            readers.get(file.name[file.name.index(".") :], Path.exists)(file)
        except (OSError, ValueError) as error:
            lines.append(str(error) if isinstance(error, UsageError) else f"{file}: {error}")
    return lines


def best_verdicts(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on each claim at the best profile with a test."""
    ran = verdicts[verdicts["verdict"] != NOT_RUN]
    return best_rows(ran, [name for name in ("chapter", "claim") if name in ran])


def join_claims(chapter: str, verdicts: pd.DataFrame, section: str | None = None) -> pd.DataFrame:
    """Join the verdicts of a chapter to its claims, in their order.

    Args:
        chapter: the chapter of the claims.
        verdicts: of `judge`, with the column `profile`.
        section: of the claims; default: all.

    Returns:
        One row for each verdict: the columns of `verdicts`, and `says`, `section` and `published`
        of the claim, `on` (data, network, profile), `measured` and `remark` (in words).
    """
    claims = pd.DataFrame(load_claims(chapter), columns=["id", "says", "section", "published"])
    claims = claims if section is None else claims[claims["section"] == section]
    rows = claims.rename(columns={"id": "claim"}).merge(verdicts, on="claim")
    on = rows["data"].map(name_of) + ", " + rows["network"].map(name_of) + ", " + rows["profile"]
    names = load_words(chapter)["names"]
    statistic = [name_sides(text, names) for text in rows["statistic"].fillna("")]
    rows = rows.assign(on=on, statistic=statistic)
    series = [row for _, row in rows.iterrows()]
    return rows.assign(measured=[*map(write_estimate, series)], remark=[*map(remark, series)])


def name_sides(statistic: str, names: Mapping[str, str]) -> str:
    """Write a statistic with the names of its two sides.

    >>> name_sides("fpn+l1 − none", {"fpn+l1": "pyramid with L1", "none": "plain network"})
    'pyramid with L1 − plain network'
    """
    words = [f"({re.escape(name)})" for name in sorted(names, key=len, reverse=True)]
    pattern = rf"(?<![\w+])(?:{'|'.join(words)})(?![\w+])"
    return re.sub(pattern, lambda match: names[match[0]], statistic) if words else statistic


def remark(row: "pd.Series[Any]") -> str:
    """Write the remark on a verdict: the reason or size, the units it needs, and its looks.

    >>> row = {"verdict": "inconclusive", "detail": "", "needed": 31.0, "unit": "network"}
    >>> remark(pd.Series(row | {"looks": 2}))
    'about 31 networks would settle it, looked at 2 times'
    """
    parts = [row["detail"]]
    if row["verdict"] == INCONCLUSIVE and not row["detail"] and row["needed"] <= MOST_NEEDED:
        parts = [f"about {row['needed']:.0f} {row['unit']}s would settle it"]
    if row["looks"] > 1 and row["verdict"] not in (NOT_RUN, NOT_TESTABLE):
        parts.append(f"looked at {row['looks']:.0f} times")
    return ", ".join(filter(None, parts))


def tabulate_claims(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare the published and the measured effects, one row for each claim, as HTML.

    Args:
        rows: of `join_claims`, for claims that were tested.
    """
    network = rows["network"].nunique() > 1
    profile = rows.groupby(["data", "network"])["profile"].transform("nunique") > 1
    on = rows["data"].map(name_of) + (", " + rows["network"].map(name_of) if network else "")
    rows = rows.assign(on=on + (", " + rows["profile"]).where(profile, ""))
    table = []
    for _, claim in rows.groupby("claim", sort=False):
        statistics = {*claim["statistic"]} - {""}
        shared = statistics.pop() if len(statistics) == 1 else ""
        lines = []
        for _, row in claim.iterrows():
            estimate = write_estimate(row, with_p=False).removeprefix(f"{shared}: ")
            text = ": ".join(filter(None, [row["on"], estimate, row["remark"]]))
            lines.append(f"<b>{row['word']}</b> ({row['scale']}), {text}")
        says, published = claim[["says", "published"]].iloc[0]
        says += f"<br><i>{shared}</i>" if shared else ""
        table.append({"claim": says, "published": published, "here": "<br>".join(lines)})
    return pd.DataFrame(table)


def section_verdicts(chapter: str, verdicts: pd.DataFrame, section: str) -> pd.DataFrame:
    """Put the verdicts of a section into a table, see `tabulate_claims`.

    Each claim has its verdicts at the best profile, and the other verdicts of further profiles.
    A further profile that could not test the claim is omitted.

    Args:
        chapter, verdicts, section: see `join_claims`.
    """
    rows = join_claims(chapter, verdicts, section)
    tested = rows[rows["verdict"] != NOT_RUN]
    best = tested.index.isin(best_verdicts(rows).index)
    words = tested["claim"] + " " + tested["verdict"]
    new = ~words.isin(words[best]) & (tested["verdict"] != NOT_TESTABLE)
    return tabulate_claims(tested[new | best])


def write_estimate(verdict: "pd.Series[Any]", *, with_p: bool = True) -> str:
    """Write the estimate of a verdict with its interval, p-value and number of units."""
    if not np.isfinite(verdict["estimate"]) or verdict.get("verdict") == NOT_TESTABLE:
        return ""
    ends = interval_text(Interval(*verdict[["estimate", "low", "high"]]))
    p = f", p = {verdict['p']:.2g}" if with_p and np.isfinite(verdict["p"]) else ""
    return f"{verdict['statistic']}: {ends}{p}, n = {verdict['n']:.0f}"


def origin(provenance: Mapping[str, Any]) -> str:
    """Describe in one line where the numbers of a run come from.

    Args:
        provenance: of the run; `here` counts the units of this machine. Kept results of a larger
            run lack it.
    """
    units, here, run = provenance["units"], provenance.get("here", 0), provenance["profile"]
    where = f"{machine(provenance)}, in {minutes(provenance['seconds'])} of work"
    if here == units:
        return f"*{run}*: {units} units, all computed on this machine: {where}."
    kept = f"{units - here} kept units" + (f" and {here} of this machine" if here else "")
    return f"*{run}*: {kept}, computed on {where}{AGAIN.get(run, '')}."


def machine(provenance: Mapping[str, Any]) -> str:
    """Describe the machine and the commit of a run."""
    counts = readable(provenance["threads"])
    threads = f"{counts} thread{'s' * (counts != '1')} a process"
    devices = " and ".join(provenance["device"])
    return f"{devices} with {threads}, at commit {readable(provenance['commit'])}"


def minutes(seconds: float) -> str:
    """Write a duration.

    >>> minutes(20), minutes(290), minutes(8000)
    ('20 s', '5 min', '2.2 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def headlines(chapter: str, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the verdict on each headline claim of a chapter at its main panel.

    Args:
        chapter: the chapter of the claims.
        verdicts: see `join_claims`.

    Returns:
        The columns of `join_claims`; a claim that no profile tested is *not run*.
    """
    best = join_claims(chapter, best_verdicts(verdicts[verdicts["main"].astype(bool)]))
    rows = []
    for claim in (claim for claim in load_claims(chapter) if claim["tier"] == "headline"):
        tested = best[best["claim"] == claim["id"]]
        rows.append(_not_run(claim) if tested.empty else tested.iloc[0].to_dict())
    return pd.DataFrame(rows)


def _not_run(claim: Claim) -> dict[str, Any]:
    text = ("data", "network", "profile", "on", "measured", "detail", "remark", "statistic")
    row = dict.fromkeys(COLUMNS, np.nan) | dict.fromkeys((*text, "scale"), "")
    row |= {name: claim[name] for name in ("says", "tier", "section", "published", "unit")}
    row |= {"detail": claim.get("elsewhere", ""), "main": True, "within": False, "looks": 0}
    return row | {"claim": claim["id"], "verdict": NOT_RUN, "word": NOT_RUN, "n": 0}


def accuracies(chapter: str, rows: pd.DataFrame) -> str:
    """Write the accuracy of the networks of verdicts, and the accuracy of the paper.

    >>> rows = {"claim": [""] * 2, "accuracy": [0.8141, 0.79], "accuracy_of_paper": [0.945, np.nan]}
    >>> accuracies("top_gap", pd.DataFrame(rows))
    '0.79 to 0.814 (paper: 0.945)'
    """
    here, paper = rows["accuracy"].dropna(), rows["accuracy_of_paper"].max()
    if here.empty:
        return ""
    ends = dict.fromkeys(f"{value:.3g}" for value in np.round([here.min(), here.max()], 9))
    text, settings = " to ".join(ends), load_settings(chapter)
    if np.isfinite(paper):
        return f"{text} (paper: {paper:.3g})"
    claims = [c for c in load_claims(chapter) if c["id"] in set(rows["claim"])]
    data_of_paper = {data for claim in claims for data in claim["data_of_paper"]}
    for setting in settings if set(rows["scale"]) == {STAND_IN} else ():
        if setting.data[0] in data_of_paper and np.isfinite(setting.accuracy):
            return f"{text} (paper: {setting.accuracy:.3g} on {name_of(setting.data[0])})"
    return f"{text} (paper: no number)" if settings else text


def tally(rows: pd.DataFrame, whose: str = "") -> str:
    """Count the headlines that held at each scale, in a sentence."""
    ran, parts = rows[rows["verdict"] != NOT_RUN], []
    for scale in SCALES:
        held = (words := ran[ran["scale"] == scale]["verdict"]).eq(HOLDS).sum()
        parts += [f"{held} of {len(words)} {AT[scale]}"] if len(words) else []
    parts += [f"{missing} {NOT_RUN}"] if (missing := len(rows) - len(ran)) else []
    text = f"{whose}headline claims that held: {', '.join(parts)}."
    return text[0].upper() + text[1:]


def describe_printed(verdict: Verdict | None) -> str:
    """Describe the verdict on the printed numbers of a paper; return "" without such numbers."""
    if verdict is None or verdict.finding is None:
        return ""
    finding = verdict.finding.interval._asdict() | vars(verdict.finding)
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.word}{detail} ({write_estimate(pd.Series(finding, dtype=object))})"
