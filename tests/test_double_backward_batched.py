"""Gradients through views for many vectors at once agree with stock autograd."""

import copy

import pytest
import torch
from torch import nn

from reglib.double_backward import fast_double_backward
from tests.double_backward import VIEWS, cases, in_general_position, randn

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.usefixtures("lays_out_small_images"),
]
LAYERS = {
    "linear": [nn.Flatten(), nn.Linear(192, 16)],
    "convolution": [nn.Conv2d(3, 16, 3)],
    "strided": [nn.Conv2d(3, 16, 1, 2)],
    "groups": [nn.Conv2d(3, 6, 3, groups=3)],
    "norm": [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)],
    "norm without weight": [nn.BatchNorm2d(3, affine=False)],
    "frozen norm": [nn.BatchNorm2d(3).requires_grad_(False)],
    "norm in evaluation mode": [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval()],
    "norm of vectors": [nn.Flatten(), nn.BatchNorm1d(192)],
    "relu": [nn.Conv2d(3, 4, 3), nn.ReLU()],
    "leaky relu": [nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2)],
    "hardtanh": [nn.Conv2d(3, 4, 3), nn.Hardtanh(-0.5, 0.7)],
    "max pooling": [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)],
    "overlapping max pooling": [nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 1)],
    "adaptive max pooling": [nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d((3, 2))],
    "average pooling": [nn.Conv2d(3, 4, 3), nn.AvgPool2d(2)],
    "adaptive average pooling": [nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d((3, 2))],
    "where the layout ends": [nn.Conv2d(3, 16, 3), nn.MaxPool2d(3), nn.Conv2d(16, 16, 2)],
}


def network(layers):
    """Return a network with nonzero second derivatives, and images for it."""
    torch.manual_seed(0)
    x = randn(3, 3, 8, 8)
    model = nn.Sequential(*copy.deepcopy(layers), nn.Flatten(), nn.LazyLinear(4), nn.Softplus())
    model.double()(x)
    return in_general_position(model), x.requires_grad_()


def vectors():
    return randn(5, 3, 4, seed=2)


def by_engine(y, x, **options):
    return torch.autograd.grad(y, x, vectors(), is_grads_batched=True, **options)[0]


def by_vmap(y, x, **options):
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, **options)[0])(vectors())


def by_loop(y, x, **options):
    return torch.stack([torch.autograd.grad(y, x, v, **options)[0] for v in vectors()])


def gradients(model, x, differentiate):
    plain = differentiate(model(x), x, create_graph=False, retain_graph=True)
    products = differentiate(model(x), x, create_graph=True)
    inputs = [x, *(p for p in model.parameters() if p.requires_grad)]
    further = torch.autograd.grad(products.pow(3).sum(), inputs, materialize_grads=True)
    return [plain, products.detach(), *further]


@pytest.mark.parametrize(
    ("differentiate", "view"),
    [(by_vmap, "training"), (by_engine, "laid out"), (by_engine, "evaluation")],
)
@cases(LAYERS)
def test_products_with_many_vectors(case, differentiate, view):
    model, x = network(case)
    stock = copy.deepcopy(model)
    stock = stock.eval() if view == "evaluation" else stock
    actual, expected = gradients(VIEWS[view](model), x, differentiate), gradients(stock, x, by_loop)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@cases(LAYERS)
def test_second_derivatives_for_many_vectors(case):
    def gradient(network):
        return torch.autograd.grad(network(x).pow(3).sum(), x, create_graph=True)[0]

    model, x = network(case)
    fast, v = fast_double_backward(copy.deepcopy(model)), randn(4, *x.shape)
    (actual,) = torch.autograd.grad(gradient(fast), x, v, is_grads_batched=True)
    expected = [torch.autograd.grad(gradient(model), x, u)[0] for u in v]
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-9, atol=1e-9)
