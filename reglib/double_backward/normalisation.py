r"""Batch normalisation as functions that can be differentiated again without elementwise chains.

In training mode the operator that takes an output gradient to an input gradient, in each channel,

.. math:: G v = w \sigma^{-1} \left( v - \overline{v} - \hat x \, \overline{v \hat x} \right),
   \qquad \hat x = (x - \mu) / \sigma,

is self-adjoint (a bar is the mean over batch and pixels, n values; :math:`\sigma^2` is the variance
plus eps). So for the gradient u that arrives at :math:`G g`, and for the sum s of their products,

.. math:: \partial_g = G u, \quad \partial_w = s / w, \quad
   \partial_x = -\frac{s (x - \mu)}{n \sigma^2}
   - \frac{\overline{g \hat x}}{\sigma} G u - \frac{\overline{u \hat x}}{\sigma} G g .
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from reglib._torch_private import aten, is_batched
from reglib.double_backward.functions import Exact, is_channels_last, needs, to_channels_last

Mask = list[bool]
Gradients = list[Tensor | None]
Running = tuple[Tensor | None, Tensor | None, float]  # mean, variance, momentum


class BatchNormTraining(Function):
    """Batch normalisation by the statistics of the batch; updates the running ones."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor | None, b: Tensor | None, running: Running, eps: float
    ) -> Tensor:
        mean, var, momentum = running
        y, mean, rstd = aten.native_batch_norm(x, w, b, mean, var, True, momentum, eps)
        ctx.save_for_backward(x, w, b, mean, rstd)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b, mean, rstd = ctx.saved_tensors
        need = _needs_of(ctx, x, w, b)
        if not torch.is_grad_enabled():
            gradients = _backward(gy, x, w, mean, rstd, ctx.eps, need)
            return *(g if needed else None for g, needed in zip(gradients, need)), None, None
        if any(need[1:]):
            return *_all_gradients(gy, x, w, b, ctx.eps), None, None
        gx = BatchNormInput.of(gy, x, w, mean, rstd, ctx.eps) if need[0] else None
        return gx, *[None] * 4


class BatchNormInput(Exact):
    """The input gradient G gy of batch normalisation in training mode."""

    @staticmethod
    def values(gy: Tensor, x: Tensor, w: Any, mean: Tensor, rstd: Tensor, eps: float) -> Tensor:
        return _backward(gy, x, w, mean, rstd, eps, [True, False, False])[0]

    @staticmethod
    def forward(
        ctx: Any, gy: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, rstd: Tensor, eps: float
    ) -> Tensor:
        gx, gy_x, gy_1 = _backward(gy, x, w, mean, rstd, eps, [True, True, True])
        ctx.save_for_backward(gy, x, w, mean, rstd, gx, gy_x, gy_1)
        ctx.eps = eps
        return gx

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        gy, x, w, mean, rstd, gx, gy_x, gy_1 = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_second_gradients(u, gy, x, w, ctx.eps), *[None] * 3
        n = x.numel() // x.shape[1]
        gu, u_x, _ = _backward(u, x, w, mean, rstd, ctx.eps, [True, True, True])
        u_gy = _dot(u, gy, gy_1 / n)
        by_w = rstd * (u_gy - u_x * gy_x / n)
        s = by_w if w is None else w * by_w
        by_x = _scale(x, -s * rstd.square() / n, mean)
        by_x.addcmul_(gu, _channels(-rstd * gy_x / n, gu))
        by_x.addcmul_(gx.detach(), _channels(-rstd * u_x / n, gx))
        return gu, by_x, None if w is None else by_w, None, None, None


