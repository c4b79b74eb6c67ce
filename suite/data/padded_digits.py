"""Digits on a larger canvas, where they can lie in the middle or anywhere."""

from collections.abc import Sequence

import torch
from torch import Tensor

from suite.data.readers import Read, Split

SIZE, BOX = 32, 20


def on_canvas(
    images: Tensor, *, size: int = SIZE, box: int = BOX, generator: torch.Generator | None = None
) -> Tensor:
    """Put each drawing into the middle of a box, and the box onto a canvas.

    Args:
        images: drawings on black, bytes (N, C, H, W), none larger than the box.
        size: pixels along a side of the canvas.
        box: pixels along a side of the box.
        generator: draws where the box lies, uniformly over the canvas; without it in the middle.

    Returns:
        The drawings on black, (N, C, size, size).

    Raises:
        ValueError: a drawing that is larger than the box, or a box that is larger than the canvas.
    """
    if box > size:
        raise ValueError(f"box: expected at most the {size} pixels of the canvas, got {box}")
    free = size - box
    corners = torch.full((len(images), 2), free // 2)
    if generator is not None:
        corners = torch.randint(free + 1, (len(images), 2), generator=generator)
    canvas = images.new_zeros(len(images), images.shape[1], size, size)
    for n, (image, corner) in enumerate(zip(images, corners.tolist())):
        drawing = _cropped(image)
        height, width = drawing.shape[1:]
        if max(height, width) > box:
            raise ValueError(
                f"images: expected drawings of at most {box} x {box} pixels, got {height} x "
                f"{width} in image {n}"
            )
        top, left = corner[0] + (box - height) // 2, corner[1] + (box - width) // 2
        canvas[n, :, top : top + height, left : left + width] = drawing
    return canvas


def digits(train: Split, test: Split, classes: Sequence[str], *, anywhere: bool) -> Read:
    """Put the images of both splits `on_canvas`, in the middle or anywhere."""
    placed = []
    for seed, split in enumerate((train, test)):
        generator = torch.Generator().manual_seed(seed) if anywhere else None
        placed.append(Split(on_canvas(split.images, generator=generator), split.labels))
    return placed[0], placed[1], classes


def _cropped(image: Tensor) -> Tensor:
    """Cut away the rows and columns around a drawing that are black."""
    drawn = image.any(0)
    rows, columns = (drawn.any(axis).nonzero()[:, 0].tolist() or [0] for axis in (1, 0))
    return image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
