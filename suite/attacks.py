"""Adversarial attacks on images in [0, 1]: thin calls of Foolbox and AutoAttack.

An attack returns images, (B, C, H, W). It is aimed at the class that the network predicts for the
clean image, so one attack answers two questions: is the prediction unchanged, and is it still
correct?
"""

import logging
import pkgutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from reglib._checks import check_positive
from reglib.double_backward import folded_copy
from suite.errors import check_name, expected

NORMS = ("linf", "l2")
AUTO_ATTACK = ("apgd-ce", "apgd-t", "fab-t", "square")
BATCH_SIZE = 128

Perturb = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Outcome(NamedTuple):
    """Which predictions survive an attack.

    Args:
        unchanged: the prediction is that of the clean image, (B,): "robust" in the paper.
        correct: the prediction was right, and is unchanged, (B,): the usual robust accuracy.
    """

    unchanged: Tensor
    correct: Tensor


def judge_attack(model: nn.Module, images: Tensor, attacked: Tensor, labels: Tensor) -> Outcome:
    """Evaluate a network on attacked images, possibly crafted on another network.

    Args:
        model: network; a copy in evaluation mode is evaluated.
        images, attacked: clean and attacked images, (B, C, H, W).
        labels: (B,).
    """
    frozen = folded_copy(model)
    before, after = (_predict(frozen, x) for x in (images, attacked))
    unchanged = before == after
    return Outcome(unchanged, unchanged & (before == labels))


def fgsm(model: nn.Module, images: Tensor, *, epsilon: float, norm: str = "linf") -> Tensor:
    r"""Take one step along the gradient (fast gradient sign method), by Foolbox.

    .. math:: x' = \text{clip}(x + \epsilon \, \text{sign} \nabla_x H(\hat c, f(x)))

    with :math:`\hat c` the predicted class; under "l2" the step is along the gradient itself.

    Args:
        model: network from images in [0, 1] to logits. A copy in evaluation mode is attacked.
        images: (B, C, H, W) in [0, 1].
        epsilon: largest change of a value under "linf", of the image under "l2".
        norm: "linf" or "l2".

    Raises:
        UsageError: images outside [0, 1]; epsilon not above 0, or larger than any change can be;
            unknown norm.

    Source: :cite:t:`goodfellow2015`.
    """
    _check(images, epsilon, norm)
    return _attack(model, images, _by_foolbox("FastGradientAttack", norm, epsilon))


def pgd(
    model: nn.Module,
    images: Tensor,
    *,
    epsilon: float,
    generator: Generator,
    norm: str = "linf",
    steps: int = 40,
    relative_step: float = 1 / 30,
) -> Tensor:
    r"""Take projected gradient steps from a random start, by Foolbox.

    .. math:: x \leftarrow \text{clip}_{\|x - x_0\| \le \epsilon}
        (x + \rho \, \epsilon \, \text{sign} \nabla_x H(\hat c, f(x)))

    The defaults are those of Foolbox under "linf", which the paper names. With :math:`\rho` = 1/30,
    20 steps move a value by at most two thirds of `epsilon`; 60 steps cross the ball.

    Args:
        model, images, epsilon, norm: see `fgsm`.
        generator: source of the random starts.
        steps: gradient steps.
        relative_step: :math:`\rho`, length of a step relative to `epsilon`.

    Raises:
        ValueError, UsageError: see `fgsm`; `steps` or `relative_step` not positive.

    Source: :cite:t:`madry2018`.
    """
    _check(images, epsilon, norm)
    check_positive(steps=steps, relative_step=relative_step)
    options = {"steps": steps, "rel_stepsize": relative_step}
    perturb = _by_foolbox("ProjectedGradientDescentAttack", norm, epsilon, **options)
    return _attack(model, images, perturb, _draw_seed(generator))


