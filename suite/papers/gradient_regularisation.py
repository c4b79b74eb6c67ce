"""Gradient regularisation: networks of many strengths, each with its own seed; four metrics."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import image_shape
from suite.errors import expected
from suite.evidence import tables
from suite.evidence.names import PANEL, name_of
from suite.evidence.quote import Value, paired, unpaired
from suite.evidence.results import Results
from suite.methods import input_gradient
from suite.papers.design import Arrays, Derived, Item, Plan, Spec, grid, measurement, panels_of
from suite.papers.names import NAMES
from suite.units import Training, Values, log_spaced

# Further keys of a panel. A second one of one data set and network, with alphas between those of
# the first, needs seeds that start after them.
OF_PANEL = {"n_alphas": 0, "maps_of": None, "first_seed": 0, "paired_alphas": None}
# Metrics of networks of which each seed goes through all alphas, "paired_alphas", by another name
# where others of the pair have a seed each: nothing that is said of those mixes with them.
PAIRED: dict[str, str] = NAMES["gradient_regularisation"]["paired"]
SALIENCIES = ("logit_gradient", "deeplift")
# What Faithfulness is taken on: the "confidence score" of the paper, and what its software takes.
STEADIES = "input-gradient-steadies-maps"  # a claim of Side by side
SCORES = ("confidence", "logit")
CHANGED = ("pixels", "squares")
# What the page speaks of, in short.
PAIRS: dict[str, dict[str, str]] = NAMES["gradient_regularisation"]["pairs"]
# Kinds of map: in tables of their size, and in those of Faithfulness.
MAP_NAMES: dict[str, str] = NAMES["gradient_regularisation"]["maps"]
ESTIMATED: dict[str, str] = NAMES["gradient_regularisation"]["estimated"]


def strength(alpha: float, data: str, batch_size: int) -> float:
    r"""Return the coefficient of the mean squared norm for the paper's :math:`\alpha`.

    .. math:: \text{strength} = \frac{\alpha}{B^2 n}

    for batches of `B` images of `n` values, as the mean over all values of the squared gradient of
    the mean loss has it: our reading, since the paper does not say how they are reduced.
    """
    return alpha / (batch_size**2 * math.prod(image_shape(data)))


def trainings(p: SimpleNamespace) -> dict[tuple[float, int], Training]:
    """Return the trainings of a panel by alpha and repetition, each with a seed of its own.

    Networks that shared a seed would start from the same weights and see the same batches: what
    they have in common by chance would look like a level, or hide a trend. With "paired_alphas" a
    repetition has one seed, and what is compared are alphas within it.

    Raises:
        UsageError: a panel with neither of `n_alphas` and `paired_alphas`.
    """
    if not (p.n_alphas or p.paired_alphas):
        raise expected("panels", "n_alphas or paired_alphas", f"neither for {p.data}")
    grey = image_shape(p.data)[0] == 1
    fields = {"learning_rate": 1e-3, "batch_size": p.batch_size}
    fields |= {"pixel_range": (-1.0, 1.0) if grey else (0.0, 1.0), **p.fields}
    alphas = p.paired_alphas or log_spaced(p.alpha_min, p.alpha_max, p.n_alphas)
    return {
        (alpha, repetition): Training(
            **input_gradient(fields, strength(alpha, p.data, p.batch_size)),
            seed=repetition if p.paired_alphas else number + repetition * p.n_alphas,
        )
        for repetition in range(p.repetitions)
        for number, alpha in enumerate(map(float, alphas), start=p.first_seed)
    }


def measures(p: SimpleNamespace) -> Iterator[Spec]:
    """Yield what is measured of each network: accuracy, and metrics of two kinds of map.

    Faithfulness is taken pixel by pixel, as in the paper, and by squares of `patch` pixels. Paired
    networks have the absolute gradient as a third kind of map, but no squares.
    """
    yield Spec({}, "accuracy", {})
    paired = bool(p.paired_alphas)
    for saliency in (*SALIENCIES, "absolute_gradient") if paired else SALIENCIES:
        label, common = {"saliency": saliency}, {"saliency": saliency, "n_images": p.n_images}
        noisy = common | {"n_samples": p.n_samples}
        for changed, score in itertools.product(CHANGED[:1] if paired else CHANGED, SCORES):
            squares = {"patch": p.patch} if changed == "squares" else {}
            labels = label | {"score": score, "changed": changed}
            yield Spec(labels, "faithfulness_estimate", common | {"score": score} | squares)
        for way in ({}, {"normalised": True}):
            yield Spec(label | way, "local_lipschitz_estimate", noisy | way)
        yield Spec(label, "max_sensitivity", noisy)
        yield Spec(label, "entropy", common)


def maps(p: SimpleNamespace) -> Iterator[Item]:
    """Yield what is drawn: of the first repetition, at the alphas nearest to `map_alphas`."""
    trained, settings = trainings(p), {"saliency": "deeplift", "n_images": p.n_maps}
    alphas = dict.fromkeys(alpha for alpha, _ in trained)
    nearest = {min(alphas, key=lambda a: abs(math.log(a / wanted))) for wanted in p.map_alphas}
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
    panels, found = panels_of(parameters, OF_PANEL), Plan()
    for p in panels:
        common = {"batch_size": p.batch_size, "changed": "pixels", "normalised": False}
        common |= {"paired": bool(p.paired_alphas)}
        networks = [(unit, common | {"alpha": alpha}) for (alpha, _), unit in trainings(p).items()]
        found += itertools.starmap(Item, networks)
        found += grid(networks, measures(p))
    return Plan([*found, *(item for p in panels for item in maps(p))])


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Return one row a network and metric, with alpha and the cut-off, and images and maps."""
    rows = with_threshold(rows, by=["data", "network", "paired"])
    of_both = rows.groupby(["data", "network"])["paired"].transform("nunique") > 1
    names = rows["metric"].mask(of_both & rows.pop("paired"), rows["metric"].replace(PAIRED))
    return rows.assign(metric=names), arrays


