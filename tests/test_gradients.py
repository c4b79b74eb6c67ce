"""The three implementations of the marginal density penalty, and the logit gradient penalty."""

import math

import pytest
import torch

from reglib.regularizers import logit_gradient_penalty, marginal_density_penalty
from tests.double_backward import randn
from tests.small_batches import generator
from tests.test_regularizers import BATCH, LABELS, SETTINGS, images, network_of, parameter_gradients

IMPLEMENTATIONS = ["naive", "stable", "efficient"]
ORDERS = [1.0, 1.2, 2.0, 2.8, math.inf]
UNCOUPLED = [name for name, setting in SETTINGS.items() if not setting[2]]
COUPLED = "batch normalisation in training mode"


def linear():
    """Return the weight W of logits W x + c, the images, and the logits."""
    weight, bias, x = randn(4, 6, seed=11), randn(4, seed=12), randn(3, 6, seed=13).requires_grad_()
    return weight, x, x @ weight.T + bias


def density(model, seed=0, dtype=torch.float64, **settings):
    x = images(dtype).requires_grad_()
    return marginal_density_penalty(model(x), x, generator=generator(seed), **settings)


def norms(values, p):
    values = values.flatten(1).abs()
    return values.amax(1) if p == math.inf else values.pow(p).sum(1).pow(1 / p)


def assert_same_gradients(model, values, expected, tolerance):
    gradients, references = (parameter_gradients(v, model) for v in (values, expected))
    for gradient, reference in zip(gradients, references):
        assert float((gradient - reference).norm()) <= tolerance * float(reference.norm())


def gradient_norm(model, **options):
    x = images().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, **options)
    return gradient.flatten(1).norm(dim=1)


each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


class TestMarginalDensity:
    @pytest.mark.parametrize("p", ORDERS)
    @each_implementation
    def test_of_a_linear_softmax_network(self, implementation, p):
        """The gradient of the log density is W^T p(x)."""
        weight, x, logits = linear()
        settings = {"generator": generator(), "implementation": implementation, "p": p}
        values = marginal_density_penalty(logits, x, **settings)
        expected = norms(logits.detach().softmax(1) @ weight, p)
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=0)

    @pytest.mark.parametrize("setting", UNCOUPLED)
    @each_implementation
    def test_is_the_gradient_of_logsumexp(self, implementation, setting):
        model = network_of(SETTINGS[setting])
        expected = gradient_norm(model, create_graph=True)
        for seed in (1, 2):  # the random classes do not matter
            values = density(model, seed, implementation=implementation)
            torch.testing.assert_close(values, expected, rtol=1e-10, atol=0)
        assert_same_gradients(model, values, expected, 1e-10)

    def test_classes_come_from_the_generator(self, monkeypatch):
        draws, randint = [], torch.randint

        def record(*arguments, **options):
            draws.append(randint(*arguments, **options))
            return draws[-1]

        monkeypatch.setattr(torch, "randint", record)
        model = network_of(SETTINGS[UNCOUPLED[0]])
        for seed in (3, 3, 4, 5, 6, 7):
            density(model, seed)
        assert torch.equal(draws[0], draws[1])
        assert all(classes.shape == (BATCH, 1) for classes in draws)
        assert {int(c) for classes in draws for c in classes} == {0, 1, 2, 3}

    def test_naive_differs_under_batch_statistics(self):
        model = network_of(SETTINGS[COUPLED])
        naive, stable, efficient = (density(model, implementation=i) for i in IMPLEMENTATIONS)
        torch.testing.assert_close(stable, efficient, rtol=1e-10, atol=0)
        torch.testing.assert_close(efficient, gradient_norm(model), rtol=1e-10, atol=0)
        assert ((naive - efficient).abs() > 1e-3 * efficient).all()

    @pytest.mark.parametrize("shift", [75.0, 90.0, 1e4, -75.0, -110.0])
    def test_exponentials_out_of_range(self, shift):
        model = network_of(SETTINGS[UNCOUPLED[0]], torch.float32)
        expected = density(model, dtype=torch.float32)
        model[-1].bias.data += shift
        message = "logits: expected sums of exponentials .* take implementation="
        with pytest.raises(ValueError, match=message + '"stable" or "efficient"'):
            density(model, dtype=torch.float32, implementation="naive")
        for implementation in IMPLEMENTATIONS[1:]:
            values = density(model, dtype=torch.float32, implementation=implementation)
            torch.testing.assert_close(values, expected, rtol=1e-3, atol=0)

    @pytest.mark.parametrize("shift", [-60.0, 60.0])
    def test_exponentials_within_range(self, shift):
        model = network_of(SETTINGS[UNCOUPLED[0]], torch.float32)
        model[-1].bias.data += shift
        naive = density(model, dtype=torch.float32, implementation="naive")
        values = density(model, dtype=torch.float32)
        torch.testing.assert_close(naive, values, rtol=1e-4, atol=0)
        assert_same_gradients(model, naive, values, 1e-4)

    def test_nan_is_no_overflow(self):
        model = network_of(SETTINGS[UNCOUPLED[0]])
        model[-1].bias.data[0] = math.nan
        assert density(model, implementation="naive").isnan().all()

    @pytest.mark.parametrize("logits", [torch.zeros(3, 1), torch.zeros(3)])
    def test_one_class_is_refused(self, logits):
        with pytest.raises(ValueError, match=r"logits: expected .* at least two classes, got"):
            marginal_density_penalty(logits, torch.zeros(3, 6), generator=generator())


@pytest.mark.parametrize("p", ORDERS)
def test_logit_gradient_of_a_linear_network(p):
    weight, x, logits = linear()
    values = logit_gradient_penalty(logits, LABELS, x, p=p)
    torch.testing.assert_close(values, norms(weight[LABELS], p), rtol=1e-12, atol=0)
