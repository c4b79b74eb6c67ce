"""What importance is at initialisation: Monte Carlo, resampling, ReLU, batch normalisation."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from reglib.autodiff import input_gradient
from suite.networks import build_network
from suite.papers.path_counts import path_counts

COPIES = 20  # networks of convolutions that are drawn at a time


class Estimate(NamedTuple):
    """A mean over random draws and its standard error, of the same shape."""

    mean: Tensor
    standard_error: Tensor


def squared_gradients_at_initialisation(
    build: Callable[[], nn.Module], inputs: Tensor, *, n_draws: int, seed: int, copies: int = 1
) -> Estimate:
    r"""Estimate the expected squared derivative by each input value over initialisations.

    .. math:: \mathbb E_{j, p(W)} \left[ \left( \frac{\partial h_j}{\partial x_i} \right)^2 \right]
       = \frac 1 Z \, \mathbb E_{W, s} \left[
       \left( \frac{\partial}{\partial x_i} \sum_j s_j h_j \right)^2 \right], \qquad
       s_j = \pm 1

    with independent random signs, so that one backward pass serves all `Z` outputs without bias. By
    proposition 1 it is `path_counts(..., squared=True) / Z`.

    Args:
        build: makes a network with fresh weights from the global random state, which is forked.
        inputs: (B, C, ...); the squares are averaged over them.
        n_draws: networks, at least two.
        seed: of weights and signs.
        copies: networks that `build` makes at a time, side by side: they take the inputs (B, n C,
            ...) of n networks and give their outputs, one network after another.

    Returns:
        Mean and standard error over the draws, (C, ...), in float64.

    Raises:
        ValueError: fewer than two draws, or not a multiple of the copies.

    Source: equations 3 and 4 of :cite:t:`moens2020`.
    """
    if n_draws < 2:
        raise ValueError(f"n_draws: expected at least two, got {n_draws}")
    if n_draws % copies:
        raise ValueError(f"n_draws: expected a multiple of {copies} copies, got {n_draws}")
    side_by_side = inputs.detach().repeat(1, copies, *[1] * (inputs.ndim - 2))
    draws = []
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        for _ in range(n_draws // copies):
            x = side_by_side.requires_grad_()
            outputs = build()(x)
            signs = 2 * torch.randint_like(outputs, 2) - 1
            squares = input_gradient(outputs * signs, x).double().square()
            draws.append(squares.mean(0) * copies / outputs[0].numel())
    values = torch.stack(draws).view(n_draws, *inputs.shape[1:])
    return Estimate(values.mean(0), values.std(0) / math.sqrt(n_draws))


def convolutions(
    with_relu: bool, init: Callable[..., Any] = nn.init.normal_, copies: int = 1
) -> nn.Module:
    """Return five one-dimensional convolutions, weights with a mean square of 1 / fan-in.

    With `copies`, as many independent networks side by side.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise([1, 32, 32, 32, 32, 32]):
        channels = copies * inputs, copies * outputs
        layer = nn.Conv1d(*channels, 3, padding=1, bias=False, groups=copies)
        init(layer.weight)
        layer.weight.data *= (3 * inputs) ** -0.5
        layers += [layer, nn.ReLU()] if with_relu else [layer]
    return nn.Sequential(*layers).double()


def small_resnet(seed: int | None = None) -> nn.Module:
    """Return a residual network before training, by default from the global random state."""
    options = {"blocks": [1, 1, 1], "width": 8, "stem": "strided"}
    seed = int(torch.randint(2**31, ())) if seed is None else seed
    return build_network("resnet", (1, 32, 32), 10, options=options, seed=seed).double().eval()