def with_threshold(rows: pd.DataFrame, share: float = 0.8, by: list[str] = PANEL) -> pd.DataFrame:
    r"""Mark the networks of each data set and network that do not classify any more.

    The paper leaves out :math:`\alpha > t_\alpha`, where :math:`t_\alpha` is the smallest
    :math:`\alpha > 10^5` whose accuracy, a mean over repetitions, is below 80% of the mean accuracy
    for :math:`\alpha < 10^5` (`beyond_t_alpha`). That keeps the network at :math:`t_\alpha` itself,
    which on a fine grid is just below 80% and on a coarse one may name nothing at all;
    `over_regularised` are those with :math:`\alpha \ge t_\alpha`. `place` is "plateau",
    :math:`\alpha < 10^5`; "before", the last decade and a half below :math:`t_\alpha`; "past"; or
    "between". With another `share` than 80% they are those that keep it.

    Source: section 3.2 of :cite:t:`demoor2025`.
    """
    found = []
    for _, part in rows.groupby(by, sort=False):
        accuracy = part[part["metric"] == "accuracy"].groupby("alpha")["value"].mean()
        floor = share * accuracy[accuracy.index < 1e5].mean()
        low = accuracy.index[(accuracy.index > 1e5) & ~(accuracy >= floor)]
        found.append(part.assign(t_alpha=low.min() if len(low) else math.inf))
    rows = pd.concat(found)
    alpha, t_alpha = rows["alpha"], rows["t_alpha"]
    past, before = alpha >= t_alpha, alpha >= t_alpha / 10**1.5
    place = np.select([past, before, alpha < 1e5], ["past", "before", "plateau"], "between")
    return rows.assign(place=place, over_regularised=past, beyond_t_alpha=alpha > t_alpha)


def select(
    table: pd.DataFrame, metric: str, saliency: str | None = None, *, normalised: bool = False
) -> pd.DataFrame:
    """Return the rows of a metric and of one kind of map."""
    wanted = {"metric": metric, "normalised": normalised}
    return tables.select(table, **wanted, **({"saliency": saliency} if saliency else {}))


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the `panel` that they are of, data and network, in words."""
    return rows.assign(panel=rows["data"].map(name_of) + ", " + rows["network"].map(name_of))


def with_paired(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, with paired networks in place of the others of their data and network."""
    usual = {name: metric for metric, name in PAIRED.items()}
    rows = table[table["metric"].isin(usual)]
    pairs = set(zip(rows["data"], rows["network"]))
    others = [pair not in pairs for pair in zip(table["data"], table["network"])]
    return pd.concat([rows.replace({"metric": usual}), table[others]])


def faithfulness(
    table: pd.DataFrame, *, score: str = "logit", changed: str = "pixels"
) -> dict[str, pd.DataFrame]:
    """Return Faithfulness Estimates by kind of map: those of the gradient in both signs.

    Args:
        table: of the chapter.
        score: "confidence" or "logit".
        changed: "pixels" or "squares".
    """
    printed = tables.select(select(table, "faithfulness_estimate"), score=score, changed=changed)
    of_quantus = printed.assign(value=-printed["value"])
    maps = {name: tables.select(of_quantus, saliency=s) for name, s in ESTIMATED.items()}
    return maps | {"gradient, printed sign": tables.select(printed, saliency="logit_gradient")}


def changes(
    rows: pd.DataFrame, place: str = "before", against: str = "plateau", end: str = ""
) -> dict[str, Value]:
    """Return by how much the networks at a place exceed those at another, by pair and `end`."""
    parts = {name: tables.select(rows, **where) for name, where in PAIRS.items()}
    return {name + end: change(part, place, against) for name, part in parts.items()}


def change(rows: pd.DataFrame, place: str, against: str) -> Value:
    """Return by how much networks at a place exceed others, within seeds that are at both."""
    within = rows.groupby("seed")["alpha"].nunique().max() > 1
    return (paired if within else unpaired)(rows, "place", place, against)


