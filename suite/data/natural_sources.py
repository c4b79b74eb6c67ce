"""The data sets of photographs that a network is trained on, by name: see `suite.data.sources`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from suite.data import image_folders, natural_images
from suite.data.photographs import SIZE
from suite.data.readers import Read, Source
from suite.errors import UsageError, unknown

# Of ImageNet-C, in its four groups.
CORRUPTIONS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}

_COCO = "http://images.cocodataset.org"
_CUB = (
    "get CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158, to be extracted in "
    "DATA, and segmentations.tgz from https://data.caltech.edu/records/w9d68-gec53, to be "
    "extracted in DATA/CUB_200_2011"
)


def _source(
    read: Callable[[Path], Read], about: str, licence: str, how: str, *, to_train: bool = True
) -> Source:
    return Source(read, f"{about}, cut to {SIZE} x {SIZE}", licence, how, (3, SIZE, SIZE), to_train)


SOURCES: dict[str, Source] = {
    "coco": _source(
        natural_images.read_coco,
        "COCO 2017, the images of a single object, of classes with at least 20 of them, with masks",
        "annotations: CC BY 4.0; the images: terms of Flickr",
        f"get {_COCO}/annotations/annotations_trainval2017.zip, {_COCO}/zips/train2017.zip and "
        f"{_COCO}/zips/val2017.zip, to be extracted in DATA/coco",
    ),
    "cub": _source(
        natural_images.read_cub,
        "CUB-200-2011, 5,994 and 5,794 birds of 200 species, with masks",
        "no licence stated by its authors",
        _CUB,
    ),
    "cub_on_waterbirds": _source(
        natural_images.read_cub_on_waterbirds,
        "the 5,794 test images of CUB-200-2011 on the scenes that Waterbirds put them on, by "
        "species, with masks",
        "as cub and waterbirds",
        f"{_CUB}; then waterbird_complete95_forest2water2.tar.gz from "
        "https://nlp.stanford.edu/data/dro, to be extracted in DATA",
        to_train=False,
    ),
    "oxford_pet": _source(
        natural_images.read_oxford_pet,
        "Oxford-IIIT Pet, 3,680 and 3,669 cats and dogs of 37 breeds, with masks",
        "CC BY-SA 4.0",
        "python -c \"from torchvision.datasets import OxfordIIITPet; OxfordIIITPet('DATA', "
        'download=True)"',
    ),
    "wood": _source(
        partial(image_folders.read_resized_folder, folder="wood"),
        "microscopy images of hardwood fibres of nine kinds",
        "that of its authors",
        "ask its authors (https://doi.org/10.1093/mam/ozae038), and lay it out as "
        "DATA/wood/{train,test}/KIND/*",
    ),
    "imagenet": _source(
        image_folders.read_imagenet,
        "ImageNet 2012, 1,281,167 and 50,000 photographs of 1,000 classes",
        "terms of ImageNet: research, not commercial",
        "get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz "
        'from https://image-net.org into DATA/imagenet; then python -c "from torchvision.datasets '
        "import ImageNet; [ImageNet('DATA/imagenet', part) for part in ('train', 'val')]\" lays "
        "them out as DATA/imagenet/{train,val}/nXXXXXXXX/*.JPEG",
    ),
    "imagenet_sketch": _source(
        partial(image_folders.read_shifted_imagenet, folder="sketch"),
        "ImageNet-Sketch, 50,889 drawings of the classes of ImageNet",
        "MIT (the images: of those who drew them)",
        "from https://github.com/HaohanWang/ImageNet-Sketch, to be extracted as "
        "DATA/sketch/nXXXXXXXX/*.JPEG",
        to_train=False,
    ),
}


def _corrupted(corruption: str, level: str) -> Source:
    return _source(
        partial(image_folders.read_shifted_imagenet, folder=f"imagenet-c/{corruption}/{level}"),
        f"ImageNet-C, the validation set of ImageNet with {corruption} of level {level}",
        "CC BY 4.0 (the images: terms of ImageNet)",
        "get blur.tar, digital.tar, noise.tar and weather.tar from "
        "https://zenodo.org/records/2235448, to be extracted in DATA/imagenet-c, as "
        f"DATA/imagenet-c/{corruption}/{level}/nXXXXXXXX/*.JPEG",
        to_train=False,
    )


# Names that stand for many data sets: `suite.data.sources.source` makes each when it is asked for.
FAMILIES = {"imagenet_c:CORRUPTION:LEVEL": _corrupted("CORRUPTION", "LEVEL")}


def imagenet_c(which: str) -> Source:
    """Return ImageNet-C by CORRUPTION:LEVEL, of the benchmark's 15 corruptions and levels 1 to 5.

    Raises:
        UsageError: unknown corruption or level.

    Source: :cite:t:`hendrycks2019`.
    """
    corruption, _, level = which.partition(":")
    names = [name for group in CORRUPTIONS.values() for name in group]
    if corruption not in names:
        raise unknown("corruption of imagenet_c:CORRUPTION:LEVEL", corruption, names)
    if level not in ("1", "2", "3", "4", "5"):
        raise UsageError(
            f"imagenet_c:{corruption}:LEVEL: expected a level of 1 to 5, got {level!r}"
        )
    return _corrupted(corruption, level)
