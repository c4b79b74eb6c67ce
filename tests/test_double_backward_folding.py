"""Networks in evaluation mode with batch normalisation folded into convolutions."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from reglib.double_backward import evaluation_mode, fast_double_backward, folded_copy, folding_of
from suite.networks import build_network
from tests.double_backward import in_general_position, network_and_images, randn


class Odd(nn.Module):
    """Each batch normalisation but the first has a reason not to be folded."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.good = nn.BatchNorm2d(2)
        self.forked_conv = nn.Conv2d(2, 2, 3, padding=1)
        self.forked = nn.BatchNorm2d(2)
        self.after_relu = nn.BatchNorm2d(2)
        self.shared_conv = nn.Conv2d(2, 2, 3, padding=1)
        self.after_shared = nn.BatchNorm2d(2)
        self.twice_conv = nn.Conv2d(2, 2, 1)
        self.twice = nn.BatchNorm2d(2)
        self.batch_conv = nn.Conv2d(2, 2, 1)
        self.batch = nn.BatchNorm2d(2, track_running_stats=False)
        self.unused = nn.BatchNorm2d(2)

    def forward(self, x):
        x = self.after_relu(F.relu(self.good(self.conv(x))))
        y = self.forked_conv(x)
        x = self.forked(y) + y
        x = self.after_shared(self.shared_conv(self.shared_conv(x)))
        x = self.twice(self.twice(self.twice_conv(x)))
        return self.batch(self.batch_conv(x)).mean((2, 3))


REASONS = {
    "forked": "the output of forked_conv is used elsewhere too",
    "after_relu": "its input is relu, which is not the output of a convolution",
    "after_shared": "shared_conv or its weight is used more than once",
    "twice": "it is called more than once",
    "batch": "it has no running statistics",
    "unused": "it is not called as a module of torch.nn",
}


def odd():
    return in_general_position(Odd().double())


def test_what_is_not_folded_says_why():
    folding = folding_of(odd())
    assert folding.folded == {"good": "conv"}
    assert folding.kept == REASONS
    assert list(folding.nonlinear.values()) == ["batch normalises by statistics of the batch"]


