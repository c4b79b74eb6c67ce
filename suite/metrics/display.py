"""Saliency maps scaled for drawing."""

import torch
from torch import Tensor

PERCENTILE = 99  # of the pixels of an image; larger values are drawn as 1


def normalised_for_display(maps: Tensor) -> Tensor:
    r"""Bring maps to [0, 1] without a sign, as the paper draws them.

    .. math:: \min \Bigl( \frac{s}{q}, 1 \Bigr), \qquad s = \sum_{\text{channels}} |a|

    with `q` the 99th percentile of `s` over the pixels of an image. Where `q` is zero, in a map of
    few pixels, the largest value replaces it.

    Args:
        maps: saliency, (B, C, H, W).

    Returns:
        Maps (B, H, W), zero where the saliency is zero.

    Source: appendix D of :cite:t:`singla2019`, after :cite:t:`smilkov2017`, whose program also
    subtracts the smallest value.

    >>> normalised_for_display(torch.tensor([[[[1.0, -2.0, 4.0]]]]))
    tensor([[[0.2525, 0.5051, 1.0000]]])
    """
    flat = maps.abs().sum(1).flatten(1)
    cap = torch.quantile(flat, PERCENTILE / 100, dim=1, keepdim=True)
    cap = torch.where(cap > 0, cap, flat.amax(1, keepdim=True))
    scaled = flat / torch.where(cap > 0, cap, 1)
    return scaled.clamp_max(1).unflatten(1, maps.shape[2:])
