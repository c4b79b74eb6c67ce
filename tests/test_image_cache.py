"""Images that are decoded once, into a file that is mapped into memory."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from suite import data
from suite.data import Source, image_cache, load_data
from suite.data.image_cache import decode_once
from suite.errors import UsageError
from suite.training.loop import train
from suite.units import Training

N, SHAPE = 40, (40, 3, 4, 5)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Write files of 60 bytes each."""
    random = np.random.default_rng(0)
    paths = [tmp_path / "set" / f"{index}.raw" for index in range(N)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(random.bytes(60))
    return paths


def reader(files: list[Path], counted: list[int] | None = None) -> Callable[[int], np.ndarray]:
    def read(row: int) -> np.ndarray:
        if counted is not None:
            counted.append(row)
        return np.frombuffer(files[row].read_bytes(), np.uint8).reshape(3, 4, 5)

    return read


def test_values_are_those_of_the_files_and_are_read_once(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "AT_A_TIME", 16)  # which does not divide their number
    counted: list[int] = []
    bytes_of_all = b"".join(path.read_bytes() for path in files)
    for _ in range(2):
        decoded = decode_once(tmp_path, files, SHAPE, how="a", read=reader(files, counted))
        assert decoded.values.shape == SHAPE
        assert decoded.values.numpy().tobytes() == bytes_of_all
        assert decoded.sha256 == hashlib.sha256(bytes_of_all).hexdigest()
    assert sorted(counted) == list(range(N))
    names = {path.suffix for path in (tmp_path / "decoded").iterdir()}
    assert names == {".npy", ""}, "the file and the lock, nothing partial"


@pytest.mark.parametrize("change", ["size", "time", "name", "order", "how", "fewer"])
def test_other_files_make_another_file(tmp_path: Path, files: list[Path], change: str) -> None:
    first = decode_once(tmp_path, files, SHAPE, how="a", read=reader(files))
    shape, how = SHAPE, "a"
    if change == "size":
        files[7].write_bytes(bytes(61))
        files[7].write_bytes(bytes(60))
        os.truncate(files[8], 60)
    elif change == "time":
        os.utime(files[7], (1, 1))
    elif change == "name":
        files[7] = files[7].rename(files[7].with_name("renamed.raw"))
    elif change == "order":
        files = files[::-1]
    elif change == "how":
        how = "b"
    else:
        files, shape = files[1:], (N - 1, *SHAPE[1:])
    counted: list[int] = []
    again = decode_once(tmp_path, files, shape, how=how, read=reader(files, counted))
    assert len(counted) == len(files)
    assert (again.sha256 == first.sha256) == (change in ("time", "name", "how"))


def test_a_set_may_be_moved(tmp_path: Path, files: list[Path]) -> None:
    first = decode_once(tmp_path / "set", files, SHAPE, how="a", read=reader(files))
    moved = tmp_path / "elsewhere"
    (tmp_path / "set").rename(moved)
    files = [moved / path.name for path in files]
    counted: list[int] = []
    again = decode_once(moved, files, SHAPE, how="a", read=reader(files, counted))
    assert again.sha256 == first.sha256
    assert counted == []


def test_a_file_may_be_larger_than_memory(tmp_path: Path, files: list[Path]) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shape = (2 * memory // (3 * 224 * 224), 3, 224, 224)
    key = image_cache._key(tmp_path, files, shape, "a")
    (tmp_path / "decoded").mkdir()
    with (tmp_path / "decoded" / f"{key}-abc.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)))  # holes take no room on the disk
    decoded = decode_once(tmp_path, files, shape, how="a", read=reader(files))
    assert decoded.sha256 == "abc"
    assert int(decoded.values[torch.tensor([0, shape[0] - 1])].max()) == 0


def test_a_file_that_cannot_be_read_leaves_nothing_behind(
    tmp_path: Path, files: list[Path]
) -> None:
    def read(row: int) -> np.ndarray:
        if row == 30:
            raise UsageError("30: not a readable image")
        return np.zeros((3, 4, 5), dtype=np.uint8)

    with pytest.raises(UsageError, match="30: not a readable image"):
        decode_once(tmp_path, files, SHAPE, how="a", read=read)
    assert [path.name for path in (tmp_path / "decoded").iterdir()] == ["lock"]


def test_a_missing_file_is_named_before_any_is_read(tmp_path: Path, files: list[Path]) -> None:
    files[-1].unlink()
    counted: list[int] = []
    with pytest.raises(UsageError, match=f"{files[-1]}: not a readable image .*No such file"):
        decode_once(tmp_path, files, SHAPE, how="a", read=reader(files, counted))
    assert counted == []


def test_too_little_room_is_told_before_any_is_read(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2399)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    counted: list[int] = []
    with pytest.raises(UsageError, match=r"expected 0.0 GB of room for 40 decoded a, got 0.0 GB"):
        decode_once(tmp_path, files, SHAPE, how="a", read=reader(files, counted))
    assert counted == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "decoded").write_text("in the way")
    with pytest.raises(UsageError, match=r"decoded: decoded images cannot be written there \(File"):
        decode_once(tmp_path, files, SHAPE, how="a", read=reader(files))


@pytest.mark.parametrize("size", [0, 50, 200, 2000])
def test_a_damaged_file_is_named(tmp_path: Path, files: list[Path], size: int) -> None:
    decode_once(tmp_path, files, SHAPE, how="a", read=reader(files))
    [path] = (tmp_path / "decoded").glob("*.npy")
    os.truncate(path, size)
    with pytest.raises(UsageError, match=f"{path}: what was decoded is damaged .*remove it"):
        decode_once(tmp_path, files, SHAPE, how="a", read=reader(files))


def test_who_comes_second_waits_for_the_first(tmp_path: Path, files: list[Path]) -> None:
    """Each call locks a file that it opens itself, so threads wait here as processes do."""
    counted: list[int] = []
    read = reader(files, counted)

    def slowly(row: int) -> np.ndarray:
        time.sleep(0.01)
        return read(row)

    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(decode_once, tmp_path, files, SHAPE, how="a", read=slowly) for _ in range(2)
        ]
        first, second = (call.result() for call in calls)
    assert torch.equal(first.values, second.values)
    assert len(counted) == N


@pytest.fixture
def mapped_and_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the same small photographs as a map and in memory."""
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    data.loading._load.cache_clear()
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{index}.png" for index in range(12)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(path)
    labels = [index % 3 for index in range(12)]

    def read(root: Path) -> tuple[data.Split, data.Split, str]:
        split = image_cache.read_photographs(root, paths, labels)
        return split, split, "abc"

    def copied(root: Path) -> tuple[data.Split, data.Split, str]:
        split = read(root)[0]
        return (data.Split(split.images.clone(), split.labels),) * 2 + ("abc",)

    monkeypatch.setitem(data.SOURCES, "mapped", Source(read, "", "", ""))
    monkeypatch.setitem(data.SOURCES, "plain", Source(copied, "", "", ""))


@pytest.mark.usefixtures("mapped_and_plain")
def test_a_fingerprint_comes_with_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = load_data("mapped")
    data.loading._load.cache_clear()
    assert load_data("mapped").fingerprint == first.fingerprint
    path = tmp_path / "3.png"
    Image.new("RGB", (224, 224)).save(path)
    data.loading._load.cache_clear()
    assert load_data("mapped").fingerprint != first.fingerprint


@pytest.mark.usefixtures("mapped_and_plain")
def test_a_network_trains_alike_on_a_map_and_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {}
    for name in ("mapped", "plain"):
        unit = Training(
            data=name,
            network="convnet",
            network_options={"width": 2},
            epochs=2,
            batch_size=4,
            learning_rate=0.01,
            seed=0,
            n_train=10,
        )
        losses[name] = train(unit, load_data(name), device=torch.device("cpu")).losses
    assert losses["mapped"] == losses["plain"]
