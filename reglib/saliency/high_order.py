r"""CAFO and CASO: the change of an image, sparse or not, that raises the loss most.

>>> from reglib.saliency.surrogate import surrogate_loss
>>> _ = torch.manual_seed(0)
>>> layers = torch.nn.Conv2d(1, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten()
>>> network = torch.nn.Sequential(*layers, torch.nn.Linear(144, 10)).eval()
>>> images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
>>> loss = surrogate_loss(network, images, torch.tensor([3, 5]))
>>> second_order = caso(loss, lambda1=torch.tensor([0.0, 1e-3]))
>>> second_order.maps.shape, second_order.converged
(torch.Size([2, 1, 28, 28]), tensor([True, True]))
"""

from typing import NamedTuple

import torch
from torch import Tensor

from reglib._checks import expected
from reglib.autodiff import Map
from reglib.saliency import proximal
from reglib.saliency.surrogate import SurrogateLoss, warn_unless_converged

DEFAULT = proximal.Settings()
MARGIN = 10.0
Strength = Tensor | float


class Interpretation(NamedTuple):
    r"""Maps of CAFO or CASO, with the objective and the accuracy of the maximum.

    Each field but the maps has one value for each image, (B,).

    Args:
        maps: the change :math:`\Delta` of each image, signed, (B, C, H, W).
        lambda1: strength of the L1 norm.
        lambda2: strength of the squared L2 norm.
        objective: value of the objective at the map, in nats.
        loss_change: change of the loss according to the surrogate, in nats; CAFO's is linear.
        residual: norm of the smallest subgradient, over the norm of the gradient.
        iterations: number of iterations of the solver; zero for a closed form.
        converged: whether the residual is within the tolerance; for CAFO, whether it is finite.
        sparsity: share of values of the map that are exactly zero; an empty map has 1. NaN where
            the change of the loss is not finite, so that it is in no range of sparsity.
    """

    maps: Tensor
    lambda1: Tensor
    lambda2: Tensor
    objective: Tensor
    loss_change: Tensor
    residual: Tensor
    iterations: Tensor
    converged: Tensor
    sparsity: Tensor


def cafo(
    loss: SurrogateLoss,
    *,
    lambda1: Strength = 0.0,
    lambda2: Strength | None = None,
    margin: float = MARGIN,
) -> Interpretation:
    r"""Compute the context-aware first-order interpretation, in closed form.

    .. math:: \max_\Delta \; g^T \Delta - \lambda_1 \|\Delta\|_1 - \lambda_2 \|\Delta\|_2^2
       \quad \text{at} \quad \Delta = \frac{S_{\lambda_1}(g)}{2 \lambda_2}

    with soft-thresholding S. The map is zero where :math:`\lambda_1 \ge \|g\|_\infty`.

    Args:
        loss: from `surrogate_loss`, or from `smooth_surrogate_loss` for smooth CAFO.
        lambda1: one strength for all images, or (B,), or (K, B).
        lambda2: as `lambda1`. None takes L / 2 + `margin` as in CASO, to make the two comparable.
        margin: in the units of the Hessian, nats over squared units of the images.

    Returns:
        Maps, objective and convergence; with `lambda1` of shape (K, B), fields are (K, B, ...).

    Raises:
        ValueError: `lambda1` is negative, `lambda2` is not positive, or one has another shape.

    Source: definition 2 (equation 3) of Singla, Wallace, Feng and Feizi, "Understanding impacts of
    high-order loss approximations and features in deep learning interpretation" (2019)
    :cite:p:`singla2019`.
    """
    problem, lead = _problem(loss, lambda1, lambda2, margin, lambda v: torch.zeros_like(v))
    if not (problem.lambda2 > 0).all():
        raise ValueError(f"lambda2: expected positive numbers, got {problem.lambda2.min():g}")
    return _interpretation(problem, proximal.solve_first_order(problem), lead, loss.gradient.shape)


