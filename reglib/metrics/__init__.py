"""Judging networks, their saliency maps and class maps: one value for each image."""

from reglib.metrics.ablation import ablation_curve
from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.class_maps import largest_mask_iou, map_sparsity, mask_iou
from reglib.metrics.complexity import entropy
from reglib.metrics.corruptions import CORRUPTIONS, corrupted, probability_ratio
from reglib.metrics.curves import area_under_curve
from reglib.metrics.faithfulness import (
    faithfulness_estimate,
    inverted,
    patch_effects,
    pixel_effects,
)
from reglib.metrics.insertion import deletion_curve, insertion_curve
from reglib.metrics.location import correct_by_location, places
from reglib.metrics.receptive_field import ERFDistance, effective_receptive_field, erf_distance
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "CORRUPTIONS",
    "ERFDistance",
    "ablation_curve",
    "area_under_curve",
    "correct_by_location",
    "corrupted",
    "deletion_curve",
    "effective_receptive_field",
    "entropy",
    "erf_distance",
    "faithfulness_estimate",
    "insertion_curve",
    "inverted",
    "largest_mask_iou",
    "local_lipschitz_estimate",
    "map_sparsity",
    "mask_iou",
    "max_sensitivity",
    "patch_effects",
    "pixel_effects",
    "places",
    "probability_ratio",
]
