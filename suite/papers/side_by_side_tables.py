"""What each method gives and costs, the table of all, the matrix, and how measures agree."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence.html import badge
from suite.evidence.names import name_of
from suite.evidence.quote import Value
from suite.evidence.results import Results
from suite.evidence.statistics import Interval, holm, mean_interval, t_test_p
from suite.evidence.tables import interval_text
from suite.papers import side_by_side as paper
from suite.papers.names import NAMES
from suite.papers.side_by_side import METHODS, TITLES, Measure, lost, strongest_allowed
from suite.units import Values

OWN: dict[str, Any] = NAMES["side_by_side"]
# Of a cell: what is compared with no method, over the seeds that both have.
ENDS = ["difference", "low", "high"]
CELL = "measure method strength base mean difference low high n p p_holm deviations".split()
CELL += ["matters", "stands"]
SHORT = {name: each.short or each.title for name, each in METHODS.items() if name != "none"}


class Panel(NamedTuple):
    """What was measured on a data set; `steps`: time of a training step, over a plain one."""

    p: SimpleNamespace | None
    rows: pd.DataFrame
    measures: dict[str, Measure]
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


Steps = Mapping[bool, Mapping[str, float]]


def panels(rows: pd.DataFrame, parameters: Values, steps: Steps) -> dict[str, Panel]:
    """Return the panels of a profile by their titles; one that was not planned is empty.

    `steps` are times of a step, without and with fine-tuning.
    """
    planned = {p.data: p for p in paper.panels(parameters)}
    titles = OWN["panels"] | {"Small network": next(iter(planned))}
    return {title: of_panel(rows, planned.get(data), steps) for title, data in titles.items()}


def of_panel(rows: pd.DataFrame, p: SimpleNamespace | None, steps: Steps | None = None) -> Panel:
    """Return what rows of all panels have of one, which is empty where there is none."""
    wanted = paper.measures(p) if p else {}
    of_data = rows[rows["data"] == (p.data if p else "")]
    times = steps[paper.is_fine_tuned(p)] if p and steps else {}
    return Panel(p, of_data, wanted, compared(of_data, wanted), times)


def compared(rows: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
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
    for name, measure in measures.items():
        if name not in wide.index.get_level_values(0):
            continue
        of_measure = pd.DataFrame(wide.xs(name, level="metric"))
        spread = float(np.sqrt(of_measure.T.var().mean()))
        cells = []
        for method in [m for m in SHORT if m in of_measure.index]:
            base, values = of_measure.loc[["none", method]].dropna(axis="columns").to_numpy()
            gap = mean_interval(values - base)
            cell = {"measure": name, "method": method, "strength": strengths[method]}
            cell |= {"base": base.mean(), "mean": values.mean()}
            cell |= dict(zip([*ENDS, "n"], gap))
            cell |= {"deviations": measure.better * gap.estimate / (spread or 1.0)}
            cell |= {"matters": paper.matters(name, cell["base"], cell["mean"])}
            cells.append(cell | {"p": t_test_p(values - base)})
        frame = pd.DataFrame(cells).reindex(columns=CELL)
        tested = frame["p"].notna()
        frame.loc[tested, "p_holm"] = holm(frame.loc[tested, "p"].tolist())
        found.append(frame.assign(stands=frame["p_holm"].astype(float) < 0.05))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=CELL)


def every_cell(panel: Panel) -> pd.DataFrame:
    """Write every cell with its interval, a row a measure and method."""
    cells = panel.cells.round({"difference": 9})
    ends = [interval_text(Interval._make(row)) for row in cells[[*ENDS, "n"]].to_numpy()]
    names = {"measure": {n: m.title for n, m in panel.measures.items()}, "method": SHORT}
    significant = cells["stands"].map({True: "yes", False: "no"})
    table = cells[["measure", "method", "base"]].replace(names).round({"base": 4})
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
    good = cells["stands"].astype(bool) & cells["matters"].astype(bool) & (cells["deviations"] > 0)
    found = cells[good & (cells["measure"] != "accuracy")]
    paid = {method: Interval._make([*three, n]) for method, three, n in ends}
    found = found.assign(paid=found["method"].map(paid))
    return found.sort_values("deviations", ascending=False)


def _offer(row: Mapping[Any, Any], steps: Mapping[str, float], unit: str = "") -> dict[str, str]:
    """Write what a method gives, in hundredths if these have a unit, and what it costs."""
    factor, sign, digits = (100, "%", ".0f") if unit else (1, "", ".2f")
    gain = Interval._make([*(factor * row[end] for end in ENDS), row["n"]])
    base, mean = (f"{factor * row[name]:{digits}}{sign}" for name in ("base", "mean"))
    time = f"; a step takes {steps[row['method']]:.1f} plain ones" if row["method"] in steps else ""
    return {
        "take": f"{TITLES[row['method']]}, strength {row['strength']:.3g}",
        "gain": f"{interval_text(gain, f'+{digits}')}{unit} ({base} → {mean})",
        "cost": f"{interval_text(row['paid'], '+.1f')} points of accuracy{time}",
    }


def answers(panels: Mapping[str, Panel], verdict: Callable[[str], Value]) -> pd.DataFrame:
    """Return "want, take, gain, cost" in HTML: what helps most, see `helping`, want by want.

    Each row was written for one method; where another one helps more it says so. `verdict` gives
    that on a claim.
    """
    return pd.DataFrame([_answer(want, panels[want["panel"]], verdict) for want in OWN["wants"]])


def _answer(
    want: Mapping[str, str], panel: Panel, verdict: Callable[[str], Value]
) -> dict[str, str]:
    found = helping(panel)
    found = found[found["measure"] == want["measure"]]
    row = {"If you want": want["want"], "Take": "–", "Gain": "–", "Cost": "–"}
    if found.empty:
        sure = "nothing helps significantly" if len(panel.cells) else "not run"
        return row | {"How sure": sure}
    best = found.iloc[0].to_dict()
    method, offer = best["method"], _offer(best, panel.steps, want["unit"])
    about = f": {OWN['about'][method]}" if method in OWN["about"] else ""
    row |= {"Take": f"<b>{TITLES[method]}</b>{about}", "Gain": offer["gain"], "Cost": offer["cost"]}
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
            alone = bases if method == "none" else {"step": panel.steps.get(method)}
            value = alone.get(measure)
            row[heading] = "–" if value is None else f"{factor * value:{form}}"
            if cell:
                half = factor * (cell.high - cell.low) / 2
                look = ("better" if cell.deviations > 0 else "worse") if cell.stands else "pale"
                text = f"{factor * cell.mean:{form}} ± {half:{form}}"
                row[heading] = f'<span class="{look}">{text}</span>'
        table.append(row)
    return pd.DataFrame(table)


def _parts(
    cells: pd.DataFrame, rows: Mapping[str, str], columns: Mapping[str, str]
) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws of cells, by rows and columns with their titles."""
    parts = {}
    for part, empty in (("values", np.nan), ("numbers", ""), ("sure", False)):
        wide = cells.pivot(index="row", columns="column", values=part)
        wide = wide.reindex(index=[*rows], columns=[*columns])
        filled = wide.where(wide.notna(), empty)
        parts[part] = filled.set_axis([*rows.values()]).set_axis([*columns.values()], axis=1)
    return parts


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
        of_method = losses.loc[[method]]
        pairs = of_method.to_numpy(float)
        costs = [f"{s:.3g}: " + ("diverged" if c != c else f"{100 * c:+.1f}") for s, c in pairs]
        row = {"method": TITLES[method], "strength: points of accuracy lost": "; ".join(costs)}
        end = " (the strongest tried)" if allowed.get(method) == of_method["strength"].max() else ""
        row["strongest allowed"] = f"{allowed[method]:.3g}{end}" if method in allowed else "none"
        row["by the other half"] = f"{elsewhere[method]:.3g}" if method in elsewhere else "none"
        row["compared at"] = f"{chosen[method]:.3g}" if method in chosen else "–"
        if method in chosen and {"accuracy", "choice"} <= {*means}:
            shown, other = 100 * (means.loc["none"] - means.loc[method])[["accuracy", "choice"]]
            row["lost: shown half, other half"] = f"{shown:+.1f}, {other:+.1f}"
        listed.append(row)
    return pd.DataFrame(listed).fillna("–")


