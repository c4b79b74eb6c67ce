"""Data sets whose images belong to groups: BlockMNIST, digits on textures, Waterbirds, CelebA."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from suite.data.files import read_image, read_table
from suite.data.splits import Read, Split

WATERBIRDS = "waterbird_complete95_forest2water2"


def attach_null_blocks(split: Split, *, part: int) -> Split:
    """Attach a null block, a square with its diagonals, above or below each image.

    A random half of each class has the block above (group 0), the others below (group 1).
    `part` seeds the draw. See `null_block_masks` for masks of the block.

    Source: :cite:t:`shah2021`, as in appendix A.8.1 of :cite:t:`yang2024`.
    """
    above = _draw_balanced(split.labels, 0.5, seed=part)
    block = _null_block().expand_as(split.images)
    below = torch.cat([split.images, block], dim=2)
    images = torch.where(above[:, None, None, None], below.roll(block.shape[2], dims=2), below)
    return Split(images, split.labels, groups=(~above).long())


def null_block_masks(split: Split) -> Tensor:
    """Return masks of the null blocks of images of BlockMNIST, (N, 1, H, W).

    Raises:
        ValueError: the images have no groups, or groups other than 0 and 1.
    """
    n, _, height, width = split.images.shape
    if split.groups is None or not bool(((split.groups == 0) | (split.groups == 1)).all()):
        raise ValueError("split: expected images of BlockMNIST, with groups 0 (block above) and 1")
    below = torch.arange(height) >= height // 2
    masks = below[None] == (split.groups == 1)[:, None]
    return masks[:, None, :, None].expand(n, 1, height, width)


def put_on_textures(
    train: Split, test: Split, classes: Sequence[str], *, minority: float = 0.05
) -> Read:
    """Put images on crops of two photographs, one for each half of the classes.

    Labels become 0 for the lower and 1 for the upper half of the classes. In training all but
    the share `minority` of each new class have the background of their class, in testing one half.
    The group of an image is 2 label + background. Backgrounds are crops of a photograph of a
    building (0) or a flower (1) at half brightness, from its left half in training, its right in
    testing.

    Source: built as :cite:t:`sagawa2020` built Waterbirds.
    """
    from sklearn.datasets import load_sample_image

    photographs = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    photos = torch.stack([torch.tensor(p).permute(2, 0, 1) for p in photographs])
    left, right = photos.chunk(2, dim=3)
    half = (len(classes) + 1) // 2
    names = [", ".join(classes[:half]), ", ".join(classes[half:])]
    blended = _blend(train, half, left, minority, seed=2)
    return blended, _blend(test, half, right, 0.5, seed=3), names


def read_waterbirds(root: Path) -> Read:
    """Read the images and `metadata.csv` of Waterbirds; group = 2 label + background."""
    from torchvision.transforms import v2  # which takes seconds

    folder, side = root / WATERBIRDS, 224
    names = ["img_filename", "y", "place", "split"]
    table = read_table(folder / "metadata.csv", names)[names]
    resize = v2.Compose([v2.Resize((side * 8 // 7,) * 2, antialias=True), v2.CenterCrop(side)])
    train, test = _read_groups(folder, table, resize)
    return train, test, ["landbird", "waterbird"]


def read_celeba(root: Path) -> Read:
    """Read CelebA in the layout of its authors; label: blond hair, group = 2 label + male."""
    from torchvision.transforms import v2

    folder, names = root / "celeba", ["Blond_Hair", "Male"]
    attributes = read_table(folder / "list_attr_celeba.txt", names)[names] == 1
    partition = read_table(folder / "list_eval_partition.txt", None).iloc[:, 0]
    table = attributes.loc[partition.index].assign(split=partition).reset_index()
    resize = v2.Compose([v2.CenterCrop(178), v2.Resize(128, antialias=True)])
    train, test = _read_groups(folder / "img_align_celeba", table, resize)
    return train, test, ["dark hair", "blond hair"]


def _read_groups(
    folder: Path, table: pd.DataFrame, resize: Callable[[Tensor], Tensor]
) -> list[Split]:
    """Read the images of a table with columns name, label, attribute and split (0, 1 or 2)."""
    splits = []
    for number in (0, 2):  # 1 is for validation
        rows = table[table.iloc[:, 3] == number]
        images = [resize(read_image(folder / name)) for name in rows.iloc[:, 0]]
        stacked = torch.stack(images) if images else torch.empty(0, 3, 1, 1, dtype=torch.uint8)
        y, a = (torch.tensor(rows.iloc[:, n].to_numpy(dtype=np.int64)) for n in (1, 2))
        splits.append(Split(stacked, y, groups=2 * y + a))
    return splits


def _null_block() -> Tensor:
    """Draw a frame of two pixels, four pixels from the border, with diagonals: uint8 (28, 28)."""
    row, column = torch.arange(28)[:, None], torch.arange(28)
    from_border = torch.stack(torch.broadcast_tensors(row, column, 27 - row, 27 - column)).amin(0)
    diagonal = ((row - column).abs() <= 1) | ((row + column - 27).abs() <= 1)
    ink = (from_border >= 4) & ((from_border < 6) | diagonal)
    return ink.to(torch.uint8) * 255


def _blend(split: Split, half: int, photos: Tensor, minority: float, seed: int) -> Split:
    """Put images on random crops of photographs (2, 3, H, W): see `put_on_textures`."""
    labels = (split.labels >= half).long()
    background = torch.where(_draw_balanced(labels, minority, seed), 1 - labels, labels)
    generator = torch.Generator().manual_seed(seed)
    n, _, height, width = split.images.shape
    rows = torch.randint(photos.shape[2] - height + 1, (n,), generator=generator)
    columns = torch.randint(photos.shape[3] - width + 1, (n,), generator=generator)
    corners = zip(background.tolist(), rows.tolist(), columns.tolist(), strict=True)
    crops = [photos[b, :, r : r + height, c : c + width] for b, r, c in corners]
    opacity = split.images.float() / 255
    mixed = torch.stack(crops).float() / 2 * (1 - opacity) + 255 * opacity
    return Split(mixed.round().to(torch.uint8), labels, groups=2 * labels + background)


def _draw_balanced(labels: Tensor, share: float, seed: int) -> Tensor:
    """Draw a random share of each class, as booleans (N,)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(members), generator=generator)
        chosen[members[order[: round(share * len(members))]]] = True
    return chosen
