r"""Equations and theorems of high-order saliency, checked in double precision.

The networks are small and random, with one hidden layer of ReLU. Results of the library are
compared with automatic differentiation, with dense matrices, or with the best of all groups. The
YAML file of the same name describes each number and its limit.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
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
from torch.func import grad, jacrev, vmap

from reglib.input_hessian import decomposition
from reglib.input_hessian.products import logit_weights, times_covariance
from reglib.saliency import Settings, SurrogateLoss, cafo, caso, choose_lambda1
from reglib.saliency.proximal import Problem, fista, soft_threshold
from reglib.saliency.surrogate import noisy_copies, smooth_surrogate_loss, surrogate_loss
from suite.metrics.saliency import smooth_grad

STATEMENTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_bytes())
VALUE, EXPECTED = "error, ratio or share", "as expected"
EXACT, CLOSE = Settings(1e-12, 5000), Settings(1e-8, 5000)
Checks = Iterator[tuple[str, Tensor | float]]  # key of a statement, and its value


def check_theory() -> pd.DataFrame:
    """Check all statements: a row with the value of each, and whether it is within its limit."""
    checks = [check_hessian, check_expansion, check_groups, check_choice, check_spectrum]
    checks += [check_many_classes, check_solvers]
    rows = [(*STATEMENTS[key], float(x)) for check in checks for key, x in check()]
    table = pd.DataFrame(rows, columns=["item", "what is compared", "limit", VALUE])
    verdicts = np.where(table[VALUE] <= table["limit"], "yes", "no")  # "no" for NaN
    return table.assign(**{EXPECTED: verdicts + table.pop("limit").map(" (at most {:g})".format)})


def make_network(shape: Sequence[int], hidden: int, classes: int, seed: int = 0) -> Any:
    """Return a random network in double precision, and 32 images of a shape, (32, C, H, W)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
        images = torch.randn(32, *shape).double()
    return nn.Sequential(nn.Flatten(), *layers).double().eval().requires_grad_(False), images


@cache
def small_problem(seed: int = 0, channels: int = 1, decades: int = 0) -> SimpleNamespace:
    """Return a network, and its loss by the library and by automatic differentiation.

    The weights of each pixel are multiplied by a power of 10, from -decades to 0. The fields are
    model; images x, (B, channels, 6, 6); predicted classes y, (B,), some nearly certain;
    loss and single, the library's expansion in double and in single precision; derivatives g,
    (B, d), and h, (B, d, d), by autograd; and the eigenvalues of h, (B, d).
    """
    model, x = make_network((channels, 6, 6), 40, 6, seed)
    model[1].weight *= torch.logspace(-decades, 0, 36).repeat(channels)
    model[-1].weight *= 20
    y = model(x).argmax(1)
    loss = surrogate_loss(model, x, y, tolerance=1e-9)
    single = surrogate_loss(copy.deepcopy(model).float(), x.float(), y, tolerance=1e-6)
    g, h = differentiate(model, x, y)
    names = {"model": model, "x": x, "y": y, "loss": loss, "single": single, "g": g, "h": h}
    return SimpleNamespace(**names, eigenvalues=torch.linalg.eigvalsh(h))


