"""Pooling of the largest values of each class map, and the L1 penalty on the maps."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from reglib._torch_private import is_transformed
from reglib.top_gap import fused

# As many rows as stay in the cache of a core while they are partitioned.
BLOCK_BYTES = 2**19


def top_gap(maps: Tensor, *, k: int | float) -> Tensor:
    r"""Average the `k` largest values of each class map.

    .. math:: \text{Top-GAP}(\tilde X, k)_t = \frac{1}{k} \sum_{i=1}^{k} \tilde X_{i,t}

    with the values of channel `t` in descending order. `k` = 1 is global max pooling, `k` = 1.0 and
    `k` = h w are global average pooling. Among equal values those are taken that `torch.topk`
    takes; gradients are those of `torch.topk` too. On CUDA see `top_gap_and_l1`. On the CPU NumPy
    selects, where it is installed: it is faster, and its means may differ in the last bit.

    Args:
        maps: (B, classes, h, w).
        k: how many locations, 1 to h w, if it is an integer; which fraction of them, above 0 and up
            to 1.0, if it is a float (rounded to a whole number of locations, at least one).

    Returns:
        (B, classes). NaN where a map holds NaN.

    Raises:
        ValueError: `maps` has not four dimensions; `k` is out of range.

    Source: definition 3.5 of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> top_gap(torch.tensor([[[[4.0, 0.0], [2.0, 1.0]]]]), k=2)
    tensor([[3.]])
    """
    count = _count(k, maps)
    if count == maps.shape[2] * maps.shape[3]:
        return maps.mean((2, 3))
    if can_fuse(maps):
        return fused.fused_means(maps, count)[0]
    if _can_partition(maps):
        return _TopMean.apply(maps, count)
    return maps.flatten(2).topk(count, sorted=False).values.mean(2)


# A symbol has no shape to compare with k: tracing keeps the call as it is.
fx.wrap("top_gap")


class Pooled(NamedTuple):
    """What class maps came to: `logits` (B, classes), and `l1` (B,), their mean absolute value."""

    logits: Tensor
    l1: Tensor


def top_gap_and_l1(maps: Tensor, *, k: int | float) -> Pooled:
    r"""Pool class maps by `top_gap` and compute their `class_map_l1`.

    Where `can_fuse` says so one Triton kernel does both and reads the maps once, and once again for
    the gradients. All else takes the two functions one after the other, with the same result: other
    devices, float64, maps of more than 4,096 locations, CUDA without Triton, compilers and function
    transforms.

    Args:
        maps: (B, classes, h, w).
        k: see `top_gap`.

    Raises:
        ValueError: see `top_gap`.

    >>> top_gap_and_l1(torch.tensor([[[[4.0, 0.0], [2.0, -1.0]]]]), k=2)
    Pooled(logits=tensor([[3.]]), l1=tensor([1.7500]))
    """
    count = _count(k, maps)
    if not can_fuse(maps):
        return Pooled(top_gap(maps, k=count), class_map_l1(maps))
    logits, sizes = fused.fused_means(maps, count)
    precise = torch.is_autocast_enabled(maps.device.type)  # gives norms in float32
    return Pooled(logits, sizes.mean(1).to(sizes.dtype if precise else maps.dtype))


class TopGAP(nn.Module):
    """Pool class maps (B, classes, h, w) to logits (B, classes): see `top_gap`.

    Args:
        k: number (integer) or fraction (float) of locations.

    Raises:
        ValueError: `k` is an integer below 1 or a fraction outside (0, 1].
    """

    def __init__(self, k: int | float) -> None:
        super().__init__()
        _check_k(k)
        self.k = k

    def forward(self, maps: Tensor, pooled: list[Pooled] | None = None) -> Tensor:
        """Pool; a hook may give a list, which `top_gap_and_l1` of the maps is put into."""
        if pooled is None:
            return top_gap(maps, k=self.k)
        pooled.append(top_gap_and_l1(maps, k=self.k))
        return pooled[-1].logits

    def extra_repr(self) -> str:
        return f"k={self.k}"


def class_map_l1(maps: Tensor) -> Tensor:
    r"""Compute the mean absolute value of the class maps.

    .. math:: r_b = \frac{1}{c h w} \left\| X^{(n+1)}_b \right\|_1

    The paper writes the norm without the factor. With the factor a strength of 1, which it calls
    sufficient for most data sets, has the same meaning whatever the number of classes and
    locations, as in its measure of sparsity. Zero if and only if the maps are zero.

    Args:
        maps: (B, classes, h, w).

    Returns:
        One value for each sample, (B,).

    Source: equation 1 of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> class_map_l1(torch.tensor([[[[1.0, -3.0]]]]))
    tensor([2.])
    """
    return torch.linalg.vector_norm(maps, 1, dim=(1, 2, 3)) / maps[0].numel()


def _check_k(k: int | float, locations: int | None = None) -> None:
    top = f" to {locations}, the locations of a map" if locations else " or more"
    if isinstance(k, int) and not isinstance(k, bool):
        fine = k >= 1 and (locations is None or k <= locations)
    else:
        fine = isinstance(k, float) and 0 < k <= 1
    if not fine:
        raise ValueError(
            f"k: expected a number of locations, an integer from 1{top}, or a fraction of them, a "
            f"float above 0 and up to 1.0; got {k!r}"
        )


def _count(k: int | float, maps: Tensor) -> int:
    if maps.ndim != 4:
        raise ValueError(
            f"maps: expected class maps (B, classes, h, w), got shape {tuple(maps.shape)}"
        )
    locations = maps.shape[2] * maps.shape[3]
    _check_k(k, locations)
    return k if isinstance(k, int) else max(1, round(k * locations))


def can_fuse(maps: Tensor) -> bool:
    """Whether a Triton kernel pools these maps: see `top_gap_and_l1`."""
    return (
        maps.device.type == "cuda"
        and maps.dtype in fused.DTYPES
        and _is_plain(maps)
        and maps.shape[2] * maps.shape[3] <= fused.LARGEST_MAP
        and fused.kernels_run()
    )


def _can_partition(maps: Tensor) -> bool:
    """Whether NumPy can select."""
    fits = maps.device.type == "cpu" and maps.dtype in (torch.float32, torch.float64)
    return fits and _is_plain(maps) and _numpy() is not None


@functools.cache
def _numpy() -> Any:
    """Return NumPy, which this library does without where it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _is_plain(maps: Tensor) -> bool:
    """Whether a tensor has values that code beside PyTorch can read: no symbol, no transform."""
    return (
        type(maps) in (Tensor, nn.Parameter)
        and maps.numel() > 0
        and not torch.compiler.is_compiling()
        and not is_transformed()
    )


