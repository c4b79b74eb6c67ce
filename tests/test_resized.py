"""Images of other data sets in the shape that a network was trained on."""

import pytest
import torch

from suite import data
from suite.data import Source, Split, image_shape, load_data, source
from suite.data.resized import cut_tiles, resize
from suite.errors import DataMissing, UsageError
from suite.evidence.names import name_of


def make_split(channels, height, width, count=6):
    generator = torch.Generator().manual_seed(count)
    shape = (count, channels, height, width)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(count) % 3, groups=torch.arange(count) % 2)


@pytest.fixture(autouse=True)
def _tiny_sets(monkeypatch, tmp_path):
    grey, tested = make_split(1, 8, 8), make_split(1, 8, 8, 4)
    empty = make_split(3, 12, 12, count=0)
    entries = {
        "grey": Source(lambda root: (grey, tested, "abc"), "get it"),
        "shown": Source(lambda root: (empty, make_split(3, 12, 12), "abc"), "", to_train=False),
        "oblong": Source(lambda root: (make_split(1, 8, 4),) * 2 + ("abc",), ""),
    }
    for name, entry in entries.items():
        monkeypatch.setitem(data.SOURCES, name, entry)
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    data.loading._load.cache_clear()


class TestTiles:
    def test_are_pieces_by_position(self):
        split = make_split(3, 13, 9)
        result = cut_tiles(split, size=4)
        assert result.images.shape == (6 * 3 * 2, 3, 4, 4)
        for position in range(6):
            row, column = 4 * (position // 2), 4 * (position % 2)
            part = slice(6 * position, 6 * position + 6)
            piece = split.images[:, :, row : row + 4, column : column + 4]
            assert torch.equal(result.images[part], piece)
            assert torch.equal(result.labels[part], split.labels)

    def test_refuses_smaller_images(self):
        expected = r"tiles: expected images of at least 14 x 14, got \[13"
        with pytest.raises(UsageError, match=expected):
            cut_tiles(make_split(3, 13, 20), size=14)

    def test_photographs(self):
        result = load_data("photograph-tiles")
        assert result.shape == image_shape("photograph-tiles") == (3, 28, 28)
        assert len(result.test.images) == 20 * 64
        photographs = load_data("foolbox-imagenet").test.images
        assert torch.equal(result.test.images[:20], photographs[:, :, :28, :28])


class TestResized:
    def test_grey_gets_three_colours(self):
        original, result = load_data("grey"), load_data("resized:grey:8")
        assert result.shape == (3, 8, 8) == image_shape("resized:grey:8")
        for before, after in ((original.train, result.train), (original.test, result.test)):
            assert torch.equal(after.images, before.images.expand(-1, 3, -1, -1))
            assert torch.equal(after.labels, before.labels)
            assert torch.equal(after.groups, before.groups)
        assert result.classes == original.classes
        assert result.fingerprint != original.fingerprint

    def test_antialiasing_keeps_the_mean(self):
        row, column = torch.arange(8)[:, None], torch.arange(8)
        board = (200 * ((row + column) % 2)).to(torch.uint8)
        grey = torch.full((8, 8), 7, dtype=torch.uint8)
        split = Split(torch.stack([board, grey])[:, None], torch.zeros(2).long())
        result = resize(split, size=4).images
        assert result.shape == (2, 3, 4, 4)
        assert (result[0, :, 1:3, 1:3].float() - 100).abs().max() <= 2
        assert (result[1] == 7).all()

    def test_without_training_images(self):
        result = load_data("resized:shown:12")
        assert not source("resized:shown:12").to_train
        assert len(result.train.images) == 0
        assert torch.equal(result.test.images, load_data("shown").test.images)

    @pytest.mark.parametrize("name", ["grey", "grey:", ":8", "grey:0", "grey:-8", "grey:8x8"])
    def test_no_size_is_refused(self, name):
        expected = f"'resized:{name}': expected resized:NAME:SIZE, such as"
        with pytest.raises(UsageError, match=expected):
            load_data(f"resized:{name}")

    def test_unknown_missing_and_oblong(self):
        with pytest.raises(UsageError, match="unknown data set 'gray': did you mean 'grey'"):
            load_data("resized:gray:8")
        with pytest.raises(DataMissing, match=r"data set 'cifar10-jpeg' is not at .*To get it"):
            load_data("resized:cifar10-jpeg:8")
        with pytest.raises(UsageError, match="resized: expected square images, got 8 x 4"):
            load_data("resized:oblong:8")

    def test_title(self):
        assert name_of("resized:fashion_mnist:32") == "Fashion-MNIST (32 px)"
        assert name_of("resized:imagefolder:/a:b:32") == "a:b (32 px)"
        assert name_of("mnist") == "MNIST"
