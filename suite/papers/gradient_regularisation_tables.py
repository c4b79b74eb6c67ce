"""Tables and values for the record on gradient regularisation."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.autograd import grad

from reglib.regularizers import input_gradient_penalty
from suite.evidence import statistics, tables
from suite.evidence.quote import Value, judge_gap
from suite.evidence.statistics import mean_interval, pearson, permutation_p, spearman
from suite.papers import gradient_regularisation as paper
from suite.papers.gradient_regularisation import NAMED, faithfulness, name_panels, select


def readings(table: pd.DataFrame) -> pd.DataFrame:
    r"""Compute each reading of the penalty in its words, and compare it with its strength.

    A network of two layers is differentiated in float64, for B = 8 images and for one, where the
    first three readings are the equation that the paper prints.

    Args:
        table: of one profile.

    Returns:
        A row for each reading, with the relative errors of
        :math:`\text{strength} \cdot \frac{1}{B} \sum_b \lVert g_b \rVert^2`, their limit, whether
        both are below it, and the smallest cut-off here as the reading has it.
    """
    rows = pd.DataFrame(NAMED["readings"], columns=["gradient of", "squares", "strength", "limit"])
    weights = torch.arange(7840).double().cos().view(784, 10)
    for n in (8, 1):
        images = torch.arange(784 * n).double().sin().view(n, 1, 28, 28).requires_grad_()
        logits = (images.flatten(1) @ weights).tanh() @ weights[:10]
        labels = torch.arange(n)
        losses = -logits.log_softmax(1).diagonal()  # cross-entropy with these labels
        alone = [grad(loss, images, retain_graph=True)[0].square().sum() for loss in losses]
        penalty = input_gradient_penalty(logits, labels, images).mean().item()
        squares = grad(losses.mean(), images)[0].square()
        sums = sum(alone) / n, squares.sum(), squares.sum((1, 2, 3)).mean(), squares.mean()
        pairs = zip(sums, (1, 1 / n, 1 / n**2, paper.strength(1, "mnist", n)))
        rows[f"error, B = {n}"] = [abs(float(value) / (s * penalty) - 1) for value, s in pairs]
    agrees = rows.filter(like="error").max(axis=1) < rows["limit"]
    rows["agrees"] = np.where(agrees, "yes", "no")
    cut_offs = paper.cut_offs(table).iloc[:, [4, 5, 6, 3]].replace("not reached", "inf")
    rows["smallest cut-off here (paper: above 10⁵)"] = cut_offs.astype(float).min().tolist()
    return rows.map(lambda cell: cell if isinstance(cell, str) else f"{cell:.2g}")


def trends(table: pd.DataFrame, of: str, left_out: str = "over_regularised") -> pd.DataFrame:
    """Tabulate three correlations with α, each with its p of permutations.

    Faithfulness has the sign of Quantus. Of paired networks correlations are means over seeds, and
    permutations are within seeds. The interval is that of
    :func:`~suite.evidence.statistics.correlation`; the last column judges by Spearman's p, at 5%.

    Args:
        table: of one profile.
        of: "networks" with a seed each, or "seeds" of paired networks.
        left_out: column that marks the networks to leave out.

    Source: :cite:t:`demoor2025`, Spearman's in section 3.2, Pearson's with log α in section 4, and
    with α in the caption of figure 2.
    """
    named, lines = NAMED["trends"][of].items(), []
    rows = pd.concat([tables.select(table, **where).assign(metric=n) for n, where in named])
    rows = name_panels(rows[~rows[left_out].astype(bool)])
    for (metric, on), part in rows.groupby(["metric", "panel"], sort=False):
        y = part["value"] * (-1 if "faithfulness" in str(metric) else 1)
        alpha, unit, cells = part["alpha"], part["seed" if of == "seeds" else "panel"], [metric, on]
        for x, rho in ((np.log(alpha), pearson), (alpha, pearson), (alpha, spearman)):
            each = pd.Series({n: float(rho(x[unit == n], y[unit == n])) for n in unit.unique()})
            p = permutation_p(x, y, unit, statistic=rho)
            cells.append(f"{each.mean():+.2f} ({p:.2g})".replace("-", "−"))
        interval = statistics.correlation(alpha, y, unit)
        cells.append(tables.interval_text(interval, "+.2f").partition(" ")[2])
        cells.append(", ".join(map(str, each.index[each < 0])) if of == "seeds" else len(part))
        lines.append([*cells, "unclear" if p > 0.05 else "rises" if each.mean() > 0 else "falls"])
    columns = ["metric", "on", "Pearson with log α", "Pearson with α", "Spearman", "95% interval"]
    columns += ["seeds that fall" if of == "seeds" else "networks", "Spearman's test"]
    return pd.DataFrame(lines, columns=columns)


def verdicts(trends: pd.DataFrame) -> dict[str, Value]:
    """Return the words of the tests within seeds, by metric, as values without a size."""
    words = dict(zip(trends["metric"], trends.iloc[:, -1]))
    return {n: Value(0.0, word=words.get(n, "not run")) for n in NAMED["trends"]["seeds"]}


def compare_with_items(table: pd.DataFrame) -> pd.DataFrame:
    """Compare MNIST with Fashion-MNIST: each measure before the cut-off, over the plateau.

    Means over networks are geometric. The cut-off is where accuracy falls below 80% of its plateau,
    as in the paper, or below 95%.

    Args:
        table: of one profile.
    """
    lines = []
    for share, (title, where) in itertools.product((0.8, 0.95), NAMED["steady"].items()):
        rows = tables.select(paper.mark_cut_off(table, share), over_regularised=False, **where)
        changes = paper.changes(rows.assign(value=np.log(rows["value"])))
        digits, items = changes["lenet"].interval, changes["fashion"].interval
        gaps = digits, items, statistics.difference(items, digits)
        cells = [tables.interval_text(statistics.as_ratio(gap), ".2f") for gap in gaps]
        lines.append([f"{share:.0%}", title, *cells])
    columns = ["accuracy kept", "measure", "MNIST", "Fashion-MNIST", "Fashion-MNIST ÷ MNIST"]
    return pd.DataFrame(lines, columns=columns).replace("nan", "not run")


def compare_changes(table: pd.DataFrame) -> dict[str, Value]:
    """Return how much more Faithfulness changes up to the cut-off than on MNIST with LeNet-5.

    Returns:
        Differences of changes by map, the other pair (Fashion-MNIST with LeNet-5 or MNIST with the
        ResNet) and score.
    """
    values = {}
    for score, name in itertools.product(paper.SCORES, NAMED["estimated"]):
        changes = paper.changes(faithfulness(table, score=score)[name])
        for pair in ("fashion", "resnet"):
            gap = statistics.difference(changes[pair].interval, changes["lenet"].interval)
            values[f"{name}, {pair}, {score}"] = judge_gap(gap)
    return values


def best_alpha_gain(table: pd.DataFrame) -> Value:
    """Return the gain in accuracy of paired networks from the smallest α to the best.

    The best of a seed is that of the mean of the other seeds, so no network chooses for itself.
    """
    rows = select(table, "paired_accuracy")
    wide = rows.pivot(index="seed", columns="alpha", values="value").dropna(axis="columns")
    if len(wide) < 2:
        return Value()
    best = (wide.sum() - wide).to_numpy().argmax(1)
    return judge_gap(mean_interval(wide.to_numpy()[range(len(wide)), best] - wide.iloc[:, 0]))


def likeness(images: NDArray[Any], maps: Mapping[str, NDArray[Any]]) -> dict[str, Value]:
    """Return the mean |correlation| of maps with their images at both ends of α, and the gap.

    Args:
        images: (B, 1, H, W).
        maps: of these images, by α from the smallest ("low") to the largest ("high").
    """
    pixels, (first, *_, last) = images.reshape(len(images), -1), maps.values()
    low, high = (abs(pearson(pixels, m.reshape(pixels.shape))) for m in (first, last))
    means = {"low": Value(*mean_interval(low)), "high": Value(*mean_interval(high))}
    return means | {"gap": judge_gap(mean_interval(high - low))}
