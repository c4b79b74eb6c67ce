import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from reglib.double_backward import evaluation_mode, fast_double_backward, folded_copy, folding_of
from suite.networks import build_network
from tests import double_backward as helpers
from tests.double_backward import Net, in_general_position, randn
from tests.small_batches import left_alone


def call_odd(net, x):
    """Call batch normalisations that cannot be folded, but for the first."""
    x = net.after_relu(F.relu(net.good(net.conv(x))))
    x = net.after_read(net.read_conv(x)) + net.read_conv.bias.view(1, -1, 1, 1)
    y = net.forked_conv(x)
    x = net.forked(y) + y
    x = net.after_shared(net.shared_conv(net.shared_conv(x)))
    x = net.twice(net.twice(net.twice_conv(x)))
    return net.batch(net.batch_conv(x)).mean((2, 3))


def odd():
    names = "conv read_conv forked_conv shared_conv twice_conv batch_conv".split()
    layers = {name: nn.Conv2d(2, 2, 3, padding=1) for name in names}
    layers |= {name: nn.BatchNorm2d(2) for name in ("good", *REASONS)}
    layers["batch"] = nn.BatchNorm2d(2, track_running_stats=False)
    return in_general_position(Net(call_odd, **layers).double())


REASONS = {
    "after_read": "read_conv or its weight is used more than once",
    "forked": "the output of forked_conv is used elsewhere too",
    "after_relu": "its input is relu, which is not the output of a convolution",
    "after_shared": "shared_conv or its weight is used more than once",
    "twice": "it is called more than once",
    "batch": "it has no running statistics",
    "unused": "it is not called as a module of torch.nn",
}


def test_folding_gives_its_reasons():
    folding = folding_of(odd())
    assert (folding.folded, folding.kept) == ({"good": "conv"}, REASONS)
    assert list(folding.nonlinear.values()) == ["batch normalises by statistics of the batch"]


def test_folding_keeps_second_derivatives():
    model = odd()
    model.unused.requires_grad_(False)
    stock = copy.deepcopy(model).eval()
    helpers.assert_same_second_order(evaluation_mode(model), stock, randn(3, 2, 5, 5))


@pytest.mark.parametrize("name", helpers.NETWORKS)
def test_whole_networks_fold(name):
    model, x = helpers.network_and_images(name)
    in_general_position(model.train())
    results, stock = [], copy.deepcopy(model).eval()
    with left_alone(model):
        folding, folded = folding_of(model), folded_copy(model)
        for network in (stock, folded, evaluation_mode(model)):
            y = network(x.requires_grad_())
            results.append([y.detach(), *torch.autograd.grad(y[:, 0].sum(), x)])
    for expected, *others in zip(*results, strict=True):
        assert all(helpers.distance([actual], [expected]) < 1e-9 for actual in others)
    assert (len(folding.kept) > 0) == (name == "PreAct-ResNet")
    assert not folding.nonlinear
    assert not folding_of(folded).nonlinear
    assert not any(p.requires_grad for p in folded.parameters())
    assert not any(module.training for module in folded.modules())
    # The activation in the layers of timm remains.
    norms = [[m for m in net.modules() if isinstance(m, nn.BatchNorm2d)] for net in (model, folded)]
    assert len(norms[0]) == len(folding.folded) + len(folding.kept)
    assert len(norms[1]) == len(folding.kept)
    assert sum("running_mean" in key for key in folded.state_dict()) == len(folding.kept)


class Unpadded(nn.Conv2d):
    """A convolution that torch.fx traces, since it is not a class of torch."""

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


