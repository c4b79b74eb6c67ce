import math

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from torch import nn

import reglib
from reglib import curvature_penalty, data_smoothness, target_penalty, total_variation
from reglib.double_backward import evaluation_mode
from reglib.landscape import expected_importance_landscape, laplacian, sample_classes, scaled_norm
from tests.double_backward import randn
from tests.small_batches import generator, left_alone

SHAPE, CLASSES = (2, 6, 7), 3
OF_BATCH = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten())


def close(a, b, rtol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


def linear_network(weight, bias=(0.0,) * CLASSES):
    """Make a network with logits <weight[y], x> + bias[y]; weight is (classes, C, H, W)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight[0].numel(), len(weight))).double()
    with torch.no_grad():
        model[1].weight.copy_(weight.flatten(1))
        model[1].bias.copy_(torch.as_tensor(bias))
    return model.eval()


def sampled(model, images, seed=0, **options):
    return reglib.importance_landscape(model, images, generator=generator(seed), **options)


def by_numpy(squares):
    """Compute equation 6 from squared gradients (C, H, W)."""
    values = squares.numpy()
    norms = np.sqrt((values**2).sum(0))
    return torch.from_numpy(np.sqrt(norms.size) * norms / np.sqrt((values**2).sum()))


class TestLandscape:
    def test_of_a_linear_network(self):
        weight = randn(CLASSES, *SHAPE)
        certain = linear_network(weight, [0.0, 900.0, 0.0])
        images, expected = randn(5, *SHAPE, seed=1), by_numpy(weight[1].square())
        close(sampled(certain, images), expected)
        close(expected_importance_landscape(certain, [images]), expected)

    def test_expectation_weighs_classes_by_probability(self):
        weight, bias = randn(CLASSES, *SHAPE), torch.tensor([0.3, -0.2, 1.0]).double()
        images = 0.1 * randn(4, *SHAPE, seed=1)
        probs = (images.flatten(1) @ weight.flatten(1).T + bias).softmax(1)
        squares = torch.einsum("my,ychw->chw", probs, weight.square()) / 4
        for batches in ([images], images.split(3)):
            landscape = expected_importance_landscape(linear_network(weight, bias), batches)
            close(landscape, by_numpy(squares))

    def test_samples_have_the_expectation(self):
        model = linear_network(randn(CLASSES, *SHAPE), [0.3, -0.2, 1.0])
        images = (0.1 * randn(1, *SHAPE, seed=1)).expand(5_000, *SHAPE)
        expected = expected_importance_landscape(model, [images[:1]])
        assert float((sampled(model, images) - expected).abs().max()) < 0.03
        assert float((sampled(model, images[:3]) - expected).abs().max()) > 0.03

    def test_draws_from_the_generator_alone(self):
        model, images = linear_network(randn(CLASSES, *SHAPE)), 0.1 * randn(6, *SHAPE)
        with left_alone(model, images):
            first, again, other = (sampled(model, images, seed) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_has_a_graph_only_when_asked(self):
        model, images = linear_network(randn(CLASSES, *SHAPE)), randn(2, *SHAPE)
        assert not sampled(model, images).requires_grad
        with torch.no_grad(), left_alone(model, images):
            assert sampled(model, images, create_graph=True).requires_grad

    @pytest.mark.parametrize("scale", [1e-25, 1e25])
    def test_does_not_depend_on_weight_scale(self, scale):
        weight = randn(CLASSES, *SHAPE)
        models = [linear_network(w, [900.0, 0, 0]).float() for w in (weight, scale * weight)]
        expected, scaled = (sampled(model, torch.zeros(2, *SHAPE)) for model in models)
        assert torch.equal(expected > 0, torch.ones_like(expected) > 0)
        close(scaled, expected, 1e-5)

    def test_of_constant_networks_is_zero(self):
        model = linear_network(torch.zeros(CLASSES, *SHAPE))
        landscape = sampled(model, randn(2, *SHAPE), create_graph=True)
        assert torch.equal(landscape, torch.zeros(SHAPE[1:], dtype=torch.float64))
        curvature_penalty(landscape).backward()
        assert not model[1].weight.grad.any()

    def test_derivatives_by_the_weights(self):
        first, second = randn(4, 2, 3, 3, seed=3), randn(CLASSES, 4 * 4 * 5, seed=4) / 4
        images, target = randn(2, *SHAPE), 1 + 0.1 * randn(*SHAPE[1:], seed=5)

        def penalties(first, second):
            def network(x):
                return F.softplus(F.conv2d(x, first)).flatten(1) @ second.T

            landscape = sampled(network, images, create_graph=True)
            return curvature_penalty(landscape), target_penalty(landscape, target)

        weights = (first.requires_grad_(), second.requires_grad_())
        assert torch.autograd.gradcheck(penalties, weights, fast_mode=True)
        assert torch.autograd.gradgradcheck(penalties, weights, fast_mode=True)

    @pytest.mark.parametrize(
        "landscape_of", [sampled, lambda m, images: expected_importance_landscape(m, [images])]
    )
    @pytest.mark.parametrize(
        ("model", "images", "message"),
        [
            (nn.Conv2d(2, 3, 3), randn(2, *SHAPE), r"\(2, classes\), got \(2, 3, 4, 5\)"),
            (nn.Flatten(0, 2), randn(2, *SHAPE), r"\(2, classes\), got \(24, 7\)"),
            (nn.Flatten(), randn(*SHAPE), r"images: expected shape \(B, C, H, W\), got \(2, 6, 7"),
            (nn.Flatten(), torch.zeros(1, *SHAPE, dtype=torch.uint8), "floating-point values"),
            (OF_BATCH, randn(2, *SHAPE), "do not influence one another, but BatchNorm2d '0'"),
        ],
    )
    def test_refuses_unsuitable_arguments(self, landscape_of, model, images, message):
        with pytest.raises(ValueError, match=message):
            landscape_of(model.double().eval(), images)

    def test_refuses_training_mode_but_for_views(self):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten()).double()
        images = randn(2, *SHAPE)
        with pytest.raises(ValueError, match="expected a network in evaluation mode"):
            sampled(model, images)
        view = sampled(evaluation_mode(model), images)
        assert model.training
        close(view, sampled(model.eval(), images))


class TestSampledClasses:
    def test_certain_and_broken_logits(self):
        logits = torch.tensor([[0.0, 900.0], [900.0, 0.0], [math.nan, 0.0], [math.inf, 0.0]])
        classes = sample_classes(logits, generator())
        assert classes[:2].tolist() == [1, 0]
        assert ((classes >= 0) & (classes < 2)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scaled_norm_neither_overflows_nor_vanishes(scale):
    values = randn(1, *SHAPE).float()
    close(scaled_norm(scale * values), scaled_norm(values), 1e-5)


class TestLaplacian:
    @pytest.mark.parametrize("width", [3, 5])
    def test_agrees_with_scipy(self, width):
        kernel = np.ones((width, width))
        kernel[width // 2, width // 2] = 1 - width**2
        kernel /= np.abs(kernel).sum()
        maps = randn(2, *SHAPE)
        expected = scipy.ndimage.convolve(maps, kernel[None, None], mode="nearest")
        close(laplacian(maps, kernel_width=width), torch.from_numpy(expected))

    @pytest.mark.parametrize("width", [2, 1, 0, -3, 4, 3.0, "3", None])
    def test_refuses_even_widths(self, width):
        with pytest.raises(ValueError, match=rf"kernel_width: expected an odd number.*{width!r}"):
            laplacian(torch.zeros(6, 6), kernel_width=width)


@pytest.mark.parametrize("width", [3, 5])
def test_curvature_is_variance_of_laplacian(width):
    landscapes = randn(4, 6, 7)
    variances = laplacian(landscapes, kernel_width=width).numpy().var((1, 2))
    close(curvature_penalty(landscapes, kernel_width=width), torch.from_numpy(variances))
    assert float(curvature_penalty(torch.ones(6, 7), kernel_width=width)) == 0
    close(curvature_penalty(landscapes), laplacian(landscapes).square().mean((1, 2)))  # the energy


def test_target_penalty_is_mean_squared_difference():
    target, shift = 1 + randn(6, 7), torch.zeros(2, 6, 7).double()
    shift[1, 2, 3], shift[1, 0, 0] = 2.0, -1.0
    close(target_penalty(target + shift, target), torch.tensor([0.0, 5.0]).double() / 42)


class TestDataSmoothness:
    def test_is_the_mean_over_images(self):
        images = randn(7, *SHAPE)
        expected = torch.stack([by_numpy(laplacian(x, kernel_width=5)) for x in images]).mean(0)
        for size in (1, 3, 7):
            close(data_smoothness(images.split(size), kernel_width=5), expected)
        assert float(expected.square().mean()) < 1
        close(data_smoothness([images[:1]]), by_numpy(laplacian(images[0])))

    def test_ignores_brightness_and_contrast(self):
        images = torch.randint(0, 256, (3, *SHAPE), generator=generator(), dtype=torch.uint8)
        expected = data_smoothness([images])
        assert expected.dtype == torch.float64
        close(data_smoothness([images.double() / 127.5 - 1]), expected)

    def test_leaves_out_images_of_one_colour(self):
        images, grey = randn(2, *SHAPE), torch.full((1, *SHAPE), 0.7, dtype=torch.float64)
        close(data_smoothness([torch.cat([grey, images]), grey]), data_smoothness([images]))


def test_total_variation_of_simple_landscapes():
    ramp, across, down = 0.5 * torch.arange(7.0).expand(6, 7), 6 * 6, 5 * 7
    expected = [0.0, 0.25 * across / (across + down), 4.0]
    checkers = 2.0 * ((torch.arange(6)[:, None] + torch.arange(7)) % 2)
    values = total_variation(torch.stack([torch.ones(6, 7), ramp, checkers]))
    torch.testing.assert_close(values, torch.tensor(expected))


ONES, GREY, FLAT = torch.ones(6, 7), torch.full((1, *SHAPE), 0.7).double(), nn.Flatten().eval()
SIZES = [randn(1, *SHAPE), randn(1, 2, 6, 6)]
AT_LEAST = r"at least 5 x 5 positions, .* got 4 x 6"
REFUSED = [
    (lambda: curvature_penalty(ONES[:4, 1:], kernel_width=5), AT_LEAST),
    (lambda: target_penalty(ONES, ONES.T), r"size of the landscape, \(6, 7\), got \(7, 6\)"),
    (lambda: target_penalty(ONES, 0 * ONES), "got zeros everywhere"),
    (lambda: data_smoothness([GREY * math.nan]), "infinity or NaN for image 0"),
    (lambda: expected_importance_landscape(FLAT, []), "at least one batch of images"),
    (lambda: data_smoothness([]), "expected an image that has an edge, got none"),
    (lambda: data_smoothness([GREY]), "expected an image that has an edge, got none"),
    (lambda: data_smoothness(SIZES), r"of one size, got \(6, 7\) and \(6, 6\) pixels"),
    (lambda: total_variation(ONES[:1, :1]), r"two positions or more, got \(1, 1\)"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_unsuitable_landscapes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
