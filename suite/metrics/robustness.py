"""The change of a saliency map under small noise on the image."""

from collections.abc import Callable

import torch
from torch import Tensor

from reglib._checks import check_positive
from reglib._common import normal_noise
from reglib.autodiff import Map
from suite.metrics.chunks import chunk_size

MapsOf = Callable[[Tensor, Tensor], Tensor]


def local_lipschitz_estimate(
    maps_of: MapsOf,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int,
    noise_std: float = 0.1,
    normalised: bool = False,
) -> Tensor:
    r"""Estimate the local Lipschitz constant of a saliency method from below, by sampling.

    .. math::
        \max_{s} \frac{\|a(x + \epsilon_s) - a(x)\|_2}{\|\epsilon_s\|_2},
        \qquad \epsilon_s \sim \mathcal N(0, \sigma^2 I)

    Args:
        maps_of: saliency of (images, class_index), of any shape with images first.
        images: (B, C, H, W).
        class_index: (B,).
        generator: source of the noise, on the device of `images`.
        n_samples: noisy copies of each image.
        noise_std: standard deviation of the noise of a pixel, in the units of `images`.
        normalised: first divide each map by its largest absolute value, so that a map that is
            merely smaller does not count as more stable.

    Returns:
        One value for each image, (B,).

    Raises:
        ValueError: `n_samples` or `noise_std` is not positive.

    Source: :cite:t:`alvarezmelis2018robustness`, as in section 3.2 of :cite:t:`demoor2025`. By
    default Quantus first divides each map by the largest absolute value in its *batch*, which for
    a batch of one image is `normalised`; the paper's formula has no such division.
    """
    check_positive(n_samples=n_samples, noise_std=noise_std)

    def draw(like: Tensor) -> Tensor:
        return noise_std * normal_noise(like, generator)

    def normalised_maps(images: Tensor, class_index: Tensor) -> Tensor:
        maps = maps_of(images, class_index)
        return maps / maps.abs().amax(tuple(range(1, maps.ndim)), keepdim=True)

    method = normalised_maps if normalised else maps_of
    return _largest_change(method, images, class_index, draw, n_samples, by_noise=True)


def max_sensitivity(
    maps_of: MapsOf,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int,
    radius: float = 0.2,
) -> Tensor:
    r"""Estimate the relative max-sensitivity of a saliency method from below, by sampling.

    .. math::
        \max_{s} \frac{\|a(x + \epsilon_s) - a(x)\|_2}{\|a(x)\|_2},
        \qquad \epsilon_s \sim \mathcal U([-r, r]^n)

    Args:
        maps_of: saliency of (images, class_index), of any shape with images first.
        images: (B, C, H, W).
        class_index: (B,).
        generator: source of the noise, on the device of `images`.
        n_samples: noisy copies of each image.
        radius: of the noise in the maximum norm, in the units of `images`.

    Returns:
        One value for each image, (B,); not finite where the map is zero.

    Raises:
        ValueError: `n_samples` or `radius` is not positive.

    Source: :cite:t:`yeh2019`, with the normalisation of section 3.2 of :cite:t:`demoor2025`.
    """
    check_positive(n_samples=n_samples, radius=radius)

    def draw(like: Tensor) -> Tensor:
        noise = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        return (2 * noise - 1) * radius

    return _largest_change(maps_of, images, class_index, draw, n_samples, by_noise=False)


def _largest_change(
    maps_of: MapsOf, images: Tensor, class_index: Tensor, draw: Map, n_samples: int, by_noise: bool
) -> Tensor:
    """Return the largest change of each image's map under noise, (B,).

    `draw` returns noise in the shape of its argument. The change is relative to the norm of the
    noise (`by_noise`), or of the map.
    """
    size = chunk_size(images)
    largest = images.new_zeros(len(images))
    for b, image in enumerate(images):
        reference = maps_of(image[None], class_index[b : b + 1])
        for start in range(0, n_samples, size):
            k = min(size, n_samples - start)
            noise = draw(image.expand(k, *image.shape))
            maps = maps_of(image + noise, class_index[b].expand(k))
            divisor = noise.flatten(1).norm(dim=1) if by_noise else reference.norm()
            changes = (maps - reference).flatten(1).norm(dim=1) / divisor
            largest[b] = torch.maximum(largest[b], changes.max())
    return largest
