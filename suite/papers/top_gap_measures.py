"""Measurements of the Top-GAP chapter: see `suite.metrics` and `suite.attacks`."""

import inspect
import json
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from reglib.top_gap import TopGAPNet
from suite import metrics
from suite.attacks import ATTACKS, AUTO_ATTACK, NORMS, judge_attack
from suite.data import ImageData
from suite.errors import UsageError, check_call, check_name, expected
from suite.metrics.receptive_field import Part
from suite.training.evaluated import ChangedLogits, EvaluatedModel, Result
from suite.units import Training, Values, from_identity

IMAGES = 128  # in a batch, where the activations are kept


def robust_accuracy(
    subject: EvaluatedModel,
    *,
    attack: str,
    epsilon: float,
    n_images: int,
    counts: Literal["unchanged", "correct"] = "unchanged",
    attack_settings: Values | None = None,
    source: Values | None = None,
    scale: float = 1.0,
    keep_images: bool = True,
) -> Result:
    """Return 1 where an attack fails, else 0; keep the attacked images if `keep_images`.

    `counts` is "unchanged" (the prediction is that of the clean image) or "correct" (and right).
    `attack` is a name in `suite.attacks.ATTACKS`, `attack_settings` are its arguments. `source` is
    the identity of another network, which is attacked instead (transfer). The logits under attack
    are multiplied by `scale`. This changes no prediction, but enlarges gradients that would
    otherwise round to zero.
    """
    attacked = subject if source is None else subject.related(from_identity(source))
    if attacked.pixel_range != (0, 1):
        why = "robust_accuracy: expected a network of images in [0, 1], got one trained "
        raise UsageError(f"{why}with pixel_range {attacked.pixel_range}")
    settings = {"epsilon": epsilon, **(attack_settings or {})}
    # All measurements of a network share the attacked images.
    key = ("attacked", attack, n_images, scale, json.dumps(settings, sort_keys=True))
    if "generator" in inspect.signature(ATTACKS[attack]).parameters:
        settings["generator"] = attacked.generator(0)
    network = attacked.folded
    if scale != 1:
        network = ChangedLogits(network, lambda logits: scale * logits)
    inputs, _ = attacked.test_images(n_images)
    images = attacked.compute_once(key, lambda: ATTACKS[attack](network, inputs, **settings))
    clean, labels = subject.test_images(n_images)
    values: Tensor = getattr(judge_attack(subject.folded, clean, images, labels), counts)
    return Result(values.double(), {"images": images} if keep_images else {})


def _require_class_maps(network: nn.Module, name: str) -> TopGAPNet:
    if not isinstance(network, TopGAPNet):
        raise UsageError(f"expected a network with class maps, such as 'top_gap', got {name!r}")
    return network


def object_masks(data: ImageData, name: str, metric: str) -> Tensor:
    """Return the masks of the test images.

    Raises:
        UsageError: the data have no masks, or masks of another size than the images.
    """
    masks = data.test.masks
    if masks is None:
        raise UsageError(f"{metric}: expected a data set with masks, got {name!r}")
    if masks.shape[-2:] != data.shape[1:]:
        size = "masks of {1} x {2} pixels, as the images".format(*data.shape)
        raise expected(f"{metric}: data set {name!r}", size, "{} x {}".format(*masks.shape[-2:]))
    return masks


def _activation_maps(subject: EvaluatedModel, n_images: int) -> Tensor:
    """Return the map of the label of each of the first test images, (B, H, W) in [0, 1]."""
    return _apply(subject, n_images, torch.no_grad()(TopGAPNet.class_activation_maps))


def _apply(subject: EvaluatedModel, n_images: int, measure: Callable[..., Tensor]) -> Tensor:
    """Apply `measure` to the network and batches of the first test images with their labels."""
    network = _require_class_maps(subject.folded, subject.unit.network)
    batches = subject.batches(n_images, size=IMAGES)
    return torch.cat([measure(network, *batch) for batch in batches])


