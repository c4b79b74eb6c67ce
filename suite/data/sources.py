"""The data sets by name: `sources.yml` says what each is, and here is how it is read."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from torchvision import datasets

from suite.data import files, readers, resized, synthetic
from suite.data import image_folders as folders
from suite.data import natural_images as natural
from suite.data.grouped import block_images, read_celeba, read_waterbirds, textured_images
from suite.data.splits import Damaged, NotThere, Read
from suite.errors import DataMissing, UsageError, unknown
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
    """Return the name of a data set as figures show it; that of a resized one is the same.

    >>> title("resized:fashion_mnist:32"), title("imagenet_c")
    ('Fashion-MNIST', 'ImageNet-C')
    """
    if name.startswith("resized:"):
        name = name.removeprefix("resized:").rpartition(":")[0]
    titles = {key.partition(":")[0]: entry.title for key, entry in _ENTRIES.items()}
    return titles.get(name) or name


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
    except NotThere as missing:
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


def _made_of(name: str, change: Callable[..., Read], **options: Any) -> Callable[[Path], Read]:
    """Return a reader of a data set that is made of another one."""
    return lambda root: change(*read_source(name, root), **options)


def _own(folder: Path, path: str) -> Source:
    """Make the source of own images: to train on, or photographs that are only shown."""
    if folder.is_dir() and not any((folder / part).is_dir() for part in ("train", "test", "val")):
        about, how = f"own photographs below {path}", f"put images into {path}"
        shape = (3, files.SIZE, files.SIZE)
        return Source(
            partial(folders.read_own, folder=folder), about, "your own", how, shape, to_train=False
        )
    read = partial(folders.read_image_folder, folder=folder)
    how = f"put images into {path}/train/CLASS/"
    return Source(read, f"own images in {path}", "your own", how)


def _resized(name: str, other: str, side: str) -> Source:
    """Make the source of the square images of another one as RGB of another size."""
    if not other or not side.isdecimal() or int(side) < 1:
        raise UsageError(
            f"data set {name!r}: expected resized:NAME:SIZE, such as resized:fashion_mnist:32"
        )
    entry, size = source(other), int(side)
    return dataclasses.replace(
        entry,
        read=_made_of(other, resized.resized, size=size),
        about=f"{entry.about}; as {size} x {size} RGB",
        shape=(3, size, size),
    )


def _imagenet_c(which: str) -> Source:
    """Return ImageNet-C by CORRUPTION:LEVEL :cite:p:`hendrycks2019`."""
    corruption, _, level = which.partition(":")
    names = [name for group in CORRUPTIONS.values() for name in group]
    if corruption not in names:
        raise unknown("corruption of imagenet_c:CORRUPTION:LEVEL", corruption, names)
    if level not in ("1", "2", "3", "4", "5"):
        raise UsageError(
            f"imagenet_c:{corruption}:LEVEL: expected a level of 1 to 5, got {level!r}"
        )
    [family] = FAMILIES.values()

    def filled(text: str) -> str:
        return text.replace("CORRUPTION", corruption).replace("LEVEL", level)

    folder = filled("imagenet-c/CORRUPTION/LEVEL")
    read = partial(folders.read_shifted_imagenet, folder=folder)
    about, how_to_get = filled(family.about), filled(family.how_to_get)
    return dataclasses.replace(family, read=read, about=about, how_to_get=how_to_get)


_READERS: dict[str, Callable[[Path], Read]] = {
    "mnist5k": readers.read_mnist5k,
    "digits-centred": _made_of("mnist5k", synthetic.padded_digits, anywhere=False),
    "digits-anywhere": _made_of("mnist5k", synthetic.padded_digits, anywhere=True),
    "digit_canvas": _made_of("mnist5k", synthetic.cluttered_digits, swapped=False),
    "digit_canvas_swapped": _made_of("mnist5k", synthetic.cluttered_digits, swapped=True),
    "mnist": partial(readers.read_torchvision, kind=datasets.MNIST),
    "fashion_mnist": readers.read_fashion_mnist,
    "kmnist": partial(readers.read_torchvision, kind=datasets.KMNIST),
    "cifar10": partial(readers.read_torchvision, kind=datasets.CIFAR10),
    "cifar100": partial(readers.read_torchvision, kind=datasets.CIFAR100),
    "svhn": readers.read_svhn,
    "cifar10-jpeg": partial(folders.read_image_folder, folder="cifar10-jpeg"),
    "imagenette320": partial(folders.read_imagenette, folder="imagenette2-320", side=320),
    "imagenette160": partial(folders.read_imagenette, folder="imagenette160", side=160),
    "blockmnist5k": _made_of("mnist5k", block_images),
    "blockmnist": _made_of("mnist", block_images),
    "texturedmnist5k": _made_of("mnist5k", textured_images),
    "texturedmnist": _made_of("mnist", textured_images),
    "texturedfashion": _made_of("fashion_mnist", textured_images),
    "photograph-tiles": _made_of("foolbox-imagenet", resized.tiles, size=28),
    "waterbirds": read_waterbirds,
    "celeba": read_celeba,
    "coco": natural.read_coco,
    "cub": natural.read_cub,
    "cub_on_waterbirds": natural.read_cub_on_waterbirds,
    "oxford_pet": natural.read_oxford_pet,
    "wood": partial(folders.read_resized_folder, folder="wood"),
    "imagenet": folders.read_imagenet,
    "imagenet_sketch": partial(folders.read_shifted_imagenet, folder="sketch"),
    "foolbox-imagenet": folders.read_foolbox,
    "imagenet-samples": folders.read_one_a_class,
    "imagenet-val-1000": folders.read_validation_sample,
    "imagenet_c:CORRUPTION:LEVEL": partial(
        folders.read_shifted_imagenet, folder="imagenet-c/CORRUPTION/LEVEL"
    ),
}


_ENTRIES = {
    name: Source(_READERS[name], **{**entry, "shape": tuple(entry["shape"])})
    for name, entry in yaml.safe_load(Path(__file__).with_suffix(".yml").read_text()).items()
}
# A family is a name that stands for many data sets, each of which `source` makes.
SOURCES = {name: entry for name, entry in _ENTRIES.items() if ":" not in name}
FAMILIES = {name: entry for name, entry in _ENTRIES.items() if ":" in name}
