r"""Leading eigenpairs of many symmetric matrices at once, each known by its products."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from reglib._checks import check_positive, expected
from reglib._common import row_norms
from reglib.autodiff import Map
from reglib.input_hessian.products import InputHessian, times_covariance


class Eigenpairs(NamedTuple):
    r"""Leading eigenpairs of the Hessian of each image, largest eigenvalue first.

    Args:
        values: (B, k), in double precision.
        vectors: of norm 1 and orthogonal to one another, (B, k, C, H, W).
        residual: :math:`\|H v - \theta v\|_2` over the largest absolute value of the eigenvalues
            seen, (B, k). Some eigenvalue is at most so far away from :math:`\theta`, relatively;
            one that stands apart is much closer, by the square of the residual over the gap.
        products: Hessian-vector products until an image was done, (B,).
        converged: whether all k residuals are within the tolerance, (B,); never where a product is
            infinite or NaN.
    """

    values: Tensor
    vectors: Tensor
    residual: Tensor
    products: Tensor
    converged: Tensor


def hessian_eigenpairs(
    hessian: InputHessian,
    *,
    k: int = 1,
    tolerance: float = 1e-3,
    max_products: int = 100,
    seed: int = 0,
) -> Eigenpairs:
    """Compute the leading eigenpairs of the Hessian of each image by Lanczos.

    It starts from random combinations of the logits' gradients, weighted as the Hessian weights
    them, the same for each image: so the result for an image does not depend on the batch.

    Args:
        hessian: from `closed_form_hessian`, `true_hessian` or `input_hessian`.
        k: number of eigenpairs.
        tolerance: of the residual.
        max_products: upper bound of Hessian-vector products.
        seed: of the start, drawn on the CPU.

    Raises:
        ValueError: as `leading_eigenpairs`.
    """
    start = random_start(hessian, seed=seed)
    return leading_eigenpairs(
        hessian.product, start, k=k, tolerance=tolerance, max_products=max_products, seed=seed
    )


def random_start(hessian: InputHessian, *, seed: int = 0) -> Tensor:
    r"""Return :math:`W A u` with a random u that is the same for each image, (B, C, H, W)."""
    probs = hessian.logits.double().softmax(1)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(probs.shape[1], generator=generator, dtype=torch.float64)
    direction = times_covariance(probs, random.to(probs.device).expand_as(probs))
    return hessian.pull(direction.to(hessian.logits.dtype))


def leading_eigenpairs(
    product: Map,
    start: Tensor,
    *,
    k: int = 1,
    tolerance: float = 1e-3,
    max_products: int = 100,
    seed: int = 0,
) -> Eigenpairs:
    r"""Compute the algebraically largest eigenpairs of symmetric matrices by Lanczos.

    .. math:: H Q_m = Q_m T_m + \beta_m q_{m+1} e_m^T, \quad T_m s = \theta s, \quad v = Q_m s,
       \quad \|H v - \theta v\|_2 = \beta_m |s_m|

    with all vectors orthogonalised twice against those before. Where a matrix maps the vectors so
    far into themselves and k are not yet found, a random one goes on, so a matrix of low rank gives
    zeros. As always with Lanczos, a multiple eigenvalue may be found once. An image that has
    converged keeps its result.

    Args:
        product: from (B, ...) to (B, ...), one symmetric matrix for each row.
        start: (B, ...); should have a share of what is sought. A row of zeros is replaced.
        k: number of eigenpairs, at most the size of a matrix.
        tolerance: of the residual, see `Eigenpairs`. In single precision not below about 1e-6.
        max_products: upper bound of products, at least k.
        seed: of the random vectors, drawn on the CPU.

    Raises:
        ValueError: an argument is out of its range.
    """
    shape, size = start.shape, start.shape[1:].numel()
    if not 1 <= k <= size:
        raise ValueError(f"k: expected 1 to {size} eigenpairs, the size of the matrix, got {k}")
    check_positive(tolerance=tolerance)
    if max_products < k:
        what = f"at least k = {k} products, one for each eigenpair"
        raise expected("max_products", what, max_products)
    generator = torch.Generator().manual_seed(seed)
    steps = min(max_products, size)
    pairs = _empty_results(len(start), steps, k, start.device)
    basis: list[Tensor] = []
    tridiagonal = start.new_zeros(len(start), steps + 1, steps + 1, dtype=torch.float64)
    q, _ = _normalise(start.flatten(1), start.new_zeros(len(start)), basis, generator)
    for m in range(1, steps + 1):
        basis.append(q)
        w = product(q.view(shape)).flatten(1)
        tridiagonal[:, m - 1, m - 1] = (q.double() * w.double()).sum(1)
        w = _orthogonalise(w, basis)
        theta, s, broken = eigh(tridiagonal[:, :m, :m])
        scale = theta.abs().amax(1)
        beta = row_norms(w).double()
        if m >= k:
            _record(pairs, theta, s, beta if m < size else 0 * beta, scale, tolerance)
            if (pairs.converged | broken).all():
                break
        q, is_large = _normalise(w, 10 * torch.finfo(w.dtype).eps * scale, basis, generator)
        tridiagonal[:, m, m - 1] = torch.where(is_large, beta, 0 * beta)
    shares = pairs.vectors.to(basis[0].dtype).unbind(1)
    vectors = sum(q[:, None] * c[:, :, None] for q, c in zip(basis, shares, strict=False))
    return pairs._replace(vectors=torch.as_tensor(vectors).view(len(start), k, *shape[1:]))


def _empty_results(n: int, steps: int, k: int, device: torch.device) -> Eigenpairs:
    """Return results to be written in place, with coefficients of the basis (B, steps, k)."""
    zeros = partial(torch.zeros, dtype=torch.float64, device=device)
    values, coefficients, residual = zeros(n, k), zeros(n, steps, k), zeros(n, k)
    return Eigenpairs(values, coefficients, residual, zeros(n).long(), zeros(n).bool())


def _record(
    pairs: Eigenpairs, theta: Tensor, s: Tensor, beta: Tensor, scale: Tensor, tolerance: float
) -> None:
    """Write the present pairs of the images that have not converged before."""
    k, m = pairs.values.shape[1], theta.shape[1]
    theta, s = theta.flip(1)[:, :k], s.flip(2)[:, :, :k]
    residual = beta[:, None] * s[:, -1].abs()
    residual = torch.where(residual == 0, 0 * scale[:, None], residual / scale[:, None])
    open_ = ~pairs.converged
    pairs.values[open_] = theta[open_]
    pairs.vectors[open_, :m] = s[open_]
    pairs.residual[open_] = residual[open_]
    pairs.products[open_] = m
    pairs.converged[open_] = (residual <= tolerance).all(1)[open_]


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose symmetric matrices (B, m, m) by their lower halves; NaN where one is not finite."""
    broken = ~matrices.isfinite().flatten(1).all(1)
    theta, s = torch.linalg.eigh(torch.where(broken[:, None, None], 0, matrices))
    nan = torch.where(broken, torch.nan, 0.0)[:, None]
    return theta + nan, s + nan[:, None], broken


def _orthogonalise(w: Tensor, basis: list[Tensor]) -> Tensor:
    """Take away from w (B, d) its shares of the basis, twice."""
    for _ in range(2):
        for q in basis:
            w = w - (q * w).sum(1, keepdim=True) * q
    return w


def _normalise(
    w: Tensor, tiny: Tensor, basis: list[Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Scale w to norm 1; where w is tiny, draw a vector orthogonal to the basis.

    The second result is whether w was large enough, (B,).
    """
    is_large = row_norms(w) > tiny
    if not is_large.all():
        random = torch.randn(w.shape[1], generator=generator, dtype=torch.float64)
        random = _orthogonalise(random.to(w).expand_as(w), basis)
        w = torch.where(is_large[:, None], w, random)
    return w / row_norms(w).clamp_min(torch.finfo(w.dtype).tiny)[:, None], is_large
