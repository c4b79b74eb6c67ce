"""How much does a saliency map change when the image hardly does?"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from suite.metrics.chunks import chunk_size

MapsOf = Callable[[Tensor, Tensor], Tensor]


def local_lipschitz_estimate(
    maps_of: MapsOf,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int = 200,
    noise_std: float = 0.1,
    max_bytes: int | None = None,
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
        max_bytes: memory of the noisy images held at a time.

    Returns:
        One value for each image, (B,).

    Raises:
        ValueError: `n_samples` or `noise_std` is not positive.

    Source: :cite:t:`alvarezmelis2018robustness`, as in section 3.2 of :cite:t:`demoor2025`. By
    default Quantus first divides each map by the largest absolute value in its *batch*; the
    paper's formula has no such division, and neither has this function.
    """
    _check_positive(n_samples=n_samples, noise_std=noise_std)

    def draw(shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator, device=images.device, dtype=images.dtype)
        return noise * noise_std

    largest = images.new_zeros(len(images))
    for b, noise, change, _ in _changes(maps_of, images, class_index, draw, n_samples, max_bytes):
        ratio = change / noise.flatten(1).norm(dim=1)
        largest[b] = torch.maximum(largest[b], ratio.max())
    return largest


def max_sensitivity(
    maps_of: MapsOf,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int = 200,
    radius: float = 0.2,
    max_bytes: int | None = None,
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
        max_bytes: memory of the noisy images held at a time.

    Returns:
        One value for each image, (B,); not finite where the map is zero.

    Raises:
        ValueError: `n_samples` or `radius` is not positive.

    Source: :cite:t:`yeh2019`, with the normalisation of section 3.2 of :cite:t:`demoor2025`.
    """
    _check_positive(n_samples=n_samples, radius=radius)

    def draw(shape: tuple[int, ...]) -> Tensor:
        noise = torch.rand(shape, generator=generator, device=images.device, dtype=images.dtype)
        return (2 * noise - 1) * radius

    largest, norms = images.new_zeros(len(images)), images.new_zeros(len(images))
    for b, _, change, norm in _changes(maps_of, images, class_index, draw, n_samples, max_bytes):
        largest[b] = torch.maximum(largest[b], change.max())
        norms[b] = norm
    return largest / norms


def _changes(
    maps_of: MapsOf,
    images: Tensor,
    class_index: Tensor,
    draw: Callable[[tuple[int, ...]], Tensor],
    n_samples: int,
    max_bytes: int | None,
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield (image, noise (k, C, H, W), norm of the change of its map (k,), its norm), by chunk."""
    size = chunk_size(images, max_bytes)
    for b in range(len(images)):
        reference = maps_of(images[b : b + 1], class_index[b : b + 1])
        for start in range(0, n_samples, size):
            k = min(size, n_samples - start)
            noise = draw((k, *images.shape[1:]))
            maps = maps_of(images[b] + noise, class_index[b].expand(k))
            yield b, noise, (maps - reference).flatten(1).norm(dim=1), reference.norm()


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
