"""Photographs of birds with masks, in their original layout."""

from pathlib import Path

import pandas as pd

from suite.data.files import read_table
from suite.data.grouped import WATERBIRDS
from suite.data.image_cache import read_masks, read_photographs
from suite.data.splits import Missing, Read, Split, test_only
from suite.errors import UsageError, expected

CUB_TABLES = ("images", "image_class_labels", "train_test_split", "classes")


def read_cub(root: Path) -> Read:
    """Read CUB-200-2011 :cite:p:`wah2011`; a mask is the majority vote of five annotators."""
    table, classes = _read_birds(root)
    train = table["is_training"] == 1
    return _read_split(root, table[train]), _read_split(root, table[~train]), classes


def read_cub_on_waterbirds(root: Path) -> Read:
    """Read the test images of CUB-200-2011 on their backgrounds in Waterbirds.

    Species, order and masks are as in `read_cub`.

    Source: table 6 of :cite:t:`topgap`; the images are of :cite:t:`sagawa2020`.
    """
    table, classes = _read_birds(root)
    tests = table[table["is_training"] == 0]
    metadata = root / WATERBIRDS / "metadata.csv"
    names = read_table(metadata, ["img_filename"])["img_filename"]
    if absent := sorted(set(tests["name"]) - set(names)):
        raise expected(f"{metadata}", "all test images of CUB-200-2011", f"no {absent[0]}")
    return test_only(_read_split(root, tests, root / WATERBIRDS), classes)


def _read_birds(root: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the name, class (from 1) and split of each image, and the names of the classes."""
    folder = root / "CUB_200_2011"
    tables = [read_table(folder / f"{name}.txt", None) for name in CUB_TABLES]
    if not (folder / "segmentations").is_dir():
        raise Missing(folder / "segmentations", "there is no such folder")
    try:
        *columns, species = (table.iloc[:, 0] for table in tables)
        birds = pd.DataFrame(dict(zip(("name", "class", "is_training"), columns)))
        if birds.isna().to_numpy().any() or list(species.index) != [*range(1, len(species) + 1)]:
            raise ValueError("others")
        birds = birds.astype({"class": int, "is_training": int})
    except (ValueError, IndexError) as error:
        why = f"{folder}: expected a number and a value in each line of "
        why += f"{'.txt, '.join(CUB_TABLES)}.txt, the same numbers in the first three and 1, 2, 3, "
        raise UsageError(f"{why}... in the last, got {error}") from error
    return birds, [name.partition(".")[2].replace("_", " ") for name in species]


def _read_split(root: Path, table: pd.DataFrame, images: Path | None = None) -> Split:
    folder = root / "CUB_200_2011"
    paths = [(images or folder / "images") / name for name in table["name"]]
    files = [(folder / "segmentations" / name).with_suffix(".png") for name in table["name"]]
    masks = read_masks(root, paths, files)
    return read_photographs(root, paths, [number - 1 for number in table["class"]], masks)
