"""Metrics by name: what a `Measurement` asks of a trained network."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib import metrics
from reglib.attacks import ATTACKS
from reglib.data import ImageData, Split, load_data, to_float
from reglib.double_backward import fast_double_backward, folded_copy
from reglib.errors import UsageError, unknown
from reglib.saliency import SALIENCIES
from reglib.top_gap import TopGAPNet
from reglib.training import memory_format
from reglib.units import Measurement, Training

IMAGES = 128  # that go through a network at a time, where the activations are kept


class Result(NamedTuple):
    """One value for each image, (B,), and tensors to keep, such as maps."""

    per_image: Tensor
    tensors: dict[str, Tensor] = {}


def checked_test_split(own: ImageData, shown: ImageData, name: str, count: int | None) -> Split:
    """Return the test split of `shown`, if a network trained on `own` can take `count` of it.

    Raises:
        UsageError: fewer images than asked for, images of another shape, or more classes.
    """
    if count is not None and count > len(shown.test.images):
        raise UsageError(f"n_images: expected at most {len(shown.test.images)} for the test split "
                         f"of {name!r}, got {count}")  # fmt: skip
    if shown.shape != own.shape:
        raise UsageError(f"data set {name!r}: expected images of shape {own.shape} as in training, "
                         f"got {shown.shape}")  # fmt: skip
    if len(shown.classes) > len(own.classes):
        raise UsageError(f"data set {name!r}: expected at most the {len(own.classes)} classes of "
                         f"the network, got {len(shown.classes)}")  # fmt: skip
    return shown.test


class Subject:
    """A trained network in evaluation mode, with the images of its data set.

    `folded` is a copy of `network`, faster because its batch normalisation is folded.
    """

    def __init__(self, network: nn.Module, unit: Training, data: ImageData) -> None:
        self.network = network
        self.folded = folded_copy(network)
        self.unit = unit
        self.data = data
        self.device = next(network.parameters()).device
        self.max_bytes = metrics.CHUNK_BYTES * (1 if self.device.type == "cpu" else 128)

    def test_images(self, count: int | None, data: str | None = None) -> tuple[Tensor, Tensor]:
        """Return the first test images as the network takes them, (B, C, H, W), and labels.

        Raises:
            UsageError: see `checked_test_split`.
        """
        name = data or self.unit.data
        test = checked_test_split(self.data, load_data(data) if data else self.data, name, count)
        images = to_float(test.images[:count].to(self.device), self.unit.pixel_range)
        layout = memory_format(self.network, self.device)
        return images.contiguous(memory_format=layout), test.labels[:count].to(self.device)

    def maps_of(self, saliency: str) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the saliency of (images, class_index), channels summed, (B, 1, H, W)."""
        if saliency not in SALIENCIES:
            raise unknown("saliency", saliency, SALIENCIES)
        method = SALIENCIES[saliency]
        return lambda images, labels: method(self.folded, images, labels).sum(1, keepdim=True)

    def generator(self, seed: int) -> torch.Generator:
        """Return a source of random numbers on the device of the network."""
        return torch.Generator(self.device).manual_seed(seed)


def accuracy(subject: Subject, *, n_images: int | None = None, data: str | None = None) -> Result:
    """1 where a test image, of another data set if `data` is given, is classified right, else 0."""
    images, labels = subject.test_images(n_images, data)
    with torch.no_grad():
        predicted = torch.cat([subject.folded(chunk).argmax(1) for chunk in images.split(500)])
    return Result((predicted == labels).double())


def faithfulness_estimate(
    subject: Subject, *, saliency: str, n_images: int, score: str = "probability"
) -> Result:
    """See `reglib.metrics.faithfulness_estimate`."""
    images, labels = subject.test_images(n_images)
    maps = subject.maps_of(saliency)(images, labels)
    return Result(metrics.faithfulness_estimate(maps, _effects(subject, n_images, score)))


