"""Penalties on the gradient of the loss by the input."""

import torch.nn.functional as F
from torch import Tensor

from reglib.autodiff import input_gradient


def input_gradient_penalty(logits: Tensor, labels: Tensor, inputs: Tensor) -> Tensor:
    r"""Compute the squared norm of the input gradient of the loss (double backpropagation).

    .. math:: r_b = \left\| \nabla_{x_b} \sum_{b'} H(y_{b'}, \hat y_{b'}) \right\|_2^2

    The gradient is that of the *summed* cross-entropy. With samples that do not influence one
    another it is the gradient of each sample's own loss, whatever the batch size; under batch
    normalisation in training mode it also holds what a sample does to the loss of the others.
    Zero if and only if the loss does not change, to first order, with the input.

    Args:
        logits: output of the network for `inputs`, (B, classes).
        labels: class indices, (B,).
        inputs: images, (B, ...), that required a gradient before the forward pass.

    Returns:
        One value for each sample, (B,), that can be differentiated by the parameters.

    Raises:
        ValueError: `inputs` does not require a gradient.

    Source: equation 1 of :cite:t:`demoor2025` (section 3.1), after :cite:t:`drucker1992`.

    >>> import torch
    >>> x = torch.zeros(1, 2, requires_grad=True)
    >>> logits = x @ torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> input_gradient_penalty(logits, torch.tensor([0]), x)  # gradient (-1, 0)
    tensor([1.], grad_fn=<SumBackward1>)
    """
    loss = F.cross_entropy(logits, labels, reduction="sum")
    gradient = input_gradient(loss, inputs, create_graph=True)
    return gradient.square().flatten(1).sum(1)
