"""The paper's propositions and lemmas, by Monte Carlo and in closed form."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from suite.networks import BasicBlock
from suite.papers.initialisation import (
    convolutions,
    gradient_importance,
    rectified_variance,
    resampling_importance,
    small_resnet,
    squared_gradients_and_paths,
    squared_gradients_at_initialisation,
)
from suite.papers.path_counts import path_counts


def batch_norm_importance(counts, *, fan_ins, n_values, input_variance, gamma=1.0):
    """Predict squared derivatives through normalised convolutions: lemma 2, with the fan-in K.

    gamma² / V[x] times the path counts times the product of (N - 1) / (N K) over the layers.
    """
    factors = [(n - 1) / (n * k) for n, k in zip(n_values, fan_ins, strict=True)]
    return counts * (math.prod(factors) * gamma**2 / input_variance)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(module, std=0.3):
    """Draw all weights from a normal distribution; biases too, which must not matter."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.double()


class ResidualSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 3, 1, stride=2)

    def forward(self, x):
        return self.second(x + self.first(x))


STACKS = {
    "convolutions": lambda: normal(nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 4, 3))),
    "strided and dilated": lambda: normal(
        nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.Conv1d(3, 2, 2, dilation=2))
    ),
    "residual": lambda: normal(ResidualSum()),
    "pooled": lambda: normal(
        nn.Sequential(nn.Conv1d(2, 3, 3), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(12, 5))
    ),
}


def deviations(estimate, expected):
    return (estimate.mean - expected).abs() / estimate.standard_error


@pytest.mark.parametrize("build", STACKS.values(), ids=STACKS)
def test_proposition_1_the_squared_gradient_follows_the_paths(build):
    x = randn(1, 2, 10)
    estimate = squared_gradients_at_initialisation(build, x, n_draws=1500, seed=1)
    model = build()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.3)  # the mean square is the variance 0.09
    expected = path_counts(model, (2, 10), squared=True) / model(x)[0].numel()
    seen = expected > 0
    assert torch.equal(estimate.mean > 0, seen)
    assert float(deviations(estimate, expected)[seen].max()) < 4
    assert float((estimate.standard_error / estimate.mean)[seen].max()) < 0.12


def test_every_relu_halves_the_squared_gradient():
    def build():
        return normal(nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 4, 3)))

    x = randn(1, 2, 10)
    estimate = squared_gradients_at_initialisation(build, x, n_draws=2000, seed=2)
    model = build()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.3)
    expected = path_counts(model, (2, 10), squared=True) / model(x)[0].numel()
    assert float(deviations(estimate, expected).max()) < 4
    assert float(deviations(estimate, 2 * expected).min()) > 4


def test_a_strided_residual_block_with_batch_normalisation_follows_the_paths():
    def build():
        block = BasicBlock(2, 3, 2).double().eval()
        for module in block.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.3)
        return block

    x = randn(4, 2, 6, 6)
    estimate = squared_gradients_at_initialisation(build, x, n_draws=600, seed=3)
    model = build()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 0.3)
    expected = path_counts(model, (2, 6, 6), squared=True) / 27
    torch.testing.assert_close(estimate.mean, expected, rtol=0.25, atol=0)
    assert float(torch.corrcoef(torch.stack([estimate.mean, expected]).flatten(1))[0, 1]) > 0.98


def test_draws_come_from_the_seed_alone_and_need_two():
    x, build, state = randn(1, 2, 10), STACKS["convolutions"], torch.get_rng_state()
    first, again, other = (
        squared_gradients_at_initialisation(build, x, n_draws=3, seed=s) for s in (1, 1, 2)
    )
    assert torch.equal(first.mean, again.mean)
    assert not torch.equal(first.mean, other.mean)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="n_draws: expected at least two, got 1"):
        squared_gradients_at_initialisation(build, x, n_draws=1, seed=1)