def class_map_sparsity(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Compute `suite.metrics.map_sparsity` of the maps of the labels, and keep the maps."""
    maps = _activation_maps(subject, n_images)
    return Result(metrics.map_sparsity(maps), {"maps": maps})


def effective_receptive_field(
    subject: EvaluatedModel, *, n_images: int, location: Sequence[float]
) -> Result:
    """Keep the mean absolute gradient of a location of the class maps, `field`, (H, W).

    See `suite.metrics.effective_receptive_field`; the value is the mean of each image. `location`
    is a share of the last row and a share of the last column; the corner is (0, 0).
    """

    def measure(network: TopGAPNet, images: Tensor, _: Tensor) -> Tensor:
        last = network.class_maps(images[:1]).shape[-1] - 1
        row, column = (int(share * last) for share in location)
        return metrics.effective_receptive_field(network.class_maps, images, location=(row, column))

    sizes = _apply(subject, n_images, measure).abs().sum(1)
    return Result(sizes.mean((1, 2)), {"field": sizes.mean(0)})


def _maps_and_masks(subject: EvaluatedModel, n_images: int, metric: str) -> tuple[Tensor, Tensor]:
    masks = object_masks(subject.data, subject.unit.data, metric)
    maps = _activation_maps(subject, n_images)
    return maps, masks[:n_images].to(maps.device)


def mask_iou(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Compute `suite.metrics.largest_mask_iou`."""
    return Result(metrics.largest_mask_iou(*_maps_and_masks(subject, n_images, "mask_iou")))


def mask_iou_beyond_others(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Compute `suite.metrics.mask_iou_beyond_others`."""
    maps, masks = _maps_and_masks(subject, n_images, "mask_iou_beyond_others")
    _, labels = subject.test_images(n_images)
    return Result(metrics.mask_iou_beyond_others(maps, masks, labels))


def erf_distance(subject: EvaluatedModel, *, n_images: int, part: Part = "distance") -> Result:
    """Compute `suite.metrics.erf_distance`; `part` is "distance", "centre" or "corner"."""

    def measure(network: TopGAPNet, images: Tensor, _: Tensor) -> Tensor:
        return metrics.erf_distance(network.class_maps, images, part=part)

    return Result(_apply(subject, n_images, measure))


def check_network(
    network: nn.Module, unit: Training, data: ImageData, metric_names: Collection[str]
) -> None:
    """Check before training that a network and its data have what the metrics take.

    Args:
        network: of the unit, before its training.
        unit: the training.
        data: that the network is trained on.
        metric_names: those of other chapters are ignored.

    Raises:
        UsageError: k exceeds the number of locations of a class map; class maps, masks or locations
            that a metric needs are missing; masks have another size than the images.
    """
    for metric in sorted(NEED_MASKS & set(metric_names)):
        object_masks(data, unit.data, metric)
    if NEED_MAPS & set(metric_names):
        _require_class_maps(network, unit.network)
    if isinstance(network, TopGAPNet):
        try:
            with torch.no_grad():
                maps = network.eval().class_maps(torch.zeros(1, *data.shape))
            network.pool(maps)
            if "erf_distance" in metric_names:
                metrics.check_map_size(*maps.shape[2:])
        except ValueError as error:
            raise UsageError(f"{unit.network!r} on data set {unit.data!r}: {error}") from error


def check_attack(attack: str, attack_settings: Values | None = None, **others: object) -> None:
    """Check the settings of an attack before any time is spent.

    Raises:
        UsageError: the attack does not take a setting, or gets it elsewhere.
    """
    supplied = ("model", "images", "generator", "epsilon")
    settings = attack_settings or {}
    check_call("attack", attack, ATTACKS, settings, supplied=supplied)
    check_name("norm", settings.get("norm", "linf"), NORMS)
    for part in settings.get("parts", ()):
        check_name("part of AutoAttack", part, AUTO_ATTACK)


OVERLAPS = {"mask_iou", "mask_iou_beyond_others"}
NEED_MASKS = OVERLAPS | {"share_on_object"}
NEED_MAPS = OVERLAPS | {"class_map_sparsity", "effective_receptive_field", "erf_distance"}
