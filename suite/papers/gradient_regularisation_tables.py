"""What the record on gradient regularisation has of trends, best strength and maps of digits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence.quote import Value, mean, paired
from suite.evidence.statistics import pearson, permutation_p, spearman
from suite.papers.gradient_regularisation import faithfulness, named, select

METRICS = {"Lipschitz constant": "local_lipschitz_estimate", "max-sensitivity": "max_sensitivity"}
METRICS |= {"entropy": "entropy"}
# Which networks the paper leaves out, and which the claims do.
LEFT_OUT = {"without α > t_α": "beyond_t_alpha", "without α ≥ t_α": "over_regularised"}


def trends(table: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson's ρ with log α and Spearman's, with its p, for metrics of gradient maps.

    Source: section 3.2 and the caption of figure 2 of :cite:t:`demoor2025`.
    """
    parts = {"faithfulness": faithfulness(table)["gradient, sign of Quantus"]}
    parts |= {title: select(table, metric, "logit_gradient") for title, metric in METRICS.items()}
    rows = pd.concat([part.assign(metric=title) for title, part in parts.items()])
    lines = []
    for (metric, on), panel in named(rows).groupby(["metric", "panel"], sort=False):
        line = {"metric": metric, "on": on}
        for title, column in LEFT_OUT.items():
            part = panel[~panel[column].astype(bool)]
            x, y = np.log(part["alpha"]), part["value"]
            both = f"{pearson(x, y):+.2f}; {spearman(x, y):+.2f}".replace("-", "−")
            line[title] = f"{both} ({permutation_p(x, y):.2g}), n = {len(part)}"
        lines.append(line)
    return pd.DataFrame(lines)


def best_alpha(table: pd.DataFrame) -> Value:
    """Return the accuracy of paired networks at their best α less that at the smallest.

    The α is chosen by the same networks, so the gain is rather too large.
    """
    rows = select(table, "paired_accuracy")
    means = rows.groupby("alpha")["value"].mean()
    if means.empty:
        return Value()
    ends = {means.idxmax(): "best", means.index[0]: "smallest"}
    return paired(rows.assign(end=rows["alpha"].map(ends)), "end", "best", "smallest")


def likeness(images: NDArray[Any], maps: Mapping[str, NDArray[Any]]) -> dict[str, Value]:
    """Return how much maps look like grey images: means of |correlation| over pixels, and the gap.

    Args:
        images: (B, 1, H, W).
        maps: of these, by α from the smallest ("low") to the largest ("high").
    """
    pixels, alphas = images.reshape(len(images), -1), [*maps]
    alike = {a: abs(pearson(pixels, maps[a].reshape(pixels.shape))) for a in alphas}
    ends = pd.DataFrame({"low": alike[alphas[0]], "high": alike[alphas[-1]]}).rename_axis("image")
    rows = ends.melt(var_name="end", ignore_index=False).reset_index().assign(data="", profile="")
    means = {end: mean(rows[rows["end"] == end]) for end in ("low", "high")}
    return means | {"gap": paired(rows, "end", "high", "low")}
