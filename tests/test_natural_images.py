"""CUB-200-2011 with Waterbirds, from small copies of the real formats."""

import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image

from suite import data
from suite.data import image_shape, load_data
from suite.errors import DataMissing, UsageError

# Images are 512 x 256: of these, the columns 144 to 367 and the rows 16 to 239 are cut out.
WIDTH, HEIGHT, LEFT, TOP = 512, 256, 144, 16
BOX = (160, 50, 201, 100)  # x1, y1, x2, y2 of an object


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    data.loading._load.cache_clear()
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    return tmp_path


def save(path, grey):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(grey))


@functools.cache
def jpeg(grey):
    buffer = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (grey, grey, grey)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_cub(root):
    """Write four birds of two species; half of the annotators marked a strip beside each."""
    folder = root / "CUB_200_2011"
    rows = {"images": [], "image_class_labels": [], "train_test_split": []}
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    for number in range(1, 9):
        species, is_training = (number - 1) // 4, number % 2
        name = f"{names[species]}/Bird_{number:04d}_{number}.jpg"
        save(folder / "images" / name, 25 * number)
        marked = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
        marked[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 204
        marked[:, BOX[2] : BOX[2] + 5] = 102  # two of five
        mask = (folder / "segmentations" / name).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(marked).save(mask)
        for file, value in zip(rows, (name, species + 1, is_training)):
            rows[file].append(f"{number} {value}")
    rows["classes"] = [f"{number} {name}" for number, name in enumerate(names, 1)]
    for file, lines in rows.items():
        (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
    return folder / "image_class_labels.txt"


def write_waterbirds(root):
    """Write the birds of `write_cub` again, on other backgrounds, in another order."""
    birds = (root / "CUB_200_2011" / "images.txt").read_text().split()[1::2]
    folder = root / "waterbird_complete95_forest2water2"
    rows = ["img_id,img_filename,y,split,place,place_filename"]
    for number, name in reversed(list(enumerate(birds, 1))):
        save(folder / name, 255 - 25 * number)
        rows.append(f"{number},{name},0,{[2, 0][number % 2]},1,/f/forest/00000163.jpg")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder / "metadata.csv"


def write_birds(root):
    write_cub(root)
    return write_waterbirds(root)


def greys(split):
    assert (split.images.flatten(1) == split.images[:, :1, :1, :1].flatten(1)).all()
    return split.images[:, 0, 0, 0].tolist()


class TestCubOnWaterbirds:
    def test_images_in_order(self, root):
        write_birds(root)
        plain, shifted = load_data("cub"), load_data("cub_on_waterbirds")
        assert (shifted.classes, len(shifted.train.images)) == (plain.classes, 0)
        assert torch.equal(shifted.test.labels, plain.test.labels)
        assert torch.equal(shifted.test.masks, plain.test.masks)
        assert greys(shifted.test) == [255 - grey for grey in greys(plain.test)]
        assert shifted.fingerprint != plain.fingerprint

    def test_bird_without_background_is_named(self, root):
        table = write_birds(root)
        lines = table.read_text().splitlines()
        table.write_text("\n".join(line for line in lines if "Bird_0006" not in line))
        expected = r"metadata\.csv: .* got no 002\.Laysan.*/Bird_0006_6.jpg"
        with pytest.raises(UsageError, match=expected):
            load_data("cub_on_waterbirds")


@pytest.mark.parametrize("name", ["cub", "cub_on_waterbirds"])
def test_missing_or_damaged_image(root, name):
    birds, on_waterbirds = write_cub(root), write_waterbirds(root)
    folder, bird = {"cub": (birds, 1), "cub_on_waterbirds": (on_waterbirds, 2)}[name]
    victim = next(folder.parent.rglob(f"Bird_000{bird}_{bird}.jpg"))
    victim.write_bytes(victim.read_bytes()[:300])
    for _ in ("damaged", "missing"):
        with pytest.raises(UsageError, match=f"{victim}: not a readable image"):
            load_data(name)
        victim.unlink(missing_ok=True)


class TestCub:
    def test_has_species_and_masks(self, root):
        write_cub(root)
        loaded = load_data("cub")
        assert loaded.shape == image_shape("cub") == (3, 224, 224)
        assert loaded.classes == ("Black footed Albatross", "Laysan Albatross")
        assert greys(loaded.train) == [25, 125, 75, 175]  # numbers 1, 5, 3, 7: round the classes
        assert greys(loaded.test) == [50, 150, 100, 200]
        mask = torch.zeros(4, 224, 224, dtype=torch.bool)
        mask[:, BOX[1] - TOP : BOX[3] - TOP, BOX[0] - LEFT : BOX[2] - LEFT] = True
        for split in (loaded.train, loaded.test):
            assert split.labels.tolist() == [0, 1, 0, 1]
            assert torch.equal(split.masks, mask)

    @pytest.mark.parametrize("file", "images image_class_labels train_test_split classes".split())
    def test_damaged_tables_are_reported(self, root, file):
        path = write_cub(root).with_name(f"{file}.txt")
        first, second, *rest = path.read_text().splitlines()
        columns = [line.split()[0] for line in (first, second, *rest)]
        damaged = [[second, *rest], columns, [first, first, *rest]]
        if file != "classes":  # a species may have any name
            damaged.append([first, "2 x", *rest])
        expected = f"{path.parent}: expected a number and|/x.png: not a"
        for lines in damaged:
            path.write_text("\n".join(lines) + "\n")
            with pytest.raises(UsageError, match=expected):
                load_data("cub")

    def test_masks_are_a_separate_download(self, root):
        folder = write_cub(root).parent
        (folder / "segmentations").rename(folder / "elsewhere")
        expected = f"is not at {folder / 'segmentations'} .*w9d68-gec53"
        with pytest.raises(DataMissing, match=expected):
            load_data("cub")

    def test_mask_of_another_size(self, root):
        write_cub(root)
        Image.new("L", (HEIGHT, WIDTH), 255).save(next(root.rglob("Bird_0003_3.png")))
        expected = r"Bird_0003_3.jpg: expected a mask .* 512 x 256, got 256"
        with pytest.raises(UsageError, match=expected):
            load_data("cub")

    def test_masked_image_is_not_rotated(self, root):
        """Masks are drawn on the pixels as they lie in the file, whatever the file says of them."""
        write_cub(root)
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        path = next(root.rglob("Bird_0001_1.jpg"))
        pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], WIDTH, 1)
        Image.fromarray(pixels).save(path, "JPEG", exif=exif)
        image = load_data("cub").train.images[0, 0, :, 0].int()
        assert image[0] < 30
        assert image[-1] > 220
