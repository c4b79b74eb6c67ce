"""The page of benchmarks: a picture of the ratios, and the kept measurements."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite import plots
from suite.paths import ROOT, read_yaml

# Methods of a training step by what their row of the table calls them: time over a plain step.
STEP = " / plain"
# "peers": what others need over what the library needs, by the end of the row; titles of panels.
NAMED = read_yaml(Path(__file__).with_name("templates") / "benchmarks.yml")


def contents(folder: Path) -> dict[str, Any]:
    """Return what the template of the page needs; a picture for each machine is drawn there.

    Args:
        folder: of the page.
    """
    machines = []
    for file in sorted((ROOT / "benchmarks" / "results").glob("c*.json")):  # cpu, cuda
        machine = json.loads(file.read_text(encoding="utf-8"))
        about: dict[str, Any] = {"tables": defaultdict(list), "dates": {}, "picture": None}
        for row in machine["rows"]:
            about["tables"][row["benchmark"]].append(_words(row))
            when = f"{row.get('date', machine['date'])}, load {row.get('load_average', 'unknown')}"
            about["dates"][row["benchmark"]] = when
        if len(ratios := ratios_of(machine["rows"])):
            about |= {"picture": f"benchmarks-{file.stem}.png", "alt": _alt(ratios)}
            plots.set_style()
            plots.ratios(ratios, NAMED["titles"]).savefig(folder / about["picture"], dpi=150)
        about["missed"] = [row["case"] for row in machine["rows"] if row["met"] is False]
        about["met"] = sum(row["met"] is True for row in machine["rows"])
        machines.append(machine | about)
    return {"machines": machines}


def ratios_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the ratios that are drawn: `panel`, `method`, `network`, `ratio`, `low`, `high`.

    A case is "LeNet-5, batch 128: fast / plain" or, where another library does the same, whose
    name stands in `network` then, "NAME: LIBRARY / reglib". The last two columns are quartiles.
    """
    drawn = []
    for row in rows:
        subject, colon, method = row["case"].rpartition(": ")
        about: dict[str, Any] = {}
        if row["benchmark"] in ("training step", "penalties") and method.endswith(STEP):
            about = {"panel": row["benchmark"], "method": method.removesuffix(STEP)}
            about["network"] = subject.partition(", batch")[0]
        for end, peer in NAMED["peers"].items():
            if row["case"].endswith(end):
                what = subject if colon else f"input Hessian, {end.partition(' / ')[2]}"
                about = {"panel": "peers", "method": what, "network": peer}
        if about and row["unit"] == "x" and row["quartiles"]:
            low, high = row["quartiles"]
            drawn.append(about | {"ratio": row["value"], "low": low, "high": high})
    return pd.DataFrame(drawn, columns=["panel", "method", "network", "ratio", "low", "high"])


def _alt(ratios: pd.DataFrame) -> str:
    fast = ratios[(ratios["panel"] == "training step") & ratios["method"].str.startswith("fast")]
    parts = [f"{r.network}, {r.method}: {r.ratio:.2g} plain steps" for r in fast.itertuples()]
    return "Ratios of times with their quartiles, as in the tables below. " + "; ".join(parts)


def _words(row: Mapping[str, Any]) -> list[str]:
    goal = f"{row['goal']:.3g}" if isinstance(row["goal"], float) else row["goal"] or ""
    quartiles = " to ".join(map(_number, row["quartiles"] or []))
    met = {True: "met", False: "not met", None: ""}[row["met"]]
    return [row["case"], f"{_number(row['value'])} {row['unit']}", quartiles, goal, met]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
