"""Regularizers for what image classifiers look at, in PyTorch; no other package is needed.

This module exports the main names; `reglib.input_hessian` and the other subpackages have more.
Importing chooses no device and downloads nothing.
"""

from reglib.cuda_graphs import captured
from reglib.double_backward import evaluation_mode, fast_double_backward
from reglib.input_hessian import closed_form_hessian, hessian_eigenpairs
from reglib.landscape import (
    curvature_penalty,
    data_smoothness,
    importance_landscape,
    target_penalty,
    total_variation,
)
from reglib.regularizers import (
    activation_l1,
    adversarial_penalty,
    cure_penalty,
    finite_difference_penalty,
    group_dro,
    input_gradient_penalty,
    input_hessian_penalty,
    logit_gradient_penalty,
    marginal_density_penalty,
    score_matching_penalty,
)
from reglib.saliency import cafo, caso, surrogate_loss
from reglib.top_gap import TopGAP, TopGAPNet, class_map_l1, top_gap_and_l1

__version__ = "0.1.0"
__all__ = [
    "TopGAP", "TopGAPNet", "activation_l1", "adversarial_penalty", "cafo", "captured", "caso",
    "class_map_l1", "closed_form_hessian", "cure_penalty", "curvature_penalty",
    "data_smoothness", "evaluation_mode", "fast_double_backward", "finite_difference_penalty",
    "group_dro", "hessian_eigenpairs", "importance_landscape", "input_gradient_penalty",
    "input_hessian_penalty", "logit_gradient_penalty", "marginal_density_penalty",
    "score_matching_penalty", "surrogate_loss", "target_penalty", "top_gap_and_l1",
    "total_variation",
]  # fmt: skip
