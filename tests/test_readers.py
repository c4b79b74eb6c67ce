import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from suite import data
from suite.data import SOURCES, image_shape, load_data, readers, source, to_float
from suite.errors import DataMissing, UsageError

IDX = ("MNIST", "KMNIST", "FashionMNIST")
IN_PACKAGES = """mnist5k digits-centred digits-anywhere digit_canvas digit_canvas_swapped
foolbox-imagenet photograph-tiles""".split()
MADE_OF_OTHERS = """article_canvas article_canvas_swapped blockmnist5k blockmnist texturedmnist5k
texturedmnist texturedmnist-1pct texturedfashion""".split()


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    data.loading._load.cache_clear()
    monkeypatch.setattr(readers, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path / "data"))


def digits(count, seed):
    images = np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, np.arange(count, dtype=np.uint8) % 10


def write_idx(folder, *, compressed=False):
    """Write the four files of MNIST: a magic number, sizes in big-endian order, then bytes."""
    folder.mkdir(parents=True)
    written = {}
    for prefix, count in (("train", 30), ("t10k", 10)):
        images, labels = digits(count, seed=count)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
            contents = header + array.tobytes()
            name = f"{prefix}-{kind}-ubyte"
            file = folder / (f"{name}.gz" if compressed else name)
            file.write_bytes(gzip.compress(contents) if compressed else contents)
            written[name] = array
    return written


def check_idx(loaded, written):
    assert (loaded.shape, len(loaded.classes)) == ((1, 28, 28), 10)
    for split, prefix in ((loaded.train, "train"), (loaded.test, "t10k")):
        assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(split.images[:, 0].numpy(), written[f"{prefix}-images-idx3-ubyte"])
        assert np.array_equal(split.labels.numpy(), written[f"{prefix}-labels-idx1-ubyte"])


def write_images(folder, *, size=(6, 6), ending="png", test="test", classes=("cat", "dog")):
    """Write two images of each class into train, one into test; return pixels (H, W, 3)."""
    random, written = np.random.default_rng(0), {"train": [], "test": []}
    for part, count in (("train", 2), (test, 1)):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{index}.{ending}")
                written["train" if part == "train" else "test"].append(pixels)
    return written


def test_to_float():
    levels = torch.arange(256, dtype=torch.uint8)
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (-0.5, 2.0)):
        expected = torch.linspace(low, high, 256, dtype=torch.float64)
        mapped = to_float(levels, (low, high)).double()
        torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-6)
    assert to_float(levels, (0, 1)).dtype == torch.float32


