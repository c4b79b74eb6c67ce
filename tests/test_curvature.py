import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.regularizers import cure_penalty, input_hessian_penalty, score_matching_penalty
from tests.double_backward import Net, randn
from tests.small_batches import generator
from tests.test_gradients import linear
from tests.test_regularizers import LABELS, SETTINGS, images, network_of


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
