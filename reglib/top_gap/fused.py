"""Top-GAP pooling and the L1 norm of class maps by one Triton kernel, which reads maps once."""

import functools
import importlib.util
import subprocess
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from reglib._torch_private import is_batched

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Largest number of locations that a program can hold in registers.
LARGEST_MAP = 4096


def fused_means(maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Compute the mean of the k largest values, and of all absolute values, of each class map.

    Both are computed in float32. Ties with the k-th largest value go to the first values, as in
    `torch.topk` on CUDA. PyTorch computes gradients that are differentiated again.

    Args:
        maps: (B, classes, h, w) on a CUDA device, of `DTYPES`; h w up to `LARGEST_MAP`.
        k: 1 to h w.

    Returns:
        Both means, (B, classes): the first in the type of the maps, the second in float32.
    """
    return _Means.apply(maps, k)


@functools.cache
def kernels_run() -> bool:
    """Whether Triton is installed and can build a kernel for the CUDA device; tried once.

    Warns:
        RuntimeWarning: Triton is installed and cannot build kernels.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        fused_means(torch.zeros(1, 1, 1, 2, device="cuda"), 1)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        message = f"Triton cannot build its kernels ({error}), so Top-GAP pools by PyTorch, which "
        message += "is slower; Triton needs a C compiler and the headers of Python (on Debian: gcc "
        warnings.warn(f"{message}and python3-dev)", RuntimeWarning, stacklevel=3)
        return False
    return True


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = maps.detach().flatten(2)  # (B, classes, h w)
        new = functools.partial(maps.new_empty, maps.shape[:2])
        means, sizes, smallest = (new(dtype=torch.float32) for _ in range(3))
        last = new(dtype=torch.int32)
        _launch("pool", rows, means, sizes, smallest, last, k=k, strides=rows.stride())
        ctx.save_for_backward(maps, smallest, last)
        ctx.k = k
        return means.to(maps.dtype), sizes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        maps, smallest, last = ctx.saved_tensors
        grad_means, grad_sizes = gradients
        batched = (is_batched(g) for g in gradients)
        if torch.is_grad_enabled() or any(batched):
            return _spread(maps.detach(), grad_means, grad_sizes, smallest, last, ctx.k), None
        rows = maps.flatten(2)
        result = torch.empty_like(rows)
        tensors = result, grad_means.contiguous(), grad_sizes.contiguous(), smallest, last
        strides = *rows.stride(), *result.stride()
        _launch("spread", rows, *tensors, k=ctx.k, strides=strides)
        return result.view(maps.shape), None


def _launch(kernel: str, rows: Tensor, *tensors: Tensor, k: int, strides: tuple[int, ...]) -> None:
    from reglib.top_gap import kernels

    batch, classes, locations = rows.shape
    block = 1 << (locations - 1).bit_length()
    options = {"num_warps": min(max(block // 512, 1), 8), "enable_fp_fusion": False}
    launch = getattr(kernels, kernel)[(batch * classes,)]
    with torch.cuda.device_of(rows) if rows.is_cuda else nullcontext():
        launch(rows, *tensors, classes, locations, k, *strides, block=block, **options)


def _spread(
    maps: Tensor, grad_means: Tensor, grad_sizes: Tensor, smallest: Tensor, last: Tensor, k: int
) -> Tensor:
    """Compute the gradients of `kernels.spread` in PyTorch, so that they can be differentiated."""
    tensors = smallest, last, grad_means / k, grad_sizes / maps[0, 0].numel()
    values, limits, means, sizes = (t[:, :, None, None] for t in tensors)
    index = torch.arange(maps[0, 0].numel(), device=maps.device).view(maps.shape[2:])
    chosen = (maps > values) | ((maps == values) & (index <= limits))
    return (torch.where(chosen, means, 0) + sizes * maps.sign()).to(maps.dtype)
