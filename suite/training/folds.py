"""Stratified cross-validation: the training and test images of a unit."""

import dataclasses
import functools

import torch

from suite.data import ImageData, load_data
from suite.errors import expected
from suite.units import Network, Training


def data_of(unit: Network) -> ImageData:
    """Return the images of a unit: its data set or, for a training on folds, its part of the set.

    Raises:
        DataMissing, UsageError: see `suite.data.load_data` and `hold_out`.
    """
    data = load_data(unit.data)
    if not isinstance(unit, Training) or unit.folds is None:
        return data
    return hold_out(unit.data, data, unit.folds, unit.fold)


@functools.lru_cache(maxsize=2)
def hold_out(name: str, data: ImageData, folds: int, fold: int) -> ImageData:
    """Split the training images into folds with equal shares of each class, and hold one out.

    Args:
        name, data: a data set; its test images are not used.
        folds: number of folds.
        fold: the fold to hold out, from 0.

    Returns:
        The data set with the images of `fold` for testing and all others for training, each in the
        order of the training split.

    Raises:
        UsageError: fewer images of a class than folds.
    """
    from sklearn.model_selection import StratifiedKFold

    labels = data.train.labels
    counts = labels.bincount(minlength=len(data.classes))
    if (fewest := int(counts.min())) < folds:
        smallest = data.classes[int(counts.argmin())]
        most = f"at most {fewest}, the number of training images of class {smallest!r}"
        raise expected(f"data set {name!r}: folds", most, folds)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)  # the same for all trainings
    positions = list(splitter.split(labels, labels))[fold]
    train, test = (data.train.part(torch.from_numpy(index)) for index in positions)
    return dataclasses.replace(data, train=train, test=test)
