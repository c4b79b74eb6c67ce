"""A view brings contiguous images into channels-last layout inside, and nobody sees it."""

import copy
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from reglib.double_backward import fast_double_backward, layout
from tests.double_backward import CLASSES, Net, assert_same_step, cases, randn

pytestmark = pytest.mark.usefixtures("lays_out_small_images")
X = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
in_channels_last = partial(fast_double_backward, channels_last=True)


def around(function):
    """Return a network of a function of feature maps between two convolutions."""
    layers = {"first": nn.Conv2d(3, 16, 3, padding=1), "norm": nn.BatchNorm2d(16)}
    layers |= {"last": nn.Conv2d(16, 18, 3, padding=1), "head": nn.Linear(18, CLASSES)}

    def call(net, x):
        x = function(net.norm(net.first(x)))
        return net.head(net.last(x).mean((2, 3)))

    return Net(call, **layers).double()


def write_through_view(x):
    x.view(3, -1).mul_(2)
    return x


def write_to_channel(x):
    x[:, 1] = 0
    return x


def strides(x):
    assert x.stride() == (16 * 36, 36, 6, 1)
    assert x.is_contiguous()
    return x


FUNCTIONS = {
    "view": lambda x: x.view(3, -1).tanh().view(3, 16, 6, 6),
    "transposed": lambda x: x.transpose(1, 2).contiguous().view(3, 6, 16, 6).transpose(1, 2),
    "written through a view": write_through_view,
    "written to a channel": write_to_channel,
    "strides": strides,
    "scaled by its means": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "residual, in place": lambda x: (x + 1).add_(x).relu_(),
    "padded": lambda x: F.pad(F.relu(x), (1, 0, 0, 1)),
    "interpolated": lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0),
    "groups": lambda x: F.group_norm(x, 4),
    "in a list": lambda x: torch.cat([y := F.relu(x), y.view(3, -1).view(x.shape)], 1)[:, 8:24],
    "many channels": lambda x: F.conv2d(F.relu(x), x.new_ones(260, 16, 1, 1))[:, :16],
}


@cases(FUNCTIONS)
def test_channels_last_agrees_with_stock(case):
    assert_same_step(around(case), randn(3, 3, 6, 6), channels_last=True)


def return_maps(net, x):
    net.saved = torch.tanh(net.conv(x))
    return {"maps": [torch.cat([F.relu(net.saved), net.saved], 1)], "number": 2}


def test_images_are_channels_last_inside_only():
    model, x = Net(return_maps, conv=nn.Conv2d(3, 16, 3)), X.clone().requires_grad_()
    (maps,) = in_channels_last(model)(x)["maps"]
    assert model.saved.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(maps.square().sum(), x, create_graph=True)
    gradients = torch.autograd.grad(gradient.square().sum(), model.parameters(), allow_unused=True)
    assert all(tensor.is_contiguous() for tensor in (maps, gradient, gradients[0]))
    torch.testing.assert_close(maps[:, 16:], copy.deepcopy(model.conv)(x).tanh())


def flat(x: torch.Tensor) -> torch.Tensor:
    """Flatten images; scripted, it is invisible to Python modes, like an extension in C++."""
    return x.view(x.size(0), -1)


class Leaks(nn.Module):
    """A network that passes feature maps to code and objects that a view does not see."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated, and still used
            self.scripted = torch.jit.script(flat)

    def forward(self, x):
        self.saved = self.conv(x)
        self.scripted(self.saved)
        return SimpleNamespace(features=self.saved)


def test_default_lays_nothing_out():
    model = Leaks()
    output = fast_double_backward(model)(X)
    for features in (output.features, model.saved):
        assert features.stride() == (16 * 16, 16, 4, 1)


def test_scripted_functions_may_get_channels_last():
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        in_channels_last(Leaks())(X)


def save():
    return Net(lambda net, x: setattr(net, "saved", x) or x)


@pytest.mark.parametrize(
    ("channels", "least_pixels", "laid_out"), [(256, 64, True), (257, 64, False), (16, 65, False)]
)
def test_limits_of_channels_and_pixels(channels, least_pixels, laid_out, monkeypatch):
    monkeypatch.setattr(layout, "LEAST_PIXELS", least_pixels)
    layers = nn.Conv2d(3, 16, 3), save(), nn.Conv2d(16, channels, 1), save(), nn.ReLU()
    model = nn.Sequential(*layers)
    assert in_channels_last(model)(X).is_contiguous()
    assert not model[1].saved.is_contiguous()
    assert model[3].saved.is_contiguous() != laid_out


@pytest.mark.parametrize("is_global", [True, False])
def test_hooks_get_contiguous_images(is_global, request):
    model, outputs = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()), []
    register = register_module_forward_hook if is_global else model[0].register_forward_hook
    request.addfinalizer(register(lambda module, inputs, output: outputs.append(output)).remove)
    in_channels_last(model)(X)
    assert outputs[0].is_contiguous()


@pytest.mark.parametrize("argument", ["images", "weights"])
def test_channels_last_arguments_stay(argument):
    model, x, last = nn.Conv2d(3, 16, 3), X, {"memory_format": torch.channels_last}
    model, x = (model, x.contiguous(**last)) if argument == "images" else (model.to(**last), x)
    y = in_channels_last(model)(x)
    assert y.is_contiguous(**last)
    assert not vars(y)
