"""Side by side: every method at several strengths, by the measures of all papers."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.errors import check_name, expected
from suite.evidence.html import badge
from suite.evidence.names import name_of
from suite.evidence.quote import Value
from suite.evidence.results import Results
from suite.evidence.statistics import Interval, holm, mean_interval, t_test_p
from suite.evidence.tables import interval_text
from suite.methods import SIDE_BY_SIDE, schedule
from suite.papers import design
from suite.papers.design import Item, Plan, Wanted, panels_of
from suite.papers.names import NAMES
from suite.units import Training, Values

Settings = dict[str, Any]

METHODS = {method.name: method for method in SIDE_BY_SIDE}
TITLES = {name: method.title for name, method in METHODS.items()}
SHORT = {name: each.short or each.title for name, each in METHODS.items() if name != "none"}
# Clean accuracy that a method may cost, on the images that strengths are chosen on.
MOST_LOST = 0.01
ROUNDING = 1e-9
# What is measured, see `suite.papers.design.wanted`, and where `better` is: up (1), down (-1) or
# neither (0). The value of a measure that is `turned` gets the other sign.
OWN: Settings = NAMES["side_by_side"]
MEASURES: dict[str, Settings] = OWN["measures"]
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
# Of a cell: what is compared with no method, over the seeds that both have.
ENDS = ["difference", "low", "high"]
CELL = "measure method strength base mean difference low high n p p_holm deviations".split()
CELL += ["matters", "stands"]
PER_ROW = 7  # maps


def measures(p: SimpleNamespace) -> dict[str, Settings]:
    """Return the measures of a panel; accuracy, always one, is of the half that chose nothing.

    Raises:
        UsageError: `only` names a measure that is not known.
    """
    for name in p.only or ():
        check_name("measure", name, MEASURES)
    wanted = MEASURES.keys() - ASKED_FOR if p.only is None else {"accuracy", *p.only}
    return {name: each for name, each in MEASURES.items() if name in wanted}


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
            check_name("method", method, SHORT)
        for method, strength in p.chosen.items():
            if strength not in (tried := p.strengths.get(method, [])):
                raise expected(f"chosen, {method}", f"one of its strengths, {tried}", strength)
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
    return Training(**schedule(fields, warm_up=p.warm_up), seed=network.seed)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter; maps are drawn of its first panel."""
    measured, drawn, trained = Plan(), Plan(), Plan()
    for number, p in enumerate(panels(parameters)):
        every = [*design.wanted(MEASURES, " ".join(measures(p)), p)]
        choice = Wanted({"metric": "choice"}, "accuracy", {"half": 0})
        for network in networks(p):
            unit = training(p, network)
            trained.append(Item(unit))
            taken = every if network.chosen or p.measured else every[:1]
            labels = {n: v for n, v in network._asdict().items() if n != "seed"}
            measured += design.grid([(unit, labels)], [choice, *taken])
            if number == 0 and network.chosen and network.seed == p.seeds[0]:
                settings = {"saliency": "logit_gradient", "n_images": p.n_maps}
                maps = design.measurement(unit, "saliency_maps", **settings)
                drawn.append(Item(maps, keep=f"{p.data}|{network.method}"))
    return Plan([*measured, *drawn, *trained])


def derive(parameters: Values, rows: pd.DataFrame, arrays: design.Arrays) -> design.Derived:
    """Return one row a network and measure, and images and maps."""
    turned = rows["metric"].isin([name for name, each in MEASURES.items() if "turned" in each])
    return rows.assign(value=rows["value"].where(~turned, -rows["value"])), arrays


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
    return dict(allowed.groupby("method", sort=False)["strength"].max())


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


class Panel(NamedTuple):
    """What was measured on a data set; `steps`: time of a training step, over a plain one."""

    p: SimpleNamespace | None
    rows: pd.DataFrame
    measures: dict[str, Settings]
    cells: pd.DataFrame
    steps: Mapping[str, float]

    def gain(self, measure: str, method: str) -> Value:
        """Return the difference from no method; its word is better, worse or not significant."""
        at = (self.cells["measure"] == measure) & (self.cells["method"] == method)
        if not at.any():
            return Value()
        cell = self.cells[at].iloc[0]
        side = "better" if cell["deviations"] > 0 else "worse"
        word = side if cell["stands"] else "not significant"
        estimate, low, high = cell[ENDS].astype(float)
        return Value(estimate, low, high, n=cell["n"], word=word, on=self.on)

    @property
    def on(self) -> str:
        """The name of the data."""
        return name_of(self.p.data) if self.p else ""


