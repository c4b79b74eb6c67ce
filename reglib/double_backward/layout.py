"""Bring images into channels-last layout inside a network, unseen by the caller.

On the CPU oneDNN convolves that layout up to three times as fast. Tensors in it are marked. A
function that is not known to do the same in any layout gets them contiguous. The memory of the
tensor itself is exchanged: a copy would miss what is later written to a view of the tensor.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.double_backward.functions import LinearMap, is_channels_last, to_channels_last

# Channels-last convolutions are faster between these numbers of channels, and from this number of
# pixels in a batch on: with fewer, the new layout of the weights takes more time than it saves.
FEW, MANY = 16, 256
LEAST_PIXELS = 1024
MARK = "_reglib_laid_out"


def pick(module: Any, names: str) -> set[Callable[..., Any]]:
    return {getattr(module, name) for name in names.split()}


# Functions that return no view, and that do the same in every layout.
SAME_IN_ANY_LAYOUT: set[Callable[..., Any]] = {
    *pick(F, "relu silu gelu mish elu softplus leaky_relu hardtanh relu6 hardsigmoid hardswish"),
    *pick(F, "dropout dropout2d pad interpolate max_pool2d avg_pool2d adaptive_avg_pool2d"),
    *pick(torch, "add sub mul div cat mean sigmoid tanh relu"),
    *pick(Tensor, "add sub mul div mean sigmoid tanh relu add_ sub_ mul_ div_ relu_ size dim"),
    *pick(Tensor, "__add__ __radd__ __iadd__ __sub__ __mul__ __rmul__ __imul__ __truediv__"),
    *(f.__get__ for f in pick(Tensor, "shape ndim dtype device is_cuda requires_grad grad_fn")),
}


def for_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Return images in the faster layout, if they are contiguous or marked."""
    if x.ndim != 4 or x.device.type != "cpu" or not weight.is_contiguous():
        return x
    images = x.shape[1] <= 4
    fits = (images or x.shape[1] >= FEW) and FEW <= weight.shape[0] <= MANY
    fits = fits and x.shape[0] * x.shape[2] * x.shape[3] >= LEAST_PIXELS
    if fits and x.is_contiguous() and not is_channels_last(x):
        return mark(LinearMap.of(x, to_channels_last, Tensor.contiguous))
    if hasattr(x, MARK) and not fits:
        y: Tensor = LinearMap.of(x, Tensor.contiguous, to_channels_last)
        return y
    return x


def mark(y: Any) -> Any:
    """Mark the result of a function of marked tensors, if it is channels-last itself."""
    if isinstance(y, Tensor) and is_channels_last(y):
        setattr(y, MARK, True)
    return y


def is_marked(values: Any) -> bool:
    """Whether a tensor among values, or in lists among them, is marked."""
    return any(
        (isinstance(value, Tensor) and hasattr(value, MARK))
        or (isinstance(value, list | tuple) and is_marked(value))
        for value in values
    )


def make_contiguous(values: Any) -> None:
    """Make marked tensors contiguous in place."""
    for value in values:
        if isinstance(value, Tensor) and hasattr(value, MARK):
            value.data = value.detach().contiguous()
            delattr(value, MARK)
        elif isinstance(value, list | tuple | Mapping):
            make_contiguous(value.values() if isinstance(value, Mapping) else value)
