"""Gradient regularisation: its networks, measurements, cut-offs and tables."""

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
from suite.evidence.quote import Value, paired
from suite.evidence.results import Results
from suite.methods import input_gradient
from suite.papers.design import Arrays, Derived, Item, Plan, Spec, grid, measurement, panels_of
from suite.papers.names import NAMES
from suite.units import Training, Values, log_spaced

# Optional keys of a panel. A second panel of one data set and network, with alphas between those
# of the first, needs seeds that start after the first panel's.
OF_PANEL = {"n_alphas": 0, "maps_of": None, "first_seed": 0, "paired_alphas": None}
NAMED: dict[str, Any] = NAMES["gradient_regularisation"]
# Names for the metrics of paired networks, whose every seed goes through all alphas. They apply
# where a data set and network has unpaired networks, too, so that no claim mixes the two.
PAIRED: dict[str, str] = NAMED["paired"]
SALIENCIES = ("logit_gradient", "deeplift")
# Scores for Faithfulness: the "confidence score" of the paper, and that of its software.
SCORES = ("confidence", "logit")


def strength(alpha: float, data: str, batch_size: int) -> float:
    r"""Return the coefficient of the mean squared norm for the paper's :math:`\alpha`.

    .. math:: \text{strength} = \frac{\alpha}{B^2 n}

    for batches of `B` images of `n` values. This reading takes the mean, over all values, of the
    squared gradient of the mean loss; the paper does not state the reduction.
    """
    return alpha / (batch_size**2 * math.prod(image_shape(data)))


def trainings(p: SimpleNamespace) -> dict[tuple[float, int], Training]:
    """Return the trainings of a panel by alpha and repetition, each with its own seed.

    Networks with one seed share initial weights and batches, so they are no independent
    observations. With `paired_alphas` each repetition has one seed, and alphas are compared within
    it.

    Raises:
        UsageError: a panel with neither `n_alphas` nor `paired_alphas`.
    """
    if not (p.n_alphas or p.paired_alphas):
        raise expected("panels", "n_alphas or paired_alphas", f"neither for {p.data}")
    pixels = (-1.0, 1.0) if image_shape(p.data)[0] == 1 else (0.0, 1.0)
    fields = {"learning_rate": 1e-3, "batch_size": p.batch_size, "pixel_range": pixels, **p.fields}
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
    """Yield the measures of each network: accuracy, and metrics of two saliency methods.

    Faithfulness replaces single pixels, as in the paper, and squares of `patch` by `patch` pixels.
    Paired networks have a third method, the absolute gradient, but no squares.
    """
    yield Spec({}, "accuracy", {})
    paired = bool(p.paired_alphas)
    patches: dict[str, Any] = {"pixels": {}} | ({} if paired else {"squares": {"patch": p.patch}})
    for saliency in (*SALIENCIES, "absolute_gradient") if paired else SALIENCIES:
        label, common = {"saliency": saliency}, {"saliency": saliency, "n_images": p.n_images}
        noisy = common | {"n_samples": p.n_samples}
        for (changed, patch), score in itertools.product(patches.items(), SCORES):
            labels = label | {"score": score, "changed": changed}
            yield Spec(labels, "faithfulness_estimate", common | {"score": score} | patch)
        for norm in ({}, {"normalised": True}):
            yield Spec(label | norm, "local_lipschitz_estimate", noisy | norm)
        yield Spec(label, "max_sensitivity", noisy)
        yield Spec(label, "entropy", common)


