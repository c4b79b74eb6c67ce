r"""Autograd functions whose derivatives are autograd functions of this module.

A backward pass calls the kernels of ordinary forward and backward passes, each at most once. The
input gradient of a linear or piecewise linear layer does not depend on the input. So no zeros are
made for it, and the pass through the forward graph is left out if nothing else needs it.

The arguments of each function begin with its tensors, which match `ctx.next_functions`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from reglib._torch_private import aten, is_batched, is_transformed, will_run

Map = Callable[..., Tensor]
Evaluate = Callable[[Tensor], tuple[Tensor, Sequence[Tensor]]]


def needs(ctx: Any) -> list[bool]:
    """Return whether this backward pass needs the gradient of each tensor argument.

    `ctx.needs_input_grad` says only whether a pass could need it: a gradient by the input alone
    would compute the gradients of all weights too.
    """
    return [node is not None and will_run(node) for node, _ in ctx.next_functions]


def is_channels_last(x: Tensor) -> bool:
    """Whether images lie in memory pixel by pixel, and the channels of a pixel together."""
    return x.ndim == 4 and not is_batched(x) and x.is_contiguous(memory_format=torch.channels_last)


def to_channels_last(x: Tensor) -> Tensor:
    """Bring images into channels-last layout; batched gradients have none and stay."""
    return x if is_batched(x) else x.contiguous(memory_format=torch.channels_last)


class Exact(Function):
    """A function whose `values` stock autograd can differentiate, too."""

    values: Callable[..., Any]

    @classmethod
    def of(cls, *args: Any) -> Any:
        """Apply the function, or compute its values where it would record no gradient."""
        batched = any(isinstance(value, Tensor) and is_batched(value) for value in args)
        return cls.values(*args) if batched or is_transformed() else cls.apply(*args)


class Geometry(NamedTuple):
    """Stride, padding, dilation (a pair each) and groups of a convolution."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


