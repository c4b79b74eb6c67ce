"""Photographs in the size that networks for ImageNet take; they are shown, not trained on."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from suite.data.readers import open_image
from suite.errors import UsageError

SIZE, SHORTER_SIDE = 224, 256
ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}

Read = tuple[Tensor, Tensor, Sequence[str]]  # images, labels, names of the classes


def class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 classes of ImageNet, in their order."""
    return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])


def read_photograph(path: Path, *, upright: bool = True) -> Tensor:
    """Read a photograph as bytes (3, 224, 224): `middle` of it, bicubic.

    `upright` turns one that its file says lies on its side.

    Raises:
        UsageError: not an image that can be read, or one of more than 8 bits a channel.
    """
    image = open_image(path, upright=upright)
    return v2.functional.pil_to_tensor(middle(image, v2.InterpolationMode.BICUBIC))


def middle(image: Image.Image, interpolation: v2.InterpolationMode) -> Image.Image:
    """Bring the shorter side to 256 pixels and cut out the middle, 224 x 224.

    An image of 224 x 224 pixels stays as it is.
    """
    if image.size == (SIZE, SIZE):
        return image
    if min(image.size) != SHORTER_SIDE:
        image = v2.functional.resize(image, [SHORTER_SIDE], interpolation=interpolation)
    left, top = ((side - SIZE) // 2 for side in image.size)
    return image.crop((left, top, left + SIZE, top + SIZE))


def read_foolbox() -> Read:
    """Read the 20 photographs of ImageNet that come with the package foolbox."""
    package = find_spec("foolbox")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package foolbox is not installed")
    files = sorted((Path(package.origin).parent / "data").glob("imagenet_*.jpg"))
    return _read(files, [int(file.stem.rpartition("_")[2]) for file in files])


def read_one_a_class(folder: Path) -> Read:
    """Read one photograph of each class; the file names begin with the WordNet ids.

    Raises:
        FileNotFoundError: there are no photographs.
        UsageError: there is not one for each of the 1,000 classes.
    """
    files = photographs_in(folder)
    if len({file.name.partition("_")[0] for file in files}) != len(files) or len(files) != 1000:
        raise UsageError(
            f"{folder}: expected 1,000 photographs nXXXXXXXX_name.JPEG, one for each class of "
            f"ImageNet, got {len(files)}"
        )
    return _read(files, list(range(1000)))


def read_validation_sample(folder: Path, *, n: int = 1000, seed: int = 0) -> Read:
    """Read n random photographs of ImageNet's validation set, laid out as FOLDER/nXXXXXXXX/*.

    Raises:
        FileNotFoundError: there are no photographs.
        UsageError: there are not 1,000 folders, or fewer photographs than `n`.
    """
    files = photographs_in(folder)
    folders = sorted({file.parent for file in files})
    if len(folders) != 1000 or len(files) < n:
        raise UsageError(
            f"{folder}: expected 1,000 folders nXXXXXXXX with at least {n} photographs, got "
            f"{len(folders)} with {len(files)}"
        )
    label = {path: index for index, path in enumerate(folders)}
    drawn = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))[:n]
    chosen = [files[index] for index in sorted(drawn.tolist())]
    return _read(chosen, [label[file.parent] for file in chosen])


def read_own(folder: Path) -> Read:
    """Read all photographs below a folder; their classes are not known."""
    files = photographs_in(folder)
    images = torch.stack([read_photograph(file) for file in files])
    return images, torch.zeros(len(files), dtype=torch.int64), ("unknown",)


def photographs_in(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted.

    Raises:
        FileNotFoundError: there are none.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        raise FileNotFoundError(f"there are no photographs below {folder}")
    return files


def _read(files: Sequence[Path], labels: Sequence[int]) -> Read:
    return (
        torch.stack([read_photograph(file) for file in files]),
        torch.tensor(labels),
        class_names(),
    )
