"""The corruptions of Hendrycks and Dietterich, by the package imagecorruptions-imaug."""

import numpy as np
import torch
from torch import Tensor

from reglib.autodiff import Map
from suite.errors import check_name, expected
from suite.metrics.faithfulness import SCORES

# The corruptions of ImageNet-C, in the groups of its authors.
CORRUPTIONS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
SEEDED = ("impulse_noise", "glass_blur")  # these take a seed as argument
SMALLEST_CORRUPTED = 32  # pixels a side of the smallest images that the package takes


def corrupt(images: Tensor, *, corruption: str, level: int, seed: int) -> Tensor:
    """Corrupt images.

    Args:
        images: uint8, (B, 3, H, W) or (B, 1, H, W), at least 32 pixels a side. Grey images are
            corrupted as colour images with equal channels, which are then averaged.
        corruption: a name in `CORRUPTIONS`.
        level: 1 to 5.
        seed: image `b` draws from `seed + b`; NumPy's global random state stays unchanged.

    Returns:
        uint8 images of the shape of `images`.

    Raises:
        UsageError: unknown corruption or level, or images of another type or size.

    Source: :cite:t:`hendrycks2019`.
    """
    check_name("corruption", corruption, [n for group in CORRUPTIONS.values() for n in group])
    if level not in range(1, 6):
        raise expected("level", "an integer from 1 to 5", repr(level))
    channels, *sides = images.shape[1:]
    if images.dtype != torch.uint8 or channels not in (1, 3) or min(sides) < SMALLEST_CORRUPTED:
        valid = f"uint8 with 1 or 3 channels and at least {SMALLEST_CORRUPTED} pixels a side"
        raise expected("images", valid, f"{images.dtype} of shape {tuple(images.shape)}")
    from imagecorruptions import corrupt as corrupt_array

    results, state = [], np.random.get_state()
    try:
        for b, image in enumerate(images.cpu()):
            np.random.seed((seed + b) % 2**32)
            pixels = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
            options = {"seed": seed + b} if corruption in SEEDED else {}
            result = corrupt_array(pixels, corruption_name=corruption, severity=level, **options)
            results.append(torch.from_numpy(result.copy()).permute(2, 0, 1))
    finally:
        np.random.set_state(state)
    stacked = torch.stack(results)
    if channels == 1:
        stacked = stacked.double().mean(1, keepdim=True).round().to(torch.uint8)
    return stacked.to(images.device)


@torch.no_grad()
def probability_ratio(model: Map, clean: Tensor, changed: Tensor, class_index: Tensor) -> Tensor:
    r"""Divide the probability of a class on changed images by that on clean images.

    .. math:: r_b = p_c(x'_b) / p_c(x_b)

    Args:
        model: network in evaluation mode, from images to logits.
        clean, changed: images as the network takes them, (B, C, H, W).
        class_index: (B,).

    Returns:
        One value for each image, (B,); above one where the change raises the probability.

    Source: table 3 of :cite:t:`moens2020`.
    """
    before, after = (SCORES["probability"](model(x), class_index) for x in (clean, changed))
    return after / before
