"""Units of work: trainings and measurements, described by values that JSON can hold.

The identity of a unit omits fields with default values, so a new field leaves the keys of older
results unchanged. A default must therefore never change: a new meaning needs a new number in
`VERSIONS`.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.errors import expected

Values = Mapping[str, Any]  # parameters, or settings, by name
VERSIONS = {"training": 1, "pretrained": 2, "measurement": 2}

# The metadata of a field: what it must be, in words, and the predicate that checks it.
Rule = Mapping[str, Any]


def rule(expected: str, holds: Callable[[Any], bool]) -> Rule:
    """Return a rule."""
    return {"expected": expected, "holds": holds}


def optional(base: Rule) -> Rule:
    """Return the rule that also accepts None."""
    return rule(f"{base['expected']} or None", lambda value: value is None or base["holds"](value))


def require(name: str, value: object, field_rule: Rule) -> None:
    """Raise a `UsageError` that names the field and what it must be, unless its rule holds."""
    if not field_rule["holds"](value):
        raise expected(name, field_rule["expected"], f"{value!r} ({type(value).__name__})")


class _Checked:
    """A dataclass that checks the fields that have a rule."""

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            if spec.metadata:
                require(spec.name, getattr(self, spec.name), spec.metadata)

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """The fields that differ from their defaults, as JSON values."""
        kind = type(self).__name__.lower()
        result: dict[str, Any] = {"unit": kind, "version": VERSIONS[kind]}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value, factory = getattr(self, spec.name), spec.default_factory
            if value != (spec.default if factory is dataclasses.MISSING else factory()):
                if isinstance(value, _Checked):
                    value = value.identity
                elif isinstance(value, Mapping | Sequence) and not isinstance(value, str):
                    value = json.loads(json.dumps(value))
                result[spec.name] = value
        return result


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_rising(values: Any, holds: Callable[[Any], bool]) -> bool:
    is_list = isinstance(values, tuple | list) and all(map(holds, values))
    return is_list and sorted({*values}) == [*values]


def is_settings(value: Any) -> bool:
    """Whether a value is a mapping from names to JSON values."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


NAME = rule("a name", lambda v: isinstance(v, str))
SWITCH = rule("True or False", lambda v: isinstance(v, bool))
COUNT = rule("a positive integer", lambda v: is_integer(v) and v > 0)
SEED = rule("an integer in 0..2^63-1", lambda v: is_integer(v) and 0 <= v < 2**63)
FOLDS = rule("an integer of at least 2", lambda v: is_integer(v) and v > 1)
NATURAL = rule("an integer of 0 or more", lambda v: is_integer(v) and v >= 0)
POSITIVE = rule("a positive finite number", lambda v: is_finite(v) and v > 0)
STRENGTH = rule("a finite number >= 0", lambda v: is_finite(v) and v >= 0)
SHARE = rule("a number from 0 to below 1", lambda v: is_finite(v) and 0 <= v < 1)
ZOOM = rule("a finite number above 1, or None", lambda v: v is None or (is_finite(v) and v > 1))
RANGE = rule("two finite numbers, low < high", lambda v: is_rising(v, is_finite) and len(v) == 2)
RISING = rule("rising positive integers", lambda v: is_rising(v, COUNT["holds"]))
NO_DECAYS = rule("none together with cosine_epochs", lambda v: not v)
SETTINGS = rule("names and values", is_settings)
PENALTIES = rule("names, and settings for each", is_settings)
PRECISION = rule("float32 or bfloat16", lambda v: v in ("float32", "bfloat16"))
PENALTY = rule('settings such as {"strength": 1}', is_settings)
NETWORK = rule("a Training or a Pretrained", lambda v: isinstance(v, Training | Pretrained))


