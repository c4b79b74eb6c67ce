r"""Solvers that maximise a quadratic with an L1 penalty, for a batch of images."""

from typing import NamedTuple

import torch
from torch import Tensor

from reglib._checks import expected
from reglib._common import power_of_two, row_norms
from reglib.autodiff import Map


class Settings(NamedTuple):
    """Settings of the solvers.

    Args:
        tolerance: largest residual that counts as converged, see `Solution`.
        max_iterations: largest number of iterations.
        step: first step size of FISTA. None takes 1 / (2 lambda2), which is short enough for every
            positive semi-definite Hessian. The paper takes 0.1, and 10 iterations.
        shrink: factor of the step size in backtracking, above 0 and below 1.
    """

    tolerance: float = 1e-4
    max_iterations: int = 200
    step: float | None = None
    shrink: float = 0.5


class Problem(NamedTuple):
    r"""The objective of each image, to be maximised.

    .. math:: \phi(\Delta) = g^T \Delta + \tfrac12 \Delta^T H \Delta
       - \lambda_1 \|\Delta\|_1 - \lambda_2 \|\Delta\|_2^2

    Args:
        gradient: g, (B, d).
        product: from (B, d) to H times each row, (B, d). It may skip rows of zeros.
        lambda1: (B, 1).
        lambda2: (B, 1), above half of the largest eigenvalue.
    """

    gradient: Tensor
    product: Map
    lambda1: Tensor
    lambda2: Tensor

    def slope(self, point: Tensor, hessian_point: Tensor) -> Tensor:
        """Return the gradient of the smooth part of -phi, from a point and H times it, (B, d)."""
        return 2 * self.lambda2 * point - self.gradient - hessian_point

    def residual(self, point: Tensor, hessian_point: Tensor) -> Tensor:
        """Return the norm of the smallest subgradient, relative to the norm of g, (B,)."""
        slope = self.slope(point, hessian_point)
        at_zero = soft_threshold(slope, self.lambda1)
        subgradient = torch.where(point != 0, slope + self.lambda1 * point.sign(), at_zero)
        norm = row_norms(self.gradient)
        return row_norms(subgradient) / torch.where(norm > 0, norm, 1)

    def value(self, point: Tensor, hessian_point: Tensor) -> Tensor:
        """Return phi, (B,)."""
        smooth = (self.gradient + hessian_point / 2 - self.lambda2 * point) * point
        return (smooth - self.lambda1 * point.abs()).sum(1)


class Solution(NamedTuple):
    r"""The best point that was found for each image.

    Args:
        point: (B, d).
        hessian_point: H times the point, (B, d).
        residual: r, the norm of the smallest subgradient over the norm of g, (B,). The distance to
            the maximum is at most :math:`\|g\|_2 \, r / (2 \lambda_2 - L)`.
        iterations: number of iterations, (B,).
        converged: whether the residual is within the tolerance, (B,); false for infinity and NaN.
    """

    point: Tensor
    hessian_point: Tensor
    residual: Tensor
    iterations: Tensor
    converged: Tensor


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    r"""Shrink towards zero: :math:`\mathrm{sign}(v) \max(|v| - t, 0)`, with exact zeros.

    >>> soft_threshold(torch.tensor([3.0, -0.5, -2.0]), torch.tensor(1.0))
    tensor([ 2., -0., -1.])
    """
    return values.sign() * (values.abs() - threshold).clamp_min(0)


def maximise(problem: Problem, settings: Settings) -> Solution:
    """Maximise by conjugate gradients, or by FISTA if a row has an L1 penalty.

    Each row is scaled by a power of two, without rounding, so that no square over- or underflows.

    Raises:
        ValueError: as `fista`.
    """
    solver = fista if (problem.lambda1 > 0).any() else conjugate_gradients
    scale = power_of_two(problem.gradient)
    g, lambda1 = problem.gradient / scale, problem.lambda1 / scale
    solution = solver(problem._replace(gradient=g, lambda1=lambda1), settings)
    point, hessian_point = solution.point * scale, solution.hessian_point * scale
    return solution._replace(point=point, hessian_point=hessian_point)


