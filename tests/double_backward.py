"""Networks, tensors and training steps for the tests of `reglib.double_backward`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
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
        nn.Conv2d(3, 64, 3, padding=1),
        *stages,
        nn.BatchNorm2d(512),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


def _timm(name):
    import timm

    return timm.create_model(name, num_classes=CLASSES)


def _torchvision(name):
    import torchvision

    return torchvision.models.get_model(name, num_classes=CLASSES)


# How to make a network, and the size of its images.
NETWORKS = {
    "LeNet-5": (lambda: build_network("lenet5", (3, 32, 32), CLASSES, options={}, seed=0), 32),
    "MLP": (
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(3072, 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, CLASSES),
        ),
        32,
    ),
    "VGG-11 of torchvision": (lambda: _torchvision("vgg11_bn"), 32),
    "ResNet-18 of torchvision": (lambda: _torchvision("resnet18"), 64),
    "ResNet-18 of timm": (lambda: _timm("resnet18"), 64),
    "PreAct-ResNet": (preactivation, 32),
    "WideResNet-50-2": (lambda: _torchvision("wide_resnet50_2"), 64),
    "EfficientNet-Lite0": (lambda: _timm("efficientnet_lite0"), 64),
}


def network_and_images(name):
    """Build a network in double precision, and three images for it."""
    make, size = NETWORKS[name]
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
        torch.testing.assert_close(
            model.get_buffer(name), buffer, rtol=tolerance, atol=tolerance, msg=name
        )


def small():
    return build_network("convnet", (2, 12, 12), CLASSES, options={"width": 4}, seed=3)
