"""Random changes of training images, drawn anew for each image in each epoch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.errors import expected
from suite.units import Training


def augmented(unit: Training, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images as a training shows them in one epoch."""
    images = crop_and_flip(
        images, crop_padding=unit.crop_padding, flip=unit.flip, generator=generator
    )
    return images if unit.zoom is None else zoom_in(images, unit.zoom, generator=generator)


def crop_and_flip(
    images: Tensor, *, crop_padding: int = 0, flip: bool = False, generator: torch.Generator
) -> Tensor:
    r"""Crop each image at random after padding it by reflection, and mirror it or not.

    A crop of the padded image at a random position is the image moved by whole pixels,
    :math:`x'_{c,i,j} = x_{c,\rho(i+u),\rho(j+v)}` with `u` and `v` uniform on
    `-crop_padding .. crop_padding`, where :math:`\rho` reflects at the outermost pixels, which are
    not repeated. A mirrored image has left and right exchanged, with a chance of one half.

    Args:
        images: (B, C, H, W), of any type: pixels are moved, not computed.
        crop_padding: pixels of padding at each side, below H and W; 0 for no cropping.
        flip: mirror half of the images.
        generator: on the CPU, so that every device gets the same changes. It is drawn from in the
            same way whatever the settings: those that differ in one share the other's numbers.

    Returns:
        (B, C, H, W) on the device of `images`; `images` itself if nothing is asked for.

    Raises:
        UsageError: `crop_padding` is negative or not below the size of the images.

    Source: appendix D.1 of :cite:t:`moens2020`, where RC- is to flip and RC+ to crop as well, with
    4 pixels.
    """
    check_crop_padding(crop_padding, tuple(images.shape[-2:]))
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    shifts = torch.randint(-crop_padding, crop_padding + 1, (len(images), 2), generator=generator)
    if not (crop_padding or flip):
        return images
    shifts = shifts.to(images.device)
    lines, columns = (
        _reflected(torch.arange(size, device=images.device) + shifts[:, axis, None], size)
        for axis, size in enumerate(images.shape[-2:])
    )
    if flip:
        columns = columns.flip(1).where(mirrored.to(images.device)[:, None], columns)
    image = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    return images[image, channel, lines[:, None, :, None], columns[:, None, None, :]]


def zoom_in(images: Tensor, largest: float, *, generator: torch.Generator) -> Tensor:
    r"""Magnify each image about its middle, by a factor of its own.

    .. math:: x'_{c,i,j} = x_{c, m + (i-m)/z, n + (j-n)/z}, \qquad z \sim U(1, z_{max})

    with :math:`(m, n)` the middle of the image, and values between pixels by bilinear
    interpolation, rounded if pixels are integers.

    Args:
        images: (B, C, H, W), of any type.
        largest: :math:`z_{max}`, from 1, which changes nothing.
        generator: on the CPU, so that every device gets the same factors.

    Returns:
        (B, C, H, W), of the type of `images`.

    Raises:
        UsageError: `largest` is below 1.

    Source: "random zooming" of appendix D.2 of :cite:t:`moens2020`, which states neither how nor
    how much.
    """
    if not largest >= 1:
        raise expected("zoom", "a largest magnification of 1 or more", largest)
    factors = 1 + (largest - 1) * torch.rand(len(images), generator=generator)
    scaled = torch.zeros(len(images), 2, 3)
    scaled[:, 0, 0] = scaled[:, 1, 1] = 1 / factors
    grid = F.affine_grid(scaled, list(images.shape), align_corners=False).to(images.device)
    floats = images if images.is_floating_point() else images.float()
    zoomed = F.grid_sample(floats, grid.to(floats), align_corners=False, padding_mode="border")
    return zoomed if images.is_floating_point() else zoomed.round().to(images.dtype)


def check_crop_padding(crop_padding: int, size: tuple[int, ...]) -> None:
    """Check that images of a size (H, W) can be padded by reflection.

    Raises:
        UsageError: they cannot.
    """
    if not 0 <= crop_padding < min(size):
        what = f"0 to {min(size) - 1} pixels for images of {' x '.join(map(str, size))}"
        raise expected("crop_padding", what, crop_padding)


def _reflected(positions: Tensor, size: int) -> Tensor:
    """Fold positions beyond 0..size-1 back at the first and the last."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()