@dataclass(frozen=True, kw_only=True)
class Training(_Checked):
    """A network trained on a data set: cross-entropy plus the sum of strength x mean penalty.

    Args:
        data: name of the data set (see `suite.data.SOURCES`).
        network: name of the network (see `suite.networks.NETWORKS`).
        network_options: further arguments of the network.
        pixel_range: values that black and white get.
        n_train: number of training images, the first of the split; None for all.
        epochs, batch_size, optimizer, learning_rate: of the training. With 0 epochs the network
            stays as initialised; it is not stored but rebuilt for each measurement.
        penalties: settings by name in `suite.training.penalties.PENALTIES`. "strength" is the
            coefficient. With "every" = T a penalty acts, at full strength, only in steps T, 2T, ...
            With "warm_up" the coefficient rises linearly from zero during that many steps.
        group_dro: step size of Group DRO, which then replaces the mean cross-entropy; None for
            none. The data set must have groups.
        balance_groups: draw the images of an epoch with replacement, so that all groups are
            equally frequent.
        folds: number of stratified folds of the training images: train on all but one, test on
            that one. None for the data set's own test images. The folds do not depend on the seed;
            `n_train` counts the images of the other folds.
        fold: the fold to test on, from 0.
        crop_padding, flip: random augmentation, redrawn in each epoch (see
            `suite.training.augmentation.crop_and_flip`).
        zoom: largest random magnification about the centre, redrawn in each epoch (see
            `suite.training.augmentation.zoom_in`); None for no zooming.
        swap_halves: randomly swap the upper and the lower half of an image, redrawn in each epoch.
            On BlockMNIST this redraws whether the null block is above or below.
        input_noise: standard deviation of normal noise on the images, redrawn in each epoch, in
            the units of `pixel_range`.
        optimizer_options: further arguments of the optimizer (`suite.training.optimizers`), such as
            "momentum" and "weight_decay"; with "decay_all" false, biases and normalisations do not
            decay.
        cosine_epochs: number of epochs after which a cosine schedule of the learning rate reaches
            zero; it may exceed `epochs`. None for no schedule.
        decay_epochs: numbers of epochs after which the learning rate is divided by ten; not
            together with `cosine_epochs`.
        label_smoothing: share of the label that is spread evenly over all classes.
        fixed_statistics: train the network in evaluation mode, for pretrained networks: batch
            normalisation keeps the running statistics of the initial network, without dropout.
        clip: largest norm of the gradient by all parameters, for gradient clipping; None for none.
        precision: of convolutions and products in the training, "float32", or "bfloat16" by
            `torch.autocast`; weights, sums and all later measurements are in float32, and on a CPU
            grouped convolutions.
        seed: of the initial weights, and of the order and the augmentation of the images.

    Raises:
        UsageError: a field has the wrong type or is out of range; the message names it.
    """

    data: str = field(metadata=NAME)
    network: str = field(metadata=NAME)
    epochs: int = field(metadata=NATURAL)
    learning_rate: float = field(metadata=POSITIVE)
    seed: int = field(metadata=SEED)
    network_options: Mapping[str, Any] = field(default_factory=dict, metadata=SETTINGS)
    pixel_range: tuple[float, float] = field(default=(0.0, 1.0), metadata=RANGE)
    n_train: int | None = field(default=None, metadata=optional(COUNT))
    batch_size: int = field(default=128, metadata=COUNT)
    optimizer: str = field(default="adam", metadata=NAME)
    penalties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=PENALTIES)
    group_dro: float | None = field(default=None, metadata=optional(POSITIVE))
    balance_groups: bool = field(default=False, metadata=SWITCH)
    folds: int | None = field(default=None, metadata=optional(FOLDS))
    fold: int = 0
    crop_padding: int = field(default=0, metadata=NATURAL)
    flip: bool = field(default=False, metadata=SWITCH)
    zoom: float | None = field(default=None, metadata=ZOOM)
    swap_halves: bool = field(default=False, metadata=SWITCH)
    input_noise: float = field(default=0.0, metadata=STRENGTH)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict, metadata=SETTINGS)
    cosine_epochs: int | None = None
    decay_epochs: Sequence[int] = field(default=(), metadata=RISING)
    label_smoothing: float = field(default=0.0, metadata=SHARE)
    fixed_statistics: bool = field(default=False, metadata=SWITCH)
    clip: float | None = field(default=None, metadata=optional(POSITIVE))
    precision: str = field(default="float32", metadata=PRECISION)

    def __post_init__(self) -> None:
        super().__post_init__()
        folds, epochs = self.folds or 1, self.epochs
        among = f"an integer in 0..{folds - 1} for folds={self.folds}"
        require("fold", self.fold, rule(among, lambda v: is_integer(v) and 0 <= v < folds))
        if self.cosine_epochs is not None:
            from_epochs = f"an integer from {epochs} (epochs)"
            late = rule(from_epochs, lambda v: is_integer(v) and v >= epochs)
            require("cosine_epochs", self.cosine_epochs, late)
            require("decay_epochs", self.decay_epochs, NO_DECAYS)
        for name, settings in self.penalties.items():
            require(f"penalty {name!r}", settings, PENALTY)
            require(f"strength of penalty {name!r}", settings.get("strength"), STRENGTH)
        object.__setattr__(self, "pixel_range", tuple(self.pixel_range))
        object.__setattr__(self, "decay_epochs", tuple(self.decay_epochs))


