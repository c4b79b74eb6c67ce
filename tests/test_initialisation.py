"""The paper's proposition on initialisation, by Monte Carlo."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from suite.papers import initial_landscapes as paper
from suite.papers.path_counts import path_counts
from tests.double_backward import Net, randn
from tests.small_batches import generator


def normal(module):
    """Draw all weights, and biases, which must not matter, from a normal distribution."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.double()


RESIDUAL = {"first": nn.Conv1d(2, 2, 3, padding=1), "second": nn.Conv1d(2, 3, 1, stride=2)}
STACKS = {
    "convolutions": (nn.Conv1d(2, 3, 3), nn.Conv1d(3, 4, 3)),
    "strided and dilated": (nn.Conv1d(2, 3, 3, 2, padding=1), nn.Conv1d(3, 2, 2, dilation=2)),
    "residual": (Net(lambda net, x: net.second(x + net.first(x)), **RESIDUAL),),
    "rectified": (nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 3)),
    "pooled": (nn.Conv1d(2, 3, 3), nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(12, 5)),
}


def build(name):
    return normal(nn.Sequential(*copy.deepcopy(STACKS[name])))


def constant(model):
    """Set all weights to 0.3: its square is the variance of `normal`."""
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.3)
    return model


def deviations(draws, expected):
    return (draws.mean(0) - expected).abs() / (draws.std(0) / len(draws) ** 0.5)


@pytest.mark.parametrize("name", STACKS)
def test_proposition_1_on_squared_gradients(name):
    x, make = randn(1, 2, 10), partial(build, name)
    draws = paper.squared_gradients(make, x, n_draws=1500, seed=1)
    model = constant(make())
    expected = path_counts(model, (2, 10), squared=True) / model(x)[0].numel()
    seen = expected > 0
    assert torch.equal(draws.mean(0) > 0, seen)
    assert float(deviations(draws, expected)[seen].max()) < 4
    assert float(deviations(draws, 2 * expected)[seen].min()) > 4


def test_draws_depend_on_seed_only():
    state, make = torch.get_rng_state(), partial(build, "convolutions")
    draw = partial(paper.squared_gradients, make, randn(1, 2, 10))
    first, same, other = (draw(n_draws=3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluation_mode_has_no_image_curvature():
    network, x = paper.small_resnet(0), randn(2, 1, 32, 32).requires_grad_()
    norms = []
    for training in (False, True):
        logits = network.train(training)(x)[:, 0].sum()
        (slope,) = torch.autograd.grad(logits, x, create_graph=True)
        by = [x, next(network.parameters())]
        norms.append([float(g.norm()) for g in torch.autograd.grad(slope.square().sum(), by)])
    (by_image, by_weights), (in_training, _) = norms
    assert by_image == 0 < by_weights
    assert in_training > 0


def test_correlations_and_arrays():
    rows, arrays = paper.squared_gradients_and_paths(12, 2)
    networks = "convolutions", "convolutions with ReLU", "resnet"
    assert rows["network"].tolist() == [network for network in networks for _ in range(2)]
    assert set(rows["n"]) == {12}
    for network, seed, value in rows[["network", "seed", "value"]].values.tolist():
        mean, paths = (arrays[f"initialisation|{network}|{name}"] for name in ("mean", "paths"))
        correlation = np.corrcoef(mean[seed].ravel(), paths.ravel())[0, 1]
        assert value == pytest.approx(correlation, rel=1e-12)
    source = generator()
    for shape in ((2, 1, 15), (2, 1, 15), (2, 1, 32, 32)):
        x = torch.randn(shape, generator=source, dtype=torch.float64)
    expected = paper.squared_gradients(paper.small_resnet, x, n_draws=2, seed=1).mean(0)
    assert arrays["initialisation|resnet|mean"][1].tolist() == expected.tolist()
    # In the middle no path is cut off, so each layer keeps the mean square, in sum 1 / Z.
    paths = arrays["initialisation|convolutions|paths"][0]
    assert paths[5:10] == pytest.approx(1 / 15, rel=1e-6)
    with_relu = arrays["initialisation|convolutions with ReLU|paths"][0]
    assert with_relu == pytest.approx(paths / 2**5, rel=1e-12)
