"""How far a landscape is from flat, or from the smoothness of the data."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.landscape.importance import scaled_norm


def laplacian(maps: Tensor, *, kernel_width: int = 3) -> Tensor:
    r"""Apply the discrete Laplacian with a kernel of width `k`.

    .. math:: (\Delta_k v)_{hw} = \frac{1}{2 (k^2 - 1)} \sum_{|i|, |j| \le (k - 1) / 2}
       (v_{h+i, w+j} - v_{hw})

    The absolute values of the kernel sum to one, so a strength means the same for each width.
    Beyond the border the outermost values are repeated: the Laplacian is zero for constant maps,
    and constant for no other.

    Args:
        maps: (..., H, W).
        kernel_width: odd, from 3 to the smaller of H and W.

    Returns:
        (..., H, W).

    Raises:
        ValueError: `kernel_width` is even or below 3, or the maps are smaller than the kernel.

    Source: section 3.3.1 of :cite:t:`moens2020`, which leaves the kernel open but for its width,
    after :cite:t:`pertuz2013`. The kernel is that of Kornia :cite:p:`riba2020`.

    >>> laplacian(torch.tensor([[0.0, 0, 0], [0, 16, 0], [0, 0, 0]]))
    tensor([[ 1.,  1.,  1.],
            [ 1., -8.,  1.],
            [ 1.,  1.,  1.]])
    """
    _check_kernel(maps, kernel_width)
    area, border = kernel_width**2, kernel_width // 2
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    padded = F.pad(flat, [border] * 4, mode="replicate")
    differences = F.avg_pool2d(padded, kernel_width, stride=1) - flat
    return (differences * (area / (2 * (area - 1)))).view(maps.shape)


def curvature_penalty(landscape: Tensor, *, kernel_width: int = 3) -> Tensor:
    r"""Compute the energy of the Laplacian of a landscape, zero if and only if it is flat.

    .. math:: L_c = \hat\sigma^2 [\Delta_k I']

    the variance over places, with `H W` in its denominator. For `k = 3` the Laplacian has a mean of
    zero, so its variance and its energy are the same.

    Args:
        landscape: (..., H, W).
        kernel_width: see `laplacian`.

    Returns:
        One value for each landscape, (...).

    Raises:
        ValueError: as `laplacian`.

    Source: equation 8 of :cite:t:`moens2020`.
    """
    return laplacian(landscape, kernel_width=kernel_width).flatten(-2).var(-1, correction=0)


def target_penalty(landscape: Tensor, target: Tensor) -> Tensor:
    r"""Compute the mean squared distance of a landscape from a target.

    .. math:: L_t = \frac{1}{H W} \| I' - S \|_2^2

    The paper prints the sum over places. The mean, like the variance in `curvature_penalty`, is for
    images of every size a number of the order of one, to which the published strengths of 1 to 100
    fit; the sum with strength `a` is the mean with strength `a H W`.

    Args:
        landscape: (..., H, W).
        target: (H, W), for example from `data_smoothness`.

    Returns:
        One value for each landscape, (...), from zero to about four.

    Raises:
        ValueError: the target has another size, or is zero everywhere.

    Source: equation 9, divided by the number of places, of :cite:t:`moens2020`.
    """
    if target.shape != landscape.shape[-2:]:
        raise ValueError(
            f"target: expected the size of the landscape, {tuple(landscape.shape[-2:])}, "
            f"got {tuple(target.shape)}"
        )
    if not target.any():
        raise ValueError(
            "target: expected a map with a mean square of about one, got zeros everywhere"
        )
    return (landscape - target).square().mean((-2, -1))


def data_smoothness(batches: Iterable[Tensor], *, kernel_width: int = 3) -> Tensor:
    r"""Compute where the images of a data set have edges, on average, in one pass.

    .. math:: S_{hw} = \frac 1 M \sum_{m=1}^M
       \sqrt{H W} \, \frac{\|(\Delta_k x_m)_{\cdot hw}\|_2}{\|\Delta_k x_m\|_2}

    It is large where the images are *not* smooth. Brightness and contrast of an image do not
    matter. An image of one colour has no edges, hence no map, and is left out.

    Args:
        batches: images, (B, C, H, W) each, floats or bytes.
        kernel_width: see `laplacian`.

    Returns:
        The map, (H, W), in float64. Its mean square is at most one.

    Raises:
        ValueError: as `laplacian`; images of several sizes; no image has an edge.

    Source: section 3.3.2 of :cite:t:`moens2020`.
    """
    total: Tensor | None = None
    count = 0
    for images in batches:
        edges = laplacian(images.double(), kernel_width=kernel_width)
        # A mean of equal values may differ from them by rounding, which is no edge.
        floor = 1e-12 * images.double().abs().amax((1, 2, 3), keepdim=True)
        edges = edges.where(edges.abs() > floor, torch.zeros_like(edges))
        maps = scaled_norm(edges)
        count += int(edges.flatten(1).any(1).sum())
        if total is not None and total.shape != maps.shape[1:]:
            raise ValueError(
                f"batches: expected images of {tuple(total.shape)} pixels as in the first batch, "
                f"got {tuple(maps.shape[1:])}"
            )
        total = maps.sum(0) if total is None else total + maps.sum(0)
    if total is None or count == 0:
        raise ValueError("batches: expected an image that has an edge, got none")
    return total / count


def total_variation(landscape: Tensor) -> Tensor:
    r"""Compute the mean squared difference between neighbouring places.

    .. math:: \mathrm{TV} = \frac{1}{|N|} \sum_{(p, q) \in N} (I'_p - I'_q)^2

    over all pairs `N` of places that are next to each other in a row or in a column.

    Args:
        landscape: (..., H, W), with at least two places.

    Returns:
        One value for each landscape, (...).

    Raises:
        ValueError: a landscape of a single place.

    Source: section 4.1.1 of :cite:t:`moens2020`.

    >>> total_variation(torch.tensor([[0.0, 2.0], [0.0, 2.0]]))
    tensor(2.)
    """
    differences = [landscape.diff(dim=dim).flatten(-2) for dim in (-2, -1)]
    pairs = torch.cat(differences, -1)
    if pairs.shape[-1] == 0:
        raise ValueError(
            f"landscape: expected at least two places, got shape {tuple(landscape.shape)}"
        )
    return pairs.square().mean(-1)


def _check_kernel(maps: Tensor, kernel_width: int) -> None:
    if not isinstance(kernel_width, int) or kernel_width < 3 or kernel_width % 2 == 0:
        raise ValueError(f"kernel_width: expected an odd number from 3 up, got {kernel_width!r}")
    height, width = maps.shape[-2:]
    if min(height, width) < kernel_width:
        raise ValueError(
            f"maps: expected at least {kernel_width} x {kernel_width} places for a kernel of that "
            f"width, got {height} x {width}"
        )
