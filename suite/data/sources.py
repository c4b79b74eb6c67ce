"""The data sets by name: `sources.yml` says what each is, how it is read and how to get it."""

import dataclasses
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from suite.data.files import SIZE
from suite.data.splits import Damaged, Missing, Read
from suite.errors import DataMissing, UsageError, expected, unknown
from suite.paths import data_folder

# The corruptions of ImageNet-C, in the groups of its authors.
CORRUPTIONS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}


@dataclass(frozen=True)
class Source:
    """How a data set is read, what it is, how to get it, and its name in figures.

    Without `to_train` all images are in the test split.
    """

    read: Callable[[Path], Read]
    about: str
    licence: str
    how_to_get: str
    shape: tuple[int, int, int] | None = None
    to_train: bool = True
    title: str = ""


def source(name: str) -> Source:
    """Return the entry of `SOURCES` for a name, or make that of one with a colon.

    `imagefolder:PATH` is a folder of own images, `resized:NAME:SIZE` another data set as RGB of
    SIZE x SIZE pixels, `imagenet_c:CORRUPTION:LEVEL` a corrupted validation set.

    Raises:
        UsageError: unknown name, corruption or level.
    """
    kind, colon, rest = name.partition(":")
    if kind == "imagenet_c":
        return _imagenet_c(rest)
    if kind == "resized" and colon:
        return _resized(name, *rest.rpartition(":")[::2])
    if kind == "imagefolder" and colon:
        return _own(Path(rest).expanduser().absolute(), rest)
    if name not in SOURCES:
        families = [*FAMILIES, "imagefolder:PATH", "resized:NAME:SIZE"]
        raise unknown("data set", name, [*SOURCES, *families])
    return SOURCES[name]


def title(name: str) -> str:
    """Return the name of a data set as figures show it, and the pixels of a side of a resized one.

    >>> title("resized:fashion_mnist:32"), title("imagenet_c")
    ('Fashion-MNIST (32 px)', 'ImageNet-C')
    """
    if name.startswith("resized:"):
        name, _, size = name.removeprefix("resized:").rpartition(":")
        return f"{title(name)} ({size} px)"
    return {key.partition(":")[0]: of.title for key, of in _ENTRIES.items()}.get(name) or name


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
        raise DataMissing(
            f"data set {name!r} is not at {path} ({str(reason).strip().rstrip('.')}). "
            f"To get it: {how}"
        ) from missing
    except Damaged as damaged:
        path, error = damaged.args
        raise UsageError(
            f"data set {name!r}: what is at {path} cannot be read ({error!r}). "
            f"Remove it and get it again: {how}"
        ) from damaged


def _reader(function: str, *, of: str = "", **settings: Any) -> Callable[[Path], Read]:
    """Return a reader that calls a function of this package, by module and name.

    The function gets the folder of data sets or, with `of`, what is read of that data set.
    """

    def read(root: Path) -> Read:
        result: Read = pkgutil.resolve_name(f"suite.data.{function}")(
            *(read_source(of, root) if of else [root]), **settings
        )
        return result

    return read


def _own(folder: Path, path: str) -> Source:
    """Make the source of own images: to train on, or photographs that are only shown."""
    if folder.is_dir() and not any((folder / part).is_dir() for part in ("train", "test", "val")):
        read = _reader("image_folders.read_own", folder=folder)
        about, how = f"own photographs below {path}", f"put images into {path}"
        return Source(read, about, "your own", how, (3, SIZE, SIZE), to_train=False)
    read = _reader("image_folders.read_image_folder", folder=folder)
    return Source(read, f"own images in {path}", "your own", f"put images into {path}/train/CLASS/")


def _resized(name: str, other: str, side: str) -> Source:
    """Make the source of the square images of another one as RGB of another size."""
    if not other or not side.isdecimal() or int(side) < 1:
        raise UsageError(
            f"data set {name!r}: expected resized:NAME:SIZE, such as resized:fashion_mnist:32"
        )
    entry, size = source(other), int(side)
    read = _reader("resized.resized", of=other, size=size)
    about = f"{entry.about}; as {size} x {size} RGB"
    return dataclasses.replace(entry, read=read, about=about, shape=(3, size, size))


def _imagenet_c(which: str) -> Source:
    """Return ImageNet-C by CORRUPTION:LEVEL :cite:p:`hendrycks2019`."""
    corruption, _, level = which.partition(":")
    names = [name for group in CORRUPTIONS.values() for name in group]
    if corruption not in names:
        raise unknown("corruption of imagenet_c:CORRUPTION:LEVEL", corruption, names)
    if level not in ("1", "2", "3", "4", "5"):
        raise expected(f"imagenet_c:{corruption}:LEVEL", "a level of 1 to 5", repr(level))
    family = json.dumps(_DESCRIBED["imagenet_c:CORRUPTION:LEVEL"])
    return _entry(json.loads(family.replace("CORRUPTION", corruption).replace("LEVEL", level)))


def _entry(described: dict[str, Any]) -> Source:
    read, shape = _reader(**described["read"]), tuple(described["shape"])
    return Source(**{**described, "read": read, "shape": shape})


_DESCRIBED = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
_ENTRIES = {name: _entry(described) for name, described in _DESCRIBED.items()}
# A family is a name that stands for many data sets, each of which `source` makes.
SOURCES = {name: entry for name, entry in _ENTRIES.items() if ":" not in name}
FAMILIES = {name: entry for name, entry in _ENTRIES.items() if ":" in name}
