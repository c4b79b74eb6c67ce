"""Judging networks and their saliency maps: one value for each image."""

from reglib.metrics.ablation import ablation_curve
from reglib.metrics.chunks import CHUNK_BYTES
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
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "CORRUPTIONS",
    "ablation_curve",
    "area_under_curve",
    "correct_by_location",
    "corrupted",
    "deletion_curve",
    "entropy",
    "faithfulness_estimate",
    "insertion_curve",
    "inverted",
    "local_lipschitz_estimate",
    "max_sensitivity",
    "patch_effects",
    "pixel_effects",
    "places",
    "probability_ratio",
]