class TestMnist5k:
    def test_shapes_classes_and_fingerprint(self):
        loaded = load_data("mnist5k")
        assert loaded.classes == tuple("0123456789")
        for split, count in ((loaded.train, 4000), (loaded.test, 1000)):
            assert split.images.shape == (count, 1, 28, 28)
            assert split.labels.tolist() == [*range(10)] * (count // 10)
        of_stored_results = "2131f07f8d193abe9603a340e242b3e43235c5999bee38f189d7e214c73f8935"
        assert loaded.fingerprint == of_stored_results


class TestFilesOfTorchvision:
    @pytest.mark.parametrize("name", IDX)
    def test_idx_files_of_torchvision(self, name, tmp_path):
        written = write_idx(tmp_path / "data" / name / "raw")
        check_idx(load_data("fashion_mnist" if name == "FashionMNIST" else name.lower()), written)

    def test_house_numbers_of_torchvision(self, tmp_path, monkeypatch):
        """The files have images (32, 32, 3, N) and labels from 1 to 10, where 10 is the digit 0."""
        folder, known = tmp_path / "data" / "SVHN", {}
        folder.mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
        for part in ("train", "test"):
            name = f"{part}_32x32.mat"
            labels = np.array([[1], [2], [10], [9], [3]], dtype=np.uint8)
            savemat(folder / name, {"X": pixels, "y": labels})
            known[part] = ["", name, hashlib.md5((folder / name).read_bytes()).hexdigest()]
        with pytest.raises(DataMissing, match=r"data set 'svhn' is not at .*SVHN\("):
            load_data("svhn")
        monkeypatch.setattr(datasets.SVHN, "split_list", known)
        loaded = load_data("svhn")
        assert loaded.shape == (3, 32, 32) == image_shape("svhn")
        assert loaded.test.labels.tolist() == [1, 2, 0, 9, 3]
        assert loaded.classes == tuple("0123456789")
        assert np.array_equal(loaded.train.images[4].permute(1, 2, 0).numpy(), pixels[..., 4])

    @pytest.mark.parametrize(
        "contents", [b"", b"<html>not found</html>", struct.pack(">4I", 0x803, 10, 28, 28) + b"12"]
    )
    def test_damaged_idx_files_are_reported(self, contents, tmp_path):
        folder = tmp_path / "data" / "MNIST" / "raw"
        write_idx(folder)
        (folder / "t10k-images-idx3-ubyte").write_bytes(contents)
        expected = f"{folder.parent} cannot be read .*Remove them and get"
        with pytest.raises(UsageError, match=expected):
            load_data("mnist")

    def test_labels_outside_the_classes(self, tmp_path):
        write_idx(tmp_path / "data" / "MNIST" / "raw")
        path = tmp_path / "data" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
        path.write_bytes(path.read_bytes()[:-1] + b"\x0a")
        with pytest.raises(UsageError, match=r"expected test labels in 0\.\.9, got 0\.\.10"):
            load_data("mnist")


class TestCifar10:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "data" / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        random = np.random.default_rng(0)

        def write(name, contents):
            packed = pickle.dumps(contents, protocol=2)
            (folder / name).write_bytes(packed)
            return hashlib.md5(packed).hexdigest()

        names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
        lists = []
        for index, name in enumerate(names):
            pixels = random.integers(0, 256, (4, 3072), dtype=np.uint8)
            labels = [(4 * index + number) % 10 for number in range(4)]
            lists.append([name, write(name, {"data": pixels, "labels": labels})])
        md5 = write("batches.meta", {"label_names": [f"class {number}" for number in range(10)]})
        meta = {"filename": "batches.meta", "key": "label_names", "md5": md5}
        for name, value in {"train_list": lists[:5], "test_list": lists[5:], "meta": meta}.items():
            monkeypatch.setattr(datasets.CIFAR10, name, value)
        return folder

    def test_batches(self, folder):
        loaded = load_data("cifar10")
        assert loaded.train.images.shape == (20, 3, 32, 32)
        assert loaded.test.images.shape == (4, 3, 32, 32)
        assert loaded.train.labels.tolist() == [number % 10 for number in range(20)]
        assert loaded.classes[9] == "class 9"
        batch = pickle.loads((folder / "data_batch_2").read_bytes())
        # A row has the red plane, then green, then blue.
        assert np.array_equal(loaded.train.images[4].numpy().ravel(), batch["data"][0])

    def test_altered_batch_is_never_unpickled(self, folder, tmp_path, monkeypatch):
        class Evil:
            def __reduce__(self):
                return Path.touch, (tmp_path / "unpickled",)  # type: ignore[return-value]

        evil = pickle.dumps(Evil(), protocol=2)
        for name in ("data_batch_3", "test_batch", "batches.meta"):
            sound = (folder / name).read_bytes()
            (folder / name).write_bytes(evil)
            with pytest.raises(UsageError, match=r"not found or corrupted.*download=True"):
                load_data("cifar10")
            (folder / name).write_bytes(sound)
        assert not (tmp_path / "unpickled").exists()
        pickle.loads(evil)
        assert (tmp_path / "unpickled").exists()


class TestImageFolder:
    @pytest.mark.parametrize("test", ["test", "val"])
    def test_png(self, test, tmp_path):
        written, loaded = write_images(tmp_path, test=test), load_data(f"imagefolder:{tmp_path}")
        assert loaded.classes == ("cat", "dog")
        assert loaded.train.labels.tolist() == [0, 1, 0, 1]  # class by class in turn
        assert loaded.test.labels.tolist() == [0, 1]
        written["train"] = [written["train"][index] for index in (0, 2, 1, 3)]
        for split, name in ((loaded.train, "train"), (loaded.test, "test")):
            assert np.array_equal(split.images.permute(0, 2, 3, 1).numpy(), np.stack(written[name]))

    def test_cifar10_jpeg(self, tmp_path):
        folder = tmp_path / "data" / "cifar10-jpeg"
        write_images(folder, size=(32, 32), ending="jpg")
        loaded = load_data("cifar10-jpeg")
        assert loaded.shape == (3, 32, 32) == image_shape("cifar10-jpeg")
        with Image.open(folder / "train" / "dog" / "1.jpg") as image:
            pixels = np.asarray(image)
        assert np.array_equal(loaded.train.images[3].permute(1, 2, 0).numpy(), pixels)

    def test_grey_images_get_three_channels(self, tmp_path):
        write_images(tmp_path)
        grey = np.arange(36, dtype=np.uint8).reshape(6, 6)
        Image.fromarray(grey).save(tmp_path / "train" / "cat" / "0.png")
        image = load_data(f"imagefolder:{tmp_path}").train.images[0]
        assert all(np.array_equal(channel.numpy(), grey) for channel in image)

    def test_fingerprint(self, tmp_path):
        def fingerprint():
            data.loading._load.cache_clear()
            return load_data(f"imagefolder:{tmp_path}").fingerprint

        pixels, path = write_images(tmp_path)["train"][0], tmp_path / "train" / "cat" / "0.png"
        prints = [fingerprint(), fingerprint()]
        pixels[0, 0, 0] ^= 1
        Image.fromarray(pixels).save(path)
        prints.append(fingerprint())
        path.rename(tmp_path / "train" / "dog" / "9.png")
        assert (prints[0] == prints[1], len({*prints, fingerprint()})) == (True, 3)

    def test_damaged_image_is_named(self, tmp_path):
        write_images(tmp_path, size=(64, 64))
        path = tmp_path / "train" / "dog" / "1.png"
        sound, n_errors = path.read_bytes(), 0
        for position in range(len(sound) - 4, 0, -97):
            flipped = bytes([sound[position] ^ 0xFF])
            path.write_bytes(sound[:position] + flipped + sound[position + 1 :])
            data.loading._load.cache_clear()
            try:
                load_data(f"imagefolder:{tmp_path}")
            except UsageError as error:
                assert str(error).startswith(f"{path}: not a readable image")  # noqa: PT017
                n_errors += 1
        assert n_errors > 50

    @pytest.mark.parametrize(
        ("pixels", "message"),
        [
            (np.full((6, 6), 1000, dtype=np.uint16), "expected 8 bits a channel, got mode I"),
            (np.zeros((6, 7, 3), dtype=np.uint8), r"expected 6 x 6 pixels .* got 6 x 7"),
        ],
        ids=["sixteen bits", "another size"],
    )
    def test_image_of_another_size(self, pixels, message, tmp_path):
        write_images(tmp_path)
        path = tmp_path / "test" / "dog" / "0.png"
        Image.fromarray(pixels).save(path)
        with pytest.raises(UsageError, match=f"^{path}: {message}"):
            load_data(f"imagefolder:{tmp_path}")

    def test_other_classes_in_test(self, tmp_path):
        write_images(tmp_path)
        (tmp_path / "test" / "dog").rename(tmp_path / "test" / "wolf")
        with pytest.raises(UsageError, match=r"same classes in train and test, got \['dog', 'wolf"):
            load_data(f"imagefolder:{tmp_path}")

    def test_empty_class_is_named(self, tmp_path):
        write_images(tmp_path)
        for empty in ("train/emu", "test/emu", "train/fox"):
            (tmp_path / empty).mkdir()
        (tmp_path / "train" / "emu" / "0.gif").write_bytes(b"GIF89a")
        with pytest.raises(UsageError, match=r"train: expected images .* got none in emu, fox;"):
            load_data(f"imagefolder:{tmp_path}")

    def test_missing_images_and_classes(self, tmp_path):
        write_images(tmp_path)
        (tmp_path / "test").rename(tmp_path / "elsewhere")
        how = f"put images into {tmp_path}/train/CLASS/ and {tmp_path}/test/CLASS/"
        reason = r"\(there is no such folder; there are elsewhere, train\)"
        with pytest.raises(DataMissing, match=f"is not at {tmp_path / 'test'} {reason}.*{how}"):
            load_data(f"imagefolder:{tmp_path}")
        (tmp_path / "empty" / "train").mkdir(parents=True)
        (tmp_path / "empty" / "test").mkdir()
        with pytest.raises(DataMissing, match="no folders of classes"):
            load_data(f"imagefolder:{tmp_path / 'empty'}")


class TestImagenette:
    def test_centre_crop(self, tmp_path):
        folder, classes = tmp_path / "data" / "imagenette2-320", ("n01440764", "n02102040")
        write_images(folder, size=(340, 320), ending="jpeg", test="val", classes=classes)
        loaded = load_data("imagenette320")
        assert loaded.train.images.shape == (4, 3, 320, 320)
        assert loaded.test.labels.tolist() == [0, 1]
        assert loaded.classes == ("tench", "English springer")
        with Image.open(folder / "val" / "n02102040" / "0.jpeg") as image:
            pixels = np.asarray(image)[:, 10:330]
        assert np.array_equal(loaded.test.images[1].permute(1, 2, 0).numpy(), pixels)


NINE = "expected a label for each test image, got 10 images and 9 labels"


class TestFashionMnistOfDebian:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(readers, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
        return tmp_path / "debian"

    def test_equals_torchvision(self, folder, tmp_path, monkeypatch):
        written, loaded = write_idx(folder, compressed=True), load_data("fashion_mnist")
        check_idx(loaded, written)
        assert loaded.classes[0] == "T-shirt/top"
        # The same files in torchvision's folder are the same data set, and are read first.
        write_idx(tmp_path / "data" / "FashionMNIST" / "raw")
        data.loading._load.cache_clear()
        monkeypatch.setattr(readers, "_read_idx", None)
        assert load_data("fashion_mnist").fingerprint == loaded.fingerprint

    @pytest.mark.parametrize(
        ("kind", "damage", "message"),
        [
            ("images-idx3", lambda packed: packed[:-100], None),
            ("images-idx3", lambda packed: b"<html>", None),
            ("images-idx3", None, None),
            ("labels-idx1", lambda packed: gzip.compress(gzip.decompress(packed)[:-1]), NINE),
        ],
        ids=["cut", "not gzip", "missing", "labels"],
    )
    def test_damage_is_reported(self, kind, damage, message, folder):
        write_idx(folder, compressed=True)
        file = folder / f"t10k-{kind}-ubyte.gz"
        file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
        unread = f"the files at {folder} cannot be read .*apt install dataset-fashion-mnist"
        with pytest.raises(UsageError, match=message or unread):
            load_data("fashion_mnist")

    def test_empty_split_is_refused(self, folder):
        write_idx(folder, compressed=True)
        for kind, sizes in (("images-idx3", (0, 28, 28)), ("labels-idx1", (0,))):
            header = struct.pack(f">{1 + len(sizes)}I", 0x800 + len(sizes), *sizes)
            (folder / f"t10k-{kind}-ubyte.gz").write_bytes(gzip.compress(header))
        with pytest.raises(UsageError, match="expected images in its test split, found none"):
            load_data("fashion_mnist")


class TestSource:
    @pytest.mark.parametrize("name", sorted(SOURCES.keys() - {*IN_PACKAGES, *MADE_OF_OTHERS}))
    def test_missing_data(self, name, tmp_path):
        with pytest.raises(DataMissing) as caught:
            load_data(name)
        message = str(caught.value)
        assert message.startswith(f"data set {name!r} is not at {tmp_path / 'data'}")
        assert "To get it: " in message
        assert "DATA" not in message
        assert str(tmp_path / "data") in message.split("To get it: ")[1]

    @pytest.mark.parametrize("name", "mnist fashion_mnist kmnist cifar10 imagenette320".split())
    def test_command_is_python(self, name):
        how = source(name).how_to_get
        program = how[how.index('python -c "') + len('python -c "') : -1]
        compile(program, "command", "exec")
        assert hasattr(datasets, program.split("import ")[1].split(";")[0])

    @pytest.mark.parametrize(
        ("name", "near"),
        [("minst5k", "mnist5k"), ("cifar-10", "cifar10"), ("imagefolder", "imagefolder:PATH")],
    )
    def test_unknown_names_the_nearest(self, name, near):
        expected = f"^unknown data set '{name}': did you mean '{near}'"
        for function in (source, load_data, image_shape):
            with pytest.raises(UsageError, match=expected):
                function(name)

    @pytest.mark.parametrize("name", SOURCES)
    def test_says_what_it_is(self, name):
        assert SOURCES[name].about
        assert SOURCES[name].licence
        assert SOURCES[name].shape == image_shape(name)