def sizes(p: SimpleNamespace) -> str:
    """Say how strong the attacks of a panel are, and of how many images its measures are."""
    radii = {"radius": 255 * p.epsilon, "trained": 255 * p.chosen.get("adversarial", np.nan)}
    return str(OWN["sentences"]["sizes"]).format(**vars(p) | radii)


def map_grid(results: Results, index: int = 0, per_row: int = 7) -> dict[str, list[Any]]:
    """Return what `suite.plots.pictures` draws: an image, and the maps of all methods.

    A map is on a scale of its own, up to its 99th percentile.
    """
    (image,) = {name for name in results.arrays if name.endswith("|none|images")}
    data, picture = image.partition("|")[0], results.arrays[image][index].squeeze()
    pictures: dict[str, NDArray[Any]] = {"image": (255 * picture).round().astype(np.uint8)}
    for method in [m for m in METHODS if f"{data}|{m}|maps" in results.arrays]:
        values = results.arrays[f"{data}|{method}|maps"][index, 0].astype(float)
        top = np.percentile(np.abs(values), 99) or 1.0
        pictures[SHORT.get(method, "no method")] = np.clip(values / top, -1, 1)
    grids: dict[str, list[Any]] = {"rows": [*pictures.values()], "notes": [*pictures]}
    starts = range(0, len(pictures), per_row)
    return {name: [each[n : n + per_row] for n in starts] for name, each in grids.items()}


def matrix(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws: `deviations` as colours, differences as numbers."""
    methods = {m: title for m, title in SHORT.items() if m in set(cells["method"])}
    arrows = {1: " ↑", 0: "", -1: " ↓"}  # where better is
    shown = {n: m for n, m in measures.items() if n in set(cells["measure"])}
    rows = {name: measure.title + arrows[measure.better] for name, measure in shown.items()}
    cells = cells.assign(numbers=cells["difference"].map(short_number))
    names = {"measure": "row", "method": "column", "deviations": "values", "stands": "sure"}
    return _parts(cells.rename(columns=names), rows, methods)


def curves(rows: pd.DataFrame, measures: Mapping[str, Measure], names: list[str]) -> pd.DataFrame:
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
    return long.assign(measure=long["measure"].map({n: measures[n].title for n in names}))


def gains(cells: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return what `suite.plots.gain_and_cost` draws: gain in a measure, cost in clean accuracy."""
    parts = []
    for name, of in (("gain", measure), ("cost", "accuracy")):
        ends = cells[cells["measure"] == of].set_index("method")[ENDS].astype(float)
        parts.append((100 * ends).set_axis([name, f"{name}_low", f"{name}_high"], axis=1))
    return pd.concat(parts, axis=1).rename(index=SHORT).rename_axis("method").reset_index()
