"""Images in folders: own ones, Imagenette, ImageNet with its variants, wood, single photographs."""

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision import datasets
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from suite.data import image_cache
from suite.data.files import read_image, read_photograph
from suite.data.splits import Missing, Read, Split, interleave_classes, test_only
from suite.errors import expected

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


class _Listed(NamedTuple):
    """Images below a folder, the number of the class of each, and the folders of the classes."""

    paths: list[Path]
    labels: list[int]
    classes: list[str]


def class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 classes of ImageNet, in their order."""
    return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def _listed(folder: Path) -> _Listed:
    if not folder.is_dir():
        raise Missing(folder, "there is no such folder")
    try:
        images = datasets.ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise Missing(folder, error) from error
    return _Listed([Path(path) for path, _ in images.samples], images.targets, images.classes)


def _of_imagenet(folder: Path) -> _Listed:
    """List a folder that has one folder nXXXXXXXX for each class: sorted, as ImageNet counts."""
    listed, count = _listed(folder), len(class_names())
    if len(listed.classes) != count:
        folders = f"{count:,} folders nXXXXXXXX, one for each class of ImageNet"
        raise expected(f"{folder}", folders, f"{len(listed.classes):,}")
    return listed


def _parts(
    folder: Path, test: str, list_part: Callable[[Path], _Listed] = _listed
) -> tuple[_Listed, _Listed]:
    """List the images to train on and those to test, which must be of the same classes."""
    parts = list_part(folder / "train"), list_part(folder / test)
    if differ := sorted(set(parts[0].classes) ^ set(parts[1].classes)):
        same = f"the same classes in train and {test}"
        raise expected(f"{folder}", same, f"{differ[:9]} in one of them only")
    if len(parts[0].classes) < 2:
        raise expected(
            f"{folder / 'train'}", "two classes or more, a folder each", parts[0].classes
        )
    return parts


def read_image_folder(
    root: Path, *, folder: str | Path, read: Callable[[Path], Tensor] = read_image
) -> Read:
    """Read FOLDER/{train,test}/CLASS/*; every image must have the size of the first."""
    folder = root / folder
    parts = _parts(folder, "test" if (folder / "test").is_dir() else "val")
    first = read(parts[0].paths[0])
    train, test = (_read_all(part, read, first) for part in parts)
    return train, test, parts[0].classes


def _read_all(part: _Listed, read: Callable[[Path], Tensor], first: Tensor) -> Split:
    images = []
    for path in part.paths:
        images.append(read(path))
        size, wanted = (f"{x.shape[1]} x {x.shape[2]}" for x in (images[-1], first))
        if size != wanted:
            advice = "resize or crop your images to one size"
            what = f"{wanted} pixels as in the first image"
            raise expected(f"{path}", what, f"{size}; {advice}")
    labels = torch.tensor(part.labels)
    return Split(torch.stack(images), labels).part(interleave_classes(labels))


def read_imagenette(root: Path, *, folder: str, side: int) -> Read:
    """Read Imagenette, cropped to squares."""
    train, test, folders = read_image_folder(
        root,
        folder=folder,
        read=lambda path: v2.functional.center_crop(read_image(path), [side, side]),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # in a notebook, by tqdm
        from timm.data.imagenet_info import ImageNetInfo

    names = dict(zip(ImageNetInfo().label_names(), class_names()))
    return train, test, [names.get(name, name) for name in folders]


def _cut(root: Path, part: _Listed) -> Split:
    return image_cache.read_photographs(root, part.paths, part.labels)


def read_photograph_folder(
    root: Path, *, folder: str, test: str = "test", of_imagenet: bool = False
) -> Read:
    """Read FOLDER/{train,TEST}/CLASS/* with images of any size, and cut them to 224 x 224.

    Of ImageNet 2012 :cite:p:`deng2009` the validation set is to test.
    """
    train, part = _parts(root / folder, test, _of_imagenet if of_imagenet else _listed)
    classes = class_names() if of_imagenet else train.classes
    return _cut(root, train), _cut(root, part), classes


def read_shifted_imagenet(root: Path, *, folder: str) -> Read:
    """Read images of the classes of ImageNet to test with, such as ImageNet-Sketch."""
    return test_only(_cut(root, _of_imagenet(root / folder)), class_names())


def _shown(files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]) -> Read:
    """Read photographs into memory, for networks to be shown."""
    images = torch.stack([read_photograph(file) for file in files])
    return test_only(Split(images, torch.tensor(labels)), classes)


def read_foolbox(root: Path) -> Read:
    """Read the 20 photographs of ImageNet that come with the package foolbox."""
    package = find_spec("foolbox")
    if package is None or package.origin is None:
        raise Missing(root, "the package foolbox is not installed")
    files = sorted((Path(package.origin).parent / "data").glob("imagenet_*.jpg"))
    return _shown(files, [int(file.stem.rpartition("_")[2]) for file in files], class_names())


def read_one_a_class(root: Path) -> Read:
    """Read one photograph of each class; the file names begin with the WordNet ids.

    Raises:
        Missing, UsageError: there are no photographs, or not one for each of the 1,000 classes.
    """
    folder = root / "imagenet-samples"
    files = _photographs_in(folder)
    if len({file.name.partition("_")[0] for file in files}) != len(files) or len(files) != 1000:
        what = "1,000 photographs nXXXXXXXX_name.JPEG, one for each class of ImageNet"
        raise expected(f"{folder}", what, len(files))
    return _shown(files, range(1000), class_names())


def read_validation_sample(root: Path, *, n: int = 1000, seed: int = 0) -> Read:
    """Read n random photographs of the validation set of ImageNet.

    Raises:
        Missing, UsageError: no folder for each of the 1,000 classes, or too few photographs.
    """
    folder = root / "imagenet" / "val"
    paths, labels, _ = _of_imagenet(folder)
    if len(paths) < n:
        raise expected(f"{folder}", f"at least {n} photographs", len(paths))
    drawn = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:n]
    rows = sorted(drawn.tolist())
    return _shown([paths[row] for row in rows], [labels[row] for row in rows], class_names())


def read_own(root: Path, *, folder: Path) -> Read:
    """Read all photographs below a folder; their classes are not known."""
    files = _photographs_in(root / folder)
    return _shown(files, [0] * len(files), ("unknown",))


def _photographs_in(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        raise Missing(folder, f"there are no photographs below {folder}")
    return files
