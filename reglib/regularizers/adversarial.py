"""Adversarial examples, and a penalty that trains on them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reglib._checks import check_choice, check_positive, check_type
from reglib._common import cross_entropy, forward_again, normal_noise, per_sample, unit_length
from reglib.autodiff import input_gradient


def adversarial_examples(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    step_size: float,
    n_steps: int,
    norm: str = "linf",
    random_start: bool = True,
    pixel_range: Sequence[float] = (0.0, 1.0),
    generator: Generator,
) -> Tensor:
    r"""Raise the loss within a ball around each image by projected gradient ascent (PGD).

    .. math:: x^{t+1} = \Pi \bigl( x^t + \alpha \, s(\nabla_x H(y, f(x^t))) \bigr)

    with :math:`s(g) = \operatorname{sign} g` for the maximum norm and :math:`g / \|g\|_2` for the
    Euclidean norm. :math:`\Pi` projects onto the ball, then clamps to the pixel range. One step of
    :math:`\alpha = \epsilon` without a random start is the fast gradient sign method (FGSM).

    Args:
        model: the network, attacked in the mode that it is in; its state does not change.
        images: (B, ...).
        labels: class indices, (B,).
        epsilon: radius of the ball, in the units of `images`.
        step_size: :math:`\alpha`, in the same units.
        n_steps: number of steps.
        norm: "linf" or "l2".
        random_start: start at a random point of the ball. For "linf" it is uniform in the cube; for
            "l2" it has a random direction and a distance that is uniform up to `epsilon`.
        pixel_range: smallest and largest value of a pixel.
        generator: source of the starting points, on the device of `images`.

    Returns:
        The adversarial examples, (B, ...), without a graph.

    Raises:
        ValueError: `epsilon`, `step_size` or `n_steps` is not positive; `norm` is unknown; a label
            is no class index.

    Source: Madry et al., "Towards deep learning models resistant to adversarial attacks" (2018)
    :cite:p:`madry2018`; FGSM: Goodfellow, Shlens and Szegedy, "Explaining and harnessing
    adversarial examples" (2015) :cite:p:`goodfellow2015`.
    """
    check_choice("norm", norm, ("linf", "l2"))
    check_positive(epsilon=epsilon, step_size=step_size, n_steps=n_steps)
    check_type("images", images, Tensor)
    moved = clean = images.detach()
    if random_start:
        moved = (clean + epsilon * _random_point(clean, norm, generator)).clamp(*pixel_range)
    for _ in range(n_steps):
        x = moved.detach().requires_grad_()
        with torch.enable_grad():
            loss = cross_entropy(forward_again(model, x), labels, reduction="sum")
            gradient = input_gradient(loss, x)
        direction = gradient.sign() if norm == "linf" else unit_length(gradient)
        change = _project(x.detach() + step_size * direction - clean, epsilon, norm)
        moved = (change + clean).clamp(*pixel_range)
    return moved


def adversarial_penalty(
    model: nn.Module,
    logits: Tensor,
    labels: Tensor,
    inputs: Tensor,
    *,
    epsilon: float,
    step_size: float,
    n_steps: int = 1,
    norm: str = "linf",
    random_start: bool = False,
    pixel_range: Sequence[float] = (0.0, 1.0),
    generator: Generator,
) -> Tensor:
    r"""Compute the loss of an adversarial example minus the loss of its image.

    .. math:: r_b = H(y_b, f(x_b^{adv})) - H(y_b, f(x_b))

    With strength 1 the training loss is the loss of the adversarial examples alone; with 1/2 it is
    the mean of both losses. The examples are constants when the penalty is differentiated. They do
    not enter the running statistics.

    Args:
        model: the network; it is called `n_steps` + 1 times.
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...).
        epsilon, step_size, n_steps, norm, random_start, pixel_range, generator: see
            `adversarial_examples`. The defaults are FGSM if `step_size` equals `epsilon`.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: as `adversarial_examples`.

    Source: Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples" (2015)
    :cite:p:`goodfellow2015`; Madry et al., "Towards deep learning models resistant to adversarial
    attacks" (2018) :cite:p:`madry2018`.
    """
    attack: dict[str, Any] = {"epsilon": epsilon, "step_size": step_size, "n_steps": n_steps}
    attack |= {"norm": norm, "random_start": random_start, "pixel_range": pixel_range}
    examples = adversarial_examples(model, inputs, labels, **attack, generator=generator)
    attacked = cross_entropy(forward_again(model, examples), labels)
    return attacked - cross_entropy(logits, labels)


def _random_point(like: Tensor, norm: str, generator: Generator) -> Tensor:
    """Draw a random point of the unit ball for each image."""
    check_type("generator", generator, Generator)
    options: dict[str, Any] = {"generator": generator, "device": like.device, "dtype": like.dtype}
    if norm == "linf":
        return 2 * torch.rand(like.shape, **options) - 1
    share = per_sample(torch.rand(len(like), **options), like)
    return share * unit_length(normal_noise(like, generator))


def _project(change: Tensor, epsilon: float, norm: str) -> Tensor:
    """Return the nearest change within the ball."""
    if norm == "linf":
        return change.clamp(-epsilon, epsilon)
    lengths = change.flatten(1).norm(dim=1).clamp_min(epsilon)
    return change * per_sample(epsilon / lengths, change)
