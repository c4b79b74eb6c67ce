"""Load data sets by name: uint8 images in memory, or in a file that is mapped into memory."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from suite.data.sources import read_source, source
from suite.data.splits import Split
from suite.errors import UsageError, expected
from suite.paths import data_folder


@dataclass(frozen=True)
class ImageData:
    """A data set: two splits, the names of its classes, and a fingerprint of its contents."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    fingerprint: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (C, H, W) of one image."""
        return tuple(self.train.images.shape[1:])


def to_float(images: Tensor, pixel_range: Sequence[float]) -> Tensor:
    """Map uint8 images, 0..255, to floats in `pixel_range`, for example (-1, 1).

    >>> import torch
    >>> to_float(torch.tensor([0, 255], dtype=torch.uint8), (-1, 1))
    tensor([-1.,  1.])
    """
    low, high = pixel_range
    return images.float() * ((high - low) / 255) + low


def load_data(name: str, root: Path | None = None) -> ImageData:
    """Read a data set.

    Args:
        name: a key of `SOURCES`; `resized:NAME:SIZE` for the images of another data set as RGB of
            SIZE x SIZE pixels; or `imagefolder:PATH` for images of your own. They are of one size,
            in `PATH/train/CLASS/*` and `PATH/test/CLASS/*` (or `val` for `test`). Without these
            folders, they are photographs of any size to show to a network for ImageNet. Images are
            rotated by the orientation in their files, transparent parts become white, and hidden
            files and folders are ignored.
        root: folder of downloaded data; default: see `suite.paths.data_folder`.

    Raises:
        DataMissing: the data are not on this machine; the message says how to get them.
        UsageError: unknown name, or data that cannot be used; the message names the file.
    """
    return _load(name, str(root or data_folder()))


def image_shape(name: str) -> tuple[int, ...]:
    """Return the shape (C, H, W) of the images of a data set, if possible without its files."""
    return source(name).shape or load_data(name).shape


@functools.lru_cache(maxsize=4)  # one for training, and others for testing
def _load(name: str, root: str) -> ImageData:
    train, test, classes = read_source(name, Path(root))
    where = f"data set {name!r}"
    for part, split in [("training", train)] * source(name).to_train + [("test", test)]:
        count, labels = len(split.images), split.labels
        if count == 0:
            raise UsageError(f"{where}: expected images in its {part} split, found none")
        if count != len(labels):
            got = f"{count} images and {len(labels)} labels"
            raise expected(where, f"a label for each {part} image", got)
        low, high = int(labels.min()), int(labels.max())
        if not 0 <= low <= high < len(classes):
            raise expected(where, f"{part} labels in 0..{len(classes) - 1}", f"{low}..{high}")
    digest = hashlib.sha256()
    mapped = {id(split.images): split.sha256 for split in (train, test)}
    tensors = [train.images, train.labels, test.images, test.labels]
    for tensor in (*tensors, train.masks, test.masks, train.groups, test.groups):
        if tensor is not None:
            digest.update(str(tuple(tensor.shape)).encode())
            sha256 = mapped.get(id(tensor))
            digest.update(sha256.encode() if sha256 else tensor.contiguous().numpy().data)
    return ImageData(train, test, tuple(classes), digest.hexdigest())
