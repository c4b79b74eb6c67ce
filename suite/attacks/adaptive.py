"""Attacks that adapt their steps or ask for logits only, by ART."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from suite.attacks.common import BATCH_SIZE, NORMS, Attacked, attack_all, check, judged, seeded
from suite.errors import unknown

LOSSES = {"cross_entropy": "cross_entropy", "logit_ratio": "difference_logits_ratio"}


def apgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    generator: torch.Generator,
    norm: str = "linf",
    loss: str = "cross_entropy",
    n_targets: int = 0,
    steps: int = 100,
    restarts: int = 1,
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    """Take gradient steps whose length adapts (Auto-PGD), by ART.

    Args:
        model, images, labels, epsilon, norm, batch_size: see `fgsm`.
        generator: source of the random starts.
        loss: "cross_entropy" (APGD-CE) or "logit_ratio" (APGD-DLR, for three classes or more).
        n_targets: 0, or how many of the likeliest other classes to aim at one after the other.
        steps, restarts: see `pgd`.

    Raises:
        ValueError, UsageError: see `pgd`; unknown loss; `logit_ratio` with two classes.

    Source: :cite:t:`croce2020`. Unlike its authors, ART judges an image by the last step, not by
    the best one, and aims at a class by the same losses.
    """
    check(images, epsilon, norm, steps=steps, restarts=restarts)
    if loss not in LOSSES:
        raise unknown("loss", loss, LOSSES)

    def perturb(frozen: nn.Module, x: Tensor, predicted: Tensor) -> Tensor:
        from art.attacks.evasion import AutoProjectedGradientDescent

        logits = frozen(x)
        if loss == "logit_ratio" and logits.shape[1] < 3:
            raise ValueError(f"loss: expected three classes for logit_ratio, got {logits.shape[1]}")
        attack = AutoProjectedGradientDescent(
            _classifier(frozen, x, logits.shape[1]),
            norm=NORMS[norm],
            eps=epsilon,
            eps_step=2 * epsilon,
            max_iter=steps,
            nb_random_init=restarts,
            targeted=n_targets > 0,
            batch_size=len(x),
            loss_type=LOSSES[loss],
            verbose=False,
        )
        if not n_targets:
            return _generated(attack, x, predicted)
        others = logits.scatter(1, predicted[:, None], -torch.inf).argsort(1, descending=True)
        result = x
        for target in others[:, : min(n_targets, logits.shape[1] - 1)].T:
            found = _generated(attack, x, target)
            fooled = frozen(result).argmax(1) != predicted
            result = torch.where(fooled[:, None, None, None], result, found)
        return result

    with seeded(generator):
        return attack_all(perturb, model, images, labels, batch_size)


def square(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    generator: torch.Generator,
    steps: int = 5000,
    restarts: int = 1,
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    """Change random squares, and keep what lowers the margin (Square Attack), by ART.

    It asks for logits only, so it does not depend on gradients. The largest change of a value is
    bounded ("linf"); ART's search in the Euclidean ball divides by zero. The first square covers
    0.8 of an image, less of an oblong one, which has no room for so large a square.

    Args:
        model, images, labels, epsilon, batch_size: see `fgsm`. ART tries the same square on all
            images of a batch.
        generator: source of the squares.
        steps: queries of an image in each restart.
        restarts: independent searches.

    Raises:
        ValueError, UsageError: see `pgd`; images that are too small for the first square.

    Source: :cite:t:`andriushchenko2020`.
    """
    check(images, epsilon, "linf", steps=steps, restarts=restarts)
    height, width = images.shape[2:]
    shorter, share = min(height, width), 0.8
    if shorter < 5:
        raise ValueError(
            "images: expected at least 5 pixels a side, as the first square of ART needs, got "
            f"{height} x {width}"
        )
    if shorter <= round((share * height * width) ** 0.5):  # the square must fit in
        share = (shorter - 1) ** 2 / (height * width)

    def perturb(frozen: nn.Module, x: Tensor, predicted: Tensor) -> Tensor:
        from art.attacks.evasion import SquareAttack

        attack = SquareAttack(
            _classifier(frozen, x, frozen(x).shape[1]),
            norm=NORMS["linf"],
            eps=epsilon,
            max_iter=steps,
            nb_restarts=restarts,
            p_init=share,
            batch_size=len(x),
            verbose=False,
        )
        return _generated(attack, x, predicted)

    with seeded(generator):
        return attack_all(perturb, model, images, labels, batch_size)


def auto_attack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    generator: torch.Generator,
    steps: int = 100,
    n_targets: int = 9,
    queries: int = 5000,
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    """Attack by APGD-CE, by APGD aimed at classes, and by Square, each where the others failed.

    An image is unchanged if all three fail. Of the four attacks of AutoAttack, FAB is missing: ART
    does not have it, and has DeepFool in its place. Changes are bounded as in `square`.

    Args:
        model, images, labels, epsilon, batch_size: see `fgsm`.
        generator: source of random starts and squares.
        steps, n_targets: of `apgd`.
        queries: of `square`.

    Raises:
        ValueError, UsageError: see `apgd`.

    Source: :cite:t:`croce2020`.
    """
    check(images, epsilon, "linf", steps=steps, n_targets=n_targets, queries=queries)
    common: dict[str, Any] = {"epsilon": epsilon, "generator": generator, "batch_size": batch_size}
    attacks: list[Callable[..., Attacked]] = [
        lambda *a: apgd(*a, steps=steps, **common),
        lambda *a: apgd(*a, steps=steps, n_targets=n_targets, **common),
        lambda *a: square(*a, steps=queries, **common),
    ]
    result, left = images.clone(), torch.arange(len(images))
    for attack in attacks:
        found = attack(model, images[left], labels[left])
        result[left] = found.images
        left = left[found.unchanged.cpu()]
        if not len(left):
            break
    return judged(model, images, result, labels, batch_size=batch_size)


def _classifier(frozen: nn.Module, x: Tensor, classes: int) -> Any:
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(
        frozen,
        nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="cpu" if x.device.type == "cpu" else "gpu",
    )


def _generated(attack: Any, x: Tensor, classes: Tensor) -> Tensor:
    found = attack.generate(x.cpu().numpy(), classes.cpu().numpy())
    return torch.from_numpy(found).to(x)