def test_output_and_gradients_are_those_of_the_network_in_evaluation_mode():
    model = odd()
    x = randn(3, 2, 5, 5).requires_grad_()
    results = []
    for other in (copy.deepcopy(model).eval(), evaluation_mode(model)):
        logits = other(x)
        (gx,) = torch.autograd.grad(logits.square().sum(), x, create_graph=True)
        used = [p for n, p in other.named_parameters() if "unused" not in n]
        gradients = torch.autograd.grad(gx.square().sum(), used, materialize_grads=True)
        results.append([logits, gx, *gradients])
    for wanted, got in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["VGG-11 of torchvision", "ResNet-18 of timm", "EfficientNet-Lite0", "PreAct-ResNet"]
)
def test_whole_networks_fold(name):
    model, x = network_and_images(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    folding = folding_of(model)
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert len(folding.folded) + len(folding.kept) == norms
    assert (len(folding.kept) == 0) == (name != "PreAct-ResNet")
    assert not folding.nonlinear
    with torch.no_grad():
        folded = evaluation_mode(model.train())(x)
        torch.testing.assert_close(folded, model.eval()(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["ResNet-18 of torchvision", "EfficientNet-Lite0"])
def test_a_folded_copy_gives_the_same_and_is_a_copy(name):
    model, x = network_and_images(name)
    in_general_position(model.train())
    state = copy.deepcopy(model.state_dict())
    folded = folded_copy(model)
    x.requires_grad_()
    wanted = copy.deepcopy(model).eval()(x)
    found = folded(x)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(y[:, 0].sum(), x)[0] for y in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9 * float(gradients[1].abs().max()))
    assert not any(p.requires_grad for p in folded.parameters())
    assert not any(module.training for module in folded.modules())
    assert all(torch.equal(v, state[n]) for n, v in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert model.training


def test_a_folded_copy_has_fewer_layers():
    model = build_network("resnet", (1, 16, 16), 3, options={"width": 2}, seed=0)
    left = [m for m in folded_copy(model).modules() if isinstance(m, nn.BatchNorm2d)]
    assert not left
    assert len(folding_of(model).folded) == 20


class Unpadded(nn.Conv2d):
    """A convolution that torch.fx looks into, since it is not one of torch."""

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


def test_a_convolution_that_was_traced_is_right_in_a_folded_copy():
    layers = [Unpadded(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU()]
    model = in_general_position(nn.Sequential(*layers).double()).eval()
    traced = torch.fx.symbolic_trace(model)
    x = randn(2, 2, 6, 6)
    torch.testing.assert_close(folded_copy(traced)(x), model(x))


def test_a_folded_copy_keeps_the_activation_that_timm_has_in_a_normalisation():
    model, _ = network_and_images("EfficientNet-Lite0")
    assert any(type(m).__name__ == "BatchNormAct2d" for m in model.modules())
    folded = folded_copy(model)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    assert not any("running_mean" in name for name in folded.state_dict())
    assert not folding_of(folded).nonlinear


def test_modes_and_statistics_are_left_as_they_were():
    model = odd().train()
    model.forked.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    view = evaluation_mode(model)
    view(randn(2, 2, 5, 5))
    with pytest.raises(RuntimeError):
        view(randn(2, 3, 5, 5))
    assert [module.training for module in model.modules()] == modes
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_new_weights_and_statistics_are_seen_in_the_next_call():
    model = odd()
    view = evaluation_mode(model)
    x = randn(2, 2, 5, 5)
    view(x)
    in_general_position(model, seed=9)
    torch.testing.assert_close(view(x), copy.deepcopy(model).eval()(x))


def test_hooks_that_would_see_or_change_other_values_stop_the_folding():
    model = odd()
    view = evaluation_mode(model)
    x = randn(2, 2, 5, 5)
    seen = []
    handle = model.conv.register_forward_hook(
        lambda module, given, out: seen.append(out) or 2 * out
    )
    wanted = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(view(x), wanted)
    torch.testing.assert_close(seen[0], seen[1])
    handle.remove()
    model.good.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    torch.testing.assert_close(view(x), copy.deepcopy(model).eval()(x))


def test_weights_that_a_hook_makes_are_not_folded_and_not_forgotten():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)).double()
    in_general_position(model)
    model[0].register_forward_pre_hook(
        lambda module, _: module.__dict__.update(weight=2 * module._parameters["weight"])
    )
    kept = model[0]._parameters["weight"]
    view, folded = evaluation_mode(model), folded_copy(model)
    x = randn(2, 2, 5, 5)
    wanted = copy.deepcopy(model[1]).eval()(F.conv2d(x, 2 * kept, model[0].bias))
    torch.testing.assert_close(view(x), wanted)
    torch.testing.assert_close(folded(x), wanted)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize(
    "norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm], ids=["hook", "new"]
)
def test_reparametrised_convolutions_are_not_folded(norm):
    model = in_general_position(nn.Sequential(norm(nn.Conv2d(2, 2, 3)), nn.BatchNorm2d(2)).double())
    x = randn(2, 2, 5, 5)
    wanted = copy.deepcopy(model).eval()(x) if norm is not nn.utils.weight_norm else None
    assert not folding_of(model).folded
    found = evaluation_mode(model)(x)
    torch.testing.assert_close(found, model.eval()(x) if wanted is None else wanted)


class Branching(nn.Module):
    """A network that cannot be traced: where it goes depends on its input."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        return self.norm(self.conv(x)) if x.sum() > 0 else x


def test_a_network_that_cannot_be_traced_is_right_and_says_so():
    model = in_general_position(Branching().double())
    folding = folding_of(model)
    assert "cannot be traced" in folding.kept["norm"]
    assert "cannot be traced" in folding.nonlinear["model"]
    x = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(evaluation_mode(model)(x), copy.deepcopy(model).eval()(x))


@pytest.mark.parametrize("module", [nn.SiLU(), nn.LayerNorm(3), nn.Softplus()], ids=str)
def test_what_is_nonlinear_is_named(module):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), module)
    assert folding_of(model).nonlinear == {"_1": f"1 is a {type(module).__name__}"}


def test_attention_is_nonlinear_and_hardsigmoid_is_not():
    class Attends(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, F.hardsigmoid(x))

    reasons = list(folding_of(Attends()).nonlinear.values())
    assert reasons == ["scaled_dot_product_attention is called"]


def test_a_normalisation_by_buffers_is_linear_and_a_quotient_of_activations_is_not():
    class Normalised(nn.Module):
        def __init__(self, top):
            super().__init__()
            self.top = top
            self.register_buffer("std", torch.tensor([0.5, 0.25]).view(2, 1, 1))

        def forward(self, x):
            scaled = (x - self.std) / self.std * self.std
            return self.std / scaled if self.top else scaled

    assert not folding_of(Normalised(False)).nonlinear
    assert len(folding_of(Normalised(True)).nonlinear) == 1


def test_a_product_of_activations_is_nonlinear_and_one_with_a_number_is_not():
    class Products(nn.Module):
        def forward(self, x):
            return (2 * x) * x / 3

    assert list(folding_of(Products()).nonlinear.values()) == ["mul is called"]


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


class Counts:
    """FLOPs of passes through a network, in units of one forward pass."""

    def __init__(self, name, **options):
        shape = (3, 16, 16)
        self.model = build_network(name, shape, 10, options=options, seed=0)
        self.x = randn(4, *shape, dtype=torch.float32)
        self.labels = torch.arange(4)
        self.forward = flops(lambda: self.model(self.x))

    def first(self):
        """FLOPs of the first convolution, of whose input the plain step needs no gradient."""
        return flops(lambda: self.model[0](self.x)) / self.forward

    def step(self, model, outputs):
        def run():
            x = self.x.clone().requires_grad_().clone()  # the counter cannot track a leaf
            scores = outputs(model(x))
            (gx,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
            loss = scores.sum() + gx.square().sum() if outputs is self.loss else gx.square().sum()
            torch.autograd.backward(loss, inputs=list(self.model.parameters()))

        return flops(run) / self.forward

    def loss(self, logits):
        return F.cross_entropy(logits, self.labels, reduction="none")

    def logit(self, logits):
        return logits[:, 0]


@pytest.mark.parametrize(
    ("name", "options"),
    [("lenet5", {}), ("convnet", {"width": 8}), ("resnet", {"width": 8})],
    ids=["LeNet-5", "ConvNet", "ResNet-18"],
)
def test_no_pass_is_made_that_the_arithmetic_does_not_ask_for(name, options):
    """The guard against slow paths: FLOPs of matrix products and convolutions, not seconds."""
    counts = Counts(name, **options)
    fast = counts.step(fast_double_backward(counts.model), counts.loss)
    assert fast == pytest.approx(6 - counts.first(), abs=1e-6)
    evaluated = counts.step(evaluation_mode(counts.model), counts.logit)
    assert 3.99 < evaluated <= 4  # the last layer's output gradient is constant
    assert counts.step(counts.model.eval(), counts.logit) > 5


def test_an_input_gradient_by_a_turned_kernel_is_computed_once():
    conv = fast_double_backward(nn.Conv2d(1, 4, 3, padding=1))
    x = torch.rand(2, 1, 8, 8)
    forward = flops(lambda: conv(x))
    x = x.requires_grad_().clone()
    assert flops(lambda: torch.autograd.grad(conv(x).sum(), x)) == 2 * forward


def test_a_nonlinear_network_needs_the_pass_through_the_activations():
    counts = Counts("convnet", width=8)
    for index, module in enumerate(counts.model):
        if isinstance(module, nn.ReLU):
            counts.model[index] = nn.SiLU()
    assert counts.step(evaluation_mode(counts.model), counts.logit) > 5
