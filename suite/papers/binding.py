"""Metrics of an evaluated model: what they take by name comes from the model and its images."""

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
    """Effects of the pixels, from logits that are the same for every saliency method and score."""

    def compute() -> Tensor:
        model = fast_double_backward(subject.folded)
        return metrics.perturbed_logits(model, subject.test_images(n_images)[0], patch=patch)

    logits = subject.compute_once(("perturbed_logits", n_images, patch), compute)
    return metrics.effects_on(score, logits, subject.test_uint8(n_images)[1])


# Arguments of metrics by name, of the first test images; what these take are settings.
ARGUMENTS: dict[str, Callable[..., Any]] = {
    "model": lambda subject: subject.folded,
    "images": lambda subject, n_images: subject.test_images(n_images)[0],
    "class_index": lambda subject, n_images: subject.test_uint8(n_images)[1],
    "maps": _maps,
    "sizes": lambda subject, saliency, n_images: _maps(subject, saliency, n_images).abs(),
    "maps_of": lambda subject, saliency: metrics.saliency_maps(subject.folded, saliency),
    "effects": _effects,
    "generator": lambda subject, seed=0: subject.generator(seed),
}
# Units choose no baseline, which JSON cannot hold.
NO_SETTINGS = {*ARGUMENTS, "baseline", "subject", "values"}


def _result(values: Tensor) -> Result:
    return Result(values)


def of_subject(
    metric: Callable[..., Any], result: Callable[..., Result] = _result, **defaults: Any
) -> Callable[..., Result]:
    """Let a metric take from an evaluated model what has the name of one of `ARGUMENTS`.

    The settings, as the signature of the returned function says, are what these arguments depend
    on, the other arguments of the metric, and those of `result`.

    Args:
        metric: a function of tensors, such as those of `suite.metrics`.
        result: makes the result of what the metric returns, its argument `values`.
        defaults: of settings, in place of those of the functions.
    """
    sources = {name: ARGUMENTS[name] for name in _parameters(metric) if name in ARGUMENTS}
    parameters: dict[str, inspect.Parameter] = {}
    for function in (*sources.values(), metric, result):
        parameters |= _parameters(function)
    keywords = [
        p.replace(kind=p.KEYWORD_ONLY, default=defaults.get(p.name, p.default))
        for p in parameters.values()
        if p.name not in NO_SETTINGS
    ]

    def measured(subject: EvaluatedModel, **settings: Any) -> Result:
        settings = defaults | settings

        def call(function: Callable[..., Any], **given: Any) -> Any:
            names = settings.keys() & _parameters(function)
            return function(**given, **{name: settings[name] for name in names})

        arguments = {name: call(source, subject=subject) for name, source in sources.items()}
        return call(result, values=call(metric, **arguments))

    subject = inspect.Parameter("subject", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    measured.__signature__ = inspect.Signature([subject, *keywords])  # type: ignore[attr-defined]
    return measured


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def area(values: Tensor) -> Result:
    """Return the areas under curves, and keep the curves."""
    return Result(metrics.area_under_curve(values), {"curves": values})