def test_copies_side_by_side_are_as_many_independent_draws():
    x = randn(2, 1, 9)
    estimate = squared_gradients_at_initialisation(
        lambda: convolutions(False, copies=20), x, n_draws=400, seed=1, copies=20
    )
    ones = convolutions(False, nn.init.ones_)
    expected = path_counts(ones, (1, 9), squared=True) / ones(x)[0].numel()
    assert estimate.mean.shape == (1, 9)
    assert float(deviations(estimate, expected).max()) < 4
    assert float((estimate.standard_error / estimate.mean).max()) < 0.2
    with pytest.raises(ValueError, match="a multiple of 20 copies, got 30"):
        squared_gradients_at_initialisation(lambda: None, x, n_draws=30, seed=1, copies=20)


class TestLemma1:
    def test_is_exact_for_a_linear_function(self):
        weight, images = randn(2, 3), randn(20, 2, 3, seed=1)

        def function(x):
            return (x * weight).sum((1, 2)) + 1

        expected = images.var(0, correction=0) * weight.square()
        torch.testing.assert_close(resampling_importance(function, images), expected)
        torch.testing.assert_close(gradient_importance(function, images), expected)

    def test_of_a_curved_function_the_two_differ(self):
        """For f = x^2 on {-1, 1} resampling changes nothing, the gradient is large."""
        images = torch.tensor([[-1.0], [1.0]]).double()

        def function(x):
            return x[:, 0].square()

        assert float(resampling_importance(function, images)) == 0
        assert float(gradient_importance(function, images)) == 4


def test_rectified_variance_is_that_of_samples():
    values = 1.5 * randn(400_000)
    assert float(values.relu().var()) == pytest.approx(rectified_variance(2.25), rel=0.01)
    half_normal = 1 - 2 / math.pi  # variance of the truncated normal distribution
    printed = half_normal / 2 - (math.sqrt(2 / math.pi) / 2) ** 2
    assert rectified_variance(1.0) / printed == pytest.approx(15.1, rel=0.01)


def normalised(channels, std=1.0, gamma=1.5):
    """Build convolutions of width 3, each with batch normalisation."""
    layers = []
    for inputs, outputs in itertools.pairwise(channels):
        norm = nn.BatchNorm1d(outputs, eps=1e-12).double()
        nn.init.constant_(norm.weight, gamma)
        layers += [normal(nn.Conv1d(inputs, outputs, 3), std), norm]
    return nn.Sequential(*layers)


class TestLemma2:
    @pytest.mark.parametrize("std", [0.01, 3.0])
    def test_batch_normalisation_cancels_the_variance_of_weights(self, std):
        x = 2 * randn(60, 2, 10, seed=4)
        estimate = squared_gradients_at_initialisation(
            lambda: normalised([2, 6], std), x, n_draws=400, seed=5
        )
        counts = path_counts(normalised([2, 6]), (2, 10)) / (6 * 8)
        expected = batch_norm_importance(
            counts, fan_ins=[6], n_values=[60 * 8], input_variance=float(x.var()), gamma=1.5
        )
        relative = (estimate.mean - expected).abs() / expected
        assert float((relative - 3.5 * estimate.standard_error / expected).max()) < 0.05
        assert float(relative.max()) < 0.2

    def test_scales_of_all_layers_but_the_last_cancel(self):
        x, channels = 2 * randn(60, 8, 12, seed=4), [8, 8, 8, 8]
        estimate = squared_gradients_at_initialisation(
            lambda: normalised(channels), x, n_draws=200, seed=5
        )
        counts = path_counts(normalised(channels), (8, 12)) / (8 * 6)
        options = {"n_values": [600, 480, 360], "input_variance": float(x.var()), "gamma": 1.5}
        expected = batch_norm_importance(counts, fan_ins=[24] * 3, **options)
        assert float(estimate.mean.mean() / expected.mean()) == pytest.approx(1, abs=0.06)
        assert float((estimate.mean / expected).mean(0)[4:8].mean()) == pytest.approx(1, abs=0.08)

    def test_the_fan_in_is_the_largest_number_of_paths_to_an_input_for_equal_channels(self):
        for channels, factor in (([4, 4], 1), ([2, 6], 3)):
            counts = path_counts(normalised(channels), (channels[0], 10))
            assert float(counts.max()) == factor * 3 * channels[0]

    def test_is_not_a_product_of_shares_at_one_position(self):
        """Two channels, so that a share of all paths is 1 / K of their number."""
        counts = path_counts(normalised([2, 2, 2, 2]), (2, 12)) / 6**3
        assert counts[0, :2].tolist() == pytest.approx([1 / 27, 4 / 27])
        shares = path_counts(normalised([2, 2]), (2, 12)) / 6
        assert (shares**3)[0, :2].tolist() == pytest.approx([1 / 27, 8 / 27])