@functools.lru_cache(maxsize=2)
def _effects(subject: Subject, n_images: int, score: str) -> Tensor:
    """Effects of the pixels, which are the same for every saliency method."""
    images, labels = subject.test_images(n_images)
    return metrics.pixel_effects(
        fast_double_backward(subject.folded), images, labels,
        score=score, max_bytes=subject.max_bytes,
    )  # fmt: skip


def local_lipschitz_estimate(
    subject: Subject,
    *,
    saliency: str,
    n_images: int,
    n_samples: int,
    noise_std: float = 0.1,
    seed: int = 0,
) -> Result:
    """See `reglib.metrics.local_lipschitz_estimate`."""
    return Result(
        metrics.local_lipschitz_estimate(
            subject.maps_of(saliency), *subject.test_images(n_images), n_samples=n_samples,
            noise_std=noise_std, generator=subject.generator(seed), max_bytes=subject.max_bytes,
        )
    )  # fmt: skip


def max_sensitivity(
    subject: Subject,
    *,
    saliency: str,
    n_images: int,
    n_samples: int,
    radius: float = 0.2,
    seed: int = 0,
) -> Result:
    """See `reglib.metrics.max_sensitivity`."""
    return Result(
        metrics.max_sensitivity(
            subject.maps_of(saliency), *subject.test_images(n_images), n_samples=n_samples,
            radius=radius, generator=subject.generator(seed), max_bytes=subject.max_bytes,
        )
    )  # fmt: skip


def entropy(subject: Subject, *, saliency: str, n_images: int) -> Result:
    """See `reglib.metrics.entropy`."""
    return Result(metrics.entropy(subject.maps_of(saliency)(*subject.test_images(n_images))))


def saliency_maps(
    subject: Subject, *, saliency: str, n_images: int, data: str | None = None
) -> Result:
    """Keep the images and their maps; the value is the norm of each map."""
    images, labels = subject.test_images(n_images, data)
    maps = subject.maps_of(saliency)(images, labels)
    predicted = subject.folded(images).argmax(1)
    kept = {"images": images, "labels": labels, "maps": maps, "predicted": predicted}
    return Result(maps.flatten(1).norm(dim=1), kept)


