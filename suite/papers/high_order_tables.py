"""Tables, sentences and pictures of the chapter on high-order saliency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import class_names, load_data
from suite.evidence.results import Results
from suite.evidence.statistics import mean_interval
from suite.evidence.tables import mean_text
from suite.papers.high_order_saliency import ALL

# Networks that are not piecewise linear.
SMOOTH = ["efficientnet_lite0_smooth", "resnet_swish", "se_resnet50"]
TITLES = {
    "logit_gradient": "gradient",
    "smooth_grad": "SmoothGrad",
    "path_gradients": "integrated\ngradients",
    "loss_gradient": "CAFO,\nλ₁ = 0",
    "caso_dense": "CASO,\nλ₁ = 0",
    "clipped_logit_gradient": "clipped\ngradient",
    "clipped_loss_gradient": "clipped loss\ngradient",
    "cafo": "CAFO",
    "caso": "CASO",
    "smooth_cafo": "smooth\nCAFO",
    "smooth_caso": "smooth\nCASO",
    "random": "random",
}
SWEPT = {"cafo": "CAFO", "caso": "CASO", "clipped": "clipped gradient"}
WAYS = ["dense, by automatic differentiation", "all eigenvalues, Appendix C"]
WAYS += ["leading eigenpair, Lanczos"]
SURENESS = {"low": "at most 0.5", "between": "between", "high": "at least 0.95"}
Rows = list[list[NDArray[Any] | None]]


def select(
    table: pd.DataFrame,
    metric: str,
    *,
    smooth: bool | None = False,
    classes: str = ALL,
    **where: Any,
) -> pd.DataFrame:
    """Return the rows of a metric, of the networks that are piecewise linear or of the smooth ones.

    With `smooth` None those of both, and with `classes` those where so many were kept (or where
    none could be left out). Further columns have the values of `where`.
    """
    rows = table[table["metric"] == metric]
    if smooth is not None:
        rows = rows[rows["network"].isin(SMOOTH) == smooth]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows[rows["classes"].isna() | (rows["classes"] == classes)]


def by_classes(table: pd.DataFrame, metric: str, counts: list[int], **where: Any) -> pd.DataFrame:
    """Return the rows of the last profile, with the number of classes in place of the network."""
    kept = [*(str(count) for count in counts), ALL]
    parts = [select(table, metric, classes=c, **where).assign(network=f"{c} classes") for c in kept]
    rows = pd.concat(parts)
    return rows[rows["profile"] == rows["profile"].iloc[-1]]


def quality_table(rows: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return means over photographs with half-widths of their 95% intervals, a row a method.

    Args:
        rows: of one profile.
        columns: metrics and what their columns are called.
    """
    cells = {}
    for (saliency, metric), part in rows[rows["metric"].isin(columns)].groupby(
        ["saliency", "metric"]
    ):
        cells[saliency, metric] = mean_text(part["value"], ".3g", ".2g")
    wide = pd.Series(cells).unstack().reindex(columns=list(columns)).astype(object).fillna("–")
    wide = wide.reindex([name for name in TITLES if name in wide.index])
    wide.index = [TITLES[name].replace("\n", " ") for name in wide.index]
    return wide.rename(columns=columns)


def objective_table(rows: pd.DataFrame, margins: Sequence[float]) -> pd.DataFrame:
    """Return what the loss rises by along CASO and CAFO of the same norm, by confidence.

    Args:
        rows: of one profile, data set and network.
        margins: of λ₂, which decide the norm.
    """
    lines = []
    for sure, words in SURENESS.items():
        for margin in margins:
            part = select(rows, "true_loss", smooth=None, margin=margin, sure=sure)
            part = part[part["saliency"].isin(["caso", "cafo"])]
            wide = part.pivot_table(index="image", columns="saliency", values="value")
            if len(wide) < 2 or not {"cafo", "caso"} <= set(wide):
                continue
            line = {"top probability": words, "margin of λ₂": f"{margin:g}", "n": len(wide)}
            line |= {"CAFO": f"{wide['cafo'].mean():.3g}", "CASO": f"{wide['caso'].mean():.3g}"}
            both = wide[(wide > 0).all(axis=1)]
            interval = mean_interval(np.log(both["caso"] / both["cafo"]))
            middle, low, high = np.exp(interval[:3])
            line["CASO ÷ CAFO"] = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
            line["CASO is ahead"] = f"{(wide['caso'] > wide['cafo']).mean():.0%}"
            lines.append(line)
    return pd.DataFrame(lines)


def pictures(result: Results, name: str) -> tuple[list[NDArray[Any] | None], list[str]]:
    """Return the photographs of a kept figure, and the class and probability of each.

    A photograph that is not at hand is None.
    """
    a = result.arrays
    beside = zip(a[f"{name}_predicted"], a[f"{name}_confidence"], strict=True)
    labels = [f"{class_names()[c][:22]}\n{confidence:.2f}" for c, confidence in beside]
    try:
        pixels = load_data(result.provenance["parameters"]["images"]).test.images
    except ValueError:
        return [None] * len(labels), labels
    return [pixels[i].numpy() for i in a[f"{name}_index"]], labels


def pair_grid(result: Results) -> dict[str, Any]:
    """Return the two photographs of Figure 2 as `suite.plots.picture_grid` takes them."""
    photographs, labels = pictures(result, "pair")
    rows = [[p, *maps] for p, maps in zip(photographs, result.arrays["pair_maps"], strict=True)]
    return {"rows": rows, "labels": labels, "titles": ["photograph", "CAFO", "CASO", "difference"]}


def sweep_grid(result: Results) -> dict[str, Any]:
    """Return the maps of one photograph for each strength, the chosen ones marked."""
    a = result.arrays
    marked = {
        (row, column)
        for row, method in enumerate(["cafo", "caso"])
        for column in np.flatnonzero(np.isclose(a["sweep_lambda1"], a[f"sweep_{method}_chosen"][0]))
    }
    return {
        "rows": [[*a[f"sweep_{method}_maps"]] for method in SWEPT],
        "notes": [[f"zeros {share:.1%}" for share in a[f"sweep_{m}_sparsity"]] for m in SWEPT],
        "titles": [f"λ₁ = {strength:.0e}" for strength in a["sweep_lambda1"]],
        "labels": list(SWEPT.values()),
        "marked": marked,
    }


def comparison_grid(result: Results) -> dict[str, Any]:
    """Return the maps of all methods beside their photographs."""
    photographs, labels = pictures(result, "compared")
    methods = [name for name in TITLES if f"compared_{name}" in result.arrays]
    columns = [photographs, *(result.arrays[f"compared_{name}"] for name in methods)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    titles = ["photograph", *(TITLES[name] for name in methods)]
    return {"rows": rows, "labels": labels, "titles": titles}
