"""Landscapes of networks before training, and the equations that the record checks."""

import copy
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.landscape import scaled_norm
from suite.errors import UsageError
from suite.papers import initial_landscapes, pilcro_equations, pilcro_measures
from suite.papers.measure import measure
from suite.papers.names import NAMES
from suite.papers.path_counts import path_counts
from suite.runs.compute import check
from suite.runs.execute import Job, keys_of, load_model, run_job
from suite.store import Store
from suite.units import Measurement, Training

OPTIONS = {"blocks": [1, 1], "width": 4, "stem": "strided"}
FIELDS = {"data": "digits-centred", "network": "resnet", "network_options": OPTIONS}
START = Training(**FIELDS, epochs=0, learning_rate=1.0, seed=3)
NAME, EQUATIONS = initial_landscapes.START, NAMES["pilcro"]["equations"]


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


IMPORTANCE, LINES = pilcro_equations._importance, torch.arange(1, 5).view(4, 1)
BATCH_NORM, UNFOLD, CONV = F.batch_norm, torch.Tensor.unfold, nn.Conv1d
BROKEN = {  # a wrong part of each formula, and the checks that then disagree
    "_routes partial": (lambda f, h, **of: lambda w: f(h.flip(-1), w, **of), "route order"),
    "_routes _paths": (
        lambda n, *_, **__: torch.arange(2.0 * n + 1),
        "commands skip added_inside multinomial normal depth",
    ),
    "_routes _Residual": (CONV, "skip added_inside"),
    "_routes _orders": (lambda n, end: n + end, "multinomial"),
    "_routes _density": (lambda n: torch.ones(2 * n + 1) / (2 * n + 1), "normal depth"),
    "_signs torch.Tensor.unfold": (
        lambda h, *of: UNFOLD(h.flip(-1), *of),
        "linear_path_sum linear_signs ReLU_signs",
    ),
    "_signs torch.relu": (torch.tanh, "ReLU_signs"),
    "_relu torch.Tensor.relu": (lambda x: x.where(x > 0, x / 2), "derivative half relu_mended"),
    "_batch_norm jacobian": (lambda f, x: 2 * torch.eye(len(x)), "norm_mended rest_mended others"),
    "_penalties reglib.landscape.scaled_norm": (lambda v: v.norm(dim=0), "one"),
    "_modes torch.nn.functional.batch_norm": (
        lambda *of, training: BATCH_NORM(*of, training=True),
        "evaluation",
    ),
    "_lemma_1 torch.Tensor.sign": (torch.Tensor.abs, "kink_mended"),
    "_lemma_1 _importance": (lambda *of: LINES * IMPORTANCE(*of), "resampling linear middle"),
    "_lemma_1 correlation": (lambda *of: torch.tensor(0.9), "correlation"),
    "_lemma_2 path_counts": (lambda _, shape: torch.ones(shape), "1_layers 2_layers 3_layers"),
}


def agreeing_keys(part):
    table = pilcro_equations.table(getattr(pilcro_equations, part))
    compared = {*table[table["agrees"] == "yes"]["compared"]}
    return {key.replace(" ", "_") for key, row in EQUATIONS.items() if row[1] in compared}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_equation_disagrees(broken, monkeypatch):
    (part, name), (wrong, keys) = broken.split(), BROKEN[broken]
    before = agreeing_keys(part)
    monkeypatch.setattr(name if "." in name else f"{pilcro_equations.__name__}.{name}", wrong)
    assert before - agreeing_keys(part) == {*keys.split()}


def test_equations_disagree_as_recorded():
    table, wrong = pilcro_equations.table(), "added,added to one,ReLU path sum,ReLU inputs,kink,"
    assert table["compared"].tolist() == [compared for _, compared, _ in EQUATIONS.values()]
    wrong += "slope apart,tangent,size,relu,norm,rest,most paths,shares,one printed,kernel,"
    wrong = (wrong + "interval squared,training,scaled").split(",")
    assert table[table["agrees"] == "no"]["compared"].tolist() == [EQUATIONS[k][1] for k in wrong]