def differentiate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate the cross-entropy once and twice, (B, d) and (B, d, d), entry by entry."""
    slope = grad(lambda x, y: F.cross_entropy(model(x[None]), y[None]))
    g, h = (vmap(f)(images, labels) for f in (slope, jacrev(slope)))
    return g.flatten(1), h.view(*g.flatten(1).shape, -1)


def jacobians(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """Return the Jacobian of a function with n outputs at each point, (B, n, d)."""
    return vmap(jacrev(lambda x: function(x[None])[0]))(points).flatten(2)


def _error(rows: Tensor, expected: Tensor) -> Tensor:
    """Return the largest distance of rows, relative to the norm of the expected row."""
    rows, expected = rows.flatten(1), expected.flatten(1)
    return ((rows - expected).norm(dim=1) / expected.norm(dim=1)).max()


def _matrix(h: Tensor, lambda2: Tensor) -> Tensor:
    """Return 2 λ2 I - H of each image."""
    return 2 * lambda2[:, None, None] * torch.eye(h.shape[1]) - h


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors[..., None])[..., 0]


def check_hessian() -> Checks:
    """Compare each step of the closed-form Hessian, and its decomposition, with autograd."""
    s = small_problem()
    z, w = s.model(s.x), jacobians(s.model, s.x).mT
    weights = logit_weights(z, s.y)
    a = times_covariance(z.softmax(1)[..., None], torch.eye(6).double().expand(len(z), 6, 6))
    first, second = differentiate(nn.Identity(), z, s.y)
    yield "chain", _error(w @ second @ w.mT, s.h)
    yield from (("by_logits", _error(weights, first)), ("g", _error(_times(w, weights), s.g)))
    yield "softmax", _error(a, jacobians(partial(F.softmax, dim=1), z))
    yield "h", _error(w @ a @ w.mT, s.h)
    k = torch.linalg.cholesky(a[:, :5, :5])
    k = torch.cat([k, -k.sum(1, keepdim=True)], 1)
    yield "cholesky", _error(k @ k.mT, a)
    values, v = torch.linalg.eigh((w @ k).mT @ (w @ k))
    yield "shared", ((values - s.eigenvalues[:, -5:]).abs() / s.eigenvalues[:, -1:]).max()
    pairs = decomposition(s.model, s.x, n_vectors=5)
    by_library = pairs.vectors.flatten(2).mT, pairs.values[:, :5]
    by_paper = w @ k @ v / values.sqrt()[:, None], values
    for key, (u, squares) in (("vectors", by_paper), ("decomposition", by_library)):
        yield key, _error(u * squares[:, None] @ u.mT, s.h)


def check_expansion() -> Checks:
    """Compare the expansion with the true loss, and smooth maps with means over noisy copies."""
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
    once, again, third = (torch.Generator().manual_seed(0) for _ in range(3))
    loss = smooth_surrogate_loss(s.model, s.x, s.y, tolerance=1e-9, generator=once, **noise)
    parts = [differentiate(s.model, x, s.y) for x in noisy_copies(s.x, generator=again, **noise)]
    g, h = (torch.stack(part).mean(0) for part in zip(*parts, strict=True))
    lambda2 = 0.55 * torch.linalg.eigvalsh(h)[:, -1]
    maps = caso(loss, lambda2=lambda2, settings=EXACT).maps
    yield "smooth_caso", _error(maps, torch.linalg.solve(_matrix(h, lambda2), g))
    yield "smooth_cafo", _error(cafo(loss, lambda2=lambda2).maps, g / (2 * lambda2[:, None]))
    mean = smooth_grad(s.model, s.x, s.y, generator=third, **noise).flatten(1)
    lambda1 = 0.5 * mean.abs().amax(1)
    shrunk = soft_threshold(mean, lambda1[:, None]) / (2 * lambda2[:, None])
    yield "terms", _error(cafo(loss, lambda1=lambda1, lambda2=lambda2).maps, shrunk)


def check_groups() -> Checks:
    """Compare CASO with its optimality conditions, and its groups with the best of all groups."""
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
    first = cafo(s.loss, lambda1=lambda1, lambda2=lambda2).maps.flatten(1)
    for key, x, h in (("cafo", first, 0 * s.h), ("caso", maps, s.h)):
        slope = vmap(grad(lambda x, g, h, b: g @ x + x @ h @ x / 2 - b * x @ x))(x, s.g, h, lambda2)
        step = soft_threshold(x + slope, lambda1[:, None]) - x  # 0 at the maximum
        yield f"{key}_optimum", (step.norm(dim=1) / s.g.norm(dim=1)).max()
    problem = Problem(s.loss.gradient.flatten(1), s.loss.product, lambda1, lambda2[:, None])
    yield "slope", _error(-problem.slope(maps, problem.product(result.maps).flatten(1)), slope)
    yield from (("pixel", best_group_miss_rate(1)), ("pair", best_group_miss_rate(2)))
    yield from (("tight", 1 - best_group_hit_rate(0.0)), ("loose", best_group_hit_rate(0.9)))
    yield from zip(("restricted", "recovered"), planted_group_errors(in_cone=False), strict=True)
    yield "not_restricted", 1 - planted_group_errors(in_cone=True)[1]


def check_choice() -> Checks:
    """Compare λ1 by the library with λ1 by the rule of section 4.1, for CAFO and CASO."""
    pixels, values, ends, _ = compare_choices(small_problem(channels=3).loss).mean(1)
    yield from (("choice", pixels / ends), ("by_value", 1 - values / ends), ("endless", 1 - ends))
    pixels, _, _, several = compare_choices(small_problem(channels=3, decades=8).loss)
    yield from (("few", 1 - several.mean()), ("highest", (pixels * several).sum() / several.sum()))


def compare_choices(loss: SurrogateLoss) -> Tensor:
    """Return four rows of 0 or 1, with a column for each image, by CAFO and then by CASO.

    They say whether λ1 by the library differs from λ1 by the rule, if the library counts zero
    pixels as the rule does, and if it counts zero values; whether the rule ends; and whether it
    chooses among several maps.
    """
    columns = []
    for method in (cafo, partial(caso, settings=EXACT)):
        by_pixel = partial(count_pixels, method)
        rule, candidates = choose_by_rule(loss, by_pixel)
        choices = [choose_lambda1(loss, method=m).interpretation for m in (by_pixel, method)]
        differs = [(x.lambda1 / rule - 1).abs() > 1e-6 for x in choices]  # false for NaN
        columns.append(torch.stack([*differs, ~rule.isnan(), candidates > 1]))
    return torch.cat(columns, 1).double()


def count_pixels(method: Callable[..., Any], *loss: SurrogateLoss, **strength: Tensor) -> Any:
    """Return the result of a method, with the share of zero pixels as its sparsity."""
    result = method(*loss, **strength)
    zeros = (result.maps == 0).all(-3).flatten(-2)
    return result._replace(sparsity=zeros.double().mean(-1))


def choose_by_rule(loss: SurrogateLoss, method: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Return λ1 of each image by the written rule, (B,), and among how many maps it chooses.

    λ1 is NaN if ten halvings do not suffice.
    """
    grid = 10 ** torch.arange(-5.0, 5).double()[:, None].expand(-1, len(loss.gradient))
    results = method(loss, lambda1=grid)
    halves = grid[results.sparsity.eq(1).int().argmax(0), 0] / 2.0 ** torch.arange(1, 11)[:, None]
    sparsity = torch.cat([results.sparsity, method(loss, lambda1=halves).sparsity])
    sparse, halved = ((sparsity >= 0.75) & (sparsity < 1)).split(10)
    best = grid[results.loss_change.where(sparse, -torch.inf).argmax(0), 0]
    first = halves.where(halved, 0).amax(0)
    return best.where(sparse.any(0), first / (first > 0)), sparse.sum(0)


