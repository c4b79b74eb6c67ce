"""What several modules do with batches and networks."""

from torch import Generator, Tensor, nn, randn
from torch.func import functional_call
from torch.nn.functional import normalize


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """View one value for each sample, (B,), so that it broadcasts over `like`, (B, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def unit_length(values: Tensor) -> Tensor:
    """Scale each sample to a Euclidean norm of one; zeros stay zeros."""
    return normalize(values.flatten(1), dim=1).view_as(values)


def normal_noise(like: Tensor, generator: Generator) -> Tensor:
    """Draw standard normal numbers of the shape, type and device of a tensor."""
    return randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def forward_keeping_statistics(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of other inputs, in the mode that the network is in.

    Batch normalisation in training mode normalises by the statistics of `inputs`, and leaves the
    running ones to the forward pass of the step.
    """
    return functional_call(model, {k: v.clone() for k, v in model.named_buffers()}, (inputs,))
