"""Functions of PyTorch with a faster double backward pass, and a mode that calls them.

While `FastLayers` is active, every call of these functions, by any module, goes to an exact
autograd function of this package. Other functions and uncovered settings stay with stock autograd.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import NotImplementedType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, resolve_name

from reglib._torch_private import aten, is_transformed, saved_tensors_are_hooked
from reglib.double_backward import functions, layout
from reglib.double_backward.normalisation import BatchNormTraining, ScaleShift, scale_and_shift

Pair = int | Iterable[int]
Ruled = Tensor | NotImplementedType  # NotImplemented leaves the call to stock autograd


class FastLayers(TorchFunctionMode):
    """Send the functions in `HANDLERS` to the exact autograd functions of this package.

    Args:
        calls: counters of fast and of stock calls by name, to be updated.
        lays_out: whether to bring images of convolutions into channels-last layout, up to the first
            function that is not known to do the same in any layout.
    """

    def __init__(
        self, calls: dict[str, Counter[str]] | None = None, *, lays_out: bool = False
    ) -> None:
        super().__init__()
        self.calls = calls
        self.lays_out = lays_out

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result: Any = NotImplemented
        values = (*args, *kwargs.values())
        if _applies(func, values):
            arguments = args
            if self.lays_out and func is F.conv2d and len(args) > 1:
                arguments = layout.for_convolution(args[0], args[1]), *args[1:]
            result = HANDLERS[func](*arguments, **kwargs)
            result = layout.mark(result) if layout.is_marked(arguments) else result
        fast = result is not NotImplemented
        if not fast:
            laid_out = layout.is_marked(values)
            if laid_out and func not in layout.SAME_IN_ANY_LAYOUT:
                layout.make_contiguous(values)
                self.lays_out = laid_out = False
            result = PROTECTED.get(func, func)(*args, **kwargs)
            result = layout.mark(result) if laid_out else result
        if self.calls is not None and isinstance(result, Tensor) and result.grad_fn is not None:
            self.calls["fast" if fast else "stock"][resolve_name(func) or repr(func)] += 1
        return result


def _applies(func: Any, values: tuple[Any, ...]) -> bool:
    """Whether a handler may take a call: of a plain tensor, and not transformed or repeated."""
    x: Any = next(iter(values), None)
    return (
        func in HANDLERS
        and type(x) in (Tensor, nn.Parameter)
        and x.is_floating_point()
        and (func in FASTER_WITHOUT_GRADIENT or _needs_gradient(*values))
        and not saved_tensors_are_hooked()
        and not is_transformed()
        and not torch.compiler.is_compiling()
    )


def _needs_gradient(*values: Any) -> bool:
    requires = (isinstance(value, Tensor) and value.requires_grad for value in values)
    return torch.is_grad_enabled() and any(requires)


def _autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Cast as autocast does, with the cast in the graph."""
    device = next(t.device.type for t in tensors if t is not None)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


def _pair(value: Pair) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return values[0], values[-1]


