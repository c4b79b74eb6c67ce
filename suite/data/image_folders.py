"""Images in folders: your own, Imagenette, ImageNet, single photographs."""

import functools
import multiprocessing
import os
import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from suite.data import image_cache
from suite.data.files import read_image, read_photograph, read_table
from suite.data.splits import Missing, Read, Split, interleave_classes, test_only
from suite.errors import UsageError, expected

ENDINGS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IMAGES = ", ".join(ENDINGS)
FEW = 9  # names that a message lists at most


class _Listing(NamedTuple):
    """Images below a folder, the class index of each, and the folders of the classes."""

    paths: list[Path]
    labels: list[int]
    classes: list[str]


def class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 classes of ImageNet, in order of their index."""
    from torchvision.models import ResNet50_Weights  # the import takes seconds

    return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def wordnet_ids() -> list[str]:
    """Return the WordNet ids of the classes of ImageNet, in the same order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # in a notebook, by tqdm
        from timm.data.imagenet_info import ImageNetInfo

    names: list[str] = ImageNetInfo().label_names()
    return names


def _is_hidden(name: str) -> bool:
    """Whether programs leave files of this name behind, such as .ipynb_checkpoints or ._1.png."""
    return name.startswith(".") or name == "__MACOSX"


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, except hidden ones."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in paths if path.is_dir() and not _is_hidden(path.name))


def _images_below(root: Path, folders: Sequence[str]) -> list[list[Path]]:
    """Return the image files below each folder, sorted, except hidden ones.

    Files with other endings are counted and reported once, not by each worker.
    """
    images: list[list[Path]] = []
    others: list[Path] = []
    for folder in folders:
        images.append([])
        for parent, below, names in os.walk(root / folder, followlinks=True):
            below[:] = sorted(name for name in below if not _is_hidden(name))
            for file in (Path(parent, name) for name in sorted(names) if not _is_hidden(name)):
                (images[-1] if file.suffix.lower() in ENDINGS else others).append(file)
    endings = Counter(file.suffix.lower() or "no ending" for file in others)
    counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    if others and multiprocessing.parent_process() is None:
        _say_once(f"{root}: left out {counts}, the first {others[0]}; images end in {IMAGES}")
    return images


_say_once = functools.cache(lambda message: print(message, file=sys.stderr))


def _list_classes(folder: Path) -> _Listing:
    if not folder.is_dir():
        names = ", ".join(folders_in(folder.parent)[:FEW])
        raise Missing(folder, "there is no such folder" + (f"; there are {names}" if names else ""))
    if not (classes := folders_in(folder)):
        raise Missing(folder, "there are no folders of classes in it")
    images = _images_below(folder, classes)
    if empty := [name for name, of_class in zip(classes, images) if not of_class]:
        what = f"images in each folder of a class ({IMAGES})"
        got = f"none in {', '.join(empty[:FEW])}; remove what is no class"
        raise expected(f"{folder}", what, got)
    labels = [label for label, of_class in enumerate(images) for _ in of_class]
    return _Listing([path for of_class in images for path in of_class], labels, classes)


def _list_imagenet(folder: Path) -> _Listing:
    """List a folder that has a folder nXXXXXXXX for each class of ImageNet, in order."""
    listed, count = _list_classes(folder), len(class_names())
    if len(listed.classes) != count:
        folders = f"{count:,} folders nXXXXXXXX, one for each class of ImageNet"
        raise expected(f"{folder}", folders, f"{len(listed.classes):,}")
    return listed


def _parts(
    folder: Path, test: str, list_part: Callable[[Path], _Listing] = _list_classes
) -> tuple[_Listing, _Listing]:
    """List the training and the test images, which must have the same classes."""
    parts = list_part(folder / "train"), list_part(folder / test)
    if differ := sorted(set(parts[0].classes) ^ set(parts[1].classes)):
        got = f"{differ[:FEW]} in one of them only"
        if len({unicodedata.normalize("NFC", name) for name in differ}) < len(differ):
            got = f"{differ[:FEW]!a}: an accent is one character or two; rename one of them"
        raise expected(f"{folder}", f"the same classes in train and {test}", got)
    if len(parts[0].classes) < 2:
        what = "two classes or more, a folder each"
        raise expected(f"{folder / 'train'}", what, parts[0].classes)
    return parts


def read_image_folder(
    root: Path, *, folder: str | Path, read: Callable[[Path], Tensor] = read_image
) -> Read:
    """Read FOLDER/{train,test}/CLASS/*, images of one size; `val` can replace `test`."""
    folder = root / folder
    names = folders_in(folder)
    parts = _parts(folder, "val" if "val" in names and "test" not in names else "test")
    first = read(parts[0].paths[0])
    train, test_part = (_read_all(part, read, first) for part in parts)
    return train, test_part, parts[0].classes


def _read_all(part: _Listing, read: Callable[[Path], Tensor], first: Tensor) -> Split:
    images = _read_each(part.paths, read)
    for path, image in zip(part.paths, images):
        size, first_size = (f"{x.shape[1]} x {x.shape[2]}" for x in (image, first))
        if size != first_size:
            what = f"{first_size} pixels as in the first image"
            raise expected(f"{path}", what, f"{size}; resize or crop your images to one size")
    labels = torch.tensor(part.labels)
    return Split(torch.stack(images), labels).part(interleave_classes(labels))


