import copy
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from reglib.landscape import scaled_norm
from suite.errors import UsageError
from suite.papers import initial_landscapes, pilcro_measures
from suite.papers.measure import measure
from suite.papers.path_counts import path_counts
from suite.runs.compute import check
from suite.runs.execute import Job, keys_of, load_model, run_job
from suite.store import Store
from suite.units import Measurement, Training

OPTIONS = {"blocks": [1, 1], "width": 4, "stem": "strided"}
FIELDS = {"data": "digits-centred", "network": "resnet", "network_options": OPTIONS}
START = Training(**FIELDS, epochs=0, learning_rate=1.0, seed=3)
NAME = initial_landscapes.START


@functools.cache
def subject():
    return load_model(START, {}, torch.device("cpu"))


def compute(metric, **settings):
    return measure(subject(), Measurement(training=START, metric=metric, settings=settings))


def test_untrained_network_is_not_stored(tmp_path):
    unit = Measurement(training=START, metric="importance_landscape", settings={"n_images": 8})
    assert run_job(Job([unit], str(tmp_path), "cpu")).errors == []
    (key,), store = keys_of([unit]), Store(tmp_path)
    expected = compute("importance_landscape", n_images=8).tensors["landscape"]
    assert torch.equal(store.read_tensors(key)["landscape"], expected)
    assert store.read(keys_of([START])[0]) is None
    with pytest.raises(UsageError, match="epochs=0 trains nothing"):
        check([START])
    with pytest.raises(UsageError, match="unknown key of untrained 'net' 'epochs'"):
        [*initial_landscapes.items({}, SimpleNamespace(untrained={"net": {"epochs": 3}}))]


def test_black_margin_has_no_gradient():
    before, rims = {k: v.clone() for k, v in subject().network.state_dict().items()}, {}
    for condition in initial_landscapes.CONDITIONS:
        result = compute("landscape_under", condition=condition, n_images=16, n_draws=1)
        rims[condition] = float(result.tensors["landscape"][:4].max())
    assert rims.pop("black margin") == 0 < 0.01 < min(rims.values())
    assert all(torch.equal(before[k], v) for k, v in subject().network.state_dict().items())


def test_paths_are_scaled_by_image_statistics():
    network, images = copy.deepcopy(subject().network), subject().data.train.images[:16]
    pilcro_measures._take_statistics(network, subject().as_inputs(images))
    for layers in (m for m in network.modules() if isinstance(m, nn.Sequential)):
        for conv, norm in itertools.pairwise(layers):
            if isinstance(norm, nn.BatchNorm2d):
                conv.weight.data *= (norm.weight / (norm.running_var + norm.eps).sqrt())[
                    :, None, None, None
                ]
    expected = scaled_norm(path_counts(network, subject().data.shape, squared=True)).float()
    result = compute("landscape_under", condition="its paths, scaled", n_images=16)
    torch.testing.assert_close(result.tensors["landscape"], expected, rtol=1e-4, atol=1e-5)


def test_maps_are_compared_by_correlation():
    paths, noise = np.random.default_rng(0).random((2, 16, 16))
    arrays = {f"{NAME}|net|photographs|{n}": paths + n * (-1) ** n * noise for n in range(6)}
    arrays |= {f"{NAME}|net|its paths|0": paths, f"{NAME}|net|white noise|1": noise, "other": paths}
    for condition, array in {"statistics of images": paths, "its paths, scaled": noise}.items():
        arrays[f"{NAME}|net|{condition}|1"] = array
    rows, _ = initial_landscapes.compare_maps(arrays)
    value = {(r["metric"], r.get("model"), r["seed"]): r["value"] for r in rows}
    mean = paths + noise * 2 / 5  # of 0, -1, 2, -3 and 4 times the noise
    for name, first, second in (
        (("with_photographs", "white noise", 1), paths - noise, noise),
        (("with_statistics", "its paths, scaled", 1), paths, noise),
        (("path_correlation", None, 0), mean, paths),
    ):
        assert value[name] == pytest.approx(np.corrcoef(first.ravel(), second.ravel())[0, 1])
    assert list(arrays) == ["other"]