def robust_accuracy(
    subject: Subject,
    *,
    attack: str,
    epsilon: float,
    n_images: int,
    counts: str = "unchanged",
    attack_settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Result:
    """1 where an attack fails, else 0; keeps the attacked images.

    `counts` is "unchanged" (the prediction is that of the clean image) or "correct" (and right).
    `attack` is a name in `reglib.attacks.ATTACKS`, `attack_settings` are its arguments.
    """
    if tuple(subject.unit.pixel_range) != (0, 1):
        raise UsageError("robust_accuracy: expected a network of images in [0, 1], got one trained "
                         f"with pixel_range {tuple(subject.unit.pixel_range)}")  # fmt: skip
    images, labels = subject.test_images(n_images)
    settings = {"epsilon": epsilon, **(attack_settings or {})}
    if "generator" in inspect.signature(ATTACKS[attack]).parameters:
        settings["generator"] = subject.generator(seed)
    found = ATTACKS[attack](subject.folded, images, labels, **settings)
    values = found.unchanged if counts == "unchanged" else found.correct
    return Result(values.double(), {"images": found.images})


def _with_class_maps(subject: Subject) -> TopGAPNet:
    if not isinstance(subject.folded, TopGAPNet):
        raise UsageError("expected a network with class maps, such as 'top_gap', got "
                         f"{subject.unit.network!r}")  # fmt: skip
    return subject.folded


def _activation_maps(subject: Subject, n_images: int) -> Tensor:
    """Return the map of the label of each of the first test images, (B, H, W) in [0, 1]."""
    network = _with_class_maps(subject)
    batches = zip(*(part.split(IMAGES) for part in subject.test_images(n_images)))
    with torch.no_grad():
        return torch.cat([network.class_activation_maps(*batch) for batch in batches])


def class_map_sparsity(subject: Subject, *, n_images: int) -> Result:
    """See `reglib.metrics.map_sparsity`; keeps the maps."""
    maps = _activation_maps(subject, n_images)
    return Result(metrics.map_sparsity(maps), {"maps": maps})


def mask_iou(subject: Subject, *, n_images: int, threshold: float | None = None) -> Result:
    """See `reglib.metrics.mask_iou` and, without a threshold, `largest_mask_iou`."""
    masks = subject.data.test.masks
    if masks is None:
        raise UsageError(f"mask_iou: expected a data set with masks, got {subject.unit.data!r}")
    maps = _activation_maps(subject, n_images)
    masks = masks[:n_images].to(maps.device)
    if threshold is None:
        return Result(metrics.largest_mask_iou(maps, masks))
    return Result(metrics.mask_iou(maps, masks, threshold=threshold))


def erf_distance(
    subject: Subject, *, n_images: int, part: str = "distance", normalise: str = "each"
) -> Result:
    """See `reglib.metrics.erf_distance`; `part` is "distance", "centre" or "corner"."""
    network = _with_class_maps(subject)
    images, _ = subject.test_images(n_images)
    found = [
        metrics.erf_distance(network.class_maps, batch, normalise=normalise)
        for batch in images.split(IMAGES)
    ]
    return Result(torch.cat([getattr(one, part) for one in found]))


METRICS: dict[str, Callable[..., Result]] = {
    "accuracy": accuracy,
    "class_map_sparsity": class_map_sparsity,
    "entropy": entropy,
    "erf_distance": erf_distance,
    "faithfulness_estimate": faithfulness_estimate,
    "local_lipschitz_estimate": local_lipschitz_estimate,
    "mask_iou": mask_iou,
    "max_sensitivity": max_sensitivity,
    "robust_accuracy": robust_accuracy,
    "saliency_maps": saliency_maps,
}


CHOICES: dict[str, Collection[str]] = {
    "attack": ATTACKS,
    "counts": ("correct", "unchanged"),
    "normalise": ("each", "none", "together"),
    "part": ("centre", "corner", "distance"),
    "saliency": SALIENCIES,
}


def check(unit: Measurement) -> None:
    """Check the names in a unit before any time is spent.

    Raises:
        UsageError: unknown metric, saliency method or setting, or a setting that is missing.
    """
    if unit.metric not in METRICS:
        raise unknown("metric", unit.metric, METRICS)
    signature = inspect.signature(METRICS[unit.metric])
    for name in unit.settings:
        if name not in signature.parameters:
            settings = [p for p in signature.parameters if p != "subject"]
            raise unknown(f"setting of metric {unit.metric!r}", name, settings)
    try:
        signature.bind(None, **unit.settings)
    except TypeError as error:
        raise UsageError(f"metric {unit.metric!r}: {error}") from error
    for setting, known in CHOICES.items():
        chosen = unit.settings.get(setting)
        if chosen is not None and chosen not in known:
            raise unknown(setting, chosen, known)
    if unit.metric == "robust_accuracy":
        _check_attack(unit.settings)
    for name in ("n_images", "n_samples"):
        count: Any = unit.settings.get(name)
        if count is not None and not (isinstance(count, int) and count > 0):
            raise UsageError(f"{name}: expected a positive integer, got {count!r}")


def _check_attack(settings: Mapping[str, Any]) -> None:
    given = settings.get("attack_settings") or {}
    known = inspect.signature(ATTACKS[settings["attack"]]).parameters.keys()
    own = {"model", "images", "labels", "generator", "epsilon"}
    for name in given:
        if name not in known - own:
            raise unknown(f"setting of attack {settings['attack']!r}", name, known - own)


def measure(subject: Subject, unit: Measurement) -> Result:
    """Compute a measurement."""
    check(unit)
    return METRICS[unit.metric](subject, **unit.settings)
