"""Landscapes of networks as they start: on photographs, under other conditions, and by paths."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from reglib import total_variation
from suite.evidence import quote, tables
from suite.metrics import centre_to_rim
from suite.papers.design import Arrays, Item, changed, measurement, wanted
from suite.papers.names import NAMES
from suite.papers.pilcro_measures import Condition
from suite.units import Training, Values

LANDSCAPE, UNDER = "importance_landscape", "landscape_under"
DATA, START = "initialisation", "start"  # in the rows, and in front of the names of arrays
SMALL = "small ResNet"  # that which is trained, too
PLAIN, PATHS = "photographs", "its paths"
CONDITIONS: tuple[str, ...] = get_args(Condition)
GROUP = 5  # initialisations that are averaged
TITLES: dict[str, str] = NAMES["pilcro"]["start"]
# A network that is not trained has a learning rate all the same.
UNTRAINED: dict[str, Any] = {"epochs": 0, "learning_rate": 1.0}


def items(measures: Values, p: SimpleNamespace) -> Iterator[Item]:
    """Go through the networks of the parameter `untrained`; maps are kept by name, not as rows.

    With `n_start` initialisations and `n_start_images` test images, one class drawn for each; under
    conditions with half as many of both.
    """
    for name, given in p.untrained.items():
        taken = given.get("conditions", CONDITIONS)
        fields = {key: value for key, value in given.items() if key != "conditions"}
        p = changed(p, n_landscape=p.n_start_images, n_other=p.n_start_images // 2, draws=1)
        p = changed(p, conditions=[{"condition": one} for one in taken])
        plain, paths = ([*wanted(measures, LANDSCAPE, changed(p, of=of))] for of in (None, "paths"))
        under = [*wanted(measures, UNDER, p)]
        for seed in range(p.n_start):
            network = Training(**fields, **UNTRAINED, seed=seed)
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
        _, name, condition, number = key.split("|")
        maps[name, condition][int(number)] = torch.as_tensor(arrays.pop(key)).double()
    rows: list[dict[str, Any]] = []
    for (name, condition), of_seed in maps.items():
        (paths,) = maps[name, PATHS].values()
        same = {"data": DATA, "network": name, "epochs": 0, "status": "done"}
        for seed, one in of_seed.items():
            values = {"tv": total_variation(one), "centre_to_rim": centre_to_rim(one)}
            if condition != PATHS:
                values["with_paths"] = correlation(one, paths)
            if condition in CONDITIONS:
                values["with_photographs"] = correlation(one, maps[name, PLAIN][seed])
            row = same | {"model": condition, "seed": seed}
            rows += [row | {"metric": m, "value": finite(v)} for m, v in values.items()]
        groups = torch.stack([*of_seed.values()]).split(GROUP) if condition == PLAIN else ()
        for place, group in enumerate(groups):
            row = same | {"metric": "path_correlation", "seed": place, "n": len(group)}
            rows.append(row | {"value": finite(correlation(group.mean(0), paths))})
    drawn = {f"{DATA}|{'|'.join(key)}": _mean(of_seed) for key, of_seed in maps.items()}
    return rows, drawn


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over initialisations, by network and condition."""
    rows = tables.select(rows, data=DATA, metric=[*TITLES], status="done").dropna(subset="model")
    return tables.means(quote.best(rows), ["network", "model"], names=TITLES, digits=".3g")


def finite(value: Tensor) -> float:
    """Return a number, or NaN where it is infinite, as over a rim without gradients."""
    number = float(value)
    return number if math.isfinite(number) else math.nan


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of two maps over their positions."""
    return torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]


def _mean(maps: Mapping[int, Tensor]) -> np.ndarray[Any, Any]:
    return torch.stack([*maps.values()]).mean(0).half().numpy()
