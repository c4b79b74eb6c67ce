"""The page of benchmarks: a picture of the ratios, and the kept measurements."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite import plots
from suite.paths import ROOT, read_yaml

STEP = " / plain"  # end of a case: the time of a training step over the time of a plain step
# "peers": other programs by the end of a case, their time over the library's; titles of panels.
NAMED = read_yaml(Path(__file__).with_name("templates") / "benchmarks.yml")


def contents(folder: Path) -> dict[str, Any]:
    """Return the values of the template of the page, and draw a picture for each machine.

    Args:
        folder: of the page and its pictures.
    """
    machines = []
    for file in sorted((ROOT / "benchmarks" / "results").glob("c*.json")):  # cpu, cuda
        machine = json.loads(file.read_text(encoding="utf-8"))
        rows, ratios = machine["rows"], ratios_of(machine["rows"])
        machine |= {"tables": defaultdict(list), "dates": {}, "picture": None}
        for row in rows:
            date = f"{row.get('date', machine['date'])}, load {row.get('load_average', 'unknown')}"
            machine["tables"][row["benchmark"]].append(_format(row))
            machine["dates"][row["benchmark"]] = date
        if len(ratios):
            machine |= {"picture": f"benchmarks-{file.stem}.png", "alt": _alt(ratios)}
            plots.set_style()
            plots.ratios(ratios, NAMED["titles"]).savefig(folder / machine["picture"], dpi=150)
        machine["missed"] = [row["case"] for row in rows if row["met"] is False]
        machine["met"] = sum(row["met"] is True for row in rows)
        machines.append(machine)
    return {"machines": machines}


def ratios_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the ratios of the picture: `panel`, `method`, `network`, `ratio`, `low`, `high`.

    A case is "LeNet-5, batch 128: fast / plain", or "NAME: LIBRARY / reglib" for another library,
    whose name is in `network`. The columns `low` and `high` are quartiles.
    """
    ratios = []
    for row in rows:
        subject, colon, method = row["case"].rpartition(": ")
        names = None
        if row["benchmark"] in ("training step", "penalties") and method.endswith(STEP):
            network = subject.partition(", batch")[0]
            names = row["benchmark"], method.removesuffix(STEP), network
        for end, peer in NAMED["peers"].items():
            if row["case"].endswith(end):
                work = subject if colon else f"input Hessian, {end.partition(' / ')[2]}"
                names = "peers", work, peer
        if names and row["unit"] == "x" and row["quartiles"]:
            ratios.append((*names, row["value"], *row["quartiles"]))
    return pd.DataFrame(ratios, columns=["panel", "method", "network", "ratio", "low", "high"])


def _alt(ratios: pd.DataFrame) -> str:
    fast = ratios[(ratios["panel"] == "training step") & ratios["method"].str.startswith("fast")]
    parts = [f"{r.network}, {r.method}: {r.ratio:.2g} plain steps" for r in fast.itertuples()]
    return "Ratios of times with their quartiles, as in the tables below. " + "; ".join(parts)


def _format(row: Mapping[str, Any]) -> list[str]:
    goal = f"{row['goal']:.3g}" if isinstance(row["goal"], float) else row["goal"] or ""
    quartiles = " to ".join(map(_number, row["quartiles"] or []))
    met = {True: "met", False: "not met", None: ""}[row["met"]]
    return [row["case"], f"{_number(row['value'])} {row['unit']}", quartiles, goal, met]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
