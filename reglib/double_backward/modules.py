"""Views of a network whose calls go through other functions, with the same state."""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from reglib._common import copied
from reglib._torch_private import is_hooked_between
from reglib.double_backward.layers import FastLayers
from reglib.double_backward.layout import make_contiguous


class View(nn.Module):
    """Base of views: modules that have the very state of another one, its training flag included.

    A view of a network of class `C` is an instance of a subclass of `C`, so that its parameters,
    buffers, hooks, submodules and their names are those of the network. The names that are added
    here are long, so that they hide nothing of the network.
    """

    _reglib_model: ClassVar[nn.Module]
    _reglib_make_view: ClassVar[Callable[[nn.Module], Any]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self)._reglib_make_view, (viewed(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)._reglib_make_view(copy.deepcopy(viewed(self), memo))


def viewed(model: nn.Module) -> Any:
    """Return the network that a module is a view of, or the module itself."""
    return model._reglib_model if isinstance(model, View) else model


def view_of(model: nn.Module, kind: type[View]) -> Any:
    """Return a view of `model`, of class `kind` and of the class of `model`."""
    # The class keeps the network alive: Python may empty the attributes of an object that ends.
    name, own = f"{kind.__name__}{type(model).__name__}", {"_reglib_model": model}
    view: Any = object.__new__(type(name, (kind, type(model)), own))
    object.__setattr__(view, "__dict__", model.__dict__)
    return view


def check(model: object) -> None:
    """Check that a view of a module can be made and means something.

    Raises:
        ValueError: not a module, or one of a kind that is refused, by name.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.modules.lazy.LazyModuleMixin):
        raise ValueError(
            f"model: expected a module whose shapes are known, got {type(model).__name__}; "
            "call it once on an input first"
        )
    for name, module in model.named_modules():
        where = f"model{'.' if name else ''}{name}"
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{where}: expected a module in Python, got TorchScript, which hides the functions "
                "that it calls; give the module that it was made from"
            )
        if "quantized" in type(module).__module__.split("."):
            raise ValueError(
                f"{where}: expected a floating-point module, got the quantised "
                f"{type(module).__name__}, which has no gradient"
            )


class Fast(View):
    """A view that calls exact autograd functions of ours."""

    _reglib_lays_out = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # What hooks keep beyond the call is to be laid out as without.
        hooked = any(is_hooked_between(module, module) for module in self.modules())
        with FastLayers(lays_out=self._reglib_lays_out and not hooked):
            result = super().__call__(*args, **kwargs)
        make_contiguous([result])
        return result


class LaidOut(Fast):
    """The same, which leads images through in channels-last layout."""

    _reglib_lays_out = True


def fast_double_backward(model: nn.Module, *, channels_last: bool = False) -> Any:
    r"""Return a view of a network that computes the same, and whose gradients differentiate faster.

    The view *is* the network as far as its state goes: parameters, buffers, submodules, hooks,
    training mode and names in `state_dict` are shared, not copied. While it is called, convolution,
    batch normalisation, ReLU and its relatives, and pooling go to exact autograd functions of ours,
    whichever module or function calls them; all others are left to stock autograd (`calls_of` lists
    both). Derivatives of any order by any parameter are exact. Hardsigmoid and attention, which
    stock PyTorch differentiates only once, have all of them too. Function transforms
    (`torch.func`), forward-mode differentiation, activation checkpointing and complex tensors get
    stock functions.

    It pays where convolutions, batch normalisation, ReLU and its relatives and pooling take most of
    the time. Where normalisation by groups, SiLU or small linear layers do, it gains nothing, and a
    network of a few milliseconds loses. On CUDA measure first: stock autograd was faster on an
    H200, for four of five networks.

    Args:
        model: any network in Python. It can be used by itself as before.
        channels_last: whether to lead contiguous images through a contiguous network in
            channels-last layout, which convolutions on a CPU with AVX-512 take faster. Functions of
            PyTorch that are not known to do the same in both layouts get contiguous images, and so
            does the caller; a network with forward hooks keeps its layout. What PyTorch does not
            tell of may find channels-last images: TorchScript, extensions in C++, a module that
            keeps feature maps. Without it the layout is that of the network and the images, and
            `model.to(memory_format=torch.channels_last)` is faster where you can do that.

    Returns:
        A module of a subclass of the class of `model`. Copies and pickles of it are again views.

    Raises:
        ValueError: TorchScript or quantised modules, or a lazy module that was never called.
    """
    check(model)
    kind = LaidOut if channels_last else Fast
    return model if isinstance(model, View) else view_of(model, kind)


Fast._reglib_make_view = fast_double_backward
LaidOut._reglib_make_view = partial(fast_double_backward, channels_last=True)


class Calls(NamedTuple):
    """How often functions were called with a gradient: as ours, and as stock ones, by name."""

    fast: Counter[str]
    stock: Counter[str]


def calls_of(model: nn.Module, *inputs: Any) -> Calls:
    """List which functions `fast_double_backward` speeds up in one forward pass of a network.

    Args:
        model: a network; a copy of it is called.
        inputs: its inputs, at least one of which requires a gradient.

    Raises:
        ValueError: as `fast_double_backward`.
    """
    check(model)
    calls = Calls(Counter(), Counter())
    with FastLayers(calls._asdict()), torch.enable_grad():
        copied(viewed(model))(*inputs)
    return calls
