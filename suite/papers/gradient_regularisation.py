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
from suite.errors import check_keys
from suite.evidence import tables
from suite.evidence.names import PANEL, name_of, panel_name
from suite.evidence.results import Results
from suite.evidence.statistics import correlation, pearson_interval
from suite.evidence.tables import interval_text
from suite.store import Reader
from suite.units import FIELDS, Measurement, Training, Unit, log_spaced

Settings = Mapping[str, Any]
# Keys of a panel that are not fields of a training. A second panel of one data set and network,
# with alphas between those of the first, needs seeds that start after them.
OF_PANEL = {"n_alphas", "alpha_min", "alpha_max", "map_alphas", "maps_of", "patch"}
OF_PANEL |= {"n_images", "n_samples", "first_seed", "paired_alphas", "repetitions"}
REQUIRED = {"data", "network", "epochs", "n_alphas"}
SALIENCIES = ("logit_gradient", "deeplift")
READS_IMAGES = False  # values of single images are not kept
# Metrics of networks of which each seed goes through all alphas, "paired_alphas", by another name:
# nothing that is said of networks with a seed each mixes with them.
PAIRED = {"training_loss": "paired_training_loss", "accuracy": "paired_accuracy"}
PAIRED |= {"faithfulness_estimate": "paired_faithfulness_estimate", "entropy": "paired_entropy"}
PAIRED |= {"max_sensitivity": "paired_max_sensitivity"}
# What Faithfulness is taken on: the "confidence score" of the paper, and what its software takes.
SCORES = ("confidence", "logit")


def strength(alpha: float, data: str, batch_size: int) -> float:
    r"""Return the coefficient of the mean squared norm for the paper's :math:`\alpha`.

    .. math:: \text{strength} = \frac{\alpha}{B^2 n}

    for batches of `B` images of `n` values, as the mean over all values of the squared gradient of
    the mean loss has it: our reading, since the paper does not say how they are reduced.
    """
    return alpha / (batch_size**2 * math.prod(image_shape(data)))


def alphas(parameters: Settings, panel: Settings) -> list[float]:
    """Return the values of alpha of a panel; its own go before the common range."""
    if "paired_alphas" in panel:
        return [*map(float, panel["paired_alphas"])]
    low, high = (panel.get(name, parameters[name]) for name in ("alpha_min", "alpha_max"))
    return log_spaced(low, high, panel["n_alphas"])


def trainings(parameters: Settings, panel: Settings) -> dict[tuple[float, int], Training]:
    """Return the trainings of a panel by alpha and repetition, each with a seed of its own.

    With "paired_alphas" a repetition has one seed, and what is compared are alphas within it.
    Otherwise networks that shared a seed would start from the same weights and see the same
    batches: what they have in common by chance would look like a level, or hide a trend.

    Raises:
        UsageError: a key of the panel that is not known, or one that is missing.
    """
    paired = "paired_alphas" in panel
    check_keys("panels", panel, FIELDS | OF_PANEL, REQUIRED - ({"n_alphas"} if paired else set()))
    p = SimpleNamespace(**parameters)
    grey = image_shape(panel["data"])[0] == 1
    fields: dict[str, Any] = {
        "learning_rate": 1e-3,
        "pixel_range": (-1.0, 1.0) if grey else (0.0, 1.0),
    }
    fields |= {name: value for name, value in panel.items() if name in FIELDS}
    fields |= {"pixel_range": tuple(fields["pixel_range"])}
    fields = {"batch_size": p.batch_size} | fields
    found, first = {}, panel.get("first_seed", 0)
    for repetition in range(panel.get("repetitions", p.repetitions)):
        for number, alpha in enumerate(alphas(parameters, panel), start=first):
            of_mean = strength(alpha, panel["data"], fields["batch_size"])
            found[alpha, repetition] = Training(
                **fields,
                seed=repetition if paired else number + repetition * panel["n_alphas"],
                penalties={"input_gradient": {"strength": of_mean}},
            )
    return found


