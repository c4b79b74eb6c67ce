"""Whole networks with fast layers against the same networks with stock autograd."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
from reglib.double_backward.functions import max_pool_of_pairs_with_indices
from reglib.regularizers import input_gradient_penalty
from suite.networks import build_network
from tests.double_backward import (
    CLASSES,
    NETWORKS,
    assert_same_step,
    cases,
    network_and_images,
    randn,
    small,
    step,
)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_at_full_width_agree_with_stock_autograd(name):
    model, x = network_and_images(name)
    assert_same_step(model.train(), x, torch.tensor([0, 3, 1]), tolerance=1e-11)


def test_a_training_of_200_steps_stays_with_stock_autograd():
    networks = [build_network("convnet", (1, 12, 12), 4, options={"width": 4}, seed=1).double()]
    networks.append(copy.deepcopy(networks[0]))
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.01, momentum=0.9) for n in networks]
    models = [networks[0], fast_double_backward(networks[1])]
    for index in range(200):
        x, labels = randn(8, 1, 12, 12, seed=index), torch.arange(8) % 4
        for model, optimizer in zip(models, optimizers):
            inputs = x.clone().requires_grad_()
            logits = model(inputs)
            penalty = input_gradient_penalty(logits, labels, inputs).mean()
            optimizer.zero_grad()
            (F.cross_entropy(logits, labels) + 0.1 * penalty).backward()
            optimizer.step()
    for (name, a), b in zip(networks[0].state_dict().items(), networks[1].state_dict().values()):
        torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-9, msg=name)


class Reused(nn.Module):
    """One convolution, one norm and one in-place ReLU, each called twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x):
        for _ in range(2):
            x = self.relu(self.norm(self.conv(x)))
        return self.head(x.mean((2, 3)))


class Forked(nn.Module):
    """The output of a batch normalisation goes to a ReLU, to another layer and to the output."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, CLASSES, 3)
        self.norm = nn.BatchNorm2d(CLASSES)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return (F.relu(x) - x.relu().square() + torch.relu(x) * x + x.clone().relu_()).mean((2, 3))


class Discarded(nn.Module):
    """Changes a tensor in place, ignores what the function returns and goes on with the tensor."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x):
        x = self.head(x.mean((2, 3)))
        F.relu(x, inplace=True)
        return x * x


SPECIAL = {
    "what an in-place function returns is ignored": Discarded,
    "in place after a function that keeps its input": lambda: nn.Sequential(
        nn.Conv2d(2, CLASSES, 3),
        nn.ReLU6(),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.1),
        nn.LeakyReLU(0.1, inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "used twice, in place": Reused,
    "forked": Forked,
    "in-place relatives of ReLU": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU6(inplace=True),
        nn.Conv2d(4, 4, 3),
        nn.LeakyReLU(inplace=True),
        nn.Conv2d(4, CLASSES, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "lazy, called before": lambda: _called(
        nn.Sequential(nn.LazyConv2d(3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    ),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, CLASSES),
    ),
    "frozen weights": lambda: _frozen(
        nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 3),
            nn.BatchNorm2d(3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(3, CLASSES),
        )
    ),
}


def _called(model):
    model(torch.zeros(1, 2, 8, 8))
    return model


def _frozen(model):
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    return model


@cases(SPECIAL)
def test_special_networks_agree_with_stock_autograd(case):
    torch.manual_seed(0)
    model = case().double()
    frozen = [p for p in model.parameters() if not p.requires_grad]
    if not frozen:
        assert_same_step(model, randn(3, 2, 8, 8), torch.tensor([0, 3, 1]))
        return
    results = []
    for other in (copy.deepcopy(model), fast_double_backward(model)):
        x = randn(3, 2, 8, 8).requires_grad_()
        penalty = input_gradient_penalty(logits := other(x), torch.tensor([0, 3, 1]), x).sum()
        (logits.sum() + penalty).backward()
        results.append([p.grad for p in other.parameters()])
    for wanted, got in zip(*results):
        assert (wanted is None) == (got is None)
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_outputs_have_the_bits_of_stock_functions():
    model, x = small(), randn(4, 2, 12, 12, dtype=torch.float32)
    stock = copy.deepcopy(model)
    assert torch.equal(fast_double_backward(model)(x), stock(x))
    for a, b in zip(model.buffers(), stock.buffers()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("size", [(7, 9), (8, 6), (2, 2), (3, 1)])
def test_pooling_without_a_gradient_has_the_bits_of_stock_pooling(size):
    x = randn(2, 3, *size)
    x[0, 0, 0, 0] = torch.nan
    pool = fast_double_backward(nn.MaxPool2d(2, ceil_mode=True))
    assert torch.equal(pool(x).nan_to_num(9), F.max_pool2d(x, 2, ceil_mode=True).nan_to_num(9))
    if min(size) > 1:
        found = fast_double_backward(nn.MaxPool2d(2))(x)
        assert torch.equal(found.nan_to_num(9), F.max_pool2d(x, 2).nan_to_num(9))


@pytest.mark.parametrize("size", [(7, 9), (8, 6), (2, 3)])
def test_indices_of_pairs_are_those_of_stock_pooling(size):
    x = randn(2, 3, *size).round(decimals=0)  # with many ties
    y, indices = max_pool_of_pairs_with_indices(x)
    wanted, wanted_indices = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(y, wanted)
    assert torch.equal(indices, wanted_indices)


def test_indices_of_pairs_lie_in_the_image_whatever_its_values():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])[torch.arange(64) * 7 % 4]
    y, indices = max_pool_of_pairs_with_indices(x.view(1, 1, 8, 8))
    assert torch.equal(y.isnan(), F.max_pool2d(x.view(1, 1, 8, 8), 2).isnan())
    assert ((indices >= 0) & (indices < 64)).all()


