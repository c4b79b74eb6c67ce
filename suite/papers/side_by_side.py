"""Side by side: every method at several strengths, on the measures of all papers."""

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
from suite.papers.design import Item, Plan, Spec, panels_of
from suite.papers.names import NAMES
from suite.units import Training, Values

Settings = dict[str, Any]

METHODS = {method.name: method for method in SIDE_BY_SIDE}
TITLES = {name: method.title for name, method in METHODS.items()}
SHORT = {name: m.short or m.title for name, m in METHODS.items() if name != "none"}
# Clean accuracy that a method may cost, on the images that choose its strength.
MOST_LOST = 0.01
# Measures, see `suite.papers.design.specify`. `better` is the better direction: up (1), down (-1)
# or neither (0). The value of a measure that is `turned` changes its sign.
OWN: Settings = NAMES["side_by_side"]
MEASURES: dict[str, Settings] = OWN["measures"]
# The smallest difference that matters, as in the claims. For other measures it is a factor; for the
# entropy, a factor of the number of pixels that it corresponds to.
FACTOR = 1.1
SMALLEST = {name: m["smallest"] for name, m in MEASURES.items() if "smallest" in m}
SMALLEST |= {"entropy": math.log(FACTOR)}
# Measures that need a null block, or masks and backgrounds: only for panels that name them.
ASKED_FOR = {name for name, m in MEASURES.items() if m.get("asked_for")}
# Further keys of a panel: `warm_up` of every penalty; `measured`, whether the networks that choose
# strengths have all measures, not only accuracy; `only`, the measures to take; `top_gap`, options.
REQUIRED = "data network epochs learning_rate strengths chosen epsilon shift".split()
OF_PANEL: Settings = dict.fromkeys(["epsilon", "shift", "n_shifted", "n_targets", "only"])
OF_PANEL |= {"strengths": {}, "chosen": {}, "top_gap": {}, "warm_up": 0, "measured": True}
# Columns of a cell: a method against no method, over the seeds that both have.
ENDS = ["difference", "low", "high"]
CELL = "measure method strength base mean difference low high n p p_holm deviations".split()
CELL += ["matters", "stands"]
PER_ROW = 7  # maps in a row


def measures(p: SimpleNamespace) -> dict[str, Settings]:
    """Return the measures of a panel; accuracy, on the half that chose no strength, is in all.

    Raises:
        UsageError: `only` names an unknown measure.
    """
    for name in p.only or ():
        check_name("measure", name, MEASURES)
    names = MEASURES.keys() - ASKED_FOR if p.only is None else {"accuracy", *p.only}
    return {name: measure for name, measure in MEASURES.items() if name in names}


class Network(NamedTuple):
    """A network of a panel: it is compared if its strength is `chosen`, else helps to choose it."""

    method: str
    strength: float
    seed: int
    chosen: bool


def panels(parameters: Values) -> list[SimpleNamespace]:
    """Return the parameters of each panel: its own override those of the chapter.

    Raises:
        UsageError: see `panels_of`; or a method is unknown, or chosen at none of its strengths.
    """
    result = panels_of(parameters, OF_PANEL, REQUIRED, unique_data=True)
    for p in result:
        p.swapped = f"{p.data}_swapped"
        for method in [*p.strengths, *p.chosen]:
            check_name("method", method, SHORT)
        for method, strength in p.chosen.items():
            if strength not in (strengths := p.strengths.get(method, [])):
                raise expected(f"chosen, {method}", f"one of its strengths, {strengths}", strength)
    return result


def is_fine_tuned(p: SimpleNamespace) -> bool:
    """Whether a panel fine-tunes its networks: trains them in evaluation mode."""
    return bool(getattr(p, "fixed_statistics", False))


def networks(p: SimpleNamespace) -> list[Network]:
    """Return the networks of a panel: all strengths, and the chosen ones with other seeds.

    Raises:
        UsageError: `seeds` and `sweep_seeds` share a seed.
    """
    if shared := {*p.seeds} & {*p.sweep_seeds}:
        raise expected("seeds", "none of sweep_seeds", sorted(shared))
    settings = [("none", 0.0)]
    settings += [(method, s) for method, strengths in p.strengths.items() for s in strengths]
    swept = [Network(m, s, seed, False) for m, s in settings for seed in p.sweep_seeds]
    compared = [("none", 0.0), *p.chosen.items()]
    return swept + [Network(m, s, seed, True) for m, s in compared for seed in p.seeds]


