"""Units of work: everything that decides a result, as values that turn into JSON.

A field that has its default value is left out of a unit's identity. So a field can be added
without changing what older results are called, and a default must never change: a new meaning
takes a new number in `VERSIONS`.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.errors import UsageError
from suite.field_checks import (
    is_count,
    is_finite,
    is_integer,
    is_name,
    is_positive,
    is_range,
    is_rising,
    is_seed,
    is_settings,
    is_strength,
    require,
)

VERSIONS = {"training": 1, "pretrained": 1, "measurement": 2}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A network trained on a data set: cross-entropy plus the sum of strength x mean penalty.

    Args:
        data: name of the data set (see `suite.data.SOURCES`).
        network: name of the network (see `suite.networks.NETWORKS`).
        network_options: further arguments of the network.
        pixel_range: values that black and white get.
        n_train: only the first images of the training split; None for all.
        epochs, batch_size, optimizer, learning_rate: of the training.
        penalties: for each name in `reglib.regularizers.PENALTIES` its settings, of which
            "strength" is the coefficient; with "every" a penalty acts, in full strength, in steps
            T, 2T, ... of the training only.
        group_dro: step size of Group DRO, which then takes the place of the mean cross-entropy;
            None for none. The data set must have groups.
        balance_groups: draw the images of an epoch with replacement, so that all groups are
            equally frequent.
        folds: split the training images into so many folds of equal shares of each class, train on
            all but one and test on that one; None for the data set's own test images. The folds do
            not depend on the seed; `n_train` counts the images of the other folds.
        fold: the fold to test on, from 0.
        crop_padding, flip: random changes of the images, anew in each epoch (see
            `suite.training.augmentation.crop_and_flip`).
        zoom: largest factor by which an image is magnified about its middle, at random and anew in
            each epoch (see `suite.training.augmentation.zoom_in`); None for no zooming.
        optimizer_options: further arguments of the optimizer (`suite.training.optimizers`), such as
            "momentum" and "weight_decay"; with "decay_all" false, biases and normalisations do not
            decay.
        cosine_epochs: the learning rate falls along half a cosine, to zero after so many epochs,
            which may be more than `epochs`; None for a constant one.
        decay_epochs: after each of these numbers of epochs the learning rate is divided by ten;
            not together with `cosine_epochs`.
        label_smoothing: share of the label that is spread evenly over all classes.
        seed: of the initial weights, of the order of the images and of their changes.

    Raises:
        UsageError: a field that has not its type or is out of its range, by name.
    """

    data: str
    network: str
    epochs: int
    learning_rate: float
    seed: int
    network_options: Mapping[str, Any] = field(default_factory=dict)
    pixel_range: tuple[float, float] = (0.0, 1.0)
    n_train: int | None = None
    batch_size: int = 128
    optimizer: str = "adam"
    penalties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group_dro: float | None = None
    balance_groups: bool = False
    folds: int | None = None
    fold: int = 0
    crop_padding: int = 0
    flip: bool = False
    zoom: float | None = None
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    cosine_epochs: int | None = None
    decay_epochs: Sequence[int] = ()
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name in ("data", "network", "optimizer"):
            require(name, getattr(self, name), "a name", is_name)
        for name in ("epochs", "batch_size"):
            require(name, getattr(self, name), "a positive integer", is_count)
        if self.n_train is not None:
            require("n_train", self.n_train, "a positive integer or None", is_count)
        if self.group_dro is not None:
            require("group_dro", self.group_dro, "a positive finite number or None", is_positive)
        for name in ("balance_groups", "flip"):
            require(name, getattr(self, name), "True or False", lambda v: isinstance(v, bool))
        self._check_folds()
        self._check_schedule_and_changes()
        require("learning_rate", self.learning_rate, "a positive finite number", is_positive)
        require("seed", self.seed, "an integer in 0..2^63-1", is_seed)
        require("pixel_range", self.pixel_range, "two finite numbers, low < high", is_range)
        object.__setattr__(self, "pixel_range", tuple(self.pixel_range))
        require("network_options", self.network_options, "names and values", is_settings)
        require("penalties", self.penalties, "names, and settings for each", is_settings)
        for name, settings in self.penalties.items():
            require(f"penalty {name!r}", settings, 'settings such as {"strength": 1}', is_settings)
            require(
                f"strength of penalty {name!r}",
                settings.get("strength"),
                "a finite number >= 0",
                is_strength,
            )

    def _check_folds(self) -> None:
        if self.folds is not None:
            require(
                "folds",
                self.folds,
                "an integer of at least 2 or None",
                lambda v: is_count(v) and v > 1,
            )
        last = (self.folds or 1) - 1
        require(
            "fold",
            self.fold,
            f"an integer in 0..{last} for folds={self.folds}",
            lambda v: is_integer(v) and 0 <= v <= last,
        )

    def _check_schedule_and_changes(self) -> None:
        require(
            "crop_padding",
            self.crop_padding,
            "a number of pixels, 0 or more",
            lambda v: is_integer(v) and v >= 0,
        )
        require(
            "zoom",
            self.zoom,
            "a finite number above 1, or None",
            lambda v: v is None or (is_finite(v) and v > 1),
        )
        require("optimizer_options", self.optimizer_options, "names and values", is_settings)
        require(
            "label_smoothing",
            self.label_smoothing,
            "a number from 0 to below 1",
            lambda v: is_finite(v) and 0 <= v < 1,
        )
        if self.cosine_epochs is not None:
            require(
                "cosine_epochs",
                self.cosine_epochs,
                f"an integer from {self.epochs} (epochs)",
                lambda v: is_integer(v) and v >= self.epochs,
            )
            require("decay_epochs", self.decay_epochs, "none beside cosine_epochs", lambda v: not v)
        require("decay_epochs", self.decay_epochs, "rising positive integers", is_rising)
        object.__setattr__(self, "decay_epochs", tuple(self.decay_epochs))


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A network that others have trained, and the images that it is shown.

    Args:
        data: name of the data set (see `suite.data.SOURCES`); its test images are shown.
        network: name of the network (see `suite.networks.PRETRAINED`).

    Raises:
        UsageError: a field that has not its type, by name.
    """

    data: str
    network: str

    def __post_init__(self) -> None:
        for name in ("data", "network"):
            require(name, getattr(self, name), "a name", is_name)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A metric of a trained network.

    Args:
        training: the network, trained here or by others.
        metric: a name in `suite.papers.measure.METRICS`.
        settings: arguments of the metric.

    Raises:
        UsageError: a field that has not its type, by name.
    """

    training: Training | Pretrained
    metric: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            "training",
            self.training,
            "a Training or a Pretrained",
            lambda v: isinstance(v, Training | Pretrained),
        )
        require("metric", self.metric, "a name", is_name)
        require("settings", self.settings, "names and values", is_settings)


