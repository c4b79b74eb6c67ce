"""Penalties by the names under which a `Training` asks for them.

What a penalty takes by keyword besides a `PenaltyInputs` are its settings in a `Training`.
"""

from reglib.regularizers import (
    adversarial_penalty,
    cure_penalty,
    input_gradient_penalty,
    input_hessian_penalty,
    logit_gradient_penalty,
    marginal_density_penalty,
    score_matching_penalty,
)
from suite.training.class_maps import activation_sizes, class_map_sizes
from suite.training.landscape import landscape_curvature, landscape_target
from suite.training.penalties import Penalty, of_step

# What takes of a step its images and network alone, and goes through the network by itself.
OWN_PASS = frozenset({"landscape_curvature", "landscape_target"})

PENALTIES: dict[str, Penalty] = {
    "activation_l1": activation_sizes,
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