def shown_panels(
    rows: pd.DataFrame, parameters: Values, steps: Mapping[bool, Values]
) -> dict[str, Panel]:
    """Return the panels of a profile by their titles; one that was not planned is empty.

    `steps` are times of a step, without and with fine-tuning.
    """
    planned = {p.data: p for p in panels(parameters)}
    found = {}
    for title, data in (OWN["panels"] | {"Small network": next(iter(planned))}).items():
        p = planned.get(data)
        wanted, times = (measures(p), steps[is_fine_tuned(p)]) if p else ({}, {})
        of_data = rows[(rows["data"] == data) & bool(p)]
        found[title] = Panel(p, of_data, wanted, compared(of_data, wanted), times)
    return found


def compared(rows: pd.DataFrame, measures: Mapping[str, Settings]) -> pd.DataFrame:
    """Compare each method at its chosen strength with none, measure by measure, over seeds.

    Rows are of one panel and profile. Of the columns `CELL`, `deviations` is the difference over
    the standard deviation between seeds, positive where it is better and 0 where the measure has
    no better side; `matters`, whether its size does; `stands`, whether it is significant after
    Holm's adjustment for the methods of the measure.
    """
    rows = rows[(rows["status"] == "done") & rows["chosen"].astype(bool)]
    wide = rows.pivot_table("value", ["metric", "method"], "seed")
    strengths = rows.groupby("method")["strength"].first()
    found = []
    for name in [name for name in measures if name in wide.index]:
        of_measure = pd.DataFrame(wide.xs(name, level="metric"))
        spread = float(np.sqrt(of_measure.T.var().mean()))
        cells = []
        for method in [m for m in SHORT if m in of_measure.index]:
            base, values = of_measure.loc[["none", method]].dropna(axis="columns").to_numpy()
            gap = mean_interval(values - base)
            cell = {"measure": name, "method": method, "strength": strengths[method]}
            cell |= {"base": base.mean(), "mean": values.mean()} | dict(zip([*ENDS, "n"], gap))
            cell |= {"deviations": measures[name]["better"] * gap.estimate / (spread or 1.0)}
            cell |= {"matters": matters(name, cell["base"], cell["mean"])}
            cells.append(cell | {"p": t_test_p(values - base)})
        frame = pd.DataFrame(cells).reindex(columns=CELL)
        adjusted = np.array(holm(frame["p"].tolist()))
        found.append(frame.assign(p_holm=adjusted, stands=adjusted < 0.05))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=CELL)


def every_cell(panel: Panel) -> pd.DataFrame:
    """Write every cell with its interval, a row a measure and method."""
    cells = panel.cells.round({"difference": 9})
    ends = [interval_text(Interval._make(row)) for row in cells[[*ENDS, "n"]].to_numpy()]
    names = {"measure": {n: m["title"] for n, m in panel.measures.items()}, "method": SHORT}
    table = cells[["measure", "method", "base"]].replace(names).round({"base": 4})
    significant = cells["stands"].map({True: "yes", False: "no"})
    return table.assign(difference=ends, significant=significant)


def short_number(value: float) -> str:
    """Write a difference with a sign and two digits, at most to 0.001, without a leading zero.

    >>> short_number(0.1234), short_number(-0.0052), short_number(12.3), short_number(-0.0003)
    ('+.12', '−.005', '+12', '0')
    """
    text = f"{round(value, 3):+.2g}" if round(value, 3) else "0"
    return text.replace("0.", ".", 1).replace("-", "−", 1)


def helping(panel: Panel) -> pd.DataFrame:
    """Return what helps: cells that stand, are better and matter, the largest gain first.

    Accuracy is no gain but `paid`, an interval of points.
    """
    cells, accuracy = panel.cells, panel.cells[panel.cells["measure"] == "accuracy"]
    ends = zip(accuracy["method"], (100 * accuracy[ENDS]).to_numpy(), accuracy["n"])
    paid = {method: Interval._make([*three, n]) for method, three, n in ends}
    good = cells["stands"].astype(bool) & cells["matters"].astype(bool) & (cells["deviations"] > 0)
    found = cells[good & (cells["measure"] != "accuracy")]
    return found.assign(paid=found["method"].map(paid)).sort_values("deviations", ascending=False)