Network = Training | Pretrained
Unit = Network | Measurement


def identity(unit: Unit) -> dict[str, Any]:
    """Return the fields of a unit that differ from their defaults, as JSON values."""
    kind = type(unit).__name__.lower()
    result: dict[str, Any] = {"unit": kind, "version": VERSIONS[kind]}
    for spec in dataclasses.fields(unit):
        value = getattr(unit, spec.name)
        default = (
            spec.default_factory()
            if spec.default_factory is not dataclasses.MISSING
            else spec.default
        )
        if value != default:
            result[spec.name] = identity(value) if isinstance(value, Network) else value
    return json.loads(json.dumps(result))


def from_identity(values: Mapping[str, Any]) -> Unit:
    """Rebuild a unit from its identity."""
    fields = {name: value for name, value in values.items() if name not in ("unit", "version")}
    if values["unit"] == "measurement":
        return Measurement(training=training_of(from_identity(fields.pop("training"))), **fields)
    if values["unit"] == "pretrained":
        return Pretrained(**fields)
    if "pixel_range" in fields:
        fields["pixel_range"] = tuple(fields["pixel_range"])
    return Training(**fields)


def training_of(unit: Unit) -> Network:
    """Return the network of a measurement, trained here or by others, or the network itself."""
    return unit.training if isinstance(unit, Measurement) else unit


def key(unit: Unit, fingerprints: Mapping[str, str]) -> str:
    """Name a unit by a hash of its identity and of the data that it reads.

    Args:
        unit: a training or measurement.
        fingerprints: of each data set by name.

    >>> unit = Training(data="d", network="n", epochs=1, learning_rate=0.1, seed=0)
    >>> key(unit, {"d": "1"}) == key(unit, {"d": "2"})
    False
    """
    contents = {"unit": identity(unit), "data": [fingerprints[name] for name in data_names(unit)]}
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def data_names(unit: Unit) -> list[str]:
    """Return the data sets that a unit reads, each once."""
    names = [training_of(unit).data]
    if isinstance(unit, Measurement) and "data" in unit.settings:
        names.append(unit.settings["data"])
    return list(dict.fromkeys(names))


def log_spaced(low: float, high: float, count: int) -> list[float]:
    """Return `count` numbers from `low` to `high` whose logarithms are equally spaced.

    Raises:
        UsageError: not 0 < low <= high, not finite, or `count` below 1.

    >>> log_spaced(1, 100, 3)
    [1.0, 10.0, 100.0]
    """
    numbers = all(isinstance(end, int | float) for end in (low, high))
    if not numbers or not 0 < low <= high < math.inf:
        raise UsageError(
            f"expected a range of finite numbers 0 < low <= high, got {low!r} to {high!r}"
        )
    if count < 1:
        raise UsageError(f"expected at least one number in the range, got {count}")
    if count == 1:
        return [float(low)]
    ratio = math.log10(high / low) / (count - 1)
    return [float(f"{low * 10 ** (ratio * index):.6g}") for index in range(count)]
