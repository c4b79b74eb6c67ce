"""Metrics by name: what a `Measurement` asks of a trained network."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib import metrics
from reglib.data import ImageData, Split, load_data, to_float
from reglib.double_backward import fast_double_backward, folded_copy
from reglib.errors import UsageError, unknown
from reglib.landscape import expected_importance_landscape, total_variation
from reglib.saliency import SALIENCIES, integrated_gradients
from reglib.training import memory_format
from reglib.units import Measurement, Training


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
        pixels, labels = self.test_bytes(count, data)
        return self.as_inputs(pixels), labels

    def test_bytes(self, count: int | None, data: str | None = None) -> tuple[Tensor, Tensor]:
        """Return the first test images in bytes, (B, C, H, W), and labels; see `test_images`."""
        name = data or self.unit.data
        test = checked_test_split(self.data, load_data(data) if data else self.data, name, count)
        return test.images[:count].to(self.device), test.labels[:count].to(self.device)

    def as_inputs(self, pixels: Tensor) -> Tensor:
        """Return images in bytes as the network takes them."""
        layout = memory_format(self.network, self.device)
        return to_float(pixels, self.unit.pixel_range).contiguous(memory_format=layout)

    def maps_of(self, saliency: str) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the saliency of (images, class_index), channels summed, (B, 1, H, W)."""
        if saliency not in SALIENCIES:
            raise unknown("saliency", saliency, SALIENCIES)
        method = SALIENCIES[saliency]
        return lambda images, labels: method(self.folded, images, labels).sum(1, keepdim=True)

    def generator(self, seed: int) -> torch.Generator:
        """Return a source of random numbers on the device of the network."""
        return torch.Generator(self.device).manual_seed(seed)


def accuracy(subject: Subject, *, n_images: int | None = None) -> Result:
    """1 where a test image is classified right, else 0."""
    images, labels = subject.test_images(n_images)
    with torch.no_grad():
        predicted = torch.cat([subject.folded(chunk).argmax(1) for chunk in images.split(500)])
    return Result((predicted == labels).double())


def accuracy_by_location(
    subject: Subject,
    *,
    margin: int,
    where: str = "all",
    step: int = 1,
    n_images: int | None = None,
    data: str | None = None,
) -> Result:
    """Share of the shifts over an empty margin after which an image is classified right.

    `where` is a name in `reglib.metrics.places`; the accuracy of each shift is kept. See
    `reglib.metrics.correct_by_location`.
    """
    correct = torch.cat(
        [
            metrics.correct_by_location(subject.folded, images, labels, margin=margin, step=step)
            for images, labels in zip(*(t.split(500) for t in subject.test_images(n_images, data)))
        ]
    )
    chosen = metrics.places(where, correct.shape[1]).to(correct.device)
    return Result(correct[:, chosen].mean(1), {"accuracy": correct.mean(0)})


def importance_landscape(
    subject: Subject, *, n_images: int | None = None, data: str | None = None
) -> Result:
    """Total variation of the importance landscape over test images: one value. The map is kept.

    See `reglib.landscape.expected_importance_landscape` and `reglib.landscape.total_variation`.
    """
    images, _ = subject.test_images(n_images, data)
    landscape = expected_importance_landscape(subject.folded, images.split(100))
    return Result(total_variation(landscape)[None], {"landscape": landscape})


def ablation_auc(
    subject: Subject,
    *,
    n_images: int,
    n_baselines: int,
    n_steps: int = 50,
    step: int = 1,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """Area under the curve of `reglib.metrics.ablation_curve`, by Integrated Gradients.

    Of randomly drawn test images that are classified right, with other test images as baselines.
    The number of replaced pixels goes from none to all by `step`; the mean curve is kept.
    """
    images, labels = subject.test_images(None, data)
    with torch.no_grad():
        right = torch.cat([subject.folded(part).argmax(1) for part in images.split(500)]) == labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = order.to(images.device)
    chosen = order[right[order]][:n_images]
    others = order[~torch.isin(order, chosen)][:n_baselines]
    if len(chosen) < n_images or len(others) < n_baselines:
        raise UsageError(
            f"n_images, n_baselines: expected at most the {int(right.sum())} test images that are "
            f"classified right, and the rest of {len(images)}, got {n_images} and {n_baselines}"
        )
    maps = integrated_gradients(
        subject.folded, images[chosen], labels[chosen], n_steps=n_steps, baselines=images[others]
    )
    n_pixels = images[0, 0].numel()
    counts = [*range(0, n_pixels, step), n_pixels]
    curves = metrics.ablation_curve(
        subject.folded, images[chosen], labels[chosen], maps,
        counts=counts, max_bytes=subject.max_bytes,
    )  # fmt: skip
    kept = {"counts": torch.tensor(counts), "curve": curves.mean(0)}
    return Result(metrics.area_under_curve(curves, counts), kept)


def corruption_robustness(
    subject: Subject,
    *,
    corruption: str,
    level: int,
    n_images: int | None = None,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """See `reglib.metrics.corrupted` and `reglib.metrics.probability_ratio`, for the label."""
    pixels, labels = subject.test_bytes(n_images, data)
    changed = metrics.corrupted(pixels, corruption=corruption, level=level, seed=seed)
    ratios = [
        metrics.probability_ratio(
            subject.folded, subject.as_inputs(a), subject.as_inputs(b), labels_of
        )
        for a, b, labels_of in zip(*(t.split(500) for t in (pixels, changed, labels)))
    ]
    return Result(torch.cat(ratios))


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


METRICS: dict[str, Callable[..., Result]] = {
    "ablation_auc": ablation_auc,
    "accuracy": accuracy,
    "accuracy_by_location": accuracy_by_location,
    "corruption_robustness": corruption_robustness,
    "entropy": entropy,
    "faithfulness_estimate": faithfulness_estimate,
    "importance_landscape": importance_landscape,
    "local_lipschitz_estimate": local_lipschitz_estimate,
    "max_sensitivity": max_sensitivity,
    "saliency_maps": saliency_maps,
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
    if unit.settings.get("saliency", "deeplift") not in SALIENCIES:
        raise unknown("saliency", unit.settings["saliency"], SALIENCIES)
    for name in ("n_images", "n_samples", "n_baselines", "n_steps", "step"):
        count: Any = unit.settings.get(name)
        if count is not None and not (isinstance(count, int) and count > 0):
            raise UsageError(f"{name}: expected a positive integer, got {count!r}")


def measure(subject: Subject, unit: Measurement) -> Result:
    """Compute a measurement."""
    check(unit)
    return METRICS[unit.metric](subject, **unit.settings)
