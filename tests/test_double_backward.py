"""Exact fast layers against finite differences, and against stock autograd on whole networks."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reglib.double_backward import (
    DEFAULT,
    calls_of,
    evaluation_mode,
    fast_double_backward,
)
from reglib.double_backward.layers import FastLayers
from reglib.networks import build_network
from reglib.regularizers import input_gradient_penalty

CLASSES = 5
CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "one channel": {"kernel_size": 3, "in_channels": 1, "padding": 1},
    "one channel, much padding": {"kernel_size": 2, "in_channels": 1, "padding": 2},
    "one channel, dilated": {"kernel_size": 3, "in_channels": 1, "padding": 1, "dilation": 2},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "strides that leave a rest": {"kernel_size": 2, "stride": (3, 2)},
    "oblong": {"kernel_size": (1, 3), "padding": (0, 1)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": 2},
    "groups": {"kernel_size": 3, "in_channels": 4, "groups": 2},
    "depthwise": {"kernel_size": 3, "in_channels": 4, "groups": 4, "padding": 1},
    "same": {"kernel_size": 3, "padding": "same", "dilation": 2},
    "same, not symmetric": {"kernel_size": 2, "padding": "same"},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "without bias": {"kernel_size": 3, "bias": False},
    "1 x 1": {"kernel_size": 1},
}
NORMS = {
    "training": {},
    "without affine parameters": {"affine": False},
    "without running statistics": {"track_running_stats": False},
    "without either": {"affine": False, "track_running_stats": False},
    "cumulative average": {"momentum": None},
    "evaluation": {"training": False},
    "evaluation, without affine parameters": {"affine": False, "training": False},
    "evaluation, without running statistics": {"track_running_stats": False, "training": False},
}
ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.5, 0.7),
    "leaky relu": nn.LeakyReLU(0.2),
    "leaky relu, negative slope": nn.LeakyReLU(-0.2),
}
POOLS = {
    "max": nn.MaxPool2d(2),
    "max, overlapping": nn.MaxPool2d(3, 2, padding=1),
    "max, dilated, ceiling": nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True),
    "average": nn.AvgPool2d(2),
    "average, overlapping": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "average, own divisor": nn.AvgPool2d(2, divisor_override=3, ceil_mode=True),
    "adaptive average": nn.AdaptiveAvgPool2d((2, 3)),
    "adaptive average to one": nn.AdaptiveAvgPool2d(1),
    "adaptive average, one side free": nn.AdaptiveAvgPool2d((None, 2)),
    "adaptive max": nn.AdaptiveMaxPool2d((3, 2)),
}


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table)


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def in_general_position(model, seed=1):
    """Draw every parameter and buffer of floating point anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point():
                noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                value.copy_(noise + 0.5 if "var" in name else noise - 0.5)
    return model


def check_layer(layer, x):
    """Check first, second and third derivatives by the input and all parameters."""
    layer = in_general_position(layer.double())
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().requires_grad_() for p in layer.parameters()]
    x = x.requires_grad_()

    def function(x, *values):
        state = dict(zip(names, values)) | dict(copy.deepcopy(layer).named_buffers())
        with FastLayers():
            return torch.func.functional_call(layer, state, (x,))

    y = function(x, *values)
    assert torch.autograd.gradcheck(function, (x, *values))
    assert torch.autograd.gradgradcheck(function, (x, *values), randn(*y.shape).requires_grad_())
    gy = randn(*y.shape, seed=3).requires_grad_()

    def second(gy, x, *values):
        """Differentiate the squared input gradient, which the next check differentiates twice."""
        y = function(x, *values)
        (gx,) = torch.autograd.grad(y, x, gy, create_graph=True)
        return torch.autograd.grad(
            gx.square().sum(), (x, *values), create_graph=True, materialize_grads=True
        )

    assert torch.autograd.gradcheck(second, (gy, x, *values))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@cases(CONVOLUTIONS)
def test_convolution(case):
    settings = {"in_channels": 2, "out_channels": 4, **case}
    check_layer(nn.Conv2d(**settings), randn(2, settings["in_channels"], 6, 5))


@cases(NORMS)
@pytest.mark.parametrize("shape", [(3, 2, 2, 3), (5, 2)], ids=["images", "features"])
def test_batch_norm(case, shape):
    settings = dict(case)
    training = settings.pop("training", True)
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    check_layer(kind(2, **settings).train(training), randn(*shape))


@cases(ACTIVATIONS)
def test_activation(case):
    check_layer(case, randn(3, 7))


@cases(POOLS)
@pytest.mark.parametrize("size", [(6, 5), (8, 6)], ids=["odd", "even"])
def test_pool(case, size):
    check_layer(case, randn(2, 2, *size))


