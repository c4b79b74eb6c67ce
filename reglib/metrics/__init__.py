"""Judging networks and their saliency maps: one value for each image."""

from reglib.metrics.activation import maximise_activation
from reglib.metrics.chunks import CHUNK_BYTES
from reglib.metrics.complexity import entropy
from reglib.metrics.density import DensityGradients, density_gradients
from reglib.metrics.faithfulness import (
    faithfulness_estimate,
    inverted,
    patch_effects,
    pixel_effects,
)
from reglib.metrics.groups import group_accuracies
from reglib.metrics.insertion import area_under_curve, deletion_curve, insertion_curve
from reglib.metrics.leakage import FeatureLeakage, feature_leakage
from reglib.metrics.out_of_distribution import OOD_SCORES, auroc, logit_auroc
from reglib.metrics.perturbation import (
    DensityChange,
    density_change,
    gradient_change,
    pixel_perturbation,
)
from reglib.metrics.robustness import local_lipschitz_estimate, max_sensitivity

__all__ = [
    "CHUNK_BYTES",
    "OOD_SCORES",
    "DensityChange",
    "DensityGradients",
    "FeatureLeakage",
    "area_under_curve",
    "auroc",
    "deletion_curve",
    "density_change",
    "density_gradients",
    "entropy",
    "faithfulness_estimate",
    "feature_leakage",
    "gradient_change",
    "group_accuracies",
    "insertion_curve",
    "inverted",
    "local_lipschitz_estimate",
    "logit_auroc",
    "max_sensitivity",
    "maximise_activation",
    "patch_effects",
    "pixel_effects",
    "pixel_perturbation",
]
