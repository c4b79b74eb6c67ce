"""Metrics of tensors as metrics of an evaluated model, which supplies their arguments by name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from reglib.double_backward import fast_double_backward
from suite import metrics
from suite.training.evaluated import EvaluatedModel, Result


def _maps(subject: EvaluatedModel, saliency: str, n_images: int) -> Tensor:
    return metrics.saliency_maps(subject.folded, saliency)(*subject.test_images(n_images))


def _effects(
    subject: EvaluatedModel, n_images: int, score: str = "probability", patch: int = 1
) -> Tensor:
    """Return the effects of the pixels; all saliency methods and scores share their logits."""

    def compute() -> Tensor:
        model = fast_double_backward(subject.folded)
        return metrics.perturbed_logits(model, subject.test_images(n_images)[0], patch=patch)

    logits = subject.compute_once(("perturbed_logits", n_images, patch), compute)
    return metrics.effects_on(score, logits, subject.test_uint8(n_images)[1])


# Sources of the arguments of metrics, by name, on the first test images. Their own arguments are
# settings.
ARGUMENTS: dict[str, Callable[..., Any]] = {
    "model": lambda subject: subject.folded,
    "images": lambda subject, n_images: subject.test_images(n_images)[0],
    "class_index": lambda subject, n_images: subject.test_uint8(n_images)[1],
    "maps": _maps,
    "maps_of": lambda subject, saliency: metrics.saliency_maps(subject.folded, saliency),
    "effects": _effects,
    "generator": lambda subject, seed=0: subject.generator(seed),
}
# JSON cannot hold a baseline, so units choose none.
NO_SETTINGS = {*ARGUMENTS, "baseline", "subject", "values"}


def bind(
    metric: Callable[..., Any], result: Callable[..., Result] = lambda values: Result(values)
) -> Callable[..., Result]:
    """Bind a metric to evaluated models: these supply each argument that `ARGUMENTS` names.

    The returned function takes the model and settings, as its signature says: those that the
    supplied arguments depend on, the other arguments of the metric, and those of `result`.

    Args:
        metric: a function of tensors, such as those of `suite.metrics`.
        result: makes the result from `values`, which the metric returns.
    """
    sources = {name: ARGUMENTS[name] for name in _parameters(metric) if name in ARGUMENTS}
    parameters: dict[str, inspect.Parameter] = {}
    for function in (*sources.values(), metric, result):
        parameters |= _parameters(function)
    keywords = [
        p.replace(kind=p.KEYWORD_ONLY) for p in parameters.values() if p.name not in NO_SETTINGS
    ]

    def measure(subject: EvaluatedModel, **settings: Any) -> Result:
        def call(function: Callable[..., Any], **arguments: Any) -> Any:
            names = settings.keys() & _parameters(function)
            return function(**arguments, **{name: settings[name] for name in names})

        supplied = {name: call(source, subject=subject) for name, source in sources.items()}
        return call(result, values=call(metric, **supplied))

    subject = inspect.Parameter("subject", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    measure.__signature__ = inspect.Signature([subject, *keywords])  # type: ignore[attr-defined]
    return measure


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def area(values: Tensor) -> Result:
    """Return the areas under curves; keep the curves."""
    return Result(metrics.area_under_curve(values), {"curves": values})
