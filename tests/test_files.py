import io

import numpy as np
import pytest
import torch
from PIL import Image

from suite.data import image_folders, load_data
from suite.data.files import read_photograph
from suite.errors import UsageError


def save(path, size=(224, 224), **options):
    """Write a picture whose red grows from left to right and whose green from top to bottom."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = np.linspace(0, 255, width)[None]
    pixels[:, :, 1] = np.linspace(0, 255, height)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


BUFFER = io.BytesIO()
Image.new("RGB", (224, 224)).save(BUFFER, "JPEG")
BLACK = BUFFER.getvalue()


class TestPhotograph:
    def test_right_size_is_unchanged(self, tmp_path):
        path = save(tmp_path / "a.png")
        expected = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
        assert torch.equal(read_photograph(path), expected)

    @pytest.mark.parametrize("size", [(512, 300), (300, 512), (256, 257), (100, 80)])
    def test_centre_is_cropped(self, tmp_path, size):
        image = read_photograph(save(tmp_path / "a.png", size)).double()
        assert image.shape == (3, 224, 224)
        for channel, side in enumerate(size):
            scaled = side * 256 / min(size)
            ends = ((scaled - 224) / 2 + 0.5, (scaled + 224) / 2)
            expected = [255 * end / scaled for end in ends]
            row = image[channel].mean(channel)
            assert [float(row[0]), float(row[-1])] == pytest.approx(expected, abs=2)

    def test_odd_margins(self, tmp_path):
        path = save(tmp_path / "a.png", (257, 256))
        pixels = np.array(Image.open(path)).transpose(2, 0, 1)
        assert np.array_equal(read_photograph(path).numpy(), pixels[:, 16:240, 16:240])


class TestShown:
    def test_foolbox_has_labels(self):
        data = load_data("foolbox-imagenet")
        assert data.shape == (3, 224, 224)
        assert (len(data.train.images), len(data.test.images)) == (0, 20)
        assert data.test.labels[:3].tolist() == [243, 559, 438]
        assert data.classes[243] == "bull mastiff"

    def test_one_per_class(self, tmp_path, monkeypatch):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
        folder = tmp_path / "imagenet-samples"
        folder.mkdir()
        for index in range(999):
            (folder / f"n{index:08}_name.JPEG").write_bytes(BLACK)
        save(folder / "n00000998_twice.png")
        with pytest.raises(UsageError, match=r"expected 1,000 photographs .* got 1000"):
            load_data("imagenet-samples")
        (folder / "n00000998_twice.png").unlink()
        save(folder / "n99999999_last.png")
        data = load_data("imagenet-samples")
        assert data.test.labels.tolist() == list(range(1000))
        assert (int(data.test.images[:999].max()), int(data.test.images[999].max())) == (0, 255)

    def test_validation_sample_is_fixed(self, tmp_path):
        for index in range(1000):
            path = tmp_path / "imagenet" / "val" / f"n{index:08}" / "a.JPEG"
            path.parent.mkdir(parents=True)
            path.write_bytes(BLACK)
        _, test, classes = image_folders.read_validation_sample(tmp_path, n=5)
        assert test.images.shape == (5, 3, 224, 224)
        drawn = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:5]
        assert (test.labels.tolist(), len(classes)) == (sorted(drawn.tolist()), 1000)
        with pytest.raises(UsageError, match="at least 2000 photographs, got 1000"):
            image_folders.read_validation_sample(tmp_path, n=2000)

    def test_own_of_any_size(self, tmp_path):
        save(tmp_path / "own" / "b" / "1.png", (300, 400))
        save(tmp_path / "own" / "2.JPG")
        data = load_data(f"imagefolder:{tmp_path / 'own'}")
        assert (data.test.images.shape, data.classes) == ((2, 3, 224, 224), ("unknown",))

    def test_path_below_working_folder(self, tmp_path, monkeypatch):
        save(tmp_path / "own" / "1.png")
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path / "data"))
        monkeypatch.chdir(tmp_path)
        assert load_data("imagefolder:own").shape == (3, 224, 224)
