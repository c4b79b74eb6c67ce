"""Networks, views and parts of both that are compiled have the second order of stock autograd."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import layout
from tests.double_backward import VIEWS, Net, in_general_position, randn, step

LABELS = torch.tensor([0, 3, 1])


@pytest.fixture(autouse=True)
def _small_images_too(monkeypatch):
    monkeypatch.setattr(layout, "LEAST_PIXELS", 64)  # the images of these tests are small


def compiled(target):
    return torch.compile(target, backend="eager")


def network():
    function = Net(lambda net, x: net.function(x), function=compiled(F.leaky_relu))
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), function
    return in_general_position(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)).double())


def with_compiled_layers(model):
    model[0] = compiled(model[0])
    model[1].compile(backend="eager")
    model[2].compile(backend="eager")
    return model


COMPILED = {
    "around": lambda view, model: compiled(view(model)),
    "inside": lambda view, model: view(compiled(model)),
    "layers": lambda view, model: view(with_compiled_layers(model)),
}


@pytest.mark.parametrize(
    ("place", "view"),
    [("around", "training"), ("inside", "laid out"), ("layers", "laid out")]
    + [(place, "evaluation") for place in COMPILED],
)
@pytest.mark.filterwarnings("ignore")
def test_gradients_are_those_of_stock_autograd(place, view):
    model, x = network(), randn(3, 3, 6, 6)
    stock = copy.deepcopy(model)
    stock = stock.eval() if view == "evaluation" else stock
    stock[4] = nn.LeakyReLU()
    torch.compiler.reset()
    call = COMPILED[place](VIEWS[view], model)
    for a, b in zip(step(call, x, LABELS)[1], step(stock, x, LABELS)[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
