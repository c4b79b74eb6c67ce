"""The private names of PyTorch that this library uses: a release that moves one breaks this file.

Tests of the views, and `tests/test_torch_private.py`, test what each of them has to do.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

aten = torch.ops.aten
BatchNorm = _BatchNorm
MARKED = once_differentiable(lambda ctx: None).__code__  # the code of every marked backward


def will_run(node: Any) -> bool:
    """Whether the current backward pass will run a node of the graph."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for a leaf by which torch.autograd.grad differentiates
        return True


def has_one_derivative(node: Any) -> bool:
    """Whether a node is marked `once_differentiable`, or made by `torch.compile`."""
    kind = getattr(node, "_forward_cls", None)
    code = getattr(getattr(kind, "backward", None), "__code__", None)
    return code is MARKED or getattr(kind, "__module__", "").startswith("torch._functorch._aot")


def saved_tensors_are_hooked() -> bool:
    """Whether hooks such as those of activation checkpointing replace saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, forward-mode differentiation or a trace is active."""
    transforms = torch._C._are_functorch_transforms_active() or is_traced()
    return transforms or forward_ad._current_level >= 0


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor stands for a batch: under `is_grads_batched` or `torch.vmap`."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(tensor) or functorch.is_batchedtensor(tensor)


def is_traced() -> bool:
    """Whether `torch.jit.trace` is active, under which sizes are tensors."""
    return torch._C._get_tracing_state() is not None


def is_hooked(module: nn.Module) -> bool:
    """Whether a module has a hook of its own, or a global hook is registered."""
    forward = module._forward_pre_hooks or module._forward_hooks
    backward = module._backward_pre_hooks or module._backward_hooks
    return bool(forward or backward or _has_any_global_hook())
