"""Judging networks, their saliency maps and class maps: one value for each image."""

from suite.metrics.activation import maximise_activation
from suite.metrics.chunks import CHUNK_BYTES
from suite.metrics.class_maps import (
    feature_leakage,
    largest_mask_iou,
    map_sparsity,
    mask_iou_beyond_others,
)
from suite.metrics.complexity import entropy
from suite.metrics.corruptions import CORRUPTIONS, SMALLEST_CORRUPTED, corrupted, probability_ratio
from suite.metrics.curves import (
    ablation_curve,
    area_under_curve,
    deletion_curve,
    insertion_curve,
    pixel_perturbation,
)
from suite.metrics.density import (
    LogitGradients,
    density_change,
    density_gradients,
    gradient_change,
    logit_gradients,
)
from suite.metrics.faithfulness import (
    effects_on,
    faithfulness_estimate,
    inverted,
    perturbed_logits,
    pixel_effects,
)
from suite.metrics.groups import group_accuracies
from suite.metrics.location import centre_to_rim, correct_by_location
from suite.metrics.out_of_distribution import OOD_SCORES, auroc, logit_auroc
from suite.metrics.receptive_field import check_map_size, effective_receptive_field, erf_distance
from suite.metrics.robustness import local_lipschitz_estimate, max_sensitivity
from suite.metrics.saliency import SALIENCIES, saliency_maps
