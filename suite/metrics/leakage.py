"""How much of a saliency map lies where there is nothing to learn?"""

from typing import NamedTuple

from torch import Tensor

from suite.metrics.class_maps import check_masks


class FeatureLeakage(NamedTuple):
    """One value for each image, (B,): as published, and as a share of the whole map."""

    absolute: Tensor
    relative: Tensor


def feature_leakage(maps: Tensor, masks: Tensor) -> FeatureLeakage:
    r"""Compute the norm of saliency maps on features that say nothing about the class.

    .. math:: \| m \odot a(x) \|_F \qquad \text{and} \qquad
       \frac{\| m \odot a(x) \|_F}{\| a(x) \|_F}

    The first is the published measure, of which the mean over images is taken. A network with
    smaller logits has less of it whatever it looks at; the second does not depend on their scale.

    Args:
        maps: signed saliency, (B, C, H, W): Integrated Gradients in the paper, see
            `suite.metrics.saliency.integrated_gradients`.
        masks: True on the uninformative features, (B, 1, H, W) or of the shape of `maps`.

    Returns:
        Both values, (B,) each; the relative one is NaN where the map is zero.

    Raises:
        ValueError: masks that are not boolean, of another size, or that mark nothing.

    Source: equation 9 of :cite:t:`yang2024`. It scales the null block alone along the path; the
    maps that they show, and this function, are those of whole images.
    """
    n, channels, height, width = maps.shape
    check_masks(masks, (n, 1, height, width), (n, channels, height, width))
    absolute = (maps * masks).flatten(1).norm(dim=1)
    return FeatureLeakage(absolute, absolute / maps.flatten(1).norm(dim=1))