def caso(
    loss: SurrogateLoss,
    *,
    lambda1: Strength = 0.0,
    lambda2: Strength | None = None,
    margin: float = MARGIN,
    settings: proximal.Settings = DEFAULT,
) -> Interpretation:
    r"""Compute the context-aware second-order interpretation.

    .. math:: \max_\Delta \; g^T \Delta + \tfrac12 \Delta^T H \Delta
       - \lambda_1 \|\Delta\|_1 - \lambda_2 \|\Delta\|_2^2

    Without L1 norm (:math:`\lambda_1 = 0` for all images) the maximum is
    :math:`\Delta = (2 \lambda_2 I - H)^{-1} g`, solved by conjugate gradients; otherwise FISTA is
    used. Each image has its own :math:`\lambda_1`, :math:`\lambda_2`, step size and stopping time.

    Args:
        loss: from `surrogate_loss`, or from `smooth_surrogate_loss` for smooth CASO.
        lambda1: one strength for all images, or (B,), or (K, B).
        lambda2: as `lambda1`. None takes L / 2 + `margin`, which makes the objective concave.
        margin: above 0, in the units of the Hessian, nats over squared units of the images. The
            paper's 10 is for pixels in [0, 1]. For pixels divided by a standard deviation s the
            Hessian is s² times as large, and the margin must be 10 s².
        settings: tolerance, iterations and step.

    Returns:
        Maps, objective and convergence; with `lambda1` of shape (K, B), fields are (K, B, ...).

    Raises:
        ValueError: `lambda1` is negative or has another shape; `lambda2` is at most L / 2, where
            the objective is not concave (the message has the bound); `margin` is not positive;
            with an L1 norm, `settings.shrink` is not between 0 and 1.

    Warns:
        RuntimeWarning: an image did not converge.

    Source: definition 3 (equation 5), theorem 3 and section 4 of Singla, Wallace, Feng and Feizi,
    "Understanding impacts of high-order loss approximations and features in deep learning
    interpretation" (2019) :cite:p:`singla2019`.
    """
    problem, lead = _problem(loss, lambda1, lambda2, margin, loss.product)
    _check_concave(problem.lambda2, loss.largest_eigenvalue, margin if lambda2 is None else None)
    solution = proximal.maximise(problem, settings)
    warn_unless_converged("CASO", solution.converged, solution.residual)
    return _interpretation(problem, solution, lead, loss.gradient.shape)


def _problem(
    loss: SurrogateLoss, lambda1: Strength, lambda2: Strength | None, margin: float, product: Map
) -> tuple[proximal.Problem, torch.Size]:
    """Return the objective of each pair of lambda1 and image, and their shape, (B,) or (K, B)."""
    images = loss.gradient.shape
    n = images[0]
    if lambda2 is None:
        lambda2 = loss.largest_eigenvalue / 2 + margin
    strengths = []
    for name, value in (("lambda1", lambda1), ("lambda2", lambda2)):
        value = torch.as_tensor(value).to(loss.gradient)
        if value.shape[value.ndim - 1 :] not in ((), (n,)) or value.ndim > 2:
            what = f"a number, or shape ({n},) or (K, {n}), one for each image"
            raise expected(name, what, tuple(value.shape))
        strengths.append(value)
    strengths = list(torch.broadcast_tensors(*strengths, loss.gradient.new_zeros(n))[:2])
    if not (strengths[0] >= 0).all():
        raise ValueError(f"lambda1: expected numbers from 0 up, got {strengths[0].min():g}")

    def multiply(v: Tensor) -> Tensor:
        """Multiply the rows of each lambda1; skip a lambda1 whose rows are all zero."""
        rows = [product(u.view(images)).flatten(1) if u.any() else u for u in v.split(n)]
        return torch.cat(rows)

    columns = [strength.reshape(-1, 1) for strength in strengths]
    gradient = loss.gradient.flatten(1).repeat(len(columns[0]) // n, 1)
    return proximal.Problem(gradient, multiply, *columns), strengths[0].shape


def _check_concave(lambda2: Tensor, largest: Tensor, margin: float | None) -> None:
    """Raise a ValueError if lambda2 or, where it was computed from one, the margin is too small."""
    if margin is not None and not margin > 0:
        raise ValueError(
            "margin: expected a number above 0, since lambda2 is half of the largest eigenvalue of "
            f"the Hessian ({float(largest.max()) / 2:.6g} here) plus the margin, and the objective "
            f"is concave above that half, got {margin:g}"
        )
    needed = (largest / 2).repeat(len(lambda2) // len(largest)).to(lambda2)
    wrong = (lambda2[:, 0] <= needed).nonzero()[:, 0].tolist()
    if wrong:
        first = wrong[0]
        raise ValueError(
            f"lambda2: expected more than half of the largest eigenvalue of the Hessian, so that "
            f"the objective is concave: for image {first % len(largest)} more than "
            f"{needed[first]:.6g}, got {lambda2[first, 0]:.6g}; lambda2=None takes "
            f"{needed[first] + MARGIN:.6g}"
        )


def _interpretation(
    problem: proximal.Problem, solution: proximal.Solution, lead: torch.Size, images: torch.Size
) -> Interpretation:
    point = solution.point
    change = ((problem.gradient + solution.hessian_point / 2) * point).sum(1)
    objective = problem.value(point, solution.hessian_point)
    sparsity = (point == 0).to(point.dtype).mean(1) + 0 * change
    strengths = problem.lambda1[:, 0], problem.lambda2[:, 0]
    values = *strengths, objective, change, *solution[2:], sparsity
    return Interpretation(point.view(*lead, *images[1:]), *(value.view(lead) for value in values))
