"""Helpers for batches and networks that several modules share."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from reglib._checks import check_labels, check_type


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """View values, one for each sample (B,), so that they broadcast over `like`, (B, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def mean_absolute_value(values: Tensor) -> Tensor:
    """Return the mean absolute value of each sample, (B,), summed in float32 or a wider type."""
    wide = torch.promote_types(values.dtype, torch.float32)  # float16 overflows at 65,504
    dims = tuple(range(1, values.ndim))
    return torch.linalg.vector_norm(values, 1, dims, dtype=wide) / values.shape[1:].numel()


def power_of_two(values: Tensor) -> Tensor:
    """Return the power of two at or below the largest absolute value of each row, (B, 1)."""
    peak = values.abs().amax(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    return peak / (2 * torch.frexp(peak).mantissa)


def row_norms(values: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, (B,), without overflow or underflow of squares."""
    scale = power_of_two(values)
    return (values / scale).norm(dim=1) * scale[:, 0]


def unit_length(values: Tensor) -> Tensor:
    """Scale each sample to a Euclidean norm of one; a sample of zeros stays zero."""
    flat, least = values.flatten(1), torch.finfo(values.dtype).tiny
    return F.normalize(F.normalize(flat, torch.inf, eps=least), eps=least).view_as(values)


def normal_noise(like: Tensor, generator: Generator) -> Tensor:
    """Draw standard normal numbers of the shape, type and device of `like`."""
    check_type("generator", generator, Generator)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: str = "none") -> Tensor:
    """Compute the cross-entropy; raise a ValueError unless `labels` are class indices."""
    check_labels(labels, logits)
    return F.cross_entropy(logits, labels, reduction=reduction)


def label_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each label, (B,); raise a ValueError as `cross_entropy`."""
    check_labels(labels, logits)
    return logits.gather(1, labels[:, None])[:, 0]


def forward_again(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of other inputs; the network keeps its mode and its running statistics.

    Batch normalisation in training mode normalises by the statistics of `inputs`.
    """
    check_type("model", model, nn.Module)
    wrapped = nn.Sequential(model)  # `functional_call` refuses nn.DataParallel as it is
    buffers = {name: buffer.clone() for name, buffer in wrapped.named_buffers()}
    logits: Tensor = functional_call(wrapped, buffers, (inputs,))
    check_type("output of model", logits, Tensor)
    return logits


class _Copying(TorchFunctionMode):
    """Let `copy.deepcopy` copy tensors with a graph, such as features that a network keeps."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def copy_network(model: Any) -> Any:
    """Copy a network; features that it keeps from a forward pass are copied without a graph."""
    with _Copying():
        return copy.deepcopy(model)
