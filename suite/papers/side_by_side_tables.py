"""The matrix of methods and measures, the guide, and the agreement of measures."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence.results import Results
from suite.evidence.statistics import Interval, holm, mean_interval, t_test_p
from suite.evidence.tables import interval_text
from suite.papers.names import NAMES
from suite.papers.side_by_side import METHODS, Measure, lost, matters, measures, strongest_allowed

# Of a cell: what is compared with no method, over the seeds that both have.
ENDS = ["difference", "low", "high"]
CELL = "measure method strength base mean difference low high n p p_holm deviations".split()
CELL += ["matters", "stands"]
# What the guide is not asked for, since it is what is paid.
PAID = ("accuracy",)
NOTHING = "none: no gain that matters was established"
WITHIN = 0.05  # of clean accuracy, for settings whose ranks are compared
DRAWS = 1000
SHORT = {name: title for name, title in METHODS.items() if name != "none"}
SHORT |= NAMES["side_by_side"]["short"]
SENTENCES: dict[str, str] = NAMES["side_by_side"]["sentences"]


class Panel(NamedTuple):
    """What was measured on a data set: rows, the measures, and what `compared` makes of them."""

    rows: pd.DataFrame
    measures: dict[str, Measure]
    cells: pd.DataFrame


def of_panel(rows: pd.DataFrame, p: SimpleNamespace | None) -> Panel:
    """Return what rows of all panels have of one, which is empty where there is none."""
    wanted = measures(p) if p else {}
    of_data = rows[rows["data"] == (p.data if p else "")]
    return Panel(of_data, wanted, compared(of_data, wanted))


def compared(rows: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Compare each method at its chosen strength with none, measure by measure, over seeds.

    Args:
        rows: of one panel and profile; those that are `chosen` are looked at.
        measures: of that panel.

    Returns:
        One row a cell, with the columns `CELL`: `deviations`, the difference over the standard
        deviation between seeds (pooled over the methods), positive where it is better and 0 where
        the measure has no better side; `matters`, whether the difference is of a size that does;
        `stands`, whether it is established, after Holm's adjustment for the methods of the measure.
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
            cell |= {"base": base.mean(), "mean": values.mean(), "n": gap.n}
            cell |= {"difference": gap.estimate, "low": gap.low, "high": gap.high}
            cell |= {"deviations": measure.better * gap.estimate / (spread or 1.0)}
            cell |= {"matters": matters(name, cell["base"], cell["mean"])}
            cells.append(cell | {"p": t_test_p(values - base)})
        frame = pd.DataFrame(cells).reindex(columns=CELL)
        tested = frame["p"].notna()
        frame.loc[tested, "p_holm"] = holm(frame.loc[tested, "p"].tolist())
        found.append(frame.assign(stands=frame["p_holm"].astype(float) < 0.05))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=CELL)


def left_out(rows: pd.DataFrame) -> str:
    """Name the methods that are not compared, since each of their strengths costs too much."""
    methods, chosen = (set(part["method"]) for part in (rows, rows[rows["chosen"].astype(bool)]))
    return ", ".join(SHORT[m] for m in SHORT if m in methods - chosen) or "none"


def every_cell(
    cells: pd.DataFrame, measures: Mapping[str, Measure], per_table: int = 4
) -> list[pd.DataFrame]:
    """Write every cell with its interval, a row a measure, in tables of a few methods."""
    text = [
        f"{c.difference:+.2g} [{c.low:+.2g}, {c.high:+.2g}]{'' if c.stands else ' (n. s.)'}"
        for c in cells.round({"difference": 9}).itertuples()
    ]
    wide = cells.assign(text=text).pivot(index="measure", columns="method", values="text")
    names = [name for name in measures if name in wide.index]
    base = cells.groupby("measure")["base"].first()
    columns = {"measure": [measures[name].title for name in names]}
    columns["without"] = [f"{base[name]:.3g}" for name in names]
    first = pd.DataFrame(columns, index=names)
    methods = [m for m in SHORT if m in wide]
    parts = [methods[n : n + per_table] for n in range(0, len(methods), per_table)]
    return [first.join(wide.loc[names, part].rename(columns=SHORT)) for part in parts]


def repeated(cells: pd.DataFrame, others: pd.DataFrame, measures: Mapping[str, Measure]) -> str:
    """Say which of the differences that stand on one panel are found on another one.

    Both are of `compared`; measures without a better side are left out, and so are methods that one
    of the panels does not compare.
    """
    both = cells.merge(others, on=["measure", "method"], suffixes=("", "_other"))
    both = both[both["deviations"] != 0]
    standing = both[both["stands"]]
    same = np.sign(standing["deviations"]) == np.sign(standing["deviations_other"])
    stands = standing["stands_other"].astype(bool)
    again, turned = standing[same & stands], standing[~same & stands]
    better, worse = again[again["deviations"] > 0], again[again["deviations"] < 0]
    only = both[~both["stands"].astype(bool) & both["stands_other"]]
    listed = {"better": better, "worse": worse, "turned": turned, "only": only}
    named = {name: _by_measure(part, measures) for name, part in listed.items()}
    named["turned"] = f": {named['turned']}" if len(turned) else ""
    counts = {
        "n": len(standing),
        "same": same.sum(),
        "n_again": len(again),
        "n_turned": len(turned),
    }
    return SENTENCES["repeated"].format(**counts, **named)


def _by_measure(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> str:
    """Name measures, and the methods of each."""
    titles = {name: measure.title for name, measure in measures.items()}
    return _listed(cells, {"measure": titles, "method": SHORT}) or "none"


def _listed(
    cells: pd.DataFrame, names: Mapping[str, Mapping[str, str]], between: str = ", "
) -> str:
    """Name the values of a column, and of another column those that each has."""
    (by, outer), (of, inner) = names.items()
    groups = cells.groupby(by, sort=False)[of]
    return between.join(
        f"{outer[str(name)]} ({', '.join(inner[one] for one in part)})" for name, part in groups
    )


def short_number(value: float) -> str:
    """Write a difference with a sign and two digits, at most to 0.001, without a leading zero.

    >>> short_number(0.1234), short_number(-0.0052), short_number(12.3), short_number(-0.0003)
    ('+.12', '−.005', '+12', '0')
    """
    text = f"{round(value, 3):+.2g}" if round(value, 3) else "0"
    return text.replace("0.", ".", 1).replace("-", "−", 1)


def guide(
    cells: pd.DataFrame, measures: Mapping[str, Measure], steps: Mapping[str, float]
) -> pd.DataFrame:
    """Return for each measure the method that helps most, of those that are sure to.

    Their difference stands, and its size matters.

    Args:
        cells, measures: see `compared`.
        steps: time of a training step with a method, over one without.

    Returns:
        What is wanted, what to take for it at which strength, what to expect of it and what it
        costs, and what helps too, by how much and at which points of accuracy and time of a step;
        where nothing helps, it says so, and what came nearest.
    """
    accuracy = cells[cells["measure"] == "accuracy"].set_index("method")
    rows = []
    for name, measure in measures.items():
        if name in PAID or not measure.better:
            continue
        of_measure = cells[cells["measure"] == name]
        better = of_measure[of_measure["deviations"] > 0]
        helping = better[better["stands"].astype(bool) & better["matters"].astype(bool)]
        helping = helping.sort_values("deviations", ascending=False)
        wanted = f"{'higher' if measure.better > 0 else 'lower'} {measure.title}"
        if helping.empty:
            take = f"{NOTHING}{_nearly(better, len(of_measure))}"
            rows.append({"if you want": wanted, "take": take})
            continue
        best = helping.iloc[0]
        paid = 100 * accuracy.loc[best["method"], ["difference", "low", "high"]]
        row = {
            "if you want": wanted,
            "take": f"{METHODS[best['method']]}, {best['strength']:.3g}",
            "expect": f"{best['base']:.3g} → {best['mean']:.3g} ({_ends(*best[ENDS])})",
            "points of accuracy": _ends(*paid),
        }
        if best["method"] in steps:
            row["a step takes"] = f"{steps[best['method']]:.2g} × plain"
        others = []
        for m, s, gain in helping[["method", "strength", "difference"]].to_numpy()[1:]:
            parts = [f"{gain:+.2g}", f"{100 * accuracy.loc[m, 'difference']:+.2g} points"]
            parts += [f"{steps[m]:.2g} ×"] if m in steps else []
            others.append(f"{SHORT[m]}, {s:.3g} ({', '.join(parts)})")
        rows.append(row | {"also help": "; ".join(others)})
    return pd.DataFrame(rows).fillna("")


def also_help(found: pd.DataFrame) -> str:
    """List what helps beside the method that the guide names, a line a measure."""
    rows = found.to_dict("records")
    lines = [f"- {row['if you want']}: {row['also help']}" for row in rows if row.get("also help")]
    return "\n".join(["Also help (gain, points of clean accuracy, time of a step):\n", *lines])


def _ends(middle: float, low: float, high: float) -> str:
    return f"{middle:+.2g} [{low:+.2g}, {high:+.2g}]"


def _nearly(better: pd.DataFrame, n_methods: int) -> str:
    """Say which differences of a measure stand and are small, and how many point to better."""
    if not n_methods:
        return ""
    small = better[better["stands"].astype(bool)]
    values = small[["method", "difference"]].to_numpy()
    named = [f"{SHORT[method]} {difference:+.2g}" for method, difference in values]
    also = f"; established, but small: {', '.join(named)}" if named else ""
    beyond = (better["low"] * better["high"] > 0).sum()
    return f" ({len(better)} of {n_methods} means are better, {beyond} before Holm{also})"


def harm(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> tuple[str, str]:
    """Say which measures each method makes worse, of differences that matter.

    Returns:
        Of those that stand, and of those whose interval excludes zero, but not after Holm.
    """
    worse = cells[cells["matters"].astype(bool) & (cells["deviations"] < 0)]
    stands, beyond = worse["stands"].astype(bool), worse["low"] * worse["high"] > 0
    names = {"method": SHORT, "measure": {name: m.title for name, m in measures.items()}}
    clear, vague = (
        _listed(part, names, "; ") or "none" for part in (worse[stands], worse[beyond & ~stands])
    )
    return clear, vague


def price(rows: pd.DataFrame, first: str, second: str) -> str:
    """Say how much clean accuracy one compared method has beyond another one, in points."""
    rows = rows[(rows["metric"] == "accuracy") & rows["chosen"].astype(bool)]
    wide = rows.pivot_table("value", "seed", "method")
    if not {first, second} <= {*wide}:
        return ""
    gap = mean_interval((100 * (wide[first] - wide[second])).dropna().to_numpy())
    ends = f"{METHODS[first]} minus {METHODS[second]}: {interval_text(gap, '.2f')}"
    return f"Clean accuracy, {ends} points."


def agreement(rows: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Return how measures rank the settings: rank correlations with intervals, pair by pair.

    A setting, a method with a strength, is one value: the mean over its seeds, turned so that more
    is better. They are those of the seeds that choose strengths, so that each has equally many
    networks. Settings that lose more than `WITHIN` of clean accuracy are left out, as are measures
    without a better side.

    Returns:
        `first`, `second`, `correlation`, `low`, `high` (95%, by drawing methods, each with all its
        strengths, with replacement).
    """
    rows = rows[(rows["status"] == "done") & ~rows["chosen"].astype(bool)]
    wide = rows.pivot_table("value", ["method", "strength"], "metric")
    names = [name for name in measures if measures[name].better and name in wide]
    plain = float(wide["accuracy"].xs("none", level="method").mean())
    wide = wide[wide["accuracy"] >= plain - WITHIN][names].dropna()
    values = wide.to_numpy() * [measures[name].better for name in names]
    middle = _rank_correlations(values)
    draw = np.random.default_rng(0)
    of_method = [*wide.groupby(level="method").indices.values()]
    chance = (draw.integers(len(of_method), size=len(of_method)) for _ in range(DRAWS))
    drawn = [values[np.concatenate([of_method[n] for n in numbers])] for numbers in chance]
    low, high = np.quantile([_rank_correlations(part) for part in drawn], [0.025, 0.975], axis=0)
    return pd.DataFrame(
        [
            {"first": a, "second": b, "correlation": middle[i, j]}
            | {"low": low[i, j], "high": high[i, j], "n": len(values)}
            for i, a in enumerate(names)
            for j, b in enumerate(names[:i])
        ]
    )


