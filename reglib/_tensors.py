"""What several modules do with batches of tensors."""

from torch import Generator, Tensor, randn
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
