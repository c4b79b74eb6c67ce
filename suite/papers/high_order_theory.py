"""What the appendices of high-order saliency say of small problems."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from reglib.saliency import Settings, SurrogateLoss, caso


def recovered(
    ratio: float, *, n_problems: int = 100, n_values: int = 12, k: int = 3
) -> tuple[float, float]:
    """Return how often CASO leaves k values, and how often of these the best group of k.

    Args:
        ratio: L / (2 λ2) of the problems, which are random.
        n_problems: how many.
        n_values: of a problem.
        k: size of the groups, of which all are tried.
    """
    generator = torch.Generator().manual_seed(0)
    factors, g = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((n_problems, n_values, 4), (n_problems, n_values))
    )
    h = factors @ factors.mT
    h = ratio * h / torch.linalg.eigvalsh(h)[:, -1, None, None]  # L = ratio, and 2 λ2 = 1
    groups = torch.tensor(list(itertools.combinations(range(n_values), k)))
    inner = torch.eye(k) - h[:, groups[:, :, None], groups[:, None, :]]
    part = g[:, groups]
    best = groups[(part * torch.linalg.solve(inner, part)).sum(2).argmax(1)]
    largest = torch.full((n_problems,), ratio * 1.0)
    loss = SurrogateLoss(g, lambda v: (h @ v[..., None])[..., 0], largest)
    strengths = torch.linspace(0.02, 2.5, 125, dtype=torch.float64)[:, None].expand(-1, n_problems)
    maps = caso(loss, lambda1=strengths, lambda2=0.5, settings=Settings(1e-6, 1000)).maps
    in_best = torch.zeros(n_problems, n_values, dtype=torch.bool).scatter(1, best, True)
    has_k = ((maps != 0).sum(2) == k).any(0)
    is_best = ((maps != 0) == in_best).all(2).any(0)
    return float(has_k.double().mean()), float(is_best[has_k].double().mean())


def rank_one_error(n_classes: int, top: float) -> float:
    r"""Return the relative error of rank one of :math:`\text{diag}(p) - p p^\top`.

    All classes but the first, which has the probability `top`, have equal ones.
    """
    rest = (1 - top) / (n_classes - 1)
    largest = top * (1 - top) + (n_classes - 1) * rest * (1 - rest) - (n_classes - 2) * rest
    left_out = rest * math.sqrt(n_classes - 2)
    return left_out / math.hypot(largest, left_out)


def rank_one_errors(tops: Sequence[float], most: int = 1000) -> pd.DataFrame:
    """Return `rank_one_error` from 3 to `most` classes as `value`."""
    counts = np.unique(np.logspace(np.log10(3), np.log10(most), 16).round().astype(int)).tolist()
    rows = [(n, f"{top:g}", rank_one_error(n, top)) for top in tops for n in counts]
    return pd.DataFrame(rows, columns=["classes", "top probability", "value"])
