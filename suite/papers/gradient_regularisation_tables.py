"""Tables and values for the record on gradient regularisation."""

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
from suite.papers.gradient_regularisation import faithfulness, name_panels, select
from suite.papers.names import NAMES

METRICS = {"Lipschitz constant": "local_lipschitz_estimate", "max-sensitivity": "max_sensitivity"}
METRICS |= {"entropy": "entropy"}
# Measures that compare Fashion-MNIST with MNIST, with the rows of each.
STEADY: dict[str, dict[str, Any]] = NAMES["gradient_regularisation"]["steady"]
# Networks that the paper leaves out, and those that the claims leave out.
LEFT_OUT = {"without α > t_α": "beyond_t_alpha", "without α ≥ t_α": "over_regularised"}


def trends(table: pd.DataFrame) -> pd.DataFrame:
    """Tabulate Pearson's and Spearman's ρ with log α, and Spearman's p, for gradient maps.

    Source: section 3.2 and the caption of figure 2 of :cite:t:`demoor2025`.
    """
    metrics = {"faithfulness": faithfulness(table)["gradient, sign of Quantus"]}
    metrics |= {title: select(table, metric, "logit_gradient") for title, metric in METRICS.items()}
    rows = pd.concat([values.assign(metric=title) for title, values in metrics.items()])
    lines = []
    for (metric, on), panel in name_panels(rows).groupby(["metric", "panel"], sort=False):
        line = {"metric": metric, "on": on}
        for title, column in LEFT_OUT.items():
            networks = panel[~panel[column].astype(bool)]
            x, y = np.log(networks["alpha"]), networks["value"]
            rhos = f"{pearson(x, y):+.2f}; {spearman(x, y):+.2f}".replace("-", "−")
            line[title] = f"{rhos} ({permutation_p(x, y):.2g}), n = {len(networks)}"
        lines.append(line)
    return pd.DataFrame(lines)


def compare_with_items(table: pd.DataFrame) -> pd.DataFrame:
    """Compare MNIST with Fashion-MNIST: each measure before the cut-off, over the plateau.

    Means over networks are geometric. The cut-off is where accuracy falls below 80% of its plateau,
    as in the paper, or below 95%.

    Args:
        table: of one profile.
    """
    lines = []
    for share, (title, where) in itertools.product((0.8, 0.95), STEADY.items()):
        rows = select(paper.mark_cut_off(table, share), **where)
        rows = rows[~rows["over_regularised"]]
        changes = paper.changes(rows.assign(value=np.log(rows["value"])))
        values = (changes[name] for name in ("lenet", "fashion"))
        digits, items = (statistics.Interval(v.estimate, v.low, v.high, v.n) for v in values)
        gaps = digits, items, statistics.difference(items, digits)
        cells = [interval_text(statistics.as_ratio(gap), ".2f") for gap in gaps]
        lines.append([f"{share:.0%}", title, *cells])
    columns = ["accuracy kept", "measure", "MNIST", "Fashion-MNIST", "Fashion-MNIST ÷ MNIST"]
    return pd.DataFrame(lines, columns=columns).replace("nan", "not run")


def best_alpha_gain(table: pd.DataFrame) -> Value:
    """Return the gain in accuracy of paired networks from the smallest α to their best.

    The same networks choose that α, so the gain is biased upwards.
    """
    rows = select(table, "paired_accuracy")
    means = rows.groupby("alpha")["value"].mean()
    if means.empty:
        return Value()
    ends = {means.idxmax(): "best", means.index[0]: "smallest"}
    return paired(rows.assign(end=rows["alpha"].map(ends)), "end", "best", "smallest")


def likeness(images: NDArray[Any], maps: Mapping[str, NDArray[Any]]) -> dict[str, Value]:
    """Return the mean |correlation| of maps with their images at both ends of α, and the gap.

    Args:
        images: (B, 1, H, W).
        maps: of these images, by α from the smallest ("low") to the largest ("high").
    """
    pixels, alphas = images.reshape(len(images), -1), [*maps]
    sizes = {a: abs(pearson(pixels, maps[a].reshape(pixels.shape))) for a in alphas}
    ends = pd.DataFrame({"low": sizes[alphas[0]], "high": sizes[alphas[-1]]}).rename_axis("image")
    rows = ends.melt(var_name="end", ignore_index=False).reset_index().assign(data="", profile="")
    means = {end: mean(rows[rows["end"] == end]) for end in ("low", "high")}
    return means | {"gap": paired(rows, "end", "high", "low")}
