"""Judging networks, their saliency maps and class maps: one value for each image."""

from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.class_maps import largest_mask_iou, map_sparsity, mask_iou
from reglib.metrics.complexity import entropy
from reglib.metrics.faithfulness import faithfulness_estimate, inverted, pixel_effects
from reglib.metrics.receptive_field import ERFDistance, effective_receptive_field, erf_distance
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "ERFDistance",
    "effective_receptive_field",
    "entropy",
    "erf_distance",
    "faithfulness_estimate",
    "inverted",
    "largest_mask_iou",
    "local_lipschitz_estimate",
    "map_sparsity",
    "mask_iou",
    "max_sensitivity",
    "pixel_effects",
]
