"""L1 penalties on class maps and on activations, as a training step asks for them."""

import torch
from torch import Tensor

from reglib.errors import UsageError, unknown
from reglib.regularizers.step import Step
from reglib.top_gap import class_map_l1


def class_map_sizes(step: Step) -> Tensor:
    """Penalise the absolute values of the class maps that the logits of the step were pooled from.

    Returns:
        `reglib.top_gap.class_map_l1`, (B,).

    Raises:
        UsageError: a network without a `TopGAP` layer.
    """
    if step.class_maps is None:
        raise UsageError(
            "penalty 'class_map_l1': expected a network with a TopGAP layer, got "
            f"{type(step.model).__name__}; name the network 'top_gap', with k = 1.0 for the mean "
            "over all locations"
        )
    return class_map_l1(step.class_maps) if step.class_map_l1 is None else step.class_map_l1


LAYERS = ("last", "all")


def activation_l1(step: Step, *, layers: str = "last") -> Tensor:
    r"""Penalise the absolute values of activations.

    .. math:: r_b = \sum_l \frac{1}{n_l} \left\| X^{(l)}_b \right\|_1

    over the activation layers :math:`l` with :math:`n_l` values each. The source gives no factor;
    with it the penalty does not depend on the size of a layer.

    Args:
        step: taken with its activations.
        layers: "last", for the last activation layer alone, or "all".

    Returns:
        One value for each sample, (B,).

    Raises:
        UsageError: unknown layers; no activation layer, or a step without activations.

    Source: appendix F of :cite:t:`topgap`.
    """
    if layers not in LAYERS:
        raise unknown("layers", layers, LAYERS)
    if not step.activations:
        raise UsageError(
            "penalty 'activation_l1': expected a step with the outputs of activation layers, got "
            f"none; {type(step.model).__name__} must have them as modules (such as torch.nn.ReLU), "
            "and take_step must be told with_activations=True"
        )
    chosen = step.activations[-1:] if layers == "last" else step.activations
    norms = [torch.linalg.vector_norm(x.flatten(1), 1, dim=1) / x[0].numel() for x in chosen]
    return torch.stack(norms).sum(0)
