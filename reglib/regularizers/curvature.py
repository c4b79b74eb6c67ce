"""Penalties on the change of the input gradient, of the loss or of a logit, with the input."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reglib._checks import check_choice, check_positive, expected
from reglib._common import cross_entropy, forward_again, label_logits, normal_noise, unit_length
from reglib.autodiff import hessian_product, input_gradient


def input_hessian_penalty(
    logits: Tensor,
    labels: Tensor,
    inputs: Tensor,
    *,
    generator: Generator,
    n_samples: int = 1,
    of: str = "loss",
) -> Tensor:
    r"""Estimate the squared Frobenius norm of the input Hessian of the loss or of a logit.

    .. math:: r_b = \frac 1 n \sum_{s=1}^n \bigl\| G_b v_s \bigr\|_2^2, \qquad
       E \, r_b = \| G_b \|_F^2, \qquad
       G_b = \nabla_{x_b}^2 H(y_b, \hat y_b) \text{ or } \nabla_{x_b}^2 f_{y_b}(x_b)

    with random signs :math:`v_s`. In a network of ReLU and linear layers the Hessian of a logit is
    zero almost everywhere, so `of="logit"` needs smooth activations. The Hessian of the loss is not
    zero.

    Batch normalisation in training mode couples the samples. :math:`G_b v_s` is then row `b` of the
    product of all :math:`v_s` with the Hessian of the summed loss. Its derivative needs
    `reglib.double_backward.fast_double_backward`: stock batch normalisation raises an error at a
    third derivative (PyTorch 2.11 returns a wrong one).

    Args:
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        generator: source of the signs, on the device of `inputs`.
        n_samples: number of vectors :math:`v_s` for each image.
        of: "loss", or "logit" for the logit of the label.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: `n_samples` is not positive; `of` is unknown; a label is no class index;
            `inputs` does not require a gradient.

    Source: after Dombrowski, Anders, Müller and Kessel, "Towards robust explanations for deep
    neural networks" (2022) :cite:p:`dombrowski2022`, for "Hessian" in table 1 of Yang, Akhtar, Shah
    and Mian, "Regulating model reliance on non-robust features by smoothing input marginal density"
    (2024) :cite:p:`yang2024`.
    """
    check_choice("of", of, ("loss", "logit"))
    outputs = (cross_entropy if of == "loss" else label_logits)(logits, labels)
    gradient = input_gradient(outputs, inputs, create_graph=True)
    draws = _draw(inputs, generator, n_samples, signs=True)
    products = [hessian_product(gradient, inputs, v, create_graph=True) for v in draws]
    return torch.stack(products).square().flatten(2).sum(2).mean(0)


def cure_penalty(
    model: nn.Module,
    logits: Tensor,
    labels: Tensor,
    inputs: Tensor,
    *,
    epoch: int = 0,
    radius: float | Sequence[float] = 1.5,
) -> Tensor:
    r"""Compute the change of the input gradient of the loss along its own sign (CURE).

    .. math:: r_b = \| \nabla_x l(x_b + h z_b) - \nabla_x l(x_b) \|_2^2, \qquad
       z_b = \frac{\operatorname{sign} \nabla_x l(x_b)}{\| \operatorname{sign} \nabla_x l(x_b) \|_2}

    The direction :math:`z` is held constant when the penalty is differentiated.

    Args:
        model: the network; it is called once more, and its running statistics do not change.
            Active dropout would draw another mask, which the difference would measure too: keep
            dropout in evaluation mode.
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        epoch: epoch of the training, from 0.
        radius: `h`, the Euclidean length of the step, in the units of `inputs`; or a sequence, one
            for each of the first epochs, whose last value holds for all later epochs.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: a radius is not positive, or there is none; a label is no class index; `inputs`
            does not require a gradient.

    Source: equation 9 of Moosavi-Dezfooli, Fawzi, Uesato and Frossard, "Robustness via curvature
    regularization, and vice versa" (2019) :cite:p:`moosavi2019`, without the factor :math:`1 /
    h^2`, which the strength includes. The paper raises the radius from 0 to 1.5 in the first five
    epochs.
    """
    schedule: Any = [radius] if isinstance(radius, Real) else radius
    if not schedule or not all(h > 0 for h in schedule):
        raise expected("radius", "a positive length or a sequence of positive lengths", radius)
    h = schedule[min(epoch, len(schedule) - 1)]
    loss = cross_entropy(logits, labels, reduction="sum")
    gradient = input_gradient(loss, inputs, create_graph=True)
    z = unit_length(gradient.detach().sign())
    moved = (inputs.detach() + h * z).requires_grad_()
    loss = cross_entropy(forward_again(model, moved), labels, reduction="sum")
    moved_gradient = input_gradient(loss, moved, create_graph=True)
    return (moved_gradient - gradient).square().flatten(1).sum(1)


def score_matching_penalty(
    model: nn.Module,
    logits: Tensor,
    labels: Tensor,
    inputs: Tensor,
    *,
    generator: Generator,
    trace: str = "hutchinson",
    n_samples: int = 1,
    noise_std: float = 0.01,
    stability: float = 0.0,
) -> Tensor:
    r"""Estimate the score-matching objective of the density implied by a logit.

    .. math:: r_b = t_b + \tfrac 1 2 \| \nabla_x f_y(x_b) \|_2^2 + \tau t_b^2, \qquad
       t_b \approx \operatorname{trace} \nabla_x^2 f_y(x_b)

    The penalty can be negative. The trace is the mean over `n_samples` of

    .. math::
       \text{hutchinson:} \quad & v^T \nabla_x^2 f_y(x) \, v && v_i = \pm 1 \\
       \text{taylor:} \quad & 2 \sigma^{-2} \bigl( f_y(x + \sigma v) - f_y(x) \bigr)
       && v \sim \mathcal N(0, I)

    In a network of ReLU and linear layers "hutchinson" is zero almost everywhere, which leaves half
    the squared gradient of the logit; "taylor" also sees kinks about :math:`\sigma` away. With
    batch normalisation in training mode, "hutchinson" has the limits of `input_hessian_penalty`.

    Args:
        model: the network. "taylor" calls it `n_samples` times, and its running statistics do not
            change; dropout must be inactive, since each call would draw another mask.
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.
        generator: source of `v`, on the device of `inputs`.
        trace: "hutchinson" or "taylor".
        n_samples: number of vectors `v` for each image.
        noise_std: :math:`\sigma` of "taylor", in the units of `inputs`.
        stability: :math:`\tau`.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: `n_samples` or `noise_std` is not positive; `trace` is unknown; a label is no
            class index; `inputs` does not require a gradient.

    Source: Srinivas and Fleuret, "Rethinking the role of gradient-based attribution methods for
    model interpretability" (2021) :cite:p:`srinivas2021`; their program uses "taylor" with 10
    samples and a `noise_std` of 0.01.
    """
    check_choice("trace", trace, ("hutchinson", "taylor"))
    check_positive(noise_std=noise_std)
    logit = label_logits(logits, labels)
    gradient = input_gradient(logit, inputs, create_graph=True)
    traces = []
    for v in _draw(inputs, generator, n_samples, signs=trace == "hutchinson"):
        if trace == "hutchinson":
            product = hessian_product(gradient, inputs, v, create_graph=True)
            traces.append((v * product).flatten(1).sum(1))
        else:
            moved = label_logits(forward_again(model, inputs.detach() + noise_std * v), labels)
            traces.append(2 / noise_std**2 * (moved - logit))
    t = torch.stack(traces).mean(0)
    return t + gradient.square().flatten(1).sum(1) / 2 + stability * t.square()


def _draw(inputs: Tensor, generator: Generator, n_samples: int, signs: bool) -> Iterator[Tensor]:
    """Yield random signs or normal numbers, (B, ...) each.

    Raises:
        ValueError: `n_samples` is not positive.
    """
    check_positive(n_samples=n_samples)
    for _ in range(n_samples):
        normal = normal_noise(inputs, generator)
        yield torch.where(normal < 0, -1.0, 1.0).to(inputs.dtype) if signs else normal
