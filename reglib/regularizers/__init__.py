"""Penalties: pure functions of tensors, one value for each sample.

`PENALTIES` gives each a name, under which a `Training` asks for it, and takes from a `Step` what it
looks at. What it takes by keyword besides are its settings in a `Training`.
"""

from reglib.regularizers.adversarial import adversarial_examples, adversarial_penalty
from reglib.regularizers.class_maps import activation_l1, class_map_sizes
from reglib.regularizers.curvature import (
    cure_penalty,
    input_hessian_penalty,
    score_matching_penalty,
)
from reglib.regularizers.groups import GroupDRO, balancing_weights, group_dro
from reglib.regularizers.input_gradient import input_gradient_penalty
from reglib.regularizers.landscape import landscape_curvature, landscape_target
from reglib.regularizers.marginal_density import logit_gradient_penalty, marginal_density_penalty
from reglib.regularizers.step import Constants, Penalty, Step, of_step, take_step
from reglib.top_gap import class_map_l1

__all__ = [
    "OWN_PASS",
    "PENALTIES",
    "Constants",
    "GroupDRO",
    "Penalty",
    "Step",
    "activation_l1",
    "adversarial_examples",
    "adversarial_penalty",
    "balancing_weights",
    "class_map_l1",
    "cure_penalty",
    "group_dro",
    "input_gradient_penalty",
    "input_hessian_penalty",
    "landscape_curvature",
    "landscape_target",
    "logit_gradient_penalty",
    "marginal_density_penalty",
    "of_step",
    "score_matching_penalty",
    "take_step",
]

# What takes of a step its images and network alone, and goes through the network by itself.
OWN_PASS = frozenset({"landscape_curvature", "landscape_target"})

PENALTIES: dict[str, Penalty] = {
    "activation_l1": activation_l1,
    "adversarial": of_step(adversarial_penalty),
    "class_map_l1": class_map_sizes,
    "cure": of_step(cure_penalty),
    "input_gradient": of_step(input_gradient_penalty),
    "input_hessian": of_step(input_hessian_penalty),
    "landscape_curvature": landscape_curvature,
    "landscape_target": landscape_target,
    "logit_gradient": of_step(logit_gradient_penalty),
    "marginal_density": of_step(marginal_density_penalty),
    "score_matching": of_step(score_matching_penalty),
}
