"""Contiguous images go through a view in channels-last layout, and nobody who looks can tell."""

import copy
import pickle
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from reglib.double_backward import fast_double_backward, layout
from tests.double_backward import CLASSES, Net, assert_same_step, cases, in_general_position, randn

LABELS = torch.tensor([0, 3, 1])
X = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
in_channels_last = partial(fast_double_backward, channels_last=True)


@pytest.fixture(autouse=True)
def _small_images_too(monkeypatch):
    monkeypatch.setattr(layout, "LEAST_PIXELS", 0)


def around(function):
    """Do something to the feature maps of a convolution, then convolve and average them."""
    layers = {"first": nn.Conv2d(3, 16, 3, padding=1), "norm": nn.BatchNorm2d(16)}
    layers |= {"last": nn.Conv2d(16, 18, 3, padding=1), "head": nn.Linear(18, CLASSES)}

    def call(net, x):
        x = function(net.norm(net.first(x)))
        return net.head(net.last(x).mean((2, 3)))

    return Net(call, **layers).double()


def written_through_a_view(x):
    x.view(3, -1).mul_(2)
    return x


def written_to_a_part(x):
    x[:, 1] = 0
    return x


def strides(x):
    assert x.stride() == (16 * 36, 36, 6, 1)
    assert x.is_contiguous()
    return x


FUNCTIONS = {
    "view": lambda x: x.view(3, -1).tanh().view(3, 16, 6, 6),
    "transposed": lambda x: x.transpose(1, 2).contiguous().view(3, 6, 16, 6).transpose(1, 2),
    "written through a view": written_through_a_view,
    "written to a part": written_to_a_part,
    "strides are asked for": strides,
    "scaled by its means": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "residual, in place": lambda x: (x + 1).add_(x).relu_(),
    "padded": lambda x: F.pad(F.relu(x), (1, 0, 0, 1)),
    "interpolated": lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0),
    "groups": lambda x: F.group_norm(x, 4),
    "in a list": lambda x: torch.cat([y := F.relu(x), y.view(3, -1).view(x.shape)], 1)[:, 8:24],
    "many channels": lambda x: F.conv2d(F.relu(x), x.new_ones(260, 16, 1, 1))[:, :16],
}


@cases(FUNCTIONS)
def test_channels_last_agrees_with_stock_autograd(case):
    assert_same_step(around(case), randn(3, 3, 6, 6), LABELS, channels_last=True)


def maps_of(net, x):
    """Return feature maps, in a dictionary and a list, and keep others in the network."""
    net.kept = torch.tanh(net.conv(x))
    return {"maps": [torch.cat([F.relu(net.kept), net.kept], 1)], "number": 2}


def test_images_are_channels_last_inside_only():
    model, x = Net(maps_of, conv=nn.Conv2d(3, 16, 3)), X.clone().requires_grad_()
    (maps,) = in_channels_last(model)(x)["maps"]
    assert model.kept.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(maps.square().sum(), x, create_graph=True)
    gradients = torch.autograd.grad(gradient.square().sum(), model.parameters(), allow_unused=True)
    assert all(tensor.is_contiguous() for tensor in (maps, gradient, gradients[0]))
    torch.testing.assert_close(maps[:, 16:], copy.deepcopy(model.conv)(x).tanh())


def flat(x: torch.Tensor) -> torch.Tensor:
    """Flatten where no mode of Python sees it, as an extension in C++ would."""
    return x.view(x.size(0), -1)


class Leaks(nn.Module):
    """Gives feature maps to what a view does not see."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and in use
            self.scripted = torch.jit.script(flat)

    def forward(self, x):
        self.kept = self.conv(x)
        self.scripted(self.kept)
        return SimpleNamespace(features=self.kept), (part for part in [self.kept])


class TestByDefault:
    def test_nothing_is_laid_out(self):
        model = Leaks()
        output, parts = fast_double_backward(model)(X)
        for features in (output.features, model.kept, *parts):
            assert features.stride() == (16 * 16, 16, 4, 1)

    def test_scripted_functions_may_find_channels_last(self):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            in_channels_last(Leaks())(X)

    @pytest.mark.parametrize("make", [fast_double_backward, in_channels_last])
    def test_copies_keep_the_choice(self, make):
        view = make(Net(maps_of, conv=nn.Conv2d(3, 16, 3)))
        for copied in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
            assert type(copied).__mro__[1] is type(view).__mro__[1]


def keep():
    """A layer that hands on its input, and keeps it for itself."""
    return Net(lambda net, x: setattr(net, "kept", x) or x)


@pytest.mark.parametrize(("channels", "laid_out"), [(256, True), (257, False)])
def test_many_channels_are_not_laid_out(channels, laid_out):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, channels, 1), keep(), nn.ReLU())
    assert in_channels_last(model)(X).is_contiguous()
    assert model[2].kept.is_contiguous() != laid_out


@pytest.mark.parametrize("of_all", [True, False])
def test_hooks_see_contiguous_images(of_all, request):
    model, seen = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()), []
    register = register_module_forward_hook if of_all else model[0].register_forward_hook
    request.addfinalizer(register(lambda module, given, out: seen.append(out)).remove)
    in_channels_last(model)(X)
    assert seen[0].is_contiguous()


@pytest.mark.parametrize("where", ["images", "weights"])
def test_channels_last_networks_stay_so(where):
    model, x, last = nn.Conv2d(3, 16, 3), X, {"memory_format": torch.channels_last}
    model, x = (model, x.contiguous(**last)) if where == "images" else (model.to(**last), x)
    y = in_channels_last(model)(x)
    assert y.is_contiguous(**last)
    assert not vars(y)


def test_few_pixels_are_not_laid_out(monkeypatch):
    monkeypatch.setattr(layout, "LEAST_PIXELS", 2 * 64)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), keep(), nn.Conv2d(16, 16, 1), keep(), nn.ReLU())
    assert in_channels_last(model)(torch.rand(2, 3, 8, 8)).is_contiguous()
    assert not model[1].kept.is_contiguous()
    assert model[3].kept.is_contiguous()


def watched():
    """A network that keeps the output of the batch normalisation before its ReLU."""

    def call(net, x):
        net.normalised = net.norm(net.conv(x))
        return net.head(F.relu(net.normalised).mean((2, 3)))

    layers = {"conv": nn.Conv2d(3, 16, 3), "norm": nn.BatchNorm2d(16)}
    return in_general_position(Net(call, **layers, head=nn.Linear(16, CLASSES)).double())


class TestNormalisationBeforeRelu:
    def test_can_be_differentiated_by(self):
        model, results = watched(), []
        for net in (copy.deepcopy(model), in_channels_last(model)):
            loss = net(randn(3, 3, 6, 6).requires_grad_()).square().sum()
            (by_norm,) = torch.autograd.grad(loss, net.normalised, create_graph=True)
            results.append([by_norm, *torch.autograd.grad(by_norm.square().sum(), net.head.weight)])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)

    def test_may_be_replaced_by_a_hook(self):
        model = watched()
        model.norm.register_forward_hook(lambda module, given, out: 2 * out + out.square())
        assert_same_step(model, randn(3, 3, 6, 6), LABELS, channels_last=True)
