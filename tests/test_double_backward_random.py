"""Small random networks: fast layers against stock autograd, in float64 and in float32."""

import copy
from unittest import mock

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from reglib.double_backward import evaluation_mode, fast_double_backward, layout
from tests.double_backward import PENALTIES, Net, distance, in_general_position, randn, step

CLASSES = 3


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
        step(copy.deepcopy(model), x, labels)
    except RuntimeError:  # nothing is left of the image, or in-place ReLU spoils a saved output
        assume(False)
    return model, x, labels


SLOW = [HealthCheck.too_slow]
penalties = st.sampled_from(sorted(PENALTIES))
few = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)


@settings(few, max_examples=150)
@given(random_networks(), penalties, one_of("contiguous", "channels-last", "laid out in the view"))
def test_random_step_agrees_with_stock(drawn, penalty, order):
    model, x, labels = drawn
    expected = step(copy.deepcopy(model), x, labels, penalty)
    if order == "channels-last":
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    inside = order == "laid out in the view"
    with mock.patch.multiple(layout, FEW=1, LEAST_PIXELS=0):
        actual = step(fast_double_backward(model, channels_last=inside), x, labels, penalty)
    assert distance(actual, expected) < 1e-11


@few
@given(random_networks(), penalties)
def test_random_evaluation_agrees_with_stock(drawn, penalty):
    model, *others = *drawn, penalty
    expected = step(copy.deepcopy(model).eval(), *others)
    assert distance(step(evaluation_mode(model), *others), expected) < 1e-11


@few
@given(random_networks(), penalties)
def test_float32_rounding_is_like_stock(drawn, penalty):
    """Rounding may move an activation across its kink, rarely and for views and stock alike."""
    model, x, labels = drawn
    exact = step(copy.deepcopy(model), x, labels, penalty)
    stock = step(copy.deepcopy(model).float(), x.float(), labels, penalty)
    fast = step(fast_double_backward(model.float()), x.float(), labels, penalty)
    assert distance(fast, exact) <= 10 * distance(stock, exact) + 1e-5
