"""Metrics by name: what a `Measurement` asks of a trained network."""

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from reglib.double_backward import fast_double_backward
from suite import metrics
from suite.attacks import ATTACKS
from suite.errors import UsageError, check_call, unknown
from suite.metrics.saliency import SALIENCIES
from suite.papers import marginal_density_measures as density_measures
from suite.papers import pilcro_measures as landscape_measures
from suite.papers import second_order, top_gap_measures
from suite.training.evaluated import EvaluatedModel, Result
from suite.units import Measurement


def accuracy(
    subject: EvaluatedModel, *, n_images: int | None = None, data: str | None = None
) -> Result:
    """1 where a test image, of another data set if `data` is given, is classified right, else 0."""
    pixels, labels = subject.test_uint8(n_images, data)
    return Result((subject.predict(pixels) == labels).double())


def faithfulness_estimate(
    subject: EvaluatedModel, *, saliency: str, n_images: int, score: str = "probability"
) -> Result:
    """See `suite.metrics.faithfulness_estimate`."""
    images, labels = subject.test_images(n_images)
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
    return Result(metrics.faithfulness_estimate(maps, _effects(subject, n_images, score)))


def _effects(subject: EvaluatedModel, n_images: int, score: str) -> Tensor:
    """Effects of the pixels, which are the same for every saliency method."""

    def compute() -> Tensor:
        model = fast_double_backward(subject.folded)
        return metrics.pixel_effects(model, *subject.test_images(n_images), score=score)

    return subject.cached(("pixel_effects", n_images, score), compute)


def local_lipschitz_estimate(
    subject: EvaluatedModel,
    *,
    saliency: str,
    n_images: int,
    n_samples: int,
    noise_std: float = 0.1,
    seed: int = 0,
) -> Result:
    """See `suite.metrics.local_lipschitz_estimate`."""
    return Result(
        metrics.local_lipschitz_estimate(
            metrics.saliency_maps(subject.folded, saliency),
            *subject.test_images(n_images),
            n_samples=n_samples,
            noise_std=noise_std,
            generator=subject.generator(seed),
        )
    )


def max_sensitivity(
    subject: EvaluatedModel,
    *,
    saliency: str,
    n_images: int,
    n_samples: int,
    radius: float = 0.2,
    seed: int = 0,
) -> Result:
    """See `suite.metrics.max_sensitivity`."""
    return Result(
        metrics.max_sensitivity(
            metrics.saliency_maps(subject.folded, saliency),
            *subject.test_images(n_images),
            n_samples=n_samples,
            radius=radius,
            generator=subject.generator(seed),
        )
    )


def entropy(subject: EvaluatedModel, *, saliency: str, n_images: int) -> Result:
    """See `suite.metrics.entropy`."""
    return Result(
        metrics.entropy(
            metrics.saliency_maps(subject.folded, saliency)(*subject.test_images(n_images))
        )
    )


def saliency_maps(
    subject: EvaluatedModel, *, saliency: str, n_images: int, data: str | None = None
) -> Result:
    """Keep the images and their maps; the value is the norm of each map."""
    images, labels = subject.test_images(n_images, data)
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
    predicted = subject.folded(images).argmax(1)
    kept = {"images": images, "labels": labels, "maps": maps, "predicted": predicted}
    return Result(maps.flatten(1).norm(dim=1), kept)


METRICS: dict[str, Callable[..., Result]] = {
    **density_measures.METRICS,
    "ablation_auc": landscape_measures.ablation_auc,
    "accuracy": accuracy,
    "accuracy_by_location": landscape_measures.accuracy_by_location,
    "class_map_sparsity": top_gap_measures.class_map_sparsity,
    "closed_form_error": second_order.closed_form_error,
    "corruption_robustness": landscape_measures.corruption_robustness,
    "corrupted_accuracy": landscape_measures.corrupted_accuracy,
    "cross_entropy": landscape_measures.cross_entropy,
    "effective_receptive_field": top_gap_measures.effective_receptive_field,
    "entropy": entropy,
    "erf_distance": top_gap_measures.erf_distance,
    "exact_share": second_order.exact_share,
    "faithfulness_estimate": faithfulness_estimate,
    "first_and_second_order": second_order.first_and_second_order,
    "high_order": second_order.high_order,
    "importance_landscape": landscape_measures.importance_landscape,
    "interpretation_quality": second_order.interpretation_quality,
    "largest_eigenvalue": second_order.largest_eigenvalue,
    "lambda1_sweep": second_order.lambda1_sweep,
    "local_lipschitz_estimate": local_lipschitz_estimate,
    "mask_iou": top_gap_measures.mask_iou,
    "max_sensitivity": max_sensitivity,
    "robust_accuracy": top_gap_measures.robust_accuracy,
    "robust_to_all": top_gap_measures.robust_to_all,
    "saliency_maps": saliency_maps,
    "top_k_accuracy": landscape_measures.top_k_accuracy,
}


_CORRUPTIONS = [name for kind in metrics.CORRUPTIONS.values() for name in kind]
# Settings that are one of several names: of all metrics, or of one.
CHOICES: dict[str, Collection[str]] = {
    "attack": ATTACKS,
    "class_map_sparsity.class_of": ("label", "predicted"),
    "corrupted_accuracy.corruption": _CORRUPTIONS,
    "corruption_robustness.corruption": _CORRUPTIONS,
    "density_gradient.part": metrics.DensityGradients._fields,
    "erf_distance.normalise": ("each", "none", "together"),
    "erf_distance.part": metrics.ERFDistance._fields,
    "largest_eigenvalue.way": second_order.WAYS,
    "feature_leakage.shift": density_measures.SHIFTS,
    "implementations.value": density_measures.COMPARISONS,
    "ood_auroc.score": (*metrics.OOD_SCORES, "logit"),
    "robust_accuracy.counts": ("correct", "unchanged"),
    "saliency": SALIENCIES,
}
COUNTS = (
    "k",
    "n_baselines",
    "n_classes",
    "n_images",
    "n_rounds",
    "n_samples",
    "n_steps",
    "patch",
    "step",
    "stride",
)
# What takes only the images of the data that it is shown: these may have any number of classes.
WITHOUT_LABELS = ("ood_auroc",)


def images_needed(unit: Measurement) -> int | None:
    """Return how many test images there must be for a measurement; None if any number will do."""
    count = unit.settings.get("n_images")
    if count is None:
        return None
    return unit.settings.get("first", 0) + (count - 1) * unit.settings.get("step", 1) + 1


def check(unit: Measurement) -> None:
    """Check the names in a unit before any time is spent.

    Raises:
        UsageError: unknown metric or setting, a setting that is missing, or a value of it that is
            not known.
    """
    check_call("metric", unit.metric, METRICS, unit.settings, given=("subject",))
    for name, chosen in unit.settings.items():
        known = CHOICES.get(f"{unit.metric}.{name}", CHOICES.get(name))
        if known is not None and chosen is not None and chosen not in known:
            raise unknown(name, chosen, known)
    if unit.metric in ("robust_accuracy", "transfer_accuracy"):
        top_gap_measures.check_attack(**unit.settings)
    for settings in unit.settings.get("attacks", ()):
        top_gap_measures.check_attack(**settings)
    for name in COUNTS:
        count: Any = unit.settings.get(name)
        if count is not None and not (isinstance(count, int) and count > 0):
            raise UsageError(f"{name}: expected a positive integer, got {count!r}")


def measure(subject: EvaluatedModel, unit: Measurement) -> Result:
    """Compute a measurement."""
    check(unit)
    return METRICS[unit.metric](subject, **unit.settings)