def measurements(parameters: Settings, panel: Settings, training: Training) -> list[Measurement]:
    """Return what is measured of a network: accuracy, and metrics of two kinds of map.

    Faithfulness is taken pixel by pixel, as in the paper, and by squares of `patch` pixels. Paired
    networks have the absolute gradient as a third kind of map, and what has a name in `PAIRED`.
    """
    own = {name: panel[name] for name in OF_PANEL & panel.keys()}
    p = SimpleNamespace(**{**parameters, **own})
    wanted: list[tuple[str, dict[str, Any]]] = [("accuracy", {})]
    paired = "paired_alphas" in panel
    for saliency in (*SALIENCIES, "absolute_gradient") if paired else SALIENCIES:
        common = {"saliency": saliency, "n_images": p.n_images}
        noisy = common | {"n_samples": p.n_samples}
        for squares in ({}, {"patch": p.patch}):
            wanted += [("faithfulness_estimate", common | {"score": s} | squares) for s in SCORES]
        wanted += [("local_lipschitz_estimate", noisy | way) for way in ({}, {"normalised": True})]
        wanted += [("max_sensitivity", noisy), ("entropy", common)]
    kept = [(m, s) for m, s in wanted if not paired or (m in PAIRED and "patch" not in s)]
    return [Measurement(training=training, metric=m, settings=s) for m, s in kept]


def maps(parameters: Settings, panel: Settings) -> dict[str, Measurement]:
    """Return the measurements that keep maps, by the start of the names of their arrays.

    They are of the first repetition, at the values of alpha nearest to `map_alphas`.
    """
    p = SimpleNamespace(**parameters)
    candidates = alphas(parameters, panel)
    wanted = panel.get("map_alphas", p.map_alphas)
    chosen = {min(candidates, key=lambda a: abs(math.log(a / w))) for w in wanted}
    images = [{}, {"data": panel["maps_of"]}] if "maps_of" in panel else [{}]
    of_panel = trainings(parameters, panel)
    return {
        f"{panel['data']}|{panel['network']}|{other.get('data', panel['data'])}|{alpha:g}": (
            Measurement(
                training=of_panel[alpha, 0],
                metric="saliency_maps",
                settings={"saliency": "deeplift", "n_images": p.n_maps} | other,
            )
        )
        for other in images
        for alpha in sorted(chosen)
    }


def _measured(parameters: Settings) -> list[tuple[dict[str, Any], Unit]]:
    """Return every training and what is measured of it, with its alpha and whether it is paired."""
    pairs: list[tuple[dict[str, Any], Unit]] = []
    for panel in parameters["panels"]:
        for (alpha, _), training in trainings(parameters, panel).items():
            every: list[Unit] = [training, *measurements(parameters, panel, training)]
            pairs += [({"alpha": alpha, "paired": "paired_alphas" in panel}, u) for u in every]
    return pairs


def _drawn(parameters: Settings) -> dict[str, Measurement]:
    return {
        n: unit for panel in parameters["panels"] for n, unit in maps(parameters, panel).items()
    }


def units(parameters: Settings) -> list[Unit]:
    """Return the units of the chapter."""
    return [*(unit for _, unit in _measured(parameters)), *_drawn(parameters).values()]


def collect(
    parameters: Settings, computed: pd.DataFrame, store: Reader
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, with alpha and the cut-off, and images and maps."""
    labels = pd.DataFrame([labels for labels, _ in _measured(parameters)])
    rows = computed.iloc[: len(labels)].assign(**labels)
    squares, normalised = rows["patch"].notna(), rows["normalised"].notna()
    rows = rows.assign(changed=np.where(squares, "squares", "pixels"), normalised=normalised)
    panels = rows.groupby(["data", "network", "paired"], sort=False)
    rows = pd.concat([with_threshold(panel) for _, panel in panels])
    rows["metric"] = rows["metric"].mask(rows.pop("paired"), rows["metric"].replace(PAIRED))
    arrays = {
        f"{name}|{part}": tensor.numpy()
        for name, key in zip(_drawn(parameters), computed["key"].iloc[len(rows) :], strict=True)
        for part, tensor in without_photographs(store.read_tensors(key) or {}).items()
    }
    return rows, arrays


def without_photographs(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out images in colour, which results that are kept must not hold."""
    return {n: t for n, t in tensors.items() if n != "images" or t.shape[1] == 1}


def kept_tensors(parameters: Settings, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
            rows.append(
                {
                    "on": panel_name(panel),
                    "map": MAP_NAMES[saliency],
                    "score": score,
                    "ρ, pixels": interval_text(correlation(*x), "+.2f"),
                    "ρ, squares": interval_text(
                        correlation(squares["alpha"], squares["value"]), "+.2f"
                    ),
                    "Pearson, pixels": interval_text(
                        pearson_interval(np.log10(x[0]), x[1]), "+.2f"
                    ),
                    "networks": len(defined),
                    "images": int(part["n"].min()),
                }
            )
    return pd.DataFrame(rows)


def combinations(published: Settings, table: pd.DataFrame) -> pd.DataFrame:
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
