"""Tables and pictures for the chapter on high-order saliency."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import class_names, load_data
from suite.evidence import tables
from suite.evidence.results import Results
from suite.evidence.statistics import mean_interval
from suite.methods import SALIENCIES
from suite.papers.high_order_saliency import ALL, distance_bound
from suite.papers.second_order import MARGIN

# Networks that are not piecewise linear.
SMOOTH = ["efficientnet_lite0_smooth", "resnet_swish", "se_resnet50"]
SWEPT = {"cafo": "CAFO", "caso": "CASO", "clipped": "clipped gradient"}
SURENESS = {"low": "at most 0.5", "between": "between", "high": "at least 0.95"}
LEAST = 3  # fewest photographs for a row of means
TITLES = {method.name: method.title.replace("\n", " ") for method in SALIENCIES}
BASELINES = ["logit_gradient", "smooth_grad", "path_gradients"]
COMPARED = {name: TITLES[name] for name in [*BASELINES, "clipped_logit_gradient", "cafo", "caso"]}
ON_OBJECT = {"on_pair": "named object of two", "on_box": "object on a grey canvas"}
BOUND = "median of the most that λ₂ allows"  # Kantorovich's inequality


def select(
    table: pd.DataFrame, metric: str, *, smooth: bool | None = False, **where: Any
) -> pd.DataFrame:
    """Return the rows of a metric over all classes, whose columns have the values of `where`.

    The networks are the piecewise linear ones, the smooth ones if `smooth`, both if it is None.
    """
    rows = tables.select(table, metric=metric, **where)
    if smooth is not None:
        rows = rows[rows["network"].isin(SMOOTH) == smooth]
    return rows[rows["classes"].isna() | (rows["classes"] == ALL)]


def main_rows(result: Results, metric: str | None = None, **where: Any) -> pd.DataFrame:
    """Return the rows of a profile's main network and photographs; see `select`."""
    p = result.provenance["parameters"]
    rows = tables.select(result.frame, network=p["network"], data=p["images"])
    return rows if metric is None else select(rows, metric, **where)


def label_margins(rows: pd.DataFrame) -> pd.DataFrame:
    """Replace the network of rows by λ₂."""
    return rows.assign(network=[f"λ₂ = L/2 + {margin:g}" for margin in rows["margin"]])


def object_table(result: Results) -> pd.DataFrame:
    """Tabulate the mean shares of maps on the object, in both kinds of scene."""
    rows = tables.select(result.frame, metric=[*ON_OBJECT])
    return tables.wide(rows.replace({"metric": ON_OBJECT}), "saliency", "metric", COMPARED)


def objective_table(result: Results) -> pd.DataFrame:
    """Tabulate the rise of the loss by CASO and by CAFO of the same norm, by margin and confidence.

    Rises are medians over photographs. The ratio is a geometric mean where both are positive.
    """
    rows, lines = main_rows(result, "true_loss", saliency=["cafo", "caso"]), []
    for margin, sure in itertools.product(sorted(set(rows["margin"])), SURENESS):
        photographs = tables.select(rows, margin=margin, sure=sure)
        wide = photographs.pivot_table(index="image", columns="saliency", values="value")
        if len(wide) >= LEAST:
            cafo, caso = wide["cafo"], wide["caso"]
            ratios = (caso / cafo)[(wide > 0).all(axis=1)]
            middle, low, high = np.exp(mean_interval(np.log(ratios))[:3])
            line = {"λ₂": f"L/2 + {margin:g}", "top probability": SURENESS[sure], "n": len(wide)}
            line |= {"CAFO": f"{cafo.median():.3g}", "CASO": f"{caso.median():.3g}"}
            line |= {"CASO ÷ CAFO": f"{middle:.3g} [{low:.3g}, {high:.3g}]"}
            lines.append(line | {"is larger in": f"{(caso > cafo).mean():.0%}"})
    return pd.DataFrame(lines)


def advantage(result: Results) -> pd.DataFrame:
    """Return the ratio of true rises in loss, CASO over CAFO, for each photograph and margin."""
    rows = label_margins(main_rows(result, "true_loss"))
    index = ["profile", "data", "network", "image", "confidence"]
    wide = rows.pivot_table("value", index, "saliency", sort=False).reset_index()
    return wide.assign(value=wide["caso"] / wide["cafo"])[(wide[["cafo", "caso"]] > 0).all(axis=1)]


def add_bound(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the distances of CASO from CAFO, with the `distance_bound` by λ₂ and L."""
    on = ["profile", "data", "network", "image"]
    largest = select(rows, "largest_eigenvalue", smooth=None)[[*on, "value"]]
    distances = select(rows, "difference", smooth=None)
    rows = distances.merge(largest.rename(columns={"value": "largest"}), on=on)
    return rows.assign(**{BOUND: distance_bound(rows["largest"], rows["margin"])})


def pictures(result: Results, name: str) -> tuple[list[NDArray[Any] | None], list[str]]:
    """Return the photographs of a kept figure, and the predicted class and probability of each."""
    a = result.arrays
    predictions = zip(a[f"{name}_predicted"], a[f"{name}_confidence"], strict=True)
    labels = [f"{class_names()[c][:22]}\n{confidence:.0%} sure" for c, confidence in predictions]
    return _photographs(result, a[f"{name}_index"]), labels


def _photographs(result: Results, index: NDArray[Any]) -> list[NDArray[Any] | None]:
    """Return photographs of the main data set, or None for each if it is not available."""
    try:
        pixels = load_data(result.provenance["parameters"]["images"]).test.images
    except ValueError:
        return [None] * len(index)
    return [pixels[i].numpy() for i in index]


def pair_grid(result: Results) -> dict[str, Any]:
    """Return the two photographs of Figure 2 as `suite.plots.columns_as_html` takes them."""
    photographs, labels = pictures(result, "pair")
    rows = [[p, *maps] for p, maps in zip(photographs, result.arrays["pair_maps"], strict=True)]
    distances = main_rows(result, "difference", margin=MARGIN).set_index("image")["value"]
    distances = distances[result.arrays["pair_index"]]
    orders = ["without\nHessian", "with\nHessian"]
    notes = [[n, *orders, f"distance\n{d:.2f}"] for n, d in zip(labels, distances, strict=True)]
    return {"rows": rows, "notes": notes, "titles": ["photograph", "CAFO", "CASO", "difference"]}


def comparison_grid(result: Results, names: Mapping[str, str]) -> dict[str, Any]:
    """Return photographs and their maps by several methods, as `columns_as_html` takes them."""
    photographs, labels = pictures(result, "compared")
    methods = [name for name in names if f"compared_{name}" in result.arrays]
    columns = [photographs, *(result.arrays[f"compared_{name}"] for name in methods)]
    titles = ["photograph", *(names[name] for name in methods)]
    notes = [[label] * len(titles) for label in labels]
    return {"rows": [*zip(*columns, strict=True)], "notes": notes, "titles": titles}


def sweep_frames(result: Results) -> dict[str, list[list[NDArray[Any] | None]]]:
    """Return the photograph of Figure 3 with its maps, by strength of the L1 norm."""
    a = result.arrays
    photograph = _photographs(result, a["sweep_index"])
    maps = zip(*(a[f"sweep_{method}_maps"] for method in SWEPT), strict=True)
    steps = zip(a["sweep_lambda1"], a["sweep_caso_sparsity"], strict=True)
    titles = [f"λ₁ = {size:.2g}: {share:.0%} of CASO's map is zero" for size, share in steps]
    return {title: [[*photograph, *row]] for title, row in zip(titles, maps, strict=True)}
