"""Gradients of views for many vectors at once, in compiled and in distributed networks."""

import copy
import multiprocessing

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reglib.double_backward import fast_double_backward
from tests import double_backward as helpers
from tests.double_backward import VIEWS, Net, cases, in_general_position, randn

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


def compiled(target):
    return torch.compile(target, backend="eager")


def with_compiled_function():
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
    model, x = with_compiled_function(), randn(3, 3, 6, 6)
    stock = copy.deepcopy(model)
    stock = stock.eval() if view == "evaluation" else stock
    stock[4] = nn.LeakyReLU()
    torch.compiler.reset()
    compiled_view = COMPILED[place](VIEWS[view], model)
    steps = (helpers.step(net, x, helpers.LABELS) for net in (compiled_view, stock))
    assert helpers.distance(*steps) < 1e-11


def small_network():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers).double()


def differentiate(model, x):
    x = x.clone().requires_grad_()
    losses = model(x).square().sum(1)
    (g,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    (losses + g.square().sum((1, 2, 3))).mean().backward()
    return [p.grad for p in model.parameters()]


def worker(rank, folder):
    options = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2}
    torch.distributed.init_process_group("gloo", **options)
    try:
        parallel = DistributedDataParallel(fast_double_backward(small_network()))
        for _ in range(2):
            parallel.zero_grad()
            gradients = differentiate(parallel, batch()[rank::2])
    finally:
        torch.distributed.destroy_process_group()
    torch.save(gradients, f"{folder}/{rank}.pt")


def batch():
    return torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def test_distributed_gradients_agree(tmp_path):
    other = multiprocessing.get_context("spawn").Process(target=worker, args=(1, str(tmp_path)))
    other.start()
    worker(0, tmp_path)
    other.join(120)
    assert other.exitcode == 0
    expected = differentiate(small_network(), batch())
    for rank in (0, 1):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)
