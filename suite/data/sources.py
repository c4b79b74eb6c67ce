"""The data sets by name: `sources.yml` describes each, how to read it and how to get it."""

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

# Your own images are for training if their folder has one of these folders, in any case.
PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}


@dataclass(frozen=True)
class Source:
    """How to read a data set, how to get it, its title in figures, and its description.

    Without `to_train` all images are in the test split.
    """

    read: Callable[[Path], Read]
    how_to_get: str
    shape: tuple[int, ...] | None = None
    to_train: bool = True
    title: str = ""
    about: str = ""
    licence: str = ""


def source(name: str) -> Source:
    """Return the entry of `SOURCES` for a name, or make an entry for a name with a colon.

    `imagefolder:PATH` is a folder of your own images, `resized:NAME:SIZE` another data set as RGB
    of SIZE x SIZE pixels, `shown:SIZE|COUNT|LABELS|imagefolder:PATH` photographs of that size.

    Raises:
        UsageError: the name is unknown, or has a colon and is incomplete.
    """
    kind, colon, rest = name.partition(":")
    if kind == "resized" and colon:
        return _resized(name, *rest.rpartition(":")[::2])
    if kind == "imagefolder" and colon:
        return _source_of_folder(rest)
    if kind == "shown" and colon:
        return _source_to_show(*rest.split("|"))
    if name not in SOURCES:
        if Path(name).is_dir():
            raise expected("data set", f"imagefolder:{name} for a folder", repr(name))
        raise unknown("data set", name, [*SOURCES, "imagefolder:PATH", "resized:NAME:SIZE"])
    return SOURCES[name]


def title(name: str) -> str:
    """Return the title of a data set in figures, with its side in pixels if it is resized.

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
    return _DESCRIBED[name]["title"] if name in _DESCRIBED else name


def read_source(name: str, root: Path) -> Read:
    """Read a data set without checking its contents.

    Raises:
        DataMissing: the data are not on this machine.
        UsageError: the name is unknown, or the data cannot be read.
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
        why = f"data set {name!r}: the files at {path} cannot be read ({error!r}). "
        raise UsageError(f"{why}Remove them and get them again: {how}") from damaged


def _reader(
    function: str, *, of: str = "", each_of: str = "", **settings: Any
) -> Callable[[Path], Read]:
    """Return a reader that calls a function of this package, named as MODULE.NAME.

    The function gets the folder of data sets. With `of`, it gets the contents of that data set
    instead; with `each_of`, one of its splits at a time, for training (`part` 0) or testing (1).
    """

    def read(root: Path) -> Read:
        call = partial(pkgutil.resolve_name(f"suite.data.{function}"), **settings)
        if each_of:
            train, test, classes = read_source(each_of, root)
            return call(train, part=0), call(test, part=1), classes
        result: Read = call(*(read_source(of, root) if of else [root]))
        return result

    return read


def _source_of_folder(path: str) -> Source:
    """Make the source of your own images for training, or of photographs without labels."""
    if not path:
        raise UsageError("data set 'imagefolder:': expected a folder, such as imagefolder:photos")
    folder = Path(os.path.expanduser(path)).absolute()
    how = f"put images into {path}/train/CLASS/ and {path}/test/CLASS/ (or val)"
    if folder.is_dir() and not PARTS & {name.lower() for name in folders_in(folder)}:
        read = _reader("image_folders.read_unlabelled", folder=folder)
        how = f"put photographs into {path}, or to train {how}"
        return Source(read, how, (3, SIZE, SIZE), to_train=False)
    return Source(_reader("image_folders.read_image_folder", folder=folder), how)


def _source_to_show(size: str, count: str, labels: str, folder: str) -> Source:
    """Make a source of photographs to show to a network: see `image_folders.read_first`."""
    side, path = int(size), folder.removeprefix("imagefolder:")
    options: dict[str, Any] = {"folder": Path(path), "size": side, "count": int(count)}
    read = _reader("image_folders.read_first", **options, labels=labels)
    return Source(read, f"put photographs into {path}", (3, side, side), to_train=False)


def _resized(name: str, original: str, side: str) -> Source:
    """Make a source of the square images of another data set, as RGB of another size."""
    if not original or not side.isdecimal() or int(side) < 1:
        what = "resized:NAME:SIZE, such as resized:fashion_mnist:32"
        raise expected(f"data set {name!r}", what, repr(name))
    entry, size = source(original), int(side)
    read = _reader("resized.resize", each_of=original, size=size)
    return dataclasses.replace(entry, read=read, shape=(3, size, size))


def _entry(read: dict[str, Any], shape: Sequence[int], **words: Any) -> Source:
    return Source(read=_reader(**read), shape=tuple(shape), **words)


_DESCRIBED = read_yaml(Path(__file__).with_suffix(".yml"))
SOURCES = {name: _entry(**entry) for name, entry in _DESCRIBED.items() if "read" in entry}
