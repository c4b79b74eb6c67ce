"""Tables of the marginal-density chapter, published values beside measured ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from suite.evidence.names import name_of
from suite.evidence.quote import best
from suite.evidence.results import Results
from suite.evidence.statistics import as_ratio, mean_interval
from suite.evidence.tables import interval_text, mean_text, select
from suite.methods import MARGINAL_DENSITY
from suite.papers.marginal_density import FORMS_TRAINED, LOSSES, SHARES
from suite.papers.marginal_density import at_equal_accuracy as compared_at_equal_accuracy
from suite.papers.names import NAMES

# Names of methods, in the order of tables.
TITLES = {method.name: method.title for method in MARGINAL_DENSITY}
# What methods are compared by at equal clean accuracy, and what the axis says of it.
COMPARED: dict[str, str] = NAMES["marginal_density"]["compared"]
PAGE: dict[str, dict[str, Any]] = NAMES["marginal_density"]["page"]
NORMS = {"l2": "L2", "linf": "L∞"}


class Column(NamedTuple):
    """A column of a table: its title, the unit of its values, and that of the published ones."""

    title: str
    scale: float = 1.0
    published: str | None = None


def panels(rows: pd.DataFrame, *by: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each profile, data set and network (and `by`), with words that name it."""
    words: dict[str, Callable[[Any], str]] = {
        "profile": "profile {}".format,
        "norm": lambda norm: NORMS[norm],
        "epsilon": "radius {:g}".format,
        "strength": "λ = {:g}".format,
        "against": lambda method: f"against {TITLES[method]}",
        "foreign": lambda data: f"against {name_of(data)}",
    }
    columns = ["data", "network", *by, "profile"]
    for values, panel in rows.groupby(columns, sort=False):
        named = zip(columns, values, strict=True)
        yield ", ".join(words.get(column, name_of)(value) for column, value in named), panel


