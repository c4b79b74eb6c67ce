"""Units of work: everything that decides a result, as values that turn into JSON.

A field that has its default value is left out of a unit's identity. So a field can be added
without changing what older results are called, and a default must never change: a new meaning
takes a new number in `VERSIONS`.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reglib.errors import UsageError

VERSIONS = {"training": 1, "measurement": 1}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A network trained on a data set: cross-entropy plus the sum of strength x mean penalty.

    Args:
        data: name of the data set (see `reglib.data.SOURCES`).
        network: name of the network (see `reglib.networks.NETWORKS`).
        network_options: further arguments of the network.
        pixel_range: values that black and white get.
        n_train: only the first images of the training split; None for all.
        epochs, batch_size, optimizer, learning_rate: of the training.
        penalties: for each name in `reglib.regularizers.PENALTIES` its settings, of which
            "strength" is the coefficient.
        seed: of the initial weights and of the order of the images.

    Raises:
        UsageError: a number that is out of its range, by name.
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

    def __post_init__(self) -> None:
        _require_positive(self, "epochs", "batch_size", "learning_rate")
        if self.n_train is not None:
            _require_positive(self, "n_train")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed: expected an integer in 0..2^63-1, got {self.seed}")
        for name, settings in self.penalties.items():
            strength = settings.get("strength")
            if not (isinstance(strength, int | float) and 0 <= strength < math.inf):
                raise UsageError(
                    f"strength of penalty {name!r}: expected a finite number >= 0, got {strength}"
                )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A metric of a trained network.

    Args:
        training: the network.
        metric: a name in `reglib.measure.METRICS`.
        settings: arguments of the metric.
    """

    training: Training
    metric: str
    settings: Mapping[str, Any] = field(default_factory=dict)


Unit = Training | Measurement


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
            result[spec.name] = identity(value) if isinstance(value, Training) else value
    return json.loads(json.dumps(result))


def from_identity(values: Mapping[str, Any]) -> Unit:
    """Rebuild a unit from its identity."""
    fields = {name: value for name, value in values.items() if name not in ("unit", "version")}
    if values["unit"] == "measurement":
        return Measurement(training=training_of(from_identity(fields.pop("training"))), **fields)
    if "pixel_range" in fields:
        fields["pixel_range"] = tuple(fields["pixel_range"])
    return Training(**fields)


def training_of(unit: Unit) -> Training:
    """Return the training of a measurement, or the training itself."""
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
    if not 0 < low <= high < math.inf:
        raise UsageError(f"expected a range of finite numbers 0 < low <= high, got {low} to {high}")
    if count < 1:
        raise UsageError(f"expected at least one number in the range, got {count}")
    if count == 1:
        return [float(low)]
    ratio = math.log10(high / low) / (count - 1)
    return [float(f"{low * 10 ** (ratio * index):.6g}") for index in range(count)]


def _require_positive(unit: object, *names: str) -> None:
    for name in names:
        value = getattr(unit, name)
        if not (value > 0 and value < math.inf):
            raise UsageError(f"{name}: expected a positive number, got {value}")