class ScaleShift(Exact):
    """y = x s + t with one s and one t for each channel; linear in x and in s."""

    @staticmethod
    def values(x: Tensor, s: Tensor, t: Tensor | None) -> Tensor:
        zeros, ones = torch.zeros_like(s), torch.ones_like(s)
        return torch.batch_norm(x, s, t, zeros, ones, False, 0.0, 0.0, False)

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, t: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, s)
        ctx.shift = t
        return ScaleShift.values(x, s, t)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, s = ctx.saved_tensors
        need = [*needs(ctx), False][:3]
        if torch.is_grad_enabled() or is_batched(gy):
            gx = ScaleShift.of(gy, s, None) if need[0] else None
            gs = _channel_sum(gy * x) if need[1] else None
            return gx, gs, _channel_sum(gy) if need[2] else None
        zeros, ones = torch.zeros_like(s), torch.ones_like(s)
        # CUDA asks for statistics of the batch here, too, and makes up for empty ones.
        exact = torch.promote_types(s.dtype, torch.float32)
        saved = [s.new_empty(0, dtype=exact) if s.is_cuda else None] * 2
        gradients = aten.native_batch_norm_backward(gy, x, s, zeros, ones, *saved, False, 0.0, need)
        return tuple(g if needed else None for g, needed in zip(gradients, need))


def scale_and_shift(
    w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return s and t with y = x s + t, each of shape (channels,), differentiable by w and b.

    They are in float32 or a wider type: rounding t in bfloat16 would shift whole channels.
    """
    s = torch.rsqrt(var.to(torch.promote_types(var.dtype, torch.float32)) + eps)
    s = s if w is None else s * w
    t = -mean * s
    return s, t if b is None else t + b


def _backward(
    gy: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, rstd: Tensor, eps: float, need: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """Return G gy and, of each channel, the sums of gy times normalised x and of gy."""
    gy = to_channels_last(gy) if is_channels_last(x) else gy  # mixed layouts are slow
    if w is None and need[1]:
        w = torch.ones_like(rstd)  # without a weight CUDA gives no gradient by it
    return aten.native_batch_norm_backward(gy, x, w, None, None, mean, rstd, True, eps, need)


def _dot(u: Tensor, v: Tensor, shift: Tensor) -> Tensor:
    """Return the sum over u (v - shift) of each channel, without an intermediate tensor."""
    ones = torch.ones_like(shift)
    return _backward(u, v, None, shift, ones, 0.0, [False, True, True])[1]


def _scale(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return factor (x - shift) of each channel."""
    ones = torch.ones_like(shift)
    return torch.batch_norm(x, factor, None, shift, ones, False, 0.0, 0.0, False)


def _channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _channel_sum(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).sum(1)


def _needs_of(ctx: Any, *tensors: Tensor | None) -> list[bool]:
    """Spread `needs` over arguments of which some are None."""
    flags = iter(needs(ctx))
    return [tensor is not None and next(flags) for tensor in tensors]


def _normalise(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
    """Normalise by elementary operations, which can be differentiated as often as one likes."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    y = (x - mean) * torch.rsqrt(var + eps)
    y = y if w is None else y * _channels(w, x)
    return y if b is None else y + _channels(b, x)


def _all_gradients(
    gy: Tensor, x: Tensor, w: Tensor | None, b: Tensor | None, eps: float
) -> Gradients:
    """Return the gradients by x, w and b, to be differentiated further."""
    x, w, b = _alias(x), _alias(w), _alias(b)
    return _differentiate(_normalise(x, w, b, eps), [x, w, b], gy)


def _second_gradients(u: Tensor, gy: Tensor, x: Tensor, w: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of <u, G gy> by gy, x and w, to be differentiated further."""
    gy, x, w = _alias(gy), _alias(x), _alias(w)
    point = x if x.requires_grad else x.detach().requires_grad_()
    y = _normalise(point, w, None, eps)
    (gx,) = torch.autograd.grad(y, point, gy, create_graph=True)
    return _differentiate(gx, [gy, x, w], u)


def _alias(tensor: Any) -> Any:
    """Return a tensor that others do not depend on, so that it can be differentiated by alone."""
    return None if tensor is None else tensor.view_as(tensor)


def _differentiate(y: Tensor, tensors: Sequence[Tensor | None], gy: Tensor) -> list[Tensor | None]:
    inputs = [t for t in tensors if t is not None and t.requires_grad]
    gradients = iter(torch.autograd.grad(y, inputs, gy, create_graph=True, allow_unused=True))
    return [next(gradients) if t is not None and t.requires_grad else None for t in tensors]
