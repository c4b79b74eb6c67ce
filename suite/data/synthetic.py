"""Drawings on larger canvases, padded or in front of clutter, with exactly known contents."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from suite.data.splits import Split
from suite.errors import expected

EMPTY, BOX = 32, 20  # sides of an empty canvas, and of the box for a drawing on it
SIDE = 40  # of a cluttered canvas
SIZES = (20, 32)  # of the square of the drawing; a digit takes about 20/28 of it
SHIFT = 4
PERIOD = 6
BIAS = 0.7
PATCHES, PATCH = 8, 8
FAINT = 12  # grey values up to this are not part of an opaque drawing


def pad_digits(split: Split, *, part: int, anywhere: bool) -> Split:
    """Centre each drawing in a box of 20 x 20 pixels, and put the box onto a canvas.

    Args:
        split: drawings on black, uint8 (N, C, H, W), none larger than the box.
        part: seed of the positions.
        anywhere: draw the position of the box uniformly over the canvas; else it is the centre.

    Returns:
        The drawings on black, (N, C, 32, 32).

    Raises:
        UsageError: a drawing is larger than the box.
    """
    images = split.images
    corners = torch.full((len(images), 2), (EMPTY - BOX) // 2)
    if anywhere:
        generator = torch.Generator().manual_seed(part)
        corners = torch.randint(EMPTY - BOX + 1, (len(images), 2), generator=generator)
    canvas = images.new_zeros(len(images), images.shape[1], EMPTY, EMPTY)
    for n, (image, corner) in enumerate(zip(images, corners.tolist())):
        drawing = _crop(image)
        height, width = drawing.shape[1:]
        if max(height, width) > BOX:
            what = f"drawings of at most {BOX} x {BOX} pixels"
            raise expected("images", what, f"{height} x {width} in image {n}")
        top, left = corner[0] + (BOX - height) // 2, corner[1] + (BOX - width) // 2
        canvas[n, :, top : top + height, left : left + width] = drawing
    return Split(canvas, split.labels)


def _crop(image: Tensor) -> Tensor:
    """Cut away the black rows and columns around a drawing."""
    ink = image.any(0)
    rows, columns = (ink.any(axis).nonzero()[:, 0].tolist() or [0] for axis in (1, 0))
    return image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def clutter(
    drawings: Split, *, seed: int, swapped: bool, opaque: bool = False
) -> tuple[Split, Tensor]:
    """Put each drawing near the centre of a canvas, at a random size, in front of a background.

    A background has stripes in one of ten directions, and patches cut from other drawings. In 70%
    of the images the direction equals the label of the drawing. `swapped` changes only the
    directions, to one of the nine others in every image. A network that relies on the background
    is then wrong, as on Waterbirds.

    A drawing is white ink whose opacity is its grey value. An `opaque` drawing keeps its grey
    values and covers the background up to its outline, including dark parts and holes.

    All arithmetic is on integers, so that a seed gives the same pixels on every machine.

    Args:
        drawings: images (N, 1, 28, 28), white on black, of ten classes, such as digits.
        seed: of positions, sizes, patches and backgrounds.
        swapped: whether the background belongs to another class.
        opaque: see above.

    Returns:
        Images (N, 1, 40, 40) with masks, which are True where the drawing covers more than half of
        a pixel, and the directions of their backgrounds, (N,).
    """
    n, labels = len(drawings.images), drawings.labels
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> np.ndarray:
        return torch.randint(low, high + 1, shape, generator=generator).numpy()

    sizes = draw(*SIZES, n).tolist()
    shifts = draw(-SHIFT, SHIFT, n, 2).tolist()
    phases = draw(0, PERIOD - 1, n)
    sources = draw(0, n - 1, n, PATCHES).tolist()
    cuts = draw(0, 27 - PATCH + 1, n, PATCHES, 2).tolist()
    positions = draw(0, SIDE - PATCH, n, PATCHES, 2).tolist()
    follows = torch.rand(n, generator=generator) < BIAS
    others = (labels + torch.randint(1, 10, (n,), generator=generator)) % 10
    directions = others if swapped else torch.where(follows, labels, others)
    pixels = drawings.images[:, 0].numpy()
    images = _stripes()[directions.numpy(), phases]
    from scipy.ndimage import binary_fill_holes

    masks = np.empty((n, SIDE, SIDE), bool)
    for i, canvas in enumerate(images):
        for source, (y, x), (row, column) in zip(sources[i], cuts[i], positions[i]):
            area = canvas[row : row + PATCH, column : column + PATCH]
            np.maximum(area, pixels[source, y : y + PATCH, x : x + PATCH] // 2, out=area)
        ink = _place(pixels[i], sizes[i], shifts[i])
        cover, shade = (255 * binary_fill_holes(ink > FAINT), ink) if opaque else (ink, 255)
        images[i] = (canvas * (255 - cover) + shade * cover) // 255
        masks[i] = cover > 127
    return Split(torch.from_numpy(images)[:, None], labels, torch.from_numpy(masks)), directions


def clutter_split(split: Split, *, part: int, swapped: bool, opaque: bool = False) -> Split:
    """Put the images of a split on cluttered canvases; only test images are `swapped`."""
    return clutter(split, seed=part, swapped=swapped and part == 1, opaque=opaque)[0]


def _place(drawing: np.ndarray, size: int, shift: list[int]) -> np.ndarray:
    """Return the grey values of a drawing on a black canvas, (SIDE, SIDE)."""
    canvas = Image.new("L", (SIDE, SIDE))
    top, left = ((SIDE - size) // 2 + s for s in shift)
    scaled = Image.fromarray(drawing).resize((size, size), Image.Resampling.BILINEAR)
    canvas.paste(scaled, (left, top))
    return np.asarray(canvas, np.int32)


def _stripes() -> np.ndarray:
    """Return stripes in ten directions and all phases, (10, PERIOD, SIDE, SIDE)."""
    y, x = np.mgrid[:SIDE, :SIDE]
    angle = (np.pi * np.arange(10) / 10)[:, None, None, None]
    phase = np.arange(PERIOD)[:, None, None]
    wave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle) + phase) / PERIOD)
    return np.rint(64 + 24 * wave).astype(np.uint8)
