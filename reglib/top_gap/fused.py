"""Top-GAP pooling and the L1 norm of the class maps by one kernel, which reads the maps once."""

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
# Locations of a map that a program can hold in registers.
LARGEST_MAP = 4096


def fused_means(maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Compute the mean of the k largest values, and of all absolute values, of each class map.

    Both are computed in float32. Of values that equal the k-th largest the first ones count, as
    for `torch.topk` on CUDA. A gradient that is to be differentiated again is computed by PyTorch.

    Args:
        maps: (B, classes, h, w) on a CUDA device, of `DTYPES`; h w up to `LARGEST_MAP`.
        k: 1 to h w.

    Returns:
        Means (B, classes) in the type of the maps, and in float32.
    """
    means, sizes = _Means.apply(maps, k)
    return means, sizes


@functools.cache
def kernels_run() -> bool:
    """Try once whether Triton is installed and can build a kernel for the CUDA device.

    Warns:
        RuntimeWarning: it is installed and cannot.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        fused_means(torch.zeros(1, 1, 1, 2, device="cuda"), 1)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        why = f"Triton cannot build its kernels ({error}), so Top-GAP pools by PyTorch, which is "
        why += "slower; Triton needs a C compiler and the headers of Python (on Debian: gcc and "
        warnings.warn(f"{why}python3-dev)", RuntimeWarning, stacklevel=3)
        return False
    return True


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
        from reglib.top_gap import kernels

        rows = maps.detach().flatten(2)  # (B, classes, h w)
        new = functools.partial(maps.new_empty, maps.shape[:2])
        means, sizes, smallest = (new(dtype=torch.float32) for _ in range(3))
        last = new(dtype=torch.int32)
        _launch(kernels.pool, rows, means, sizes, smallest, last, k=k, strides=rows.stride())
        ctx.save_for_backward(maps, smallest, last)
        ctx.k = k
        return means.to(maps.dtype), sizes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        maps, smallest, last = ctx.saved_tensors
        of_means, of_sizes = gradients
        batched = (is_batched(g) for g in gradients)
        if torch.is_grad_enabled() or any(batched):
            return _spread(maps.detach(), of_means, of_sizes, smallest, last, ctx.k), None
        from reglib.top_gap import kernels

        rows = maps.flatten(2)
        result = torch.empty_like(rows)
        tensors = result, of_means.contiguous(), of_sizes.contiguous(), smallest, last
        strides = *rows.stride(), *result.stride()
        _launch(kernels.spread, rows, *tensors, k=ctx.k, strides=strides)
        return result.view(maps.shape), None


def _launch(kernel: Any, rows: Tensor, *tensors: Tensor, k: int, strides: tuple[int, ...]) -> None:
    batch, classes, locations = rows.shape
    block = 1 << (locations - 1).bit_length()
    numbers = classes, locations, k, *strides
    options = {"num_warps": min(max(block // 512, 1), 8), "enable_fp_fusion": False}
    with torch.cuda.device_of(rows) if rows.is_cuda else nullcontext():
        kernel[(batch * classes,)](rows, *tensors, *numbers, block=block, **options)


def _spread(
    maps: Tensor, of_means: Tensor, of_sizes: Tensor, smallest: Tensor, last: Tensor, k: int
) -> Tensor:
    """Compute what `kernels.spread` does, differentiable by the gradients."""
    values, limits, means, sizes = (
        t[:, :, None, None] for t in (smallest, last, of_means / k, of_sizes / maps[0, 0].numel())
    )
    index = torch.arange(maps[0, 0].numel(), device=maps.device).view(maps.shape[2:])
    chosen = (maps > values) | ((maps == values) & (index <= limits))
    return (torch.where(chosen, means, 0) + sizes * maps.sign()).to(maps.dtype)
