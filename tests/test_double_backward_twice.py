"""Views differentiate functions that stock PyTorch differentiates only once, or once did."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
from tests.double_backward import Net, cases, randn


def behind_a_layer(function):
    linear = nn.Linear(8, 8, dtype=torch.float64)
    return Net(lambda net, x: net.function(net.linear(x)), linear=linear, function=function)


def derivatives(model, x):
    """Return the output, the gradient by x, its square's by the weights, and the next by x."""
    x = x.clone().requires_grad_()
    y = model(x)
    (gx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (gw,) = torch.autograd.grad(gx.square().sum(), model.linear.weight, create_graph=True)
    return [y, gx, gw, *torch.autograd.grad(gw.square().sum(), x)]


def assert_agree(function, formula, x):
    torch.manual_seed(0)
    model = behind_a_layer(formula)
    expected = derivatives(model, x)
    model.function = function
    actual = derivatives(fast_double_backward(model), x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def hardsigmoid(x):
    return (x / 6 + 0.5).clamp(0, 1)


ACTIVATIONS = {
    "hardsigmoid": (F.hardsigmoid, hardsigmoid),
    "its module": (nn.Hardsigmoid(inplace=True), hardsigmoid),
    "in place, of a tensor used again": (
        lambda x: F.hardsigmoid(x, inplace=True) * x,
        lambda x: hardsigmoid(x).square(),
    ),
    "hardswish": (nn.Hardswish(inplace=True), lambda x: x * hardsigmoid(x)),
}


def attention(x, *, mask=0.0, scale=None, repeats=1):
    """Attend by two heads of four features, or by four query heads to two key heads of two."""
    query, key, value = heads(x, repeats)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key, value = (v.repeat_interleave(repeats, 1) for v in (key, value))
    return (query @ key.mT * scale + mask).softmax(-1) @ value


def heads(x, repeats):
    x = x.view(2, 3, 2 * repeats, -1).transpose(1, 2)
    return x, x[:, :2].tanh(), x[:, -2:].sin()


def fused(repeats=1, **options):
    return lambda x: F.scaled_dot_product_attention(*heads(x, repeats), **options)


MASK = randn(3, 3, seed=4)
CAUSAL = torch.full((3, 3), -torch.inf, dtype=torch.float64).triu(1)
ATTENTION = {
    "plain": (fused(), attention),
    "mask": (fused(attn_mask=MASK), lambda x: attention(x, mask=MASK)),
    "causal": (fused(is_causal=True), lambda x: attention(x, mask=CAUSAL)),
    "scale": (fused(scale=0.3), lambda x: attention(x, scale=0.3)),
    "groups": (fused(2, enable_gqa=True), lambda x: attention(x, repeats=2)),
    "by name": (
        lambda x: F.scaled_dot_product_attention(
            **dict(zip(("query", "key", "value"), heads(x, 1)))
        ),
        attention,
    ),
}


@cases(ACTIVATIONS | ATTENTION)
def test_third_derivatives_are_exact(case):
    assert_agree(*case, 4 * randn(2, 3, 8))  # on all three pieces of the activations


def test_multi_head_attention_has_second_derivatives():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)

    def attend(x, *, weights):
        return layer(x, x, x, need_weights=weights)[0]

    # With need_weights=True, PyTorch calls no fused kernel.
    formula = partial(attend, weights=True)
    assert_agree(partial(attend, weights=False), formula, randn(2, 3, 8))


def test_attention_with_dropout_agrees_with_stock():
    x, results = randn(2, 3, 8).requires_grad_(), []
    model = Net(lambda net, x: fused(dropout_p=0.5)(x))
    for function in (model, fast_double_backward(model)):
        torch.manual_seed(1)
        results.append(function(x))
    torch.testing.assert_close(*results)