def fista(problem: Problem, settings: Settings) -> Solution:
    r"""Maximise by accelerated proximal gradient steps with backtracking.

    .. math:: \Delta_{k+1} = S_{t \lambda_1} \bigl( y_k
       - t (2 \lambda_2 y_k - g - H y_k) \bigr), \qquad
       y_{k+1} = \Delta_{k+1} + \tfrac{\theta_k - 1}{\theta_{k+1}} (\Delta_{k+1} - \Delta_k)

    from :math:`\Delta_0 = 0`. The step of an image shrinks until the quadratic bound of its step
    size holds. Its momentum restarts where it points uphill. An image that has converged keeps its
    point. Each iteration and each shrinking costs one product.

    Raises:
        ValueError: `settings.shrink` is not between 0 and 1, so that backtracking would not end.

    Source: section 4 of Singla, Wallace, Feng and Feizi, "Understanding impacts of high-order loss
    approximations and features in deep learning interpretation" (2019) :cite:p:`singla2019`; Beck
    and Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse problems"
    (2009) :cite:p:`beck2009`; for the restart, without which strongly convex problems converge
    slowly, O'Donoghue and Candès, "Adaptive restart for accelerated gradient schemes" (2015)
    :cite:p:`odonoghue2015`.
    """
    if not 0 < settings.shrink < 1:
        raise expected("shrink", "a number above 0 and below 1", settings.shrink)
    g = problem.gradient
    x = hessian_x = y = hessian_y = torch.zeros_like(g)
    step = 1 / (2 * problem.lambda2)
    if settings.step is not None:
        step = torch.full_like(step, settings.step)
    theta = torch.ones_like(step)
    residual = problem.residual(x, hessian_x)
    iterations = torch.zeros(len(g), dtype=torch.int64, device=g.device)
    for _ in range(settings.max_iterations):
        active = residual > settings.tolerance
        if not active.any():
            break
        new, hessian_new, step = _step(problem, y, hessian_y, step, active, settings.shrink)
        uphill = ((y - new) * (new - x)).sum(1, keepdim=True) > 0
        theta = torch.where(uphill, 1, theta)
        theta_next = (1 + (1 + 4 * theta**2).sqrt()) / 2
        momentum = (theta - 1) / theta_next
        y = new + momentum * (new - x)
        hessian_y = hessian_new + momentum * (hessian_new - hessian_x)
        x = torch.where(active[:, None], new, x)
        hessian_x = torch.where(active[:, None], hessian_new, hessian_x)
        theta = theta_next
        residual = problem.residual(x, hessian_x)
        iterations += active
    return Solution(x, hessian_x, residual, iterations, residual <= settings.tolerance)


def _step(
    problem: Problem, y: Tensor, hessian_y: Tensor, step: Tensor, active: Tensor, shrink: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Take a proximal step for the active images; shrink steps that are too long."""
    slope = problem.slope(y, hessian_y)
    noise = torch.finfo(y.dtype).eps ** 0.5
    too_long = active
    new, hessian_new = torch.zeros_like(y), torch.zeros_like(y)
    while too_long.any():
        trial = soft_threshold(y - step * slope, step * problem.lambda1)
        new = torch.where(too_long[:, None], trial, new)
        products = problem.product(torch.where(too_long[:, None], new, 0))
        hessian_new = torch.where(too_long[:, None], products, hessian_new)
        change = new - y
        length = change.square().sum(1)
        curvature = (change * (2 * problem.lambda2 * change - (hessian_new - hessian_y))).sum(1)
        above_rounding = length > noise**2 * new.square().sum(1)
        too_long = too_long & above_rounding & (curvature * step[:, 0] > length * (1 + noise))
        step = torch.where(too_long[:, None], step * shrink, step)
    return new, hessian_new, step


def conjugate_gradients(problem: Problem, settings: Settings) -> Solution:
    r"""Maximise without L1 penalty by solving :math:`(2 \lambda_2 I - H) \Delta = g`.

    An image that has converged keeps its point. The final residual is computed from the definition.

    Source: the equation is the closed form in theorem 5 of Singla, Wallace, Feng and Feizi,
    "Understanding impacts of high-order loss approximations and features in deep learning
    interpretation" (2019) :cite:p:`singla2019`.
    """
    g = problem.gradient
    x = torch.zeros_like(g)
    r = p = g
    square = r.square().sum(1)
    goal = (settings.tolerance / 2) ** 2 * square
    iterations = torch.zeros(len(g), dtype=torch.int64, device=g.device)
    for _ in range(settings.max_iterations):
        active = square > goal
        if not active.any():
            break
        p = torch.where(active[:, None], p, 0)
        matrix_p = 2 * problem.lambda2 * p - problem.product(p)
        length = torch.where(active, square / (p * matrix_p).sum(1), 0)[:, None]
        x = x + length * p
        r = r - length * matrix_p
        square_next = r.square().sum(1)
        p = r + torch.where(active, square_next / square, 0)[:, None] * p
        square = square_next
        iterations += active
    hessian_x = problem.product(x)
    residual = problem.residual(x, hessian_x)
    return Solution(x, hessian_x, residual, iterations, residual <= settings.tolerance)


def solve_first_order(problem: Problem) -> Solution:
    r"""Maximise without the Hessian term, in closed form.

    .. math:: \Delta = \frac{S_{\lambda_1}(g)}{2 \lambda_2}
    """
    point = soft_threshold(problem.gradient, problem.lambda1) / (2 * problem.lambda2)
    hessian_point = torch.zeros_like(point)
    residual = problem.residual(point, hessian_point)
    iterations = torch.zeros(len(point), dtype=torch.int64, device=point.device)
    return Solution(point, hessian_point, residual, iterations, residual.isfinite())
