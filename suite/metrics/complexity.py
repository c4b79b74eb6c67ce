"""How concentrated is a saliency map?"""

import torch
from torch import Tensor


def entropy(maps: Tensor) -> Tensor:
    r"""Compute the entropy of the shares that the pixels have in a map.

    .. math:: -\sum_i P_i \ln P_i, \qquad P_i = \frac{|a_i|}{\sum_j |a_j|}

    Zero for a map with one non-zero pixel, :math:`\ln n` for a uniform one.

    Args:
        maps: saliency, (B, C, H, W); channels are summed before the absolute value.

    Returns:
        One value in nats for each image, (B,); NaN where the map is zero.

    Source: :cite:t:`bhatt2020`, as in section 3.2 of :cite:t:`demoor2025`.

    >>> entropy(torch.ones(1, 1, 2, 2)).exp()
    tensor([4.])
    """
    shares = maps.sum(1).flatten(1).abs()
    shares = shares / shares.sum(1, keepdim=True)
    # 0 ln 0 is 0: the bound only keeps the logarithm finite, and is faster than xlogy.
    logs = shares.clamp_min(torch.finfo(shares.dtype).tiny).log()
    return -(shares * logs).sum(1)
