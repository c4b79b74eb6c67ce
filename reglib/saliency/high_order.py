r"""CAFO and CASO: what change of an image, sparse or not, raises the loss the most?

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
    r"""Maps of CAFO or CASO, with what they are the maximum of, and how nearly.

    All but the maps have one value for each image, (B,).

    Args:
        maps: the change :math:`\Delta` of each image, signed, (B, C, H, W).
        lambda1: strength of the L1 norm.
        lambda2: strength of the squared L2 norm.
        objective: the value that was maximised.
        loss_change: what the surrogate says that the loss changes by; CAFO's has no curvature.
        residual: norm of the smallest subgradient, over the norm of the gradient.
        iterations: of the solver; zero where the solution is known.
        converged: whether the residual is within the tolerance. CAFO is exact where it is finite.
        sparsity: share of the values of the map that are exactly zero; 1 is an empty map. NaN where
            the change of the loss is not finite, so that no range of sparsity has it.
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

    with soft-thresholding S. All zero where :math:`\lambda_1 \ge \|g\|_\infty`.

    Args:
        loss: from `surrogate_loss`, or from `smooth_surrogate_loss` for smooth CAFO.
        lambda1: one for all images, or (B,), or (K, B).
        lambda2: the same. None takes that of CASO, L / 2 + `margin`, to compare like with like.
        margin: in the units of the Hessian, nats over squared units of the images.

    Returns:
        Maps and what is known about them; with `lambda1` of shape (K, B), all of shape (K, B, ...).

    Raises:
        ValueError: `lambda1` is negative, or `lambda2` is not positive.

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

    Without L1 norm (:math:`\lambda_1 = 0` for all) the maximum is
    :math:`\Delta = (2 \lambda_2 I - H)^{-1} g`, by conjugate gradients; else it is found by FISTA.
    Each image has its own :math:`\lambda_1`, :math:`\lambda_2`, step and end.

    Args:
        loss: from `surrogate_loss`, or from `smooth_surrogate_loss` for smooth CASO.
        lambda1: one for all images, or (B,), or (K, B).
        lambda2: the same. None takes L / 2 + `margin`, which makes the objective concave.
        margin: above 0, in the units of the Hessian, nats over squared units of the images. The
            paper's 10 is for pixels in [0, 1]: a network that takes them normalised by a standard
            deviation s has a Hessian of s² times theirs, and needs a margin of 10 s².
        settings: tolerance, iterations and step.

    Returns:
        Maps and what is known about them; with `lambda1` of shape (K, B), all of shape (K, B, ...).

    Raises:
        ValueError: `lambda1` is negative, or `lambda2` is at most L / 2, where the objective is
            not concave; the message has the least that works.
        ValueError: there is an L1 norm, and `settings.shrink` is not between 0 and 1.

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
    """Return the objective, a row for each lambda1 and image, and their shape, (B,) or (K, B)."""
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
    lead = strengths[0].shape[:-1]

    def blocks(v: Tensor) -> Tensor:
        """Multiply the rows for each lambda1, leaving out where all are zero."""
        parts = [product(p.view(images)).flatten(1) if p.any() else p for p in v.split(n)]
        return torch.cat(parts)

    gradient = loss.gradient.flatten(1).expand(*lead, -1, -1).reshape(strengths[0].numel(), -1)
    columns = [strength.reshape(-1, 1) for strength in strengths]
    return proximal.Problem(gradient, blocks, *columns), strengths[0].shape


def _check_concave(lambda2: Tensor, largest: Tensor, margin: float | None) -> None:
    """Refuse a lambda2 that is too small, or the margin that it is made of if it was not given."""
    if margin is not None and not margin > 0:
        raise ValueError(
            "margin: expected a number above 0, as the objective is concave where lambda2 is above "
            f"half of the largest eigenvalue of the Hessian ({float(largest.max()) / 2:.6g} here) "
            f"and lambda2 is that plus the margin, got {margin:g}"
        )
    needed = (largest / 2).repeat(len(lambda2) // len(largest)).to(lambda2)
    wrong = (lambda2[:, 0] <= needed).nonzero()[:, 0].tolist()
    if wrong:
        first = wrong[0]
        raise ValueError(
            f"lambda2: expected more than half of the largest eigenvalue of the Hessian, where the "
            f"objective is concave: for image {first % len(largest)} more than "
            f"{needed[first]:.6g}, got {lambda2[first, 0]:.6g}; lambda2=None takes "
            f"{needed[first] + MARGIN:.6g}"
        )


def _interpretation(
    problem: proximal.Problem, solution: proximal.Solution, lead: torch.Size, images: torch.Size
) -> Interpretation:
    point = solution.point
    change = ((problem.gradient + solution.hessian_point / 2) * point).sum(1)
    objective = problem.value(point, solution.hessian_point)
    asked = problem.lambda1[:, 0], problem.lambda2[:, 0], objective, change
    sparsity = (point == 0).to(point.dtype).mean(1) + 0 * change
    values = *asked, solution.residual, solution.iterations, solution.converged, sparsity
    return Interpretation(point.view(*lead, *images[1:]), *(value.view(lead) for value in values))
