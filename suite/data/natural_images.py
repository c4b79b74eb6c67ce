"""Photographs of objects with masks, as their authors lay them out: COCO, CUB-200-2011, pets."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw
from torchvision import datasets

from suite.data.files import open_image, read_table
from suite.data.grouped import WATERBIRDS
from suite.data.image_cache import read_masks, read_photographs
from suite.data.readers import reading
from suite.data.splits import Missing, Read, Split, test_only
from suite.errors import UsageError, expected

LEAST_OF_A_CLASS = 20
FINER = 4  # lines of a polygon are drawn on pixels that are so many times smaller
FOREGROUND, BACKGROUND, NOT_CLASSIFIED = 1, 2, 3  # in the trimaps of Oxford-IIIT Pet
CUB_TABLES = ("images", "image_class_labels", "train_test_split", "classes")


class _Object(NamedTuple):
    """The only object of an image: where the image is, the category, and how it is outlined."""

    image: Path
    category: int
    outline: Any
    size: tuple[int, int]


def read_coco(root: Path) -> Read:
    """Read the images of COCO 2017 that show a single object, with its mask.

    An image belongs to the set if its annotations name exactly one object, and its class has at
    least 20 such images in train2017. A crowd, which one annotation outlines as a whole, is many
    objects, so no image with a crowd belongs to it. Of these images, those whose object lies
    outside the middle that is cut out are left out. Images of train2017 are to train, those of
    val2017 to test; classes are in the order of COCO's category ids.

    Source: appendix A of :cite:t:`topgap`, which gets 53 classes; the images are of
    :cite:t:`lin2014`.
    """
    folder = root / "coco"
    tables = [folder / "annotations" / f"instances_{part}2017.json" for part in ("train", "val")]
    train, names = _single_objects(tables[0], folder / "train2017")
    test, _ = _single_objects(tables[1], folder / "val2017")
    counts = Counter(one.category for one in train)
    categories = sorted(category for category, n in counts.items() if n >= LEAST_OF_A_CLASS)
    label = {category: index for index, category in enumerate(categories)}
    splits = [_with_outlines(root, *part, label) for part in zip(tables, (train, test))]
    return splits[0], splits[1], [names[category] for category in categories]


def _single_objects(table: Path, images: Path) -> tuple[list[_Object], dict[int, str]]:
    """Return the objects that are alone in their image, and the names of all categories."""
    if not table.exists():
        raise Missing(table, "there is no such file")
    try:
        contents = json.loads(table.read_bytes())
        files = {image["id"]: image for image in contents["images"]}
        annotations = contents["annotations"]
        number = Counter(annotation["image_id"] for annotation in annotations)
        objects = []
        for one in annotations:
            if number[one["image_id"]] == 1 and not one["iscrowd"]:
                file = files[one["image_id"]]
                path, size = images / file["file_name"], (file["width"], file["height"])
                objects.append(_Object(path, one["category_id"], one["segmentation"], size))
        return objects, {kind["id"]: kind["name"] for kind in contents["categories"]}
    except (ValueError, KeyError, TypeError) as error:
        what = "images, annotations and categories as in COCO"
        raise expected(f"{table}", what, repr(error)) from error


def _with_outlines(
    root: Path, table: Path, objects: Sequence[_Object], label: Mapping[int, int]
) -> Split:
    objects = [one for one in objects if one.category in label]

    def draw(row: int) -> Image.Image:
        try:
            return draw_outline(objects[row].outline, objects[row].size)
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{table}: outline in {objects[row].image.name}: {error}") from error

    masks = read_masks(root, [one.image for one in objects], [table], draw)
    inside = masks.flatten(1).any(1)
    objects = [one for one, is_inside in zip(objects, inside.tolist()) if is_inside]
    labels = [label[one.category] for one in objects]
    return read_photographs(root, [one.image for one in objects], labels, masks[inside])


def draw_outline(outline: Any, size: tuple[int, int]) -> Image.Image:
    """Draw what an annotation of COCO outlines, white on black; grey where it ends in a pixel.

    Args:
        outline: polygons, each a list x1, y1, x2, y2, ... in pixels, or a run-length encoding
            `{"counts": [...], "size": [height, width]}`: lengths of runs that are, in turn, off and
            on, down the columns.
        size: width and height.

    Raises:
        ValueError: neither of these, or runs that do not fill the image.
    """
    width, height = size
    if isinstance(outline, dict):
        counts = outline["counts"]
        if not isinstance(counts, list) or sum(counts) != width * height:
            raise ValueError(f"expected runs of {width * height} pixels in all, got {counts!r:.60}")
        on = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(width, height).T
        return Image.fromarray(on.astype(np.uint8) * 255)
    canvas = Image.new("L", (FINER * width, FINER * height))
    for polygon in outline:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"expected x1, y1, x2, y2, x3, y3, ..., got {polygon!r:.60}")
        ImageDraw.Draw(canvas).polygon([FINER * value for value in polygon], fill=255)
    return canvas.reduce(FINER)


def read_cub(root: Path) -> Read:
    """Read CUB-200-2011 :cite:p:`wah2011`; masks are what most of five annotators marked."""
    table, classes = _birds(root)
    train = table["is_training"] == 1
    return _split_of_birds(root, table[train]), _split_of_birds(root, table[~train]), classes


def read_cub_on_waterbirds(root: Path) -> Read:
    """Read the test images of CUB-200-2011 on the backgrounds that Waterbirds gave them.

    Species, order and masks are those of `read_cub`; all images are to test.

    Source: table 6 of :cite:t:`topgap`; the images are of :cite:t:`sagawa2020`.
    """
    table, classes = _birds(root)
    tests = table[table["is_training"] == 0]
    metadata = root / WATERBIRDS / "metadata.csv"
    there = read_table(metadata, ["img_filename"])["img_filename"]
    if absent := sorted(set(tests["name"]) - set(there)):
        raise expected(f"{metadata}", "all test images of CUB-200-2011", f"no {absent[0]}")
    return test_only(_split_of_birds(root, tests, root / WATERBIRDS), classes)


def _birds(root: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return name, class (from 1) and part of each image, and the names of the classes."""
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
        raise UsageError(
            f"{folder}: expected a number and a value in each line of {'.txt, '.join(CUB_TABLES)}"
            f".txt, the same numbers in the first three and 1, 2, 3, ... in the last, got {error}"
        ) from error
    return birds, [name.partition(".")[2].replace("_", " ") for name in species]


