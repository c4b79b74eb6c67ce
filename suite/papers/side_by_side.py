"""Side by side: every method at several strengths, by the measures of all papers."""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd

from suite.errors import expected, unknown
from suite.methods import SIDE_BY_SIDE, scheduled
from suite.papers.design import Item, Plan, Wanted, grid, measurement, panels_of, settings_of
from suite.papers.names import NAMES
from suite.units import Training, Values

Settings = dict[str, Any]

METHODS = {method.name: method for method in SIDE_BY_SIDE}
TITLES = {name: method.title for name, method in METHODS.items()}
# Clean accuracy that a method may cost, on the images that strengths are chosen on.
MOST_LOST = 0.01
ROUNDING = 1e-9
# What is measured: `parameters` are settings that a panel has by another name.
MEASURES: dict[str, Settings] = NAMES["side_by_side"]["measures"]
# The smallest difference that matters, as in the claims; of other measures it is a factor, of
# the entropy one of the number of pixels that it stands for.
FACTOR = 1.1
SMALLEST = {name: each["smallest"] for name, each in MEASURES.items() if "smallest" in each}
SMALLEST |= {"entropy": math.log(FACTOR)}
# Measures that need a null block, or masks and backgrounds: taken where a panel asks for them.
ASKED_FOR = {name for name, each in MEASURES.items() if each.get("asked_for")}
# Further keys of a panel: `warm_up` of every penalty, `measured`, whether networks that choose
# strengths get more than their accuracy, `only`, the measures that are taken.
REQUIRED = "data network epochs learning_rate strengths chosen epsilon shift".split()
OF_PANEL = dict.fromkeys([*REQUIRED[4:], "top_gap", "n_shifted", "n_targets"])
OF_PANEL |= {"warm_up": 0, "measured": True, "only": None}


class Measure(NamedTuple):
    """What is measured of each network, and where `better` is: up (1), down (-1) or neither (0)."""

    title: str
    better: int
    metric: str
    settings: Settings
    turned: bool = False  # the value gets the other sign


def measures(p: SimpleNamespace) -> dict[str, Measure]:
    """Return the measures of a panel; accuracy, always one, is of the half that chose nothing.

    Raises:
        UsageError: `only` names a measure that is not known.
    """
    for name in p.only or ():
        if name not in MEASURES:
            raise unknown("measure", name, [*MEASURES])
    wanted = MEASURES.keys() - ASKED_FOR if p.only is None else {"accuracy", *p.only}
    fields = ("title", "better", "metric")
    return {
        name: Measure._make([*map(each.get, fields), settings_of(each, p), "turned" in each])
        for name, each in MEASURES.items()
        if name in wanted
    }


class Network(NamedTuple):
    """A network of a panel: `chosen` ones are compared, the others say which strength to choose."""

    method: str
    strength: float
    seed: int
    chosen: bool


def panels(parameters: Values) -> list[SimpleNamespace]:
    """Return the parameters of each panel: its own before those of the chapter.

    Raises:
        UsageError: a key that is not known or is missing, a method that is not known or is chosen
            at a strength that is not among its own, or two panels of one data set.
    """
    found = panels_of(parameters, OF_PANEL, REQUIRED, alone=True)
    for p in found:
        p.swapped = f"{p.data}_swapped"
        for method in [*p.strengths, *p.chosen]:
            if method not in METHODS or method == "none":
                raise unknown("method", method, [name for name in METHODS if name != "none"])
        for method, strength in p.chosen.items():
            if strength not in p.strengths.get(method, []):
                among = f"one of its strengths, {p.strengths.get(method, [])}"
                raise expected(f"chosen, {method}", among, strength)
    return found


def is_fine_tuned(p: SimpleNamespace) -> bool:
    """Whether the networks of a panel are fine-tuned: trained as they evaluate."""
    return bool(getattr(p, "fixed_statistics", False))


def networks(p: SimpleNamespace) -> list[Network]:
    """Return the networks of a panel: all strengths, and the chosen ones with seeds of their own.

    Raises:
        UsageError: a seed is among both.
    """
    if both := {*p.seeds} & {*p.sweep_seeds}:
        raise expected("seeds", "none of sweep_seeds", sorted(both))
    settings = [("none", 0.0)]
    settings += [(method, s) for method, strengths in p.strengths.items() for s in strengths]
    swept = [Network(m, s, seed, False) for m, s in settings for seed in p.sweep_seeds]
    compared = [("none", 0.0), *p.chosen.items()]
    return swept + [Network(m, s, seed, True) for m, s in compared for seed in p.seeds]


def training(p: SimpleNamespace, network: Network) -> Training:
    """Return the training of a network; with Top-GAP it has the options of `top_gap`, too."""
    fields = METHODS[network.method].apply(p.fields, network.strength)
    if network.method == "top_gap":
        fields["network_options"] = fields.get("network_options", {}) | p.top_gap
    return Training(**scheduled(fields, warm_up=p.warm_up), seed=network.seed)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter; maps are drawn of its first panel."""
    measured, drawn, trained = Plan(), Plan(), Plan()
    for number, p in enumerate(panels(parameters)):
        every = [
            Wanted({"metric": name, "turned": m.turned}, m.metric, m.settings)
            for name, m in measures(p).items()
        ]
        choice = Wanted({"metric": "choice", "turned": False}, "accuracy", {"half": 0})
        for network in networks(p):
            unit = training(p, network)
            trained.append(Item(unit))
            taken = every if network.chosen or p.measured else every[:1]
            labels = {n: v for n, v in network._asdict().items() if n != "seed"}
            measured += grid([(unit, labels)], [choice, *taken])
            if number == 0 and network.chosen and network.seed == p.seeds[0]:
                settings = {"saliency": "logit_gradient", "n_images": p.n_maps}
                maps = measurement(unit, "saliency_maps", **settings)
                drawn.append(Item(maps, keep=f"{p.data}|{network.method}"))
    return Plan([*measured, *drawn, *trained])


def derive(
    parameters: Values, rows: pd.DataFrame, arrays: dict[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and measure, and images and maps."""
    value = rows["value"].where(~rows["turned"].astype(bool), -rows["value"])
    return rows.assign(value=value).drop(columns="turned"), arrays


def matters(measure: str, base: float, mean: float) -> bool:
    """Whether a difference of means is of a size that matters."""
    if measure in SMALLEST:
        return abs(mean - base) >= SMALLEST[measure]
    return bool(min(base, mean) <= 0 or max(base / mean, mean / base) >= FACTOR)


def strongest_allowed(rows: pd.DataFrame) -> dict[str, float]:
    """Return by method its strongest strength that costs at most `MOST_LOST` of clean accuracy.

    A method of which each strength costs more, or diverges, has none. Rows: see `lost`.
    """
    losses = lost(rows)
    allowed = losses[losses["lost"] <= MOST_LOST + ROUNDING]  # not where a training diverged
    strongest = allowed.groupby("method", sort=False)["strength"].max()
    return {str(method): float(strength) for method, strength in strongest.items()}


def lost(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the clean accuracy that each strength costs, a mean over seeds: `lost`.

    Rows are of one panel; of the metric "choice", those that are not compared are looked at.
    """
    rows = rows[(rows["metric"] == "choice") & ~rows["chosen"].astype(bool)]
    plain = rows[rows["method"] == "none"].set_index("seed")["value"]
    rows = rows[rows["method"] != "none"]
    gaps = rows.assign(lost=rows["seed"].map(plain) - rows["value"])
    means = gaps.groupby(["method", "strength"], sort=False)["lost"]
    return means.agg(lambda values: values.mean(skipna=False)).reset_index()
