r"""Equations and theorems of high-order saliency, checked in double precision.

The networks are small and random, with a hidden layer of ReLU. What the library computes is
compared with automatic differentiation, with dense matrices, or with the best of all groups. What
each number is, and its limit, stand in the YAML file beside this one.
"""

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from reglib.input_hessian import decomposition
from reglib.input_hessian.products import times_covariance
from reglib.saliency import Settings, SurrogateLoss, cafo, caso
from reglib.saliency.proximal import Problem, fista, soft_threshold
from reglib.saliency.surrogate import noisy_copies, smooth_surrogate_loss, surrogate_loss

STATEMENTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_bytes())
FOUND, EXPECTED = "error, ratio or share", "as expected"
EXACT = Settings(1e-12, 5000)
Found = Iterator[tuple[str, Tensor | float]]  # by the key of a statement


def check_theory() -> pd.DataFrame:
    """Return a row for each statement: what is compared, found, and whether that was expected."""
    checks = check_expansion, check_groups, check_spectrum, check_many_classes, check_solvers
    rows = [(*STATEMENTS[key], float(x)) for check in checks for key, x in check()]
    table = pd.DataFrame(rows, columns=["item", "what is compared", "limit", FOUND])
    verdicts = np.where(table[FOUND] <= table["limit"], "yes", "no")  # no where it is NaN
    return table.assign(**{EXPECTED: verdicts + table.pop("limit").map(" (at most {:g})".format)})


def make_network(width: int, hidden: int, n_classes: int, seed: int = 0) -> tuple[Any, Tensor]:
    """Return a random network in double precision, and 32 images, (32, 1, width, width)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(width**2, hidden), nn.ReLU(), nn.Linear(hidden, n_classes)
        images = torch.randn(32, 1, width, width).double()
    return nn.Sequential(nn.Flatten(), *layers).double().eval().requires_grad_(False), images


@cache
def small_problem(seed: int = 0) -> SimpleNamespace:
    """Return a network, and its loss by the library and by automatic differentiation.

    They are: model; images x, (B, 1, 6, 6); predicted classes y, (B,), some nearly certain; loss,
    the library's expansion, and the same in single precision; derivatives g, (B, d), and h,
    (B, d, d); eigenvalues of h, (B, d).
    """
    model, x = make_network(6, 40, 6, seed)
    model[-1].weight *= 20
    y = model(x).argmax(1)
    loss = surrogate_loss(model, x, y, tolerance=1e-9)
    single = surrogate_loss(copy.deepcopy(model).float(), x.float(), y, tolerance=1e-6)
    g, h = differentiate(model, x, y)
    names = {"model": model, "x": x, "y": y, "loss": loss, "single": single, "g": g, "h": h}
    return SimpleNamespace(**names, eigenvalues=torch.linalg.eigvalsh(h))


def differentiate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate the cross-entropy once and twice, (B, d) and (B, d, d), entry by entry."""
    x = images.clone().requires_grad_()
    loss = F.cross_entropy(model(x), labels, reduction="sum")
    g = torch.autograd.grad(loss, x, create_graph=True)[0].flatten(1)
    rows = [torch.autograd.grad(entry.sum(), x, retain_graph=True)[0] for entry in g.unbind(1)]
    return g.detach(), torch.stack(rows, 1).flatten(2)


def _error(found: Tensor, expected: Tensor) -> Tensor:
    """Return the largest distance of rows, relative to the norm of the expected one."""
    return ((found.flatten(1) - expected).norm(dim=1) / expected.norm(dim=1)).max()


def _matrix(h: Tensor, lambda2: Tensor) -> Tensor:
    """Return 2 λ2 I - H of each image."""
    return 2 * lambda2[:, None, None] * torch.eye(h.shape[1]) - h


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors[..., None])[..., 0]


