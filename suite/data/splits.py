"""What readers of data sets return, and what they raise."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) in uint8, labels (N,) and what else is known of the images.

    Masks (N, H, W) are True on the object. Groups (N,) are integers from 0 up: of what kind the
    background of an image is, for example. `sha256` is that of the pixels, where a file that is
    mapped into memory brings it along.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None = None
    groups: Tensor | None = None
    sha256: str | None = None

    def part(self, rows: Tensor) -> "Split":
        """Return the images of these rows, (n,), with what is known of them."""
        masks, groups = (None if t is None else t[rows] for t in (self.masks, self.groups))
        return Split(self.images[rows], self.labels[rows], masks, groups)


Read = tuple[Split, Split, Sequence[str]]  # training, test, names of the classes


class Missing(Exception):
    """A data set is not where it should be: the path, and why."""


class Damaged(Exception):
    """What is at a path cannot be read: the path, and the error."""


def test_only(test: Split, classes: Sequence[str]) -> Read:
    """Return a data set that has no images to train on."""
    return Split(test.images[:0], test.labels[:0]), test, classes


def interleave_classes(labels: Tensor) -> Tensor:
    """Return an order, (N,), of images in which the classes take turns."""
    rank = pd.Series(labels.numpy()).groupby(labels.numpy()).cumcount()
    return torch.tensor(rank.to_numpy()).argsort(stable=True)
