"""Tables and sentences of the marginal-density chapter, published values beside measured ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.evidence.statistics import as_ratio, mean_interval
from suite.evidence.tables import interval_text, mean_text, paired_difference
from suite.papers.marginal_density import SHARES

# Names of methods, in the order of tables.
TITLES = {
    "standard": "standard",
    "at_fgsm": "adversarial training, FGSM",
    "at_pgd": "adversarial training, PGD",
    "softplus": "SoftPlus",
    "hessian": "input Hessian",
    "group_dro": "Group DRO",
    "score_matching": "score matching",
    "input_gradient": "input gradient",
    "cure": "CURE",
    "density": "density",
    "density_stable": "density, stable",
    "density_naive": "density, naive",
    "group_dro_density": "Group DRO + density",
    "standard_balanced": "standard, balanced",
    "input_gradient_balanced": "input gradient, balanced",
    "density_balanced": "density, balanced",
}
NORMS = {"l2": "L2", "linf": "L∞"}
ATTACKS = {
    "fgsm": "FGSM",
    "pgd": "PGD-20",
    "longer": "PGD-100",
    "square": "Square",
    "auto": "AutoAttack",
}
# What methods are compared by at equal clean accuracy, and what the axis says of it.
COMPARED = {
    "leakage": "leakage",
    "leakage_share": "leakage, share of the map",
    "leakage_other": "leakage of another class",
    "pgd_l2": "accuracy, PGD-20 (L2)",
    "auto_linf": "accuracy, Auto-PGD (L∞)",
    "others_gradient": "gradients of other logits",
    "label_gradient": "gradient of the label's logit",
    "gradient_change": "change of gradient, relative",
    "absolute_change": "change of gradient, absolute",
    "insertion": "insertion, fraction",
    "pixel_perturbation": "pixel perturbation",
}


GROUP_COLUMNS = {
    "worst_celeba": "worst group, CelebA",
    "worst_waterbirds": "worst group, Waterbirds",
    "all_celeba": "all, CelebA",
    "all_waterbirds": "all, Waterbirds",
}


class Column(NamedTuple):
    """A column of a table: its title, the unit of its values, and that of the published ones."""

    title: str
    scale: float = 1.0
    published: str | None = None


def select(table: pd.DataFrame, part: str | list[str], metric: str, **equal: Any) -> pd.DataFrame:
    """Return the rows of parts of the chapter and a metric; `equal` gives values of columns."""
    return tables.select(table, panel=part, metric=metric, **equal)


def panels(rows: pd.DataFrame, *by: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each profile, data set and network (and `by`), with words that name it."""
    words: dict[str, Callable[[Any], str]] = {
        "profile": "profile {}".format,
        "norm": lambda norm: NORMS[norm],
        "epsilon": "radius {:g}".format,
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
        published: values of the paper by method, which stand in brackets; its methods are shown.
    """
    methods = set(rows["method"] if published is None else published.index)
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


def difference(rows: pd.DataFrame, first: str, second: str, scale: float = 1.0) -> str:
    """Write how far two methods are apart, over networks of the same seed (and noise, radius)."""
    keys = ("seed", "noise_std", "epsilon", "foreign")
    pairs = [column for column in keys if rows[column].notna().all()]
    rows = rows.assign(value=scale * rows["value"])
    gap = paired_difference(rows, "method", first, second, pairs)
    return f"{TITLES[first]} minus {TITLES[second]}: {interval_text(gap)}, n = {gap.n}"


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last profile that there is."""
    return rows[rows["profile"] == rows["profile"].iloc[-1]] if len(rows) else rows


def drawn(results: Iterable[Results], kind: str) -> dict[str, Any]:
    """Return what figures of a kind draw, of the last profile that has it."""
    found: dict[str, Any] = {}
    for result in results:
        of_kind = {n: array for n, array in result.arrays.items() if n.startswith(f"{kind}|")}
        found = of_kind or found
    return found


def trade_off(rows: pd.DataFrame, metrics: list[str], most_lost: float = 15.0) -> pd.DataFrame:
    """Return what was measured at each strength, beside the mean clean accuracy there, `clean` (%).

    Strengths that cost more than so many points of it, against the best, are left out.
    """
    keys = ["profile", "data", "network", "method", "strength"]
    rows = largest(rows[rows["panel"] == "strength"])
    clean = rows[rows["metric"] == "accuracy"].groupby(keys)["value"].mean().rename("clean")
    # One value a network: attacks have one for each size of their steps.
    rows = rows[rows["metric"].isin(metrics)]
    rows = rows.groupby([*keys, "seed", "metric"])["value"].mean().reset_index()
    rows = rows.join(clean, on=keys)
    rows = rows.assign(measure=rows["metric"].map(COMPARED), clean=100 * rows["clean"])
    return rows[rows["clean"] >= rows["clean"].max() - most_lost]


def at_equal_accuracy(rows: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return means of density and of another penalty at equal clean accuracy, and what is between.

    Of shares and areas that is a difference, of sizes a ratio, each with its 95% interval over
    pairs of the same seed.
    """
    rows = rows[(rows["panel"] == "equal") & (rows["against"] == against)]
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


def steps(results: Iterable[Results], part: str) -> pd.DataFrame:
    """Return what was kept of the steps of training with each form: data, form, step, value."""
    frames = []
    for name, values in drawn(results, "training_steps").items():
        _, data, form, kept = name.split("|")
        if kept == part:
            frame = pd.DataFrame({"step": np.arange(1, len(values) + 1), "value": values})
            frames.append(frame.assign(data=data, form=form))
    return pd.concat(frames, ignore_index=True)


def cosines(results: Iterable[Results], method: str) -> pd.DataFrame:
    """Return the cosine of label's and density's gradient of each image, by its probability."""
    arrays = drawn(results, "cosine_gradient")
    frames = []
    for name in arrays:
        _, data, of, part = name.split("|")
        if (of, part) == (method, "cosine"):
            other = arrays[name.replace("|cosine", "|probability")]
            frame = pd.DataFrame({"probability": other, "value": arrays[name], "data": data})
            frames.append(frame.dropna())
    return pd.concat(frames, ignore_index=True)


def parts_of_gradient(rows: pd.DataFrame) -> pd.DataFrame:
    """Return norms of the density's gradient and its parts, and ratios to the standard network."""
    titles = {"whole": "whole gradient", "shift": "shift", "centred": "centred part"}
    means = rows.pivot_table(index="metric", columns="method", values="value")
    lines = []
    for method in [name for name in TITLES if name in means]:
        line = {"method": TITLES[method]}
        for part, title in titles.items():
            norm, ratio = means[method][part], means[method][f"{part}_ratio"]
            line[title] = f"{norm:.2f} ({ratio:.2f})"
        lines.append(line)
    return pd.DataFrame(lines)


def published_of(tables: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """Return published tables by their id, a row a method; Table 3 by `table-3/NETWORK`."""
    frames = {t["id"]: pd.DataFrame(t["rows"], index=t["columns"]).T for t in tables}
    rows = frames["table-3"]
    for network, part in rows.groupby(rows.index.str.partition("/").get_level_values(0)):
        frames[f"table-3/{network}"] = part.rename(index=lambda name: name.partition("/")[2])
    return frames


def group_accuracies(arrays: Mapping[str, Any]) -> pd.DataFrame:
    """Return accuracy (%) in each group of label and background, a mean over networks."""
    names = [name for name in arrays if name.startswith("groups|")]
    accuracies = np.stack([100 * arrays[name] for name in names])
    columns = [f"label {n // 2}, background {n % 2}" for n in range(accuracies.shape[1])]
    rows = pd.DataFrame(accuracies, columns=columns)
    keys = pd.DataFrame([name.split("|")[1:3] for name in names], columns=["data", "method"])
    means = rows.groupby([keys["data"].map(name_of), keys["method"].map(TITLES)], sort=False).mean()
    return means.reset_index()


def published_table(values: pd.DataFrame) -> pd.DataFrame:
    """Return values of the paper by method as a table to show."""
    return values.rename(index=TITLES).rename_axis("method").reset_index()


def published_groups(values: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of the paper's Table 2, with what it prints after ±, by method."""
    written = {}
    for name, title in GROUP_COLUMNS.items():
        pairs = zip(values[name], values[f"{name}_pm"], strict=True)
        written[title] = [f"{accuracy:.2f} ± {spread:.2f}" for accuracy, spread in pairs]
    return pd.DataFrame(written, index=values.index)


def with_radii(rows: pd.DataFrame) -> pd.DataFrame:
    """Name each row by its metric, and by norm and radius of the attack, in the column `column`."""
    names = []
    for metric, epsilon in zip(rows["metric"], rows["epsilon"], strict=True):
        norm = str(metric).removeprefix("pgd_")
        radius = f"{255 * epsilon:.0f}/255" if norm == "linf" else f"{epsilon:g}"
        names.append(f"{NORMS[norm]} {radius}" if norm in NORMS else metric)
    return rows.assign(column=names)


def perturbation_curves(results: Iterable[Results]) -> pd.DataFrame:
    """Return the curves of pixel perturbation, a row a point: share of pixels (%), value."""
    curves = []
    for name, values in drawn(results, "curve").items():
        _, data, network, method = name.split("|")
        points = {"share": np.linspace(0, 100, len(values)), "value": values}
        curves.append(pd.DataFrame(points).assign(data=data, network=network, method=method))
    return pd.concat(curves, ignore_index=True)


def by_reading(rows: pd.DataFrame) -> pd.DataFrame:
    """Name each row by its metric, and by norm and step size of PGD-20, in the column `column`."""
    names = [
        f"{norm}, steps of {step:g}" if str(metric).startswith("pgd_") else metric
        for metric, norm, step in zip(rows["metric"], rows["norm"], rows["step_size"], strict=True)
    ]
    return rows.assign(column=names)