def squared_gradients_and_paths(n_draws: int, n_seeds: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Compare squared gradients at initialisation with path counts, for three kinds of network.

    Args:
        n_draws: initialisations for each estimate; a sixth of it for the ResNet.
        n_seeds: estimates for each kind of network.

    Returns:
        Their correlation over positions, one row a kind and seed; and of each kind the prediction
        "initialisation|KIND|paths" (C, ...), and of all estimates "...|mean" and "...|error".
    """
    ones = nn.init.ones_
    copies = math.gcd(n_draws, COPIES)
    kinds: dict[str, tuple[Callable[[], nn.Module], nn.Module, tuple[int, ...]]] = {
        name: (partial(convolutions, relu, copies=copies), convolutions(relu, ones), (1, 15))
        for name, relu in {"convolutions": False, "convolutions with ReLU": True}.items()
    }
    kinds["resnet"] = (small_resnet, small_resnet(226070103), (1, 32, 32))
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for kind, (build, model, shape) in kinds.items():
        inputs = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
        paths = path_counts(model, shape, squared=True) / model(inputs)[0].numel()
        draws, many = (n_draws // 6, 1) if kind == "resnet" else (n_draws, copies)
        estimates = [
            squared_gradients_at_initialisation(
                build, inputs, n_draws=draws, seed=seed, copies=many
            )
            for seed in range(n_seeds)
        ]
        for seed, estimate in enumerate(estimates):
            both = torch.stack([estimate.mean.flatten(), paths.flatten()])
            value = float(torch.corrcoef(both)[0, 1])
            rows.append({"network": kind, "seed": seed, "value": value})
        means, errors = (torch.stack(parts).numpy() for parts in zip(*estimates))
        parts = {"paths": paths.numpy(), "mean": means, "error": errors}
        arrays |= {f"initialisation|{kind}|{name}": array for name, array in parts.items()}
    same = {"data": "initialisation", "metric": "path_correlation", "epochs": 0, "status": "done"}
    return pd.DataFrame([row | same | {"n": n_draws} for row in rows]), arrays


def resampling_importance(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    r"""Measure how much the output changes when one input value is drawn anew from the data.

    .. math:: I_i = \frac 1 M \sum_m \left( \frac 1 M \sum_{m'}
       f(x_m \text{ with } x_{m,i} = x_{m',i}) - f(x_m) \right)^2

    Args:
        function: from (B, ...) to (B,).
        images: the data, (M, ...); the cost is `M^2` evaluations for each input value.

    Returns:
        One value for each input value, of the shape of an image.

    Source: equation 10 of :cite:t:`moens2020`, after :cite:t:`breiman2001`.
    """
    m = len(images)
    before = function(images)
    flat = images.flatten(1)
    importance = torch.empty_like(flat[0])
    for i in range(flat.shape[1]):
        mixed = flat.repeat_interleave(m, 0)  # (M M, P): each image M times
        mixed[:, i] = flat[:, i].repeat(m)
        expected = function(mixed.view(-1, *images.shape[1:])).view(m, m).mean(1)
        importance[i] = (expected - before).square().mean()
    return importance.view(images.shape[1:])


def gradient_importance(function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    r"""Compute the proxy of `resampling_importance` from gradients.

    .. math:: I_i \approx \mathbb V[x_i] \, \frac 1 M \sum_m
       \left( \frac{\partial f(x_m)}{\partial x_i} \right)^2

    The same for a linear function; near it where `f` is almost linear over the spread of the data.
    The statement of the lemma takes the square root of both.

    Args:
        function: from (B, ...) to (B,), of samples that do not influence one another.
        images: the data, (M, ...).

    Returns:
        One value for each input value, of the shape of an image.

    Source: lemma 1 and appendix A of :cite:t:`moens2020`.
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        gradient = input_gradient(function(inputs), inputs)
    return images.var(0, correction=0) * gradient.square().mean(0)


def rectified_variance(variance: float) -> float:
    r"""Return the variance of the ReLU of a normal value with mean zero.

    .. math:: \mathbb V[h] = \frac{\mathbb E_{N^+}[x^2]}{2}
       - \left( \frac{\mathbb E_{N^+}[x]}{2} \right)^2
       = S \left( \frac 1 2 - \frac 1 {2 \pi} \right)

    with :math:`N^+` the normal distribution truncated to positive values. The paper prints the
    variance of :math:`N^+` in place of its second moment, which gives a fifteenth of this.

    Args:
        variance: `S`, of the normal value.

    Source: after equation 16 of :cite:t:`moens2020`, corrected.

    >>> round(rectified_variance(1.0), 4)
    0.3408
    """
    return variance * (1 / 2 - 1 / (2 * math.pi))
