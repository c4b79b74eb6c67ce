r"""Exact eigenvalues and eigenvectors of the Hessian of a piecewise linear network."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reglib._checks import check_finite, check_images, check_positive, expected
from reglib.autodiff import Linearisation
from reglib.input_hessian.lanczos import eigh
from reglib.input_hessian.products import linearisation_of


class Decomposition(NamedTuple):
    r"""Eigenvalues and leading eigenvectors of the Hessian of each image.

    Args:
        values: all eigenvalues that can differ from zero, largest first, (B, c), in double
            precision.
        vectors: leading eigenvectors of norm 1, (B, n, C, H, W); zero where the eigenvalue is zero.
    """

    values: Tensor
    vectors: Tensor


def decomposition(
    model: nn.Module,
    images: Tensor,
    *,
    n_vectors: int | None = 1,
    chunk: int | None = None,
    keep_jacobian: bool = True,
) -> Decomposition:
    r"""Decompose the closed-form Hessian of the cross-entropy of each image.

    .. math:: H = B B^T, \quad B = W F, \quad F = (I - p 1^T) \, \mathrm{diag}(\sqrt p), \quad
       F F^T = \mathrm{diag}(p) - p p^T

    .. math:: B^T B = F^T (W^T W) F = V \Sigma^2 V^T
       \quad \Rightarrow \quad H = (B V \Sigma^{-1}) \, \Sigma^2 \, (B V \Sigma^{-1})^T

    F replaces the paper's Cholesky factor: its closed form holds even where probabilities vanish.
    The rows of the Gram matrix :math:`W^T W` come from vector-Jacobian products, a chunk of classes
    at a time.

    Args:
        model: piecewise linear network in evaluation mode; for other networks the result is the
            Gauss-Newton part of the Hessian.
        images: (B, C, H, W), processed one by one.
        n_vectors: number of leading eigenvectors, 0 to c; None computes all.
        chunk: classes at a time; the graph holds as many copies of an image. None takes 4 on a CPU,
            where few are the fastest, and 32 elsewhere, like the authors' program.
        keep_jacobian: hold W (c x d values; 600 MB for 1,000 classes and 3 x 224 x 224 in single
            precision) and multiply it by itself. Otherwise each chunk of W is multiplied by W
            through Jacobian-vector products and dropped, which takes up to twice as long.

    Returns:
        The decomposition, exact up to rounding. The error of an eigenvalue is about the relative
        rounding error of the logits' gradients times the largest eigenvalue. The relative error of
        an eigenvector is larger the smaller its eigenvalue.

    Raises:
        ValueError: as `closed_form_hessian`; `n_vectors` or `chunk` is out of range; an eigenvalue
            is infinite or NaN.

    Source: appendix C of Singla, Wallace, Feng and Feizi, "Understanding impacts of high-order loss
    approximations and features in deep learning interpretation" (2019) :cite:p:`singla2019`.
    """
    check_images(images)
    if chunk is None:
        chunk = 4 if images.device.type == "cpu" else 32
    check_positive(chunk=chunk)
    results = []
    for image in images.split(1):
        at = linearisation_of(model, torch.cat([image] * chunk))
        classes = at.outputs.shape[1]
        n = classes if n_vectors is None else n_vectors
        if not 0 <= n <= classes:
            raise expected("n_vectors", f"0 to {classes} (classes)", n)
        results.append(_decompose(at, image, n, keep_jacobian))
    values, vectors = (torch.stack(parts) for parts in zip(*results, strict=True))
    check_finite("eigenvalues", values)
    return Decomposition(values, vectors)


def _decompose(at: Linearisation, image: Tensor, count: int, keep: bool) -> tuple[Tensor, Tensor]:
    logits = at.outputs
    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    rows = _pull_all(at, image, identity) if keep else None
    gram = _gram_by_products(at, identity) if rows is None else rows.flatten(1) @ rows.flatten(1).T
    p = logits[0].double().softmax(0)
    root = p.sqrt()
    inner = _factor_adjoint(p, root, _factor_adjoint(p, root, gram.double()).T)
    (values,), (v,), _ = eigh((inner + inner.T)[None] / 2)
    values, v = values.flip(0).clamp_min(0), v.flip(1)[:, :count].T  # (n, c)
    sigma = values[:count, None].sqrt()
    null = sigma.square() <= len(p) * torch.finfo(logits.dtype).eps * values[0]
    weights = (root * v) - p * (root * v).sum(1, keepdim=True)  # rows (F v)^T
    weights = torch.where(null, 0, weights / torch.where(null, 1, sigma)).to(logits.dtype)
    if rows is None:
        return values, _pull_all(at, image, weights)
    return values, (weights.to(rows.dtype) @ rows.flatten(1)).view(count, *rows.shape[1:])


def _factor_adjoint(p: Tensor, root: Tensor, columns: Tensor) -> Tensor:
    """Multiply (c, n) from the left by F^T."""
    return root[:, None] * (columns - p @ columns)


def _gram_by_products(at: Linearisation, identity: Tensor) -> Tensor:
    """Return W^T W, (c, c), without forming W."""
    chunk = len(at.outputs)
    parts = [at.push(at.pull(_pad_rows(u, chunk)))[: len(u)] for u in identity.split(chunk)]
    return torch.cat(parts)


def _pull_all(at: Linearisation, image: Tensor, u: Tensor) -> Tensor:
    """Multiply the rows of u (n, c) by W, a chunk at a time, (n, C, H, W)."""
    chunk = len(at.outputs)
    rows = image.new_empty(len(u), *image.shape[1:])
    for weights, products in zip(u.split(chunk), rows.split(chunk), strict=True):
        products[:] = at.pull(_pad_rows(weights, chunk))[: len(weights)]
    return rows


def _pad_rows(u: Tensor, n: int) -> Tensor:
    """Append rows of zeros up to n."""
    return torch.cat([u, u.new_zeros(n - len(u), u.shape[1])])