class Convolution(Exact):
    """y = x * w + b."""

    @staticmethod
    def values(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
        return torch.conv2d(x, w, b, *geometry)

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.bias = geometry, b
        return Convolution.values(x, w, b, geometry)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        need_x, need_w, need_b = [*needs(ctx), False][:3]
        if torch.is_grad_enabled():
            gx = ConvolutionGradient.of(gy, w, x.detach(), ctx.geometry, 0) if need_x else None
            gw = ConvolutionGradient.of(gy, x, w.detach(), ctx.geometry, 1) if need_w else None
            return gx, gw, gy.sum((0, 2, 3)) if need_b else None, None
        return *_convolution_backward(gy, x, w, ctx.geometry, [need_x, need_w, need_b]), None


class ConvolutionGradient(Exact):
    """The gradient of a convolution by x (`by` is 0) or by w (1).

    It is linear in gy and in `other`, w or x; `itself`, x or w, gives the shape of the result.
    """

    @staticmethod
    def values(gy: Tensor, other: Tensor, itself: Tensor, geometry: Geometry, by: int) -> Tensor:
        x, w = (other, itself) if by else (itself, other)
        return _convolution_backward(gy, x, w, geometry, [by == 0, by == 1, False])[by]

    @staticmethod
    def forward(
        ctx: Any, gy: Tensor, other: Tensor, itself: Tensor, geometry: Geometry, by: int
    ) -> Tensor:
        ctx.save_for_backward(gy, other)
        ctx.settings = geometry, by
        return ConvolutionGradient.values(gy, other, itself, geometry, by)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (gy, other), (geometry, by) = ctx.saved_tensors, ctx.settings
        need_gy, need_other = needs(ctx)[:2]
        x, w = (other, u) if by else (u, other)
        by_gy = Convolution.of(x, w, None, geometry) if need_gy else None
        if not need_other:
            return by_gy, None, None, None, None
        further = ConvolutionGradient.of(gy, u, other.detach(), geometry, 1 - by)
        return by_gy, further, None, None, None


def _convolution_backward(
    gy: Tensor, x: Tensor, w: Tensor, geometry: Geometry, mask: list[bool]
) -> Sequence[Tensor]:
    bias = [w.shape[0]] if mask[2] else None
    x, w = x.to(gy.dtype), w.to(gy.dtype)  # with autocast they may differ
    if mask[1] and is_unsafe(w, geometry.stride):
        gy, x, w = map(to_standard_layout, (gy, x, w))
    gx, gw, gb = aten.convolution_backward(
        gy, x, w, bias, *geometry[:3], False, [0, 0], geometry.groups, mask
    )
    # For channels-last images the kernel returns a channels-last weight gradient.
    return gx, gw.contiguous() if mask[1] and w.is_contiguous() else gw, gb


def is_unsafe(weight: Tensor, stride: Sequence[int]) -> bool:
    """Whether oneDNN may compute a wrong weight gradient for channels-last images on some CPUs.

    Without AVX-512, oneDNN 3.13 (torch 2.15) computes a strided 1 x 1 convolution by copying blocks
    of 8 channels. With fewer channels it reads and writes beyond its buffers: on one thread the
    process dies, on two the gradient is wrong. Other layouts are safe. In the weight of a
    transposed convolution the same dimension counts: that of the output channels.
    """
    few = weight.ndim == 4 and weight.shape[1] < 8 and weight.shape[2:] == (1, 1)
    return few and max(stride) > 1 and weight.device.type == "cpu"


def to_standard_layout(x: Tensor) -> Tensor:
    """Return a contiguous copy; `contiguous` would keep channels-last strides of one channel."""
    return x.clone(memory_format=torch.contiguous_format)


class LinearMap(Exact):
    """y = L v, by a function for L and one for its adjoint, which take further tensors."""

    @staticmethod
    def values(v: Tensor, forward: Map, adjoint: Map, *tensors: Tensor) -> Tensor:
        return forward(v, *tensors)

    @staticmethod
    def forward(ctx: Any, v: Tensor, forward: Map, adjoint: Map, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.maps = adjoint, forward
        return forward(v, *tensors)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return LinearMap.of(u, *ctx.maps, *tensors), None, None, *[None for _ in tensors]


class Piecewise(Function):
    """A function that is linear on pieces.

    `evaluate(x)` returns y and the tensors that determine the piece of x. On that piece
    `pull(gy, *tensors)` is the input gradient, and `push(u, *tensors)` its adjoint.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, evaluate: Evaluate, pull: Map, push: Map) -> Tensor:
        y, tensors = evaluate(x)
        if y is x:
            ctx.mark_dirty(x)
        ctx.save_for_backward(*tensors)
        ctx.maps = pull, push
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        tensors = (tensor.detach() for tensor in ctx.saved_tensors)
        return LinearMap.of(gy, *ctx.maps, *tensors), None, None, None


def _pairs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return left and right pixels of 2 x 2 windows, and upper and lower maxima of the rows."""
    height, width = (size // 2 * 2 for size in x.shape[-2:])
    left, right = x[..., 0:width:2], x[..., 1:width:2]
    columns = torch.maximum(left, right)
    return left, right, columns[..., 0:height:2, :], columns[..., 1:height:2, :]


def max_pool_of_pairs(x: Tensor) -> Tensor:
    """Pool 2 x 2 pixels by maxima of strided views: the same bits as `max_pool2d`."""
    return torch.maximum(*_pairs(x)[2:])


def max_pool_of_pairs_with_indices(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """Pool 2 x 2 pixels; return maxima and their indices in the image, the first of equal pixels.

    The settings are those of `max_pool2d_with_indices`, and have to describe the same windows.
    """
    left, right, upper, lower = _pairs(x)
    height, width = x.shape[-2:]
    # Select by arithmetic: `where` is far slower.
    is_right = (right > left).float()
    is_lower = (lower > upper).float()
    rows = height // 2 * 2
    column = torch.lerp(is_right[..., 0:rows:2, :], is_right[..., 1:rows:2, :], is_lower)
    row_starts = torch.arange(0, height // 2, device=x.device)[:, None] * (2 * width)
    first = row_starts + torch.arange(0, width // 2, device=x.device) * 2
    y = torch.maximum(upper, lower)
    if not y.sum().isfinite():  # the kernel returns the last NaN, which no comparison finds
        return aten.max_pool2d_with_indices(x, *settings)
    return y, column.add_(is_lower, alpha=width).long().add_(first)
