"""COCO, CUB-200-2011 with Waterbirds and Oxford-IIIT Pet, from small copies of the real formats."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from suite import data
from suite.data import image_shape, load_data
from suite.data.natural_images import draw_outline
from suite.errors import DataMissing, UsageError

# Images are 512 x 256: of these, the columns 144 to 367 and the rows 16 to 239 are cut out.
WIDTH, HEIGHT, LEFT, TOP = 512, 256, 144, 16
BOX = (160, 50, 201, 100)  # x1, y1, x2, y2 of an object


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data.loading._load.cache_clear()
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    return tmp_path


def save(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(grey))


@functools.cache
def jpeg(grey: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (grey, grey, grey)).save(buffer, "JPEG")
    return buffer.getvalue()


def boxed(off: int, on: int, box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    values = np.full((HEIGHT, WIDTH), off, dtype=np.uint8)
    values[box[1] : box[3], box[0] : box[2]] = on
    return values


def mask_of(box: tuple[int, int, int, int]) -> torch.Tensor:
    mask = torch.zeros(224, 224, dtype=torch.bool)
    mask[box[1] - TOP : box[3] - TOP, box[0] - LEFT : box[2] - LEFT] = True
    return mask


def polygon(x1: float, y1: float, x2: float, y2: float) -> list[float]:
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def runs(mask: np.ndarray) -> dict[str, Any]:
    """Encode a mask as COCO encodes a crowd: lengths of runs down the columns, off first."""
    flat = np.concatenate([[0], mask.T.ravel(), [0]])
    ends = np.flatnonzero(np.diff(flat))
    counts = np.diff(np.concatenate([[0], ends, [mask.size]])).tolist()
    return {"counts": counts if counts[-1] else counts[:-1], "size": list(mask.shape)}


class Coco:
    """Annotations of one part, in the format of `instances_train2017.json`."""

    def __init__(self, folder: Path, part: str) -> None:
        self.folder, self.part = folder, part
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def add(self, *objects: tuple[int, Any], crowd: bool = False, grey: int = 99) -> None:
        number = 7 * len(self.images) + 5
        name = f"{number:012d}.jpg"
        save(self.folder / f"{self.part}2017" / name, grey)
        self.images.append(
            {
                "id": number,
                "file_name": name,
                "width": WIDTH,
                "height": HEIGHT,
                "license": 1,
                "date_captured": "2013-11-14 17:02:52",
                "flickr_url": "http://x",
                "coco_url": "http://x",
            }
        )
        for category, outline in objects:
            self.annotations.append(
                {
                    "id": len(self.annotations) + 1,
                    "image_id": number,
                    "category_id": category,
                    "segmentation": outline,
                    "iscrowd": int(crowd),
                    "area": 1.5,
                    "bbox": [0.0, 0.0, 1.0, 1.0],
                }
            )

    def write(self) -> Path:
        path = self.folder / "annotations" / f"instances_{self.part}2017.json"
        path.parent.mkdir(exist_ok=True)
        categories = [(1, "person"), (3, "car"), (18, "dog"), (90, "toothbrush")]
        contents = {
            "info": {"year": 2017},
            "licenses": [{"id": 1, "name": "x"}],
            "images": self.images,
            "annotations": self.annotations,
            "categories": [{"id": i, "name": n, "supercategory": "x"} for i, n in categories],
        }
        path.write_text(json.dumps(contents))
        return path


def write_coco(root: Path) -> Path:
    """Write 20 dogs, 21 cars, of which one lies outside the middle, and what is to be left out."""
    inside = [polygon(*BOX)]
    train, test = Coco(root / "coco", "train"), Coco(root / "coco", "val")
    train.add((3, [polygon(0, 0, 100, 100)]))
    for _ in range(20):
        train.add((18, inside), grey=180)
        train.add((3, inside), grey=30)
    for _ in range(19):
        train.add((90, inside))
    train.add((18, inside), (18, inside))
    train.add((18, inside), (3, inside))
    train.add((1, runs(boxed(0, 1))), crowd=True)
    train.add()
    test.add((90, inside))
    test.add((18, [polygon(*BOX), polygon(300, 200, 310.25, 210)]), grey=180)
    test.add((3, runs(boxed(0, 1))), grey=30)
    test.add((18, inside), (3, inside))
    test.write()
    return train.write()


def write_cub(root: Path) -> Path:
    """Write four birds of two species; half of the annotators marked a strip beside each."""
    folder = root / "CUB_200_2011"
    rows: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    for number in range(1, 9):
        species, is_training = (number - 1) // 4, number % 2
        name = f"{names[species]}/Bird_{number:04d}_{number}.jpg"
        save(folder / "images" / name, 25 * number)
        marked = boxed(0, 204)
        marked[:, BOX[2] : BOX[2] + 5] = 102  # two of five
        mask = (folder / "segmentations" / name).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(marked).save(mask)
        for file, value in (
            ("images", name),
            ("image_class_labels", species + 1),
            ("train_test_split", is_training),
        ):
            rows[file].append(f"{number} {value}")
    rows["classes"] = [f"{number} {name}" for number, name in enumerate(names, 1)]
    for file, lines in rows.items():
        (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
    return folder / "image_class_labels.txt"


def write_waterbirds(root: Path) -> Path:
    """Write the birds of `write_cub` again, on other backgrounds, in another order."""
    birds = (root / "CUB_200_2011" / "images.txt").read_text().split()[1::2]
    folder = root / "waterbird_complete95_forest2water2"
    rows = ["img_id,img_filename,y,split,place,place_filename"]
    for number, name in reversed(list(enumerate(birds, 1))):
        save(folder / name, 255 - 25 * number)
        rows.append(f"{number},{name},0,{[2, 0][number % 2]},1,/f/forest/00000163.jpg")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder / "metadata.csv"


def write_pets(root: Path) -> Path:
    """Write three pets of two breeds to train and two to test, with trimaps that have a border."""
    folder = root / "oxford-iiit-pet"
    lines = {
        "trainval": ["Abyssinian_100 1 1 1", "Abyssinian_7 1 1 1", "saint_bernard_2 2 2 1"],
        "test": ["saint_bernard_10 2 2 1", "Abyssinian_201 1 1 1"],
    }
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    for line in [*lines["trainval"], *lines["test"]]:
        name, number = line.split()[:2]
        save(folder / "images" / f"{name}.jpg", 100 * int(number))
        trimap = np.minimum(boxed(2, 1), boxed(3, 1, (BOX[0], BOX[1], BOX[2] + 6, BOX[3])))
        trimap[BOX[1] : BOX[3], BOX[2] : BOX[2] + 6] = 3
        Image.fromarray(trimap).save(folder / "annotations" / "trimaps" / f"{name}.png")
    header = ["#Image CLASS-ID SPECIES BREED ID", "#ID: 1:37 Class ids"]
    (folder / "annotations" / "list.txt").write_text(
        "\n".join([*header, *lines["trainval"], *lines["test"]]) + "\n"
    )
    for part, names in lines.items():
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(names) + "\n")
    return folder / "annotations" / "trainval.txt"


def write_birds(root: Path) -> Path:
    write_cub(root)
    return write_waterbirds(root)


WRITE: dict[str, Callable[[Path], Path]] = {
    "coco": write_coco,
    "cub": write_cub,
    "cub_on_waterbirds": write_birds,
    "oxford_pet": write_pets,
}


def greys(split: data.Split) -> list[int]:
    assert (split.images.flatten(1) == split.images[:, :1, :1, :1].flatten(1)).all()
    return split.images[:, 0, 0, 0].tolist()


def test_coco_has_the_images_of_one_object_whose_class_has_twenty(root: Path) -> None:
    write_coco(root)
    loaded = load_data("coco")
    assert loaded.shape == image_shape("coco") == (3, 224, 224)
    assert loaded.classes == ("car", "dog")
    assert loaded.train.labels.tolist() == [1, 0] * 20
    assert greys(loaded.train) == [180, 30] * 20
    assert loaded.test.labels.tolist() == [1, 0]
    assert greys(loaded.test) == [180, 30]


def test_masks_of_coco_are_the_outlines_where_the_image_is_cut_out(root: Path) -> None:
    write_coco(root)
    loaded = load_data("coco")
    train, test = loaded.train.masks, loaded.test.masks
    assert train is not None
    assert test is not None
    assert train.dtype == torch.bool
    assert torch.equal(test[1], mask_of(BOX))  # the run-length encoding, which is exact
    assert torch.equal(train[0], train[1])
    near = mask_of(BOX) ^ train[0]
    assert near.sum() <= 91, "lines of a polygon may take the pixels beside them"
    assert not near[mask_of((BOX[0], BOX[1], BOX[2] - 1, BOX[3] - 1))].any()
    second = test[0].clone()
    second[:, : 290 - LEFT] = False
    assert torch.equal(test[0] ^ second, train[0])
    assert 10 * 10 <= second.sum() <= 11 * 11


def test_an_outline_has_the_area_of_its_polygon() -> None:
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    for radius in (5.0, 30.0, 80.0):
        x, y = 100.3 + radius * np.cos(angle), 90.6 + 0.7 * radius * np.sin(angle)
        area = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
        around = np.hypot(np.diff(x, append=x[0]), np.diff(y, append=y[0])).sum()
        drawn = np.asarray(draw_outline([np.stack([x, y], 1).ravel().tolist()], (200, 180)))
        assert 0 <= drawn.sum() / 255 - area < 0.2 * around
        rows, columns = drawn.nonzero()
        assert columns.mean() + 0.5 == pytest.approx(100.3, abs=0.3)
        assert rows.mean() + 0.5 == pytest.approx(90.6, abs=0.3)


def test_runs_go_down_the_columns() -> None:
    mask = np.random.default_rng(0).integers(0, 2, (5, 7)).astype(np.uint8)
    drawn = draw_outline(runs(mask), (7, 5))
    assert np.array_equal(np.asarray(drawn), 255 * mask)


@pytest.mark.parametrize(
    ("outline", "message"),
    [
        ([[1, 2, 3, 4]], r"expected x1, y1, x2, y2, x3, y3, \.\.\., got \[1, 2, 3, 4\]"),
        ({"counts": [3, 4], "size": [256, 512]}, r"expected runs of 131072 pixels in all, got"),
        ({"counts": "abc", "size": [256, 512]}, r"expected runs of .* got 'abc'"),
        ({"size": [256, 512]}, r"'counts'"),
        (None, ".*not iterable"),
    ],
)
def test_a_damaged_outline_is_named(root: Path, outline: Any, message: str) -> None:
    table = write_coco(root)
    contents = json.loads(table.read_text())
    contents["annotations"][0]["segmentation"] = outline
    table.write_text(json.dumps(contents))
    with pytest.raises(UsageError, match=f"{table.name}: outline in 000000000005.jpg: {message}"):
        load_data("coco")


def test_a_crowd_alone_is_no_single_object(root: Path) -> None:
    table = write_coco(root)
    contents = json.loads(table.read_text())
    contents["annotations"][1]["iscrowd"] = 1
    table.write_text(json.dumps(contents))
    assert load_data("coco").classes == ("car",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"images": [], "categories": []}', "KeyError.'annotations'"),
        ('{"images": [], "categories": [], "annotations": [{"image_id": 1, "iscrowd": 0}]}', "Key"),
    ],
)
def test_damaged_annotations_are_named(root: Path, text: str, message: str) -> None:
    table = write_coco(root)
    table.write_text(text)
    with pytest.raises(UsageError, match=f"{table}: expected images, .* got {message}"):
        load_data("coco")


def test_cub_has_species_and_what_most_annotators_marked(root: Path) -> None:
    write_cub(root)
    loaded = load_data("cub")
    assert loaded.shape == image_shape("cub") == (3, 224, 224)
    assert loaded.classes == ("Black footed Albatross", "Laysan Albatross")
    assert greys(loaded.train) == [25, 125, 75, 175]  # numbers 1, 5, 3, 7: round the classes
    assert greys(loaded.test) == [50, 150, 100, 200]
    for split in (loaded.train, loaded.test):
        assert split.labels.tolist() == [0, 1, 0, 1]
        assert split.masks is not None
        assert torch.equal(split.masks, mask_of(BOX).expand(4, 224, 224))


def test_waterbirds_show_the_test_images_of_cub_in_their_order(root: Path) -> None:
    write_birds(root)
    plain, shifted = load_data("cub"), load_data("cub_on_waterbirds")
    assert shifted.classes == plain.classes
    assert len(shifted.train.images) == 0
    assert torch.equal(shifted.test.labels, plain.test.labels)
    assert torch.equal(shifted.test.masks, plain.test.masks)
    assert greys(shifted.test) == [255 - grey for grey in greys(plain.test)]
    assert shifted.fingerprint != plain.fingerprint


def test_a_bird_without_background_is_named(root: Path) -> None:
    table = write_birds(root)
    lines = table.read_text().splitlines()
    table.write_text("\n".join(line for line in lines if "Bird_0006" not in line))
    with pytest.raises(UsageError, match=r"metadata\.csv: .* got no 002\.Laysan.*/Bird_0006_6.jpg"):
        load_data("cub_on_waterbirds")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (file, damage)
        for file in ("images", "image_class_labels", "train_test_split", "classes")
        for damage in ("first line", "word", "column", "twice")
        if (file, damage) != ("classes", "word")  # a species may have any name
    ],
)
def test_damaged_tables_of_cub_are_told(root: Path, file: str, damage: str) -> None:
    path = write_cub(root).with_name(f"{file}.txt")
    lines = path.read_text().splitlines()
    if damage == "first line":
        lines = lines[1:]
    elif damage == "word":
        lines[1] = "2 x"
    elif damage == "column":
        lines = [line.split()[0] for line in lines]
    else:
        lines[1] = lines[0]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=f"{path.parent}: expected a number and|/x.png: not a"):
        load_data("cub")


def test_masks_of_cub_are_a_download_of_their_own(root: Path) -> None:
    folder = write_cub(root).parent
    (folder / "segmentations").rename(folder / "elsewhere")
    with pytest.raises(DataMissing, match=f"is not at {folder / 'segmentations'} .*w9d68-gec53"):
        load_data("cub")


def test_pets_are_those_of_torchvision(root: Path) -> None:
    write_pets(root)
    loaded = load_data("oxford_pet")
    assert loaded.shape == image_shape("oxford_pet") == (3, 224, 224)
    for split, part in ((loaded.train, "trainval"), (loaded.test, "test")):
        listed = datasets.OxfordIIITPet(root, part)
        assert list(loaded.classes) == listed.classes == ["Abyssinian", "Saint Bernard"]
        assert sorted(split.labels.tolist()) == sorted(label for _, label in listed)
        assert greys(split) == [100 * (label + 1) for label in split.labels.tolist()]
    assert loaded.train.labels.tolist() == [0, 1, 0]


def test_masks_of_pets_are_the_foreground_without_the_border(root: Path) -> None:
    write_pets(root)
    masks = load_data("oxford_pet").train.masks
    assert masks is not None
    assert torch.equal(masks, mask_of(BOX).expand(3, 224, 224))


def test_what_is_no_trimap_is_named(root: Path) -> None:
    trimap = write_pets(root).with_name("trimaps") / "saint_bernard_10.png"
    Image.new("L", (WIDTH, HEIGHT), 38).save(trimap)
    with pytest.raises(UsageError, match=f"{trimap}: expected a trimap of 1, 2 and 3, got .*38"):
        load_data("oxford_pet")


@pytest.mark.parametrize("text", ["Abyssinian_100 1\n", "Abyssinian_100 one 1 1\n"])
def test_a_damaged_list_of_pets_is_named(root: Path, text: str) -> None:
    path = write_pets(root)
    path.write_text(text)
    with pytest.raises(UsageError, match=f"what is at {path} cannot be read .*OxfordIIITPet"):
        load_data("oxford_pet")


@pytest.mark.parametrize("name", WRITE)
def test_a_missing_and_a_damaged_image_are_named(root: Path, name: str) -> None:
    table = WRITE[name](root)
    folder = table.parent if name == "cub_on_waterbirds" else root
    victim = sorted(path for path in folder.rglob("*.jpg") if "_2.jpg" not in path.name)[0]
    if name == "cub_on_waterbirds":
        victim = next(folder.rglob("Bird_0002_2.jpg"))
    elif name == "coco":
        victim = next(folder.rglob("train2017/000000000012.jpg"))
    sound = victim.read_bytes()
    for damage in ("cut", "missing"):
        if damage == "cut":
            victim.write_bytes(sound[:300])
        else:
            victim.unlink()
        with pytest.raises(UsageError, match=f"{victim}: not a readable image"):
            load_data(name)


def test_a_mask_of_another_size_is_told_with_its_image(root: Path) -> None:
    write_cub(root)
    mask = next(root.rglob("Bird_0003_3.png"))
    Image.new("L", (HEIGHT, WIDTH), 255).save(mask)
    with pytest.raises(UsageError, match=r"Bird_0003_3.jpg: expected a mask .* 512 x 256, got 256"):
        load_data("cub")


def test_an_image_with_a_mask_is_not_turned(root: Path) -> None:
    """Masks are drawn on the pixels as they lie in the file, whatever the file says of them."""
    write_cub(root)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    path = next(root.rglob("Bird_0001_1.jpg"))
    buffer = io.BytesIO()
    Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[:, None], WIDTH, 1)).save(
        buffer, "JPEG", exif=exif
    )
    path.write_bytes(buffer.getvalue())
    image = load_data("cub").train.images[0, 0, :, 0].int()
    assert image[0] < 30
    assert image[-1] > 220
