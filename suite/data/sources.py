"""The data sets by name: `sources.yml` says what each is, how it is read and how to get it."""

import dataclasses
import os
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite.data.files import SIZE
from suite.data.image_folders import folders_in
from suite.data.splits import Damaged, Missing, Read
from suite.errors import DataMissing, UsageError, expected, unknown
from suite.paths import data_folder, read_yaml

# Names of folders, in small letters, by which own images are to be trained on, not only shown.
PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}


@dataclass(frozen=True)
class Source:
    """How a data set is read, how to get it, its name in figures, and what it is in words.

    Without `to_train` all images are in the test split.
    """

    read: Callable[[Path], Read]
    how_to_get: str
    shape: tuple[int, int, int] | None = None
    to_train: bool = True
    title: str = ""
    about: str = ""
    licence: str = ""


def source(name: str) -> Source:
    """Return the entry of `SOURCES` for a name, or make that of one with a colon.

    `imagefolder:PATH` is a folder of own images, `resized:NAME:SIZE` another data set as RGB of
    SIZE x SIZE pixels, `shown:SIZE|COUNT|LABELS|imagefolder:PATH` own photographs of that size.

    Raises:
        UsageError: unknown name, or one with a colon that is not complete.
    """
    kind, colon, rest = name.partition(":")
    if kind == "resized" and colon:
        return _resized(name, *rest.rpartition(":")[::2])
    if kind == "imagefolder" and colon:
        return _own(rest)
    if kind == "shown" and colon:
        return _shown(*rest.split("|"))
    if name not in SOURCES:
        if Path(name).is_dir():
            raise expected("data set", f"imagefolder:{name} for a folder", repr(name))
        raise unknown("data set", name, [*SOURCES, "imagefolder:PATH", "resized:NAME:SIZE"])
    return SOURCES[name]


def title(name: str) -> str:
    """Return the name of a data set as figures show it, and the pixels of a side of a resized one.

    >>> title("resized:fashion_mnist:32"), title("resized:cifar10-jpeg:32")
    ('Fashion-MNIST (32 px)', 'CIFAR-10 (JPEG, 32 px)')
    >>> title("imagenet_c"), title("imagefolder:/my/photos")
    ('ImageNet-C', 'photos')
    """
    if name.startswith("resized:"):
        name, _, size = name.removeprefix("resized:").rpartition(":")
        return f"{title(name)} ({size} px)".replace(") (", ", ")
    if name.startswith(("imagefolder:", "shown:")):
        return Path(name.rpartition("imagefolder:")[2]).name
    return (SOURCES[name].title if name in SOURCES else ONLY_IN_PAPERS.get(name)) or name


def read_source(name: str, root: Path) -> Read:
    """Read a data set, without any check of what is read.

    Raises:
        DataMissing: the data are not there.
        UsageError: unknown name, or data that cannot be read.
    """
    entry = source(name)
    how = entry.how_to_get.replace("DATA", str(data_folder()))
    try:
        return entry.read(root)
    except Missing as missing:
        path, reason = missing.args
        why = f"data set {name!r} is not at {path} ({str(reason).strip().rstrip('.')}). "
        raise DataMissing(f"{why}To get it: {how}") from missing
    except ModuleNotFoundError as absent:
        why = f"data set {name!r}: package {absent.name} is not installed: pip install it"
        raise DataMissing(why) from absent
    except Damaged as damaged:
        path, error = damaged.args
        why = f"data set {name!r}: what is at {path} cannot be read ({error!r}). "
        raise UsageError(f"{why}Remove it and get it again: {how}") from damaged


def _reader(
    function: str, *, of: str = "", each_of: str = "", **settings: Any
) -> Callable[[Path], Read]:
    """Return a reader that calls a function of this package, by module and name.

    The function gets the folder of data sets; with `of`, what is read of that data set; with
    `each_of` a split of it, to train (`part` 0) or to test (1).
    """

    def read(root: Path) -> Read:
        call = partial(pkgutil.resolve_name(f"suite.data.{function}"), **settings)
        if each_of:
            train, test, classes = read_source(each_of, root)
            return call(train, part=0), call(test, part=1), classes
        result: Read = call(*(read_source(of, root) if of else [root]))
        return result

    return read


def _own(path: str) -> Source:
    """Make the source of own images: to train on, or photographs that are only shown."""
    if not path:
        raise UsageError("data set 'imagefolder:': expected a folder, such as imagefolder:photos")
    folder = Path(os.path.expanduser(path)).absolute()
    how = f"put images into {path}/train/CLASS/ and {path}/test/CLASS/ (or val)"
    if folder.is_dir() and not PARTS & {name.lower() for name in folders_in(folder)}:
        read = _reader("image_folders.read_own", folder=folder)
        how = f"put photographs into {path}, or to train {how}"
        return Source(read, how, (3, SIZE, SIZE), to_train=False)
    return Source(_reader("image_folders.read_image_folder", folder=folder), how)


def _shown(size: str, count: str, labels: str, folder: str) -> Source:
    """Make the source of photographs that a network is shown: see `image_folders.read_first`."""
    side, path = int(size), folder.removeprefix("imagefolder:")
    options: dict[str, Any] = {"folder": Path(path), "size": side, "count": int(count)}
    read = _reader("image_folders.read_first", **options, labels=labels)
    return Source(read, f"put photographs into {path}", (3, side, side), to_train=False)


def _resized(name: str, other: str, side: str) -> Source:
    """Make the source of the square images of another one as RGB of another size."""
    if not other or not side.isdecimal() or int(side) < 1:
        what = "resized:NAME:SIZE, such as resized:fashion_mnist:32"
        raise expected(f"data set {name!r}", what, repr(name))
    entry, size = source(other), int(side)
    read = _reader("resized.resized", each_of=other, size=size)
    return dataclasses.replace(entry, read=read, shape=(3, size, size))


def _entry(read: dict[str, Any], shape: Sequence[int], **words: Any) -> Source:
    channels, height, width = shape
    return Source(read=_reader(**read), shape=(channels, height, width), **words)


_DESCRIBED = read_yaml(Path(__file__).with_suffix(".yml"))
# Data sets that claims name and nothing here reads, with their titles.
ONLY_IN_PAPERS = {"coco": "COCO", "imagenet_c": "ImageNet-C", "oxford_pet": "Oxford-IIIT Pet"}
ONLY_IN_PAPERS |= {"wood": "wood fibres"}
SOURCES = {name: _entry(**described) for name, described in _DESCRIBED.items()}
