"""Gradient regularisation: networks of many strengths, each with its own seed; four metrics."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from suite.data import image_shape
from suite.evidence import tables
from suite.evidence.names import PANEL, name_of, panel_name
from suite.evidence.results import Results
from suite.evidence.statistics import correlation, pearson_interval
from suite.evidence.tables import interval_text
from suite.papers.design import Item, Plan, measurement, panel_of
from suite.store import Reader
from suite.units import Training, Values, log_spaced

# Keys of a panel that are not fields of a training. A second panel of one data set and network,
# with alphas between those of the first, needs seeds that start after them.
NAMES = "n_alphas alpha_min alpha_max map_alphas n_images n_samples patch repetitions".split()
OF_PANEL = dict.fromkeys(NAMES) | {"maps_of": None, "first_seed": 0, "paired_alphas": None}
SALIENCIES = ("logit_gradient", "deeplift")
READS_IMAGES = False  # values of single images are not kept
# Metrics of networks of which each seed goes through all alphas, "paired_alphas", by another name:
# nothing that is said of networks with a seed each mixes with them.
PAIRED = {
    name: f"paired_{name}"
    for name in "training_loss accuracy faithfulness_estimate entropy max_sensitivity".split()
}
# What Faithfulness is taken on: the "confidence score" of the paper, and what its software takes.
SCORES = ("confidence", "logit")


def strength(alpha: float, data: str, batch_size: int) -> float:
    r"""Return the coefficient of the mean squared norm for the paper's :math:`\alpha`.

    .. math:: \text{strength} = \frac{\alpha}{B^2 n}

    for batches of `B` images of `n` values, as the mean over all values of the squared gradient of
    the mean loss has it: our reading, since the paper does not say how they are reduced.
    """
    return alpha / (batch_size**2 * math.prod(image_shape(data)))


def panel(parameters: Values, values: Values) -> SimpleNamespace:
    """Return the parameters of a panel."""
    counted = [] if "paired_alphas" in values else ["n_alphas"]
    return panel_of(parameters, values, OF_PANEL, ["data", "network", "epochs", *counted])


def alphas(p: SimpleNamespace) -> list[float]:
    """Return the values of alpha of a panel."""
    if p.paired_alphas is not None:
        return [*map(float, p.paired_alphas)]
    return log_spaced(p.alpha_min, p.alpha_max, p.n_alphas)


def trainings(p: SimpleNamespace) -> dict[tuple[float, int], Training]:
    """Return the trainings of a panel by alpha and repetition, each with a seed of its own.

    With "paired_alphas" a repetition has one seed, and what is compared are alphas within it.
    Otherwise networks that shared a seed would start from the same weights and see the same
    batches: what they have in common by chance would look like a level, or hide a trend.
    """
    grey = image_shape(p.data)[0] == 1
    fields = {
        "learning_rate": 1e-3,
        "pixel_range": (-1.0, 1.0) if grey else (0.0, 1.0),
        "batch_size": p.batch_size,
        **p.fields,
    }
    return {
        (alpha, repetition): Training(
            **fields,
            seed=repetition if p.paired_alphas else number + repetition * p.n_alphas,
            penalties={"input_gradient": {"strength": strength(alpha, p.data, p.batch_size)}},
        )
        for repetition in range(p.repetitions)
        for number, alpha in enumerate(alphas(p), start=p.first_seed)
    }


def measures(p: SimpleNamespace) -> list[tuple[str, dict[str, Any]]]:
    """Return what is measured of each network: accuracy, and metrics of two kinds of map.

    Faithfulness is taken pixel by pixel, as in the paper, and by squares of `patch` pixels. Paired
    networks have the absolute gradient as a third kind of map, and what has a name in `PAIRED`.
    """
    wanted: list[tuple[str, dict[str, Any]]] = [("accuracy", {})]
    for saliency in (*SALIENCIES, "absolute_gradient") if p.paired_alphas else SALIENCIES:
        common = {"saliency": saliency, "n_images": p.n_images}
        noisy = common | {"n_samples": p.n_samples}
        for squares in ({}, {"patch": p.patch}):
            wanted += [("faithfulness_estimate", common | {"score": s} | squares) for s in SCORES]
        wanted += [("local_lipschitz_estimate", noisy | way) for way in ({}, {"normalised": True})]
        wanted += [("max_sensitivity", noisy), ("entropy", common)]
    if p.paired_alphas:
        return [(m, s) for m, s in wanted if m in PAIRED and "patch" not in s]
    return wanted


def maps(p: SimpleNamespace) -> Iterator[Item]:
    """Yield what is drawn: of the first repetition, at the alphas nearest to `map_alphas`."""
    nearest = {min(alphas(p), key=lambda a: abs(math.log(a / wanted))) for wanted in p.map_alphas}
    trained, settings = trainings(p), {"saliency": "deeplift", "n_images": p.n_maps}
    for images in [{}, {"data": p.maps_of}] if p.maps_of else [{}]:
        for alpha in sorted(nearest):
            unit = measurement(trained[alpha, 0], "saliency_maps", **settings, **images)
            shown = images.get("data", p.data)
            yield Item(unit, keep=f"{p.data}|{p.network}|{shown}|{alpha:g}")


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: networks, what is measured of each, and maps.

    Raises:
        UsageError: a key of a panel that is not known, or one that is missing.
    """
    panels = [panel(parameters, values) for values in parameters["panels"]]
    found = Plan()
    for p in panels:
        for (alpha, _), training in trainings(p).items():
            labels = {"alpha": alpha, "paired": p.paired_alphas is not None}
            found.append(Item(training, labels))
            for metric, settings in measures(p):
                found.append(Item(measurement(training, metric, **settings), labels))
    return Plan([*found, *(item for p in panels for item in maps(p))])