def training(p: SimpleNamespace, network: Network) -> Training:
    """Return the training of a network; Top-GAP takes the options of `top_gap`, too."""
    fields = METHODS[network.method].apply(p.fields, network.strength)
    if network.method == "top_gap":
        fields["network_options"] = fields.get("network_options", {}) | p.top_gap
    return Training(**schedule(fields, warm_up=p.warm_up), seed=network.seed)


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter; only the first panel has maps that are drawn."""
    measurements, maps, trainings = Plan(), Plan(), Plan()
    for number, p in enumerate(panels(parameters)):
        specs = [*design.specify(MEASURES, " ".join(measures(p)), p)]
        choice = Spec({"metric": "choice"}, "accuracy", {"half": 0})
        for network in networks(p):
            unit = training(p, network)
            trainings.append(Item(unit))
            taken = specs if network.chosen or p.measured else specs[:1]
            labels = {n: v for n, v in network._asdict().items() if n != "seed"}
            measurements += design.grid([(unit, labels)], [choice, *taken])
            if number == 0 and network.chosen and network.seed == p.seeds[0]:
                settings = {"saliency": "logit_gradient", "n_images": p.n_maps}
                measurement = design.measurement(unit, "saliency_maps", **settings)
                maps.append(Item(measurement, keep=f"{p.data}|{network.method}"))
    return Plan([*measurements, *maps, *trainings])


def derive(parameters: Values, rows: pd.DataFrame, arrays: design.Arrays) -> design.Derived:
    """Return a row for each network and measure, and images and maps."""
    turned = rows["metric"].isin([name for name, m in MEASURES.items() if "turned" in m])
    return rows.assign(value=rows["value"].where(~turned, -rows["value"])), arrays


def matters(measure: str, base: float, mean: float) -> bool:
    """Whether a difference of means is large enough to matter."""
    if measure in SMALLEST:
        return abs(mean - base) >= SMALLEST[measure]
    return bool(min(base, mean) <= 0 or max(base / mean, mean / base) >= FACTOR)


def strongest_allowed(rows: pd.DataFrame) -> dict[str, float]:
    """Return the largest strength of each method that costs at most `MOST_LOST` of accuracy.

    A method is left out if each strength costs more or diverges. Rows: see `mean_losses`.
    """
    losses = mean_losses(rows)
    allowed = losses[losses["lost"] <= MOST_LOST + 1e-9]  # not where a training diverged
    return dict(allowed.groupby("method", sort=False)["strength"].max())


def mean_losses(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the clean accuracy that each strength costs, a mean over seeds: `lost`.

    The rows are those of one panel. Networks that choose strengths are used, by the metric
    "choice".
    """
    rows = rows[(rows["metric"] == "choice") & ~rows["chosen"].astype(bool)]
    plain = rows[rows["method"] == "none"].set_index("seed")["value"]
    rows = rows[rows["method"] != "none"]
    gaps = rows.assign(lost=rows["seed"].map(plain) - rows["value"])
    means = gaps.groupby(["method", "strength"], sort=False)["lost"]
    return means.agg(lambda values: values.mean(skipna=False)).reset_index()


class Panel(NamedTuple):
    """The results on a data set; `steps`: time of a training step over that of a plain one."""

    p: SimpleNamespace | None
    rows: pd.DataFrame
    measures: dict[str, Settings]
    cells: pd.DataFrame
    steps: Mapping[str, float]

    def gain(self, measure: str, method: str) -> Value:
        """Return the difference from no method, with a word: better, worse or not significant."""
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


def collect_panels(
    rows: pd.DataFrame, parameters: Values, steps: Mapping[bool, Values]
) -> dict[str, Panel]:
    """Return the panels of a profile by title; one that was not planned is empty.

    `steps` are times of a step, without and with fine-tuning.
    """
    planned = {p.data: p for p in panels(parameters)}
    by_title = {}
    for title, data in (OWN["panels"] | {"Small network": next(iter(planned))}).items():
        p = planned.get(data)
        known, times = (measures(p), steps[is_fine_tuned(p)]) if p else ({}, {})
        of_data = rows[(rows["data"] == data) & bool(p)]
        by_title[title] = Panel(p, of_data, known, compare(of_data, known), times)
    return by_title


