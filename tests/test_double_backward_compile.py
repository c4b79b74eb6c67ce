"""Compiled networks, views and layers have the gradients of stock autograd."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.double_backward import LABELS, VIEWS, Net, distance, in_general_position, randn, step

pytestmark = pytest.mark.usefixtures("lays_out_small_images")


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
def test_compiled_gradients_agree_with_stock(place, view):
    model, x = network(), randn(3, 3, 6, 6)
    stock = copy.deepcopy(model)
    stock = stock.eval() if view == "evaluation" else stock
    stock[4] = nn.LeakyReLU()
    torch.compiler.reset()
    compiled_view = COMPILED[place](VIEWS[view], model)
    assert distance(step(compiled_view, x, LABELS), step(stock, x, LABELS)) < 1e-11
