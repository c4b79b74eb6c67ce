"""Equations of the chapter on landscapes, each checked in float64, as printed or mended.

`names.yml` says what is compared, and the largest relative error that agrees: 1e-9 where both sides
are equal, and more for means over draws and approximations.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from reglib import landscape as lib
from reglib.autodiff import Map, input_gradient
from suite.data import load_data
from suite.papers.initial_landscapes import correlation, squared_gradients
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts

Check = tuple[str, Tensor | float, Tensor | float]  # the key of a statement, and its two sides
# The kernel in the program of Pertuz, Puig and Garcia (2013): `fspecial("laplacian")`.
PERTUZ = torch.tensor([[1.0, 4, 1], [4, -20, 4], [1, 4, 1]], dtype=torch.float64) / 6
INTERVAL = 10  # steps from one penalty to the next


def table(*parts: Callable[[torch.Generator], Iterator[Check]]) -> pd.DataFrame:
    """Return a row for each check of some parts, by default of all: see `tabulate`."""
    theory = _routes, _signs, _lemma_1, _resampling, _relu, _batch_norm, _lemma_2
    return tabulate("pilcro", parts or (*theory, _penalties, _interval, _modes, _sampling))


def tabulate(chapter: str, parts: Sequence[Callable[..., Iterator[Check]]]) -> pd.DataFrame:
    """Return a row for each check: what is compared, relative error, limit, and agreement.

    Args:
        chapter: whose `equations` in `names.yml` say what is compared, and the limit of the error.
        parts: functions that yield the checks. Each gets its own generator.
    """
    rows = []
    for key, *sides in (c for part in parts for c in part(torch.Generator().manual_seed(0))):
        left, right = (torch.as_tensor(side, dtype=torch.float64).detach() for side in sides)
        error = float((left - right).abs().max() / right.abs().max())
        *words, most = NAMES[chapter]["equations"][key]
        rows.append([*words, f"{error:.2g}", f"{most:.2g}", "yes" if error < most else "no"])
    return pd.DataFrame(rows, columns="equation,compared,relative error,limit,agrees".split(","))


def draw(source: torch.Generator, *shape: int) -> Tensor:
    """Draw normal numbers in double precision."""
    return torch.randn(*shape, dtype=torch.float64, generator=source)


class _Residual(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def _paths(depth: int, kind: type[nn.Conv1d] = nn.Conv1d, size: int = 0) -> Tensor:
    """Count the paths from an output of layers of width 3 to its inputs, or from `size` outputs."""
    layers = nn.Sequential(*[kind(1, 1, 3, padding=1) for _ in range(depth)])
    return path_counts(layers, (1, size or 2 * depth + 1), output=None if size else (0, depth))[0]


def _orders(depth: int, end: int) -> int:
    """Sum the orders of all combinations of commands 0, 1 and 2 that lead to an input."""
    # n: times of the command 2, and so of the others
    return sum(math.comb(depth, n) * math.comb(depth - n, end - 2 * n) for n in range(end // 2 + 1))


def _density(depth: int) -> Tensor:
    """Return the normal density of a centred sum of commands."""
    z = torch.arange(-depth, depth + 1).double() / (spread := math.sqrt(2 * depth / 3))
    return (-z.square() / 2).exp() / (spread * math.sqrt(2 * math.pi))


def _routes(source: torch.Generator) -> Iterator[Check]:
    """Follow commands through four convolutions: each is a derivative by the weight it names.

    A further command, which shortcuts allow, skips a layer and keeps the position.
    """
    h, ends = draw(source, 1, 9), torch.arange(9)
    for weights in draw(source, 4, 1, 1, 3):
        layer = partial(F.conv1d, h, padding=1)
        entries = jacobian(layer, weights)[0, :, 0, 0]
        lead = (entries[..., None] == h[0]).int().argmax(-1)  # (outputs, commands)
        ends = ends[torch.cat([lead, torch.arange(9)[:, None]], 1)]
        h = layer(weights)
    ends, routes = ends[4], ends[4, :3, :3, :3, :3]  # from the middle, with and without skips
    yield "route", routes.flatten(), torch.cartesian_prod(*[torch.arange(3)] * 4).sum(1)
    orders = [routes.permute(order) for order in itertools.permutations(range(4))]
    yield "order", torch.stack(orders), routes
    yield "commands", routes.flatten().bincount(), _paths(4)
    yield "skip", ends.flatten().bincount(), _paths(4, _Residual)
    every, one = (_paths(4, _Residual, size) - _paths(4, size=size) for size in (17, 0))
    for key, counts in {"added inside": every[4:-4], "added": every, "added to one": one}.items():
        yield key, counts, counts.mean()
    sums = torch.tensor([_orders(n, i) for n in range(1, 5) for i in range(2 * n + 1)])
    yield "multinomial", sums, torch.cat([*map(_paths, range(1, 5))])
    shares = {n: _paths(n) / 3.0**n for n in (64, 128)}
    yield "normal", shares[64], _density(64)
    distances = [(share - _density(n)).abs().sum() for n, share in shares.items()]
    yield "depth", (distances[0] / distances[1]).log2(), 1.0


def _signs(source: torch.Generator) -> Iterator[Check]:
    """Give three convolutions all signs of their weights, and of biases where inputs are others."""
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0]).double()] * 12)
    layers = (signs * draw(source, 12)).view(-1, 3, 4).movedim(1, 0)  # three weights and a bias
    paths = torch.einsum("na,nb,nc->nabc", *layers[..., :3]).flatten(1)  # (networks, commands)
    ends = F.one_hot(torch.cartesian_prod(*[torch.arange(3)] * 3).sum(1)).double()
    x = torch.stack([draw(source, 7), 5 + 3 * draw(source, 7)])[:, None]
    x, biased = x.repeat(1, len(signs), 1).requires_grad_(), torch.tensor([0, 1]).view(2, 1, 1)
    for key, activation, share in (("linear", torch.clone, 1), ("ReLU", torch.relu, 1 / 2**3)):
        h = x
        for layer in layers:
            sums = (h.unfold(-1, 3, 1) * layer[:, None, :3]).sum(-1)
            h = activation(sums + biased * layer[:, 3:])
        plain, other = slopes = input_gradient(h, x)
        yield f"{key} path sum", plain, paths @ ends
        yield f"{key} inputs", other.square(), plain.square()
        yield f"{key} signs", slopes.square().mean(1), (share * paths[:1].square() @ ends)


def _importance(f: Map, x: Tensor) -> Tensor:
    """Return the terms in the proof of lemma 1, from its last line to equation 10, by pixel."""
    one, delta = torch.eye(x.shape[1], dtype=torch.bool)[:, None], x - x.mean(0)
    slopes = input_gradient(f(inputs := x.clone().requires_grad_()), inputs)
    means = f(torch.where(one[:, None], x, x[:, None])).mean(2)  # (pixels, images)
    changes = [(mean - f(x)).square() for mean in (f(torch.where(one, x.mean(0), x)), means)]
    product = delta.square().mean(0) * slopes.square().mean(0)
    return torch.stack([product, (delta * slopes).square().mean(0), *(c.mean(1) for c in changes)])


def _relus(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    maps = F.conv2d(x.reshape(-1, 1, 7, 7), weights[0]).relu()
    return (F.conv2d(maps, weights[1]).relu().flatten(1) @ weights[2]).view(x.shape[:-1])


def _lemma_1(source: torch.Generator) -> Iterator[Check]:
    """Resample pixels of digits, for a linear function and for ten networks with ReLU."""
    x = F.avg_pool2d(load_data("mnist5k").test.images[:30].double(), 4).flatten(1)
    slope = draw(source, 49)
    *lines, resampled = _importance(lambda x: x @ slope, x)
    yield "resampling", resampled, slope.square() * x.var(0, correction=0)
    yield "linear", torch.stack(lines), resampled[None]
    point = draw(source, 1000)
    beyond = 2 * (-point * point.mean().sign()).relu().mean()
    yield "kink", point.mean().abs(), point.abs().mean()
    yield "kink mended", point.mean().abs() + beyond, point.abs().mean()
    networks = zip(*(draw(source, 10, *shape) for shape in ((4, 1, 3, 3), (4, 4, 3, 3), (36,))))
    terms = torch.stack([_importance(partial(_relus, weights), x) for weights in networks], 1)
    for key, pair in zip(("slope apart", "tangent", "middle"), itertools.pairwise(terms.mean(1))):
        yield key, *pair
    roots = terms[0].sqrt(), terms[3].sqrt()
    yield "correlation", torch.stack([*map(correlation, *roots)]).mean(), 1.0
    yield "size", roots[0].sum(), roots[1].sum()


def _resampling(source: torch.Generator) -> Iterator[Check]:
    """Expand the mean of a smooth function over a normal input, by Gauss-Hermite quadrature."""
    points, shares = map(torch.tensor, np.polynomial.hermite_e.hermegauss(30))
    x = draw(source, 9, 1)
    y = x.tanh()
    means = {s: (x + s * points).tanh() @ shares / shares.sum() for s in (0.02, 0.01)}
    rests = [mean - (y - y * (1 - y**2) * s**2)[:, 0] for s, mean in means.items()]
    yield "second order", (rests[0] / rests[1]).log2(), 4.0


def _relu(source: torch.Generator) -> Iterator[Check]:
    x = draw(source, 10**6).requires_grad_()
    squares = input_gradient(x.relu(), x).square()
    yield from (("derivative", squares, (x > 0).double()), ("half", squares.mean(), 0.5))
    above, true = x[x > 0], x.relu().var()
    for key, moment in {"relu": above.var(), "relu mended": above.square().mean()}.items():
        yield key, moment / 2 - above.mean() ** 2 / 4, true


def _batch_norm(source: torch.Generator) -> Iterator[Check]:
    def normalise(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)

    a = draw(source, 16)
    z, std = normalise(a), a.std(correction=0)
    true = jacobian(normalise, a)  # (j, i)
    for key, product in {"norm": z.square(), "norm mended": torch.outer(z, z)}.items():
        yield key, (torch.eye(16) - 1 / 16 - product / 16) / std, true

    exact = {n: jacobian(normalise, normalise(draw(source, n))).square() for n in (250, 500)}
    rests = [square - torch.eye(n) * (1 - 1 / n) ** 2 for n, square in exact.items()]
    means = [(rest.diag().mean(), (rest - rest.diag().diag()).mean()) for rest in rests]
    own, others = ((small / large).log2() for small, large in zip(*means))
    yield from (("rest", own, 2.0), ("rest mended", own, 1.0), ("others", others, 2.0))

    n, weights, gamma = 64, 3 * draw(source, 10_000, 6), 1 + draw(source, 10_000) / 5
    h = (2 * draw(source, 10_000, n, 6)).requires_grad_()
    outputs = gamma[:, None] * normalise(torch.einsum("dnf,df->dn", h, weights))
    (gradient,) = torch.autograd.grad(outputs[:, 0].sum(), h)
    share = weights[:, 0].square() / weights.square().sum(1)
    formula = (gamma.square() * share).mean() * (n - 1) / n / 2**2
    yield "one layer", formula, gradient[:, 0, 0].square().mean()

    signs = torch.tensor([*itertools.product([-1.0, 1.0], repeat=6)], dtype=torch.float64)
    yield "convolution", weights[0].square().sum(), (signs @ weights[0]).var(correction=0)

    squares = draw(source, 50_000, 2, 2, 3).square()  # filters, channels, positions
    shares = (squares / squares.sum((2, 3), keepdim=True)).mean(0)
    outputs = torch.ones(1, 2, 6, dtype=torch.float64)
    true = F.conv_transpose1d(outputs, shares)[0] / outputs.numel()
    paths = path_counts(nn.Conv1d(2, 2, 3), (2, 8)) / outputs.numel()
    for key, most in (("most paths", float(paths.max())), ("most paths mended", 6.0)):
        yield key, paths / most, true


def _normalised(depth: int) -> nn.Module:
    layers = (m for _ in range(depth) for m in (nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8)))
    return nn.Sequential(*layers).double()


def _lemma_2(source: torch.Generator) -> Iterator[Check]:
    """Differentiate convolutions of 8 channels and width 3, each normalised by the batch."""
    x, sizes = 2 * draw(source, 60, 8, 12), [12, 10, 8, 6]
    for depth, size in enumerate(sizes[1:], 1):
        true = squared_gradients(partial(_normalised, depth), x, n_draws=100, seed=0).mean((0, 1))
        scales = [(60 * n - 1) / (60 * n * 24) for n in sizes[1 : depth + 1]]
        paths = path_counts(_normalised(depth), (8, 12))[0] / (8 * size)
        yield f"{depth} layers", paths * math.prod(scales) / x.var(), true
    shares = torch.stack([path_counts(_normalised(1), (8, n))[0, :8] for n in sizes[:3]]).prod(0)
    yield "shares", shares / shares.max(), true[:8] / true.max()


def _penalties(source: torch.Generator) -> Iterator[Check]:
    values, target = (lib.scaled_norm(draw(source, 3, 16, 16).square()) for _ in range(2))
    yield from (("one", values.square().mean(), 1.0), ("one printed", values.mean(), 1.0))
    padded = F.pad(values[None, None], [1] * 4, mode="replicate")
    edges = F.conv2d(padded, PERTUZ[None, None])
    yield "energy", edges.var(correction=0), edges.square().mean()
    yield "kernel", edges.square().mean(), lib.curvature_penalty(values)
    yield "target", (values - target).square().sum(), 256 * lib.target_penalty(values, target)


def _network(weights: Tensor) -> Map:
    return lambda images: (images.flatten(1) @ weights).tanh()


def _interval(source: torch.Generator) -> Iterator[Check]:
    """Minimise the penalty in every step with α, or once in T steps with a larger one."""
    images = torch.rand(8, 1, 8, 8, dtype=torch.float64, generator=source)
    start, target, rate = draw(source, 64, 3) / 3, lib.data_smoothness([images]), 1e-5

    def step(weights: Tensor, size: float) -> Tensor:
        weights = weights.detach().requires_grad_()
        model, classes = _network(weights), torch.Generator().manual_seed(0)
        values = lib.importance_landscape(model, images, generator=classes, create_graph=True)
        return weights - size * input_gradient(lib.target_penalty(values, target), weights)

    trained = start
    for _ in range(INTERVAL):
        trained = step(trained, rate)
    for key, factor in {"interval": INTERVAL, "interval squared": INTERVAL**2}.items():
        yield key, step(start, rate * factor) - start, trained - start


def _modes(source: torch.Generator) -> Iterator[Check]:
    """Differentiate a network with batch normalisation at images, and close to them."""
    x, step = draw(source, 2, 8, 4, 9).requires_grad_()
    (first, last), (mean, variance) = draw(source, 2, 4, 4, 3), draw(source, 2, 4).exp()

    def slope(x: Tensor, training: bool) -> Tensor:
        maps = F.batch_norm(F.conv1d(x, first), mean, variance, training=training)
        return input_gradient(F.conv1d(maps.relu(), last), x)

    for mode, training in {"evaluation": False, "training": True}.items():
        yield mode, slope(x + 1e-6 * step, training), slope(x, training)


def _sampling(source: torch.Generator) -> Iterator[Check]:
    """Average over all minibatches of two that two images and their classes can give."""
    x, model = draw(source, 2, 1, 4, 4).requires_grad_(), _network(draw(source, 16, 3))
    logits = model(x)
    gradients = [input_gradient(logit, x, keep_graph=True) for logit in logits.unbind(1)]
    squares = torch.stack(gradients, 1).square().flatten(0, 1)  # (images classes, C, H, W)
    probs = logits.softmax(1).flatten() / len(x)
    pairs = torch.cartesian_prod(*[torch.arange(len(probs))] * 2)
    chance, means = probs[pairs].prod(1), squares[pairs].mean(1)
    full = lib.expected_squared_gradients(model, [x.detach()])
    yield "minibatches", torch.tensordot(chance, means, 1), full
    yield "scaled", torch.tensordot(chance, lib.scaled_norm(means), 1), lib.scaled_norm(full)