def test_squares_of_a_normalisation_sum_to_one_less_two_values():
    """Equation 18: of order 1 / N^2 off the diagonal, 1 - 4 / N on it, 1 - 2 / N over all."""
    n, norm = 200, nn.BatchNorm1d(1, eps=1e-30).double()
    nn.init.constant_(norm.weight, 1.5)
    a = 1 + 3 * randn(n, 1)
    jacobian = torch.autograd.functional.jacobian(norm, a)[:, 0, :, 0]
    z, sigma = a - a.mean(), a.std(correction=0)
    expected = torch.eye(n).double() - 1 / n - z @ z.T / (n * sigma**2)
    torch.testing.assert_close(jacobian, 1.5 / sigma * expected, atol=1e-14, rtol=0)
    squares = expected.square()
    assert float(squares.sum()) == pytest.approx(n - 2, rel=1e-12)
    assert float(n - squares.trace()) == pytest.approx(4, abs=0.1)


def test_in_evaluation_mode_only_the_mixed_second_derivative_is_left():
    network, x = small_resnet(0), randn(2, 1, 32, 32).requires_grad_()
    norms = []
    for training in (False, True):
        logits = network.train(training)(x)[:, 0].sum()
        (slope,) = torch.autograd.grad(logits, x, create_graph=True)
        by = [x, next(network.parameters())]
        norms.append([float(g.norm()) for g in torch.autograd.grad(slope.square().sum(), by)])
    (by_image, by_weights), (in_training, _) = norms
    assert by_image == 0 < by_weights
    assert in_training > 0


class TestSquaredGradientsAndPaths:
    def test_correlations_are_those_of_the_arrays(self):
        rows, arrays = squared_gradients_and_paths(12, 2)
        assert rows[["network", "seed"]].values.tolist() == [
            [kind, seed]
            for kind in ("convolutions", "convolutions with ReLU", "resnet")
            for seed in (0, 1)
        ]
        assert set(rows["n"]) == {12}
        for kind, seed, value in rows[["network", "seed", "value"]].values.tolist():
            mean, paths = (arrays[f"initialisation|{kind}|{part}"] for part in ("mean", "paths"))
            both = np.stack([mean[seed].ravel(), paths.ravel()])
            assert value == pytest.approx(np.corrcoef(both)[0, 1], rel=1e-12)

    def test_an_estimate_is_that_of_its_seed_and_of_fewer_residual_networks(self):
        _, arrays = squared_gradients_and_paths(12, 2)
        generator = torch.Generator().manual_seed(0)
        for shape in ((2, 1, 15), (2, 1, 15), (2, 1, 32, 32)):
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
        again = squared_gradients_at_initialisation(small_resnet, x, n_draws=2, seed=1)
        for part, values in zip(("mean", "error"), again):
            assert arrays[f"initialisation|resnet|{part}"][1].tolist() == values.tolist()

    def test_the_prediction_of_convolutions_has_a_plateau(self):
        """In the middle no path is cut off, so each layer keeps the mean square: 1 / Z in sum."""
        _, arrays = squared_gradients_and_paths(12, 1)
        paths = arrays["initialisation|convolutions|paths"][0]
        assert paths[5:10] == pytest.approx(paths[7], rel=1e-12)
        assert paths[7] == pytest.approx(1 / 15, rel=1e-6)
        with_relu = arrays["initialisation|convolutions with ReLU|paths"][0]
        assert with_relu == pytest.approx(paths / 2**5, rel=1e-12)
