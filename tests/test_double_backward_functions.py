"""Fast functions against finite differences, or formulas where PyTorch differentiates only once."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
from reglib.double_backward.layers import FastLayers
from tests.double_backward import Net, cases, in_general_position, randn

CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "one channel": {"kernel_size": 3, "in_channels": 1, "padding": 1},
    "one channel, much padding": {"kernel_size": 2, "in_channels": 1, "padding": 2},
    "one channel, dilated": {"kernel_size": 3, "in_channels": 1, "padding": 1, "dilation": 2},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "strides with a remainder": {"kernel_size": 2, "stride": (3, 2)},
    "oblong": {"kernel_size": (1, 3), "padding": (0, 1)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": 2},
    "groups": {"kernel_size": 3, "in_channels": 4, "groups": 2},
    "depthwise": {"kernel_size": 3, "groups": 2, "padding": 1},
    "same": {"kernel_size": 3, "padding": "same", "dilation": 2},
    "same, not symmetric": {"kernel_size": 2, "padding": "same"},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "without bias": {"kernel_size": 3, "bias": False},
    "1 x 1": {"kernel_size": 1},
}
NORMS = {
    "training": {},
    "without affine parameters": {"affine": False},
    "without running statistics": {"track_running_stats": False},
    "without either": {"affine": False, "track_running_stats": False},
    "cumulative average": {"momentum": None},
    "evaluation": {"training": False},
    "evaluation, without affine parameters": {"affine": False, "training": False},
    "evaluation, without running statistics": {"track_running_stats": False, "training": False},
}
ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "relu6 by its function": Net(lambda net, x: F.relu6(x)),
    "hardtanh": nn.Hardtanh(-0.5, 0.7),
    "leaky relu": nn.LeakyReLU(0.2),
    "leaky relu, negative slope": nn.LeakyReLU(-0.2),
}
POOLS = {
    "max": nn.MaxPool2d(2),
    "max, overlapping": nn.MaxPool2d(3, 2, padding=1),
    "max, dilated, ceiling": nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True),
    "average": nn.AvgPool2d(2),
    "average, overlapping": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "average, other divisor": nn.AvgPool2d(2, divisor_override=3, ceil_mode=True),
    "adaptive average": nn.AdaptiveAvgPool2d((2, 3)),
    "adaptive average to one": nn.AdaptiveAvgPool2d(1),
    "adaptive average, one side free": nn.AdaptiveAvgPool2d((None, 2)),
    "adaptive max": nn.AdaptiveMaxPool2d((3, 2)),
}


def check_layer(layer, x):
    """Check output, first, second and third derivatives by the input and all parameters."""
    layer = in_general_position(layer.double())
    names = [name for name, _ in layer.named_parameters()]
    values = [x.requires_grad_(), *(p.detach().requires_grad_() for p in layer.parameters())]

    def function(x, *values):
        state = dict(zip(names, values)) | {n: b.clone() for n, b in layer.named_buffers()}
        with FastLayers():
            return torch.func.functional_call(layer, state, (x,))

    def second(gy, x, *values):
        (gx,) = torch.autograd.grad(function(x, *values), x, gy, create_graph=True)
        options = {"create_graph": True, "materialize_grads": True}
        return torch.autograd.grad(gx.square().sum(), (x, *values), **options)

    y = function(*values)
    torch.testing.assert_close(y, copy.deepcopy(layer)(x), rtol=1e-12, atol=1e-12)
    gy, other = (randn(*y.shape, seed=seed).requires_grad_() for seed in (0, 3))
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values, gy)
    assert torch.autograd.gradcheck(second, (other, *values))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@cases(CONVOLUTIONS)
def test_convolution(case):
    settings = {"in_channels": 2, "out_channels": case.get("groups", 2), **case}
    check_layer(nn.Conv2d(**settings), randn(2, settings["in_channels"], 3, 4))


@cases(NORMS)
@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (4, 2)], ids=["images", "features"])
def test_batch_norm(case, shape):
    settings = dict(case)
    training = settings.pop("training", True)
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    check_layer(kind(2, **settings).train(training), randn(*shape))


def second_derivatives(layer, x, device):
    """Return y, a gradient g by x of its square, and the gradients of the square of g."""
    layer, x = copy.deepcopy(layer).to(device), x.detach().to(device).requires_grad_()
    y = fast_double_backward(layer)(x)
    total = (y.square() * randn(*y.shape, seed=3).to(device)).sum()
    (gx,) = torch.autograd.grad(total, x, create_graph=True)
    inputs = x, *layer.parameters()
    further = torch.autograd.grad(gx.square().sum(), inputs, materialize_grads=True)
    return [tensor.detach().cpu() for tensor in (y, gx, *further)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@cases(
    {f"batch normalisation, {n}": (nn.BatchNorm2d, (2,), c) for n, c in NORMS.items()}
    | {f"of features, {n}": (nn.BatchNorm1d, (2,), c) for n, c in NORMS.items()}
    | {f"convolution, {n}": (nn.Conv2d, (), c) for n, c in CONVOLUTIONS.items()}
    | {f"pooling, {n}": (copy.deepcopy, (c,), {}) for n, c in POOLS.items()}
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_second_derivatives_on_cuda(case, layout):
    make, arguments, settings = case
    if make is nn.BatchNorm1d and layout == torch.channels_last:
        pytest.skip("features have one layout")
    settings = dict(settings)
    training = settings.pop("training", True)
    if make is nn.Conv2d:
        settings = {"in_channels": 2, "out_channels": 4, **settings}
    layer = in_general_position(make(*arguments, **settings).double().train(training))
    shape = (5, 2) if make is nn.BatchNorm1d else (2, settings.get("in_channels", 2), 6, 5)
    x = randn(*shape)
    if len(shape) == 4:
        x = x.contiguous(memory_format=layout)
    results = (second_derivatives(layer, x, device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


@cases(ACTIVATIONS)
def test_activation(case):
    check_layer(case, 6 * randn(2, 7))  # on all pieces


@cases(POOLS)
@pytest.mark.parametrize("size", [(5, 4), (4, 6)], ids=["odd", "even"])
def test_pool(case, size):
    check_layer(case, randn(1, 2, *size))


class DecomposedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation by elementary operations, which have derivatives of any order."""

    def forward(self, x):
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        y = (x - mean) / (var + self.eps).sqrt()
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("coupling", [0.0, 1.0], ids=["fixed scale", "scale of the input"])
def test_batch_norm_under_a_curved_head(order, coupling):
    """The output gradient depends on the input, and the scale may, too."""
    results = []
    for kind in (DecomposedBatchNorm, nn.BatchNorm2d):
        norm = fast_double_backward(in_general_position(kind(2).double()))
        x, direction, t = randn(3, 2, 2, 2), randn(3, 2, 2, 2, seed=5), randn().requires_grad_()
        point = x + t * direction
        scale = norm.weight * (1 + point.mean().sin()) if coupling else norm.weight.detach()
        value = torch.func.functional_call(norm, {"weight": scale}, (point,)).tanh()
        value = (value * randn(3, 2, 2, 2, seed=6)).sum()
        for _ in range(order):
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        parameters = [norm.bias, norm.weight] if coupling else [norm.bias]
        results.append([value, *torch.autograd.grad(value, parameters)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("padding", "stride"), [("same", 2), ("same", (1, 2)), ("foo", 1)])
def test_invalid_padding_words_are_refused(padding, stride):
    def convolve(net, x):
        return F.conv2d(x, x.new_ones(1, 1, 3, 3), stride=stride, padding=padding)

    messages = []
    for network in (Net(convolve), fast_double_backward(Net(convolve))):
        with pytest.raises(RuntimeError) as error:
            network(randn(1, 1, 6, 6).requires_grad_())
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("count", [1, 9, 36])
def test_pooling_of_nonfinite_pixels(value, count):
    x, generator = randn(4, 3, 6, 6), torch.Generator().manual_seed(0)
    for image in x.flatten(2).flatten(0, 1):
        image[torch.randperm(36, generator=generator)[:count]] = value
    x.requires_grad_()
    weights, gradients = torch.arange(1.0, 10).view(3, 3), []
    for pool in (nn.MaxPool2d(2), fast_double_backward(nn.MaxPool2d(2))):
        gradients += torch.autograd.grad((pool(x) * weights).sum(), x, torch.ones(()).double())
    assert torch.equal(*gradients)


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


ONCE = {
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


@cases(ONCE | ATTENTION)
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
