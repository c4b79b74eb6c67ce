"""Pooling of the largest values of each class map, and the L1 penalty on class maps."""

from numbers import Integral, Real
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from reglib._checks import expected
from reglib._common import mean_absolute_value
from reglib._torch_private import is_traced, is_transformed
from reglib.top_gap import blocks, fused


def top_gap(maps: Tensor, *, k: int | float) -> Tensor:
    r"""Average the `k` largest values of each class map.

    .. math:: \text{Top-GAP}(\tilde X, k)_t = \frac{1}{k} \sum_{i=1}^{k} \tilde X_{i,t}

    with the values of map `t` in descending order. `k` = 1 is global max pooling; `k` = 1.0 and
    `k` = h w are global average pooling. Ties and gradients are those of `torch.topk`. For CUDA see
    `top_gap_and_l1`. On the CPU NumPy selects the values, if it is installed: it is faster, and its
    means may differ in the last bit.

    Args:
        maps: (B, classes, h, w).
        k: an integer is a number of locations, 1 to h w; a float is a fraction of them, above 0 and
            up to 1.0, rounded to a whole number of locations, at least one.

    Returns:
        The means, (B, classes); NaN where a map holds NaN.

    Raises:
        ValueError: `maps` does not have four dimensions, or `k` is out of range.

    Source: definition 3.5 of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> top_gap(torch.tensor([[[[4.0, 0.0], [2.0, 1.0]]]]), k=2)
    tensor([[3.]])
    """
    count = _count(k, maps)
    if count == _locations(maps):
        return maps.mean((2, 3))
    if can_fuse(maps):
        return fused.fused_means(maps, count)[0]
    if can_block(maps):
        return blocks.means_by_blocks(maps, count)[0]
    return maps.flatten(2).topk(count, sorted=False).values.mean(2)


# torch.fx must not trace into the function: a proxy has no shape to compare with k.
fx.wrap("top_gap")


class Pooled(NamedTuple):
    """Pooled class maps: `logits`, (B, classes), and their mean absolute value `l1`, (B,)."""

    logits: Tensor
    l1: Tensor


def top_gap_and_l1(maps: Tensor, *, k: int | float) -> Pooled:
    r"""Pool class maps by `top_gap` and compute their `class_map_l1`.

    On CUDA one Triton kernel computes both and reads the maps once, and once more for the
    gradients. On the CPU with NumPy one backward pass writes both gradients. In other cases the two
    functions run one after the other, with the same result: other devices, maps of more than 4,096
    locations and float64 on CUDA, CUDA without Triton, the CPU without NumPy, compilers and
    function transforms.

    Args:
        maps: (B, classes, h, w).
        k: see `top_gap`.

    Returns:
        Logits and L1 norms.

    Raises:
        ValueError: as `top_gap`.

    >>> top_gap_and_l1(torch.tensor([[[[4.0, 0.0], [2.0, -1.0]]]]), k=2)
    Pooled(logits=tensor([[3.]]), l1=tensor([1.7500]))
    """
    count = _count(k, maps)
    if can_fuse(maps):
        logits, sizes = fused.fused_means(maps, count)
    elif can_block(maps) and count < _locations(maps):
        logits, sizes = blocks.means_by_blocks(maps, count)
    else:
        return Pooled(top_gap(maps, k=count), class_map_l1(maps))
    return Pooled(logits, sizes.mean(1))


class TopGAP(nn.Module):
    """Pool class maps (B, classes, h, w) to logits (B, classes): see `top_gap`.

    Args:
        k: number (integer) or fraction (float) of locations.

    Raises:
        ValueError: `k` is an integer below 1 or a fraction outside (0, 1].
    """

    def __init__(self, k: int | float) -> None:
        super().__init__()
        self.k = _check_k(k)

    def forward(self, maps: Tensor, pooled: list[Pooled] | None = None) -> Tensor:
        """Pool the maps; append `top_gap_and_l1` of them to `pooled`, which a hook may pass."""
        if pooled is None:
            return top_gap(maps, k=self.k)
        pooled.append(top_gap_and_l1(maps, k=self.k))
        return pooled[-1].logits

    def extra_repr(self) -> str:
        return f"k={self.k}"


def class_map_l1(maps: Tensor) -> Tensor:
    r"""Compute the mean absolute value of the class maps.

    .. math:: r_b = \frac{1}{c h w} \left\| X^{(n+1)}_b \right\|_1

    The paper has the norm without the factor. The factor makes a strength independent of the number
    of classes and locations, as in the paper's measure of sparsity; the paper calls a strength of 1
    sufficient for most data sets. The penalty is zero if and only if the maps are zero.

    Args:
        maps: (B, classes, h, w).

    Returns:
        One value for each sample, (B,), in float32 or in the type of the maps if wider.

    Raises:
        ValueError: `maps` does not have four dimensions.

    Source: equation 1 of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> class_map_l1(torch.tensor([[[[1.0, -3.0]]]]))
    tensor([2.])
    """
    _count(1, maps)  # checks the shape
    return mean_absolute_value(maps)


def _check_k(k: int | float, locations: int | None = None) -> int | float:
    """Return k as an int or a float of Python; raise a ValueError if it is out of range."""
    top = f" to {locations}, the locations of a map" if locations else " or more"
    if isinstance(k, Integral) and not isinstance(k, bool):
        if 1 <= k <= (locations or k):
            return int(k)
    elif isinstance(k, Real) and not isinstance(k, bool) and 0 < k <= 1:
        return float(k)
    raise ValueError(
        f"k: expected a number of locations, an integer from 1{top}, or a fraction of them, a "
        f"float above 0 and up to 1.0; got {k!r}"
    )


def _count(k: int | float, maps: Tensor) -> int:
    if maps.ndim != 4:
        raise expected("maps", "class maps (B, classes, h, w)", f"shape {tuple(maps.shape)}")
    k = _check_k(k, _locations(maps))
    return k if isinstance(k, int) else max(1, round(k * _locations(maps)))


def _locations(maps: Tensor) -> int:
    locations = maps.shape[2] * maps.shape[3]
    return int(locations) if is_traced() else locations


def can_fuse(maps: Tensor) -> bool:
    """Whether the Triton kernel can pool the maps: see `top_gap_and_l1`."""
    fits = maps.device.type == "cuda" and maps.dtype in fused.DTYPES and _is_plain(maps)
    return fits and _locations(maps) <= fused.LARGEST_MAP and fused.kernels_run()


def can_block(maps: Tensor) -> bool:
    """Whether NumPy can pool the maps, block by block: see `top_gap_and_l1`."""
    fits = maps.device.type == "cpu" and maps.dtype in blocks.DTYPES
    return fits and _is_plain(maps) and blocks.numpy() is not None


def _is_plain(maps: Tensor) -> bool:
    """Whether code outside PyTorch can read the values: no subclass, compiler or transform."""
    ordinary = type(maps) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
    return ordinary and not is_transformed() and maps.numel() > 0
