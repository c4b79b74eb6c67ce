"""What importance is at initialisation, by Monte Carlo."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.init import normal_, ones_

from reglib.autodiff import input_gradient
from suite.networks import build_network
from suite.papers.path_counts import path_counts

COPIES = 20  # networks of convolutions that are drawn at a time


def squared_gradients_at_initialisation(
    build: Callable[[], nn.Module], inputs: Tensor, *, n_draws: int, seed: int, copies: int = 1
) -> Tensor:
    r"""Draw the squared derivative by each input value at random initialisations.

    .. math:: \frac 1 Z \left( \frac{\partial}{\partial x_i} \sum_j s_j h_j \right)^2, \qquad
       s_j = \pm 1

    with independent random signs, so that one backward pass serves all `Z` outputs without bias:
    the expectation of it is that of the squared derivative of an output, by proposition 1
    `path_counts(..., squared=True) / Z`.

    Args:
        build: makes a network with fresh weights from the global random state, which is forked.
        inputs: (B, C, ...); the squares are averaged over them.
        n_draws: networks, at least two.
        seed: of weights and signs.
        copies: networks that `build` makes at a time, side by side: they take the inputs (B, n C,
            ...) of n networks and give their outputs, one network after another.

    Returns:
        One value for each draw and input value, (n_draws, C, ...), in float64.

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
    return torch.stack(draws).view(n_draws, *inputs.shape[1:])


def convolutions(with_relu: bool, init: Callable[..., Any] = normal_, copies: int = 1) -> nn.Module:
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
        "initialisation|KIND|paths" (C, ...), and of all estimates "initialisation|KIND|mean".
    """
    copies = math.gcd(n_draws, COPIES)
    kinds: dict[str, tuple[Callable[[], nn.Module], nn.Module, tuple[int, ...]]] = {
        name: (partial(convolutions, relu, copies=copies), convolutions(relu, ones_), (1, 15))
        for name, relu in {"convolutions": False, "convolutions with ReLU": True}.items()
    }
    kinds["resnet"] = (small_resnet, small_resnet(226070103), (1, 32, 32))
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for kind, (build, model, shape) in kinds.items():
        inputs = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
        paths = path_counts(model, shape, squared=True) / model(inputs)[0].numel()
        options = {"n_draws": n_draws, "copies": copies}
        if kind == "resnet":
            options = {"n_draws": n_draws // 6}
        means = []
        for seed in range(n_seeds):
            drawn = squared_gradients_at_initialisation(build, inputs, seed=seed, **options)
            means.append(drawn.mean(0))
            both = torch.stack([means[-1].flatten(), paths.flatten()])
            row = {"network": kind, "seed": seed, "value": float(torch.corrcoef(both)[0, 1])}
            rows.append(row | {"metric": "path_correlation", "epochs": 0, "n": n_draws})
        arrays[f"initialisation|{kind}|paths"] = paths.numpy()
        arrays[f"initialisation|{kind}|mean"] = torch.stack(means).numpy()
    return pd.DataFrame(rows).assign(data="initialisation", status="done"), arrays
