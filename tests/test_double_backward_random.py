"""Small random networks: fast layers against stock autograd, in float64 and in float32."""

import copy
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from reglib.autodiff import input_gradient
from reglib.double_backward import evaluation_mode, fast_double_backward, layout
from reglib.regularizers import input_gradient_penalty
from tests.double_backward import Net, in_general_position, randn

CLASSES = 3
gradient = partial(input_gradient, create_graph=True)
PENALTIES = {
    "loss": lambda logits, labels, x: input_gradient_penalty(logits, labels, x).mean(),
    "logit": lambda y, labels, x: gradient(y.gather(1, labels[:, None]), x).square().sum(),
    "log marginal density": lambda y, labels, x: gradient(y.logsumexp(1), x).square().sum(),
    "total variation": lambda logits, _, x: gradient(logits[:, 0], x).diff(dim=-1).abs().sum(),
}


def residual(width):
    return Net(lambda net, x: x + net.body(x), body=nn.Conv2d(width, width, 3, padding=1))


def one_of(*choices):
    return st.sampled_from(choices)


@st.composite
def convolutions(draw, channels):
    width, groups = draw(one_of(2, 4)), draw(one_of(1, channels))
    sizes = {"kernel_size": draw(one_of(1, 2, 3, (1, 3))), "padding": draw(one_of(1, 2))}
    steps = {"stride": draw(one_of(1, 2)), "dilation": draw(one_of(1, 2))}
    others = {"groups": groups if width % groups == 0 else 1, "bias": draw(one_of(0, 1))}
    return width, nn.Conv2d(channels, width, **sizes, **steps, **others)


ACTIVATIONS = nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.1), nn.SiLU(), nn.Tanh()
POOLS = (
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(3, 1, padding=1),
    nn.AvgPool2d(3, 2, padding=1),
    nn.AdaptiveAvgPool2d(2),
    nn.AdaptiveMaxPool2d((2, 1)),
)


@st.composite
def layers(draw, channels):
    """Draw a layer that keeps the number of channels."""
    kind = draw(one_of("norm", "activation", "pool", "residual"))
    if kind == "norm":
        options = {"affine": draw(st.booleans()), "track_running_stats": draw(st.booleans())}
        return nn.BatchNorm2d(channels, **options, momentum=draw(one_of(0.1, 0.5, None)))
    if kind == "residual":
        return residual(channels)
    return draw(one_of(*(ACTIVATIONS if kind == "activation" else POOLS)))


@st.composite
def random_networks(draw):
    """Draw two to four convolutions, each with up to three layers after it, and a linear head."""
    channels = draw(one_of(1, 2))
    modules, width = [], channels
    for _ in range(draw(st.integers(2, 4))):
        width, conv = draw(convolutions(width))
        modules += [conv, *draw(st.lists(layers(width), max_size=3))]
    modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    model = in_general_position(nn.Sequential(*modules).double(), seed=draw(st.integers(0, 99)))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and draw(st.booleans()):
            module.eval()
    size = st.integers(7, 9)
    x = randn(draw(st.integers(2, 4)), channels, draw(size), draw(size))
    labels = torch.arange(len(x)) % CLASSES
    try:
        step(copy.deepcopy(model), x, labels, "loss")
    except RuntimeError:  # nothing is left of the image, or in-place ReLU spoils a saved output
        assume(False)
    return model, x, labels


def step(model, x, labels, penalty):
    x = x.clone().requires_grad_()
    logits = model(x)
    loss, value = F.cross_entropy(logits, labels), PENALTIES[penalty](logits, labels, x)
    gradients = torch.autograd.grad(loss + value, [x, *model.parameters()], materialize_grads=True)
    return [loss.detach(), value.detach(), *gradients, *model.buffers()]


SLOW = [HealthCheck.too_slow]
penalties = st.sampled_from(sorted(PENALTIES))
few = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)


def distance(found, wanted):
    """The largest difference of two lists of tensors, relative to the largest tensor."""
    size = max(float(tensor.double().norm()) for tensor in wanted)
    pairs = zip(found, wanted, strict=True)
    return max(float((a.double() - b.double()).norm()) for a, b in pairs) / max(size, 1e-300)


@settings(few, max_examples=150)
@given(random_networks(), penalties, one_of("contiguous", "channels-last", "laid out in the view"))
def test_random_step_agrees_with_stock(drawn, penalty, order):
    model, x, labels = drawn
    wanted = step(copy.deepcopy(model), x, labels, penalty)
    if order == "channels-last":
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    inside = order == "laid out in the view"
    with mock.patch.multiple(layout, FEW=1, LEAST_PIXELS=0):
        found = step(fast_double_backward(model, channels_last=inside), x, labels, penalty)
    assert distance(found, wanted) < 1e-11


@few
@given(random_networks(), penalties)
def test_random_evaluation_agrees_with_stock(drawn, penalty):
    model, *others = *drawn, penalty
    wanted = step(copy.deepcopy(model).eval(), *others)
    assert distance(step(evaluation_mode(model), *others), wanted) < 1e-11


@few
@given(random_networks(), penalties)
def test_float32_rounding_is_like_stock(drawn, penalty):
    """Rounding may put an activation on the other side of its kink: rare, and the same for both."""
    model, x, labels = drawn
    exact = step(copy.deepcopy(model), x, labels, penalty)
    stock = step(copy.deepcopy(model).float(), x.float(), labels, penalty)
    fast = step(fast_double_backward(model.float()), x.float(), labels, penalty)
    assert distance(fast, exact) <= 10 * distance(stock, exact) + 1e-5
