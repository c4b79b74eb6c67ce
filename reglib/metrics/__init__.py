"""Judging networks and their saliency maps: one value for each image."""

from reglib.metrics.ablation import ablation_curve, area_under_curve
from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.complexity import entropy
from reglib.metrics.corruptions import CORRUPTIONS, corrupted, probability_ratio
from reglib.metrics.faithfulness import faithfulness_estimate, inverted, pixel_effects
from reglib.metrics.location import correct_by_location, places
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "CORRUPTIONS",
    "ablation_curve",
    "area_under_curve",
    "correct_by_location",
    "corrupted",
    "entropy",
    "faithfulness_estimate",
    "inverted",
    "local_lipschitz_estimate",
    "max_sensitivity",
    "pixel_effects",
    "places",
    "probability_ratio",
]
