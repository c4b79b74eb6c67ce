"""Judging networks, their saliency maps and class maps: one value for each image."""

from reglib.metrics.ablation import ablation_curve
from reglib.metrics.activation import maximise_activation
from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.class_maps import largest_mask_iou, map_sparsity, mask_iou
from reglib.metrics.complexity import entropy
from reglib.metrics.corruptions import CORRUPTIONS, corrupted, probability_ratio
from reglib.metrics.curves import area_under_curve
from reglib.metrics.density import DensityGradients, density_gradients
from reglib.metrics.faithfulness import (
    faithfulness_estimate,
    inverted,
    patch_effects,
    pixel_effects,
)
from reglib.metrics.groups import group_accuracies
from reglib.metrics.insertion import deletion_curve, insertion_curve
from reglib.metrics.leakage import FeatureLeakage, feature_leakage
from reglib.metrics.location import correct_by_location, places
from reglib.metrics.out_of_distribution import OOD_SCORES, auroc, logit_auroc
from reglib.metrics.perturbation import (
    DensityChange,
    density_change,
    gradient_change,
    pixel_perturbation,
)
from reglib.metrics.receptive_field import ERFDistance, effective_receptive_field, erf_distance
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "CORRUPTIONS",
    "OOD_SCORES",
    "DensityChange",
    "DensityGradients",
    "ERFDistance",
    "FeatureLeakage",
    "ablation_curve",
    "area_under_curve",
    "auroc",
    "correct_by_location",
    "corrupted",
    "deletion_curve",
    "density_change",
    "density_gradients",
    "effective_receptive_field",
    "entropy",
    "erf_distance",
    "faithfulness_estimate",
    "feature_leakage",
    "gradient_change",
    "group_accuracies",
    "insertion_curve",
    "inverted",
    "largest_mask_iou",
    "local_lipschitz_estimate",
    "logit_auroc",
    "map_sparsity",
    "mask_iou",
    "max_sensitivity",
    "maximise_activation",
    "patch_effects",
    "pixel_effects",
    "pixel_perturbation",
    "places",
    "probability_ratio",
]
