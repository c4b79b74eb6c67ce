"""Penalties against closed forms: of linear networks, quadratics, and numbers of groups."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib._common import unit_length
from reglib.regularizers import (
    adversarial_examples,
    adversarial_penalty,
    balancing_weights,
    cure_penalty,
    group_dro,
    input_hessian_penalty,
    logit_gradient_penalty,
    marginal_density_penalty,
    score_matching_penalty,
)
from tests.double_backward import Net, randn
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


def linear_network():
    weight, x, logits = linear()
    model = nn.Linear(6, 4).double()
    model.weight.data, model.bias.data = weight, (logits - x @ weight.T)[0].detach()
    return model, weight, x, logits


def draws(n=1):
    """Return the random numbers that the penalties draw for images (3, 6)."""
    source = generator()
    return [torch.randn(3, 6, generator=source, dtype=torch.float64) for _ in range(n)]


def quadratic(matrices):
    return Net(lambda net, x: torch.einsum("bi,cij,bj->bc", x, matrices, x))


class TestCure:
    def test_of_a_linear_softmax_network(self):
        r"""It is |W^T (p(x + h z) - p(x))|^2, with z along the signs of W^T (p - e)."""
        model, weight, x, logits = linear_network()
        p = logits.detach().softmax(1)
        z = ((p - F.one_hot(LABELS, 4)) @ weight).sign() / 6**0.5
        moved = model(x.detach() + 0.7 * z).softmax(1)
        values = cure_penalty(model, logits, LABELS, x, radius=0.7)
        expected = ((moved - p) @ weight).square().sum(1)
        torch.testing.assert_close(values, expected.detach(), rtol=1e-10, atol=0)
        default = cure_penalty(model, logits, LABELS, x)
        assert torch.equal(default, cure_penalty(model, logits, LABELS, x, radius=1.5))

    def test_radius_of_each_epoch(self):
        model, _, x, logits = linear_network()
        arguments = model, logits, LABELS, x
        for epoch, radius in enumerate((0.2, 0.7, 0.9, 0.9)):
            values = cure_penalty(*arguments, epoch=epoch, radius=[0.2, 0.7, 0.9])
            assert torch.equal(values, cure_penalty(*arguments, radius=radius))
        assert not torch.equal(values, cure_penalty(*arguments, radius=0.2))


class TestScoreMatching:
    def test_of_a_linear_network(self):
        """The trace is zero; its estimate from differences is 2 w v / sigma."""
        model, weight, x, logits = linear_network()
        half = weight[LABELS].square().sum(1) / 2
        values = score_matching_penalty(model, logits, LABELS, x, generator=generator())
        torch.testing.assert_close(values, half, rtol=1e-12, atol=0)
        trace = 2 / 0.1 * (weight[LABELS] * draws()[0]).sum(1)
        settings = {"trace": "taylor", "noise_std": 0.1, "stability": 0.3, "generator": generator()}
        taylor = score_matching_penalty(model, logits, LABELS, x, **settings)
        torch.testing.assert_close(taylor, half + trace + 0.3 * trace.square(), rtol=1e-9, atol=0)

    @pytest.mark.parametrize("trace", ["hutchinson", "taylor"])
    def test_of_a_quadratic_logit(self, trace):
        """Random signs give the trace of 2 A; differences of f the mean of 2 (g v + v A v)."""
        diagonals, x = randn(4, 6, seed=11).abs() + 1, 0.1 * randn(3, 6, seed=13)
        model, a = quadratic(torch.diag_embed(diagonals).requires_grad_()), diagonals[LABELS]
        settings = {"generator": generator(), "trace": trace, "n_samples": 3, "noise_std": 1.0}
        values = score_matching_penalty(model, model(x.requires_grad_()), LABELS, x, **settings)
        gradient, expected, tolerance = 2 * a * x.detach(), 2 * a.sum(1), 1e-12
        if trace == "taylor":
            differences = [2 * ((gradient + a * v) * v).sum(1) for v in draws(3)]
            expected, tolerance = torch.stack(differences).mean(0), 1e-10
        expected = expected + gradient.square().sum(1) / 2
        torch.testing.assert_close(values.detach(), expected, rtol=tolerance, atol=0)

    def test_of_a_relu_network(self):
        model, x = network_of(SETTINGS["without batch normalisation"]), images().requires_grad_()
        logits = model(x)
        values = score_matching_penalty(model, logits, LABELS, x, generator=generator())
        (gradient,) = torch.autograd.grad(logits.gather(1, LABELS[:, None]).sum(), x)
        torch.testing.assert_close(values.detach(), gradient.square().sum((1, 2, 3)) / 2)


class TestInputHessian:
    @pytest.mark.parametrize("n_samples", [1, 3])
    def test_of_a_linear_softmax_network(self, n_samples):
        r"""It is W^T (diag p - p p^T) W."""
        weight, x, logits = linear()
        p = logits.detach().softmax(1)
        hessian = weight.T @ (torch.diag_embed(p) - p[:, :, None] * p[:, None]) @ weight
        options = {} if n_samples == 1 else {"n_samples": n_samples}
        values = input_hessian_penalty(logits, LABELS, x, generator=generator(), **options)
        products = [(hessian @ v.sign()[:, :, None])[:, :, 0] for v in draws(n_samples)]
        expected = torch.stack(products).square().sum(2).mean(0)
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=0)

    def test_of_a_logit(self):
        """Of sum_j v_j tanh(w_j x) it is the sum of v_j tanh''(w_j x) w_j w_j^T."""
        weight, x, _ = linear()
        hidden, labels = x @ weight.T, torch.tensor([0, 1, 1])
        out = torch.tensor([[1.0, 0.5], [-2.0, 1.0], [0.5, 0.0], [1.0, 3.0]], dtype=torch.float64)
        settings = {"generator": generator(), "of": "logit"}
        values = input_hessian_penalty(hidden.tanh() @ out, labels, x, **settings)
        t = hidden.detach().tanh()
        bend = out.T[labels] * (-2 * t * (1 - t.square()))
        product = torch.einsum("bj,jn,jm,bm->bn", bend, weight, weight, draws()[0].sign())
        torch.testing.assert_close(values, product.square().sum(1))

    def test_linear_logits_have_none(self):
        _, _, x, logits = linear_network()
        values = input_hessian_penalty(logits, LABELS, x, generator=generator(), of="logit")
        assert values.tolist() == [0.0] * 3


WIDE = (-100.0, 100.0)


def attack(model, x, **changes):
    settings = {"epsilon": 0.3, "step_size": 0.1, "n_steps": 5, "pixel_range": WIDE}
    settings |= {"generator": generator()} | changes
    return adversarial_examples(model, x, LABELS, **settings)


def test_unit_length_of_extreme_gradients():
    for dtype, size in ((torch.float64, 1e-200), (torch.float32, 1e-30), (torch.float16, 6e4)):
        values = unit_length(torch.tensor([[size] * 4, [0.0] * 4], dtype=dtype))
        torch.testing.assert_close(values, torch.tensor([[0.5] * 4, [0.0] * 4], dtype=dtype))


def test_penalty_is_the_difference_of_losses():
    model, _, x, _ = linear_network()
    logits = model(x)
    settings = {"epsilon": 0.3, "step_size": 0.3, "pixel_range": WIDE, "generator": generator()}
    values = adversarial_penalty(model, logits, LABELS, x, **settings)
    moved = attack(model, x, step_size=0.3, n_steps=1, random_start=False)
    losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, moved)]
    torch.testing.assert_close(values, losses[1] - losses[0], rtol=1e-10, atol=0)
    assert (values > 0).all()
    total, on_examples = F.cross_entropy(logits, LABELS) + values.mean(), losses[1].mean()
    gradient, expected = (torch.autograd.grad(y, model.weight)[0] for y in (total, on_examples))
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)


class TestExamples:
    @pytest.mark.parametrize("norm", ["linf", "l2"])
    def test_one_step_follows_the_gradient(self, norm):
        """FGSM by its signs, in the Euclidean norm by its direction."""
        model, weight, x, logits = linear_network()
        gradient = (logits.softmax(1) - F.one_hot(LABELS, 4)) @ weight
        euclidean = 0.1 * gradient / gradient.norm(dim=1, keepdim=True)
        moves = {"linf": (0.3, 0.3 * gradient.sign()), "l2": (0.1, euclidean)}
        step_size, move = moves[norm]
        examples = attack(model, x, step_size=step_size, n_steps=1, random_start=False, norm=norm)
        torch.testing.assert_close(examples, (x + move).detach(), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("norm", ["linf", "l2"])
    @pytest.mark.parametrize("random_start", [True, False])
    def test_many_steps_end_on_the_sphere(self, norm, random_start):
        model, x = network_of(SETTINGS["without batch normalisation"]), images().clamp(-1, 1)
        options = {"norm": norm, "random_start": random_start}
        examples = attack(model, x, n_steps=20, **options)
        lengths = (examples - x).flatten(1).norm(float("inf") if norm == "linf" else 2, dim=1)
        torch.testing.assert_close(lengths, torch.full((3,), 0.3).double(), rtol=1e-6, atol=0)
        assert attack(model, x, pixel_range=(-1, 1), **options).abs().amax() <= 1
        losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, examples)]
        assert (losses[1] > losses[0]).all()

    @pytest.mark.parametrize("norm", ["linf", "l2"])
    def test_random_starts_within_the_ball(self, norm):
        model = network_of(SETTINGS["without batch normalisation"])
        still = {"step_size": 1e-12, "n_steps": 1, "norm": norm}
        starts = [attack(model, images(), generator=generator(s), **still) for s in (1, 1, 2)]
        assert torch.equal(starts[0], starts[1])
        change = (starts[2] - images()).flatten(1)
        assert not torch.equal(starts[0], starts[2])
        length = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
        assert ((length > 0) & (length < 0.3 + 1e-9)).all()


LOSSES = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 2, 2])
EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


def test_balancing_weights():
    groups = torch.tensor([0, 1, 1, 1, 2, 2, 1, 0])
    totals = torch.zeros(3).index_add(0, groups, balancing_weights(groups, 3))
    torch.testing.assert_close(totals, torch.full((3,), 8 / 3))
    with pytest.raises(ValueError, match="of each of 3 groups, got none of group 1"):
        balancing_weights(GROUPS, 3)


class TestGroupDro:
    def test_weights_grow_with_the_losses(self):
        losses = LOSSES.clone().requires_grad_()
        loss, weights = group_dro(losses, GROUPS, EQUAL, step_size=0.1)
        grown = [math.exp(0.1 * mean) for mean in (2.0, 0.0, 1.25)]
        expected = torch.tensor(grown, dtype=torch.float64) / sum(grown)
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(loss, 2.0 * expected[0] + 1.25 * expected[2])
        assert not weights.requires_grad
        (gradient,) = torch.autograd.grad(loss, losses)
        torch.testing.assert_close(gradient, expected[GROUPS] / 2)

    @pytest.mark.parametrize(
        ("groups", "text"),
        [
            (torch.tensor([0, -1, 2, 2]), "indices from 0 to 2, got -1; leave out"),
            (torch.tensor([0, 3, 2, 2]), "indices from 0 to 2, got 3"),
            (torch.tensor([0, 1]), r"one for each sample, got torch.int64 of shape \(2,\)"),
            (torch.tensor([0.0, 1, 2, 2]), "got torch.float32"),
        ],
    )
    def test_samples_without_a_group(self, groups, text):
        with pytest.raises(ValueError, match=f"groups: expected .*{text}"):
            group_dro(LOSSES, groups, EQUAL, step_size=0.1)

    def test_step_that_is_not_positive(self):
        with pytest.raises(ValueError, match="step_size: expected a positive number, got 0"):
            group_dro(LOSSES, GROUPS, EQUAL, step_size=0)
