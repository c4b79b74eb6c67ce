"""Images of other data sets, in the shape that a network was trained on."""

import torch

from suite.data.splits import Split
from suite.errors import UsageError

IMAGES = 1000  # so many are resized at a time


def resize(split: Split, *, size: int, part: int = 0) -> Split:
    """Bring images to `size` x `size` pixels and three colours, in both parts alike.

    Scaling is bilinear with antialiasing; a grey image gets three equal colours. Groups stay, masks
    are left out.

    Raises:
        UsageError: images that are not square, which would be distorted.
    """
    from torchvision.transforms import v2  # the import takes seconds

    count, _, height, width = split.images.shape
    if height != width:
        raise UsageError(f"resized: expected square images, got {height} x {width}")
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for start in range(0, count, IMAGES):
        rows = slice(start, start + IMAGES)
        images[rows] = v2.functional.resize(split.images[rows], [size, size], antialias=True)
    return Split(images, split.labels, groups=split.groups)


def cut_tiles(split: Split, *, size: int, part: int = 0) -> Split:
    """Cut images into tiles of `size` x `size` pixels that do not overlap, in both parts alike.

    Tiles are sorted by position, so that the first tiles come from all images. Remainders at the
    right and at the bottom are not used. A tile has the label of its image.

    Raises:
        UsageError: images that are smaller than a tile.
    """
    channels, *sides = split.images.shape[1:]
    if min(sides) < size:
        raise UsageError(f"tiles: expected images of at least {size} x {size}, got {sides}")
    tiles = split.images.unfold(2, size, size).unfold(3, size, size).permute(2, 3, 0, 1, 4, 5)
    positions = tiles.shape[0] * tiles.shape[1]
    return Split(tiles.reshape(-1, channels, size, size), split.labels.repeat(positions))