def test_folded_copy_of_traced_convolution():
    layers = Unpadded(2, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU()
    model = in_general_position(nn.Sequential(*layers).double()).eval()
    traced, x = torch.fx.symbolic_trace(model), randn(2, 2, 6, 6)
    torch.testing.assert_close(folded_copy(traced)(x), model(x))


class TestEvaluationMode:
    def test_leaves_modes_and_statistics_alone(self):
        model = odd().train()
        model.forked.eval()
        with left_alone(model):
            view = evaluation_mode(model)
            view(randn(2, 2, 5, 5))
            with pytest.raises(RuntimeError):
                view(randn(2, 3, 5, 5))

    def test_agrees_where_tracing_fails(self):
        def branch(net, x):
            return net.norm(net.conv(x)) if x.sum() > 0 else x

        model = Net(branch, conv=nn.Conv2d(2, 2, 3), norm=nn.BatchNorm2d(2))
        model, x = in_general_position(model.double()), randn(1, 2, 4, 4).abs()
        folding = folding_of(model)
        assert "cannot be traced" in folding.kept["norm"]
        assert "cannot be traced" in folding.nonlinear["model"]
        view = evaluation_mode(model)
        torch.testing.assert_close(view(x), copy.deepcopy(model).eval()(x))


def attend(net, x):
    return F.scaled_dot_product_attention(x, x, F.hardsigmoid(x))


BATCH = "batch_norm is called with training=True"
WEIGHTS = "conv2d is called with weights that depend on the input"
NONLINEAR = {
    "product": (lambda net, x: (2 * x) * x / 3, ["mul is called"]),
    "attention": (attend, ["scaled_dot_product_attention is called"]),
    "normalised by a buffer": (lambda net, x: (x - net.std) / net.std * net.std, []),
    "over activations": (lambda net, x: net.std / (x - net.std), ["the method div is called"]),
    "computed kernel": (lambda net, x: F.conv2d(x, net.std.view(1, 2, 1, 1)), []),
    "kernel of the input": (lambda net, x: F.conv2d(x, weight=x), [WEIGHTS]),
    "statistics of the batch": (lambda net, x: F.batch_norm(x, None, None, training=True), [BATCH]),
    "quotient": (lambda net, x: x / (x - net.std), ["truediv is called"]),
}


class TestNonlinear:
    @pytest.mark.parametrize("module", [nn.SiLU(), nn.LayerNorm(3), nn.Softplus()], ids=str)
    def test_modules_are_named(self, module):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), module)
        assert folding_of(model).nonlinear == {"_1": f"1 is a {type(module).__name__}"}

    @helpers.cases(NONLINEAR)
    def test_functions_are_named(self, case):
        call, reasons = case
        model = Net(call)
        model.register_buffer("std", torch.tensor([0.5, 0.25]).view(2, 1, 1))
        assert list(folding_of(model).nonlinear.values()) == reasons

    def test_hooks_are_named(self):
        model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3)))
        model[0].register_forward_hook(lambda module, inputs, output: output.square())
        assert folding_of(model).nonlinear == {"0": "0 has a hook or its own forward"}

    @pytest.mark.parametrize("changed", [lambda m: m, lambda m: m[0], lambda m: m[1]])
    def test_replaced_forwards_are_named(self, changed):
        layers = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU()
        model = in_general_position(nn.Sequential(*layers).double()).eval()
        x = randn(2, 2, 6, 6)
        forward = changed(model).forward
        changed(model).forward = lambda x: forward(x).square()
        (reason,) = folding_of(model).nonlinear.values()
        assert folding_of(model).kept == {"1": reason}
        torch.testing.assert_close(folded_copy(model)(x), model(x))


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


class Counts:
    """FLOPs of passes through a network, in units of one forward pass."""

    def __init__(self, name, **options):
        self.model = build_network(name, (3, 16, 16), 10, options=options, seed=0)
        self.x, self.labels = randn(4, 3, 16, 16, dtype=torch.float32), torch.arange(4)
        self.forward = flops(lambda: self.model(self.x))

    def first(self):
        """FLOPs of the first convolution, whose input needs no gradient in the plain step."""
        return flops(lambda: self.model[0](self.x)) / self.forward

    def loss_step(self, model):
        return self.step(model, lambda y: F.cross_entropy(y, self.labels, reduction="none"), True)

    def logit_step(self, model):
        return self.step(model, lambda y: y[:, 0], False)

    def step(self, model, outputs, with_loss):
        def run():
            x = self.x.clone().requires_grad_().clone()  # the counter cannot track a leaf
            scores = outputs(model(x)).sum()
            (gx,) = torch.autograd.grad(scores, x, create_graph=True)
            total = gx.square().sum() + (scores if with_loss else 0)
            torch.autograd.backward(total, inputs=list(self.model.parameters()))

        return flops(run) / self.forward


@pytest.mark.parametrize(
    ("name", "options"),
    [("lenet5", {}), ("convnet", {"width": 8}), ("resnet", {"width": 8})],
    ids=["LeNet-5", "ConvNet", "ResNet-18"],
)
def test_flops_are_the_least(name, options):
    """Guard against slow paths by FLOPs of matrix products and convolutions."""
    counts = Counts(name, **options)
    fast = counts.loss_step(fast_double_backward(counts.model))
    assert fast == pytest.approx(6 - counts.first(), abs=1e-6)
    # The gradient by the output of the last layer is constant, which saves a little.
    assert 3.99 < counts.logit_step(evaluation_mode(counts.model)) <= 4
    assert counts.logit_step(counts.model.eval()) > 5


def test_input_gradient_is_computed_once():
    conv, x = fast_double_backward(nn.Conv2d(1, 4, 3, padding=1)), torch.rand(2, 1, 8, 8)
    forward = flops(lambda: conv(x))
    x = x.requires_grad_().clone()
    assert flops(lambda: torch.autograd.grad(conv(x).sum(), x)) == 2 * forward


def test_nonlinear_network_needs_more_flops():
    counts = Counts("convnet", width=8)
    for index, module in enumerate(counts.model):
        if isinstance(module, nn.ReLU):
            counts.model[index] = nn.SiLU()
    assert counts.logit_step(evaluation_mode(counts.model)) > 5
