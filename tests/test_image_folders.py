"""ImageNet with its variants and the wood set, from small copies laid out as the real ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from suite import data
from suite.data import image_folders, image_shape, load_data, source
from suite.errors import DataMissing, UsageError

WORDNET = ("n01440764", "n01443537", "n02102040", "n15075141")
FOLDERS = {
    "imagenet_sketch": "sketch",
    "imagenet_c:gaussian_noise:1": "imagenet-c/gaussian_noise/1",
}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let ImageNet have four classes."""
    data.loading._load.cache_clear()
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    monkeypatch.setattr(image_folders, "class_names", lambda: ("tench", "goldfish", "dog", "paper"))
    return tmp_path


def write(folder: Path, count: int, *, size: tuple[int, int] = (300, 260)) -> None:
    """Write `count` grey images of each class, of a grey for each."""
    for label, name in enumerate(WORDNET):
        for index in range(count):
            path = folder / name / f"{name}_{index}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (5 * (10 * label + index),) * 3).save(path)


def write_imagenet(root: Path) -> None:
    write(root / "imagenet" / "train", 2)
    write(root / "imagenet" / "val", 1)


def test_imagenet_goes_round_its_classes(root: Path) -> None:
    write_imagenet(root)
    loaded = load_data("imagenet")
    assert loaded.shape == image_shape("imagenet") == (3, 224, 224)
    assert loaded.classes == ("tench", "goldfish", "dog", "paper")
    assert loaded.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    expected = [5 * (10 * label + index) for index in (0, 1) for label in range(4)]
    assert (loaded.train.images[:, 0, 5, 7].int() - torch.tensor(expected)).abs().max() <= 1
    assert loaded.test.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", FOLDERS)
def test_variants_of_imagenet_are_to_test_only(root: Path, name: str) -> None:
    write(root / FOLDERS[name], 2, size=(224, 224))
    loaded = load_data(name)
    assert loaded.shape == image_shape(name) == (3, 224, 224)
    assert len(loaded.train.images) == 0
    assert not source(name).to_train
    assert loaded.test.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_names_of_imagenet_are_a_thousand() -> None:
    from suite.data import class_names

    names = class_names()
    assert len(names) == 1000
    assert (names[0], names[1], names[999]) == ("tench", "goldfish", "toilet tissue")


@pytest.mark.parametrize("name", ["imagenet", *FOLDERS])
def test_a_class_that_is_not_there_is_told(root: Path, name: str) -> None:
    write_imagenet(root)
    for folder in FOLDERS.values():
        write(root / folder, 1)
    for path in root.rglob("n02102040"):
        path.rename(path.parent.parent / f"{path.parent.name} without")
    with pytest.raises(UsageError, match=r"expected 4 folders nXXXXXXXX, .* got 3"):
        load_data(name)


def test_other_classes_to_test_are_told(root: Path) -> None:
    write_imagenet(root)
    folder = root / "imagenet" / "val"
    (folder / "n15075141").rename(folder / "n99999999")
    with pytest.raises(UsageError, match=r"imagenet: expected the same classes .*n15075141.*n9999"):
        load_data("imagenet")


@pytest.mark.parametrize(
    ("name", "where", "how"),
    [
        ("imagenet", "imagenet/train", "ILSVRC2012_img_train.tar"),
        ("imagenet_sketch", "sketch", "github.com/HaohanWang/ImageNet-Sketch"),
        ("imagenet_c:fog:3", "imagenet-c/fog/3", "zenodo.org/records/2235448"),
        ("wood", "wood/train", "10.1093/mam/ozae038"),
    ],
)
def test_what_is_missing_is_told_with_where_to_get_it(
    root: Path, name: str, where: str, how: str
) -> None:
    with pytest.raises(
        DataMissing, match=f"{name!r} is not at {root / where} .*To get it: .*{how}"
    ):
        load_data(name)


def test_a_class_without_images_is_missing_data(root: Path) -> None:
    write_imagenet(root)
    for path in (root / "imagenet" / "train" / "n01440764").iterdir():
        path.unlink()
    with pytest.raises(DataMissing, match="n01440764"):
        load_data("imagenet")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenet_c", "unknown corruption of imagenet_c:CORRUPTION:LEVEL ''"),
        ("imagenet_c:fogg:1", "unknown corruption .* 'fogg': did you mean 'fog'"),
        ("imagenet_c:fog", "imagenet_c:fog:LEVEL: expected a level of 1 to 5, got ''"),
        ("imagenet_c:fog:6", "imagenet_c:fog:LEVEL: expected a level of 1 to 5, got '6'"),
        ("imagenet_d", "unknown data set 'imagenet_d': did you mean 'imagenet"),
    ],
)
def test_an_unknown_corruption_or_level_is_told(name: str, message: str) -> None:
    for ask in (source, image_shape, load_data):
        with pytest.raises(UsageError, match=message):
            ask(name)


def write_wood(root: Path, *, size: tuple[int, int] = (2400, 1600), ending: str = "png") -> Path:
    """Write large images, dark on the left, whose middle is marked; they differ in shape."""
    for part in ("train", "test"):
        for grey, kind in ((40, "Betula"), (200, "Populus")):
            path = root / "wood" / part / kind / f"slide 1.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            width, height = size if kind == "Betula" else size[::-1]
            pixels = np.full((height, width), grey, dtype=np.uint8)
            pixels[height // 2 - 200 : height // 2 + 200, width // 2 - 200 : width // 2 + 200] = 120
            Image.fromarray(pixels).save(path)
    return root / "wood"


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_large_images_of_wood_are_resized(root: Path, ending: str) -> None:
    write_wood(root, ending=ending)
    loaded = load_data("wood")
    assert loaded.shape == image_shape("wood") == (3, 224, 224)
    assert loaded.classes == ("Betula", "Populus")
    # 400 of 1,600 pixels are 64 of 256, whatever the longer side is.
    for image, grey in zip(loaded.train.images[:, 0].int(), (40, 200)):
        assert ((image - 120).abs() < 3).sum().item() == pytest.approx(64 * 64, rel=0.1)
        assert (image[112, 84:140] - 120).abs().max() < 3
        assert image[0, 0] == image[-1, -1] == grey


def test_wood_of_sixteen_bits_is_refused(root: Path) -> None:
    folder = write_wood(root)
    path = folder / "test" / "Betula" / "slide 1.png"
    Image.fromarray(np.full((300, 300), 1000, dtype=np.uint16)).save(path)
    with pytest.raises(UsageError, match=f"{path}: expected 8 bits a channel, got mode I"):
        load_data("wood")


def test_an_image_of_too_many_pixels_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_wood(root)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UsageError, match=f"{folder}/t.*: not a readable image .*exceeds limit"):
        load_data("wood")


def test_wood_of_other_kinds_to_test_is_told(root: Path) -> None:
    folder = write_wood(root)
    (folder / "test" / "Betula").rename(folder / "test" / "Acer")
    with pytest.raises(UsageError, match=r"wood: expected the same classes .*Acer.*Betula"):
        load_data("wood")