def method_table(
    rows: pd.DataFrame,
    columns: Mapping[str, Column],
    *,
    across: str = "metric",
    published: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Put means over networks with 95% intervals into a row a method.

    Args:
        rows: of one panel, one a network: method, value.
        columns: by values of `across`; those that no row has are left out.
        across: column whose values have a column each.
        published: values of the paper by method, which stand in brackets; other methods are left
            out.
    """
    methods = set(rows.loc[rows[across].isin(list(columns)), "method"])
    methods &= methods if published is None else set(published.index)
    lines = []
    for method in [name for name in TITLES if name in methods]:
        line = {"method": TITLES[method]}
        for value, column in columns.items():
            measured = rows[rows[across] == value]
            if len(measured):
                of_method = measured[measured["method"] == method]["value"]
                digits = ".3f" if column.scale == 1 else ".1f"
                line[column.title] = mean_text(column.scale * of_method, digits, empty="–")
                if published is not None and column.published:
                    printed = published[column.published][method]
                    line[column.title] += " (–)" if np.isnan(printed) else f" ({printed:g})"
        lines.append(line)
    return pd.DataFrame(lines)


def drawn(results: Iterable[Results], kind: str) -> tuple[str, dict[str, Any]]:
    """Return the last profile that figures of a kind have, and what they draw of it."""
    found: tuple[str, dict[str, Any]] = "", {}
    for result in results:
        names = sorted((n for n in result.arrays if n.startswith(f"{kind}|")), key=_position)
        of_kind = {name: result.arrays[name] for name in names}
        found = (result.provenance.get("profile", ""), of_kind) if of_kind else found
    return found


def _position(name: str) -> list[int]:
    """Return where the method or form in the name of an array stands in tables."""
    order = [*TITLES, *FORMS_TRAINED]
    return [order.index(part) for part in name.split("|") if part in order]


def longest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the MLPs that are trained as long as the paper's, each network once.

    They are those of Table 1 and of the sweep `long`, at the best profile that has any. PGD has a
    metric for each size of its steps; of changes under noise those of the largest noise are left.
    """
    rows = best(select(table, panel=["methods", "long"], network="mlp", status="done"))
    sizes = rows["step_size"].astype(object).map("_{:g}".format)
    sizes = sizes.where(rows["step_size"].notna() & (rows["panel"] == "methods"), "")
    noise = rows["noise_std"]
    rows = rows.assign(metric=rows["metric"] + sizes)[noise.isna() | (noise == noise.max())]
    return rows.drop_duplicates(["data", "method", "strength", "seed", "metric"])


def trade_off(
    rows: pd.DataFrame,
    measures: Mapping[str, str],
    methods: Sequence[str] = (),
    most_lost: float = 15.0,
) -> pd.DataFrame:
    """Return what was measured at each strength, beside the mean clean accuracy there, `clean` (%).

    Each method begins at standard training. Two networks have their mean, and so no interval that
    would fill the figure. Strengths that cost more than so many points of clean
    accuracy, against the best, are left out.

    Args:
        rows: of one panel.
        measures: metrics, with the title of their panel.
        methods: to be drawn; empty: all.
        most_lost: points of clean accuracy.
    """
    keys = ["method", "strength"]
    clean = rows[rows["metric"] == "accuracy"].groupby(keys)["value"].mean().rename("clean") * 100
    # One value a network: attacks have one for each size of their steps.
    networks = rows[rows["metric"].isin(list(measures))].groupby([*keys, "seed", "metric"])
    rows = networks["value"].mean().reset_index().join(clean, on=keys)
    groups = rows.groupby([*keys, "metric"])["value"]
    rows["value"] = rows["value"].where(groups.transform("size") > 2, groups.transform("mean"))
    rows = rows[rows["clean"] >= clean.max() - most_lost]
    order = [m for m in TITLES if m in set(rows["method"]) and (m in methods or not methods)]
    start = rows[rows["method"] == "standard"]
    parts = [start.assign(method=m) for m in order if m != "standard"]
    rows = pd.concat([*parts, rows[rows["method"].isin(order) & (rows["method"] != "standard")]])
    rows = rows.sort_values("metric", key=lambda names: names.map([*measures].index), kind="stable")
    return rows.assign(measure=rows["metric"].map(measures))


def by_loss(rows: pd.DataFrame, against: str, metrics: Sequence[str]) -> pd.DataFrame:
    """Compare density with another penalty apart for each loss of clean accuracy.

    Returns:
        A row a metric, a column a loss (points): the difference or ratio of `at_equal_accuracy`.
    """
    columns = {}
    for loss in LOSSES:
        equal = compared_at_equal_accuracy(rows, [loss])
        if len(equal):
            equal = equal[(equal["panel"] == "equal") & (equal["against"] == against)]
            gaps = at_equal_accuracy(equal, against).set_index("measure")
            columns[f"{100 * loss:.0f} lost"] = gaps["between them"]
    table = pd.DataFrame(columns).reindex([COMPARED[metric] for metric in metrics])
    return table.fillna("–").rename_axis("measure").reset_index()


def at_equal_accuracy(rows: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return means of density and of another penalty at equal clean accuracy, and what is between.

    Of shares and areas that is a difference, of sizes a ratio, each with its 95% interval over
    pairs of the same seed.

    Args:
        rows: of one panel that compares density with the other penalty.
        against: that penalty.
    """
    lines = []
    for metric, title in COMPARED.items():
        wide = rows[rows["metric"] == metric].pivot_table("value", "seed", "method")
        if wide.empty:
            continue
        if metric in SHARES:
            gap = interval_text(mean_interval(wide["density"] - wide[against]), "+.3f")
        else:
            ratio = as_ratio(mean_interval(np.log(wide["density"] / wide[against])))
            gap = f"× {interval_text(ratio, '.2f')}"
        means = [f"{wide[name].mean():.3f}" for name in ("density", against)]
        names = ["measure", TITLES["density"], TITLES[against], "between them", "networks"]
        lines.append(dict(zip(names, [title, *means, gap, len(wide)], strict=True)))
    return pd.DataFrame(lines)


def array_rows(results: Iterable[Results], kind: str, columns: str) -> pd.DataFrame:
    """Return what the arrays of a kind hold, at the last profile that has any.

    Args:
        results: of profiles.
        kind: what the names of the arrays begin with.
        columns: words for the other parts of the names.

    Returns:
        A row a value: profile, the columns, `step` (its place, from 1) and value.
    """
    profile, arrays = drawn(results, kind)
    frames = []
    for name, values in arrays.items():
        parts = dict(zip(columns.split(), name.split("|")[1:], strict=True))
        frame = pd.DataFrame({"step": np.arange(1, len(values) + 1), "value": values})
        frames.append(frame.assign(profile=profile, **parts))
    return pd.concat(frames, ignore_index=True)


def published_of(tables: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """Return published tables by their id, a row a method; Table 3 by `table-3/NETWORK`."""
    frames = {t["id"]: pd.DataFrame(t["rows"], index=t["columns"]).T for t in tables}
    rows = frames["table-3"]
    for network, part in rows.groupby(rows.index.str.partition("/").get_level_values(0)):
        frames[f"table-3/{network}"] = part.rename(index=lambda name: name.partition("/")[2])
    return frames


def by_attack(rows: pd.DataFrame) -> pd.DataFrame:
    """Name each row by its metric, or by norm, radius and steps of PGD-20, in `column`."""
    names = rows["norm"].map(NORMS) + rows["epsilon"].map(" {:g}".format)
    names += rows["step_size"].map(", steps of {:g}".format)
    return rows.assign(column=names.where(rows["metric"].str.startswith("pgd_"), rows["metric"]))
