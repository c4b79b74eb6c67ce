"""Equations of the marginal-density paper, checked on Gaussian classes of known density.

A point is an image of two pixels. Within a class the first varies more than the second.
"""

from collections.abc import Iterator

import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.distributions import Normal

from reglib import marginal_density_penalty
from reglib.autodiff import input_gradient
from suite import metrics

MEANS = torch.tensor([[2.0, 0.5], [-2.0, 0.5], [0.0, -0.5]], dtype=torch.float64)  # of classes
STDS = torch.tensor([1.0, 0.25], dtype=torch.float64)


class Logits(nn.Module):
    """Return log p(x, y = i) of equal classes, up to a constant, for images or points (B, 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return 5 - ((x.flatten(1)[:, None] - MEANS) / STDS).square().sum(2) / 2


def equations() -> pd.DataFrame:
    """Compare the printed equations with closed forms: the largest errors, in double precision.

    Source: sections 3 to 7.1 of :cite:t:`yang2024`.
    """
    errors = [*_densities(), *_attributions()]
    lines = [(*row, f"{error:.1g}", "yes" if error < 1e-6 else "no") for *row, error in errors]
    lines += [_single_precision(near) for near in (-110.0, -50.0, 50.0, 90.0)]
    return pd.DataFrame(lines, columns=["item", "what is compared", "error", "agrees"])


def _densities() -> Iterator[tuple[str, str, float]]:
    """Check equations 4, 7 and 8; integrals are sums over a fine grid, far beyond the classes."""
    axes = [torch.linspace(-end, end, 401, dtype=torch.float64) for end in (12, 4)]
    x, cell = torch.cartesian_prod(*axes), (24 / 400) * (8 / 400)
    known = _log_density(x).exp()
    for name, weights in {"equal": [1, 1, 1], "unequal (not assumed)": [6, 3, 1]}.items():
        joint = torch.tensor(weights) * Logits()(x).exp()
        by_class = joint.sum(0) * cell
        for text, z in {"one class (eq. 1)": by_class, "all classes": by_class.sum()}.items():
            error = (joint / (z / 3) - known).abs().max()
            yield f"eq. 7, classes {name}", f"p(x | y), known; Z of {text}", float(error)
    points = x[::400]
    of_class = jacobian(lambda t: Logits()(t).sum(0), points)
    error = (of_class - jacobian(lambda t: _log_density(t).sum(0), points)).abs().max()
    yield "eq. 8", "∇ log p(x | y), known; ∇ of the class's logit", float(error)
    mixed = jacobian(lambda t: _log_density(t).logsumexp(1).sum(), points)
    weighted = (Logits()(points).softmax(1).T[..., None] * of_class).sum(0)
    error = (mixed - weighted).abs().max()
    yield "eq. 4", "∇ log p(x), known; Σ p(y | x) ∇ of the logits", float(error)


def _log_density(x: Tensor) -> Tensor:
    return Normal(MEANS, STDS).log_prob(x[:, None]).sum(2)


def _attributions() -> Iterator[tuple[str, str, float]]:
    """Check equation 9, definition 1 and section 4 on the first class.

    One feature at a time differs from the mean of the class, by at most 1.
    """
    logits, shifted = Logits().eval(), nn.Sequential(Logits(), nn.LogSoftmax(1))
    feature = torch.eye(2, dtype=torch.float64).repeat_interleave(101, 0)  # marks the changed one
    x = MEANS[0] + feature * torch.linspace(-1, 1, 101, dtype=torch.float64).repeat(2)[:, None]
    images, mask = x.view(-1, 1, 1, 2), feature.bool().view(-1, 1, 1, 2)
    removed = x * (1 - feature)
    by_logits, by_shifted = ((f(x) - f(removed))[:, 0].view(2, -1) for f in (logits, shifted))
    first = torch.zeros(len(x), dtype=torch.int64)
    maps = metrics.saliency_maps(logits, "integrated_gradients")(images * mask, first)
    ratio = metrics.feature_leakage(maps, mask).sum() / by_logits.abs().sum()
    compared = "features of one pixel that add up: leakage of one alone ÷ its attribution; 1"
    yield "eq. 9, as written", compared, abs(1 - float(ratio))
    bounds, of_shifted = (a.amax(1) - a.amin(1) for a in (by_logits, by_shifted))
    error = (bounds - 1 / (2 * STDS**2)).abs().max()
    yield "definition 1", "label's class: least h of each feature; 1 / 2σ²", float(error)
    slopes = jacobian(lambda t: logits(t).logsumexp(1).sum(), x).abs().mean(0)
    ranks = (bounds.argsort() - slopes.argsort()).abs().max()
    yield "section 4", "the same: order of both features by h; by ∇ log p(x)", float(ranks)
    yield "zero penalty", "h of log-probabilities, whose penalty is 0; 0", float(of_shifted.max())


def _single_precision(near: float) -> tuple[str, str, str, str]:
    """Count the penalties of logits near a value that overflow or underflow in float32."""
    source = torch.Generator().manual_seed(0)
    images = torch.rand(64, 2, generator=source).requires_grad_()
    logits = images @ torch.linspace(-1, 1, 20).view(2, 10) + near
    total = logits.exp().sum(1)
    naive = (input_gradient(total, images, create_graph=True) / total[:, None]).norm(dim=1)
    efficient = marginal_density_penalty(logits, images, generator=source)
    n_naive, n_efficient = (64 - int(values.isfinite().sum()) for values in (naive, efficient))
    compared = "penalties that are not finite, of 64 (float32): naive and efficient form"
    agrees = "naive form fails" if n_naive and not n_efficient else "both work"
    return f"section 5, logits near {near:g}", compared, f"{n_naive} and {n_efficient}", agrees
