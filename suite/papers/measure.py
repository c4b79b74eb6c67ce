"""Metrics by name, which a `Measurement` computes for a trained network."""

import inspect
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Literal, get_args, get_origin

import torch

from suite import metrics
from suite.attacks import ATTACKS
from suite.errors import check_call, unknown
from suite.papers import group_features, second_order, side_by_side_measures, top_gap_measures
from suite.papers import marginal_density_measures as density_measures
from suite.papers import pilcro_measures as landscape_measures
from suite.papers import your_measures as own_measures
from suite.papers.binding import bind
from suite.training.evaluated import EvaluatedModel, Result
from suite.units import COUNT, POSITIVE, Measurement, require


def accuracy(
    subject: EvaluatedModel,
    *,
    n_images: int | None = None,
    data: str | None = None,
    half: int | None = None,
) -> Result:
    """Return 1 where a test image is classified correctly, else 0.

    With `data` the test images are those of another data set. With `half`, 0 or 1, they are one
    half of the images, from a random but fixed split.
    """
    _, labels = subject.test_uint8(n_images, data)
    correct = (subject.test_logits(n_images, data).argmax(1) == labels).double()
    if half is not None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        correct = correct[order[half::2].to(labels.device)]
    return Result(correct)


def saliency_maps(
    subject: EvaluatedModel, *, saliency: str, n_images: int, data: str | None = None
) -> Result:
    """Keep the images and their maps; the value is the norm of each map."""
    images, labels = subject.test_images(n_images, data)
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
    predicted = subject.folded(images).argmax(1)
    tensors = {"images": images, "labels": labels, "maps": maps, "predicted": predicted}
    return Result(maps.flatten(1).norm(dim=1), tensors)


def _metrics_in(module: ModuleType) -> dict[str, Callable[..., Result]]:
    """Return the metrics of a module: its public functions whose first argument is `subject`."""
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {n: f for n, f in functions if f.__module__ == module.__name__ and not n.startswith("_")}
    return {
        n: f for n, f in own.items() if next(iter(inspect.signature(f).parameters), "") == "subject"
    }


MODULES = [density_measures, group_features, landscape_measures, second_order]
MODULES += [side_by_side_measures, top_gap_measures, own_measures]
# Metrics of tensors alone.
OF_TENSORS = "density_change entropy faithfulness_estimate gradient_change".split()
OF_TENSORS += "local_lipschitz_estimate max_sensitivity".split()
METRICS: dict[str, Callable[..., Result]] = {
    "accuracy": accuracy,
    "saliency_maps": saliency_maps,
    **{name: bind(getattr(metrics, name)) for name in OF_TENSORS},
    **density_measures.METRICS,
    **{name: metric for module in MODULES for name, metric in _metrics_in(module).items()},
}
# Settings whose values are names in a table, of all metrics or of one. Settings with few possible
# words are of type `Literal` in the metric.
CHOICES: dict[str, Collection[str]] = {
    "attack": ATTACKS,
    "category": [*metrics.CORRUPTIONS],
    "ood_auroc.score": metrics.OOD_SCORES,
    "drawn_maps.saliency": (*metrics.SALIENCIES, own_measures.CLASS_MAP),
    "saliency": metrics.SALIENCIES,
    "shift": density_measures.SHIFTS,
}
COUNTS = "block k n_baselines n_bins n_classes n_draws n_images n_samples".split()
COUNTS += "n_targets n_steps patch pixels queries step steps stride".split()
RULES = dict.fromkeys(COUNTS, COUNT)
RULES |= dict.fromkeys("epsilon noise_std relative_step scale".split(), POSITIVE)
# Metrics that use only the images of other data, which may have any number of classes.
WITHOUT_LABELS = ("ood_auroc",)


def check(unit: Measurement) -> None:
    """Check the metric of a unit and its settings, before anything is computed.

    Raises:
        UsageError: an unknown metric, an unknown or missing setting, or a wrong value of a setting.
    """
    check_call("metric", unit.metric, METRICS, unit.settings, supplied=("subject",))
    parameters = inspect.signature(METRICS[unit.metric]).parameters
    for name, value in unit.settings.items():
        annotation = parameters[name].annotation
        known = get_args(annotation) if get_origin(annotation) is Literal else CHOICES.get(name)
        known = CHOICES.get(f"{unit.metric}.{name}", known)
        if known is not None and value is not None and value not in known:
            raise unknown(name, value, known)
    if unit.metric == "robust_accuracy":
        top_gap_measures.check_attack(**unit.settings)
    settings = {**unit.settings, **(unit.settings.get("attack_settings") or {})}
    for name, rule in RULES.items():
        if settings.get(name) is not None:
            require(name, settings[name], rule)


def measure(subject: EvaluatedModel, unit: Measurement) -> Result:
    """Compute a measurement of an evaluated model."""
    check(unit)
    return METRICS[unit.metric](subject, **unit.settings)
