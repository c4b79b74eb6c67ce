"""Reading images and tables from files."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps
from torch import Tensor

from suite.data.splits import Missing
from suite.errors import UsageError

SIZE, SHORTER_SIDE = 224, 256  # of photographs
# Pillow raises SyntaxError for some damaged PNG files, and an error of its own for huge images.
NOT_READABLE = (OSError, SyntaxError, Image.DecompressionBombError)


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            yield image
    except NOT_READABLE as error:
        raise UsageError(f"{path}: not a readable image ({error})") from error


def open_image(path: str | Path, *, mode: str = "RGB", upright: bool = True) -> Image.Image:
    """Read an image; `upright` rotates it by the orientation in its file.

    Transparent parts become white, except in a mask (mode "L").

    Raises:
        UsageError: not a readable image, or more than 8 bits a channel.
    """
    with _open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise UsageError(f"{path}: expected 8 bits a channel, got mode {image.mode}")
        rotated = ImageOps.exif_transpose(image) if upright else image
        if mode == "RGB" and rotated.has_transparency_data:
            white = Image.new("RGBA", rotated.size, "white")
            rotated = Image.alpha_composite(white, rotated.convert("RGBA"))
        return rotated.convert(mode)


def image_size(path: Path) -> tuple[int, int]:
    """Return the width and height of an image without decoding it.

    Raises:
        UsageError: not a readable image.
    """
    with _open(path) as image:
        return image.size


def read_image(path: str | Path) -> Tensor:
    """Read an image as uint8 (3, H, W), upright."""
    return _tensor(open_image(path))


def read_photograph(path: Path, *, upright: bool = True, size: int = SIZE) -> Tensor:
    """Read a photograph as uint8 (3, size, size), cropped by `crop_centre` with bicubic scaling.

    `upright` rotates it by the orientation in its file.

    Raises:
        UsageError: not a readable image, or more than 8 bits a channel.
    """
    return _tensor(crop_centre(open_image(path, upright=upright), Image.Resampling.BICUBIC, size))


def _tensor(image: Image.Image) -> Tensor:
    return torch.tensor(np.asarray(image)).permute(2, 0, 1)


def crop_centre(image: Image.Image, resampling: Image.Resampling, size: int = SIZE) -> Image.Image:
    """Scale the shorter side to 8/7 of `size` pixels and crop the centre, size x size.

    An image of size x size pixels stays as it is.
    """
    if image.size == (size, size):
        return image
    shorter = SHORTER_SIDE * size // SIZE
    width, height = (shorter * side // min(image.size) for side in image.size)
    image = image.resize((width, height), resampling)
    left, top = ((side - size) // 2 for side in image.size)
    return image.crop((left, top, left + size, top + size))


def read_table(path: Path, columns: Sequence[str] | None) -> pd.DataFrame:
    """Read a table in the format of Waterbirds (.csv), CelebA or CUB-200-2011 (.txt).

    The first column of a .txt file names the images; without `columns` it has no header.

    Raises:
        Missing, UsageError: the file is missing, or not a table with these columns.
    """
    if not path.exists():
        raise Missing(path, "there is no such file")
    options: dict[str, Any] = {"header": None} if columns is None else {"skiprows": 1}
    options = {} if path.suffix == ".csv" else {"sep": r"\s+", "index_col": 0} | options
    try:
        table = pd.read_csv(path, **options)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: not a readable table ({error})") from error
    if absent := [column for column in columns or () if column not in table]:
        raise UsageError(f"{path}: expected a column {absent[0]!r}, got {list(table)[:8]}")
    return table