def best_group_miss_rate(k: int) -> Tensor:
    """Return how often CASO's group of k pixels is not the best, where CASO keeps k pixels.

    Each of all groups gets the change, of CASO's norm, that raises the true loss the most. The
    method of Frank and Wolfe finds it, since the loss is convex in a linear region.
    """
    s = small_problem()
    groups = torch.tensor([*itertools.combinations(range(36), k)])
    masks = torch.zeros(len(groups), 36).double().scatter(1, groups, 1)
    sizes = s.g.abs().sort(1, descending=True).values
    maps = caso(s.loss, lambda1=sizes[:, k - 1 : k + 1].mean(1)).maps.flatten(1)
    slope, norms = s.g[:, None], maps.norm(dim=1)[:, None, None]
    for _ in range(5):
        change = (norms * F.normalize(masks * slope, dim=2)).requires_grad_()
        logits = s.model((s.x.flatten(1)[:, None] + change).flatten(0, 1))
        losses = F.cross_entropy(logits, s.y.repeat_interleave(len(groups)), reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), change)
    marked, best = maps != 0, masks[losses.view(32, -1).argmax(1)] != 0
    return (marked != best).any(1)[marked.sum(1) == k].double().mean()


def best_group_hit_rate(ratio: float) -> Tensor:
    """Return how often CASO's group of 3 of 12 values is the best, where CASO keeps 3 of them.

    The best of all groups is computed without L1 norm, for 100 random problems where L / (2 λ2) is
    `ratio`.
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

    By symmetry, for d >= 4 k, the minimum has equal values within the k of S, and equal values
    outside.
    """
    return lambda2 - (4 * k) ** 2 / (2 * d * (k + (3 * k) ** 2 / (d - k)))


