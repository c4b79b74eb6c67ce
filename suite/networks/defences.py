"""Changes of networks, by other papers, that make them smoother or more robust."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.errors import UsageError

Replace = Callable[[Any], nn.Module | None]
NO_RELU = "expected a network with modules of torch.nn.ReLU"


def with_softplus(network: Any, *, beta: float) -> Any:
    r"""Return a copy of a network whose ReLU modules are softplus functions.

    .. math:: \operatorname{softplus}_\beta(x) = \beta^{-1} \ln (1 + e^{\beta x})

    It is smooth, larger than ReLU by at most :math:`\ln 2 / \beta`, and tends to ReLU with growing
    :math:`\beta`. A ReLU6 becomes the difference of two softplus functions, of x and of x - 6.

    Args:
        network: its activations are modules; functional ones in a forward method stay.
        beta: sharpness, in one over the unit of the activations.

    Returns:
        A network of the same class with copies of the weights, in the mode of `network`.

    Raises:
        UsageError: `beta` is not positive, or the network has no module `torch.nn.ReLU`.

    Source: :cite:t:`dombrowski2019`.
    """
    if not beta > 0:
        raise UsageError(f"softplus: expected a positive sharpness, got {beta}")

    smooth = {nn.ReLU: lambda _: nn.Softplus(beta), nn.ReLU6: lambda _: SoftReLU6(beta)}
    return _replace(network, smooth, f"softplus: {NO_RELU}")


def with_k_wta(network: Any, *, share: float) -> Any:
    """Return a copy of a network whose ReLU modules are `KWinnersTakeAll`.

    Args:
        network: see `with_softplus`.
        share: share of a layer's values that stay, above 0 and up to 1.

    Returns:
        A network of the same class with copies of the weights, in the mode of `network`.

    Raises:
        UsageError: `share` is out of range, or the network has no module `torch.nn.ReLU`.

    Source: :cite:t:`xiao2020`.
    """
    return _replace(network, {nn.ReLU: lambda _: KWinnersTakeAll(share)}, f"k_wta: {NO_RELU}")


def with_flc_pooling(network: Any) -> Any:
    """Return a copy of a network that shrinks by `FrequencyLowCut` instead of strides.

    A convolution of stride 2 gets stride 1, and the pooling follows it.

    Args:
        network: convolutional, with convolutions of stride 1 or 2.

    Returns:
        A network of the same class with copies of the weights, in the mode of `network`.

    Raises:
        UsageError: no convolution of stride 2.

    Source: :cite:t:`grabinski2022`.
    """

    def add_pooling(convolution: nn.Conv2d) -> nn.Module | None:
        if convolution.stride != (2, 2):
            return None
        convolution.stride = (1, 1)
        return nn.Sequential(convolution, FrequencyLowCut())

    missing = "flc_pooling: expected a network with convolutions of stride 2"
    return _replace(network, {nn.Conv2d: add_pooling}, missing)


class SoftReLU6(nn.Module):
    r"""A smooth ReLU6: :math:`s(x) - s(x - 6), \; s(x) = \log(1 + e^{\beta x}) / \beta`."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta) - F.softplus(x - 6, self.beta)


class KWinnersTakeAll(nn.Module):
    r"""Keep the largest values of a layer, and set the others to zero.

    .. math:: \phi_k(x)_j = x_j \, [x_j \text{ is among the } k \text{ largest values of } x]

    over all channels and locations of a sample, with k their number times `share`, rounded, at
    least one. Negative values stay if they are among the largest.

    Args:
        share: above 0 and up to 1.

    Raises:
        UsageError: `share` is out of range.

    Source: :cite:t:`xiao2020`.

    >>> KWinnersTakeAll(0.5)(torch.tensor([[3.0, -1.0, 2.0, 1.0]]))
    tensor([[3., 0., 2., 0.]])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UsageError(f"k_wta: expected a share above 0 and up to 1, got {share!r}")
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        values = x.flatten(1)
        count = max(1, round(self.share * values.shape[1]))
        smallest = values.detach().topk(count, sorted=False).values.amin(1)
        return torch.where(x >= smallest.view(-1, *[1] * (x.ndim - 1)), x, 0)


class FrequencyLowCut(nn.Module):
    r"""Halve the height and width of feature maps by cutting the high frequencies off.

    .. math:: y = \operatorname{Re} \mathcal F^{-1} (C \, \mathcal F x), \qquad
       C \text{ keeps } -\tfrac{1}{4} \le f < \tfrac{1}{4} \text{ cycles a pixel}

    in each direction. A map of half the size can hold these frequencies, so nothing is aliased. A
    constant map stays constant. Where a side is odd, the result has the larger half.

    Takes (B, C, H, W) and returns (B, C, ceil(H / 2), ceil(W / 2)).

    Source: :cite:t:`grabinski2022`.

    >>> FrequencyLowCut()(torch.full((1, 1, 4, 4), 3.0)).squeeze()
    tensor([[3., 3.],
            [3., 3.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        spectrum = torch.fft.fftshift(torch.fft.fft2(wide, norm="forward"), (2, 3))
        for axis, size in ((2, x.shape[2]), (3, x.shape[3])):
            half = (size + 1) // 2
            spectrum = spectrum.narrow(axis, size // 2 - half // 2, half)
        low = torch.fft.ifft2(torch.fft.ifftshift(spectrum, (2, 3)), norm="forward")
        return low.real.to(x.dtype)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation layer: one of PyTorch's, or `KWinnersTakeAll`."""
    from_torch = type(module).__module__ == nn.modules.activation.__name__
    return from_torch or isinstance(module, KWinnersTakeAll)


# Changes by the name of their option, which every network has; each gets the option's value.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "softplus": lambda network, value: with_softplus(network, beta=value),
    "k_wta": lambda network, value: with_k_wta(network, share=value),
    "flc_pooling": lambda network, value: with_flc_pooling(network) if value else network,
}


def _replace(network: Any, rules: Mapping[type[nn.Module], Replace], missing: str) -> Any:
    """Return a copy of a network with modules replaced by rules; a rule may return None."""
    network = copy.deepcopy(network)
    replaced = False
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            module = rules[type(child)](child) if type(child) in rules else None
            if module is not None:
                setattr(parent, name, module.train(parent.training))
                replaced = True
    if not replaced:
        raise UsageError(f"{missing}, found none")
    return network
