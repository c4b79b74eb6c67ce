"""What does a network take for a typical member of a class?"""

import torch
from torch import Tensor, nn

from reglib._checks import check_positive
from reglib._common import unit_length
from suite.metrics.saliency import logit_gradient


def maximise_activation(
    model: nn.Module, start: Tensor, class_index: Tensor, *, n_steps: int, step_size: float
) -> Tensor:
    r"""Change images by gradient ascent on a logit.

    .. math:: x^{t+1} = \Pi \Bigl( x^t + \alpha
       \frac{\nabla_x f_c(x^t)}{\| \nabla_x f_c(x^t) \|_2} \Bigr)

    with :math:`\Pi` the projection into [0, 1].

    Args:
        model: network in evaluation mode.
        start: images to begin with, (B, C, H, W): random ones in the paper.
        class_index: the class `c` of each image, (B,).
        n_steps: number of steps.
        step_size: :math:`\alpha`, the Euclidean length of a step.

    Returns:
        Images, (B, C, H, W).

    Raises:
        ValueError: `n_steps` or `step_size` is not positive.

    Source: appendix A.6 of :cite:t:`yang2024`, which states neither steps nor normalisation; after
    :cite:t:`simonyan2014`.
    """
    check_positive(n_steps=n_steps, step_size=step_size)
    images = start
    for _ in range(n_steps):
        step = unit_length(logit_gradient(model, images, class_index))
        images = torch.clamp(images + step_size * step, 0, 1)
    return images