def _rank_correlations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.corrcoef(pd.DataFrame(values).rank().to_numpy(), rowvar=False)
    return np.nan_to_num(found)


def every_pair(pairs: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Write every rank correlation with its interval, from alike to the other way round."""
    ordered = pairs.sort_values("correlation", ascending=False)
    titles = {name: measure.title for name, measure in measures.items()}
    names = {"one": ordered["second"].map(titles), "other": ordered["first"].map(titles)}
    return pd.DataFrame(names).assign(correlation=_written(ordered))


def _written(pairs: pd.DataFrame) -> list[str]:
    ends = pairs[["correlation", "low", "high"]].to_numpy(float)
    return [interval_text(Interval(*row), ".2f") for row in ends]


def pairs_of_measures(
    pairs: pd.DataFrame, measures: Mapping[str, Measure], least: float = 0.5
) -> tuple[str, str]:
    """Name the pairs of measures that rank alike, and those that rank the other way round.

    They are those whose interval lies beyond `least`, the closest ones first.
    """
    texts = []
    for sign in (1, -1):
        ends = pairs["low"] if sign > 0 else -pairs["high"]
        clear = pairs[ends > least].sort_values("correlation", ascending=sign < 0)
        named = zip(clear["second"], clear["first"], _written(clear), strict=True)
        parts = [f"{measures[a].title} and {measures[b].title} ({text})" for a, b, text in named]
        texts.append("; ".join(parts) or "none")
    return texts[0], texts[1]


def carried_over(pairs: pd.DataFrame, others: pd.DataFrame, measures: Mapping[str, Measure]) -> str:
    """Say how many rank correlations that are sure on one data set are found on another one."""
    both = pairs.merge(others, on=["first", "second"], suffixes=("", "_other"))
    sure = both[(both["low"] > 0) | (both["high"] < 0)]
    same = sure["correlation"] * sure["correlation_other"] > 0
    there = (sure["low_other"] > 0) | (sure["high_other"] < 0)
    columns = ["second", "first", "correlation", "correlation_other"]
    turned = [
        f"{measures[a].title} and {measures[b].title} ({x:.2f}, there {y:.2f})".replace("-", "−")
        for a, b, x, y in sure.loc[there & ~same, columns].to_numpy()
    ]
    counts = {"n": len(both), "sure": len(sure), "same": same.sum(), "n_others": others["n"].max()}
    again, named = (same & there).sum(), "; ".join(turned) or "none"
    return SENTENCES["carried_over"].format(**counts, again=again, turned=named)


def expected_of(cells: pd.DataFrame, method: str, steps: Mapping[str, float]) -> str:
    """Say what a method gave under attack and what it cost, of the cells of `compared`."""
    of_method = cells[cells["method"] == method].set_index("measure")
    attacked, paid = of_method.loc["attacked"], 100 * of_method.loc["accuracy", ENDS]
    ends = {"gain": _ends(*attacked[ENDS]), "paid": _ends(*paid)}
    return SENTENCES["expected_of"].format(attacked=attacked, step=steps[method], **ends)


def triangle(pairs: pd.DataFrame, measures: Mapping[str, Measure]) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws of `agreement`; sure is what excludes zero."""
    pairs = pairs.assign(
        numbers=pairs["correlation"].map("{:.1f}".format),
        sure=(pairs["low"] > 0) | (pairs["high"] < 0),
    ).rename(columns={"correlation": "values"})
    names = [name for name in measures if name in {*pairs["first"], *pairs["second"]}]
    titles = [(name, measures[name].title) for name in names]
    pairs = pairs.rename(columns={"first": "row", "second": "column"})
    return _parts(pairs, dict(titles[1:]), dict(titles[:-1]))


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
    """List the strengths of each method, what each costs, and which one is allowed and chosen."""
    allowed, losses = strongest_allowed(rows), lost(rows).set_index("method")
    other_half = rows[rows["metric"] == "accuracy"].assign(metric="choice")
    elsewhere = strongest_allowed(other_half)
    chosen = rows[rows["chosen"].astype(bool)].groupby("method")["strength"].first()
    listed = []
    for method in [m for m in SHORT if m in losses.index]:
        of_method = losses.loc[[method]]
        pairs = of_method.to_numpy(float)
        costs = [f"{s:.3g}: " + ("diverged" if c != c else f"{100 * c:+.1f}") for s, c in pairs]
        row = {"method": METHODS[method], "strength: points of accuracy lost": "; ".join(costs)}
        end = " (the strongest tried)" if allowed.get(method) == of_method["strength"].max() else ""
        row["strongest allowed"] = f"{allowed[method]:.3g}{end}" if method in allowed else "none"
        row["by the other half"] = f"{elsewhere[method]:.3g}" if method in elsewhere else "none"
        listed.append(row | {"compared at": f"{chosen[method]:.3g}" if method in chosen else "–"})
    return pd.DataFrame(listed)


def attacks(p: SimpleNamespace) -> str:
    """Say how strong the attacks of a panel are, and what PGD training is trained against."""
    trained = p.chosen.get("adversarial")
    steps = f"{p.auto_steps} steps of each APGD, {p.n_queries} queries of Square"
    steps += f", {p.n_targets} targets" if p.n_targets else ""
    text = f"radius {255 * p.epsilon:.3g}/255, {steps}, {p.n_attacked} images"
    return text + (f"; PGD training is trained at {255 * trained:.3g}/255" if trained else "")


def sizes(p: SimpleNamespace) -> str:
    """Say of how many images the measures of a panel are, and how large its noise is."""
    return SENTENCES["sizes"].format(**vars(p))


def map_grid(
    results: Results, per_row: int = 7
) -> tuple[list[list[NDArray[Any] | None]], list[list[str]]]:
    """Return images and maps of all methods of the first panel, in rows, and what they are called.

    A map is on a scale of its own, up to its 99th percentile.
    """
    names = [name.rsplit("|", 1)[0] for name in results.arrays if name.endswith("|none|maps")]
    data = names[0].split("|")[0]
    kinds = [m for m in METHODS if f"{data}|{m}|maps" in results.arrays]
    images = results.arrays[f"{data}|none|images"]
    grid: list[list[NDArray[Any] | None]] = []
    notes = []
    for index, image in enumerate(images):
        pictures: list[NDArray[Any] | None] = [(255 * image.squeeze()).round().astype(np.uint8)]
        for kind in kinds:
            values = results.arrays[f"{data}|{kind}|maps"][index, 0].astype(float)
            top = np.percentile(np.abs(values), 99) or 1.0
            pictures.append(np.clip(values / top, -1, 1))
        titles = ["image", *(SHORT.get(kind, "none") for kind in kinds)]
        for start in range(0, len(pictures), per_row):
            grid.append(pictures[start : start + per_row])
            notes.append(titles[start : start + per_row])
    return grid, notes


def matrix(cells: pd.DataFrame, measures: Mapping[str, Measure]) -> dict[str, pd.DataFrame]:
    """Return what `suite.plots.matrix` draws: measures in rows, methods in columns.

    Colours are standardised differences, numbers the differences themselves; what stands is sure.
    """
    names = [name for name in measures if name in set(cells["measure"])]
    methods = [method for method in SHORT if method in set(cells["method"])]
    cells = cells.assign(numbers=cells["difference"].map(short_number))
    cells = cells.rename(columns={"measure": "row", "method": "column"})
    cells = cells.rename(columns={"deviations": "values", "stands": "sure"})
    arrows = {1: " ↑", 0: "", -1: " ↓"}  # where better is
    rows = {name: measures[name].title + arrows[measures[name].better] for name in names}
    return _parts(cells, rows, {method: SHORT[method] for method in methods})


def curves(rows: pd.DataFrame, measures: Mapping[str, Measure], names: list[str]) -> pd.DataFrame:
    """Return what was measured along the strengths of each method, from none on.

    It is that of the networks by which strengths are chosen, which all have the same seeds.

    Returns:
        `method`, `x` (clean accuracy), `value` and `measure`, in the order of the strengths.
    """
    rows = rows[(rows["status"] == "done") & ~rows["chosen"].astype(bool)]
    means = rows.pivot_table("value", ["method", "strength"], "metric").reset_index()
    start = means[means["method"] == "none"]
    found = []
    for method in [m for m in SHORT if m in set(means["method"])]:
        part = means[means["method"] == method].sort_values("strength")
        line = pd.concat([start, part])
        for name in names:
            points = {"x": line["accuracy"], "value": line[name]}
            labels = {"method": SHORT[method], "measure": measures[name].title}
            found.append(pd.DataFrame(points).assign(**labels))
    return pd.concat(found, ignore_index=True)


def gains(cells: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return what each method gains in a measure and what it costs of clean accuracy, in points.

    Returns:
        `method`, and each with its interval `gain`, `gain_low`, `gain_high`, `cost`, `cost_low`,
        `cost_high`.
    """
    parts = []
    for name, of in (("gain", measure), ("cost", "accuracy")):
        ends = cells[cells["measure"] == of].set_index("method")[ENDS].astype(float)
        parts.append((100 * ends).set_axis([name, f"{name}_low", f"{name}_high"], axis=1))
    return pd.concat(parts, axis=1).rename(index=SHORT).rename_axis("method").reset_index()
