"""Top-GAP pooling and the L1 norm of class maps on the CPU, block by block, with NumPy."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from reglib._torch_private import is_batched

DTYPES = (torch.float32, torch.float64)
# Fits in the cache of a core during partitioning.
PARTITION_BYTES = 2**19
# Reused memory is faster than new memory; smaller blocks synchronise threads more often.
BLOCK_BYTES = 2**23


def means_by_blocks(maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Compute the mean of the k largest values, and of all absolute values, of each class map.

    Ties are broken as in `torch.topk`. PyTorch computes gradients that are differentiated again.

    Args:
        maps: (B, classes, h, w) on the CPU, of `DTYPES`.
        k: 1 to h w - 1.

    Returns:
        Both means, (B, classes), in the type of the maps.
    """
    return _Means.apply(maps, k)


@functools.cache
def numpy() -> Any:
    """Return NumPy, or None if it is not installed: the library needs torch only."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


def _select_largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row, (rows, k), unordered, and the next, (rows,)."""
    largest, following = rows.new_empty(len(rows), k), rows.new_empty(len(rows))
    arrays = rows.numpy(), largest.numpy(), following.numpy()

    def select(block: slice) -> None:
        values = numpy().partition(arrays[0][block], -k, axis=1)
        arrays[1][block], arrays[2][block] = values[:, -k:], values[:, :-k].max(1)

    # NumPy releases the interpreter lock while it partitions.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(select, _split(rows, PARTITION_BYTES)))
    return largest, following


def _split(tensor: Tensor, size: int) -> list[slice]:
    """Split the first dimension of a tensor into blocks of at most `size` bytes, or one row."""
    step = max(1, size // (tensor[0].numel() * tensor.element_size()))
    return [slice(start, start + step) for start in range(0, len(tensor), step)]


class _Means(torch.autograd.Function):
    """Both means of each map; the k-th largest value selects the values that get a gradient.

    Where values tie with the k-th largest, or it is NaN, `torch.topk` selects them.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        shape = maps.shape[:2]
        rows = maps.detach().flatten(2).flatten(0, 1)  # (B * classes, h * w)
        values, following = _select_largest(rows, k)
        smallest = values.amin(1)
        sizes = torch.linalg.vector_norm(rows, 1, 1).div_(rows.shape[1])
        ties = ((following == smallest) | smallest.isnan()).nonzero()[:, 0]
        indices = rows[ties].topk(k, sorted=False).indices
        ctx.save_for_backward(maps, smallest.view(*shape, 1, 1), ties, indices)
        ctx.k = k
        return values.mean(1).view(shape), sizes.view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None]:
        maps, smallest, ties, indices = ctx.saved_tensors
        share, size = (
            None if g is None else (g / n)[:, :, None, None]
            for g, n in zip(gradients, (ctx.k, maps[0, 0].numel()), strict=True)
        )
        share = torch.zeros_like(smallest) if share is None else share
        b, c = ties // maps.shape[1], ties % maps.shape[1]
        row = share.new_zeros(len(ties), maps[0, 0].numel())
        row = row.scatter(1, indices, share[b, c, 0].expand_as(indices)).view(-1, *maps.shape[2:])
        batched = any(is_batched(g) for g in gradients if g is not None)
        if torch.is_grad_enabled() or batched or not share.isfinite().all():
            result = torch.where(maps >= smallest, share, 0)
            if len(ties):
                result = result.index_put((b, c), row)
            return result if size is None else result + size * maps.sign(), None
        result = _spread(maps, smallest, share, size)
        if len(ties):
            result[b, c] = row if size is None else row + size[b, c] * maps[b, c].sign()
        return result, None


def _spread(maps: Tensor, smallest: Tensor, share: Tensor, size: Tensor | None) -> Tensor:
    """Return the share of each value of at least `smallest`, plus `size` times its sign."""
    result = torch.empty_like(maps)
    blocks = _split(maps, BLOCK_BYTES)
    signs = torch.empty_like(maps[blocks[0]])
    for block in blocks:
        # Comparisons are five times faster with floats as results than with booleans.
        gradient = torch.ge(maps[block], smallest[block], out=result[block]).mul_(share[block])
        if size is not None:
            gradient.addcmul_(torch.sign(maps[block], out=signs[: len(gradient)]), size[block])
    return result
