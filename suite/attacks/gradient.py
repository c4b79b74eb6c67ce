"""Attacks along the gradient, by Foolbox."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from suite.attacks.common import BATCH_SIZE, Attacked, Perturb, attack_all, check, seeded


def fgsm(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    norm: str = "linf",
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    r"""Take one step along the gradient (fast gradient sign method), by Foolbox.

    .. math:: x' = \text{clip}(x + \epsilon \, \text{sign} \nabla_x H(\hat c, f(x)))

    with :math:`\hat c` the predicted class; under "l2" the step is along the gradient itself.

    Args:
        model: network from images in [0, 1] to logits. A copy in evaluation mode is attacked.
        images: (B, C, H, W) in [0, 1].
        labels: (B,).
        epsilon: largest change: of a value under "linf", of the image under "l2".
        norm: "linf" or "l2".
        batch_size: images that are attacked at a time.

    Raises:
        ValueError: images outside [0, 1]; epsilon not above 0, or above the largest change.
        UsageError: unknown norm.

    Source: :cite:t:`goodfellow2015`.
    """
    check(images, epsilon, norm)
    known = _foolbox().attacks
    attacks = {"linf": known.LinfFastGradientAttack, "l2": known.L2FastGradientAttack}
    perturb = _by_foolbox(attacks[norm](), epsilon)
    return attack_all(perturb, model, images, labels, batch_size)


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    generator: torch.Generator,
    norm: str = "linf",
    steps: int = 40,
    restarts: int = 1,
    relative_step: float = 1 / 30,
    batch_size: int = BATCH_SIZE,
) -> Attacked:
    r"""Take projected gradient steps from a random start, by Foolbox.

    .. math:: x \leftarrow \text{clip}_{\|x - x_0\| \le \epsilon}
        (x + \rho \, \epsilon \, \text{sign} \nabla_x H(\hat c, f(x)))

    The defaults are those of Foolbox under "linf", which the paper names. With :math:`\rho` = 1/30
    and 20 steps a value moves by two thirds of `epsilon` at most; 60 steps cross the ball.

    Args:
        model, images, labels, epsilon, norm, batch_size: see `fgsm`.
        generator: source of the random starts.
        steps: gradient steps.
        restarts: random starts; an image counts as attacked if one of them changes its prediction.
        relative_step: :math:`\rho`, length of a step relative to `epsilon`.

    Raises:
        ValueError, UsageError: see `fgsm`; `steps`, `restarts` or `relative_step` not positive.

    Source: :cite:t:`madry2018`.
    """
    check(images, epsilon, norm, steps=steps, restarts=restarts, relative_step=relative_step)
    known = _foolbox().attacks
    attacks = {
        "linf": known.LinfProjectedGradientDescentAttack,
        "l2": known.L2ProjectedGradientDescentAttack,
    }
    attack = attacks[norm](steps=steps, rel_stepsize=relative_step)
    perturb = _by_foolbox(attack if restarts == 1 else attack.repeat(restarts), epsilon)
    with seeded(generator):
        return attack_all(perturb, model, images, labels, batch_size)


def _by_foolbox(attack: Any, epsilon: float) -> Perturb:
    def perturb(frozen: nn.Module, x: Tensor, predicted: Tensor) -> Tensor:
        network = _foolbox().PyTorchModel(frozen, bounds=(0, 1), device=x.device)
        return attack(network, x, predicted, epsilons=epsilon)[1]

    return perturb


def _foolbox() -> Any:
    """Import Foolbox, which imports a name that SciPy is about to move."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please import `gaussian_filter`", DeprecationWarning)
        import foolbox
    return foolbox