def test_linear_and_what_follows():
    check_layer(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), randn(3, 4))


def test_all_orders_of_differentiation_agree_with_stock_autograd():
    """A chain of gradients, each by something else, with the graph kept to the end."""
    layer = in_general_position(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 2, 2)).double()
    )
    results = []
    for model in (layer, fast_double_backward(layer)):
        x = randn(3, 2, 8, 8).requires_grad_()
        (by_weight,) = torch.autograd.grad(
            model(x).square().sum(), layer[0].weight, create_graph=True
        )
        (by_x,) = torch.autograd.grad(by_weight.square().sum(), x, create_graph=True)
        by_last, by_weight = torch.autograd.grad(
            by_x.square().sum(), (layer[3].weight, layer[0].weight), create_graph=True
        )
        results.append((by_x, by_last, by_weight))
    for wanted, got in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


class DecomposedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation by elementary operations: stock autograd can differentiate it often."""

    def forward(self, x):
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        y = (x - mean) / (var + self.eps).sqrt()
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("coupling", [0.0, 1.0], ids=["scale apart", "scale from the input"])
def test_derivatives_of_batch_norm_under_a_curved_head(order, coupling):
    """The gradient that arrives depends on the input, and the scale may do so too."""
    results = []
    for kind in (DecomposedBatchNorm, nn.BatchNorm2d):
        norm = fast_double_backward(in_general_position(kind(2).double()))
        x, direction, t = randn(3, 2, 2, 2), randn(3, 2, 2, 2, seed=5), randn().requires_grad_()
        point = x + t * direction
        scale = norm.weight * (1 + point.mean().sin()) if coupling else norm.weight.detach()
        value = torch.func.functional_call(norm, {"weight": scale}, (point,)).tanh()
        value = (value * randn(3, 2, 2, 2, seed=6)).sum()
        for _ in range(order):
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        by = [norm.bias, norm.weight] if coupling else [norm.bias]
        results.append([value, *torch.autograd.grad(value, by)])
    for wanted, got in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def preactivation():
    class Block(nn.Module):
        """BatchNorm, ReLU and convolution, twice, with functional ReLU that is used again."""

        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.norm1 = nn.BatchNorm2d(inputs)
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, x):
            out = F.relu(self.norm1(x))
            shortcut = self.shortcut(out)
            out = self.conv1(out)
            return self.conv2(F.relu(self.norm2(out))) + shortcut

    stages = [Block(64 * 2 ** max(i - 1, 0), 64 * 2**i, 1 if i == 0 else 2) for i in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), *stages, nn.BatchNorm2d(512), nn.ReLU(inplace=True),
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def networks():
    import timm
    import torchvision

    three = (3, 32, 32)
    return {
        "LeNet-5": (build_network("lenet5", three, CLASSES, options={}, seed=0), 32),
        "MLP": (
            nn.Sequential(
                nn.Flatten(), nn.Linear(3072, 256), nn.BatchNorm1d(256), nn.ReLU(),
                nn.Linear(256, CLASSES),
            ), 32,
        ),
        "VGG-11 of torchvision": (torchvision.models.vgg11_bn(num_classes=CLASSES), 32),
        "ResNet-18 of torchvision": (torchvision.models.resnet18(num_classes=CLASSES), 64),
        "ResNet-18 of timm": (timm.create_model("resnet18", num_classes=CLASSES), 64),
        "PreAct-ResNet": (preactivation(), 32),
        "WideResNet-50-2": (torchvision.models.wide_resnet50_2(num_classes=CLASSES), 64),
        "EfficientNet-Lite0": (timm.create_model("efficientnet_lite0", num_classes=CLASSES), 64),
    }  # fmt: skip


def step(model, x, labels, *, seed=0):
    """Return loss, penalty and parameter gradients of one training step."""
    torch.manual_seed(seed)
    x = x.detach().requires_grad_()
    logits = model(x)
    loss = F.cross_entropy(logits, labels)
    penalty = input_gradient_penalty(logits, labels, x).mean()
    gradients = torch.autograd.grad(loss + penalty, list(model.parameters()))
    return {"loss": loss.detach(), "penalty": penalty.detach()}, gradients


def assert_same_step(model, x, labels, *, tolerance=1e-12):
    """Compare a step with stock autograd, running statistics included."""
    stock = copy.deepcopy(model)
    wanted, wanted_gradients = step(stock, x, labels)
    got, gradients = step(fast_double_backward(model), x, labels)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=tolerance, atol=tolerance)
    size = max(float(g.norm()) for g in wanted_gradients)
    for a, b in zip(gradients, wanted_gradients):
        assert float((a - b).norm()) <= tolerance * size
    for name, buffer in stock.named_buffers():
        torch.testing.assert_close(
            model.get_buffer(name), buffer, rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("name", [
    "LeNet-5", "MLP", "VGG-11 of torchvision", "ResNet-18 of torchvision", "ResNet-18 of timm",
    "PreAct-ResNet", "WideResNet-50-2", "EfficientNet-Lite0",
])  # fmt: skip
def test_networks_at_full_width_agree_with_stock_autograd(name):
    torch.manual_seed(0)
    model, size = networks()[name]
    labels = torch.tensor([0, 3, 1])
    assert_same_step(model.double().train(), randn(3, 3, size, size), labels, tolerance=1e-11)


def test_what_is_fast_is_listed_and_what_is_not():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.SiLU(), nn.Flatten(), nn.Linear(18, 2)
    )
    calls = calls_of(model, torch.rand(2, 1, 5, 5))
    assert dict(calls.fast) == {"torch.nn.functional.conv2d": 1}
    assert set(calls.stock) == {
        "torch.nn.functional.group_norm", "torch.nn.functional.silu", "torch.Tensor.flatten",
        "torch.nn.functional.linear",
    }  # fmt: skip


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
        nn.Conv2d(2, CLASSES, 3), nn.ReLU6(), nn.ReLU(inplace=True), nn.LeakyReLU(0.1),
        nn.LeakyReLU(0.1, inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ),
    "used twice, in place": Reused,
    "forked": Forked,
    "in-place relatives of ReLU": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU6(inplace=True), nn.Conv2d(4, 4, 3), nn.LeakyReLU(inplace=True),
        nn.Conv2d(4, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ),
    "lazy, called before": lambda: _called(
        nn.Sequential(nn.LazyConv2d(3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES)),
    ),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES),
    ),
    "frozen weights": lambda: _frozen(
        nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3),
            nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES),
        )
    ),
}  # fmt: skip


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


def small():
    return build_network("convnet", (2, 12, 12), CLASSES, options={"width": 4}, seed=3)


def test_a_view_has_the_state_of_its_network():
    model = small()
    fast = fast_double_backward(model)
    assert isinstance(fast, type(model))
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters()))
    fast.eval()
    assert not model.training
    assert not model[0].training
    model.double()
    assert next(fast.parameters()).dtype == torch.float64
    fast[-1] = nn.Linear(4, 2)
    assert model[-1].out_features == 2
    assert fast_double_backward(fast) is fast


def test_the_network_itself_is_as_it_was():
    model = small()
    before = set(vars(model))
    fast_double_backward(model)
    evaluation_mode(model)
    assert type(model).__name__ == "ConvNet"
    assert set(vars(model)) == before
    x = torch.rand(2, 2, 12, 12)
    assert model[0](x).grad_fn.name() == "ConvolutionBackward0"
    assert model(x).requires_grad


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


def test_hooks_of_every_kind_fire():
    model = small()
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append("network, before"))
    model[0].register_forward_hook(lambda *_: seen.append("convolution"))
    model[1].register_full_backward_hook(lambda *_: seen.append("norm, gradient"))
    fast = fast_double_backward(model)
    model[2].register_forward_hook(lambda *_: seen.append("registered later"))
    fast(torch.rand(2, 2, 12, 12, requires_grad=True)).sum().backward()
    assert seen == ["network, before", "convolution", "registered later", "norm, gradient"]


@pytest.mark.parametrize("make", [fast_double_backward, evaluation_mode])
def test_copies_and_pickles_are_views_with_a_state_of_their_own(make):
    view = make(small())
    file = io.BytesIO()
    torch.save(view, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for again in (copy.deepcopy(view), pickle.loads(pickle.dumps(view)), loaded):
        assert type(again).__name__ == type(view).__name__
        x = torch.rand(2, 2, 12, 12)
        torch.testing.assert_close(again(x), view(x))
        assert not any(a is b for a, b in zip(again.parameters(), view.parameters()))
        with torch.no_grad():
            next(again.parameters()).zero_()
        assert next(view.parameters()).any()


def test_loading_a_state_reaches_the_network():
    model, other = small(), small()
    with torch.no_grad():
        other[0].weight.fill_(2)
    fast_double_backward(model).load_state_dict(other.state_dict())
    assert torch.equal(model[0].weight, other[0].weight)


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


def test_without_gradients_nothing_is_recorded():
    fast = fast_double_backward(small())
    x = torch.rand(2, 2, 12, 12)
    with torch.no_grad():
        assert fast(x).grad_fn is None
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert fast(x).requires_grad


def test_an_input_without_gradient_still_gives_those_of_the_weights():
    model = small().double()
    stock = copy.deepcopy(model)
    x = randn(3, 2, 12, 12)
    fast_double_backward(model)(x).square().sum().backward()
    stock(x).square().sum().backward()
    for a, b in zip(model.parameters(), stock.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_function_transforms_and_forward_mode_get_stock_functions():
    model = small().double().eval()
    fast = fast_double_backward(model)
    x, direction = randn(2, 2, 12, 12), randn(2, 2, 12, 12, seed=1)
    wanted = torch.func.jvp(model, (x,), (direction,))
    got = torch.func.jvp(fast, (x,), (direction,))
    torch.testing.assert_close(got, wanted)
    rows = [
        torch.func.vmap(torch.func.grad(lambda v, f=f: f(v[None]).sum())) for f in (fast, model)
    ]
    torch.testing.assert_close(rows[0](x), rows[1](x))
    with torch.autograd.forward_ad.dual_level():
        dual = fast(torch.autograd.forward_ad.make_dual(x, direction))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, wanted[1])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False).mean((2, 3)))


def test_activation_checkpointing_gets_stock_functions():
    model = in_general_position(Checkpointed().double())
    assert_same_step(model, randn(3, 2, 6, 6), torch.tensor([0, 3, 1]))
    calls = calls_of(model, randn(3, 2, 6, 6).requires_grad_())
    assert not calls.fast


def test_checkpointing_is_refused_where_it_would_run_in_another_mode():
    model = in_general_position(Checkpointed().double())
    x = randn(3, 2, 6, 6).requires_grad_()
    with pytest.raises(RuntimeError, match="expected no activation checkpointing"):
        evaluation_mode(model)(x)
    wanted = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(evaluation_mode(model.eval())(x), wanted)


def test_complex_convolutions_stay_stock():
    conv = nn.Conv2d(1, 2, 3, dtype=torch.complex128)
    x = torch.rand(1, 1, 4, 4, dtype=torch.complex128, requires_grad=True)
    assert calls_of(conv, x).fast == {}
    torch.testing.assert_close(fast_double_backward(conv)(x), conv(x))


def test_a_single_image_without_a_batch_stays_stock():
    conv = nn.Conv2d(1, 2, 3)
    x = torch.rand(1, 4, 4, requires_grad=True)
    torch.testing.assert_close(fast_double_backward(conv)(x), conv(x))
    assert calls_of(conv, x).fast == {}


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


def test_one_value_in_a_channel_is_refused_as_by_stock_autograd():
    x = torch.rand(1, 2, 1, 1, requires_grad=True)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        fast_double_backward(nn.BatchNorm2d(2))(x)


def test_a_network_changed_in_place_between_the_passes_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 1, 3))
    x = torch.rand(1, 1, 5, 5, requires_grad=True)
    y = fast_double_backward(model)(x).square().sum()
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: F.relu, "model: expected a torch.nn.Module, got function"),
        (lambda: nn.LazyConv2d(2, 3), "got LazyConv2d; call it once on an input first"),
        (
            lambda: nn.Sequential(torch.jit.script(nn.ReLU())),
            "model.0: expected a module in Python, got TorchScript",
        ),
    ],
    ids=["function", "lazy", "TorchScript"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_what_a_view_cannot_be_made_of_is_refused_by_name(model, text):
    for make in (fast_double_backward, evaluation_mode):
        with pytest.raises(ValueError, match=text):
            make(model())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_modules_are_refused_by_name():
    model = nn.Sequential(torch.ao.nn.quantized.Conv2d(1, 1, 3))
    with pytest.raises(ValueError, match=r"model.0: expected a floating-point module.*Conv2d"):
        fast_double_backward(model)


def test_a_submodule_may_be_lazy_until_its_first_call():
    fast = fast_double_backward(nn.Sequential(nn.LazyConv2d(2, 3), nn.ReLU()))
    x = torch.rand(1, 1, 5, 5, requires_grad=True)
    assert fast(x).shape == (1, 2, 3, 3)
    assert calls_of(fast, x).fast


def test_defaults_are_choices():
    assert set(DEFAULT) == {"cpu", "cuda"}
    assert set(DEFAULT.values()) <= {"fast", "stock"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_cuda_agrees_with_stock_autograd(layout):
    model = small().double().cuda().to(memory_format=layout)
    x = randn(4, 2, 12, 12).cuda().contiguous(memory_format=layout)
    assert_same_step(model, x, torch.arange(4).cuda(), tolerance=1e-11)
