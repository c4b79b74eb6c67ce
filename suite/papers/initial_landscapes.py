"""Landscapes of networks before training: on photographs, under other conditions, and by paths."""

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
from suite.papers.design import Arrays, Item, measurement, replace, specify
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts
from suite.papers.pilcro_measures import Condition
from suite.units import Training, Values

DATA, START = "initialisation", "start"  # data of the rows, and prefix of the names of arrays
KEYS = ["data", "network", "network_options", "conditions"]  # of a network in `untrained`
PLAIN, PATHS = "photographs", "its paths"
CONDITIONS: tuple[str, ...] = get_args(Condition)
*_, STATISTICS, SCALED = CONDITIONS
GROUP = 5  # initialisations in a mean
TITLES: dict[str, str] = NAMES["pilcro"]["start"]


def items(measures: Values, p: SimpleNamespace) -> Iterator[Item]:
    """Yield the maps of the networks in the parameter `untrained`; they are kept, without rows.

    On photographs, each of `n_start` initialisations sees `n_start_images` test images, and one
    class is drawn for each image. Other conditions have half as many of both.

    Raises:
        UsageError: an unknown or missing key of a network.
    """
    for name, options in p.untrained.items():
        check_keys(f"untrained {name!r}", options, KEYS, KEYS[:2])
        fields = {key: value for key, value in options.items() if key != "conditions"}
        p = replace(p, n_landscape=p.n_start_images, n_other=max(1, p.n_start_images // 2), draws=1)
        p = replace(p, conditions=[{"condition": c} for c in options.get("conditions", CONDITIONS)])
        variants = (replace(p, of=of) for of in (None, "paths"))
        plain, paths = ([*specify(measures, "importance_landscape", v)] for v in variants)
        under = [*specify(measures, "landscape_under", p)]
        for seed in range(p.n_start):
            network = Training(**fields, epochs=0, learning_rate=1.0, seed=seed)
            maps = [(PLAIN, m) for m in plain] + [(PATHS, m) for m in paths if seed == 0]
            maps += [(m.labels["condition"], m) for m in under if seed < p.n_start // 2]
            for condition, (_, metric, settings) in maps:
                keep = f"{START}|{name}|{condition}|{seed}"
                yield Item(measurement(network, metric, **settings), keep=keep)


def compare_maps(arrays: Arrays) -> tuple[list[dict[str, Any]], Arrays]:
    """Compare the maps of `items`, and remove them from `arrays`, in place.

    Returns:
        Rows, and the mean map of each network and condition. The rows have TV and centre / rim of
        each map, and its correlations with other maps of the same network: that of the paths and
        that on photographs. "path_correlation" is that of means over `GROUP` initialisations.
    """
    maps: dict[tuple[str, str], dict[int, Tensor]] = defaultdict(dict)
    for key in [key for key in arrays if key.startswith(f"{START}|")]:
        name, condition, number = key.removeprefix(f"{START}|").rsplit("|", 2)
        maps[name, condition][int(number)] = torch.as_tensor(arrays.pop(key)).double()
    rows: list[dict[str, Any]] = []
    for (name, condition), by_seed in maps.items():
        (paths,) = maps[name, PATHS].values()
        common = {"data": DATA, "network": name, "epochs": 0, "status": "done"}
        for seed, landscape in by_seed.items():
            values = {"tv": total_variation(landscape), "centre_to_rim": centre_to_rim(landscape)}
            if condition != PATHS:
                values["with_paths"] = correlation(landscape, paths)
            if condition == SCALED:
                values["with_statistics"] = correlation(landscape, maps[name, STATISTICS][seed])
            elif condition in CONDITIONS:
                values["with_photographs"] = correlation(landscape, maps[name, PLAIN][seed])
            row = common | {"model": condition, "seed": seed}
            for m, v in values.items():  # infinite, so NaN, where the rim has no gradient
                rows.append(row | {"metric": m, "value": float(v.nan_to_num(torch.nan, torch.nan))})
        groups = torch.stack([*by_seed.values()]).split(GROUP) if condition == PLAIN else ()
        for index, group in enumerate(groups):
            row = common | {"metric": "path_correlation", "seed": index, "n": len(group)}
            rows.append(row | {"value": float(correlation(group.mean(0), paths))})
    means = {key: torch.stack([*seeds.values()]).mean(0).half() for key, seeds in maps.items()}
    return rows, {f"{DATA}|{'|'.join(key)}": mean.numpy() for key, mean in means.items()}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Tabulate means over initialisations, by network and condition."""
    rows = tables.select(rows, data=DATA, metric=[*TITLES], status="done").dropna(subset="model")
    return tables.means(tables.best_rows(rows), ["network", "model"], names=TITLES, digits=".3g")


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of two maps over their positions."""
    return torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]


def squared_gradients(
    build: Callable[[], nn.Module], inputs: Tensor, *, n_draws: int, seed: int
) -> Tensor:
    r"""Return the squared derivative by each input value, for random initialisations.

    .. math:: \frac 1 Z \left( \frac{\partial}{\partial x_i} \sum_j s_j h_j \right)^2, \qquad
       s_j = \pm 1

    with independent random signs, so that one backward pass serves all `Z` outputs. Its expectation
    is the mean over outputs of the expected squared derivative, which by proposition 1 is
    `path_counts(..., squared=True) / Z`.

    Args:
        build: makes a network with new weights from the global random state, which is forked.
        inputs: (B, C, ...); the squares are averaged over the batch.
        n_draws: number of networks.
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
    """Return five one-dimensional convolutions whose weights have a mean square of 1 / fan-in."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise([1, 32, 32, 32, 32, 32]):
        layer = nn.Conv1d(inputs, outputs, 3, padding=1, bias=False)
        init(layer.weight)
        layer.weight.data *= (3 * inputs) ** -0.5
        layers += [layer, nn.ReLU()] if with_relu else [layer]
    return nn.Sequential(*layers).double()


def small_resnet(seed: int | None = None) -> nn.Module:
    """Return an untrained residual network; by default its seed is drawn from the global state."""
    options = {"blocks": [1, 1, 1], "width": 8, "stem": "strided"}
    seed = int(torch.randint(2**31, ())) if seed is None else seed
    return build_network("resnet", (1, 32, 32), 10, options=options, seed=seed).double().eval()


def squared_gradients_and_paths(n_draws: int, n_seeds: int) -> tuple[pd.DataFrame, Arrays]:
    """Compare squared gradients on white noise with path counts, for three networks.

    Args:
        n_draws: initialisations for each estimate; the ResNet has a sixth of them.
        n_seeds: estimates for each network.

    Returns:
        Rows of their correlation over positions, by network and seed; and for each network arrays
        "initialisation|NETWORK|paths", the prediction (C, ...), and "initialisation|NETWORK|mean",
        the estimates (n_seeds, C, ...).
    """
    five = {"convolutions": False, "convolutions with ReLU": True}.items()
    networks = [(n, partial(convolutions, r), convolutions(r, ones_), (1, 15)) for n, r in five]
    resnet: Any = ("resnet", small_resnet, small_resnet(226070103), (1, 32, 32))
    generator = torch.Generator().manual_seed(0)
    rows, arrays = [], {}
    for name, build, model, shape in [*networks, resnet]:
        inputs = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
        paths = path_counts(model, shape, squared=True) / model(inputs)[0].numel()
        draw = partial(squared_gradients, n_draws=n_draws // (6 if name == "resnet" else 1))
        means = [draw(build, inputs, seed=seed).mean(0) for seed in range(n_seeds)]
        for seed, mean in enumerate(means):
            rows.append({"network": name, "seed": seed, "value": float(correlation(mean, paths))})
        arrays[f"{DATA}|{name}|paths"] = paths.numpy()
        arrays[f"{DATA}|{name}|mean"] = torch.stack(means).numpy()
    common: dict[str, Any] = {"metric": "path_correlation", "epochs": 0, "n": n_draws}
    return pd.DataFrame(rows).assign(**common, data=DATA, status="done"), arrays
