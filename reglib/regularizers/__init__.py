"""Penalties: functions of tensors, and of the network where needed; one value for each sample.

The caller takes the mean, multiplies it by a strength and adds it to the loss.
"""

from reglib.regularizers.activations import activation_l1
from reglib.regularizers.adversarial import adversarial_examples, adversarial_penalty
from reglib.regularizers.curvature import (
    cure_penalty,
    input_hessian_penalty,
    score_matching_penalty,
)
from reglib.regularizers.gradients import (
    finite_difference_penalty,
    input_gradient_penalty,
    logit_gradient_penalty,
    marginal_density_penalty,
)
from reglib.regularizers.groups import GroupDRO, balancing_weights, group_dro

__all__ = [
    "GroupDRO", "activation_l1", "adversarial_examples", "adversarial_penalty",
    "balancing_weights", "cure_penalty", "finite_difference_penalty", "group_dro",
    "input_gradient_penalty", "input_hessian_penalty", "logit_gradient_penalty",
    "marginal_density_penalty", "score_matching_penalty",
]  # fmt: skip
