"""Tables and sentences of the marginal-density chapter, published values beside measured ones."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.evidence.statistics import as_ratio, mean_interval
from suite.evidence.tables import interval_text, mean_text, paired_difference
from suite.papers.marginal_density import FORMS_TRAINED, LOSSES, SHARES
from suite.papers.marginal_density import at_equal_accuracy as compared_at_equal_accuracy
from suite.papers.names import NAMES

# Names of methods, in the order of tables.
TITLES: dict[str, str] = NAMES["marginal_density"]["titles"]
NORMS = {"l2": "L2", "linf": "L∞"}
SURE = (0.0, 0.5, 0.9, 0.99, 1.0)  # probabilities of the label that tell how sure a network is
DETECTORS = {"logit": "one logit", "density": "log density"}
ATTACKS = {"fgsm": "FGSM", "pgd": "PGD-20", "longer": "PGD-100", "square": "Square"}
ATTACKS |= {"auto": "AutoAttack"}
# What methods are compared by at equal clean accuracy, and what the axis says of it.
COMPARED: dict[str, str] = NAMES["marginal_density"]["compared"]
GROUP_COLUMNS: dict[str, str] = NAMES["marginal_density"]["group_columns"]


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
        "step_size": "steps of {:g}".format,
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


def unmeasured(rows: pd.DataFrame, published: pd.DataFrame) -> str:
    """Name the methods that the paper has and none of the rows, in a sentence or nothing."""
    missing = set(published.index) - set(rows["method"])
    names = [title for name, title in TITLES.items() if name in missing]
    return f"Not run, so without a row: {'; '.join(names)}." if names else ""


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
    return _last(results, kind)[1]


def profile_drawn(results: Iterable[Results], kind: str) -> str:
    """Return the profile that figures of a kind draw; empty if none has it."""
    return _last(results, kind)[0]


def _last(results: Iterable[Results], kind: str) -> tuple[str, dict[str, Any]]:
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


def panel_title(panel: Mapping[str, Any], profile: str) -> str:
    """Name data, network and epochs of a panel, over a figure."""
    where = f"{name_of(panel['data'])}, {name_of(panel['network'])}"
    return f"{where}, {panel['epochs']} epochs, profile {profile}"


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


def swept_networks(frame: pd.DataFrame, sweep: Mapping[str, Any]) -> str:
    """Say how long the networks of a trade-off were trained, and how good they are.

    Args:
        frame: rows of a profile.
        sweep: one of its panels on which strengths are varied.
    """
    of_panel = {name: sweep[name] for name in ("data", "network")}
    rows = select(frame, "strength", "accuracy", **of_panel)
    standard = 100 * rows.loc[rows["method"] == "standard", "value"]
    equal = 100 * select(frame, "equal", "accuracy", **of_panel)["value"]
    text = ", ".join([f"*{frame['profile'].iloc[0]}*", *map(name_of, of_panel.values())])
    epochs = f"{sweep['epochs']} epoch{'s' * (sweep['epochs'] > 1)}"
    text += f": {epochs}, standard training {mean_text(standard, '.1f')} %"
    if len(equal):
        text += f", methods compared at {equal.mean():.1f} % on average"
    return f"{text}." if len(rows) else ""


def by_step(rows: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return accuracy under PGD-20 at equal clean accuracy, apart for each size of its steps.

    Args:
        rows: of one profile.
        against: the penalty that density is compared with.
    """
    attacked = rows["metric"] == "pgd_l2"
    lines = []
    for size in sorted(rows.loc[attacked & (rows["panel"] == "strength"), "step_size"].unique()):
        equal = compared_at_equal_accuracy(rows[~attacked | (rows["step_size"] == size)])
        if equal.empty:
            continue
        (line,) = at_equal_accuracy(equal[equal["metric"] == "pgd_l2"], against).to_dict("records")
        lines.append({"steps of": f"{size:g}"} | line)
    return pd.DataFrame(lines)


def by_loss(rows: pd.DataFrame, against: str, metrics: Sequence[str]) -> pd.DataFrame:
    """Compare density with another penalty apart for each loss of clean accuracy.

    Returns:
        A row a metric, a column a loss (points): the difference or ratio of `at_equal_accuracy`.
    """
    columns = {}
    for loss in LOSSES:
        equal = compared_at_equal_accuracy(rows, [loss])
        if len(equal):
            gaps = at_equal_accuracy(equal, against).set_index("measure")
            columns[f"{100 * loss:.0f} lost"] = gaps["between them"]
    table = pd.DataFrame(columns).reindex([COMPARED[metric] for metric in metrics])
    return table.fillna("–").rename_axis("measure").reset_index()


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


def by_confidence(results: Iterable[Results], methods: Sequence[str]) -> pd.DataFrame:
    """Return norms of the gradients of the label's and of other logits, by how sure a network is.

    Of the first network of each method; a row a method and range of the label's probability.
    """
    arrays = drawn(results, "cosine_gradient")
    starts = dict.fromkeys(name.rpartition("|")[0] for name in arrays)
    parts = ("probability", "label", "others")
    rows = pd.concat(
        pd.DataFrame({part: arrays[f"{start}|{part}"] for part in parts}).assign(method=TITLES[m])
        for m in methods
        for start in starts
        if start.endswith(f"|{m}")
    )
    ranges = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(SURE)]
    sure = pd.cut(rows.pop("probability"), SURE, labels=ranges, include_lowest=True).astype(str)
    groups = rows.groupby(["method", sure.rename("probability of the label")], sort=False)
    table = groups.mean().assign(images=groups.size()).reset_index()
    table = table.sort_values(["method", "probability of the label"], ignore_index=True)
    return table.rename(columns={"label": "label's logit", "others": "other logits"})


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
    names = sorted((name for name in arrays if name.startswith("groups|")), key=_position)
    accuracies = np.stack([100 * arrays[name] for name in names])
    columns = [f"label {n // 2}, background {n % 2}" for n in range(accuracies.shape[1])]
    rows = pd.DataFrame(accuracies, columns=columns)
    keys = pd.DataFrame([name.split("|")[1:3] for name in names], columns=["data", "method"])
    means = rows.groupby([keys["data"].map(name_of), keys["method"].map(TITLES)], sort=False).mean()
    return means.reset_index()


def published_table(values: pd.DataFrame) -> pd.DataFrame:
    """Return values of the paper by method as a table to show."""
    return values.rename(index=TITLES, columns=_column).rename_axis("method").reset_index()


def _column(name: str) -> str:
    """Return a column of Tables 4 to 6 in words: norm and radius, or score and data set."""
    first, _, rest = name.partition("_")
    if first in NORMS:
        return f"{NORMS[first]} {rest}"
    return f"{DETECTORS[first]}, {name_of(rest)}" if first in DETECTORS else name


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
    """Return the curves of pixel perturbation of the last profile, a row a point."""
    curves = []
    profile, arrays = _last(results, "curve")
    for name, values in arrays.items():
        _, data, network, method = name.split("|")
        points = {"share": np.linspace(0, 100, len(values)), "value": values, "profile": profile}
        curves.append(pd.DataFrame(points).assign(data=data, network=network, method=method))
    return pd.concat(curves, ignore_index=True)


def by_reading(rows: pd.DataFrame) -> pd.DataFrame:
    """Name each row by its metric, and by norm and step size of PGD-20, in the column `column`."""
    names = rows["norm"] + rows["step_size"].map(", steps of {:g}".format)
    return rows.assign(column=names.where(rows["metric"].str.startswith("pgd_"), rows["metric"]))
