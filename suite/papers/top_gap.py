"""Measurements of the Top-GAP chapter: see `suite.metrics` and `suite.attacks`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reglib.top_gap import TopGAPNet
from suite import metrics
from suite.attacks import ATTACKS
from suite.errors import UsageError, unknown
from suite.training.evaluated import EvaluatedModel, Result

IMAGES = 128  # that go through a network at a time, where the activations are kept


def robust_accuracy(
    subject: EvaluatedModel,
    *,
    attack: str,
    epsilon: float,
    n_images: int,
    counts: str = "unchanged",
    attack_settings: Mapping[str, Any] | None = None,
    keep_images: bool = True,
    seed: int = 0,
) -> Result:
    """1 where an attack fails, else 0; keeps the attacked images if `keep_images`.

    `counts` is "unchanged" (the prediction is that of the clean image) or "correct" (and right).
    `attack` is a name in `suite.attacks.ATTACKS`, `attack_settings` are its arguments.
    """
    if subject.pixel_range != (0, 1):
        raise UsageError(
            "robust_accuracy: expected a network of images in [0, 1], got one trained "
            f"with pixel_range {subject.pixel_range}"
        )
    images, labels = subject.test_images(n_images)
    settings = {"epsilon": epsilon, **(attack_settings or {})}
    if "generator" in inspect.signature(ATTACKS[attack]).parameters:
        settings["generator"] = subject.generator(seed)
    found = ATTACKS[attack](subject.folded, images, labels, **settings)
    values = found.unchanged if counts == "unchanged" else found.correct
    return Result(values.double(), {"images": found.images} if keep_images else {})


def _with_class_maps(subject: EvaluatedModel) -> TopGAPNet:
    if not isinstance(subject.folded, TopGAPNet):
        raise UsageError(
            f"expected a network with class maps, such as 'top_gap', got {subject.unit.network!r}"
        )
    return subject.folded


def _activation_maps(subject: EvaluatedModel, n_images: int) -> Tensor:
    """Return the map of the label of each of the first test images, (B, H, W) in [0, 1]."""
    network = _with_class_maps(subject)
    batches = zip(*(part.split(IMAGES) for part in subject.test_images(n_images)))
    with torch.no_grad():
        return torch.cat([network.class_activation_maps(*batch) for batch in batches])


def class_map_sparsity(subject: EvaluatedModel, *, n_images: int) -> Result:
    """See `suite.metrics.map_sparsity`; keeps the maps."""
    maps = _activation_maps(subject, n_images)
    return Result(metrics.map_sparsity(maps), {"maps": maps})


def mask_iou(subject: EvaluatedModel, *, n_images: int, threshold: float | None = None) -> Result:
    """See `suite.metrics.mask_iou` and, without a threshold, `largest_mask_iou`."""
    masks = subject.data.test.masks
    if masks is None:
        raise UsageError(f"mask_iou: expected a data set with masks, got {subject.unit.data!r}")
    maps = _activation_maps(subject, n_images)
    masks = masks[:n_images].to(maps.device)
    if threshold is None:
        return Result(metrics.largest_mask_iou(maps, masks))
    return Result(metrics.mask_iou(maps, masks, threshold=threshold))


def erf_distance(
    subject: EvaluatedModel, *, n_images: int, part: str = "distance", normalise: str = "each"
) -> Result:
    """See `suite.metrics.erf_distance`; `part` is "distance", "centre" or "corner"."""
    network = _with_class_maps(subject)
    images, _ = subject.test_images(n_images)
    found = [
        metrics.erf_distance(network.class_maps, batch, normalise=normalise)
        for batch in images.split(IMAGES)
    ]
    return Result(torch.cat([getattr(one, part) for one in found]))


def check_attack(
    attack: str, attack_settings: Mapping[str, Any] | None = None, **others: object
) -> None:
    """Check the settings of an attack before any time is spent.

    Raises:
        UsageError: a setting that the attack does not take, or that is not its own to set.
    """
    own = {"model", "images", "labels", "generator", "epsilon"}
    known = inspect.signature(ATTACKS[attack]).parameters.keys() - own
    for name in attack_settings or {}:
        if name not in known:
            raise unknown(f"setting of attack {attack!r}", name, known)