def against_plateau(rows: pd.DataFrame) -> pd.DataFrame:
    """Return networks before the cut-off, their values as shares of the plateau of their `line`.

    Args:
        rows: of one metric and kind of map.
    """
    rows = named(rows[~rows["over_regularised"].astype(bool)])
    rows = rows.rename(columns={"panel": "line"}).assign(panel="")
    plateau = rows[rows["place"] == "plateau"].groupby("line")["value"].mean()
    return rows.assign(value=rows["value"] / rows["line"].map(plateau))


def sizes(parts: Mapping[str, pd.DataFrame], digits: str = ".2f") -> pd.DataFrame:
    """Return how large a metric is before and past the cut-off, a row a panel and part.

    Args:
        parts: rows by the name of a part; an empty one was not run.
        digits: of the means.
    """
    lines = []
    for name, rows in parts.items():
        for on, panel in named(rows).groupby("panel", sort=False):
            at = [tables.select(panel, place=p)["value"] for p in ("plateau", "before", "past")]
            plateau, before, past = (tables.mean_text(v, digits).replace("-", "−") for v in at)
            rise, fall = change(panel, "before", "plateau"), change(panel, "past", "before")
            lines.append([on, name, plateau, before, f"{rise:signed}", past, f"{fall:signed}"])
        if rows.empty:
            lines.append(["all", name, *["not run"] * 5])
    columns = ["on", "map", "α < 10⁵", "before the cut-off", "change", "past it", "change again"]
    return pd.DataFrame(lines, columns=columns)


def sizes_of(table: pd.DataFrame, metric: str, *, normalised: bool = False) -> pd.DataFrame:
    """Return `sizes` of a metric for both kinds of map, and for a third one where it was run."""
    rows = select(table, metric, normalised=normalised)
    kinds = {*SALIENCIES, *rows["saliency"]}
    return sizes({n: tables.select(rows, saliency=k) for k, n in MAP_NAMES.items() if k in kinds})


def by_line(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all parts, with the name of the part as their `line`, and `panel`."""
    return named(pd.concat([rows.assign(line=name) for name, rows in parts.items()]))


def words(text: str) -> dict[str, str]:
    """Return what sentences expect, from "WORD name name; WORD name".

    >>> words("higher a b; unclear c")
    {'a': 'higher', 'b': 'higher', 'c': 'unclear'}
    """
    lines = [line.split() for line in text.split(";")]
    return {name: word for word, *names in lines for name in names}


def cut_offs(table: pd.DataFrame) -> pd.DataFrame:
    """Return where mean test accuracy falls below 80% of its plateau, a row a panel."""
    found = []
    for (profile, data, network), rows in select(table, "accuracy").groupby(PANEL, sort=False):
        means = rows.groupby("alpha")["value"].mean()
        t, size = rows[["t_alpha", "batch_size"]].iloc[0]
        cells = [f"{name_of(data)} with {name_of(network)} ({profile})"]
        cells += [f"{means[means.index < 1e5].mean():.3f}", f"{means.iloc[-1]:.3f}"]
        reached = [f"{t:.2g}", f"{strength(t, str(data), size):.2g}"]
        found.append([*cells, *(reached if math.isfinite(t) else ["not reached", ""])])
    columns = ["on", "accuracy, α < 10⁵", "at the largest α", "t_α", "which is a strength of"]
    return pd.DataFrame(found, columns=columns)


class Drawn(NamedTuple):
    """Images (B, C, H, W) but for photographs, their maps by title, and a title for each image."""

    images: NDArray[Any] | None
    maps: dict[str, NDArray[Any]]
    titles: list[str]


def all_maps(results: Sequence[Results]) -> dict[str, Drawn]:
    """Return the maps that were kept, by what was trained on, and what is shown."""
    found: dict[str, Drawn] = {}
    for arrays in (result.arrays for result in results):
        names = [name.split("|") for name in sorted(arrays) if name.endswith("|maps")]
        for key in dict.fromkeys(tuple(name[:3]) for name in names):
            alphas = sorted((float(n[3]), "|".join(n[:4])) for n in names if tuple(n[:3]) == key)
            first, (data, network, shown) = alphas[0][1], map(name_of, key)
            maps = {f"α = {alpha:.3g}": arrays[f"{start}|maps"] for alpha, start in alphas}
            titles = [f"label {label}" for label in arrays[f"{first}|labels"]]
            drawn = Drawn(arrays.get(f"{first}|images"), maps, titles)
            found.setdefault(f"{shown}: {network} trained on {data}", drawn)
    return found


def strips(drawn: Mapping[str, Drawn], n: int = 3) -> dict[str, list[list[NDArray[Any]]]]:
    """Return rows of pictures by alpha: images of MNIST and Fashion-MNIST, and their maps."""
    both = [drawn[f"{name}: LeNet-5 trained on {name}"] for name in ("MNIST", "Fashion-MNIST")]
    images = [image for d in both if d.images is not None for image in d.images[:n, 0]]
    images = [(127.5 * (1 + image)).astype(np.uint8) for image in images]
    return {a: [images, [m for d in both for m in d.maps[a][:n, 0]]] for a in both[0].maps}
