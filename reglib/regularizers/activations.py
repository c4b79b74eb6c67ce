"""Penalty on the size of activations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from reglib._checks import check_choice
from reglib._common import mean_absolute_value


def activation_l1(activations: Sequence[Tensor], *, layers: str = "last") -> Tensor:
    r"""Compute the mean absolute value of activations.

    .. math:: r_b = \sum_l \frac{1}{n_l} \left\| X^{(l)}_b \right\|_1

    is the sum over the activation layers :math:`l`, which have :math:`n_l` values each. The source
    has no factor :math:`1 / n_l`; with it the penalty does not depend on the size of a layer.

    Args:
        activations: outputs of the activation layers, (B, ...) each, first layer first.
        layers: "last" takes the last layer only, "all" takes all layers.

    Returns:
        One value for each sample, (B,), in float32 or in the type of the activations if wider.

    Raises:
        ValueError: `layers` is neither "last" nor "all", or there are no activations.

    Source: appendix F of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> activation_l1([torch.tensor([[4.0, 4.0]]), torch.tensor([[1.0, -3.0]])])
    tensor([2.])
    """
    check_choice("layers", layers, ("last", "all"))
    if not activations:
        raise ValueError("activations: expected the outputs of at least one layer, got none")
    chosen = activations[-1:] if layers == "last" else activations
    return torch.stack([mean_absolute_value(x.flatten(1)) for x in chosen]).sum(0)