def compare(rows: pd.DataFrame, measures: Mapping[str, Settings]) -> pd.DataFrame:
    """Compare each method at its chosen strength with no method, on each measure, over seeds.

    The rows are those of one panel and profile. Columns: `CELL`. `deviations` is the difference
    over the standard deviation between seeds: positive if better, 0 if the measure has no better
    direction. `matters` says whether the difference is large enough to matter; `stands`, whether it
    is significant after Holm's adjustment for the methods of the measure.
    """
    rows = rows[(rows["status"] == "done") & rows["chosen"].astype(bool)]
    wide = rows.pivot_table("value", ["metric", "method"], "seed")
    strengths = rows.groupby("method")["strength"].first()
    frames = []
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
        frames.append(frame.assign(p_holm=adjusted, stands=adjusted < 0.05))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=CELL)


def list_cells(panel: Panel) -> pd.DataFrame:
    """Return a table of every cell with its interval, a row for each measure and method."""
    cells = panel.cells.round({"difference": 9})
    ends = [interval_text(Interval._make(row)) for row in cells[[*ENDS, "n"]].to_numpy()]
    names = {"measure": {n: m["title"] for n, m in panel.measures.items()}, "method": SHORT}
    table = cells[["measure", "method", "base"]].replace(names).round({"base": 4})
    significant = cells["stands"].map({True: "yes", False: "no"})
    return table.assign(difference=ends, significant=significant)


def short_number(value: float) -> str:
    """Format a difference with a sign and two digits, at most to 0.001, without a leading zero.

    >>> short_number(0.1234), short_number(-0.0052), short_number(12.3), short_number(-0.0003)
    ('+.12', '−.005', '+12', '0')
    """
    text = f"{round(value, 3):+.2g}" if round(value, 3) else "0"
    return text.replace("0.", ".", 1).replace("-", "−", 1)


def rank_gains(panel: Panel) -> pd.DataFrame:
    """Return the cells that are significantly better and matter, the largest gain first.

    Accuracy is not a gain but the price, `paid`: an interval in points.
    """
    cells, accuracy = panel.cells, panel.cells[panel.cells["measure"] == "accuracy"]
    ends = zip(accuracy["method"], (100 * accuracy[ENDS]).to_numpy(), accuracy["n"])
    paid = {method: Interval._make([*interval, n]) for method, interval, n in ends}
    good = cells["stands"].astype(bool) & cells["matters"].astype(bool) & (cells["deviations"] > 0)
    gains = cells[good & (cells["measure"] != "accuracy")]
    return gains.assign(paid=gains["method"].map(paid)).sort_values("deviations", ascending=False)


def answers(panels: Mapping[str, Panel], verdict: Callable[[str], Value]) -> pd.DataFrame:
    """Return the table "want, take, gain, cost" in HTML: the largest gain for each want.

    See `rank_gains`. A row expects one method, and says so where another method gains more.
    `verdict` returns the verdict on a claim.
    """
    return pd.DataFrame([_answer(want, panels[want["panel"]], verdict) for want in OWN["wants"]])


def _answer(want: Values, panel: Panel, verdict: Callable[[str], Value]) -> dict[str, str]:
    ranked = rank_gains(panel)
    ranked = ranked[ranked["measure"] == want["measure"]]
    row = {"If you want": want["want"], "Take": "–", "Gain": "–", "Cost": "–"}
    if ranked.empty:
        return row | {"How sure": "nothing helps significantly" if len(panel.cells) else "not run"}
    best = ranked.iloc[0]
    method, unit = best["method"], want["unit"]
    about = f": {OWN['about'][method]}" if method in OWN["about"] else ""
    # Where the unit of a want is points, shares are written in percent.
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
        looks = value.scale.rpartition(", ")[2]
        sure = badge(value.shown, on, link) + f" {value:points} {want['beyond']}, {looks}"
    else:
        tested = panel.cells[panel.cells["measure"] == want["measure"]]
        sure = badge("significant", on) + f" by Holm’s correction for {len(tested)} methods"
    return row | {"How sure": sure}