def check_expansion() -> Found:
    """Compare the expansion with the true loss, and smooth CASO with the mean of noisy copies."""
    s = small_problem()
    v = torch.randn(s.x.shape, generator=torch.Generator().manual_seed(0), dtype=s.x.dtype) / 6
    steps = 2.0 ** -torch.arange(7, 12).double()[:, None]
    logits = torch.stack([s.model(s.x + t * v) for t in (0, *steps)])
    losses = torch.stack([F.cross_entropy(z, s.y, reduction="none") for z in logits])
    one_region = (logits[0] + logits[1] - 2 * logits[2]).norm(dim=1) < 1e-12
    slope, curvature = ((a * v).flatten(1).sum(1) for a in (s.loss.gradient, s.loss.product(v)))
    error = (losses[1:] - losses[0] - steps * slope)[:, one_region]
    for key, order, term in (("first", 2, 0), ("second", 3, steps**2 / 2 * curvature[one_region])):
        sizes = (error - term).abs().mean(1)
        yield f"{key}_order", ((sizes[:-1] / sizes[1:]).log2() - order).abs().max()

    noise: dict[str, Any] = {"n_samples": 16, "noise_level": 0.15}
    once, again = (torch.Generator().manual_seed(0) for _ in range(2))
    loss = smooth_surrogate_loss(s.model, s.x, s.y, tolerance=1e-9, generator=once, **noise)
    parts = [differentiate(s.model, x, s.y) for x in noisy_copies(s.x, generator=again, **noise)]
    g, h = (torch.stack(part).mean(0) for part in zip(*parts, strict=True))
    lambda2 = 0.55 * torch.linalg.eigvalsh(h)[:, -1]
    maps = caso(loss, lambda2=lambda2, settings=EXACT).maps
    yield "smooth_caso", _error(maps, torch.linalg.solve(_matrix(h, lambda2), g))
    yield "smooth_cafo", _error(cafo(loss, lambda2=lambda2).maps, g / (2 * lambda2[:, None]))


def check_groups() -> Found:
    """Compare the groups of CASO with the best of all, where the L1 norm is tight and not."""
    s = small_problem()
    lambda1, lambda2 = 0.5 * s.g.abs().amax(1), 0.55 * s.eigenvalues[:, -1]
    result = caso(s.loss, lambda1=lambda1, lambda2=lambda2, settings=EXACT)
    maps = result.maps.flatten(1)
    squares, vectors = torch.linalg.eigh(_matrix(s.h, lambda2) / 2)
    root = vectors * squares.sqrt()[:, None] @ vectors.mT
    b = torch.linalg.solve(root, s.g) / 2
    form = b.square().sum(1) - (b - _times(root, maps)).square().sum(1)
    smooth_part = result.objective + lambda1 * maps.abs().sum(1)
    yield "square_form", _error(smooth_part[:, None], form[:, None])
    yield from (("pixel", miss_best_group(1)), ("pair", miss_best_group(2)))
    yield from (("tight", 1 - find_best_group(0.0)), ("loose", find_best_group(0.9)))
    yield from zip(("restricted", "recovered"), miss_planted_group(in_cone=False), strict=True)
    yield "not_restricted", 1 - miss_planted_group(in_cone=True)[1]


def miss_best_group(k: int) -> Tensor:
    """Return how often the best group of k is not CASO's, of the images where CASO leaves k.

    All groups are tried, each with the change of CASO's norm that raises the true loss the most: by
    the method of Frank and Wolfe, as the loss is convex in a linear region.
    """
    s = small_problem()
    groups = torch.tensor([*itertools.combinations(range(36), k)])
    among = torch.zeros(len(groups), 36).double().scatter(1, groups, 1)
    sizes = s.g.abs().sort(1, descending=True).values
    maps = caso(s.loss, lambda1=sizes[:, k - 1 : k + 1].mean(1)).maps.flatten(1)
    slope, norms = s.g[:, None], maps.norm(dim=1)[:, None, None]
    for _ in range(5):
        change = (norms * F.normalize(among * slope, dim=2)).requires_grad_()
        logits = s.model((s.x.flatten(1)[:, None] + change).flatten(0, 1))
        losses = F.cross_entropy(logits, s.y.repeat_interleave(len(groups)), reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), change)
    marked, best = maps != 0, among[losses.view(32, -1).argmax(1)] != 0
    return (marked != best).any(1)[marked.sum(1) == k].double().mean()