def _read_each(paths: Iterable[Path], read: Callable[[Path], Tensor]) -> list[Tensor]:
    """Read images.

    Raises:
        UsageError: some images cannot be used; the message counts and names them.
    """
    images, errors = [], {}
    for path in paths:
        try:
            images.append(read(path))
        except UsageError as error:
            errors[path] = str(error)
    if errors:
        first, names = next(iter(errors.values())), [path.name for path in errors]
        more = f"; {len(errors)} images cannot be used: {', '.join(names[:FEW])}"
        raise UsageError(first + (more if len(errors) > 1 else ""))
    return images


def read_imagenette(root: Path, *, folder: str, side: int) -> Read:
    """Read Imagenette, cropped to squares."""
    from torchvision.transforms import v2

    crop = v2.CenterCrop(side)
    train, test, ids = read_image_folder(root, folder=folder, read=lambda p: crop(read_image(p)))
    names = dict(zip(wordnet_ids(), class_names()))
    return train, test, [names.get(name, name) for name in ids]


def read_imagenet(root: Path) -> Read:
    """Read ImageNet 2012 :cite:p:`deng2009` at 224 x 224; its validation set is for testing."""
    parts = _parts(root / "imagenet", "val", _list_imagenet)
    train, test = (image_cache.read_photographs(root, part.paths, part.labels) for part in parts)
    return train, test, class_names()


def _read_photos(files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]) -> Read:
    """Read photographs as a data set for testing."""
    images = torch.stack(_read_each(files, read_photograph))
    return test_only(Split(images, torch.tensor(labels)), classes)


def read_foolbox(root: Path) -> Read:
    """Read the 20 photographs of ImageNet that come with the package foolbox."""
    package = find_spec("foolbox")
    if package is None or package.origin is None:
        raise Missing(root, "the package foolbox is not installed")
    files = sorted((Path(package.origin).parent / "data").glob("imagenet_*.jpg"))
    return _read_photos(files, [int(file.stem.rpartition("_")[2]) for file in files], class_names())


def read_one_per_class(root: Path) -> Read:
    """Read one photograph of each class; the file names begin with the WordNet ids.

    Raises:
        Missing, UsageError: there are no photographs, or not one of each of the 1,000 classes.
    """
    folder = root / "imagenet-samples"
    files = _photographs_in(folder)
    if len({file.name.partition("_")[0] for file in files}) != len(files) or len(files) != 1000:
        what = "1,000 photographs nXXXXXXXX_name.JPEG, one for each class of ImageNet"
        raise expected(f"{folder}", what, len(files))
    return _read_photos(files, range(1000), class_names())


def read_validation_sample(root: Path, *, n: int = 1000, seed: int = 0) -> Read:
    """Read n random photographs of the validation set of ImageNet.

    Raises:
        Missing, UsageError: a class has no folder, or there are too few photographs.
    """
    folder = root / "imagenet" / "val"
    paths, labels, _ = _list_imagenet(folder)
    if len(paths) < n:
        raise expected(f"{folder}", f"at least {n} photographs", len(paths))
    sample = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:n]
    rows = sorted(sample.tolist())
    return _read_photos([paths[row] for row in rows], [labels[row] for row in rows], class_names())


def read_unlabelled(root: Path, *, folder: Path) -> Read:
    """Read all photographs below a folder, whose classes are unknown."""
    files = _photographs_in(root / folder)
    return _read_photos(files, [0] * len(files), ("unknown",))


def read_first(root: Path, *, folder: Path, size: int, count: int, labels: str = "") -> Read:
    """Read the first photographs below a folder, which cycle through its classes.

    Args:
        root: not used.
        folder: of photographs, or of a folder for each class.
        size: side in pixels, see `suite.data.files.crop_centre`.
        count: largest number of photographs.
        labels: path of a table with columns `image` and `label`, instead of folders.

    Raises:
        Missing, UsageError: there are no images, or an image is damaged or has no label.
    """
    paths = _photographs_in(folder)
    names = [(*path.relative_to(folder).parts[:-1], "unknown")[0] for path in paths]
    if labels:
        table = read_table(Path(labels), ["image", "label"]).astype(str)
        label_of = dict(zip(table["image"], table["label"]))
        if absent := [path.name for path in paths if path.name not in label_of]:
            raise expected(labels, "a label for each image", f"none for {absent[0]}")
        names = [label_of[path.name] for path in paths]
    classes = sorted(set(names))
    indices = torch.tensor([classes.index(name) for name in names])
    order = interleave_classes(indices)[:count]
    read = functools.partial(read_photograph, size=size)
    images = torch.stack(_read_each([paths[row] for row in order.tolist()], read))
    return test_only(Split(images, indices[order]), classes)


def _photographs_in(folder: Path) -> list[Path]:
    [files] = _images_below(folder, [""])
    if not files:
        raise Missing(folder, f"there are no photographs below {folder}; they end in {IMAGES}")
    return files
