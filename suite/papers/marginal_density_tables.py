"""Tables of the marginal-density chapter, with published values next to measured ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from suite.evidence.names import name_of
from suite.evidence.statistics import as_ratio, mean_interval
from suite.evidence.tables import best_rows, interval_text, mean_text, select
from suite.methods import MARGINAL_DENSITY
from suite.papers.marginal_density import NAMED, SHARES

# Names of methods, in the order of the tables.
TITLES = {method.name: method.title for method in MARGINAL_DENSITY}
SHORT = {method.name: method.short or method.title for method in MARGINAL_DENSITY}
# Metrics that compare methods at equal clean accuracy, with their titles.
COMPARED: dict[str, str] = NAMED["compared"]
PAGE: dict[str, dict[str, Any]] = NAMED["page"]
MOST_LOST = 15.0  # points of clean accuracy; figures leave out strengths that cost more


def panels(rows: pd.DataFrame, *by: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each profile, data set and network, with a title.

    Args:
        rows: of the chapter.
        by: further columns to group by, whose values are methods.
    """
    for values, panel in rows.groupby(["data", "network", *by, "profile"], sort=False):
        data, network, *others, profile = values
        words = [name_of(data), name_of(network), *(f"against {TITLES[str(m)]}" for m in others)]
        yield ", ".join([*words, f"profile {profile}"]), panel


def method_table(
    rows: pd.DataFrame,
    columns: Mapping[str, Sequence[Any]],
    *,
    across: str = "metric",
    published: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Tabulate means over networks with 95% intervals, a row for each method.

    Args:
        rows: of one panel, one for each network: method, value.
        columns: title, factor and column of `published` ("" for none), by value of `across`.
            Values that no row has are left out.
        across: column of `rows` whose values become columns.
        published: values of the paper by method, shown in brackets. Methods without a row in it are
            left out.
    """
    methods = set(rows.loc[rows[across].isin(list(columns)), "method"])
    methods &= methods if published is None else set(published.index)
    order, table = [name for name in TITLES if name in methods], {}
    for value, (title, factor, name) in columns.items():
        measured = rows[rows[across] == value]
        if len(measured):
            by_method = (factor * measured["value"]).groupby(measured["method"])
            digits = ".3f" if factor == 1 else ".1f"
            table[title] = by_method.agg(mean_text, digits, empty="–").reindex(order).fillna("–")
            if published is not None and name:
                printed = published[name].reindex(order).map(" ({:g})".format)
                table[title] += printed.replace(" (nan)", " (–)")
    return pd.DataFrame(table).rename(TITLES).rename_axis("method").reset_index()


def longest_trainings(table: pd.DataFrame, *panels: str) -> pd.DataFrame:
    """Return the rows of the MLPs that train as long as the paper's, each network once.

    They are at the best profile that has any. PGD has a metric for each step size. Changes under
    noise are those under the largest noise.

    Args:
        table: rows of the chapter.
        panels: of the rows; by default, of Table 1 and of the sweep `long`.
    """
    parts = [*panels] or ["methods", "long"]
    rows = best_rows(select(table, panel=parts, network="mlp", status="done"))
    sizes = rows["step_size"].astype(object).map("_{:g}".format)
    sizes = sizes.where(rows["step_size"].notna() & (rows["panel"] != "long"), "")
    noise = rows["noise_std"]
    rows = rows.assign(metric=rows["metric"] + sizes)[noise.isna() | (noise == noise.max())]
    return rows.drop_duplicates(["data", "method", "p", "strength", "seed", "metric"])


def trade_off(
    rows: pd.DataFrame, measures: Mapping[str, str], methods: Sequence[str]
) -> pd.DataFrame:
    """Return measurements by strength, with its mean clean accuracy in percent, `clean`.

    Each method begins at standard training. Where there are only two networks, both get their mean:
    their interval would fill the figure.

    Args:
        rows: of one panel.
        measures: titles of panels by metric.
        methods: to draw.
    """
    keys = ["method", "strength"]
    clean = rows[rows["metric"] == "accuracy"].groupby(keys)["value"].mean().rename("clean") * 100
    # One value for each network: attacks have one for each step size.
    networks = rows[rows["metric"].isin([*measures])].groupby([*keys, "seed", "metric"])
    rows = networks["value"].mean().reset_index().join(clean, on=keys)
    groups = rows.groupby([*keys, "metric"])["value"]
    rows["value"] = rows["value"].where(groups.transform("size") > 2, groups.transform("mean"))
    rows = rows[rows["clean"] >= clean.max() - MOST_LOST]
    order = [m for m in methods if m in set(rows["method"]) - {"standard"}]
    parts = [rows[rows["method"] == "standard"].assign(method=method) for method in order]
    rows = pd.concat([*parts, rows[rows["method"].isin(order)]])
    rows = rows.sort_values("metric", key=lambda names: names.map([*measures].index), kind="stable")
    return rows.assign(measure=rows["metric"].map(measures))


def equal_accuracy_table(rows: pd.DataFrame, against: str) -> pd.DataFrame:
    """Tabulate means of density and of another penalty at equal clean accuracy, and their gap.

    The gap is a difference for the metrics in `SHARES` and a ratio for others, with its 95%
    interval over pairs of the same seed.

    Args:
        rows: of one panel that compares density with the other penalty.
        against: the other penalty.
    """
    lines = []
    for metric, title in COMPARED.items():
        wide = rows[rows["metric"] == metric].pivot_table("value", "seed", "method")
        if not {"density", against} <= {*wide}:  # measured for one penalty only, or neither
            continue
        if metric in SHARES:
            gap = interval_text(mean_interval(wide["density"] - wide[against]), "+.3f")
        else:
            ratio = as_ratio(mean_interval(np.log(wide["density"] / wide[against])))
            gap = f"× {interval_text(ratio, '.2f')}"
        means = {TITLES[name]: f"{wide[name].mean():.3f}" for name in ("density", against)}
        lines.append({"measure": title, **means, "between them": gap, "networks": len(wide)})
    return pd.DataFrame(lines)


def published_tables(tables: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """Return published tables by their id, with a row for each method."""
    return {t["id"]: pd.DataFrame(t["rows"], index=t["columns"]).T for t in tables}


def name_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """Add a `column` of names: the metric, or the norm, radius and step size of PGD-20."""
    names = rows["norm"].map({"l2": "L2", "linf": "L∞"}) + rows["epsilon"].map(" {:g}".format)
    names += rows["step_size"].map(", steps of {:g}".format)
    return rows.assign(column=names.where(rows["metric"].str.startswith("pgd_"), rows["metric"]))
