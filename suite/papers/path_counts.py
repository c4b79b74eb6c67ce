"""Count the paths from each position of the image to the output, and predict squared gradients."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reglib._checks import DROPOUTS
from reglib.autodiff import input_gradient
from reglib.double_backward.modules import in_evaluation_mode
from suite.papers.names import NAMES

Index = tuple[int, ...] | None
COUNTED = "model: expected layers whose paths can be counted"


def path_counts(
    model: nn.Module, shape: Sequence[int], *, output: Index = None, squared: bool = False
) -> Tensor:
    r"""Count the paths from each input value to the outputs of a network.

    .. math:: \sum_j \# p_{h_j \to x_i} = \frac{\partial}{\partial x_i} \sum_j h_j
       \quad \text{with every weight one}

    by one backward pass in float64. All weights are one, biases are left out, normalisation and
    activations are the identity, and poolings are sums. A product with broadcast values, as in
    squeeze-and-excitation, is a gate and counts as one. The network can be on the device "meta",
    since its weights are not read.

    With `squared`, each path counts as the product of the expected squared derivatives along it:

    .. math:: \sum_j \mathbb E \left[ \left( \frac{\partial h_j}{\partial x_i} \right)^2 \right]
       = \sum_j \sum_{c \in \mathbb P_{ij}} \prod_{l \in c} \mathbb V[w^{(l)}] \, d^{(l)}

    with the mean square of a layer's weights for :math:`\mathbb V[w]`; d = 1/2 for an activation,
    1/n for the largest of n values, 1/n^2 for their mean, and 1 for normalisation. These factors
    are taken as independent. Where they are not, as in pooling after an activation, the scale
    differs, but the landscape hardly.

    Args:
        model: any network of convolutions (one, two or three dimensions, groups), linear layers,
            normalisation, activations, pooling, sums, concatenation and gates.
        shape: of one input, (C, ...).
        output: index of one output value, without the batch; all of them by default.
        squared: whether to sum expected squared derivatives. This reads the weights.

    Returns:
        The counts, of shape `shape`, in float64: exact below 2^53.

    Raises:
        ValueError: a layer or function whose paths cannot be counted, no weights where they are
            read, or more paths than float64 can hold.

    Source: definition 2, equations 3 and 16 of :cite:t:`moens2020`.

    >>> stack = nn.Sequential(nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3))
    >>> path_counts(stack, (1, 5))
    tensor([[1., 2., 3., 2., 1.]], dtype=torch.float64)
    """
    values = torch.linspace(1, 2, math.prod(shape), dtype=torch.float64)
    inputs = values.view(1, *shape).requires_grad_()
    with torch.enable_grad(), in_evaluation_mode(model), _AllOnes(squared):
        outputs = model(inputs)
    selected = outputs if output is None else outputs[(0, *output)]
    counts = input_gradient(selected, inputs)
    if not counts.isfinite().all():
        raise ValueError("model: expected fewer than 1e308 paths, which is all that float64 holds")
    # Euler: a linear function is its gradient times its input.
    total = float(selected.detach().sum())
    if not math.isclose(float((counts * inputs.detach()).sum()), total, rel_tol=1e-9):
        why = "but with all weights one the network is not linear; it calls an unknown function, "
        raise ValueError(f"{COUNTED}, {why}such as attention")
    return counts[0]


class _AllOnes(TorchFunctionMode):
    """Call every layer as if all its weights were one."""

    def __init__(self, squared: bool) -> None:
        super().__init__()
        self.squared = squared

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        role = ROLES.get(name, ROLES.get(name.rstrip("_")))
        if func in CONVOLUTIONS:
            return self._convolution(func, *args, **kwargs)
        if func is F.linear:
            sums = self._weight(args[1]) * args[0].sum(-1, keepdim=True)
            return sums.repeat_interleave(len(args[1]), -1)
        if func in DROPOUTS or role in ("unchanged", "activation"):
            return args[0] / (2 if self.squared and role == "activation" else 1)
        if role == "product":
            return _drop_gate(*args)
        if name in POOLINGS:
            sums, n_values = POOLINGS[name](*args, **kwargs)
            power = 1 if "max" in name else 2
            return sums / n_values**power if self.squared else sums
        if "pool" in name or (role != "query" and any(isinstance(a, nn.Parameter) for a in args)):
            raise ValueError(f"{COUNTED}, got {name}")
        return func(*args, **kwargs)

    def _weight(self, weight: Tensor) -> float:
        if not self.squared:
            return 1.0
        if weight.is_meta:
            raise ValueError("model: expected weights for the squared derivatives, got none (meta)")
        return float(weight.detach().double().square().mean())

    def _convolution(self, func: Any, x: Tensor, weight: Tensor, *args: Any, **more: Any) -> Tensor:
        """Convolve the sum of the channels, since all filters are the same."""
        settings = dict(zip(("bias", "stride", "padding", "dilation", "groups"), args)) | more
        groups = settings.get("groups", 1)
        sums = x.unflatten(1, (groups, -1)).sum(2)
        ones = torch.full((groups, 1, *weight.shape[2:]), self._weight(weight), dtype=x.dtype)
        y = func(sums, ones, **settings | {"bias": None})
        return y.repeat_interleave(len(weight) // groups, 1)


def _drop_gate(*factors: Any) -> Tensor:
    """Return the largest factor of a product; smaller factors are broadcast, and so gates."""
    values = [f for f in factors if isinstance(f, Tensor) and f.requires_grad]
    values.sort(key=lambda f: f.numel())
    if len(values) == 2 and values[0].shape == values[1].shape:
        what = f"the product of two values of shape {tuple(values[0].shape)}"
        raise ValueError(f"{COUNTED}, got {what}")
    return values[-1]


Sums = tuple[Tensor, Tensor | int]  # sums over the windows of pooling, and their numbers of values


def _pool(order: str, x: Tensor, *args: Any, **kwargs: Any) -> Sums:
    """Sum over the windows of pooling in two dimensions; `order` names positional arguments."""
    named = dict(zip(order.split(), args)) | kwargs
    windows = {k: named[k] for k in ("kernel_size", "stride", "padding", "ceil_mode") if k in named}
    if (dilation := named.get("dilation", 1)) not in (1, (1, 1)):
        raise ValueError(f"model: expected pooling without dilation, got {dilation}")
    n_values = size**2 if isinstance(size := named["kernel_size"], int) else math.prod(size)
    return F.avg_pool2d(x, **windows, divisor_override=1), n_values


def _adaptive_pool(x: Tensor, output_size: Any, return_indices: bool = False) -> Sums:
    axes = range(2, x.ndim)
    sizes = [output_size] * len(axes) if isinstance(output_size, int) else output_size
    n_values = torch.ones(())
    for axis, size in zip(axes, sizes):
        n = x.shape[axis]
        inside = (F.adaptive_avg_pool1d(torch.eye(n), size or n) > 0).double()  # (n, outputs)
        x = (x.movedim(axis, -1) @ inside).movedim(-1, axis)
        n_values = n_values[..., None] * inside.sum(0)
    return x, n_values


def _mean(x: Tensor, *args: Any, **kwargs: Any) -> Sums:
    sums = x.sum(*args, **kwargs)
    return sums, x.numel() // sums.numel()


CONVOLUTIONS: set[Any] = {F.conv1d, F.conv2d, F.conv3d}
ROLES = {n: role for role, names in NAMES["path_counts"]["roles"].items() for n in names.split()}
POOLINGS: dict[str, Callable[..., Sums]] = {
    "max_pool2d": partial(_pool, "kernel_size stride padding dilation ceil_mode"),
    "avg_pool2d": partial(_pool, "kernel_size stride padding ceil_mode"),
    **{f"adaptive_{kind}_pool{n}d": _adaptive_pool for kind in ("max", "avg") for n in (1, 2)},
    "mean": _mean,
}
