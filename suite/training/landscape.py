"""The penalties on the importance landscape, as a training step asks for them."""

from torch import Tensor

from reglib.landscape import curvature_penalty, importance_landscape, target_penalty
from suite.training.penalties import Constants, Step


def landscape_curvature(step: Step, *, kernel_width: int = 3) -> Tensor:
    """Penalise the curvature of the importance landscape of the batch, in evaluation mode.

    Returns:
        `reglib.landscape.curvature_penalty`, one value of the whole batch, for each sample, (B,).
    """
    penalty = curvature_penalty(_landscape(step), kernel_width=kernel_width)
    return penalty.expand(len(step.inputs))


def landscape_target(step: Step, *, kernel_width: int = 3) -> Tensor:
    """Penalise the distance of the importance landscape of the batch from the smoothness of data.

    Returns:
        `reglib.landscape.target_penalty` with the `data_smoothness` of the training images, one
        value of the whole batch, for each sample, (B,).

    Raises:
        ValueError: the step has no `constants` with training images.
    """
    if step.constants is None:
        raise ValueError(
            "step.constants: expected Constants(model, images) with the training images, got None"
        )
    target = step.constants.smoothness(kernel_width).to(step.inputs)
    return target_penalty(_landscape(step), target).expand(len(step.inputs))


def _landscape(step: Step) -> Tensor:
    constants = step.constants or Constants(step.model)
    return importance_landscape(
        constants.evaluated, step.inputs, generator=step.generator, create_graph=True
    )
