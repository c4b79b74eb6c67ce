"""Splits of data sets, and the exceptions of their readers."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) in uint8 with labels (N,), and masks or groups if they are known.

    Masks (N, H, W) are True on the object. Groups (N,) are integers from 0, for example the type
    of background. `sha256` is the checksum of the pixels, known if they come from a mapped file.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None = None
    groups: Tensor | None = None
    sha256: str | None = None

    def part(self, rows: Tensor) -> "Split":
        """Return the images at these rows, (n,), with their labels, masks and groups."""
        masks, groups = (None if t is None else t[rows] for t in (self.masks, self.groups))
        return Split(self.images[rows], self.labels[rows], masks, groups)


Read = tuple[Split, Split, Sequence[str]]  # training, test, names of the classes


class Missing(Exception):
    """A data set is missing: the expected path, and the reason."""


class Damaged(Exception):
    """A data set cannot be read: its path, and the error."""


def test_only(test: Split, classes: Sequence[str]) -> Read:
    """Return a data set without training images."""
    return Split(test.images[:0], test.labels[:0]), test, classes


def interleave_classes(labels: Tensor) -> Tensor:
    """Return an order, (N,), of images that cycles through the classes."""
    rank = pd.Series(labels.numpy()).groupby(labels.numpy()).cumcount()
    return torch.tensor(rank.to_numpy()).argsort(stable=True)
