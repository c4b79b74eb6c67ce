"""Random changes of training images, drawn anew for each image in each epoch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.errors import expected
from suite.units import Training


def augment(unit: Training, images: Tensor, generator: torch.Generator) -> Tensor:
    """Change images as a training asks, for one epoch."""
    images = crop_and_flip(images, unit.crop_padding, flip=unit.flip, generator=generator)
    if unit.zoom is not None:
        images = zoom_in(images, unit.zoom, generator=generator)
    return swap_halves(images, generator=generator) if unit.swap_halves else images


def crop_and_flip(
    images: Tensor, crop_padding: int = 0, *, flip: bool = False, generator: torch.Generator
) -> Tensor:
    r"""Crop each image at random after padding it by reflection, and mirror half of the images.

    A crop of the padded image at a random position is the image moved by whole pixels,
    :math:`x'_{c,i,j} = x_{c,\rho(i+u),\rho(j+v)}` with `u` and `v` uniform on
    `-crop_padding .. crop_padding`, where :math:`\rho` reflects at the outermost pixels, which are
    not repeated. Mirroring exchanges left and right, with a probability of one half.

    Args:
        images: (B, C, H, W), of any type: pixels are moved, not computed.
        crop_padding: pixels of padding at each side, below H and W (see `check_size`); 0 for none.
        flip: mirror half of the images.
        generator: on the CPU, so that every device gets the same changes. The same numbers are
            drawn whatever the settings, so that shifts do not depend on `flip`.

    Returns:
        (B, C, H, W) on the device of `images`; `images` itself with neither crops nor flips.

    Source: appendix D.1 of :cite:t:`moens2020`, where RC- flips, and RC+ also crops, by 4 pixels.
    """
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    shifts = torch.randint(-crop_padding, crop_padding + 1, (len(images), 2), generator=generator)
    if not (crop_padding or flip):
        return images
    shifts = shifts.to(images.device)
    lines, columns = (
        _reflect(torch.arange(size, device=images.device) + shifts[:, axis, None], size)
        for axis, size in enumerate(images.shape[-2:])
    )
    if flip:
        columns = columns.flip(1).where(mirrored.to(images.device)[:, None], columns)
    image = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    return images[image, channel, lines[:, None, :, None], columns[:, None, None, :]]


def zoom_in(images: Tensor, largest: float, *, generator: torch.Generator) -> Tensor:
    r"""Magnify each image about its centre by a random factor.

    .. math:: x'_{c,i,j} = x_{c, m + (i-m)/z, n + (j-n)/z}, \qquad z \sim U(1, z_{max})

    with :math:`(m, n)` the centre of the image. Values between pixels are interpolated
    bilinearly, and rounded if pixels are integers.

    Args:
        images: (B, C, H, W), of any type.
        largest: :math:`z_{max}`, above 1 (see `suite.units.Training`).
        generator: on the CPU, so that every device gets the same factors.

    Returns:
        (B, C, H, W), of the type of `images`.

    Source: "random zooming" of appendix D.2 of :cite:t:`moens2020`, which states neither how nor
    how much.
    """
    factors = 1 + (largest - 1) * torch.rand(len(images), generator=generator)
    scaled = torch.zeros(len(images), 2, 3)
    scaled[:, 0, 0] = scaled[:, 1, 1] = 1 / factors
    grid = F.affine_grid(scaled, list(images.shape), align_corners=False).to(images.device)
    floats = images if images.is_floating_point() else images.float()
    zoomed = F.grid_sample(floats, grid.to(floats), align_corners=False, padding_mode="border")
    return zoomed if images.is_floating_point() else zoomed.round().to(images.dtype)


def swap_halves(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Swap the upper and the lower half of each image, with a probability of one half.

    Where one half of an image is a digit and the other a null block, this draws the position of the
    block anew.

    Args:
        images: (B, C, H, W), of any type, with an even H.
        generator: on the CPU, so that every device gets the same changes.

    Returns:
        (B, C, H, W).

    Source: appendix A.8.1 of :cite:t:`yang2024`: in training, "each BlockMNIST sample is generated
    by randomly attaching the null block".
    """
    height = images.shape[-2]
    swapped = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(swapped[:, None, None, None], images.roll(height // 2, 2), images)


def add_noise(images: Tensor, std: float, *, generator: torch.Generator) -> Tensor:
    """Add normal noise with a standard deviation to images (B, C, H, W), without clipping.

    The generator is on the CPU, so that every device gets the same noise.
    """
    if not std:
        return images
    return images + std * torch.randn(images.shape, generator=generator).to(images)


def check_size(unit: Training, size: tuple[int, ...]) -> None:
    """Check that images of a size (H, W) can be changed as a training asks.

    Raises:
        UsageError: padding as large as the images, or halves to swap in images of an odd height.
    """
    if unit.crop_padding >= min(size):
        valid = f"0 to {min(size) - 1} pixels for images of {' x '.join(map(str, size))}"
        raise expected("crop_padding", valid, unit.crop_padding)
    if unit.swap_halves and size[0] % 2:
        raise expected("swap_halves", "images of an even height", size[0])


def _reflect(positions: Tensor, size: int) -> Tensor:
    """Reflect positions beyond 0..size-1 at the first and the last position."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()
