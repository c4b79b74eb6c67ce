r"""Leading eigenpairs of a batch of symmetric matrices, given by their products with vectors."""

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
        vectors: orthonormal eigenvectors, (B, k, C, H, W).
        residual: :math:`\|H v - \theta v\|_2` over the largest absolute Ritz value, (B, k). Some
            eigenvalue is at most this relative distance from :math:`\theta`. A well-separated
            eigenvalue is much closer: at most the squared residual over the gap.
        products: number of Hessian-vector products until an image converged, (B,).
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

    The start is a random combination of the logits' gradients, weighted as in the Hessian. The
    random numbers are the same for each image, so its result does not depend on the batch.

    Args:
        hessian: from `closed_form_hessian`, `true_hessian` or `input_hessian`.
        k: number of eigenpairs.
        tolerance: largest residual that counts as converged, see `Eigenpairs`.
        max_products: largest number of Hessian-vector products.
        seed: seed of the start, which is drawn on the CPU.

    Returns:
        The eigenpairs of each image, converged or not.

    Raises:
        ValueError: as `leading_eigenpairs`.
    """
    start = random_start(hessian, seed=seed)
    return leading_eigenpairs(
        hessian.product, start, k=k, tolerance=tolerance, max_products=max_products, seed=seed
    )


def random_start(hessian: InputHessian, *, seed: int = 0) -> Tensor:
    r"""Return :math:`W A u` for one random u, the same for each image, (B, C, H, W)."""
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

    Each vector is orthogonalised twice against all earlier ones. Where the Krylov space is
    exhausted before k pairs are found, a random vector continues it, so a matrix of low rank gives
    zeros. As always with Lanczos, a multiple eigenvalue may be found only once. An image that has
    converged keeps its result.

    Args:
        product: from (B, ...) to (B, ...), multiplies each row by its own symmetric matrix.
        start: (B, ...), with a component along the leading eigenvectors. A row of zeros is replaced
            by a random vector.
        k: number of eigenpairs, at most the size of a matrix.
        tolerance: largest residual that counts as converged, see `Eigenpairs`; in single precision
            not below about 1e-6.
        max_products: largest number of products, at least k.
        seed: seed of the random vectors, which are drawn on the CPU.

    Returns:
        The eigenpairs of each row, converged or not.

    Raises:
        ValueError: `k`, `tolerance` or `max_products` is out of range.
    """
    shape, size = start.shape, start.shape[1:].numel()
    if not 1 <= k <= size:
        raise expected("k", f"1 to {size} eigenpairs, the size of the matrix", k)
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
    """Return results to fill in place, with coefficients of the basis as vectors, (B, steps, k)."""
    zeros = partial(torch.zeros, dtype=torch.float64, device=device)
    values, coefficients, residual = zeros(n, k), zeros(n, steps, k), zeros(n, k)
    return Eigenpairs(values, coefficients, residual, zeros(n).long(), zeros(n).bool())


def _record(
    pairs: Eigenpairs, theta: Tensor, s: Tensor, beta: Tensor, scale: Tensor, tolerance: float
) -> None:
    """Record the current pairs of the images that have not converged yet."""
    k, m = pairs.values.shape[1], theta.shape[1]
    theta, s = theta.flip(1)[:, :k], s.flip(2)[:, :, :k]
    residual = beta[:, None] * s[:, -1].abs()
    residual = torch.where(residual == 0, 0 * scale[:, None], residual / scale[:, None])
    pending = ~pairs.converged
    pairs.values[pending] = theta[pending]
    pairs.vectors[pending, :m] = s[pending]
    pairs.residual[pending] = residual[pending]
    pairs.products[pending] = m
    pairs.converged[pending] = (residual <= tolerance).all(1)[pending]


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose symmetric matrices (B, m, m) by their lower triangles; non-finite ones give NaN."""
    broken = ~matrices.isfinite().flatten(1).all(1)
    theta, s = torch.linalg.eigh(torch.where(broken[:, None, None], 0, matrices))
    nan = torch.where(broken, torch.nan, 0.0)[:, None]
    return theta + nan, s + nan[:, None], broken


def _orthogonalise(w: Tensor, basis: list[Tensor]) -> Tensor:
    """Subtract from w (B, d) its projections on the basis, twice."""
    for _ in range(2):
        for q in basis:
            w = w - (q * w).sum(1, keepdim=True) * q
    return w


def _normalise(
    w: Tensor, tiny: Tensor, basis: list[Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Scale w to norm 1; where w is tiny, draw a vector orthogonal to the basis.

    Returns:
        The vectors, (B, d), and whether each w was large enough, (B,).
    """
    is_large = row_norms(w) > tiny
    if not is_large.all():
        random = torch.randn(w.shape[1], generator=generator, dtype=torch.float64)
        random = _orthogonalise(random.to(w).expand_as(w), basis)
        w = torch.where(is_large[:, None], w, random)
    return w / row_norms(w).clamp_min(torch.finfo(w.dtype).tiny)[:, None], is_large
