"""Digits on cluttered canvases: objects whose place, size and background are known exactly."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from suite.data.readers import Read, Split

SIDE = 40
SIZES = (20, 32)  # of the square that holds the digit, which takes about 20/28 of it
SHIFT = 4
PERIOD = 6
BIAS = 0.7
PATCHES, PATCH = 8, 8


class Canvases(NamedTuple):
    """Images (N, 1, 40, 40) in bytes, masks (N, 40, 40), and kinds of background (N,)."""

    images: Tensor
    masks: Tensor
    backgrounds: Tensor


def place_on_canvases(digits: Tensor, labels: Tensor, *, seed: int, swapped: bool) -> Canvases:
    """Put each digit near the middle of a canvas, in a random size, in front of a background.

    A background has stripes, whose direction is one of ten kinds, and patches cut from other
    digits. In 70% of the images the kind of the background is the label of the digit. `swapped`
    changes nothing but the kinds, to one of the nine others in every image: a network that looks
    at the background is then wrong, as on Waterbirds.

    All arithmetic is on integers, so that the same seed gives the same bytes on every machine.

    Args:
        digits: (N, 1, 28, 28) in bytes, white on black.
        labels: (N,), 0 to 9.
        seed: of places, sizes, patches and backgrounds.
        swapped: whether the background is that of another class.

    Returns:
        Images, masks that are True where the digit covers more than half of a pixel, and kinds.
    """
    n = len(digits)
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> list:
        return torch.randint(low, high + 1, shape, generator=generator).tolist()

    sizes = draw(*SIZES, n)
    shifts = draw(-SHIFT, SHIFT, n, 2)
    phases = draw(0, PERIOD - 1, n)
    sources = draw(0, n - 1, n, PATCHES)
    cuts = draw(0, 27 - PATCH + 1, n, PATCHES, 2)
    places = draw(0, SIDE - PATCH, n, PATCHES, 2)
    follows = torch.rand(n, generator=generator) < BIAS
    others = (labels + torch.randint(1, 10, (n,), generator=generator)) % 10
    kinds = others if swapped else torch.where(follows, labels, others)
    stripes, pixels = _stripes(), digits[:, 0].numpy()
    images = np.empty((n, SIDE, SIDE), np.uint8)
    masks = np.empty((n, SIDE, SIDE), bool)
    for i in range(n):
        canvas = stripes[int(kinds[i]), phases[i]].copy()
        for source, (y, x), (row, column) in zip(sources[i], cuts[i], places[i]):
            patch = pixels[source, y : y + PATCH, x : x + PATCH]
            part = canvas[row : row + PATCH, column : column + PATCH]
            np.maximum(part, patch // 2, out=part)
        cover = _cover(pixels[i], sizes[i], shifts[i])
        images[i] = (canvas * (255 - cover) + 255 * cover) // 255
        masks[i] = cover > 127
    return Canvases(torch.from_numpy(images)[:, None], torch.from_numpy(masks), kinds)


def digits(train: Split, test: Split, classes: Sequence[str], *, swapped: bool) -> Read:
    """Put the images of both splits on canvases; only in testing are backgrounds swapped."""
    splits = []
    for seed, split in enumerate((train, test)):
        made = place_on_canvases(
            split.images, split.labels, seed=seed, swapped=swapped and split is test
        )
        splits.append(Split(made.images, split.labels, made.masks))
    return splits[0], splits[1], classes


def _cover(digit: np.ndarray, size: int, shift: list[int]) -> np.ndarray:
    """Return how much of each pixel of the canvas the digit covers, 0 to 255."""
    cover = np.zeros((SIDE, SIDE), np.int32)
    top, left = ((SIDE - size) // 2 + s for s in shift)
    scaled = Image.fromarray(digit).resize((size, size), Image.Resampling.BILINEAR)
    cover[max(top, 0) : top + size, max(left, 0) : left + size] = np.asarray(scaled)[
        max(-top, 0) : SIDE - top, max(-left, 0) : SIDE - left
    ]
    return cover


def _stripes() -> np.ndarray:
    """Return stripes of ten directions and each phase, (10, PERIOD, SIDE, SIDE)."""
    y, x = np.mgrid[:SIDE, :SIDE]
    angle = (np.pi * np.arange(10) / 10)[:, None, None, None]
    phase = np.arange(PERIOD)[:, None, None]
    wave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle) + phase) / PERIOD)
    return np.rint(64 + 24 * wave).astype(np.int32)
