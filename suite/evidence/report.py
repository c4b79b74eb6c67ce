"""Verdicts as tables and sentences, and of the headline claims one row each."""

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
MOST_NEEDED = 10_000  # more than that is no plan
AGAIN = {"laptop": "; `make rerun` repeats it", "desktop": "; `make rerun` repeats a part of it"}


def all_verdicts(*, kept_only: bool = False, every: bool = False) -> pd.DataFrame:
    """Collect the verdicts of the latest runs, which come first, and of the kept results.

    The profile `smoke` is left out: its results are not evidence.

    Args:
        kept_only: leave out the latest runs.
        every: also runs that are of none of `PROFILES`, which pages do not take as evidence; files
            that are damaged, which `damaged_results` names, are left out.

    Returns:
        One row a verdict: `chapter`, the columns of `suite.evidence.claims.judge`, and `profile`.

    Raises:
        UsageError: a file is damaged or of an older version; it names the file.
    """
    tables = [pd.DataFrame(columns=VERDICT_COLUMNS)]
    folders = [KEPT_RESULTS] if kept_only else [executed_folder() / "results", KEPT_RESULTS]
    for file in (path for folder in folders for path in sorted(folder.glob("*/*.verdicts.csv"))):
        chapter, run = file.name.partition(".")[0], file.parent.name
        shown = run.partition("+")[0] != "smoke" if every else run in PROFILES[:-1]
        if (NOTEBOOKS / f"{chapter}.ipynb").exists() and shown:
            with contextlib.suppress(*[UsageError] * every):
                table = read_verdicts(file).assign(chapter=chapter)
                tables += [table[VERDICT_COLUMNS]] if len(table) else []  # there are no claims
    verdicts = pd.concat(tables[1:] or tables, ignore_index=True)
    return verdicts.drop_duplicates(["chapter", "profile", "claim", "data", "network"])


def damaged_results() -> list[str]:
    """Return the results that cannot be read, with what is wrong, a line a file."""
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
    """Return the verdicts on each claim at the best profile that tested it."""
    ran = verdicts[verdicts["verdict"] != NOT_RUN]
    return best_rows(ran, [name for name in ("chapter", "claim") if name in ran])


def join_claims(chapter: str, verdicts: pd.DataFrame, section: str | None = None) -> pd.DataFrame:
    """Join the verdicts of a chapter to its claims, in their order.

    Args:
        chapter: whose claims.
        verdicts: of `judge`, with the column `profile`.
        section: of the claims; default: all.

    Returns:
        One row a verdict: the columns of `verdicts`, and those of the claim that tables show, `on`
        (data, network and profile by their names), `measured` and `remark` (in words).
    """
    claims = pd.DataFrame(load_claims(chapter), columns=["id", "says", "section", "published"])
    claims = claims if section is None else claims[claims["section"] == section]
    rows = claims.rename(columns={"id": "claim"}).merge(verdicts, on="claim")
    on = rows["data"].map(name_of) + ", " + rows["network"].map(name_of) + ", " + rows["profile"]
    names = load_words(chapter)["names"]
    statistic = [name_sides(text, names) for text in rows["statistic"].fillna("")]
    rows = rows.assign(on=on, statistic=statistic)
    every = [row for _, row in rows.iterrows()]
    return rows.assign(measured=[*map(write_estimate, every)], remark=[*map(remark, every)])


def name_sides(statistic: str, names: Mapping[str, str]) -> str:
    """Write a statistic with the names of what it compares.

    >>> name_sides("fpn+l1 − none", {"fpn+l1": "pyramid with L1", "none": "plain network"})
    'pyramid with L1 − plain network'
    """
    words = [f"({re.escape(name)})" for name in sorted(names, key=len, reverse=True)]
    pattern = rf"(?<![\w+])(?:{'|'.join(words)})(?![\w+])"
    return re.sub(pattern, lambda found: names[found[0]], statistic) if words else statistic


