"""One number for a curve."""

from collections.abc import Sequence

import torch
from torch import Tensor


def area_under_curve(curves: Tensor, positions: Sequence[float] | None = None) -> Tensor:
    r"""Compute the area under curves by the trapezoidal rule, on a scale of length 1.

    .. math:: \frac{1}{t_K - t_0} \sum_{k=1}^{K} (t_k - t_{k-1}) \frac{s_{k-1} + s_k}{2}

    Args:
        curves: such as those of `insertion_curve` or `ablation_curve`, (B, K + 1).
        positions: :math:`t`, where the values stand, K + 1 increasing numbers; by default
            with equal distances.

    Returns:
        One value for each curve, (B,), of the unit of the curves: 1 where they are always 1.

    >>> area_under_curve(torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([0.7500])
    >>> area_under_curve(torch.tensor([[0.0, 1.0, 1.0]]), [0, 1, 10])
    tensor([0.9500])
    """
    if positions is None:
        return torch.trapezoid(curves, dx=1 / (curves.shape[1] - 1))
    t = torch.as_tensor(positions, dtype=curves.dtype, device=curves.device)
    return torch.trapezoid(curves, t) / (t[-1] - t[0])
