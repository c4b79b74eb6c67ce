r"""Batch normalisation as functions that are differentiated again without elementwise chains.

In training mode the operator from output gradients to input gradients of one channel,

.. math:: G v = w \sigma^{-1} \left( v - \overline{v} - \hat x \, \overline{v \hat x} \right),
   \qquad \hat x = (x - \mu) / \sigma,

is self-adjoint. A bar is the mean over batch and pixels, n values; :math:`\sigma^2` is the variance
plus eps. Let u be the gradient by :math:`G g`, and s the sum of the products of u and :math:`G g`:

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
    """Batch normalisation by batch statistics; updates the running statistics."""

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
        flags = iter(needs(ctx))  # none for arguments that are None
        need = [tensor is not None and next(flags) for tensor in (x, w, b)]
        if not torch.is_grad_enabled():
            gradients = _backward(gy, x, w, mean, rstd, ctx.eps, need)
            return *(g if needed else None for g, needed in zip(gradients, need)), None, None
        if any(need[1:]):
            x, w, b = map(_alias, (x, w, b))
            return *_differentiate(_normalise(x, w, b, ctx.eps), [x, w, b], gy), None, None
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
        # The sums of u (gy - shift), without an intermediate tensor.
        shift = gy_1 / n
        need = [False, True, True]
        u_gy = _backward(u, gy, None, shift, torch.ones_like(shift), 0.0, need)[1]
        by_w = rstd * (u_gy - u_x * gy_x / n)
        s = by_w if w is None else w * by_w
        factor, ones = -s * rstd.square() / n, torch.ones_like(mean)
        by_x = torch.batch_norm(x, factor, None, mean, ones, False, 0.0, 0.0, False)
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
        # CUDA expects batch statistics in evaluation mode too, and replaces empty tensors.
        exact = torch.promote_types(s.dtype, torch.float32)
        saved = [s.new_empty(0, dtype=exact) if s.is_cuda else None] * 2
        gradients = aten.native_batch_norm_backward(gy, x, s, zeros, ones, *saved, False, 0.0, need)
        return tuple(g if needed else None for g, needed in zip(gradients, need))


def scale_and_shift(
    w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return s and t of y = x s + t, each (channels,), differentiable by w and b.

    Both are in float32 or a wider type: rounding t in bfloat16 would shift whole channels.
    """
    s = torch.rsqrt(var.to(torch.promote_types(var.dtype, torch.float32)) + eps)
    s = s if w is None else s * w
    t = -mean * s
    return s, t if b is None else t + b


def _backward(
    gy: Tensor, x: Tensor, w: Tensor | None, mean: Tensor, rstd: Tensor, eps: float, need: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """Return G gy, and for each channel the sums of gy times normalised x and of gy."""
    gy = to_channels_last(gy) if is_channels_last(x) else gy  # mixed layouts are slow
    if w is None and need[1]:
        w = torch.ones_like(rstd)  # without a weight CUDA computes no weight gradient
    return aten.native_batch_norm_backward(gy, x, w, None, None, mean, rstd, True, eps, need)


def _channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _channel_sum(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).sum(1)


def _normalise(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
    """Normalise by elementary operations, which have derivatives of any order."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    y = (x - mean) * torch.rsqrt(var + eps)
    y = y if w is None else y * _channels(w, x)
    return y if b is None else y + _channels(b, x)


def _second_gradients(u: Tensor, gy: Tensor, x: Tensor, w: Tensor | None, eps: float) -> Gradients:
    """Return the gradients of <u, G gy> by gy, x and w, which can be differentiated again."""
    gy, x, w = map(_alias, (gy, x, w))
    point = x if x.requires_grad else x.detach().requires_grad_()
    y = _normalise(point, w, None, eps)
    (gx,) = torch.autograd.grad(y, point, gy, create_graph=True)
    return _differentiate(gx, [gy, x, w], u)


def _alias(tensor: Any) -> Any:
    """Return a view of a tensor, by which an expression of the view alone is differentiated."""
    return None if tensor is None else tensor.view_as(tensor)


def _differentiate(y: Tensor, tensors: Sequence[Tensor | None], gy: Tensor) -> Gradients:
    inputs = [t for t in tensors if t is not None and t.requires_grad]
    gradients = iter(torch.autograd.grad(y, inputs, gy, create_graph=True, allow_unused=True))
    return [next(gradients) if t is not None and t.requires_grad else None for t in tensors]