def _conv2d_rule(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Ruled:
    """Convolve; leave asymmetric and invalid padding in words to stock autograd."""
    if input.ndim != 4:
        return NotImplemented
    dilation = _pair(dilation)
    if isinstance(padding, str):
        same = padding == "same" and _pair(stride) == (1, 1)
        reach = [same * d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(r % 2 for r in reach) or not (same or padding == "valid"):
            return NotImplemented
        padding = [r // 2 for r in reach]
    geometry = functions.Geometry(_pair(stride), _pair(padding), dilation, groups)
    return functions.Convolution.apply(*_autocast(input, weight, bias), geometry)


def _convolve_safely(
    function: Any, input: Any, weight: Any, bias: Any = None, stride: Any = 1, *args: Any, **kw: Any
) -> Any:
    """Convolve by stock autograd, in a layout that oneDNN differentiates correctly."""
    if functions.is_unsafe(weight, _pair(stride)):
        input, weight = functions.to_standard_layout(input), functions.to_standard_layout(weight)
    return function(input, weight, bias, stride, *args, **kw)


def _batch_norm_rule(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Ruled:
    """Normalise; leave the error for one value in a channel to stock autograd."""
    if input.ndim < 2:
        return NotImplemented
    if not training:
        if running_mean is None or running_var is None:
            return NotImplemented
        s, t = scale_and_shift(weight, bias, running_mean, running_var, eps)
        return ScaleShift.apply(input, s, t)
    if input.numel() <= input.shape[1]:
        return NotImplemented
    running = running_mean, running_var, momentum
    return BatchNormTraining.apply(input, weight, bias, running, eps)


def _activation(
    x: Tensor, function: functions.Map, kernel: Any, *settings: float | bool, keeps_output: bool
) -> Tensor:
    """Apply an activation, and save its input or its output, as stock autograd does.

    `kernel(v, saved, *settings)` multiplies v by the slope of the activation.
    """

    def evaluate(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        y = function(x)
        return y, [y if keeps_output else x]

    def multiply(v: Tensor, saved: Tensor) -> Tensor:
        return kernel(v, saved, *settings)

    return functions.Piecewise.apply(x, evaluate, multiply, multiply)


def _relu_rule(input: Tensor, inplace: bool = False) -> Ruled:
    """Rectify."""
    function = torch.relu_ if inplace else torch.relu
    return _activation(input, function, aten.threshold_backward, 0, keeps_output=True)


def _hardtanh_rule(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Ruled:
    """Clip to a range."""
    function = aten.hardtanh_ if inplace else aten.hardtanh
    clip = partial(function, min_val=min_val, max_val=max_val)
    kernel = aten.hardtanh_backward
    return _activation(input, clip, kernel, min_val, max_val, keeps_output=inplace)


def _leaky_relu_rule(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Ruled:
    """Scale negative values; leave the error for a negative slope in place to stock autograd."""
    if inplace and negative_slope < 0:
        return NotImplemented
    function = aten.leaky_relu_ if inplace else aten.leaky_relu
    leak, kernel = partial(function, negative_slope=negative_slope), aten.leaky_relu_backward
    return _activation(input, leak, kernel, negative_slope, inplace, keeps_output=inplace)


def _hardsigmoid_rule(input: Tensor, inplace: bool = False) -> Ruled:
    """Clip x / 6 + 1 / 2 to [0, 1]; in stock autograd it has no second derivative."""

    def multiply(v: Tensor, y: Tensor) -> Tensor:
        return aten.hardtanh_backward(v, y, 0.0, 1.0) / 6

    function = aten.hardsigmoid_ if inplace else aten.hardsigmoid
    return _activation(input, function, multiply, keeps_output=True)


def _attention_rule(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Attend by elementary operations: the fused kernels have no second derivative.

    `sdpa_kernel` sets flags of the process: see `fast_double_backward`.
    """
    with sdpa_kernel(SDPBackend.MATH):
        return function(*args, **kwargs)


def _max_pool2d_rule(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Ruled:
    """Take maxima, faster in 2 x 2 windows that do not overlap."""
    if return_indices or input.ndim != 4:
        return NotImplemented
    kernel = _pair(kernel_size)
    window = kernel, _pair(stride or kernel), _pair(padding), _pair(dilation)
    even = not ceil_mode or not any(side % 2 for side in input.shape[2:])
    pairs = even and min(input.shape[2:]) > 1 and window == ((2, 2), (2, 2), (0, 0), (1, 1))
    if not _needs_gradient(input):
        return functions.max_pool_of_pairs(input) if pairs else NotImplemented
    # With 16 channels side by side the kernel for the CPU is vectorised.
    vectorised = functions.is_channels_last(input) and input.shape[1] >= 16
    fast = pairs and input.device.type == "cpu" and not vectorised
    forward = functions.max_pool_of_pairs_with_indices if fast else aten.max_pool2d_with_indices
    settings = *window, ceil_mode
    return _pool_with_indices(input, forward, aten.max_pool2d_with_indices_backward, settings)


def _adaptive_max_pool_rule(input: Tensor, output_size: Any, return_indices: bool = False) -> Ruled:
    """Take maxima over a grid of windows."""
    if return_indices or input.ndim != 4 or None in (size := _pair(output_size)):
        return NotImplemented
    forward, backward = aten.adaptive_max_pool2d, aten.adaptive_max_pool2d_backward
    return _pool_with_indices(input, partial(forward, output_size=size), backward, ())


def _pool_with_indices(x: Tensor, forward: Any, backward: Any, settings: tuple[Any, ...]) -> Tensor:
    def evaluate(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        y, indices = forward(x, *settings)
        if x.device.type == "cpu" and x.is_contiguous():
            x = x.new_empty(()).expand(x.shape)  # the backward pass reads its shape only
        return y, [x, indices]

    def pull(gy: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        return backward(gy, x, *settings, indices)

    def push(u: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        flat = u.reshape(*u.shape[:2], -1)
        return flat.gather(2, indices.flatten(2)).view(indices.shape)

    return functions.Piecewise.apply(x, evaluate, pull, push)


def _avg_pool2d_rule(
    input: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Ruled:
    """Take means."""
    window = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding)
    settings = *window, ceil_mode, count_include_pad, divisor_override
    return _linear_pool(input, aten.avg_pool2d, aten.avg_pool2d_backward, settings)


def _adaptive_avg_pool2d_rule(input: Tensor, output_size: Any) -> Ruled:
    """Take means over a grid of windows; leave the mean of one window to stock autograd."""
    size = _pair(output_size)
    if None in size or size == (1, 1):
        return NotImplemented
    forward = partial(aten._adaptive_avg_pool2d, output_size=size)
    return _linear_pool(input, forward, aten._adaptive_avg_pool2d_backward, ())


def _linear_pool(x: Tensor, forward: Any, backward: Any, settings: tuple[Any, ...]) -> Ruled:
    if x.ndim != 4:
        return NotImplemented

    def pool(v: Tensor, x: Tensor) -> Tensor:
        return forward(v, *settings)

    def spread(gy: Tensor, x: Tensor) -> Tensor:
        return backward(gy, x, *settings)

    return functions.LinearMap.apply(x, pool, spread, x.detach())


ATTENTION = F.scaled_dot_product_attention, F.multi_head_attention_forward
HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.conv2d: _conv2d_rule,
    F.batch_norm: _batch_norm_rule,
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), _relu_rule),
    **dict.fromkeys((F.relu_, Tensor.relu_), partial(_relu_rule, inplace=True)),
    F.hardtanh: _hardtanh_rule,
    F.relu6: partial(_hardtanh_rule, min_val=0.0, max_val=6.0),
    F.leaky_relu: _leaky_relu_rule,
    F.hardsigmoid: _hardsigmoid_rule,
    **{f: partial(_attention_rule, f) for f in ATTENTION},
    F.max_pool2d: _max_pool2d_rule,
    F.adaptive_max_pool2d: _adaptive_max_pool_rule,
    F.avg_pool2d: _avg_pool2d_rule,
    F.adaptive_avg_pool2d: _adaptive_avg_pool2d_rule,
}
FASTER_WITHOUT_GRADIENT = {F.max_pool2d}
PROTECTED = {f: partial(_convolve_safely, f) for f in (F.conv2d, F.conv_transpose2d)}
