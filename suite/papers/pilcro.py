"""Measurements of the chapter on importance landscapes: see `suite.metrics` and `landscape`."""

import functools
import hashlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.landscape import expected_importance_landscape, total_variation
from suite import metrics
from suite.errors import UsageError
from suite.metrics.saliency import integrated_gradients
from suite.training.evaluated import EvaluatedModel, Result


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

    `where` is a name in `suite.metrics.places`; the accuracy of each shift is kept. See
    `suite.metrics.correct_by_location`.
    """
    correct = torch.cat(
        [
            metrics.correct_by_location(
                subject.folded, images, labels, margin=margin, stride=stride
            )
            for images, labels in zip(*(t.split(500) for t in subject.test_images(n_images, data)))
        ]
    )
    chosen = metrics.places(where, correct.shape[1]).to(correct.device)
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
    right = subject.predict(images) == labels
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
    counts = [*range(0, n_pixels, stride), n_pixels]
    curves = metrics.ablation_curve(
        subject.folded, images[chosen], labels[chosen], maps, counts=counts
    )
    kept = {"counts": torch.tensor(counts), "curve": curves.mean(0)}
    return Result(metrics.area_under_curve(curves, counts), kept)


# Images of at most so many bytes, and of all corruptions and levels, are corrupted once for all
# networks of a process, which takes longer than to show them to a network.
REMEMBERED_BYTES = 2**22


@dataclass(frozen=True)
class _Pixels:
    """Images that are equal where their digests are."""

    digest: str
    images: Tensor = field(compare=False)


@functools.lru_cache(maxsize=15 * 5)
def _corrupted(pixels: _Pixels, corruption: str, level: int, seed: int) -> Tensor:
    return metrics.corrupted(pixels.images, corruption=corruption, level=level, seed=seed)


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
    if pixels.nbytes <= REMEMBERED_BYTES:
        digest = hashlib.sha256(pixels.cpu().contiguous().numpy().data).hexdigest()
        changed = _corrupted(_Pixels(digest, pixels), corruption, level, seed)
    else:
        changed = metrics.corrupted(pixels, corruption=corruption, level=level, seed=seed)
    ratios = [
        metrics.probability_ratio(
            subject.folded, subject.as_inputs(a), subject.as_inputs(b), labels_of
        )
        for a, b, labels_of in zip(*(t.split(500) for t in (pixels, changed, labels)))
    ]
    return Result(torch.cat(ratios))


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
    of_kinds = [name for kind in metrics.CORRUPTIONS.values() for name in kind]
    right = []
    for name in [corruption] if corruption else of_kinds:
        changed = metrics.corrupted(pixels, corruption=name, level=level, seed=seed)
        right.append((subject.predict(changed) == labels).double())
    return Result(torch.stack(right).mean(0))


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
    logits = subject.logits(images)
    return Result(F.cross_entropy(logits, labels, reduction="none"))
