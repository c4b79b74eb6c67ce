"""Measures of the chapter on importance landscapes: see `suite.metrics` and `reglib.landscape`."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.landscape import expected_importance_landscape, total_variation
from suite import metrics
from suite.errors import UsageError
from suite.metrics.saliency import integrated_gradients
from suite.training.evaluated import EvaluatedModel, Result

# The category of each corruption.
CATEGORIES = {name: category for category, names in metrics.CORRUPTIONS.items() for name in names}
# Images of at most so many bytes are corrupted once for all networks of a process, which takes
# longer than to show them to a network.
REMEMBERED_BYTES = 2**22
N_CORRUPTED_SETS = 15 * 5  # all corruptions and levels


def accuracy_by_location(
    subject: EvaluatedModel,
    *,
    margin: int,
    where: str = "all",
    stride: int = 1,
    n_images: int | None = None,
    data: str | None = None,
) -> Result:
    """Share of the shifts over an empty margin after which an image is classified right.

    `where` is a name in `suite.metrics.positions`; the accuracy of each shift is kept. See
    `suite.metrics.correct_by_location`.
    """
    images, labels = subject.test_images(n_images, data)
    correct = metrics.correct_by_location(
        subject.logits, images, labels, margin=margin, stride=stride
    )
    chosen = metrics.positions(where, correct.shape[1]).to(correct.device)
    return Result(correct[:, chosen].mean(1), {"accuracy": correct.mean(0)})


def importance_landscape(
    subject: EvaluatedModel, *, n_images: int | None = None, data: str | None = None
) -> Result:
    """Total variation of the importance landscape over test images: one value. The map is kept.

    See `reglib.landscape.expected_importance_landscape` and `reglib.landscape.total_variation`.
    """
    images, _ = subject.test_images(n_images, data)
    landscape = expected_importance_landscape(subject.folded, images.split(100))
    return Result(total_variation(landscape)[None], {"landscape": landscape})


def ablation_auc(
    subject: EvaluatedModel,
    *,
    n_images: int,
    n_baselines: int,
    n_steps: int = 50,
    stride: int = 1,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """Area under the curve of `suite.metrics.ablation_curve`, by Integrated Gradients.

    Of randomly drawn test images that are classified right, with other test images as baselines.
    The number of replaced pixels goes from none to all by `stride`; the mean curve is kept.
    """
    images, labels = subject.test_images(None, data)
    correct = subject.predict(images) == labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = order.to(images.device)
    chosen = order[correct[order]][:n_images]
    others = order[~torch.isin(order, chosen)][:n_baselines]
    if len(chosen) < n_images or len(others) < n_baselines:
        raise UsageError(
            f"n_images, n_baselines: expected at most the {int(correct.sum())} test images that "
            f"are classified right, and the rest of {len(images)}, got {n_images} and {n_baselines}"
        )
    images_and_labels = images[chosen], labels[chosen]
    maps = integrated_gradients(
        subject.folded, *images_and_labels, n_steps=n_steps, baselines=images[others]
    )
    n_pixels = images[0, 0].numel()
    counts = [*range(0, n_pixels, stride), n_pixels]
    curves = metrics.ablation_curve(subject.folded, *images_and_labels, maps, counts=counts)
    kept = {"counts": torch.tensor(counts), "curve": curves.mean(0)}
    return Result(metrics.area_under_curve(curves, counts), kept)


@functools.lru_cache(N_CORRUPTED_SETS)
def _corrupted(
    pixels: bytes, shape: tuple[int, ...], corruption: str, level: int, seed: int
) -> Tensor:
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(shape)
    return metrics.corrupted(images, corruption=corruption, level=level, seed=seed)


def corruption_robustness(
    subject: EvaluatedModel,
    *,
    corruption: str,
    level: int,
    n_images: int | None = None,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """See `suite.metrics.corrupted` and `suite.metrics.probability_ratio`, for the label."""
    pixels, labels = subject.test_uint8(n_images, data)
    corrupt = _corrupted if pixels.nbytes <= REMEMBERED_BYTES else _corrupted.__wrapped__
    content = pixels.cpu().numpy().tobytes(), tuple(pixels.shape)
    changed = corrupt(*content, corruption, level, seed).to(pixels.device)
    return Result(metrics.probability_ratio(subject.logits, pixels, changed, labels))


def corrupted_accuracy(
    subject: EvaluatedModel,
    *,
    level: int,
    n_images: int | None = None,
    corruption: str | None = None,
    seed: int = 0,
) -> Result:
    """Share of the corruptions under which the prediction is the label, for each test image.

    They are all of `suite.metrics.CORRUPTIONS`, or one of them: then a value is 1 or 0.
    """
    pixels, labels = subject.test_uint8(n_images)
    correct = []
    for name in [corruption] if corruption else CATEGORIES:
        changed = metrics.corrupted(pixels, corruption=name, level=level, seed=seed)
        correct.append((subject.predict(changed) == labels).double())
    return Result(torch.stack(correct).mean(0))


def top_k_accuracy(subject: EvaluatedModel, *, k: int = 5, n_images: int | None = None) -> Result:
    """1 where the label of a test image is among the `k` classes of highest logits, else 0."""
    images, labels = subject.test_images(n_images)
    if k > len(subject.data.classes):
        raise UsageError(f"k: expected 1 to {len(subject.data.classes)} classes, got {k!r}")
    first = subject.logits(images).topk(k).indices
    return Result((first == labels[:, None]).any(1).double())


def cross_entropy(subject: EvaluatedModel, *, n_images: int | None = None) -> Result:
    """Cross-entropy of each test image, in nats, without penalties."""
    images, labels = subject.test_images(n_images)
    return Result(F.cross_entropy(subject.logits(images), labels, reduction="none"))


_METRICS = (
    ablation_auc,
    accuracy_by_location,
    corrupted_accuracy,
    corruption_robustness,
    cross_entropy,
    importance_landscape,
    top_k_accuracy,
)
METRICS: dict[str, Callable[..., Result]] = {metric.__name__: metric for metric in _METRICS}
