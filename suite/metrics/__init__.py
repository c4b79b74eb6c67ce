"""Metrics of networks, their saliency maps and class maps: one value for each image."""

from suite.metrics.class_maps import (
    centre_to_rim,
    entropy,
    feature_leakage,
    largest_mask_iou,
    map_sparsity,
    mask_iou_beyond_others,
)
from suite.metrics.corruptions import CORRUPTIONS, SMALLEST_CORRUPTED, corrupt, probability_ratio
from suite.metrics.curves import (
    ablation_curve,
    area_under_curve,
    deletion_curve,
    insertion_curve,
    pixel_perturbation,
)
from suite.metrics.density import (
    density_change,
    density_gradients,
    gradient_change,
    logit_gradients,
)
from suite.metrics.faithfulness import (
    effects_on,
    faithfulness_estimate,
    invert,
    perturbed_logits,
    pixel_effects,
)
from suite.metrics.location import correct_by_location, group_accuracies
from suite.metrics.out_of_distribution import OOD_SCORES, auroc, mean_auroc
from suite.metrics.receptive_field import check_map_size, effective_receptive_field, erf_distance
from suite.metrics.robustness import local_lipschitz_estimate, max_sensitivity
from suite.metrics.saliency import SALIENCIES, maximise_activation, saliency_maps
