"""Images that are decoded once, into a file that is mapped into memory."""

import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from suite import data
from suite.data import Source, image_cache, load_data
from suite.data.image_cache import decode_once
from suite.errors import UsageError

N, SHAPE = 40, (40, 3, 4, 5)


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    paths = [tmp_path / "set" / f"{index}.raw" for index in range(N)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(random.bytes(60))
    return paths


@pytest.fixture
def decode(tmp_path, files):
    def call(root=tmp_path, files=files, shape=SHAPE, how="a", read=None, pause=0.0):
        def count(row):
            time.sleep(pause)
            call.counted.append(row)
            return np.frombuffer(files[row].read_bytes(), np.uint8).reshape(3, 4, 5)

        return decode_once(root, files, shape, how=how, read=read or count)

    call.counted = []
    return call


class TestDecodeOnce:
    def test_reads_once(self, tmp_path, files, decode, monkeypatch):
        monkeypatch.setattr(image_cache, "AT_A_TIME", 16)  # which does not divide their number
        bytes_of_all = b"".join(path.read_bytes() for path in files)
        for _ in range(2):
            values, sha256 = decode()
            assert values.shape == SHAPE
            assert values.numpy().tobytes() == bytes_of_all
            assert sha256 == hashlib.sha256(bytes_of_all).hexdigest()
        assert sorted(decode.counted) == list(range(N))
        names = {path.suffix for path in (tmp_path / "decoded").iterdir()}
        assert names == {".uint8", ""}, "the file and the lock, nothing partial"

    @pytest.mark.parametrize("change", ["contents", "time", "name", "order", "how", "fewer"])
    def test_other_files_make_another_file(self, files, decode, change):
        _, first = decode()
        decode.counted.clear()
        shape, how = SHAPE, "a"
        if change == "contents":
            files[7].write_bytes(bytes(60))
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
        _, again = decode(files=files, shape=shape, how=how)
        assert len(decode.counted) == len(files)
        assert (again == first) == (change in ("time", "name", "how"))

    def test_set_may_be_moved(self, tmp_path, files, decode):
        _, first = decode(tmp_path / "set")
        decode.counted.clear()
        moved = (tmp_path / "set").rename(tmp_path / "elsewhere")
        assert decode(moved, [moved / path.name for path in files])[1] == first
        assert decode.counted == []

    def test_file_larger_than_memory(self, tmp_path, files, decode):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        shape = (2 * memory // (3 * 224 * 224), 3, 224, 224)
        key = image_cache._key(tmp_path, files, shape, "a")
        (tmp_path / "decoded").mkdir()
        with (tmp_path / "decoded" / f"{key}-abc.uint8").open("wb") as file:
            file.truncate(int(np.prod(shape)))  # holes take no room on the disk
        values, sha256 = decode(shape=shape)
        assert sha256 == "abc"
        assert int(values[torch.tensor([0, shape[0] - 1])].max()) == 0

    def test_failure_leaves_nothing_behind(self, tmp_path, decode):
        def read(row):
            if row == 30:
                raise UsageError("30: not a readable image")
            return np.zeros((3, 4, 5), dtype=np.uint8)

        with pytest.raises(UsageError, match="30: not a readable image"):
            decode(read=read)
        assert [path.name for path in (tmp_path / "decoded").iterdir()] == ["lock"]

    def test_missing_file_is_named(self, files, decode):
        files[-1].unlink()
        with pytest.raises(UsageError, match=f"{files[-1]}: not a readable image .*No such file"):
            decode()
        assert decode.counted == []

    def test_full_disk_is_reported(self, tmp_path, decode, monkeypatch):
        usage = shutil.disk_usage(tmp_path)._replace(free=2399)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
        expected = r"expected 0.0 GB of room for 40 decoded a, got 0.0 GB"
        with pytest.raises(UsageError, match=expected):
            decode()
        assert decode.counted == []

    def test_read_only_folder(self, tmp_path, decode):
        (tmp_path / "decoded").write_text("in the way")
        expected = r"decoded: decoded images cannot be written there \(File"
        with pytest.raises(UsageError, match=expected):
            decode()

    @pytest.mark.parametrize("size", [0, 50, 200, 2000])
    def test_damaged_file_is_named(self, tmp_path, decode, size):
        decode()
        [path] = (tmp_path / "decoded").glob("*.uint8")
        os.truncate(path, size)
        with pytest.raises(UsageError, match=f"{path}: decoded images are damaged .*remove the"):
            decode()

    def test_second_process_waits(self, decode):
        """Each call locks a file that it opens itself, so threads wait here as processes do."""
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(decode, pause=0.01) for _ in range(2)]
            first, second = (call.result() for call in calls)
        assert torch.equal(first[0], second[0])
        assert len(decode.counted) == N


def test_fingerprint_comes_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    random, paths = np.random.default_rng(0), [tmp_path / f"{index}.png" for index in range(12)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(path)

    def read(root):
        split = image_cache.read_photographs(root, paths, [index % 3 for index in range(12)])
        return split, split, "abc"

    def fingerprint():
        data.loading._load.cache_clear()
        return load_data("mapped").fingerprint

    monkeypatch.setitem(data.SOURCES, "mapped", Source(read, ""))
    first = fingerprint()
    assert fingerprint() == first
    Image.new("RGB", (224, 224)).save(tmp_path / "3.png")
    assert fingerprint() != first