def planted_group_errors(*, in_cone: bool, d: int = 48, k: int = 3) -> tuple[Tensor, Tensor]:
    r"""Return how far CASO is from planted changes, and how often it misses their group.

    H has rank one, L = 1, and :math:`\lambda_2` is just above L / 2. The first k values are planted
    by :math:`g = 2 M^2 \Delta_*`, 100 times. If the eigenvector of H has equal entries, the
    distance is at most :math:`\sqrt k \lambda_1 / \gamma`. The largest distance over this bound is
    returned. If the eigenvector is `in_cone`, with one entry in the group and a smaller one
    outside, :math:`\gamma` is nearly 0.
    """
    uniform = torch.rand(2, 100, k, generator=torch.Generator().manual_seed(0)).double()
    planted = F.pad((1 + uniform[0]) * (uniform[1] - 0.5).sign(), (0, d - k))
    square = F.pad(torch.tensor([0.8, 0.2]), (k - 1, d - k - 1)) if in_cone else torch.ones(d) / d
    v = square.double().sqrt()
    h, lambda1, lambda2 = torch.outer(v, v), 0.01, 0.5 * 1.001
    g = planted @ (2 * lambda2 * torch.eye(d) - h)
    loss = SurrogateLoss(g, lambda u: u @ h, torch.ones(100))
    maps = caso(loss, lambda1=lambda1, lambda2=lambda2, settings=CLOSE).maps
    bound = k**0.5 * lambda1 / restricted_eigenvalue(lambda2, d, k)
    distance = (maps - planted).norm(dim=1).max() / bound
    return distance, ((maps != 0) != (planted != 0)).any(1).double().mean()


def check_spectrum() -> Checks:
    """Check the eigenvalues of H for 160 images, and above which λ2 the objective is concave."""
    problems = [small_problem(seed) for seed in range(5)]
    values = torch.cat([s.eigenvalues for s in problems])
    largest, computed = values[:, -1], torch.cat([s.loss.largest_eigenvalue for s in problems])
    yield "semi_definite", (-values[:, 0] / largest).max()
    yield "above", (computed * (1 + 1e-6) <= largest).double().mean()
    yield "below", (computed * (1 - 1e-6) >= largest).double().mean()
    single = torch.cat([s.single.largest_eigenvalue for s in problems])
    yield "rounding", (single >= largest).double().mean()