def test_float32_is_as_close_to_float64_as_stock_autograd_is():
    model = small()
    x, labels = randn(8, 2, 12, 12, dtype=torch.float32), torch.arange(8) % CLASSES
    _, exact = step(copy.deepcopy(model).double(), x.double(), labels)
    _, stock = step(copy.deepcopy(model), x, labels)
    _, fast = step(fast_double_backward(model), x, labels)

    def error(gradients):
        return sum(float((g - e).norm() ** 2) for g, e in zip(gradients, exact)) ** 0.5

    assert error(fast) <= 3 * error(stock)


def test_channels_last_gives_the_same():
    model = small().double()
    x, labels = randn(4, 2, 12, 12), torch.arange(4)
    _, wanted = step(copy.deepcopy(model), x, labels)
    fast = fast_double_backward(model.to(memory_format=torch.channels_last))
    _, got = step(fast, x.contiguous(memory_format=torch.channels_last), labels)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_autocast_gives_what_stock_autograd_gives_to_its_own_precision():
    model = small()
    x, labels = randn(8, 2, 12, 12, dtype=torch.float32), torch.arange(8) % CLASSES
    _, exact = step(copy.deepcopy(model), x, labels)
    errors = {}
    for name, other in {"stock": copy.deepcopy(model), "fast": fast_double_backward(model)}.items():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = other(x)
            _, gradients = step(other, x, labels)
        assert logits.dtype == torch.bfloat16
        assert all(g.dtype == torch.float32 for g in gradients)
        errors[name] = sum(float((g - e).norm() ** 2) for g, e in zip(gradients, exact)) ** 0.5
    assert errors["fast"] <= 1.5 * errors["stock"]


def test_an_input_without_gradient_still_gives_those_of_the_weights():
    model = small().double()
    stock = copy.deepcopy(model)
    x = randn(3, 2, 12, 12)
    fast_double_backward(model)(x).square().sum().backward()
    stock(x).square().sum().backward()
    for a, b in zip(model.parameters(), stock.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


def test_half_precision_on_the_cpu_is_that_of_stock_autograd():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = model.half()
    results = []
    for other in (copy.deepcopy(model), fast_double_backward(model)):
        x = randn(2, 2, 6, 6, dtype=torch.float16).requires_grad_()
        (gx,) = torch.autograd.grad(other(x).square().sum(), x, create_graph=True)
        gx.float().square().sum().backward()
        results.append([gx, *(p.grad for p in other.parameters())])
    for wanted, got in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_cuda_agrees_with_stock_autograd(layout):
    model = small().double().cuda().to(memory_format=layout)
    x = randn(4, 2, 12, 12).cuda().contiguous(memory_format=layout)
    assert_same_step(model, x, torch.arange(4).cuda(), tolerance=1e-11)