def find_best_group(ratio: float) -> Tensor:
    """Return how often CASO's group of 3 of 12 values is the best, where CASO leaves 3 of them.

    All groups of 100 random problems are tried, without L1 norm, where L / (2 λ2) is `ratio`.
    """
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors, g = normal(100, 12, 4), normal(100, 12)
    h = factors @ factors.mT
    h = ratio * h / torch.linalg.eigvalsh(h)[:, -1, None, None]  # L = ratio, and 2 λ2 = 1
    groups = torch.tensor([*itertools.combinations(range(12), 3)])
    parts, inner = g[:, groups], (torch.eye(12) - h)[:, groups[:, :, None], groups[:, None]]
    best = groups[(parts * torch.linalg.solve(inner, parts)).sum(2).argmax(1)]
    loss = SurrogateLoss(g, partial(_times, h), torch.full((100,), ratio))
    strengths = torch.linspace(0.02, 2.5, 125, dtype=torch.float64)[:, None].expand(-1, 100)
    maps = caso(loss, lambda1=strengths, lambda2=0.5, settings=Settings(1e-6, 1000)).maps != 0
    is_best = (maps == torch.zeros(100, 12).scatter(1, best, 1).bool()).all(2).any(0)
    return is_best[(maps.sum(2) == 3).any(0)].double().mean()


def restricted_eigenvalue(lambda2: float, d: int, k: int) -> float:
    r"""Return :math:`\gamma` for an H of L = 1 whose first eigenvector has d equal entries.

    .. math:: \gamma = \min \|M \Delta\|_2^2 / \|\Delta\|_2^2 \quad \text{over} \quad
       \|\Delta_{S^c}\|_1 \le 3 \|\Delta_S\|_1

    By symmetry it is at equal values within the k of S, and equal ones outside, for d >= 4 k.
    """
    return lambda2 - (4 * k) ** 2 / (2 * d * (k + (3 * k) ** 2 / (d - k)))


def miss_planted_group(*, in_cone: bool, d: int = 48, k: int = 3) -> tuple[Tensor, Tensor]:
    r"""Return how far CASO is from planted changes, and how often it misses their group.

    H has rank one, L = 1, and :math:`\lambda_2` is just above L / 2. The first k values are planted
    by :math:`g = 2 M^2 \Delta_*`, 100 times. If the eigenvector of H has equal entries, the
    distance is at most :math:`\sqrt k \lambda_1 / \gamma`; it is returned over this bound. In the
    cone, the eigenvector has one entry in the group and a smaller one outside, so :math:`\gamma` is
    nearly 0.
    """
    uniform = torch.rand(2, 100, k, generator=torch.Generator().manual_seed(0)).double()
    planted = F.pad((1 + uniform[0]) * (uniform[1] - 0.5).sign(), (0, d - k))
    square = F.pad(torch.tensor([0.8, 0.2]), (k - 1, d - k - 1)) if in_cone else torch.ones(d) / d
    v = square.double().sqrt()
    h, lambda1, lambda2 = torch.outer(v, v), 0.01, 0.5 * 1.001
    g = planted @ (2 * lambda2 * torch.eye(d) - h)
    loss = SurrogateLoss(g, lambda u: u @ h, torch.ones(100))
    maps = caso(loss, lambda1=lambda1, lambda2=lambda2, settings=Settings(1e-8, 5000)).maps
    bound = k**0.5 * lambda1 / restricted_eigenvalue(lambda2, d, k)
    distance = (maps - planted).norm(dim=1).max() / bound
    return distance, ((maps != 0) != (planted != 0)).any(1).double().mean()


def check_spectrum() -> Found:
    """Check the eigenvalues of H of 160 images, and from which λ2 on the objective is concave."""
    problems = [small_problem(seed) for seed in range(5)]
    values = torch.cat([s.eigenvalues for s in problems])
    largest, computed = values[:, -1], torch.cat([s.loss.largest_eigenvalue for s in problems])
    yield "semi_definite", (-values[:, 0] / largest).max()
    yield "above", (computed * (1 + 1e-6) <= largest).double().mean()
    yield "below", (computed * (1 - 1e-6) >= largest).double().mean()
    single = torch.cat([s.single.largest_eigenvalue for s in problems])
    yield "rounding", (single >= largest).double().mean()


