"""Judging networks and their saliency maps: one value for each image."""

from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.complexity import entropy
from reglib.metrics.faithfulness import faithfulness_estimate, inverted, pixel_effects
from reglib.metrics.insertion import area_under_curve, deletion_curve, insertion_curve
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "area_under_curve",
    "deletion_curve",
    "entropy",
    "faithfulness_estimate",
    "insertion_curve",
    "inverted",
    "local_lipschitz_estimate",
    "max_sensitivity",
    "pixel_effects",
]
