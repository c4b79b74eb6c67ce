"""The blocks of residual networks :cite:p:`he2016`."""

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the activations are two separate modules."""

    EXPANSION = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *conv_bn(inputs, outputs, 3, stride), nn.ReLU(), *conv_bn(outputs, outputs, 3, 1)
        )
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


class BottleneckBlock(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, of which the last widens fourfold, and a shortcut.

    The stride is that of the 3x3 convolution, as in torchvision; the three activations are separate
    modules.
    """

    EXPANSION = 4

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // self.EXPANSION
        self.residual = nn.Sequential(
            *conv_bn(inputs, width, 1, 1),
            nn.ReLU(),
            *conv_bn(width, width, 3, stride),
            nn.ReLU(),
            *conv_bn(width, outputs, 1, 1),
        )
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


class PreActivationBlock(nn.Module):
    """Twice normalisation, ReLU and a 3x3 convolution; the shortcut is not normalised.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input.
    """

    EXPANSION = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.residual = nn.Sequential(
            *conv_bn(inputs, outputs, 3, stride),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.before(x)
        return self.residual(active) + (x if self.shortcut is None else self.shortcut(active))


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """Return a convolution that keeps the size, but for its stride, and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return what leaves its input as it is, or, where the shape changes, a 1x1 convolution."""
    same = stride == 1 and inputs == outputs
    return nn.Sequential(*([] if same else conv_bn(inputs, outputs, 1, stride)))
