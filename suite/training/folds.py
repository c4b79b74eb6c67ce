"""Stratified cross-validation: the images that a unit trains on, and those that it is tested on."""

import dataclasses
import functools

import torch

from suite.data import ImageData, load_data
from suite.errors import UsageError, expected
from suite.units import Network, Training

SHUFFLE = 0  # the seed of the folds, which are the same for all trainings


def data_of(unit: Network) -> ImageData:
    """Return the images of a unit: its data set or, of a training on folds, its part of that.

    Raises:
        DataMissing, UsageError: see `suite.data.load_data` and `fold_of`.
    """
    data = load_data(unit.data)
    if not isinstance(unit, Training) or unit.folds is None:
        return data
    try:
        return fold_of(data, unit.folds, unit.fold)
    except UsageError as error:
        raise UsageError(f"data set {unit.data!r}: {error}") from error


@functools.lru_cache(maxsize=2)
def fold_of(data: ImageData, folds: int, fold: int) -> ImageData:
    """Split the training images into folds of equal shares of each class, and hold one out.

    Args:
        data: a data set; its test images are not used.
        folds: how many.
        fold: the one to be held out, from 0.

    Returns:
        The data set with the images of all other folds to train and those of `fold` to test, each
        in the order that they have in the training split.

    Raises:
        UsageError: fewer images of a class than folds.
    """
    from sklearn.model_selection import StratifiedKFold

    labels = data.train.labels
    counts = labels.bincount(minlength=len(data.classes))
    if (fewest := int(counts.min())) < folds:
        smallest = data.classes[int(counts.argmin())]
        most = f"at most {fewest}, the number of training images of class {smallest!r}"
        raise expected("folds", most, folds)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=SHUFFLE)
    rows = list(splitter.split(labels, labels))[fold]
    train, test = (data.train.part(torch.from_numpy(part)) for part in rows)
    return dataclasses.replace(data, train=train, test=test)
