"""What the theorems and the appendices of high-order saliency say of small problems."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from reglib.input_hessian import decomposition
from reglib.saliency import Settings, SurrogateLoss, caso, surrogate_loss


def asymptotic(n_classes: int, top: float, *, n_inputs: int = 1000) -> dict[str, float]:
    """Return what Theorems 4 and 5 speak of, for a random linear network.

    Args:
        n_classes: of the network.
        top: probability of the first class; all others have equal ones.
        n_inputs: of the network.
    """
    generator = torch.Generator().manual_seed(0)
    network = nn.Linear(n_inputs, n_classes).double().eval().requires_grad_(False)
    shape = (n_classes, n_inputs)
    network.weight.copy_(torch.randn(shape, generator=generator, dtype=torch.float64))
    probs = torch.full((n_classes,), (1 - top) / (n_classes - 1), dtype=torch.float64)
    probs[0] = top
    network.bias.copy_(probs.log())
    point = torch.zeros(1, n_inputs, dtype=torch.float64)
    parts = decomposition(network, point, chunk=min(n_classes, 100), keep_jacobian=True)
    loss = surrogate_loss(network, point, torch.tensor([0]))
    gradient, squares = loss.gradient.flatten(), parts.values[0].square()
    cosine = torch.cosine_similarity
    return {
        "classes": n_classes,
        "top probability": top,
        "share of λ₁²": float(squares[0] / squares.sum()),
        "|cos(g, v₁)|": float(cosine(gradient, parts.vectors.flatten(), 0).abs()),
        "|cos(CASO, CAFO)|": float(cosine(caso(loss).maps.flatten(), gradient, 0).abs()),
    }


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


def rank_one_error(n_classes: int, top: float) -> tuple[float, float]:
    r"""Return the relative error of rank one of :math:`\text{diag}(p) - p p^\top`.

    Returns:
        By the formula, and by decomposing the matrix.
    """
    rest = (1 - top) / (n_classes - 1)
    largest = top * (1 - top) + (n_classes - 1) * rest * (1 - rest) - (n_classes - 2) * rest
    left_out = rest * math.sqrt(n_classes - 2)
    p = np.full(n_classes, rest)
    p[0] = top
    squares = np.sort(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)) ** 2)
    return left_out / math.hypot(largest, left_out), math.sqrt(squares[:-1].sum() / squares.sum())


def rank_one_errors(tops: Sequence[float], most: int = 1000) -> pd.DataFrame:
    """Return `rank_one_error` from 3 to `most` classes: `value` and `by decomposition`."""
    counts = np.unique(np.logspace(np.log10(3), np.log10(most), 16).round().astype(int)).tolist()
    rows = [(n, f"{top:g}", *rank_one_error(n, top)) for top in tops for n in counts]
    columns = ["classes", "top probability", "value", "by decomposition"]
    return pd.DataFrame(rows, columns=columns)