def collect(
    parameters: Values, computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, with alpha and the cut-off, and images and maps."""
    planned = plan(parameters)
    rows = planned.rows(computed)
    squares, normalised = rows["patch"].notna(), rows["normalised"].notna()
    rows = rows.assign(changed=np.where(squares, "squares", "pixels"), normalised=normalised)
    panels = rows.groupby(["data", "network", "paired"], sort=False)
    rows = pd.concat([with_threshold(panel) for _, panel in panels])
    rows["metric"] = rows["metric"].mask(rows.pop("paired"), rows["metric"].replace(PAIRED))
    return rows, planned.arrays(computed, store, without_photographs)


def without_photographs(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out images in colour, which results that are kept must not hold."""
    return {n: t for n, t in tensors.items() if n != "images" or t.shape[1] == 1}


def kept_tensors(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what `collect` reads of the tensors of a unit."""
    return without_photographs(tensors)


def with_threshold(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Mark the networks of one data set and network that do not classify any more.

    The paper leaves out :math:`\alpha > t_\alpha`, where :math:`t_\alpha` is the smallest
    :math:`\alpha > 10^5` whose accuracy, a mean over repetitions, is below 80% of the mean accuracy
    for :math:`\alpha < 10^5` (`beyond_t_alpha`). That keeps the network at :math:`t_\alpha` itself,
    which on a fine grid is just below 80% and on a coarse one may name nothing at all;
    `over_regularised` are those with :math:`\alpha \ge t_\alpha`. `place` is "plateau",
    :math:`\alpha < 10^5`; "before", the last decade and a half below :math:`t_\alpha`; "past"; or
    "between".

    Source: section 3.2 of :cite:t:`demoor2025`.
    """
    accuracy = rows[rows["metric"] == "accuracy"].groupby("alpha")["value"].mean()
    floor = 0.8 * accuracy[accuracy.index < 1e5].mean()
    low = accuracy.index[(accuracy.index > 1e5) & ~(accuracy >= floor)]
    t_alpha = low.min() if len(low) else math.inf
    places = {"past": rows["alpha"] >= t_alpha, "before": rows["alpha"] >= t_alpha / 10**1.5}
    places |= {"plateau": rows["alpha"] < 1e5}
    return rows.assign(
        t_alpha=t_alpha,
        over_regularised=places["past"],
        beyond_t_alpha=rows["alpha"] > t_alpha,
        place=np.select([*places.values()], [*places], "between"),
    )


def select(
    table: pd.DataFrame, metric: str, saliency: str | None = None, *, normalised: bool = False
) -> pd.DataFrame:
    """Return the rows of a metric and of one kind of map."""
    wanted = {"metric": metric, "normalised": normalised}
    return tables.select(table, **wanted, **({"saliency": saliency} if saliency else {}))


def faithfulness(
    table: pd.DataFrame, saliency: str, *, score: str = "logit", changed: str = "pixels"
) -> pd.DataFrame:
    """Return the Faithfulness Estimates in the sign of Quantus.

    Args:
        table: of the chapter.
        saliency: kind of map.
        score: "confidence" or "logit".
        changed: "pixels" or "squares".
    """
    rows = select(table.assign(value=-table["value"]), "faithfulness_estimate", saliency)
    return tables.select(rows, score=score, changed=changed)


MAP_NAMES = {"logit_gradient": "input gradient", "deeplift": "DeepLIFT"}


def key_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return what the chapter's first figure shows, of the last of its profiles.

    Faithfulness is in the sign of Quantus, on logits.

    Returns:
        The rows of the table with `measure`, `line` and `panel` in words.
    """
    rows = table[table["profile"] == table["profile"].iloc[-1]]
    parts = {"accuracy": select(rows, "accuracy")}
    for saliency in SALIENCIES:
        parts[f"faithful, {saliency}"] = faithfulness(rows, saliency)
        parts[f"sensitivity, {saliency}"] = select(rows, "max_sensitivity", saliency)
    rows = pd.concat([*parts.values()])
    names = {"faithfulness_estimate": "faithfulness", "max_sensitivity": "max-sensitivity"}
    return rows.assign(
        measure=rows["metric"].replace(names),
        line=rows["saliency"].map(MAP_NAMES).fillna("network"),
        panel=rows["data"].map(name_of) + ", " + rows["network"].map(name_of),
    )


def cut_offs(table: pd.DataFrame) -> pd.DataFrame:
    """Return where mean test accuracy falls below 80% of its plateau, a row a panel."""
    found = []
    for panel, rows in select(table, "accuracy").groupby(PANEL, sort=False):
        _, data, _ = panel
        means = rows.groupby("alpha")["value"].mean()
        t = rows["t_alpha"].iloc[0]
        of_mean = strength(t, str(data), rows["batch_size"].iloc[0])
        ends = means[means.index < 1e5].mean(), means.iloc[-1]
        cells = [panel_name(panel), *(f"{end:.3f}" for end in ends)]
        cells += [f"{t:.2g}", f"{of_mean:.2g}"] if math.isfinite(t) else ["not reached", ""]
        found.append(cells)
    columns = ["on", "accuracy, α < 10⁵", "at the largest α", "t_α", "which is a strength of"]
    return pd.DataFrame(found, columns=columns)


def spread(rows: pd.DataFrame) -> str:
    """Write the lowest and the highest value of a network below the cut-off, in each panel."""
    plateau = rows[rows["alpha"] < 1e5].groupby(PANEL, sort=False)["value"]
    parts = [
        f"from {values.min():.2f} to {values.max():.2f} for {len(values)} on {panel_name(panel)}"
        for panel, values in plateau
    ]
    return "; ".join(parts)


def readings(table: pd.DataFrame) -> pd.DataFrame:
    """Return how Faithfulness goes with alpha before the cut-off, by each reading of it.

    Returns:
        One row a panel, kind of map and score: Spearman's correlation with its interval where
        pixels and where squares are changed, Pearson's of the former with the logarithm of alpha,
        networks, and images with an estimate in the network that has fewest.
    """
    rows = []
    kept = table[~table["over_regularised"].astype(bool)]
    for saliency, score in itertools.product(SALIENCIES, SCORES):
        by_squares = faithfulness(kept, saliency, score=score, changed="squares")
        found = faithfulness(kept, saliency, score=score)
        for panel, part in found.groupby(PANEL, sort=False):
            defined = part.dropna(subset="value")
            if len(defined) < 4:
                continue
            squares = tables.select(by_squares, **dict(zip(PANEL, panel))).dropna(subset="value")
            x = defined["alpha"], defined["value"]
            intervals = {
                "ρ, pixels": correlation(*x),
                "ρ, squares": correlation(squares["alpha"], squares["value"]),
                "Pearson, pixels": pearson_interval(np.log10(x[0]), x[1]),
            }
            row = {"on": panel_name(panel), "map": MAP_NAMES[saliency], "score": score}
            row |= {name: interval_text(each, "+.2f") for name, each in intervals.items()}
            rows.append(row | {"networks": len(defined), "images": int(part["n"].min())})
    return pd.DataFrame(rows)


def combinations(published: Values, table: pd.DataFrame) -> pd.DataFrame:
    """Return which combinations of data and network of the paper were run."""
    have = set(zip(table["data"], table["network"], strict=True))
    rows = []
    for setting in published["settings"]:
        (data, *copies), network = setting["data"], setting["network"]
        found = [copy for copy in copies if (copy, network) in have]
        state = "not run: needs the data set, and a larger profile"
        state = f"{name_of(found[0])} in its place" if found else state
        state = "yes" if (data, network) in have else state
        rows.append({"data": name_of(data), "network": name_of(network), "shown": state})
    return pd.DataFrame(rows)


class Drawn(NamedTuple):
    """Images (B, C, H, W) but for photographs, their maps by title, and a title for each image."""

    images: NDArray[Any] | None
    maps: dict[str, NDArray[Any]]
    titles: list[str]


def all_maps(results: Sequence[Results]) -> Iterator[tuple[str, Drawn]]:
    """Go through the maps that were kept: what was trained on, and what is shown."""
    done = set()
    for arrays in (result.arrays for result in results):
        names = [name.rsplit("|", 2)[0] for name in arrays if name.endswith("|maps")]
        for start in dict.fromkeys(names):
            if start in done:
                continue
            done.add(start)
            by_alpha = {
                float(name.split("|")[3]): name.removesuffix("maps")
                for name in arrays
                if name.startswith(f"{start}|") and name.endswith("|maps")
            }
            data, network, shown = start.split("|")
            trained = f"{name_of(network)} trained on {name_of(data)}"
            first = by_alpha[min(by_alpha)]
            maps = {f"α = {a:.3g}": arrays[f"{by_alpha[a]}maps"] for a in sorted(by_alpha)}
            titles = [f"label {label}" for label in arrays[f"{first}labels"]]
            yield f"{name_of(shown)}: {trained}", Drawn(arrays.get(f"{first}images"), maps, titles)