def answers(panels: Mapping[str, Panel], verdict: Callable[[str], Value]) -> pd.DataFrame:
    """Return "want, take, gain, cost" in HTML: what helps most, see `helping`, want by want.

    Each row was written for one method; where another one helps more it says so. `verdict` gives
    that on a claim.
    """
    return pd.DataFrame([_answer(want, panels[want["panel"]], verdict) for want in OWN["wants"]])


def _answer(want: Values, panel: Panel, verdict: Callable[[str], Value]) -> dict[str, str]:
    found = helping(panel)
    found = found[found["measure"] == want["measure"]]
    row = {"If you want": want["want"], "Take": "–", "Gain": "–", "Cost": "–"}
    if found.empty:
        return row | {"How sure": "nothing helps significantly" if len(panel.cells) else "not run"}
    best = found.iloc[0]
    method, unit = best["method"], want["unit"]
    about = f": {OWN['about'][method]}" if method in OWN["about"] else ""
    # Shares are written in percent where the want names a unit, points.
    factor, sign, digits = (100, "%", ".0f") if unit else (1, "", ".2f")
    gain = Interval._make([*(factor * best[ENDS].astype(float)), best["n"]])
    base, mean = (f"{factor * best[name]:{digits}}{sign}" for name in ("base", "mean"))
    steps = panel.steps.get(method)
    time = "" if steps is None else f"; a step takes {steps:.1f} plain ones"
    row["Take"] = f"<b>{TITLES[method]}</b>{about}"
    row["Gain"] = f"{interval_text(gain, f'+{digits}')}{unit} ({base} → {mean})"
    row["Cost"] = f"{interval_text(best['paid'], '+.1f')} points of accuracy{time}"
    on = f"{panel.on}, {best['n']} networks"
    if method != want["expects"]:
        sure = badge("another method", on) + f" than expected, {SHORT[want['expects']]}"
    elif "claim" in want:
        value = verdict(want["claim"])
        link = f"side_by_side_record.html#side-by-side-{want['claim']}"
        read = value.scale.rpartition(", ")[2]
        sure = badge(value.shown, on, link) + f" {value:points} {want['beyond']}, {read}"
    else:
        tested = panel.cells[panel.cells["measure"] == want["measure"]]
        sure = badge("significant", on) + f" by Holm’s correction for {len(tested)} methods"
    return row | {"How sure": sure}


def overview(panel: Panel, leaks: Panel) -> pd.DataFrame:
    """Return the table of all methods, in HTML, the most robust first; `leaks` has leakage.

    A number is a mean over networks, ± half of the interval of its difference from no method.
    """
    cells = pd.concat([panel.cells, leaks.cells[leaks.cells["measure"] == "leakage"]])
    at: dict[Any, Any] = {(cell.measure, cell.method): cell for cell in cells.itertuples()}
    bases = dict(cells.groupby("measure")["base"].first()) | {"step": 1.0}
    order = panel.cells[panel.cells["measure"] == "attacked"].sort_values("mean")["method"]
    table = []
    for method in [*order[::-1], "none"]:
        row = {"method": SHORT.get(method, "<i>no method</i>")}
        for measure, (heading, factor, digits) in OWN["shown"].items():
            form, cell = f".{digits}f", at.get((measure, method))
            value = (bases if method == "none" else {"step": panel.steps.get(method)}).get(measure)
            row[heading] = "–" if value is None else f"{factor * value:{form}}"
            if cell:
                look = ("better" if cell.deviations > 0 else "worse") if cell.stands else "pale"
                text = f"{factor * cell.mean:{form}} ± {factor * (cell.high - cell.low) / 2:{form}}"
                row[heading] = f'<span class="{look}">{text}</span>'
        table.append(row)
    return pd.DataFrame(table)


def choice(rows: pd.DataFrame) -> pd.DataFrame:
    """List the strengths of each method, which one is allowed and chosen, and what each costs.

    The last column is what compared networks cost, on both halves of the test images.
    """
    allowed, losses = strongest_allowed(rows), lost(rows).set_index("method")
    elsewhere = strongest_allowed(rows[rows["metric"] == "accuracy"].assign(metric="choice"))
    taken = rows[rows["chosen"].astype(bool)]
    chosen = taken.groupby("method")["strength"].first()
    means = taken.pivot_table("value", "method", "metric")
    listed = []
    for method in [m for m in SHORT if m in losses.index]:
        pairs = losses.loc[[method]].to_numpy(float)
        costs = [f"{s:.3g}: " + ("diverged" if c != c else f"{100 * c:+.1f}") for s, c in pairs]
        row = {"method": TITLES[method], "strength: points of accuracy lost": "; ".join(costs)}
        end = " (the strongest tried)" if allowed.get(method) == pairs[:, 0].max() else ""
        row["strongest allowed"] = f"{allowed[method]:.3g}{end}" if method in allowed else "none"
        row["by the other half"] = f"{elsewhere[method]:.3g}" if method in elsewhere else "none"
        row["compared at"] = f"{chosen[method]:.3g}" if method in chosen else "–"
        if method in chosen and {"accuracy", "choice"} <= {*means}:
            shown, other = 100 * (means.loc["none"] - means.loc[method])[["accuracy", "choice"]]
            row["lost: shown half, other half"] = f"{shown:+.1f}, {other:+.1f}"
        listed.append(row)
    return pd.DataFrame(listed).fillna("–")


