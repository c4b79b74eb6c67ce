"""Images of other data sets, brought to the shape that a network was trained on."""

import torch

from suite.data.splits import Split
from suite.errors import UsageError

BATCH = 1000  # images that are resized at a time


def resize(split: Split, *, size: int, part: int = 0) -> Split:
    """Resize images to RGB of `size` x `size` pixels; `part` is not used.

    Scaling is bilinear with antialiasing; a grey image gets three equal channels. Groups stay,
    masks are dropped.

    Raises:
        UsageError: images that are not square would be distorted.
    """
    from torchvision.transforms import v2  # the import takes seconds

    count, _, height, width = split.images.shape
    if height != width:
        raise UsageError(f"resized: expected square images, got {height} x {width}")
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    for start in range(0, count, BATCH):
        rows = slice(start, start + BATCH)
        images[rows] = v2.functional.resize(split.images[rows], [size, size], antialias=True)
    return Split(images, split.labels, groups=split.groups)


def cut_tiles(split: Split, *, size: int, part: int = 0) -> Split:
    """Cut images into tiles of `size` x `size` pixels without overlap; `part` is not used.

    Tiles are sorted by position, so that the first tiles come from all images. Remainders at the
    right and the bottom are not used. A tile has the label of its image.

    Raises:
        UsageError: the images are smaller than a tile.
    """
    channels, *sides = split.images.shape[1:]
    if min(sides) < size:
        raise UsageError(f"tiles: expected images of at least {size} x {size}, got {sides}")
    tiles = split.images.unfold(2, size, size).unfold(3, size, size).permute(2, 3, 0, 1, 4, 5)
    positions = tiles.shape[0] * tiles.shape[1]
    return Split(tiles.reshape(-1, channels, size, size), split.labels.repeat(positions))
