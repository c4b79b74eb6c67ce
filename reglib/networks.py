"""The networks that the papers train.

Every activation is a module of its own, used once, so that DeepLIFT can replace its gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reglib.errors import UsageError, unknown
from reglib.top_gap import TopGAPNet


class LeNet5(nn.Sequential):
    """LeNet-5 :cite:p:`lecun1998` with ReLU and max-pooling.

    Takes (B, channels, size, size) and returns logits (B, classes). The pooling comes before the
    ReLU: the function is the same as the other way round, on a quarter of the values.
    """

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        if size < 12:
            raise UsageError(f"LeNet-5: expected images of at least 12 pixels a side, got {size}")
        side = (size // 2 - 4) // 2
        super().__init__(
            nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * side * side, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, classes),
        )  # fmt: skip


class ConvNet(nn.Sequential):
    """Six 3x3 convolutions of `width` filters, each with batch normalisation and ReLU.

    Convolutions 3 and 5 have stride 2. Takes (B, channels, size, size), returns (B, classes).
    """

    def __init__(
        self, channels: int = 3, size: int = 32, classes: int = 10, *, width: int = 32
    ) -> None:
        layers: list[nn.Module] = []
        for index in range(6):
            stride = 2 if index in (2, 4) else 1
            layers += _conv_bn(channels, width, 3, stride) + [nn.ReLU()]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class ResNet(nn.Sequential):
    """A residual network of basic blocks :cite:p:`he2016`, of any width and depth.

    Args:
        channels, size, classes: of the images (B, channels, size, size) and logits (B, classes).
        blocks: basic blocks in each stage; (2, 2, 2, 2) is ResNet-18.
        width: filters of the first stage; each further stage has twice as many.
        stem: "cifar" (3x3, stride 1), "strided" (3x3, stride 2) or "imagenet" (7x7 and pooling).
        pre_activation: normalise and activate before each convolution, not after it
            :cite:p:`he2016identity`; (2, 2, 2, 2) is then PreAct-ResNet-18.
    """

    def __init__(
        self,
        channels: int = 3,
        size: int = 32,
        classes: int = 10,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        stem: str = "cifar",
        pre_activation: bool = False,
    ) -> None:
        stems: dict[str, Callable[[], list[nn.Module]]] = {
            "cifar": lambda: _conv_bn(channels, width, 3, 1) + [nn.ReLU()],
            "strided": lambda: _conv_bn(channels, width, 3, 2) + [nn.ReLU()],
            "imagenet": lambda: (
                _conv_bn(channels, width, 7, 2) + [nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
            ),
        }
        if stem not in stems:
            raise unknown("stem", stem, stems)
        layers = stems[stem]()
        if pre_activation and stem != "imagenet":
            layers = layers[:1]
        block = PreActivationBlock if pre_activation else BasicBlock
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(inputs, outputs, stride))
                inputs = outputs
        if pre_activation:
            layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the activations are two separate modules."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_conv_bn(inputs, outputs, 3, stride), nn.ReLU(), *_conv_bn(outputs, outputs, 3, 1)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential(*([] if same else _conv_bn(inputs, outputs, 1, stride)))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """Twice normalisation, ReLU and a 3x3 convolution; the shortcut is not normalised.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.residual = nn.Sequential(
            *_conv_bn(inputs, outputs, 3, stride), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.before(x)
        return self.residual(active) + (x if self.shortcut is None else self.shortcut(active))


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def top_gap(
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    *,
    k: int | float,
    backbone: str = "resnet",
    backbone_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> TopGAPNet:
    """Put Top-GAP around a network of `NETWORKS`; `options` go to `TopGAPNet`."""
    if backbone not in NETWORKS:
        raise unknown("backbone", backbone, NETWORKS)
    network = NETWORKS[backbone](channels, size, classes, **(backbone_options or {}))
    return TopGAPNet(network, classes, k=k, image_size=size, **options)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "convnet": ConvNet,
    "resnet": ResNet,
    "top_gap": top_gap,
}


def build_network(
    name: str, shape: Sequence[int], classes: int, *, options: Mapping[str, Any], seed: int
) -> nn.Module:
    """Build a network with weights drawn from `seed`; the global generator is left as it was.

    Args:
        name: a key of `NETWORKS`.
        shape: of one image, (C, H, W), with H = W.
        classes: number of classes.
        options: further keyword arguments of the network.
        seed: of the initial weights.

    Raises:
        UsageError: unknown network, an option that it does not take, or images that are not square.
    """
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    channels, height, width = shape
    if height != width:
        raise UsageError(f"network {name!r}: expected square images, got {height} x {width}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return NETWORKS[name](channels, height, classes, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"network {name!r}: {error}") from error
