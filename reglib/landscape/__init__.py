"""Importance landscapes: how much each place of the image matters to a network, on average."""

from reglib.landscape.importance import (
    expected_importance_landscape,
    importance_landscape,
    sample_classes,
    scaled_norm,
)
from reglib.landscape.smoothness import (
    curvature_penalty,
    data_smoothness,
    laplacian,
    target_penalty,
    total_variation,
)

__all__ = [
    "curvature_penalty",
    "data_smoothness",
    "expected_importance_landscape",
    "importance_landscape",
    "laplacian",
    "sample_classes",
    "scaled_norm",
    "target_penalty",
    "total_variation",
]