def make_classes(n: int, rest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (22), p and A for n classes, all of probability `rest` but the first."""
    p, v = torch.full((n,), rest, dtype=torch.float64), -torch.ones(n).double()
    p[0], v[0] = 1 - (n - 1) * rest, n - 1
    return F.normalize(v, dim=0), p, times_covariance(p.expand(n, n), torch.eye(n).double())


def check_many_classes() -> Checks:
    """Check A, H, g and maps where all classes but one have the same small probability."""
    errors, others = [], []
    for n in (3, 10, 100, 1000):
        v, _, a = make_classes(n, 1e-6 / n)
        a, printed = a / (1e-6 / n), torch.tensor([0.0, *[1.0] * (n - 2), n])
        errors += [(torch.linalg.eigvalsh(a) - printed).abs().max() / n, (a @ v / n - v).norm()]
        others += [(a - torch.eye(n)).diff(dim=1)[:, 1:].abs().max(), a.sum(1).abs().max() / n]
    yield from (("eigenvectors", max(errors)), ("other_eigenvectors", max(others)))
    table = torch.tensor([even_errors(n) for n in (4, 16, 64, 256, 1000)])
    names = "gradient", "by_vector", "by_gradient", "rank_one", "parallel", "same_maps"
    yield from zip(names, (table[:, 0].max(), *table[2, 1:]), strict=True)
    ratios = table[1:] / table[:-1]
    yield from (("products", ratios[:2, 1:3].max()), ("more_classes", ratios[:2, 3].max()))
    yield "central", 1 - even_errors(64, central=True)[3]
    rest, cosine, distance = table[-1, 3:]
    yield from (("first_and_second", distance), ("leading", cosine))
    yield from (("largest", rest / (1 - rest)), ("larger", ratios[:, 3].max()))
    surer = torch.tensor([*(even_errors(1000, top)[5] for top in (0.9, 0.99)), distance])
    yield "closer", torch.cat([ratios[:, 5], surer[1:] / surer[:-1]]).max()


def even_errors(n: int, top: float = 0.999, *, central: bool = False) -> list[Tensor]:
    """Return errors of A.4 and A.5 where all classes but one, of probability `top`, are even.

    With `central` the weights of the likeliest class are the mean of the others'.
    """
    model, images = make_network((1, 32, 32), 1024, n)
    if central:
        model[-1].weight[0] = model[-1].weight[1:].mean(0)
    rest = (1 - top) / (n - 1)
    v, p, a = make_classes(n, rest)
    model[-1].bias += p.log() - model(images[:1])[0]
    values, vectors = decomposition(model, images[:1])
    loss = surrogate_loss(model, images[:1], torch.tensor([0]))
    g, w = loss.gradient.flatten(1), jacobians(model, images[:1]).mT
    h, wv = w @ a @ w.mT, w @ v
    products = n * rest * wv[..., None] * wv[:, None], g[..., None] * g[:, None] / (1 - top)
    errors = [_error(-rest * math.sqrt(n * (n - 1)) * wv, g), *(_error(x, h) for x in products)]
    lambda2 = 0.55 * values[:, 0]
    first, second = (method(loss, lambda2=lambda2).maps.flatten() for method in (cafo, caso))
    cosines = [F.cosine_similarity(first, x.flatten(), dim=0).abs() for x in (vectors, second)]
    return errors + [1 - x for x in (values[0, 0] ** 2 / values.square().sum(), *cosines)]


def check_solvers() -> Checks:
    """Check rates of convergence, without and with L1 norm, and the end of gradient descent."""
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
    strengths = torch.tensor([[0.51], [0.6], [4], [10]]).double() * s.eigenvalues[:, -1]
    units = F.normalize(caso(s.loss, lambda2=strengths, settings=CLOSE).maps.flatten(2), dim=2)
    below, above = (units[::2] - units[1::2]).norm(dim=2).amax(1)
    yield from (("plateau", above), ("steep", above / below))


def descend(problem: Problem, *, proximal: bool = True) -> list[Tensor]:
    """Return the points of 40 steps of gradient descent, proximal or with a subgradient."""
    points, step = [torch.zeros_like(problem.gradient)], 1 / (2 * problem.lambda2)
    for _ in range(40):
        slope, end = problem.slope(points[-1], problem.product(points[-1])), points[-1]
        end = end - step * (slope + (0 if proximal else problem.lambda1 * end.sign()))
        points += [soft_threshold(end, step * problem.lambda1) if proximal else end]
    return points[1:]


def _gaps(problem: Problem, best: Tensor, points: Sequence[Tensor]) -> Tensor:
    """Return the maximum of the objective minus its value at n points, (n, B)."""
    values = [problem.value(x, problem.product(x)) for x in (best, *points)]
    return values[0] - torch.stack(values[1:])


def rank_one_error(n_classes: int, top: float) -> float:
    r"""Return the relative error of :math:`\text{diag}(p) - p p^\top` in rank one.

    The first class has the probability `top`; all others have equal probabilities.
    """
    rest = (1 - top) / (n_classes - 1)
    largest = top * (1 - top) + (n_classes - 1) * rest * (1 - rest) - (n_classes - 2) * rest
    residual = rest * math.sqrt(n_classes - 2)
    return residual / math.hypot(largest, residual)


def rank_one_errors(tops: Sequence[float], most: int = 1000) -> pd.DataFrame:
    """Tabulate `rank_one_error` as `value`, from 3 to `most` classes."""
    counts = np.unique(np.logspace(np.log10(3), np.log10(most), 16).round().astype(int)).tolist()
    rows = [(n, f"{top:g}", rank_one_error(n, top)) for top in tops for n in counts]
    return pd.DataFrame(rows, columns=["classes", "top probability", "value"])
