"""Groups of images, masks and real photographs, from small copies of the real formats."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from suite import data
from suite.data import Split, image_shape, load_data
from suite.data.grouped import attach_null_blocks, null_block_masks, put_on_textures
from suite.errors import DataMissing, UsageError

GREY = [10, 90, 170, 250]  # of each group
MNIST5K = data.SOURCES["mnist5k"]
READ_FROM_ANYWHERE = functools.cache(lambda: MNIST5K.read(Path()))
READ_ONCE = dataclasses.replace(MNIST5K, read=lambda root: READ_FROM_ANYWHERE())


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    data.loading._load.cache_clear()
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    monkeypatch.setitem(data.SOURCES, "mnist5k", READ_ONCE)


def digits(count=40):
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(count) % 10)


NAMES = [str(digit) for digit in range(10)]


class TestBlockMnist:
    def test_is_digits_and_null_blocks(self):
        loaded, plain = load_data("blockmnist5k"), load_data("mnist5k")
        assert (loaded.shape, loaded.classes) == ((1, 56, 28), plain.classes)
        for split, digits in ((loaded.train, plain.train), (loaded.test, plain.test)):
            masks = null_block_masks(split)
            assert torch.equal(split.labels, digits.labels)
            assert torch.equal(split.images[~masks].view_as(digits.images), digits.images)
            blocks = split.images[masks].view(-1, 28, 28)
            assert torch.equal(blocks, blocks[:1].expand_as(blocks))
            pairs = torch.stack([split.labels, split.groups], dim=1)
            counts = pairs.unique(dim=0, return_counts=True)[1]
            assert (len(counts), counts.unique().numel()) == (20, 1)

    def test_null_block(self):
        split = attach_null_blocks(digits(), part=0)
        block = split.images[null_block_masks(split)].view(-1, 28, 28)[0]
        assert torch.equal(block, block.T)
        assert torch.equal(block, block.flip(0))
        assert set(block.unique().tolist()) == {0, 255}
        assert (block[[4, 4, 14, 9, 13], [4, 14, 4, 9, 14]] == 255).all()
        assert (block[[3, 0, 14, 9], [14, 0, 8, 14]] == 0).all()

    def test_positions_differ_in_testing(self):
        first, again = ([attach_null_blocks(digits(), part=n) for n in (0, 1)] for _ in range(2))
        assert torch.equal(first[0].images, again[0].images)
        assert not torch.equal(first[0].groups, first[1].groups)

    def test_masks_of_other_images(self):
        for groups in (None, torch.tensor([0, 2])):
            split = Split(torch.zeros(2, 1, 56, 28), torch.zeros(2), groups=groups)
            with pytest.raises(ValueError, match="split: expected images of BlockMNIST"):
                null_block_masks(split)


class TestTextured:
    def test_background_follows_the_class(self):
        loaded, digits = load_data("texturedmnist5k"), load_data("mnist5k").train.labels
        assert (loaded.shape, loaded.classes) == ((3, 28, 28), ("0, 1, 2, 3, 4", "5, 6, 7, 8, 9"))
        assert torch.equal(loaded.train.labels, (digits >= 5).long())
        assert loaded.train.groups.bincount().tolist() == [1900, 100, 100, 1900]
        assert loaded.test.groups.bincount().tolist() == [250] * 4
        assert all(torch.equal(s.groups // 2, s.labels) for s in (loaded.train, loaded.test))

    def test_share_of_small_groups(self):
        train, test, _ = put_on_textures(digits(400), digits(400), NAMES, minority=0.01)
        assert train.groups.bincount().tolist() == [198, 2, 2, 198]
        assert test.groups.bincount().tolist() == [100] * 4

    def test_ink_is_white_on_crops(self):
        """Where a digit has no ink, its background is half as bright as in the photograph."""
        images = torch.zeros(20, 1, 28, 28, dtype=torch.uint8)
        images[..., 14:] = 255
        half = Split(images, torch.arange(20) % 10)
        train, test, _ = put_on_textures(half, half, NAMES)
        for split, columns in ((train, slice(None, 320)), (test, slice(320, None))):
            assert (split.images[..., 14:] == 255).all()
            for image, group in list(zip(split.images[..., :14], split.groups))[:4]:
                photo = load_sample_image(["china.jpg", "flower.jpg"][group % 2])[:, columns]
                dark = torch.tensor(photo).permute(2, 0, 1).div(2).round()
                crops = dark.unfold(1, 28, 1).unfold(2, 14, 1)  # (3, rows, columns, 28, 14)
                at = (crops[..., 0, :] == image[:, None, None, 0]).all(3).all(0).nonzero()
                assert any(torch.equal(crops[:, row, column], image) for row, column in at)


def test_fingerprint_depends_on_groups(monkeypatch):
    prints, images = set(), torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    for groups in (None, torch.tensor([0, 1]), torch.tensor([1, 0])):
        split = Split(images, torch.tensor([0, 1]), groups=groups)
        entry = data.Source(lambda root, split=split: (split, split, "ab"), "")
        monkeypatch.setitem(data.SOURCES, "tiny", entry)
        data.loading._load.cache_clear()
        prints.add(load_data("tiny").fingerprint)
    assert len(prints) == 3


def write_image(path, grey, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path)


PLACES = [(split, group) for split in (0, 1, 2) for group in range(4)]  # 1 is to validate


WATERBIRDS = "waterbird_complete95_forest2water2"


def write_metadata(root, rows):
    """Write the table of Waterbirds next to its images."""
    lines = ["img_id,img_filename,y,split,place,place_filename", *rows, ""]
    (root / WATERBIRDS / "metadata.csv").write_text("\n".join(lines))
    return root / WATERBIRDS / "metadata.csv"


def write_waterbirds(root):
    rows = []
    for number, (split, group) in enumerate(PLACES, 1):
        name = f"{split:03d}.Bird/bird_{group}.png"
        write_image(root / WATERBIRDS / name, GREY[group], (60 + group, 50))
        rows.append(f"{number},{name},{group // 2},{split},{group % 2},/x/{group}.jpg")
    return write_metadata(root, rows).parent


def write_celeba(root):
    folder = root / "celeba"
    attributes, partition = ["12", "Bald Blond_Hair Male"], []
    for split, group in PLACES:
        name = f"{split}{group:05d}.png"
        write_image(folder / "img_align_celeba" / name, GREY[group], (178, 218))
        attributes.append(f"{name}  1 {['-1', '1'][group // 2]} {2 * (group % 2) - 1}")
        partition.append(f"{name} {split}")
    (folder / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(partition) + "\n")
    return folder


WRITE = {"waterbirds": write_waterbirds, "celeba": write_celeba}


class TestRealFormats:
    @pytest.mark.parametrize("name", WRITE)
    def test_layouts_and_missing_images(self, name, tmp_path):
        folder, loaded = WRITE[name](tmp_path), load_data(name)
        assert loaded.shape == data.image_shape(name)
        for split in (loaded.train, loaded.test):
            assert (split.groups.tolist(), split.labels.tolist()) == ([0, 1, 2, 3], [0, 0, 1, 1])
            assert split.images.flatten(1).float().mean(1).tolist() == GREY
        data.loading._load.cache_clear()
        victim = sorted(folder.rglob("*.png"))[0]
        victim.unlink()
        with pytest.raises(UsageError, match=f"{victim.name}: not a readable image"):
            load_data(name)

    def test_crops_are_from_the_middle(self, tmp_path):
        folder, pixels = write_celeba(tmp_path), np.zeros((218, 178, 3), dtype=np.uint8)
        pixels[20:198] = 255
        Image.fromarray(pixels).save(folder / "img_align_celeba" / "000000.png")
        assert (load_data("celeba").train.images[0] == 255).all()

    @pytest.mark.parametrize(
        ("name", "file", "text", "message"),
        [
            ("waterbirds", "metadata.csv", "a,b\n1,2\n", "expected a column 'img_filename'"),
            ("celeba", "list_attr_celeba.txt", "0\nBald\nx 1\n", "expected a column 'Blond_Hair'"),
            ("waterbirds", "metadata.csv", "", "not a readable table"),
            ("celeba", "list_eval_partition.txt", "", "not a readable table"),
        ],
    )
    def test_damaged_table_is_named(self, name, file, text, message, tmp_path):
        (WRITE[name](tmp_path) / file).write_text(text)
        with pytest.raises(UsageError, match=f"{file}: {message}"):
            load_data(name)


@pytest.mark.parametrize("name", ["blockmnist", "texturedmnist", "texturedmnist-1pct"])
def test_missing_original(name):
    with pytest.raises(DataMissing, match=r"data set 'mnist' is not at .*MNIST\("):
        load_data(name)


# Images are 512 x 256: of these, the columns 144 to 367 and the rows 16 to 239 are cut out.
WIDTH, HEIGHT, LEFT, TOP = 512, 256, 144, 16
BOX = (160, 50, 201, 100)  # x1, y1, x2, y2 of an object


def write_cub(tmp_path):
    """Write four birds of two species; half of the annotators marked a strip beside each."""
    folder = tmp_path / "CUB_200_2011"
    rows = {"images": [], "image_class_labels": [], "train_test_split": []}
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    for number in range(1, 9):
        species, is_training = (number - 1) // 4, number % 2
        name = f"{names[species]}/Bird_{number:04d}_{number}.jpg"
        write_image(folder / "images" / name, 25 * number, (WIDTH, HEIGHT))
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


def write_birds(tmp_path):
    """Write the birds of `write_cub`, and again on other backgrounds, in another order."""
    write_cub(tmp_path)
    birds, rows = (tmp_path / "CUB_200_2011" / "images.txt").read_text().split()[1::2], []
    for number, name in reversed(list(enumerate(birds, 1))):
        write_image(tmp_path / WATERBIRDS / name, 255 - 25 * number, (WIDTH, HEIGHT))
        rows.append(f"{number},{name},0,{[2, 0][number % 2]},1,/f/forest/00000163.jpg")
    return write_metadata(tmp_path, rows)


def greys(split):
    assert (split.images.flatten(1) == split.images[:, :1, :1, :1].flatten(1)).all()
    return split.images[:, 0, 0, 0].tolist()


class TestCubOnWaterbirds:
    def test_images_in_order(self, tmp_path):
        write_birds(tmp_path)
        plain, shifted = load_data("cub"), load_data("cub_on_waterbirds")
        assert (shifted.classes, len(shifted.train.images)) == (plain.classes, 0)
        assert torch.equal(shifted.test.labels, plain.test.labels)
        assert torch.equal(shifted.test.masks, plain.test.masks)
        assert greys(shifted.test) == [255 - grey for grey in greys(plain.test)]
        assert shifted.fingerprint != plain.fingerprint

    def test_bird_without_background_is_named(self, tmp_path):
        table = write_birds(tmp_path)
        lines = table.read_text().splitlines()
        table.write_text("\n".join(line for line in lines if "Bird_0006" not in line))
        expected = r"metadata\.csv: .* got no 002\.Laysan.*/Bird_0006_6.jpg"
        with pytest.raises(UsageError, match=expected):
            load_data("cub_on_waterbirds")


@pytest.mark.parametrize("name", ["cub", "cub_on_waterbirds"])
def test_missing_or_damaged_image(tmp_path, name):
    write_birds(tmp_path)
    folder, bird = {"cub": ("CUB_200_2011", 1), "cub_on_waterbirds": (WATERBIRDS, 2)}[name]
    victim = next((tmp_path / folder).rglob(f"Bird_000{bird}_{bird}.jpg"))
    victim.write_bytes(victim.read_bytes()[:300])
    for _ in ("damaged", "missing"):
        with pytest.raises(UsageError, match=f"{victim}: not a readable image"):
            load_data(name)
        victim.unlink(missing_ok=True)


class TestCub:
    def test_has_species_and_masks(self, tmp_path):
        write_cub(tmp_path)
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
    def test_damaged_tables_are_reported(self, tmp_path, file):
        path = write_cub(tmp_path).with_name(f"{file}.txt")
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

    def test_masks_are_a_separate_download(self, tmp_path):
        folder = write_cub(tmp_path).parent
        (folder / "segmentations").rename(folder / "elsewhere")
        expected = f"is not at {folder / 'segmentations'} .*w9d68-gec53"
        with pytest.raises(DataMissing, match=expected):
            load_data("cub")

    def test_mask_of_another_size(self, tmp_path):
        write_cub(tmp_path)
        Image.new("L", (HEIGHT, WIDTH), 255).save(next(tmp_path.rglob("Bird_0003_3.png")))
        expected = r"Bird_0003_3.jpg: expected a mask .* 512 x 256, got 256"
        with pytest.raises(UsageError, match=expected):
            load_data("cub")

    def test_masked_image_is_not_rotated(self, tmp_path):
        """Masks are drawn on the pixels as they lie in the file, whatever the file says of them."""
        write_cub(tmp_path)
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        path = next(tmp_path.rglob("Bird_0001_1.jpg"))
        pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], WIDTH, 1)
        Image.fromarray(pixels).save(path, "JPEG", exif=exif)
        image = load_data("cub").train.images[0, 0, :, 0].int()
        assert image[0] < 30
        assert image[-1] > 220
