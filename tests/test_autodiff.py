from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from reglib.autodiff import OnceDifferentiable, input_gradient, linearise, second_derivative
from tests.double_backward import randn

X, UNUSED = (torch.ones(2, requires_grad=True) for _ in range(2))


class TestInputGradient:
    def test_of_a_cubic(self):
        x = torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
        gradient = input_gradient(x**3, x)
        torch.testing.assert_close(gradient, 3 * x.detach() ** 2)
        assert not gradient.requires_grad
        (second,) = torch.autograd.grad(input_gradient(x**3, x, create_graph=True).sum(), x)
        torch.testing.assert_close(second, 6 * x.detach())

    @pytest.mark.parametrize(
        ("outputs", "x", "message"),
        [
            (2 * X, X.detach(), "inputs: expected a tensor that requires a gradient"),
            (2 * X.detach(), X, "without a graph; was the forward pass run under"),
            (2 * UNUSED, X, "outputs: expected values that depend on inputs"),
        ],
    )
    def test_missing_gradient_is_refused(self, outputs, x, message):
        with pytest.raises(ValueError, match=message):
            input_gradient(outputs, x)


CUBIC = torch.arange(1.0, 7.0).view(3, 2)


class TestProducts:
    def test_by_the_jacobian(self):
        x = randn(4, 3, dtype=torch.float32)
        at = linearise(lambda x: x**3 @ CUBIC, x)
        torch.testing.assert_close(at.outputs, x**3 @ CUBIC)
        jacobian = 3 * x[:, :, None] ** 2 * CUBIC  # (B, inputs, outputs)
        v, u = torch.ones(4, 3), torch.tensor([[1.0, -2.0]]).expand(4, 2)
        for _ in range(2):
            torch.testing.assert_close(at.push(v), jacobian.sum(1))
            torch.testing.assert_close(at.pull(u), jacobian @ torch.tensor([1.0, -2.0]))
        assert not any(t.requires_grad for t in (at.outputs, at.push(v), at.pull(u), x))

    def test_vector_of_another_layout(self):
        x, v = torch.rand(2, 2, 3, 4, 4).unbind()
        x = x.contiguous(memory_format=torch.channels_last)
        at = linearise(lambda x: x.square().flatten(1), x)
        torch.testing.assert_close(at.push(v), (2 * x * v).flatten(1))

    def test_second_derivative_of_a_cubic(self):
        x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
        product = second_derivative(lambda x: (x**3).sum(1), x)
        v = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        for _ in range(2):
            torch.testing.assert_close(product(v), 6 * x * v)
        assert not second_derivative(lambda x: 2 * x.sum(1), x)(v).any()

    def test_under_no_grad(self):
        with torch.no_grad():
            at = linearise(lambda x: x.square(), torch.ones(1, 2))
            torch.testing.assert_close(at.push(torch.ones(1, 2)), torch.full((1, 2), 2.0))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


SMALL = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Softplus(), nn.Flatten()).requires_grad_(False)
COMPILED = torch.compile(SMALL, backend="aot_eager")


class TestOnceDifferentiable:
    @pytest.mark.parametrize("function", [lambda x: Square.apply(x).square(), COMPILED])
    def test_second_derivative_is_refused(self, function):
        x = torch.rand(2, 1, 2, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        with suppress(RuntimeError):  # raised for some compiled networks
            assert not torch.autograd.grad(gradient.sum(), x, materialize_grads=True)[0].any()
        for derivative in (linearise, second_derivative):
            with pytest.raises(OnceDifferentiable, match=r"outputs: expected .*Backward, marked"):
                derivative(function, x)
        assert torch.allclose(input_gradient(function(x), x), gradient)

    def test_weights_may_be_once_differentiable(self):
        x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
        gradient = input_gradient((x * Square.apply(w)).square(), x, create_graph=True)
        (by_w,) = torch.autograd.grad(gradient.sum(), w)
        assert torch.allclose(by_w, 8 * x * w**3)
