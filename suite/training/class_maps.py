"""L1 penalties on class maps and on activations, as a training step asks for them."""

from torch import Tensor

from reglib.regularizers import activation_l1
from reglib.top_gap import class_map_l1
from suite.errors import UsageError
from suite.training.penalties import Step


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


def activation_sizes(step: Step, *, layers: str = "last") -> Tensor:
    """Penalise the absolute values of the activations of the step.

    Returns:
        `reglib.regularizers.activation_l1`, (B,).

    Raises:
        UsageError: no activation layer, or a step without activations.
    """
    if not step.activations:
        raise UsageError(
            "penalty 'activation_l1': expected a step with the outputs of activation layers, got "
            f"none; {type(step.model).__name__} must have them as modules (such as torch.nn.ReLU), "
            "and take_step must be told with_activations=True"
        )
    return activation_l1(step.activations, layers=layers)
