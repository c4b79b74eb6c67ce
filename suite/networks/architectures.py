"""The networks that the papers train.

Every activation is a separate module, used once, so that DeepLIFT can replace its gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from reglib.top_gap import TopGAPNet
from reglib.top_gap.backbones import backbone_of, normalised
from suite.errors import UsageError, check_name, expected
from suite.networks.blocks import BasicBlock, BottleneckBlock, PreActivationBlock, conv_bn
from suite.networks.defences import CHANGES
from suite.networks.pretrained import PRETRAINED, load_pretrained, with_own_activation

Size = int | tuple[int, int]


def _dense(*sizes: int) -> list[nn.Module]:
    """Return linear layers between layers of these sizes, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _head(channels: int, classes: int) -> list[nn.Module]:
    """Return layers that average feature maps and classify the means."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def _square_side(size: Size, network: str) -> int:
    """Return the side of square images; raise a UsageError for others."""
    if not isinstance(size, int):
        raise UsageError(f"{network}: expected square images, got {size[0]} x {size[1]}")
    return size


class LeNet5(nn.Sequential):
    """LeNet-5 :cite:p:`lecun1998` with ReLU and max-pooling.

    Takes (B, channels, size, size) and returns logits (B, classes). The pooling comes before the
    ReLU, which then has a quarter of the values; the function is the same.
    """

    def __init__(self, channels: int, size: Size, classes: int) -> None:
        size = _square_side(size, "LeNet-5")
        if size < 12:
            raise UsageError(f"LeNet-5: expected images of at least 12 pixels a side, got {size}")
        side = (size // 2 - 4) // 2
        layers = [nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
        layers += [nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
        super().__init__(*layers, *_dense(16 * side * side, 120, 84, classes))


class MLP(nn.Sequential):
    """A multi-layer perceptron with ReLU.

    Args:
        channels, size, classes: of the images (B, channels, height, width) and logits (B, classes).
        hidden: units of each hidden layer.
    """

    def __init__(
        self, channels: int, size: Size, classes: int, *, hidden: Sequence[int] = (256, 256)
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        super().__init__(nn.Flatten(), *_dense(channels * height * width, *hidden, classes))


class VGG11(nn.Sequential):
    """VGG-11 :cite:p:`simonyan2015` for small images: no batch normalisation, one linear layer.

    Takes (B, channels, height, width) and returns logits (B, classes). Five max-poolings, which
    keep an odd last row, come before the ReLU. Initial weights are those of torchvision, since the
    signal fades from layer to layer with PyTorch's defaults.

    Args:
        channels, size, classes: of images and logits; any size works.
        width: filters of the first layer; later layers have up to eight times as many.
    """

    def __init__(self, channels: int, size: Size, classes: int, *, width: int = 64) -> None:
        layers: list[nn.Module] = []
        for factor, pooled in zip((1, 2, 4, 4, 8, 8, 8, 8), (1, 1, 0, 1, 0, 1, 0, 1), strict=True):
            layers.append(nn.Conv2d(channels, factor * width, 3, padding=1))
            layers += [nn.MaxPool2d(2, ceil_mode=True)] * pooled + [nn.ReLU()]
            channels = factor * width
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        super().__init__(*layers, *_head(channels, classes))


class ConvNet(nn.Sequential):
    """Six 3x3 convolutions of `width` filters, each with batch normalisation and ReLU.

    Convolutions 3 and 5 have stride 2. Takes (B, channels, size, size), returns (B, classes).
    """

    def __init__(self, channels: int, size: Size, classes: int, *, width: int = 32) -> None:
        layers: list[nn.Module] = []
        for stride in (1, 1, 2, 1, 2, 1):
            layers += conv_bn(channels, width, 3, stride) + [nn.ReLU()]
            channels = width
        super().__init__(*layers, *_head(width, classes))


class FastVGG(nn.Sequential):
    """Seven convolutions for small colour images that train fast, after :cite:t:`jordan2024`.

    The first is 2x2 without padding. It starts as cosine transforms of three mixtures of the
    colours, each with both signs: with its batch normalisation it whitens patches. Three blocks of
    two 3x3 convolutions follow, of 48, 128 and 192 filters, which start as the identity on the
    first maps. A max-pooling comes after the first convolution of each block.

    Args:
        channels, size, classes: of the images (B, 3, size, size) and logits (B, classes).
    """

    def __init__(self, channels: int, size: Size, classes: int) -> None:
        if channels != 3:
            raise expected("fast_vgg", "colour images", f"{channels} channels")
        cosines, colours = torch.tensor([[1.0, 1], [1, -1]]), torch.tensor(COLOURS)
        patches = torch.einsum("ay,bx,mc->abmcyx", cosines, cosines, F.normalize(colours))
        first = nn.Conv2d(channels, inputs := 24, 2, bias=False)
        first.weight.data = torch.cat([patches, -patches]).reshape_as(first.weight) / 2
        layers = [first, nn.BatchNorm2d(inputs), nn.ReLU()]
        for width, pooled in product((48, 128, 192), (True, False)):
            convolution, norm = conv_bn(inputs, width, 3, 1)
            nn.init.dirac_(convolution.weight.data[:inputs])  # type: ignore[index]
            layers += [convolution, *[nn.MaxPool2d(2)] * pooled, norm, nn.ReLU()]
            inputs = width
        super().__init__(*layers, *_head(inputs, classes))


# Brightness, and two differences of colour.
COLOURS = [[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU}
# Stems of residual networks: size of the kernel, and stride.
STEMS = {"cifar": (3, 1), "strided": (3, 2), "imagenet": (7, 2)}


class ResNet(nn.Sequential):
    """A residual network :cite:p:`he2016`, of any width and depth.

    Args:
        channels, size, classes: of the images (B, channels, size, size) and logits (B, classes).
        blocks: number of blocks in each stage; (2, 2, 2, 2) is ResNet-18, and (3, 4, 6, 3)
            ResNet-34, or ResNet-50 with `bottleneck`.
        width: filters of the first stage; each further stage has twice as many.
        stem: "cifar" (3x3, stride 1), "strided" (3x3, stride 2) or "imagenet" (7x7 and pooling).
        pre_activation: normalise and activate before each convolution instead of after it
            :cite:p:`he2016identity`; (2, 2, 2, 2) is then PreAct-ResNet-18.
        bottleneck: blocks of three convolutions, whose output has four times as many filters.
        stem_width: filters of the stem; None for `width`.
        activation: "relu" or "swish", x sigmoid(x) :cite:p:`ramachandran2017`.

    Raises:
        UsageError: an unknown stem or activation, or bottleneck blocks with pre-activation.
    """

    def __init__(
        self,
        channels: int,
        size: Size,
        classes: int,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        stem: str = "cifar",
        pre_activation: bool = False,
        bottleneck: bool = False,
        stem_width: int | None = None,
        activation: str = "relu",
    ) -> None:
        check_name("activation", activation, ACTIVATIONS)
        if bottleneck and pre_activation:
            raise UsageError("resnet: expected bottleneck or pre_activation, got both")
        check_name("stem", stem, STEMS)
        inputs = width if stem_width is None else stem_width
        layers = conv_bn(channels, inputs, *STEMS[stem])
        if stem == "imagenet":
            layers += [nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        elif pre_activation:
            layers = layers[:1]
        else:
            layers.append(nn.ReLU())
        basic = PreActivationBlock if pre_activation else BasicBlock
        block = BottleneckBlock if bottleneck else basic
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage * block.EXPANSION
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(inputs, outputs, stride))
                inputs = outputs
        if pre_activation:
            layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
        super().__init__(*layers, *_head(inputs, classes))
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.ReLU):
                self.set_submodule(name, ACTIVATIONS[activation]())


def wide_resnet(
    channels: int, size: Size, classes: int, *, depth: int = 28, factor: int = 10
) -> ResNet:
    """Return a wide residual network :cite:p:`zagoruyko2016`, by default WRN-28-10.

    It is a pre-activated `ResNet` of three stages with `factor` times 16, 32 and 64 filters.

    Raises:
        UsageError: a depth that is not 4 more than a positive multiple of 6.
    """
    if depth < 10 or depth % 6 != 4:
        raise UsageError(f"wide_resnet: expected a depth of 10, 16, 22, 28, ..., got {depth}")
    options: dict[str, Any] = {"width": 16 * factor, "stem_width": 16, "pre_activation": True}
    return ResNet(channels, size, classes, blocks=[(depth - 4) // 6] * 3, **options)


def top_gap(
    channels: int,
    size: Size,
    classes: int,
    *,
    k: int | float,
    backbone: str = "resnet",
    backbone_options: Mapping[str, Any] | None = None,
    pretrained: bool = False,
    magnify: int = 1,
    **options: Any,
) -> TopGAPNet:
    """Put Top-GAP around a backbone from `NETWORKS`, `PRETRAINED`, timm or torchvision.

    Backbones that are not from `NETWORKS` normalise images in [0, 1] themselves. Those of
    `PRETRAINED` have weights; `pretrained` loads the default weights of timm and torchvision.
    `backbone_options` are for `NETWORKS` alone. `options` go to `TopGAPNet`.

    The network itself enlarges images, bilinearly, by the factor `magnify`.
    """
    size = _square_side(size, "top_gap")
    if backbone in NETWORKS:
        if pretrained:
            raise UsageError(f"top_gap: there are no pretrained weights of backbone {backbone!r}")
        network = NETWORKS[backbone](channels, size, classes, **(backbone_options or {}))
    else:
        if channels != 3 or backbone_options:
            valid = f"colour images and no backbone_options for {backbone!r}"
            raise expected("top_gap", valid, f"{channels} channels and {backbone_options or {}}")
        if backbone in PRETRAINED:
            network = with_own_activation(load_pretrained(backbone), backbone).requires_grad_()
        else:
            network = normalised(backbone_of(backbone, pretrained=pretrained))
    if magnify != 1:
        network = nn.Sequential(nn.Upsample(scale_factor=magnify, mode="bilinear"), network)
    return TopGAPNet(network, classes, k=k, image_size=size, **options)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "mlp": MLP,
    "convnet": ConvNet,
    "fast_vgg": FastVGG,
    "resnet": ResNet,
    "top_gap": top_gap,
    "vgg11": VGG11,
    "wide_resnet": wide_resnet,
}


def build_network(
    name: str, shape: Sequence[int], classes: int, *, options: Mapping[str, Any], seed: int
) -> nn.Module:
    """Build a network with weights drawn from `seed`; the global random state stays unchanged.

    Args:
        name: a key of `NETWORKS`.
        shape: shape of one image, (C, H, W).
        classes: number of classes.
        options: further keyword arguments of the network, or values of the changes in
            `suite.networks.defences.CHANGES`, such as {"softplus": 5.0}.
        seed: seed of the initial weights.

    Raises:
        UsageError: unknown network or option, or images that the network cannot take.
    """
    check_name("network", name, NETWORKS)
    channels, height, width = shape
    size = height if height == width else (height, width)
    arguments = {name: value for name, value in options.items() if name not in CHANGES}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = NETWORKS[name](channels, size, classes, **arguments)
        except (TypeError, ValueError) as error:
            raise UsageError(f"network {name!r}: {error}") from error
    for change in CHANGES:
        if change in options:
            network = CHANGES[change](network, options[change])
    return network
