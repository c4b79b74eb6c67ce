"""Processes that share each batch of a training, with the gradients of one that has it whole.

Which processes there are, `torch.distributed` knows; without it, or with one, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from reglib.errors import UsageError


class Share(NamedTuple):
    """The images `rows` of a batch, which this process has, of `total` that all processes have."""

    rows: slice
    total: int

    @property
    def part(self) -> float:
        """How much of the batch this process has."""
        return (self.rows.stop - self.rows.start) / self.total


def n_processes() -> int:
    """Return the number of processes that share each batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Say whether this process is the one that writes results."""
    return n_processes() == 1 or dist.get_rank() == 0


def share_of(total: int) -> Share | None:
    """Return which images of a batch this process has, or None if it has them all."""
    if n_processes() == 1:
        return None
    start, stop = (total * rank // n_processes() for rank in (dist.get_rank(), dist.get_rank() + 1))
    return Share(slice(start, stop), total)


def check_batches(n_images: int, batch_size: int) -> None:
    """Check that each process gets an image of each batch.

    Raises:
        UsageError: the last, or each, batch of an epoch has fewer images than there are processes.
    """
    least = min(batch_size, n_images % batch_size or batch_size)
    if least < n_processes():
        raise UsageError(
            f"batch_size: expected batches of at least {n_processes()} images, one for each "
            f"process, got a batch of {least} ({n_images} images in batches of {batch_size})"
        )


class Summed(torch.autograd.Function):
    """The sum over processes of a tensor, which each process gets.

    The derivative is of the sum over processes of what each computes from it, so gradients are
    those of that sum once they are summed over processes too. It can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return summed(gradients[0])


def summed(tensor: Tensor) -> Tensor:
    """Sum a tensor over processes; see `Summed`."""
    result: Tensor = Summed.apply(tensor)
    return result


def largest(tensor: Tensor) -> Tensor:
    """Return the largest value of a tensor in any process, without a gradient."""
    tensor = tensor.detach().clone()
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace the gradient of each parameter by its sum over processes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(total)
    parts = total.split([gradient.numel() for gradient in gradients])
    for gradient, values in zip(gradients, parts, strict=True):
        gradient.copy_(values.view(gradient.shape))


class SharedBatchNorm(TorchFunctionMode):
    """Normalise a batch by the statistics of all processes' parts of it, in training mode.

    `torch.nn.SyncBatchNorm` does so on CUDA alone. Running statistics become those of the batch.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    dims = [0, *range(2, input.ndim)]
    shape = (1, -1, *[1] * (input.ndim - 2))
    count = summed(input.new_tensor(input.numel() / input.shape[1]))
    mean = summed(input.sum(dims)) / count
    centred = input - mean.view(shape)
    variance = summed(centred.square().sum(dims)) / count
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * count / (count - 1), momentum)
    result = centred * (variance + eps).rsqrt().view(shape)
    result = result if weight is None else result * weight.view(shape)
    return result if bias is None else result + bias.view(shape)
