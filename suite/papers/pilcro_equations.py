"""Equations of the chapter on landscapes, each checked in float64, as printed or mended."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reglib import landscape as lib
from reglib.autodiff import input_gradient
from suite.papers.path_counts import path_counts

# The equation, what is compared, the two sides, and the largest relative error of the left one.
Check = tuple[str, str, Tensor | float, Tensor | float, float]
# What the program of Pertuz, Puig and Garcia (2013) takes: `fspecial("laplacian")`.
PERTUZ = torch.tensor([[1.0, 4, 1], [4, -20, 4], [1, 4, 1]], dtype=torch.float64) / 6
EXACT, INTERVAL = 1e-9, 10  # relative error of rounding; steps from one penalty to the next


def table() -> pd.DataFrame:
    """Return a row a check: equation, what is compared, relative error, and whether it agrees."""
    parts = (_resampling, _relu, _batch_norm, _penalties, _interval, _sampling)
    checks = [check for part in parts for check in part(torch.Generator().manual_seed(0))]
    rows = []
    for equation, compared, *sides, most in checks:
        found, expected = (torch.as_tensor(side).detach().double() for side in sides)
        error = float((found - expected).abs().max() / expected.abs().max())
        row = {"equation": equation, "compared": compared, "relative error": f"{error:.1g}"}
        rows.append(row | {"agrees": "yes" if error < most else "no"})
    return pd.DataFrame(rows)


def _randn(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def _resampling(source: torch.Generator) -> Iterator[Check]:
    """Expand the mean of a smooth function over a normal input, by Gauss-Hermite quadrature."""
    points, shares = map(torch.tensor, np.polynomial.hermite_e.hermegauss(30))
    x = _randn(source, 9, 1)
    y = x.tanh()
    means = {s: (x + s * points).tanh() @ shares / shares.sum() for s in (0.02, 0.01)}
    rests = [mean - (y - y * (1 - y**2) * s**2)[:, 0] for s, mean in means.items()]
    order = (rests[0] / rests[1]).log2()
    yield "11", "rest after the second-order term: its order in σ, and 4", order, 4.0, 0.01


def _relu(source: torch.Generator) -> Iterator[Check]:
    x = _randn(source, 10**6)
    above, true = x[x > 0], x.relu().var()
    moments = {"as printed": above.var(), "with the second moment": above.square().mean()}
    for name, moment in moments.items():
        formula = moment / 2 - above.mean() ** 2 / 4
        yield "after 16", f"variance behind ReLU, {name}", formula, true, 0.01


def _batch_norm(source: torch.Generator) -> Iterator[Check]:
    def normalise(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=0)

    a = _randn(source, 16)
    z, std = normalise(a), a.std(correction=0)
    true = torch.autograd.functional.jacobian(normalise, a)  # (j, i)
    products = {"as printed": z.square().expand(16, 16), "with both deviations": torch.outer(z, z)}
    for name, product in products.items():
        formula = (torch.eye(16) - 1 / 16 - product / 16) / std
        yield "before 18", f"derivative of a normalisation, {name}", formula, true, EXACT

    n, weights, gamma = 64, 3 * _randn(source, 10_000, 6), 1 + _randn(source, 10_000) / 5
    h = (2 * _randn(source, 10_000, n, 6)).requires_grad_()
    outputs = gamma[:, None] * normalise(torch.einsum("dnf,df->dn", h, weights))
    (gradient,) = torch.autograd.grad(outputs[:, 0].sum(), h)
    share = weights[:, 0].square() / weights.square().sum(1)
    formula = (gamma.square() * share).mean() * (n - 1) / n / 2**2
    true = gradient[:, 0, 0].square().mean()
    yield "19", "squared derivative behind a normalisation of 64 values", formula, true, 1 / n

    signs = torch.tensor([*itertools.product([-1.0, 1.0], repeat=6)], dtype=torch.float64)
    variance = (signs @ weights[0]).var(correction=0)
    yield "before 20", "variance of a convolution", weights[0].square().sum(), variance, EXACT

    squares = _randn(source, 50_000, 2, 2, 3).square()  # filters, channels, positions
    shares = (squares / squares.sum((2, 3), keepdim=True)).mean(0)
    outputs = torch.ones(1, 2, 6, dtype=torch.float64)
    true = F.conv_transpose1d(outputs, shares)[0] / outputs.numel()
    paths = path_counts(nn.Conv1d(2, 2, 3), (2, 8)) / outputs.numel()
    for name, most in {"mean over outputs": paths.max(), "the fan-in": torch.tensor(6.0)}.items():
        yield "20", f"paths over their largest number, {name}", paths / most, true, 0.02


def _penalties(source: torch.Generator) -> Iterator[Check]:
    values, target = (lib.scaled_norm(_randn(source, 3, 16, 16)) for _ in range(2))
    padded = F.pad(values[None, None], [1] * 4, mode="replicate")
    edges = F.conv2d(padded, PERTUZ[None, None])
    energy, here = edges.square().mean(), lib.curvature_penalty(values)
    yield "8", "with Pertuz' kernel: variance and energy", edges.var(correction=0), energy, EXACT
    yield "8", "with Pertuz' kernel, and with the kernel here", energy, here, EXACT
    printed = (values - target).square().sum()
    mean = lib.target_penalty(values, target)
    yield "9", "as printed, and HW times the mean here", printed, values.numel() * mean, EXACT


def _network(weights: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda images: (images.flatten(1) @ weights).tanh()


def _interval(source: torch.Generator) -> Iterator[Check]:
    """Move weights down the penalty: in every step with α, or once for T steps with more."""
    images = torch.rand(8, 1, 8, 8, dtype=torch.float64, generator=source)
    start, target, rate = _randn(source, 64, 3) / 3, lib.data_smoothness([images]), 1e-5

    def step(weights: Tensor, size: float) -> Tensor:
        weights = weights.detach().requires_grad_()
        model, classes = _network(weights), torch.Generator().manual_seed(0)
        found = lib.importance_landscape(model, images, generator=classes, create_graph=True)
        (gradient,) = torch.autograd.grad(lib.target_penalty(found, target), weights)
        return weights - size * gradient

    moved = start
    for _ in range(INTERVAL):
        moved = step(moved, rate)
    for name, factor in {"α₀T": INTERVAL, "α₀T²": INTERVAL**2}.items():
        change = step(start, rate * factor) - start
        compared = f"{name} once in T steps, in place of α₀ in each: change"
        yield "section 3.3.3", compared, change, moved - start, 0.01


def _sampling(source: torch.Generator) -> Iterator[Check]:
    """Go through all minibatches of two that can be drawn of two images, with their classes."""
    x, model = _randn(source, 2, 1, 4, 4).requires_grad_(), _network(_randn(source, 16, 3))
    logits = model(x)
    gradients = [input_gradient(one, x, keep_graph=True) for one in logits.unbind(1)]
    squares = torch.stack(gradients, 1).square().flatten(0, 1)  # (images classes, C, H, W)
    probs = logits.softmax(1).flatten() / len(x)
    pairs = [*itertools.product(range(len(probs)), repeat=2)]
    drawn = torch.stack([squares[[*pair]].mean(0) for pair in pairs])
    chance = torch.stack([probs[[*pair]].prod() for pair in pairs])
    full = lib.expected_squared_gradients(model, [x.detach()])
    compared = "squares of all minibatches: their mean, and all images"
    yield "section 3.3.3", compared, torch.tensordot(chance, drawn, 1), full, EXACT
    mean, whole = torch.tensordot(chance, lib.scaled_norm(drawn), 1), lib.scaled_norm(full)
    yield "section 3.3.3", "the same after equation 6", mean, whole, EXACT