def _split_of_birds(root: Path, table: pd.DataFrame, images: Path | None = None) -> Split:
    folder = root / "CUB_200_2011"
    paths = [(images or folder / "images") / name for name in table["name"]]
    drawn = [(folder / "segmentations" / name).with_suffix(".png") for name in table["name"]]
    masks = read_masks(root, paths, drawn, lambda row: open_image(drawn[row], mode="L"))
    return read_photographs(root, paths, [number - 1 for number in table["class"]], masks)


def read_oxford_pet(root: Path) -> Read:
    """Read the 37 breeds of Oxford-IIIT Pet :cite:p:`parkhi2012`.

    A mask is the foreground of the trimap; pixels that its authors did not classify, along the
    outline, are not part of it.
    """
    splits, classes = [], []
    for part in ("trainval", "test"):
        path = root / "oxford-iiit-pet" / "annotations" / f"{part}.txt"
        with reading(path):
            classes.append(datasets.OxfordIIITPet(root, part).classes)
        splits.append(_split_of_pets(root / "oxford-iiit-pet", read_table(path, None).iloc[:, 0]))
    return splits[0], splits[1], classes[0]


def _split_of_pets(folder: Path, numbers: "pd.Series[int]") -> Split:
    paths = [folder / "images" / f"{name}.jpg" for name in numbers.index]
    trimaps = [folder / "annotations" / "trimaps" / f"{name}.png" for name in numbers.index]

    def foreground(row: int) -> Image.Image:
        values = np.asarray(open_image(trimaps[row], mode="L"))
        if not np.isin(values, (FOREGROUND, BACKGROUND, NOT_CLASSIFIED)).all():
            raise expected(f"{trimaps[row]}", "a trimap of 1, 2 and 3", np.unique(values)[:9])
        return Image.fromarray((values == FOREGROUND).astype(np.uint8) * 255)

    masks = read_masks(folder.parent, paths, trimaps, foreground)
    return read_photographs(folder.parent, paths, [n - 1 for n in numbers], masks)
