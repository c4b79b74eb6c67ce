"""Landscapes of networks as they start: on photographs, under other conditions, and by paths."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.init import normal_, ones_

from reglib import total_variation
from reglib.autodiff import input_gradient
from suite.errors import check_keys
from suite.evidence import tables
from suite.metrics import centre_to_rim
from suite.networks import build_network
from suite.papers.design import Arrays, Item, changed, measurement, wanted
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts
from suite.papers.pilcro_measures import Condition
from suite.units import Training, Values

DATA, START = "initialisation", "start"  # in the rows, and in front of the names of arrays
KEYS = ["data", "network", "network_options", "conditions"]  # of a network in `untrained`
PLAIN, PATHS = "photographs", "its paths"
CONDITIONS: tuple[str, ...] = get_args(Condition)
*_, STATISTICS, SCALED = CONDITIONS
GROUP = 5  # initialisations that are averaged
TITLES: dict[str, str] = NAMES["pilcro"]["start"]


def items(measures: Values, p: SimpleNamespace) -> Iterator[Item]:
    """Go through the networks of the parameter `untrained`; maps are kept by name, not as rows.

    With `n_start` initialisations and `n_start_images` test images, one class drawn for each; under
    conditions with half as many of both.
    """
    for name, given in p.untrained.items():
        check_keys(f"untrained {name!r}", given, KEYS, KEYS[:2])
        fields = {key: value for key, value in given.items() if key != "conditions"}
        p = changed(p, n_landscape=p.n_start_images, n_other=max(1, p.n_start_images // 2), draws=1)
        p = changed(p, conditions=[{"condition": c} for c in given.get("conditions", CONDITIONS)])
        of_all = (changed(p, of=of) for of in (None, "paths"))
        plain, paths = ([*wanted(measures, "importance_landscape", one)] for one in of_all)
        under = [*wanted(measures, "landscape_under", p)]
        for seed in range(p.n_start):
            network = Training(**fields, epochs=0, learning_rate=1.0, seed=seed)
            maps = [(PLAIN, one) for one in plain] + [(PATHS, one) for one in paths if seed == 0]
            maps += [(one.labels["condition"], one) for one in under if seed < p.n_start // 2]
            for condition, (_, metric, settings) in maps:
                keep = f"{START}|{name}|{condition}|{seed}"
                yield Item(measurement(network, metric, **settings), keep=keep)


def derive(arrays: Arrays) -> tuple[list[dict[str, Any]], Arrays]:
    """Take the maps of `items` out of arrays, in place, and compare them.

    Returns:
        Rows: TV and centre / rim of each map, its correlation with that of the paths, and with that
        on photographs of the same network; "path_correlation" of means over `GROUP`
        initialisations. And the mean map of each network and condition.
    """
    maps: dict[tuple[str, str], dict[int, Tensor]] = defaultdict(dict)
    for key in [key for key in arrays if key.startswith(f"{START}|")]:
        name, condition, number = key.removeprefix(f"{START}|").rsplit("|", 2)
        maps[name, condition][int(number)] = torch.as_tensor(arrays.pop(key)).double()
    rows: list[dict[str, Any]] = []
    for (name, condition), of_seed in maps.items():
        (paths,) = maps[name, PATHS].values()
        same = {"data": DATA, "network": name, "epochs": 0, "status": "done"}
        for seed, one in of_seed.items():
            new = {"tv": total_variation(one), "centre_to_rim": centre_to_rim(one)}
            if condition != PATHS:
                new["with_paths"] = correlation(one, paths)
            if condition == SCALED:
                new["with_statistics"] = correlation(one, maps[name, STATISTICS][seed])
            elif condition in CONDITIONS:
                new["with_photographs"] = correlation(one, maps[name, PLAIN][seed])
            row = same | {"model": condition, "seed": seed}
            for m, v in new.items():  # NaN where a rim without gradients makes it infinite
                rows.append(row | {"metric": m, "value": float(v.nan_to_num(torch.nan, torch.nan))})
        groups = torch.stack([*of_seed.values()]).split(GROUP) if condition == PLAIN else ()
        for place, group in enumerate(groups):
            row = same | {"metric": "path_correlation", "seed": place, "n": len(group)}
            rows.append(row | {"value": float(correlation(group.mean(0), paths))})
    means = {key: torch.stack([*of.values()]).mean(0).half() for key, of in maps.items()}
    drawn = {f"{DATA}|{'|'.join(key)}": mean.numpy() for key, mean in means.items()}
    return rows, drawn


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over initialisations, by network and condition."""
    rows = tables.select(rows, data=DATA, metric=[*TITLES], status="done").dropna(subset="model")
    return tables.means(tables.best_rows(rows), ["network", "model"], names=TITLES, digits=".3g")


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of two maps over their positions."""
    return torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]


def squared_gradients(
    build: Callable[[], nn.Module], inputs: Tensor, *, n_draws: int, seed: int
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
        n_draws: networks.
        seed: of weights and signs.

    Returns:
        One value for each draw and input value, (n_draws, C, ...), in float64.

    Source: equations 3 and 4 of :cite:t:`moens2020`.
    """
    draws, x = [], inputs.detach().clone().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        for _ in range(n_draws):
            outputs = build()(x)
            signs = 2 * torch.randint_like(outputs, 2) - 1
            squares = input_gradient(outputs * signs, x).double().square()
            draws.append(squares.mean(0) / outputs[0].numel())
    return torch.stack(draws)