class _TopMean(torch.autograd.Function):
    """Mean of the k largest values, from the k-th largest, which a partition finds.

    Backward compares with the k-th value. Where more values equal it than fit, `torch.topk` says
    which ones count.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, k: int) -> Tensor:
        batch, classes = maps.shape[:2]
        rows = maps.detach().flatten(2).flatten(0, 1)  # (B * classes, h * w)
        means = maps.new_empty(batch * classes)
        smallest = maps.new_empty(batch * classes)
        tied = torch.zeros(batch * classes, dtype=torch.bool)
        step = max(1, BLOCK_BYTES // (rows.shape[1] * rows.element_size()))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            values = _numpy().partition(rows[part].numpy(), -k, axis=1)
            means[part] = torch.from_numpy(values[:, -k:].mean(1))
            smallest[part] = torch.from_numpy(values[:, -k])
            tied[part] = torch.from_numpy(values[:, :-k].max(1) == values[:, -k])
        ties = tied.nonzero()[:, 0]
        chosen = rows[ties].topk(k, sorted=False).indices
        ctx.save_for_backward(maps, smallest.view(batch, classes, 1, 1), ties, chosen)
        ctx.k = k
        return means.view(batch, classes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        maps, smallest, ties, chosen = ctx.saved_tensors
        share = (gradients[0] / ctx.k)[:, :, None, None]
        result = torch.where(maps >= smallest, share, 0)
        if len(ties):
            b, c = ties // maps.shape[1], ties % maps.shape[1]
            row = share.new_zeros(len(ties), maps.shape[2] * maps.shape[3])
            row = row.scatter(1, chosen, share[b, c, 0].expand_as(chosen))
            result = result.index_put((b, c), row.view(-1, *maps.shape[2:]))
        return result, None
