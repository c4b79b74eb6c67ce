"""Networks, tensors and training steps for the tests of `reglib.double_backward`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import evaluation_mode, fast_double_backward
from reglib.regularizers import input_gradient_penalty
from suite.networks import build_network

CLASSES = 5


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


class Net(nn.Module):
    """Layers by name, and what a function of them makes of the images."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.call(self, x)


def second_order(model, x):
    """Return output, input gradient of its square, and the derivatives of that one's square."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    by = [p for p in model.parameters() if p.requires_grad]
    return [y, g, *torch.autograd.grad(g.square().sum(), by, materialize_grads=True)]


def assert_same_second_order(model, expected, x, *, rtol=1e-10, atol=1e-12):
    for got, wanted in zip(second_order(model, x), second_order(expected, x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)


def preactivation_block(inputs, outputs, stride):
    """BatchNorm, ReLU and convolution, twice, with functional ReLU that is used again."""

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


def _mlp():
    layers = nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)
    return nn.Sequential(nn.Flatten(), *layers)


def _vgg():
    from torchvision import models

    features = models.vgg.make_layers([8, "M", 16, "M", 24, 24, "M"], batch_norm=True)
    return nn.Sequential(features, *pooled(24))


def _preactivation():
    blocks = (preactivation_block(n, m, stride) for n, m, stride in ((8, 8, 1), (8, 16, 2)))
    end = nn.BatchNorm2d(16), nn.ReLU(inplace=True), *pooled(16)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *end)


def _resnet(block, **options):
    from torchvision.models import resnet

    return resnet.ResNet(getattr(resnet, block), [1] * 4, CLASSES, **options)


def _timm(name, **options):
    import timm

    return timm.create_model(name, num_classes=CLASSES, **options)


# The size of images, and how to make a network for them.
NETWORKS = {
    "LeNet-5": (32, lambda: build_network("lenet5", (3, 32, 32), CLASSES, options={}, seed=0)),
    "MLP": (8, _mlp),
    "VGG of torchvision": (16, _vgg),
    "ResNet of torchvision": (32, lambda: _resnet("BasicBlock")),
    "ResNet of timm": (32, lambda: _timm("resnet18", channels=(8, 12, 16, 24))),
    "PreAct-ResNet": (16, _preactivation),
    "bottlenecks": (32, lambda: _resnet("Bottleneck", groups=2, width_per_group=4)),
    "EfficientNet-Lite0": (32, lambda: _timm("efficientnet_lite0")),
}


def network_and_images(name):
    """Build a network in double precision, and three images for it."""
    size, make = NETWORKS[name]
    torch.manual_seed(0)
    return make().double(), randn(3, 3, size, size)


def step(model, x, labels, *, seed=0):
    """Return loss, penalty and parameter gradients of one training step."""
    torch.manual_seed(seed)
    x = x.detach().requires_grad_()
    logits = model(x)
    loss = F.cross_entropy(logits, labels)
    penalty = input_gradient_penalty(logits, labels, x).mean()
    gradients = torch.autograd.grad(loss + penalty, list(model.parameters()))
    return {"loss": loss.detach(), "penalty": penalty.detach()}, gradients


def assert_same_step(model, x, labels, *, tolerance=1e-12, channels_last=False):
    """Compare a step with stock autograd, running statistics included."""
    stock = copy.deepcopy(model)
    wanted, wanted_gradients = step(stock, x, labels)
    got, gradients = step(fast_double_backward(model, channels_last=channels_last), x, labels)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=tolerance, atol=tolerance)
    size = max(float(g.norm()) for g in wanted_gradients)
    for a, b in zip(gradients, wanted_gradients):
        assert float((a - b).norm()) <= tolerance * size
    for name, buffer in stock.named_buffers():
        own = model.get_buffer(name)
        torch.testing.assert_close(own, buffer, rtol=tolerance, atol=tolerance, msg=name)


VIEWS = {
    "training": fast_double_backward,
    "laid out": lambda model: fast_double_backward(model, channels_last=True),
    "evaluation": evaluation_mode,
}


def small():
    return build_network("convnet", (2, 12, 12), CLASSES, options={"width": 4}, seed=3)
