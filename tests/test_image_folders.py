"""ImageNet from small copies of its layout, and folders of your own images."""

import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image

from suite import data
from suite.data import image_folders, image_shape, load_data, source
from suite.errors import DataMissing, UsageError
from suite.runs import compute
from suite.units import Training

WORDNET = ("n01440764", "n01443537", "n02102040", "n15075141")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Let ImageNet have four classes."""
    data.loading._load.cache_clear()
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    monkeypatch.setattr(image_folders, "class_names", lambda: ("tench", "goldfish", "dog", "paper"))
    return tmp_path


def write_imagenet(root):
    for label, name in enumerate(WORDNET):
        for part, index in (("train", 0), ("train", 1), ("val", 0)):
            path = root / "imagenet" / part / name / f"{name}_{index}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (300, 260), (5 * (10 * label + index),) * 3).save(path)


class TestImagenet:
    def test_cycles_through_its_classes(self, root):
        write_imagenet(root)
        loaded = load_data("imagenet")
        assert loaded.shape == image_shape("imagenet") == (3, 224, 224)
        assert loaded.classes == ("tench", "goldfish", "dog", "paper")
        assert loaded.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
        expected = [5 * (10 * label + index) for index in (0, 1) for label in range(4)]
        assert (loaded.train.images[:, 0, 5, 7].int() - torch.tensor(expected)).abs().max() <= 1
        assert loaded.test.labels.tolist() == [0, 1, 2, 3]

    def test_has_a_thousand_names(self):
        names = data.class_names()
        assert len(names) == 1000
        assert (names[0], names[1], names[999]) == ("tench", "goldfish", "toilet tissue")

    def test_missing_class_is_reported(self, root):
        write_imagenet(root)
        for path in root.rglob("n02102040"):
            path.rename(path.parent.parent / f"{path.parent.name} without")
        with pytest.raises(UsageError, match=r"expected 4 folders nXXXXXXXX, .* got 3"):
            load_data("imagenet")

    def test_too_many_pixels_are_named(self, root, monkeypatch):
        write_imagenet(root)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        with pytest.raises(UsageError, match=f"{root}.*: not a readable image .*exceeds limit"):
            load_data("imagenet")


def save(path, *, size=(8, 8), **options):
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[:, size[0] // 2 :] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def rotation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.fixture
def photos(tmp_path):
    for part, count in (("train", 2), ("test", 1)):
        for name in ("cat", "dog"):
            for number in range(count):
                save(tmp_path / "photos" / part / name / f"{number}.png")
    return tmp_path / "photos"


class TestOwnImages:
    @pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", ".hidden"])
    def test_hidden_folder_is_no_class(self, photos, name):
        plain = load_data(f"imagefolder:{photos}").fingerprint
        data.loading._load.cache_clear()
        for part in ("train", "test"):
            save(photos / part / name / "0.png")
            save(photos / part / "cat" / name / "0-checkpoint.png")
            (photos / part / "cat" / "._0.png").write_bytes(b"of macOS")
        loaded = load_data(f"imagefolder:{photos}")
        assert (loaded.classes, loaded.fingerprint) == (("cat", "dog"), plain)

    def test_photograph_is_rotated_upright(self, photos):
        for path in photos.rglob("*.png"):
            save(path.with_suffix(".jpg"), size=(8, 16))
            path.unlink()
        # Its file is 16 wide and 8 high, to be turned by 90 degrees clockwise: left becomes top.
        save(photos / "train" / "cat" / "0.jpg", size=(16, 8), exif=rotation(6))
        save(photos / "train" / "dog" / "0.jpg", size=(8, 16), exif=rotation(3))
        images = load_data(f"imagefolder:{photos}").train.images.int()
        assert images[0, 0, 2].max() < 50
        assert images[0, 0, -3].min() > 200
        assert images[1, 0, :, 1].min() > 200
        assert images[1, 0, :, -2].max() < 50
        assert images[2, 0, :, 1].max() < 50

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_transparent_pixel_is_white(self, photos, mode):
        picture = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
        picture.paste((0, 0, 0, 255), (0, 0, 4, 8))
        picture = picture.quantize() if mode == "P" else picture.convert(mode)
        picture.save(photos / "train" / "cat" / "0.png")
        image = load_data(f"imagefolder:{photos}").train.images[0]
        assert (image[:, :, :4].max(), image[:, :, 4:].min()) == (0, 255)

    def test_other_files_are_counted(self, photos, capsys):
        folder = photos / "train" / "dog"
        for name in ("a.gif", "b.GIF", "c.heic", ".DS_Store"):
            (folder / name).write_bytes(b"x")
        (photos / "test" / "cat" / "notes").write_bytes(b"x")
        for _ in range(2):
            data.loading._load.cache_clear()
            assert len(load_data(f"imagefolder:{photos}").train.images) == 4
        train, test = capsys.readouterr().err.splitlines()
        folder_of = f"{photos / 'train'}: left out 2 .gif, 1 .heic, the first {folder}/a.gif; "
        assert train.startswith(f"{folder_of}images end in .bmp, .jpeg, .jpg, ")
        assert f"{photos / 'test'}: left out 1 no ending, the first {photos}/test/cat/notes" in test

    @pytest.mark.parametrize("shown", [False, True])
    def test_unreadable_images(self, photos, shown):
        folder = photos / "train"
        (folder / "cat" / "1.png").write_bytes(b"")
        (folder / "dog" / "0.png").write_bytes(b"no image")
        Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(folder / "dog" / "1.png")
        name = folder if shown else photos
        first = f"^{folder}/cat/1.png: not a readable image .*"
        with pytest.raises(UsageError, match=first + "; 3 images cannot be used: 1.png, 0.png, 1"):
            load_data(f"imagefolder:{name}")

    @pytest.mark.parametrize("names", [("Train", "Test"), ("training", "validation")])
    def test_other_names_of_splits(self, photos, names):
        for old, new in zip(("train", "test"), names):
            (photos / old).rename(photos / new)
        there = f"there is no such folder; there are {', '.join(sorted(names))}"
        with pytest.raises(DataMissing, match=f"is not at {photos}/train .{there}..*/test/CLASS"):
            load_data(f"imagefolder:{photos}")

    def test_without_training_images(self, photos):
        folder, name = photos / "train", f"imagefolder:{photos / 'train'}"
        assert len(load_data(name).test.images) == 4  # photographs may lie in folders of any name
        assert f"or to train put images into {folder}/train/CLASS/" in source(name).how_to_get
        unit = Training(data=name, network="resnet", epochs=1, learning_rate=0.1, seed=0)
        with pytest.raises(UsageError, match=r"to train on are laid out as FOLDER/train/CLASS/\*"):
            compute([unit])

    def test_spellings_of_an_accent(self, photos):
        for part, form in (("train", "NFC"), ("test", "NFD")):
            folder = photos / part / "cat"
            folder.rename(folder.with_name(unicodedata.normalize(form, "café")))
        expected = r"\['cafe\\u0301', 'caf\\xe9'\]: an accent is one character or two; rename one"
        with pytest.raises(UsageError, match=expected):
            load_data(f"imagefolder:{photos}")

    @pytest.mark.parametrize("ask", [source, load_data, image_shape])
    def test_empty_path_is_refused(self, ask):
        with pytest.raises(UsageError, match=r"expected a folder, such as imagefolder:photos"):
            ask("imagefolder:")

    def test_unknown_home(self):
        expected = r"~nobody-of-this-name/photos/train .there is no such"
        with pytest.raises(DataMissing, match=expected):
            load_data("imagefolder:~nobody-of-this-name/photos")
