"""The blocks of residual networks :cite:p:`he2016`."""

from torch import Tensor, nn


class _Block(nn.Module):
    """Convolutions and a shortcut; all activations are separate modules."""

    EXPANSION = 1  # filters of the output over filters of the inner convolutions
    CONVOLUTIONS: tuple[tuple[int, bool], ...]  # size of the kernel, and whether it is strided

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        *first, last = self.CONVOLUTIONS
        width, channels = outputs // self.EXPANSION, inputs
        for kernel, strided in first:
            layers += [*conv_bn(channels, width, kernel, stride if strided else 1), nn.ReLU()]
            channels = width
        self.residual = nn.Sequential(*layers, *conv_bn(channels, outputs, last[0], 1))
        # A convolution where the shape changes, else nothing.
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential(*([] if same else conv_bn(inputs, outputs, 1, stride)))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


class BasicBlock(_Block):
    """Two 3x3 convolutions and a shortcut."""

    CONVOLUTIONS = ((3, True), (3, False))


class BottleneckBlock(_Block):
    """Convolutions 1x1, 3x3 and 1x1 and a shortcut; the last convolution widens fourfold.

    The 3x3 convolution has the stride, as in torchvision.
    """

    EXPANSION = 4
    CONVOLUTIONS = ((1, False), (3, True), (1, False))


class PreActivationBlock(nn.Module):
    """Normalisation, ReLU and a 3x3 convolution, twice; the shortcut is not normalised.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input.
    """

    EXPANSION = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        first = [*conv_bn(inputs, outputs, 3, stride), nn.ReLU()]
        last = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.residual = nn.Sequential(*first, last)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.before(x)
        return self.residual(active) + (x if self.shortcut is None else self.shortcut(active))


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """Return a convolution that changes the size only by its stride, and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]
