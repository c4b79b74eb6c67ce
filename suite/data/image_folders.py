"""Large sets of photographs in a folder for each class: ImageNet with its variants, wood."""

from pathlib import Path
from typing import NamedTuple

from torchvision import datasets

from suite.data import image_cache as decoded
from suite.data.photographs import class_names
from suite.data.readers import NotThere, Read, Split
from suite.errors import UsageError


class _Listed(NamedTuple):
    """Images below a folder, the number of the class of each, and the folders of the classes."""

    paths: list[Path]
    labels: list[int]
    classes: list[str]


def _listed(folder: Path) -> _Listed:
    try:
        found = datasets.ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise NotThere(folder, error) from error
    return _Listed([Path(path) for path, _ in found.samples], found.targets, found.classes)


def _of_imagenet(folder: Path) -> _Listed:
    """List a folder that has one folder nXXXXXXXX for each class: sorted, as ImageNet counts."""
    listed, count = _listed(folder), len(class_names())
    if len(listed.classes) != count:
        raise UsageError(
            f"{folder}: expected {count:,} folders nXXXXXXXX, one for each class of ImageNet, got "
            f"{len(listed.classes):,}"
        )
    return listed


def read_imagenet(root: Path) -> Read:
    """Read ImageNet 2012 :cite:p:`deng2009`; the validation set is to test."""
    parts = [_of_imagenet(root / "imagenet" / part) for part in ("train", "val")]
    _check_same(root / "imagenet", parts[0], parts[1])
    train, test = (decoded.photographs(root, part.paths, part.labels) for part in parts)
    return train, test, class_names()


def read_shifted_imagenet(root: Path, folder: str) -> Read:
    """Read images of the classes of ImageNet to test with, such as ImageNet-Sketch."""
    listed = _of_imagenet(root / folder)
    test = decoded.photographs(root, listed.paths, listed.labels)
    return Split(test.images[:0], test.labels[:0]), test, class_names()


def read_resized_folder(root: Path, folder: str) -> Read:
    """Read FOLDER/{train,test}/CLASS/* with images of any size, and cut them to 224 x 224."""
    parts = [_listed(root / folder / part) for part in ("train", "test")]
    _check_same(root / folder, parts[0], parts[1])
    train, test = (decoded.photographs(root, part.paths, part.labels) for part in parts)
    return train, test, parts[0].classes


def _check_same(folder: Path, train: _Listed, test: _Listed) -> None:
    if differ := sorted(set(train.classes) ^ set(test.classes)):
        raise UsageError(
            f"{folder}: expected the same classes to train and to test, got {differ[:5]} in one of "
            "them only"
        )