def maps(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the maps to draw: of the first repetition, at the alphas nearest to `map_alphas`."""
    networks, settings = trainings(p), {"saliency": "deeplift", "n_images": p.n_maps}
    nearest = {min(networks, key=lambda k: abs(math.log(k[0] / a)))[0] for a in p.map_alphas}
    for images in [{}, {"data": p.maps_of}] if p.maps_of else [{}]:
        for alpha in sorted(nearest):
            unit = measurement(networks[alpha, 0], "saliency_maps", **settings, **images)
            yield Item(unit, keep=f"{p.data}|{p.network}|{images.get('data', p.data)}|{alpha:g}")


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: networks, their measurements, and maps.

    Raises:
        UsageError: an unknown or missing key of a panel.
    """
    panels, items = panels_of(parameters, OF_PANEL), Plan()
    for p in panels:
        common = {"batch_size": p.batch_size, "changed": "pixels", "normalised": False}
        common |= {"paired": bool(p.paired_alphas)}
        networks = [(unit, common | {"alpha": alpha}) for (alpha, _), unit in trainings(p).items()]
        items += itertools.starmap(Item, networks)
        items += grid(networks, measures(p))
    return Plan([*items, *(item for p in panels for item in maps(p))])


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Add the cut-off to rows, and rename the metrics of paired networks where both are present."""
    rows = mark_cut_off(rows, by=["data", "network", "paired"])
    has_both = rows.groupby(["data", "network"])["paired"].transform("nunique") > 1
    names = rows["metric"].mask(has_both & rows.pop("paired"), rows["metric"].replace(PAIRED))
    return rows.assign(metric=names), arrays


def mark_cut_off(rows: pd.DataFrame, share: float = 0.8, by: list[str] = PANEL) -> pd.DataFrame:
    r"""Mark the networks that no longer classify, for each data set and network.

    The cut-off :math:`t_\alpha` is the smallest :math:`\alpha > 10^5` whose accuracy, a mean over
    repetitions, is below a `share` of the mean accuracy for :math:`\alpha < 10^5`; the paper's
    share is 80%.

    Returns:
        The rows with `t_alpha`, infinite where no accuracy is that low. `beyond_t_alpha` marks
        :math:`\alpha > t_\alpha`, which the paper leaves out. `over_regularised` marks
        :math:`\alpha \ge t_\alpha`: the network at :math:`t_\alpha` has lost that accuracy, too.
        `place` is "past" where over-regularised; "before" in the last decade and a half below
        :math:`t_\alpha`; "plateau" for other :math:`\alpha < 10^5`; else "between".

    Source: section 3.2 of :cite:t:`demoor2025`.
    """
    panels = []
    for _, panel in rows.groupby(by, sort=False):
        accuracy = panel[panel["metric"] == "accuracy"].groupby("alpha")["value"].mean()
        floor = share * accuracy[accuracy.index < 1e5].mean()
        low = accuracy.index[(accuracy.index > 1e5) & ~(accuracy >= floor)]
        panels.append(panel.assign(t_alpha=low.min() if len(low) else math.inf))
    rows = pd.concat(panels)
    alpha, t_alpha = rows["alpha"], rows["t_alpha"]
    past, before = alpha >= t_alpha, alpha >= t_alpha / 10**1.5
    place = np.select([past, before, alpha < 1e5], ["past", "before", "plateau"], "between")
    return rows.assign(place=place, over_regularised=past, beyond_t_alpha=alpha > t_alpha)


def select(
    table: pd.DataFrame, metric: str, saliency: str | None = None, *, normalised: bool = False
) -> pd.DataFrame:
    """Return the rows of a metric, and of one saliency method if it is given."""
    where = {"metric": metric, "normalised": normalised}
    return tables.select(table, **where, **({"saliency": saliency} if saliency else {}))


def name_panels(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the `panel` of rows: the titles of their data set and network."""
    return rows.assign(panel=rows["data"].map(name_of) + ", " + rows["network"].map(name_of))


def prefer_paired(table: pd.DataFrame) -> pd.DataFrame:
    """Replace networks by the paired ones of the same data set and network, where there are any."""
    usual = {name: metric for metric, name in PAIRED.items()}
    paired = table["metric"].isin(usual)
    others = ~paired.groupby([table["data"], table["network"]]).transform("any")
    return pd.concat([table[paired].replace({"metric": usual}), table[others]])


def faithfulness(
    table: pd.DataFrame, *, score: str = "logit", changed: str = "pixels"
) -> dict[str, pd.DataFrame]:
    """Return the rows of Faithfulness Estimates by saliency method, the gradient in both signs.

    Args:
        table: of the chapter.
        score: output that the estimate refers to, "confidence" or "logit".
        changed: what is replaced, "pixels" or "squares".
    """
    printed = tables.select(select(table, "faithfulness_estimate"), score=score, changed=changed)
    of_quantus = printed.assign(value=-printed["value"])
    maps = {name: tables.select(of_quantus, saliency=s) for name, s in NAMED["estimated"].items()}
    return maps | {"gradient, printed sign": tables.select(printed, saliency="logit_gradient")}


def changes(
    rows: pd.DataFrame, place: str = "before", against: str = "plateau", end: str = ""
) -> dict[str, Value]:
    """Return the `change` of each pair of data set and network; `end` is appended to its name."""
    panels = {name: tables.select(rows, **where) for name, where in NAMED["pairs"].items()}
    return {name + end: change(panel, place, against) for name, panel in panels.items()}


def change(rows: pd.DataFrame, place: str, against: str) -> Value:
    """Return the mean at one place minus that at another; within seeds if networks are paired."""
    within = rows.groupby("seed")["alpha"].nunique().max() > 1
    return paired(rows, "place", place, against, within=within)


def divide_by_plateau(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide the values of networks before the cut-off by the plateau's mean on their `line`.

    Args:
        rows: of one metric and saliency method.
    """
    rows = name_panels(rows[~rows["over_regularised"].astype(bool)])
    rows = rows.rename(columns={"panel": "line"}).assign(panel="")
    plateau = rows[rows["place"] == "plateau"].groupby("line")["value"].mean()
    return rows.assign(value=rows["value"] / rows["line"].map(plateau))


def tabulate(maps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tabulate means on the plateau, before and past the cut-off, for each panel and map.

    Args:
        maps: rows by the name of a map; empty rows were not run.
    """
    lines = []
    for name, rows in maps.items():
        for on, panel in name_panels(rows).groupby("panel", sort=False):
            at = [tables.select(panel, place=p)["value"] for p in ("plateau", "before", "past")]
            plateau, before, past = (tables.mean_text(v, ".2f").replace("-", "−") for v in at)
            rise, fall = change(panel, "before", "plateau"), change(panel, "past", "before")
            lines.append([on, name, plateau, before, f"{rise:signed}", past, f"{fall:signed}"])
        if rows.empty:
            lines.append(["all", name, *["not run"] * 5])
    columns = ["on", "map", "α < 10⁵", "before the cut-off", "change", "past it", "change again"]
    return pd.DataFrame(lines, columns=columns)


def metric_table(table: pd.DataFrame, metric: str, *, normalised: bool = False) -> pd.DataFrame:
    """Tabulate the sizes of a metric: both saliency methods, and a third where it was run."""
    rows = select(table, metric, normalised=normalised)
    names = {k: n for k, n in NAMED["maps"].items() if k in {*SALIENCIES, *rows["saliency"]}}
    return tabulate({name: tables.select(rows, saliency=k) for k, name in names.items()})


def join_lines(lines: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Join the rows of all lines; add the name of the `line`, and the `panel`."""
    return name_panels(pd.concat([rows.assign(line=name) for name, rows in lines.items()]))


def cut_offs(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the accuracy and the cut-off of each panel, the latter under each reading of α."""
    lines = []
    for (profile, data, network), rows in select(table, "accuracy").groupby(PANEL, sort=False):
        means = rows.groupby("alpha")["value"].mean()
        t, size = rows[["t_alpha", "batch_size"]].iloc[0]
        s = strength(t, str(data), size)
        cells = [f"{name_of(data)} with {name_of(network)} ({profile})"]
        cells += [f"{means[means.index < 1e5].mean():.3f}", f"{means.iloc[-1]:.3f}"]
        lines.append([*cells, *map("{:.2g}".format, (t, s, s * size, s * size**2))])
    columns = ["on", "accuracy, α < 10⁵", "at the largest α", "t_α", "which is a strength of"]
    columns += ["t_α if that is α / B", "if α / B²"]
    return pd.DataFrame(lines, columns=columns).replace("inf", "not reached")


class Maps(NamedTuple):
    """Images (B, C, H, W), None for photographs; their maps by alpha; the title of each image."""

    images: Any
    maps: dict[str, NDArray[Any]]
    titles: list[str]


def all_maps(results: Sequence[Results]) -> dict[str, Maps]:
    """Return the kept maps by title: the images, the network and its training data."""
    by_title: dict[str, Maps] = {}
    for arrays in (result.arrays for result in results):
        names = [name.split("|") for name in sorted(arrays) if name.endswith("|maps")]
        for key in dict.fromkeys(tuple(name[:3]) for name in names):
            alphas = sorted((float(n[3]), "|".join(n[:4])) for n in names if tuple(n[:3]) == key)
            first, (data, network, images) = alphas[0][1], map(name_of, key)
            maps = {f"α = {alpha:.3g}": arrays[f"{start}|maps"] for alpha, start in alphas}
            titles = [f"label {label}" for label in arrays[f"{first}|labels"]]
            entry = Maps(arrays.get(f"{first}|images"), maps, titles)
            by_title.setdefault(f"{images}: {network} trained on {data}", entry)
    return by_title


def strips(maps: Mapping[str, Maps], n: int = 3) -> dict[str, list[list[NDArray[Any]]]]:
    """Return rows of pictures by alpha: images of MNIST and Fashion-MNIST, and their maps."""
    pair = [maps[f"{name}: LeNet-5 trained on {name}"] for name in ("MNIST", "Fashion-MNIST")]
    images = [(127.5 * (1 + image)).astype(np.uint8) for m in pair for image in m.images[:n, 0]]
    return {a: [images, [row for m in pair for row in m.maps[a][:n, 0]]] for a in pair[0].maps}
