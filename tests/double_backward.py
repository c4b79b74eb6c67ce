"""Networks, tensors and training steps for the tests of `reglib.double_backward`."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.autodiff import input_gradient
from reglib.double_backward import evaluation_mode, fast_double_backward
from reglib.regularizers import input_gradient_penalty
from suite.networks import build_network

CLASSES = 5
LABELS = torch.tensor([0, 3, 1])
VIEWS = {
    "training": fast_double_backward,
    "laid out": partial(fast_double_backward, channels_last=True),
    "evaluation": evaluation_mode,
}
each_view = pytest.mark.parametrize("make", [fast_double_backward, evaluation_mode])
gradient = partial(input_gradient, create_graph=True)
PENALTIES = {
    "loss": lambda logits, labels, x: input_gradient_penalty(logits, labels, x).mean(),
    "logit": lambda y, labels, x: gradient(y.gather(1, labels[:, None]), x).square().sum(),
    "log marginal density": lambda y, labels, x: gradient(y.logsumexp(1), x).square().sum(),
    "total variation": lambda logits, _, x: gradient(logits[:, 0], x).diff(dim=-1).abs().sum(),
}


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table)


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def in_general_position(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.is_floating_point():
                noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                value.copy_(noise + 0.5 if "var" in name else noise - 0.5)
    return model


class Net(nn.Module):
    """Layers by name, and a function of the network and its input."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.call(self, x)


def second_order(model, x):
    """Return y, the gradient g of its square by x, and parameter gradients of the square of g."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [y, g, *torch.autograd.grad(g.square().sum(), parameters, materialize_grads=True)]


def assert_same_second_order(model, stock, x, *, rtol=1e-10, atol=1e-12):
    actual, expected = second_order(model, x), second_order(stock, x)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def preactivation_block(inputs, outputs, stride):
    """BatchNorm, ReLU and convolution, twice; the shortcut uses the first ReLU again."""

    def call(net, x):
        out = F.relu(net.norm1(x))
        shortcut = net.shortcut(out)
        return net.conv2(F.relu(net.norm2(net.conv1(out)))) + shortcut

    return Net(
        call,
        norm1=nn.BatchNorm2d(inputs),
        conv1=nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        norm2=nn.BatchNorm2d(outputs),
        conv2=nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        shortcut=nn.Conv2d(inputs, outputs, 1, stride, bias=False),
    )


def pooled(width):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)


def _vgg():
    from torchvision import models

    features = models.vgg.make_layers([8, "M", 16, "M", 24, 24, "M"], batch_norm=True)
    return nn.Sequential(features, *pooled(24))


def _preactivation():
    blocks = (preactivation_block(n, m, stride) for n, m, stride in ((8, 8, 1), (8, 16, 2)))
    end = nn.BatchNorm2d(16), nn.ReLU(inplace=True), *pooled(16)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *end)


def _resnet():
    from torchvision.models import resnet

    return resnet.ResNet(resnet.BasicBlock, [1] * 4, CLASSES)


def _timm(name, **options):
    import timm

    return timm.create_model(name, num_classes=CLASSES, **options)


# Image sizes, and functions that build a network.
NETWORKS = {
    "VGG of torchvision": (16, _vgg),
    "ResNet of torchvision": (32, _resnet),
    "ResNet of timm": (32, lambda: _timm("resnet18", channels=(8, 12, 16, 24))),
    "PreAct-ResNet": (16, _preactivation),
    "EfficientNet-Lite0": (32, lambda: _timm("efficientnet_lite0")),
}


def network_and_images(name):
    size, make = NETWORKS[name]
    torch.manual_seed(0)
    return make().double(), randn(3, 3, size, size)


def step(model, x, labels, penalty="loss"):
    """Return gradients by images and parameters, loss, penalty, and buffers, of one step."""
    torch.manual_seed(0)
    x = x.detach().requires_grad_()
    logits = model(x)
    loss, value = F.cross_entropy(logits, labels), PENALTIES[penalty](logits, labels, x)
    inputs = [x, *(p for p in model.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(loss + value, inputs, materialize_grads=True)
    return [*gradients, loss.detach(), value.detach(), *model.buffers()]


def distance(actual, expected):
    """Return the largest norm of a difference of tensors, relative to the largest tensor."""
    size = max(float(tensor.double().norm()) for tensor in expected)
    pairs = zip(actual, expected, strict=True)
    return max(float((a.double() - b.double()).norm()) for a, b in pairs) / max(size, 1e-300)


def assert_same_step(model, x, *, channels_last=False, tolerance=1e-11):
    labels = LABELS.to(x.device)
    expected = step(copy.deepcopy(model), x, labels)
    view = fast_double_backward(model, channels_last=channels_last)
    assert distance(step(view, x, labels), expected) < tolerance


def small():
    return build_network("convnet", (2, 12, 12), CLASSES, options={"width": 4}, seed=3)