def overview(panel: Panel, leaks: Panel) -> pd.DataFrame:
    """Return the table of all methods in HTML, the most robust first; leakage is from `leaks`.

    A number is a mean over networks, ± half the interval of its difference from no method.
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


def list_strengths(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the strengths of each method and their costs, the allowed and the chosen one.

    The last column is the cost of the compared networks on both halves of the test images.
    """
    allowed, losses = strongest_allowed(rows), mean_losses(rows).set_index("method")
    elsewhere = strongest_allowed(rows[rows["metric"] == "accuracy"].assign(metric="choice"))
    taken = rows[rows["chosen"].astype(bool)]
    chosen = taken.groupby("method")["strength"].first()
    means = taken.pivot_table("value", "method", "metric")
    table = []
    for method in [m for m in SHORT if m in losses.index]:
        pairs = losses.loc[[method]].to_numpy(float)
        costs = [f"{s:.3g}: " + ("diverged" if c != c else f"{100 * c:+.1f}") for s, c in pairs]
        row = {"method": TITLES[method], "strength: points of accuracy lost": "; ".join(costs)}
        end = " (the strongest tried)" if allowed.get(method) == pairs[:, 0].max() else ""
        row["strongest allowed"] = f"{allowed[method]:.3g}{end}" if method in allowed else "none"
        row["by the other half"] = f"{elsewhere[method]:.3g}" if method in elsewhere else "none"
        row["compared at"] = f"{chosen[method]:.3g}" if method in chosen else "–"
        if method in chosen and {"accuracy", "choice"} <= {*means}:
            compared, other = 100 * (means.loc["none"] - means.loc[method])[["accuracy", "choice"]]
            row["lost: shown half, other half"] = f"{compared:+.1f}, {other:+.1f}"
        table.append(row)
    return pd.DataFrame(table).fillna("–")


def sizes(p: SimpleNamespace) -> str:
    """Return a sentence: the radius of the attacks on a panel, and its numbers of images."""
    radii = {"radius": 255 * p.epsilon, "trained": 255 * p.chosen.get("adversarial", np.nan)}
    return str(OWN["sentences"]["few" if p.only else "sizes"]).format(**vars(p) | radii)


def map_grid(results: Results) -> dict[str, list[Any]]:
    """Return an image and the maps of all methods, for `suite.plots.pictures`.

    Each map has its own scale, up to its 99th percentile.
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
    return {name: [cells[n : n + PER_ROW] for n in starts] for name, cells in grids.items()}


def matrix(cells: pd.DataFrame, measures: Mapping[str, Settings]) -> dict[str, pd.DataFrame]:
    """Return arguments of `suite.plots.matrix`: `deviations` as colours, differences as text."""
    arrows = {1: " ↑", 0: "", -1: " ↓"}  # the better direction
    rows = [name for name in measures if name in set(cells["measure"])]
    columns = [name for name in SHORT if name in set(cells["method"])]
    titles = {n: measures[n]["title"] + arrows[measures[n]["better"]] for n in rows}
    cells = cells.assign(numbers=cells["difference"].map(short_number))
    parts: dict[str, tuple[str, Any]] = {"values": ("deviations", np.nan)}
    parts |= {"numbers": ("numbers", ""), "sure": ("stands", False)}
    frames = {}
    for name, (column, empty) in parts.items():
        wide = cells.pivot(index="measure", columns="method", values=column)
        wide = wide.reindex(index=rows, columns=columns)
        frames[name] = wide.where(wide.notna(), empty).rename(titles).rename(columns=SHORT)
    return frames


def curves(rows: pd.DataFrame, measures: Mapping[str, Settings], names: list[str]) -> pd.DataFrame:
    """Return measures along the strengths of the papers' methods, by sweep seeds.

    Returns:
        `method`, `x` (clean accuracy), `value` and `measure`; each method begins with no method.
    """
    rows = rows[(rows["status"] == "done") & ~rows["chosen"].astype(bool)]
    means = rows.pivot_table("value", ["method", "strength"], "metric").reset_index()
    methods = [m for m in [*OWN["of_papers"], "adversarial"] if m in set(means["method"])]
    lines = [means[means["method"].isin(["none", m])].assign(method=SHORT[m]) for m in methods]
    wide = pd.concat(lines).rename(columns={"accuracy": "x"})
    long = wide.melt(["method", "x"], names, "measure")
    return long.assign(measure=long["measure"].map({n: measures[n]["title"] for n in names}))


def gains(cells: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return gain in a measure and cost in clean accuracy, for `suite.plots.gain_and_cost`."""
    frames = []
    for name, column in (("gain", measure), ("cost", "accuracy")):
        ends = cells[cells["measure"] == column].set_index("method")[ENDS].astype(float)
        frames.append((100 * ends).set_axis([name, f"{name}_low", f"{name}_high"], axis=1))
    return pd.concat(frames, axis=1).rename(index=SHORT).rename_axis("method").reset_index()
