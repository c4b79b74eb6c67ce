r"""Second-order expansions of the loss around an image, with or without averaging over noise."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reglib._checks import check_finite, check_positive
from reglib._common import normal_noise, per_sample
from reglib.autodiff import Map
from reglib.double_backward import folding_of
from reglib.input_hessian import input_hessian, leading_eigenpairs, random_start


class SurrogateLoss(NamedTuple):
    r"""Second-order expansion of the loss around each image, perhaps averaged over noise.

    .. math:: l(x + \Delta) \approx l(x) + g^T \Delta + \tfrac12 \Delta^T H \Delta

    Args:
        gradient: g of the cross-entropy of each image, (B, C, H, W).
        product: from (B, C, H, W) to H times the tensor of each image, (B, C, H, W).
        largest_eigenvalue: L, the largest eigenvalue of H or zero if it is negative, (B,), in
            double precision.
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
        labels: class indices of the cross-entropy, (B,).
        closed_form: see `reglib.input_hessian.input_hessian`.
        tolerance: residual of the largest eigenvalue, see `reglib.input_hessian.Eigenpairs`.

    Returns:
        The expansion, in nats and the units of the images.

    Raises:
        ValueError: the network is in training mode or has active dropout; images, logits or labels
            have a wrong shape or type; images, logits or gradients are infinite or NaN.

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
        model: as in `surrogate_loss`.
        images: (B, C, H, W).
        labels: class indices of the cross-entropy, (B,).
        generator: source of the noise, on the device of `images`; all images get the same noise.
        n_samples: n; the graphs of all n copies are held in memory.
        noise_level: standard deviation of the noise as a share of the range of an image.
        closed_form: see `reglib.input_hessian.input_hessian`.
        tolerance: residual of the largest eigenvalue of the mean.

    Returns:
        The averaged expansion.

    Raises:
        ValueError: as `surrogate_loss`; `n_samples` is not positive or `noise_level` is negative.

    Source: definition 4 (equation 8) of Singla, Wallace, Feng and Feizi, "Understanding impacts of
    high-order loss approximations and features in deep learning interpretation" (2019)
    :cite:p:`singla2019`; their program has 16 samples at 0.15.
    """
    copies = noisy_copies(images, generator=generator, n_samples=n_samples, noise_level=noise_level)
    return _average(copies, model, labels, closed_form, tolerance)


def noisy_copies(
    images: Tensor, *, generator: torch.Generator, n_samples: int, noise_level: float
) -> Iterator[Tensor]:
    """Yield images with noise, (B, C, H, W) each; see `smooth_surrogate_loss`.

    All images of a batch get the same noise, times their own standard deviation, so that a copy
    does not depend on the batch.

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
    copies: Iterable[Tensor],
    model: nn.Module,
    labels: Tensor,
    closed_form: bool | None,
    tolerance: float,
) -> SurrogateLoss:
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


def warn_unless_converged(name: str, converged: Tensor, residual: Tensor) -> None:
    """Warn the caller of the caller how many images did not converge."""
    if not converged.all():
        message = f"{name} did not converge for {int((~converged).sum())} of {converged.numel()}: "
        message += (
            f"residual {float(residual.max()):.2g}; allow more iterations or a larger tolerance"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)
