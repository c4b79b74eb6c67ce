"""Input gradients: outside `double_backward`, the one caller of `torch.autograd.grad`."""

import torch
from torch import Tensor


def input_gradient(outputs: Tensor, inputs: Tensor, *, create_graph: bool = False) -> Tensor:
    r"""Differentiate the sum of `outputs` by `inputs`.

    .. math:: g = \nabla_x \sum_j f_j(x)

    Where the samples of a batch do not influence one another (no batch normalisation in training
    mode), row `b` of the result is the gradient of `outputs[b]` alone.

    Args:
        outputs: values computed from `inputs`, of any shape.
        inputs: tensor that requires a gradient, of any shape.
        create_graph: keep the graph, so that the result can be differentiated again.

    Returns:
        The gradient, of the shape of `inputs`.

    Raises:
        ValueError: `inputs` does not require a gradient, or `outputs` does not depend on it.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> input_gradient(x.square(), x)
    tensor([2., 4.])
    """
    if not inputs.requires_grad:
        raise ValueError(
            "inputs: expected a tensor that requires a gradient, got requires_grad=False; "
            "call inputs.requires_grad_() before the forward pass"
        )
    if not outputs.requires_grad:
        raise ValueError(
            "outputs: expected values computed from inputs with gradients enabled, got a tensor "
            "without a graph; was the forward pass made under torch.no_grad()?"
        )
    (gradient,) = torch.autograd.grad(
        outputs.sum(), inputs, create_graph=create_graph, allow_unused=True
    )
    if gradient is None:
        raise ValueError("outputs: expected values that depend on inputs, got independent ones")
    return gradient