def check_many_classes() -> Found:
    """Check A and H where all classes but one have the same small probability."""
    errors = []
    for n in (3, 10, 100, 1000):
        p, v = torch.full((n,), 1e-6 / n).double(), -torch.ones(n).double()
        p[0], v[0] = 1 - (n - 1) * p[1], n - 1
        a = times_covariance(p, torch.eye(n).double()) / p[1]
        printed = torch.tensor([0.0, *[1.0] * (n - 2), n])
        errors += [(torch.linalg.eigvalsh(a) - printed).abs().max() / n, (a @ v / n - v).norm() / n]
    yield "eigenvectors", max(errors)
    distances = torch.tensor([leave_rank_one(n) for n in (4, 16, 64)])
    yield from zip(("rank_one", "parallel", "same_maps"), distances[-1], strict=True)
    yield "more_classes", (distances[1:, 0] / distances[:-1, 0]).max()


def leave_rank_one(n_classes: int, top: float = 0.999) -> list[float]:
    """Return by how much a network with even probabilities beside `top` misses Theorems 4 and 5."""
    model, images = make_network(32, 1024, n_classes)
    p = torch.full((n_classes,), (1 - top) / (n_classes - 1)).double()
    p[0] = top
    model[-1].bias += p.log() - model(images[:1])[0]
    values, vectors = decomposition(model, images[:1])
    loss = surrogate_loss(model, images[:1], torch.tensor([0]))
    lambda2 = 0.55 * values[:, 0]
    first, second = (method(loss, lambda2=lambda2).maps.flatten() for method in (cafo, caso))
    cosines = [F.cosine_similarity(first, v.flatten(), dim=0).abs() for v in (vectors, second)]
    return [1 - float(x) for x in (values[0, 0] ** 2 / values.square().sum(), *cosines)]


def check_solvers() -> Found:
    """Check the rates of convergence, without and with L1 norm, and where gradient descent ends."""
    s = small_problem()
    lambda1, lambda2 = 0.5 * s.g.abs().amax(1, keepdim=True), 0.55 * s.eigenvalues[:, -1:]
    closed_form = torch.linalg.solve(_matrix(s.h, lambda2[:, 0]), s.g)
    for end, strength in (("", 0 * lambda1), ("_l1", lambda1)):
        problem = Problem(s.g, partial(_times, s.h), strength, lambda2)
        best = fista(problem, EXACT).point
        fast = [fista(problem, Settings(0, k)).point for k in range(1, 41)]
        steps, size = torch.arange(1.0, 41)[:, None], lambda2[:, 0] * best.square().sum(1)
        yield f"plain{end}", (_gaps(problem, best, descend(problem)) * steps / size).max()
        yield f"fast{end}", (_gaps(problem, best, fast) * (steps + 1) ** 2 / (4 * size)).max()
        if not end:
            yield "accelerated", _error(best, closed_form)
    last = [descend(problem, proximal=proximal)[-1] for proximal in (True, False)]
    proximal, plain = _gaps(problem, best, last)
    yield "subgradient", (proximal / plain).max()
    yield "zeros", (last[1][(best == 0) & (s.g != 0)] == 0).double().mean()


def descend(problem: Problem, *, proximal: bool = True) -> list[Tensor]:
    """Return the points of 40 steps of gradient descent, proximal or by the sign of the values."""
    points, step = [torch.zeros_like(problem.gradient)], 1 / (2 * problem.lambda2)
    for _ in range(40):
        slope, end = problem.slope(points[-1], problem.product(points[-1])), points[-1]
        end = end - step * (slope + (0 if proximal else problem.lambda1 * end.sign()))
        points += [soft_threshold(end, step * problem.lambda1) if proximal else end]
    return points[1:]


def _gaps(problem: Problem, best: Tensor, points: Sequence[Tensor]) -> Tensor:
    """Return by how much the objective at points is below its maximum, (n, B)."""
    values = [problem.value(x, problem.product(x)) for x in (best, *points)]
    return values[0] - torch.stack(values[1:])


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
