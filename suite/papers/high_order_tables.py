"""Tables, sentences and pictures of the chapter on high-order saliency."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import class_names, load_data
from suite.evidence.results import Results
from suite.evidence.tables import mean_text
from suite.papers.high_order_saliency import ALL_CLASSES

SMOOTH = ["efficientnet_lite0_smooth", "se_resnet50"]  # networks that are not piecewise linear
TITLES = {
    "logit_gradient": "gradient",
    "smooth_grad": "SmoothGrad",
    "integrated_gradients": "integrated\ngradients",
    "loss_gradient": "CAFO,\nλ₁ = 0",
    "caso_dense": "CASO,\nλ₁ = 0",
    "cafo": "CAFO",
    "caso": "CASO",
    "smooth_cafo": "smooth\nCAFO",
    "smooth_caso": "smooth\nCASO",
}
SWEPT = {"cafo": "CAFO", "caso": "CASO", "clipped": "clipped gradient"}
WAYS = ["dense, by automatic differentiation", "all eigenvalues, Appendix C"]
WAYS += ["leading eigenpair, Lanczos"]
Rows = list[list[NDArray[Any] | None]]


def select(
    table: pd.DataFrame, metric: str, *, smooth: bool = False, n_classes: int = ALL_CLASSES
) -> pd.DataFrame:
    """Return the rows of a metric, of the networks that are piecewise linear or of the smooth ones.

    With `n_classes`, those where so many classes were kept (or where none could be left out).
    """
    rows = table[(table["metric"] == metric) & (table["network"].isin(SMOOTH) == smooth)]
    return rows[rows["n_classes"].isna() | (rows["n_classes"] == n_classes)]


def by_classes(table: pd.DataFrame, metric: str, counts: list[int]) -> pd.DataFrame:
    """Return the rows of the last profile, with the number of classes in place of the network."""
    rows = pd.concat([select(table, metric, n_classes=c) for c in [*counts, ALL_CLASSES]])
    last = rows[rows["profile"] == rows["profile"].iloc[-1]]
    return last.assign(network=[f"{count:.0f} classes" for count in last["n_classes"]])


def quality_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over photographs with half-widths of their 95% intervals, a row a method."""
    cells = {}
    for (saliency, metric), part in rows.groupby(["saliency", "metric"]):
        cells[saliency, metric] = mean_text(part["value"], ".3g", ".2g")
    columns = "insertion deletion faithfulness max_sensitivity entropy sparsity overlap".split()
    wide = pd.Series(cells).unstack().reindex(columns=columns).astype(object).fillna("not run")
    wide = wide.reindex([name for name in TITLES if name in wide.index])
    wide.index = [TITLES[name].replace("\n", " ") for name in wide.index]
    return wide.rename(columns=lambda name: name.replace("_", "-"))


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