def sizes(p: SimpleNamespace) -> str:
    """Say how strong attacks on a panel are, if any, and of how many images its measures are."""
    radii = {"radius": 255 * p.epsilon, "trained": 255 * p.chosen.get("adversarial", np.nan)}
    return str(OWN["sentences"]["few" if p.only else "sizes"]).format(**vars(p) | radii)


def map_grid(results: Results) -> dict[str, list[Any]]:
    """Return what `suite.plots.pictures` draws: an image, and the maps of all methods.

    A map is on a scale of its own, up to its 99th percentile.
    """
    (image,) = {name for name in results.arrays if name.endswith("|none|images")}
    data, picture = image.partition("|")[0], results.arrays[image][0].squeeze()
    pictures: dict[str, NDArray[Any]] = {"image": (255 * picture).round().astype(np.uint8)}
    for method in [m for m in METHODS if f"{data}|{m}|maps" in results.arrays]:
        values = results.arrays[f"{data}|{method}|maps"][0, 0].astype(float)
        top = np.percentile(np.abs(values), 99) or 1.0
        pictures[SHORT.get(method, "no method")] = np.clip(values / top, -1, 1)
    grids: dict[str, list[Any]] = {"rows": [*pictures.values()], "notes": [*pictures]}
    starts = range(0, len(pictures), PER_ROW)
    return {name: [each[n : n + PER_ROW] for n in starts] for name, each in grids.items()}


def matrix(cells: pd.DataFrame, measures: Mapping[str, Settings]) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws: `deviations` as colours, differences as numbers."""
    arrows = {1: " ↑", 0: "", -1: " ↓"}  # where better is
    rows = [name for name in measures if name in set(cells["measure"])]
    columns = [name for name in SHORT if name in set(cells["method"])]
    titles = {n: measures[n]["title"] + arrows[measures[n]["better"]] for n in rows}
    cells = cells.assign(numbers=cells["difference"].map(short_number))
    parts = {"values": "deviations", "numbers": "numbers", "sure": "stands"}
    empty: dict[str, Any] = {"values": np.nan, "numbers": "", "sure": False}
    found = {}
    for name, column in parts.items():
        wide = cells.pivot(index="measure", columns="method", values=column)
        wide = wide.reindex(index=rows, columns=columns)
        found[name] = wide.where(wide.notna(), empty[name]).rename(titles).rename(columns=SHORT)
    return found


def curves(rows: pd.DataFrame, measures: Mapping[str, Settings], names: list[str]) -> pd.DataFrame:
    """Return what was measured along the strengths of the papers' methods, by sweep seeds.

    Returns:
        `method`, `x` (clean accuracy), `value` and `measure`; each method begins with none.
    """
    rows = rows[(rows["status"] == "done") & ~rows["chosen"].astype(bool)]
    means = rows.pivot_table("value", ["method", "strength"], "metric").reset_index()
    methods = [m for m in [*OWN["of_papers"], "adversarial"] if m in set(means["method"])]
    parts = [means[means["method"].isin(["none", m])].assign(method=SHORT[m]) for m in methods]
    wide = pd.concat(parts).rename(columns={"accuracy": "x"})
    long = wide.melt(["method", "x"], names, "measure")
    return long.assign(measure=long["measure"].map({n: measures[n]["title"] for n in names}))


def gains(cells: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return what `suite.plots.gain_and_cost` draws: gain in a measure, cost in clean accuracy."""
    parts = []
    for name, of in (("gain", measure), ("cost", "accuracy")):
        ends = cells[cells["measure"] == of].set_index("method")[ENDS].astype(float)
        parts.append((100 * ends).set_axis([name, f"{name}_low", f"{name}_high"], axis=1))
    return pd.concat(parts, axis=1).rename(index=SHORT).rename_axis("method").reset_index()