FIELDS = {spec.name for spec in dataclasses.fields(Training)}


@dataclass(frozen=True, kw_only=True)
class Pretrained(_Checked):
    """A pretrained network, and the images that it is evaluated on.

    Args:
        data: name of the data set (see `suite.data.SOURCES`); its test images are used.
        network: name of the network (see `suite.networks.PRETRAINED`), or of one of your own (see
            `suite.networks.yours`).
        options: how a network of your own is made.
        n_images: number of images, the first of the split; None for all.
        labels: labels where the classes of the network are not those of the data: "predicted" for
            its predictions, or the network's class for each class of the data.

    Raises:
        UsageError: a field has the wrong type; the message names it.
    """

    data: str = field(metadata=NAME)
    network: str = field(metadata=NAME)
    options: Mapping[str, Any] = field(default_factory=dict, metadata=SETTINGS)
    n_images: int | None = field(default=None, metadata=optional(COUNT))
    labels: str | Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement(_Checked):
    """A metric of a network.

    Args:
        training: the network, trained here or pretrained.
        metric: a name in `suite.papers.measure.METRICS`.
        settings: arguments of the metric.

    Raises:
        UsageError: a field has the wrong type; the message names it.
    """

    training: Training | Pretrained = field(metadata=NETWORK)
    metric: str = field(metadata=NAME)
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=SETTINGS)


Network = Training | Pretrained
Unit = Network | Measurement


def from_identity(values: Mapping[str, Any]) -> Network:
    """Rebuild a network from its identity."""
    fields = {name: value for name, value in values.items() if name not in ("unit", "version")}
    return (Pretrained if values["unit"] == "pretrained" else Training)(**fields)


def training_of(unit: Unit) -> Network:
    """Return the network of a measurement, or the network itself."""
    return unit.training if isinstance(unit, Measurement) else unit


def key(unit: Unit, fingerprints: Mapping[str, str]) -> str:
    """Return the key of a unit, a hash of its identity and of the data that it reads.

    Args:
        unit: a training or measurement.
        fingerprints: of data sets, by name.

    >>> unit = Training(data="d", network="n", epochs=1, learning_rate=0.1, seed=0)
    >>> key(unit, {"d": "1"}) == key(unit, {"d": "2"})
    False
    """
    contents = {"unit": unit.identity, "data": [fingerprints[name] for name in data_names(unit)]}
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def data_names(unit: Unit) -> list[str]:
    """Return the data sets that a unit reads, each once."""
    names = [training_of(unit).data]
    if isinstance(unit, Measurement) and "data" in unit.settings:
        names.append(unit.settings["data"])
    return list(dict.fromkeys(names))


def log_spaced(low: float, high: float, count: int) -> list[float]:
    """Return `count` numbers from `low` to `high`, with equally spaced logarithms.

    Raises:
        UsageError: not 0 < low <= high < infinity, or `count` below 1.

    >>> log_spaced(1, 100, 3)
    [1.0, 10.0, 100.0]
    """
    if not 0 < low <= high < math.inf:
        raise expected("range", "finite numbers 0 < low <= high", f"{low!r} to {high!r}")
    if count < 1:
        raise expected("range", "at least one number", count)
    return [float(f"{value:.6g}") for value in np.geomspace(low, high, count)]