def convolutions(with_relu: bool, init: Callable[..., Any] = normal_) -> nn.Module:
    """Return five one-dimensional convolutions, weights with a mean square of 1 / fan-in."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise([1, 32, 32, 32, 32, 32]):
        layer = nn.Conv1d(inputs, outputs, 3, padding=1, bias=False)
        init(layer.weight)
        layer.weight.data *= (3 * inputs) ** -0.5
        layers += [layer, nn.ReLU()] if with_relu else [layer]
    return nn.Sequential(*layers).double()


def small_resnet(seed: int | None = None) -> nn.Module:
    """Return a residual network before training, by default from the global random state."""
    options = {"blocks": [1, 1, 1], "width": 8, "stem": "strided"}
    seed = int(torch.randint(2**31, ())) if seed is None else seed
    return build_network("resnet", (1, 32, 32), 10, options=options, seed=seed).double().eval()


def squared_gradients_and_paths(n_draws: int, n_seeds: int) -> tuple[pd.DataFrame, Arrays]:
    """Compare squared gradients on white noise with path counts, for three kinds of network.

    Args:
        n_draws: initialisations for each estimate; a sixth of it for the ResNet.
        n_seeds: estimates for each kind of network.

    Returns:
        Their correlation over positions, one row a kind and seed; and of each kind the prediction
        "initialisation|KIND|paths" (C, ...), and of all estimates "initialisation|KIND|mean".
    """
    kinds: dict[str, tuple[Callable[[], nn.Module], nn.Module, tuple[int, ...]]] = {
        name: (partial(convolutions, relu), convolutions(relu, ones_), (1, 15))
        for name, relu in {"convolutions": False, "convolutions with ReLU": True}.items()
    }
    kinds["resnet"] = (small_resnet, small_resnet(226070103), (1, 32, 32))
    generator = torch.Generator().manual_seed(0)
    rows, arrays = [], {}
    for kind, (build, model, shape) in kinds.items():
        inputs = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
        paths = path_counts(model, shape, squared=True) / model(inputs)[0].numel()
        draw = partial(squared_gradients, n_draws=n_draws // (6 if kind == "resnet" else 1))
        means = [draw(build, inputs, seed=seed).mean(0) for seed in range(n_seeds)]
        for seed, mean in enumerate(means):
            rows.append({"network": kind, "seed": seed, "value": float(correlation(mean, paths))})
        arrays[f"{DATA}|{kind}|paths"] = paths.numpy()
        arrays[f"{DATA}|{kind}|mean"] = torch.stack(means).numpy()
    same: dict[str, Any] = {"metric": "path_correlation", "epochs": 0, "n": n_draws}
    return pd.DataFrame(rows).assign(**same, data=DATA, status="done"), arrays