def remark(row: "pd.Series[Any]") -> str:
    """Write the remark on a verdict: why, how large, how many would settle it, and looks.

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
    """Compare what was published with what was measured, one row for each claim, as HTML.

    Args:
        rows: of `join_claims`, of claims that were tested.
    """
    network = rows["network"].nunique() > 1
    profile = rows.groupby(["data", "network"])["profile"].transform("nunique") > 1
    on = rows["data"].map(name_of) + (", " + rows["network"].map(name_of) if network else "")
    rows = rows.assign(on=on + (", " + rows["profile"]).where(profile, ""))
    table = []
    for _, claim in rows.groupby("claim", sort=False):
        compared = set(claim["statistic"]) - {""}
        lines = []
        for _, row in claim.iterrows():
            found = write_estimate(row, with_p=False)
            found = found.removeprefix(f"{row['statistic']}: ") if len(compared) == 1 else found
            told = ": ".join(filter(None, [row["on"], found, row["remark"]]))
            lines.append(f"<b>{row['word']}</b> ({row['scale']}), {told}")
        first, once = claim.iloc[0], [*compared] if len(compared) == 1 else []
        says = [first["says"], *map("<i>{}</i>".format, once)]
        cells = {"claim": says, "published": [first["published"]], "here": lines}
        table.append({name: "<br>".join(texts) for name, texts in cells.items()})
    return pd.DataFrame(table)


def section_verdicts(chapter: str, verdicts: pd.DataFrame, section: str) -> pd.DataFrame:
    """Put the verdicts of a section into a table, see `tabulate_claims`.

    The table has the best profile that tested each claim, and others where they say otherwise.
    What another profile could not test is left out.

    Args:
        chapter, verdicts, section: see `join_claims`.
    """
    rows = join_claims(chapter, verdicts, section)
    tested = rows[rows["verdict"] != NOT_RUN]
    largest = tested.index.isin(best_verdicts(rows).index)
    words = tested["claim"] + " " + tested["verdict"]
    left_out = ~largest & (words.isin(words[largest]) | (tested["verdict"] == NOT_TESTABLE))
    return tabulate_claims(tested[~left_out])


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
        provenance: of the run; `here` counts the units that this machine has computed, and is not
            there for kept results of a larger run.
    """
    units, here, run = provenance["units"], provenance.get("here", 0), provenance["profile"]
    where = f"{machine(provenance)}, in {minutes(provenance['seconds'])} of work"
    if here == units:
        return f"*{run}*: {units} units, all computed on this machine: {where}."
    kept = f"{units - here} kept units" + (f" and {here} of this machine" if here else "")
    return f"*{run}*: {kept}, computed on {where}{AGAIN.get(run, '')}."


def machine(provenance: Mapping[str, Any]) -> str:
    """Describe the machine and the commit that computed the numbers of a run."""
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
    """Return one row for each headline claim of a chapter: that of its main panel.

    Args:
        chapter: whose claims.
        verdicts: see `join_claims`.

    Returns:
        The columns of `join_claims`; a claim that no profile tested is *not run*.
    """
    best = join_claims(chapter, best_verdicts(verdicts[verdicts["main"].astype(bool)]))
    rows = []
    for claim in (claim for claim in load_claims(chapter) if claim["tier"] == "headline"):
        found = best[best["claim"] == claim["id"]]
        rows.append(_not_run(claim) if found.empty else found.iloc[0].to_dict())
    return pd.DataFrame(rows)


def _not_run(claim: Claim) -> dict[str, Any]:
    text = ("data", "network", "profile", "on", "measured", "detail", "remark", "statistic")
    row = dict.fromkeys(COLUMNS, np.nan) | dict.fromkeys((*text, "scale"), "")
    row |= {name: claim[name] for name in ("says", "tier", "section", "published", "unit")}
    row |= {"detail": claim.get("elsewhere", ""), "main": True, "within": False, "looks": 0}
    return row | {"claim": claim["id"], "verdict": NOT_RUN, "word": NOT_RUN, "n": 0}


def accuracies(chapter: str, rows: pd.DataFrame) -> str:
    """Write the accuracy of the networks of verdicts, and that of the paper's.

    >>> rows = {"claim": [""] * 2, "accuracy": [0.8141, 0.79], "accuracy_of_paper": [0.945, np.nan]}
    >>> accuracies("top_gap", pd.DataFrame(rows))
    '0.79 to 0.814 (paper: 0.945)'
    """
    here, paper = rows["accuracy"].dropna(), rows["accuracy_of_paper"].max()
    if here.empty:
        return ""
    ends = dict.fromkeys(f"{value:.3g}" for value in (here.min(), here.max()))
    text, settings = " to ".join(ends), load_settings(chapter)
    if np.isfinite(paper):
        return f"{text} (paper: {paper:.3g})"
    claims = [c for c in load_claims(chapter) if c["id"] in set(rows["claim"])]
    there = {data for claim in claims for data in claim["data_of_paper"]}
    for setting in settings if set(rows["scale"]) == {STAND_IN} else ():
        if setting.data[0] in there and np.isfinite(setting.accuracy):
            return f"{text} (paper: {setting.accuracy:.3g} on {name_of(setting.data[0])})"
    return f"{text} (paper: no number)" if settings else text


def tally(rows: pd.DataFrame, whose: str = "") -> str:
    """Count the headlines that held, scale by scale, in a sentence."""
    ran, parts = rows[rows["verdict"] != NOT_RUN], []
    for scale in SCALES:
        held = (words := ran[ran["scale"] == scale]["verdict"]).eq(HOLDS).sum()
        parts += [f"{held} of {len(words)} {AT[scale]}"] if len(words) else []
    parts += [f"{missing} {NOT_RUN}"] if (missing := len(rows) - len(ran)) else []
    text = f"{whose}headline claims that held: {', '.join(parts)}."
    return text[0].upper() + text[1:]


def describe_printed(verdict: Verdict | None) -> str:
    """Describe the verdict on the numbers that a paper prints; return "" if it prints none."""
    if verdict is None or verdict.finding is None:
        return ""
    about = verdict.finding.interval._asdict() | vars(verdict.finding)
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.word}{detail} ({write_estimate(pd.Series(about, dtype=object))})"
