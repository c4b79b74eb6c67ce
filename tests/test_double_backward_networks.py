"""Networks with fast layers against the same networks with stock autograd."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from reglib.double_backward import fast_double_backward
from tests import double_backward as helpers
from tests.double_backward import Net, assert_same_second_order, assert_same_step, pooled, randn


@pytest.mark.parametrize("name", helpers.NETWORKS)
def test_whole_networks_agree_with_stock(name):
    model, x = helpers.network_and_images(name)
    assert_same_step(model.train(), x)


def forked(net, x):
    x = net.norm(net.conv(x))
    return (F.relu(x) - x.relu().square() + torch.relu(x) * x + x.clone().relu_()).mean((2, 3))


def discarded(net, x):
    """Change a tensor in place, and ignore the result of the function."""
    x = net.head(x.mean((2, 3)))
    F.relu(x, inplace=True)
    return x * x


def frozen():
    body = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)
    body[0].weight.requires_grad_(False)
    body[1].bias.requires_grad_(False)
    return nn.Sequential(*body, *pooled(3))


CONV = partial(nn.Conv2d, 2, helpers.CLASSES, 3)
IN_PLACE = nn.ReLU(True), nn.LeakyReLU(0.1), nn.LeakyReLU(0.1, True)
SPECIAL = {
    "ignored result": lambda: Net(discarded, head=nn.Linear(2, helpers.CLASSES)),
    "in place, saving inputs and outputs": lambda: nn.Sequential(
        nn.Conv2d(2, 2, 3), nn.ReLU6(True), CONV(), nn.ReLU6(), *IN_PLACE, *pooled(5)
    ),
    "forked": lambda: Net(forked, conv=CONV(), norm=nn.BatchNorm2d(5)),
    "weight norm": lambda: nn.Sequential(weight_norm(CONV()), nn.ReLU(), *pooled(5)),
    "frozen weights": frozen,
}


@helpers.cases(SPECIAL)
def test_special_networks_agree_with_stock(case):
    torch.manual_seed(0)
    assert_same_step(case().double(), randn(3, 2, 8, 8))


def test_outputs_are_bit_identical():
    model, x = helpers.small(), randn(4, 2, 12, 12, dtype=torch.float32)
    stock = copy.deepcopy(model)
    assert torch.equal(fast_double_backward(model)(x), stock(x))
    assert all(map(torch.equal, model.buffers(), stock.buffers()))
    assert model[0](x).grad_fn.name() == "ConvolutionBackward0"  # no longer a fast function


@pytest.mark.parametrize(
    ("size", "ceil_mode"),
    [((7, 9), True), ((7, 9), False), ((8, 6), False), ((2, 2), True), ((3, 1), True)],
)
def test_pooling_without_gradients_is_identical(size, ceil_mode):
    x = randn(2, 3, *size)
    x[0, 0, 0, 0] = torch.nan
    actual = fast_double_backward(nn.MaxPool2d(2, ceil_mode=ceil_mode))(x)
    expected = F.max_pool2d(x, 2, ceil_mode=ceil_mode)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        fast_double_backward(nn.MaxPool2d(2))(x[:, :, :1])


class TestPrecision:
    def test_autocast_is_as_precise_as_stock(self):
        model, labels = helpers.small(), torch.arange(8) % helpers.CLASSES
        x, n_gradients = randn(8, 2, 12, 12, dtype=torch.float32), 1 + len([*model.parameters()])
        exact, errors = helpers.step(copy.deepcopy(model), x, labels)[:n_gradients], []
        for network in (copy.deepcopy(model), fast_double_backward(model)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert network(x).dtype == torch.bfloat16
                gradients = helpers.step(network, x, labels)[:n_gradients]
            errors.append(helpers.distance(gradients, exact))
        assert errors[1] <= 1.5 * errors[0]

    def test_float16_agrees_with_stock_autograd(self):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), *pooled(3)[:2]).half()
        x, stock = randn(2, 2, 6, 6, dtype=torch.float16), copy.deepcopy(model)
        assert_same_second_order(fast_double_backward(model), stock, x, rtol=2e-2, atol=2e-3)

    def test_bfloat16_keeps_scale_and_shift_precise(self):
        stock = helpers.in_general_position(nn.BatchNorm2d(3)).eval().bfloat16()
        stock.running_mean.fill_(60.0)  # rounded to bfloat16, a shift of 60 is off by up to 1/8
        x = 60 + randn(4, 3, 8, 8, dtype=torch.bfloat16)
        model = fast_double_backward(copy.deepcopy(stock))
        assert_same_second_order(model, stock, x, rtol=2e-2, atol=1e-2)


def test_weight_gradients_need_no_input_gradient():
    model, x, gradients = helpers.small().double(), randn(3, 2, 12, 12), []
    for network in (fast_double_backward(copy.deepcopy(model)), model):
        network(x).square().sum().backward()
        gradients.append([p.grad for p in network.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_cuda_agrees_with_stock(layout):
    model = helpers.small().double().cuda().to(memory_format=layout)
    x = randn(3, 2, 12, 12).cuda().contiguous(memory_format=layout)
    assert_same_step(model, x)