def auto_attack(
    model: nn.Module,
    images: Tensor,
    *,
    epsilon: float,
    generator: Generator,
    norm: str = "linf",
    parts: Sequence[str] = AUTO_ATTACK,
    steps: int = 100,
    n_targets: int = 9,
    queries: int = 5000,
) -> Tensor:
    """Attack by the parts of AutoAttack, in their authors' program.

    Each part attacks the images on which the parts before it failed. A prediction is unchanged if
    all parts fail. The defaults are the standard version. The parts:

    - "apgd-ce": APGD with the cross-entropy.
    - "apgd-t": APGD with a ratio of logits, aimed at the likeliest other classes.
    - "fab-t": FAB, which looks for the smallest change to the likeliest other classes.
    - "square": Square, which needs logits only.

    Args:
        model, images, epsilon, norm: see `fgsm`.
        generator: source of random starts and squares.
        parts: names of the parts, in their order.
        steps: steps of APGD and FAB.
        n_targets: number of likeliest other classes to aim at; all if there are fewer.
        queries: queries of Square.

    Raises:
        ValueError, UsageError: see `pgd`; an unknown part, or none; "apgd-t" with fewer than four
            classes, which its ratio needs.

    Source: :cite:t:`croce2020`; Square :cite:t:`andriushchenko2020`.
    """
    _check(images, epsilon, norm)
    check_positive(steps=steps, n_targets=n_targets, queries=queries)
    if not parts:
        raise expected("parts", f"some of {', '.join(AUTO_ATTACK)}", "none")
    for part in parts:
        check_name("part of AutoAttack", part, AUTO_ATTACK)
    seed = _draw_seed(generator)
    common: dict[str, Any] = {"eps": epsilon, "norm": norm.capitalize(), "seed": seed}

    @torch.no_grad()
    def perturb(frozen: nn.Module, x: Tensor, predicted: Tensor) -> Tensor:
        n_classes = frozen(x[:1]).shape[1]
        if n_classes < 4 and "apgd-t" in parts:
            four = "four classes or more for 'apgd-t'"
            raise expected("parts", four, f"{n_classes}; leave it out")
        targets = {"n_target_classes": min(n_targets, n_classes - 1), "n_iter": steps}
        logger = {"logger": logging.getLogger(__name__)}  # else warns of vanishing gradients
        programs: dict[str, tuple[str, dict[str, Any]]] = {
            "apgd-ce": ("autopgd_base:APGDAttack", {"n_iter": steps, **logger}),
            "apgd-t": ("autopgd_base:APGDAttack_targeted", {**targets, **logger}),
            "fab-t": ("fab_pt:FABAttack_PT", {"targeted": True, **targets}),
            "square": ("square:SquareAttack", {"n_queries": queries, "resc_schedule": False}),
        }

        def forward(images: Tensor) -> Tensor:
            """Make the gradient contiguous, since the programs view it as rows."""
            if images.requires_grad:
                images.register_hook(Tensor.contiguous)
            return frozen(images)

        result, robust = x.clone(), torch.arange(len(x), device=x.device)
        for part in parts:
            name, options = programs[part]
            program = pkgutil.resolve_name(f"pyautoattack.{name}")
            attack = program(forward, **common, **options)
            result[robust] = attack.perturb(x[robust].contiguous(), predicted[robust])
            robust = robust[frozen(result[robust]).argmax(1) == predicted[robust]]
            if not len(robust):
                break
        return result

    return _attack(model, images, perturb, _draw_seed(generator))


ATTACKS: dict[str, Callable[..., Tensor]] = {a.__name__: a for a in (auto_attack, fgsm, pgd)}


@torch.no_grad()
def _predict(model: nn.Module, images: Tensor) -> Tensor:
    logits = torch.cat([model(x) for x in images.split(BATCH_SIZE)])
    if not logits.isfinite().all():
        raise expected("model", "finite logits", "infinity or NaN; has the training diverged?")
    return logits.argmax(1)


def _by_foolbox(name: str, norm: str, epsilon: float, **options: Any) -> Perturb:
    """Return an attack of Foolbox; its import of a deprecated name of SciPy would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please import `gaussian_filter`", DeprecationWarning)
        foolbox = pkgutil.resolve_name("foolbox")
    attack = getattr(foolbox.attacks, norm.capitalize() + name)(**options)

    def perturb(frozen: nn.Module, x: Tensor, predicted: Tensor) -> Tensor:
        network = foolbox.PyTorchModel(frozen, bounds=(0, 1), device=x.device)
        return attack(network, x, predicted, epsilons=epsilon)[1]

    return perturb


def _draw_seed(generator: Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


def _attack(model: nn.Module, images: Tensor, perturb: Perturb, seed: int = 0) -> Tensor:
    """Attack images, batch by batch.

    `perturb` gets a frozen copy of the network, a batch of images and their predicted classes. It
    may draw from PyTorch's global generator, which has the seed meanwhile.
    """
    # A copy, so that an attack changes neither gradients nor mode of the caller's network.
    frozen = folded_copy(model)
    batches = images.detach().split(BATCH_SIZE)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.cat([perturb(frozen, x, _predict(frozen, x)) for x in batches])


def _check(images: Tensor, epsilon: float, norm: str) -> None:
    check_name("norm", norm, NORMS)
    low, high = float(images.min()), float(images.max())
    if not 0 <= low <= high <= 1:
        advice = "make what brings them to another range part of the network, for instance "
        advice += "nn.Sequential(v2.Normalize(mean, std), network)"
        raise expected("images", "values in [0, 1]", f"{low:.3g} to {high:.3g}; {advice}")
    largest = 1.0 if norm == "linf" else images[0].numel() ** 0.5
    if not 0 < epsilon <= largest:
        most = f"a number above 0 and up to {largest:.4g}, the largest change of an image in [0, 1]"
        raise expected("epsilon", f"{most} by {norm}", f"{epsilon}; 8 of 255 levels are 8/255")
