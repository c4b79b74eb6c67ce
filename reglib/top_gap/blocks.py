"""Top-GAP pooling and the L1 norm of the class maps on the CPU, block by block."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from reglib._torch_private import is_batched

DTYPES = (torch.float32, torch.float64)
# As much as stays in the cache of a core while it is partitioned.
PARTITION_BYTES = 2**19
# Memory that is used again is faster than new; smaller blocks wait for other threads more often.
BLOCK_BYTES = 2**23


def means_by_blocks(maps: Tensor, k: int) -> tuple[Tensor, Tensor]:
    r"""Compute the mean of the k largest values, and of all absolute values, of each class map.

    Among equal values those count that `torch.topk` takes. A gradient that is to be differentiated
    again is computed by PyTorch.

    Args:
        maps: (B, classes, h, w) on the CPU, of `DTYPES`.
        k: 1 to h w - 1.

    Returns:
        Two means, (B, classes), of the type of the maps.
    """
    means, sizes = _Means.apply(maps, k)
    return means, sizes


@functools.cache
def numpy() -> Any:
    """Return NumPy, which this library does without where it is not installed."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


def _select_largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select the k largest values of each row, (rows, k), in any order, and the next, (rows,)."""
    largest, following = rows.new_empty(len(rows), k), rows.new_empty(len(rows))
    arrays = rows.numpy(), largest.numpy(), following.numpy()

    def select(part: slice) -> None:
        values = numpy().partition(arrays[0][part], -k, axis=1)
        arrays[1][part], arrays[2][part] = values[:, -k:], values[:, :-k].max(1)

    # NumPy lets go of the interpreter while it selects.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(select, _parts(rows, PARTITION_BYTES)))
    return largest, following


def _parts(tensor: Tensor, size: int) -> list[slice]:
    """Divide the first dimension of a tensor into blocks of so many bytes, as nearly as it can."""
    step = max(1, size // (tensor[0].numel() * tensor.element_size()))
    return [slice(start, start + step) for start in range(0, len(tensor), step)]


class _Means(torch.autograd.Function):
    """Means of each map, with the k-th largest value, by which backward knows what counts.

    Where more values equal it than fit, or one is NaN, `torch.topk` says which ones count.
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
    """Give each value at least as large as `smallest` its share, and each its sign times `size`."""
    result = torch.empty_like(maps)
    parts = _parts(maps, BLOCK_BYTES)
    signs = torch.empty_like(maps[parts[0]])
    for part in parts:
        # PyTorch compares five times faster to floats than to booleans.
        block = torch.ge(maps[part], smallest[part], out=result[part]).mul_(share[part])
        if size is not None:
            block.addcmul_(torch.sign(maps[part], out=signs[: len(block)]), size[part])
    return result
