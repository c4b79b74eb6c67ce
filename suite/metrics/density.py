"""Which part of the density's gradient can be seen in the predictions?"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reglib.autodiff import input_gradient


class DensityGradients(NamedTuple):
    """Norms of input gradients, (B,) each: of the log density and of its two parts."""

    whole: Tensor
    shift: Tensor
    centred: Tensor


def density_gradients(model: nn.Module, images: Tensor) -> DensityGradients:
    r"""Split the gradient of the log marginal density into a shift and the rest.

    .. math:: \nabla_x \log Z = \nabla_x s + \nabla_x \log \textstyle\sum_i e^{f_i - s}, \qquad
       s(x) = \frac 1 C \sum_i f_i(x)

    Adding any function of the image to all logits leaves every :math:`p(y | x)` as it is and
    changes the first part alone: of the three norms only the third is fixed by the predictions.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).

    Returns:
        Euclidean norms of the whole gradient, of that of the shift, and of the centred rest.

    Source: a control of ours; the ambiguity is that of equation 1 of :cite:t:`srinivas2021`.
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(inputs)
        shift = logits.mean(1)
        whole = input_gradient(logits.logsumexp(1), inputs, create_graph=True).detach()
        of_shift = input_gradient(shift, inputs)
    parts = (whole, of_shift, whole - of_shift)
    return DensityGradients(*(part.flatten(1).norm(dim=1) for part in parts))
