"""The penalty on class maps, as a training step asks for it."""

from torch import Tensor

from reglib.errors import UsageError
from reglib.regularizers.step import Step
from reglib.top_gap import class_map_l1


def class_map_sizes(step: Step) -> Tensor:
    """Penalise the absolute values of the class maps that the logits of the step were pooled from.

    Returns:
        `reglib.top_gap.class_map_l1`, (B,).

    Raises:
        UsageError: a network without a `TopGAP` layer.
    """
    if step.class_maps is None:
        raise UsageError(
            "penalty 'class_map_l1': expected a network with a TopGAP layer, got "
            f"{type(step.model).__name__}; name the network 'top_gap', with k = 1.0 for the mean "
            "over all locations"
        )
    return class_map_l1(step.class_maps) if step.class_map_l1 is None else step.class_map_l1
