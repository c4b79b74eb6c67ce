"""What the record on gradient regularisation has of trends, effects, best strength and digits."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence import statistics
from suite.evidence.quote import Value, mean, paired
from suite.evidence.statistics import pearson, permutation_p, spearman
from suite.evidence.tables import interval_text
from suite.papers import gradient_regularisation as paper
from suite.papers.gradient_regularisation import faithfulness, named, select
from suite.papers.names import NAMES

METRICS = {"Lipschitz constant": "local_lipschitz_estimate", "max-sensitivity": "max_sensitivity"}
METRICS |= {"entropy": "entropy"}
# What Fashion-MNIST is compared with MNIST by.
STEADY: dict[str, dict[str, Any]] = NAMES["gradient_regularisation"]["steady"]
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


def beside_items(table: pd.DataFrame) -> pd.DataFrame:
    """Return which part of each measure is left before the cut-off: MNIST, Fashion-MNIST, ratio.

    A part is the geometric mean of networks before the cut-off over that on the plateau. The last
    networks before it keep 80% of the accuracy, as in the paper, or 95%.

    Args:
        table: of one profile.
    """
    lines = []
    for share, (title, where) in itertools.product((0.8, 0.95), STEADY.items()):
        rows = select(paper.with_threshold(table, share), **where)
        rows = rows[~rows["over_regularised"]]
        found = paper.changes(rows.assign(value=np.log(rows["value"])))
        values = (found[name] for name in ("lenet", "fashion"))
        first, then = (statistics.Interval(v.estimate, v.low, v.high, v.n) for v in values)
        gaps = first, then, statistics.difference(then, first)
        parts = [interval_text(statistics.as_ratio(gap), ".2f") for gap in gaps]
        lines.append([f"{share:.0%}", title, *parts])
    columns = ["accuracy kept", "measure", "MNIST", "Fashion-MNIST", "Fashion-MNIST ÷ MNIST"]
    return pd.DataFrame(lines, columns=columns).replace("nan", "not run")


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
