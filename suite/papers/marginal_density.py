"""Measurements of the marginal-density chapter: see `suite.metrics` for what they mean."""

from suite import metrics
from suite.data import ImageData, Split, load_data, null_block_masks
from suite.errors import UsageError, unknown
from suite.training.evaluated import EvaluatedModel, Result


def feature_leakage(
    subject: EvaluatedModel,
    *,
    n_images: int,
    relative: bool = False,
    saliency: str = "integrated_gradients",
) -> Result:
    """See `suite.metrics.feature_leakage`; for BlockMNIST."""
    images, labels = subject.test_images(n_images)
    test = subject.data.test
    shown = Split(
        test.images[:n_images],
        test.labels[:n_images],
        groups=None if test.groups is None else test.groups[:n_images],
    )
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
    found = metrics.feature_leakage(maps, null_block_masks(shown).to(maps.device))
    return Result(found.relative if relative else found.absolute)


def insertion_auc(
    subject: EvaluatedModel,
    *,
    saliency: str,
    n_images: int,
    n_steps: int,
    score: str = "probability",
) -> Result:
    """See `suite.metrics.insertion_curve` and `area_under_curve`; the curves are kept."""
    images, labels = subject.test_images(n_images)
    curves = metrics.insertion_curve(
        metrics.saliency_maps(subject.folded, saliency)(images, labels),
        subject.folded,
        images,
        labels,
        n_steps=n_steps,
        score=score,
    )
    return Result(metrics.area_under_curve(curves), {"curves": curves})


def pixel_perturbation(
    subject: EvaluatedModel, *, n_images: int, n_steps: int, saliency: str = "smooth_grad"
) -> Result:
    """See `suite.metrics.pixel_perturbation`; the value is the area, the curves are kept."""
    images, labels = subject.test_images(n_images)
    maps = metrics.saliency_maps(subject.folded, saliency)(images, labels).abs()
    curves = metrics.pixel_perturbation(maps, subject.folded, images, labels, n_steps=n_steps)
    return Result(metrics.area_under_curve(curves), {"curves": curves})


def gradient_change(
    subject: EvaluatedModel, *, n_images: int, noise_std: float, n_samples: int = 1, seed: int = 0
) -> Result:
    """See `suite.metrics.gradient_change`."""
    return Result(
        metrics.gradient_change(
            subject.folded,
            *subject.test_images(n_images),
            generator=subject.generator(seed),
            noise_std=noise_std,
            n_samples=n_samples,
        )
    )


def density_change(
    subject: EvaluatedModel,
    *,
    n_images: int,
    noise_std: float,
    n_samples: int = 1,
    published: bool = True,
    seed: int = 0,
) -> Result:
    """See `suite.metrics.density_change`."""
    found = metrics.density_change(
        subject.folded,
        subject.test_images(n_images)[0],
        generator=subject.generator(seed),
        noise_std=noise_std,
        n_samples=n_samples,
    )
    return Result(found.published if published else found.log_density)


def density_gradient(subject: EvaluatedModel, *, n_images: int, part: str = "whole") -> Result:
    """See `suite.metrics.density_gradients`; `part` is "whole", "shift" or "centred"."""
    parts = metrics.DensityGradients._fields
    if part not in parts:
        raise unknown("part", part, parts)
    found = metrics.density_gradients(subject.folded, subject.test_images(n_images)[0])
    return Result(getattr(found, part))


def worst_group_accuracy(subject: EvaluatedModel, *, n_images: int | None = None) -> Result:
    """Accuracy in the group where it is lowest, of all groups of the test images; all are kept."""
    groups = subject.data.test.groups
    if groups is None:
        raise UsageError(f"data set {subject.unit.data!r}: expected groups of images, got none")
    images, labels = subject.test_images(n_images)
    correct = (subject.predict(images) == labels).double()
    accuracies = metrics.group_accuracies(
        correct, groups[:n_images].to(correct.device), int(groups.max()) + 1
    )
    return Result(accuracies.amin()[None], {"accuracies": accuracies})


def ood_auroc(
    subject: EvaluatedModel, *, data: str, score: str = "log_density", n_images: int | None = None
) -> Result:
    """See `suite.metrics.auroc`; `score` is one of `OOD_SCORES`, or "logit" for `logit_auroc`."""
    scores = {*metrics.OOD_SCORES, "logit"}
    if score not in scores:
        raise unknown("score", score, scores)
    check_foreign(subject.data, load_data(data), subject.unit.data, data)
    known, foreign = (
        subject.logits(subject.test_images(n_images, name, labelled=False)[0])
        for name in (None, data)
    )
    if score == "logit":
        return Result(metrics.logit_auroc(known, foreign))
    to_score = metrics.OOD_SCORES[score]
    return Result(metrics.auroc(to_score(known), to_score(foreign)))


def check_foreign(own: ImageData, shown: ImageData, own_name: str, name: str) -> None:
    """Check that images are not those of the training.

    Raises:
        UsageError: they are, by whatever name.
    """
    if shown.fingerprint == own.fingerprint:
        raise UsageError(
            f"data: expected other images than those of the training, got {name!r}, "
            f"which are those of {own_name!r}"
        )
