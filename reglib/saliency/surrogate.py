r"""The loss of an image around it, to second order, perhaps averaged over noise."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib._checks import check_finite, check_network, check_positive
from reglib._common import normal_noise, per_sample
from reglib.autodiff import Map
from reglib.double_backward import folding_of
from reglib.input_hessian import input_hessian, leading_eigenpairs, random_start


class SurrogateLoss(NamedTuple):
    r"""The loss of each image around it, to second order, perhaps averaged over noise.

    .. math:: l(x + \Delta) \approx l(x) + g^T \Delta + \tfrac12 \Delta^T H \Delta

    Args:
        gradient: g of the cross-entropy of each image, (B, C, H, W).
        product: from (B, C, H, W) to H times each.
        largest_eigenvalue: L of H, zero where it is negative, (B,), in double precision.
    """

    gradient: Tensor
    product: Map
    largest_eigenvalue: Tensor


def surrogate_loss(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    closed_form: bool | None = None,
    tolerance: float = 1e-3,
) -> SurrogateLoss:
    """Expand the cross-entropy of each image to second order.

    Args:
        model: network in evaluation mode, from images to logits (B, classes).
        images: (B, C, H, W).
        labels: class whose loss it is, (B,).
        closed_form: see `reglib.input_hessian.input_hessian`.
        tolerance: of the largest eigenvalue, see `reglib.input_hessian.Eigenpairs`.

    Raises:
        ValueError: the network is in training mode or has active dropout, or images, logits or
            labels are not as said; a gradient is infinite or NaN.

    Warns:
        RuntimeWarning: the largest eigenvalue did not converge.

    Source: equations 4 and 6 of Singla, Wallace, Feng and Feizi, "Understanding impacts of
    high-order loss approximations and features in deep learning interpretation" (2019)
    :cite:p:`singla2019`.
    """
    return _average([images], model, labels, closed_form, tolerance)


def smooth_surrogate_loss(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    n_samples: int = 16,
    noise_level: float = 0.15,
    closed_form: bool | None = None,
    tolerance: float = 1e-3,
) -> SurrogateLoss:
    r"""Average the second-order expansion over images with noise, for smooth CAFO and CASO.

    .. math:: \bar g = \frac 1 n \sum_j g(z_j), \qquad \bar H = \frac 1 n \sum_j H(z_j), \qquad
       z_j = x + \epsilon_j

    Args:
        model: as in `surrogate_loss`, as are the others that are not named here.
        images: (B, C, H, W).
        labels: (B,).
        generator: source of the noise, on the device of `images`; all images get the same noise.
        n_samples: n; the graphs of all are held, n times the memory of one.
        noise_level: standard deviation of the noise as a share of the range of an image.
        closed_form: see `reglib.input_hessian.input_hessian`.
        tolerance: of the largest eigenvalue.

    Raises:
        ValueError: as `surrogate_loss`; `n_samples` is not positive or `noise_level` is negative.

    Source: definition 4 (equation 8) of Singla, Wallace, Feng and Feizi, "Understanding impacts of
    high-order loss approximations and features in deep learning interpretation" (2019)
    :cite:p:`singla2019`; 16 samples at 0.15 are read from their program.
    """
    copies = noisy_copies(images, generator=generator, n_samples=n_samples, noise_level=noise_level)
    return _average(list(copies), model, labels, closed_form, tolerance)


def noisy_copies(
    images: Tensor, *, generator: torch.Generator, n_samples: int, noise_level: float
) -> Iterator[Tensor]:
    """Yield images with noise, (B, C, H, W) each; see `smooth_surrogate_loss`.

    All images of a batch get the same noise, each times its own standard deviation: so what becomes
    of an image does not depend on the batch.

    Raises:
        ValueError: `n_samples` is not positive or `noise_level` is negative.
    """
    check_positive(n_samples=n_samples)
    if not noise_level >= 0:
        raise ValueError(f"noise_level: expected a number from 0 up, got {noise_level}")
    flat = images.flatten(1)
    std = per_sample(noise_level * (flat.amax(1) - flat.amin(1)), images)
    for _ in range(n_samples):
        yield images + std * normal_noise(images[:1], generator)


def _average(
    copies: Sequence[Tensor],
    model: nn.Module,
    labels: Tensor,
    closed_form: bool | None,
    tolerance: float,
) -> SurrogateLoss:
    check_network(model)
    if closed_form is None:
        closed_form = not folding_of(model).nonlinear
    hessians = [input_hessian(model, x, labels, closed_form=closed_form) for x in copies]
    n = len(hessians)
    gradient: Any = sum(hessian.gradient(labels) / n for hessian in hessians)
    start: Any = sum(random_start(hessian) / n for hessian in hessians)

    check_finite("gradient", gradient)

    def product(v: Tensor) -> Any:
        return sum(hessian.product(v) for hessian in hessians) / n

    pairs = leading_eigenpairs(product, start, tolerance=tolerance)
    warn_unless_converged("the largest eigenvalue", pairs.converged, pairs.residual[:, 0])
    return SurrogateLoss(gradient, product, pairs.values[:, 0].clamp_min(0))


def warn_unless_converged(what: str, converged: Tensor, residual: Tensor) -> None:
    """Warn a caller's caller how many images did not converge."""
    if not converged.all():
        missed = int((~converged).sum())
        why = f"{what} did not converge for {missed} of {converged.numel()}: residual "
        why += f"{float(residual.max()):.2g}; allow more iterations or a larger tolerance"
        warnings.warn(why, RuntimeWarning, stacklevel=3)
