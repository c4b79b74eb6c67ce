"""Views of a network: modules with the same state, whose calls run other functions."""

import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import nn

from reglib._common import copy_network
from reglib._torch_private import is_hooked
from reglib.double_backward.layers import FastLayers
from reglib.double_backward.layout import make_contiguous

QUANTISED = re.compile(r"torch\..*\bquantized\b.*(?<!FloatFunctional)$")


class Unheard(nn.Module):
    """Base of subclasses of a network's class, of which that class is not notified."""

    def __init_subclass__(cls) -> None:
        """Skip the method of the network's class, which may require arguments, or keep a list."""


class View(Unheard):
    """Base of views: modules that share the state of another one, its training flag included.

    A view of a network of class `C` is an instance of a subclass of `C`. Parameters, buffers,
    hooks, submodules and their names are those of the network. Names of attributes that a view adds
    begin with `_reglib`, and hide none of the network.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        return view_of, (unwrap(self), getattr(type(self), "_reglib_own", type(self)).__bases__[0])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return view_of(*(copy.deepcopy(value, memo) for value in self.__reduce_ex__(4)[1]))


_SUBCLASSES: WeakValueDictionary[tuple[type, type], type] = WeakValueDictionary()


def _subclass(kind: type, base: type, name: str, **added: Any) -> type:
    """Return the only subclass of a kind and of a network's class; it refers to no network.

    `type` makes it: the metaclass of the network may register classes.
    """
    added |= {"__module__": base.__module__, "__qualname__": name}
    if (subclass := _SUBCLASSES.get((kind, base))) is None:
        subclass = _SUBCLASSES[kind, base] = type.__new__(type(base), name, (kind, base), added)
    return subclass


def unwrap(model: nn.Module) -> Any:
    """Return the network that a module is a view of, or the module itself."""
    # A replica of a view, made by nn.DataParallel, is no view of another network.
    return getattr(model, "_reglib_model", model) if isinstance(model, View) else model


def view_of(model: nn.Module, kind: type[View]) -> Any:
    """Return a view of `model`, of class `kind` and of the class of `model`."""
    base = getattr(type(model), "_reglib_own", type(model))
    name = f"{kind.__name__}{base.__name__}"
    view: Any = object.__new__(_subclass(kind, base, name, __slots__=["_reglib_model"]))
    # Keep the network alive: Python may clear the attributes of an object that is deleted.
    object.__setattr__(view, "_reglib_model", model)
    object.__setattr__(view, "__dict__", model.__dict__)
    return view


INSIDE: ContextVar[frozenset[int]] = ContextVar("INSIDE", default=frozenset())  # by id
_USERS: Counter[int] = Counter()
_LOCK = Lock()


class Masked(Unheard):
    """A module that some thread evaluates: its training flag is false for this thread only."""

    training = property(
        lambda self: id(self) not in INSIDE.get() and vars(self)["training"],
        lambda self, mode: vars(self).update(training=mode),
    )

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()  # for another thread
        replica.training = self.training
        return replica

    def __reduce_ex__(self, protocol: Any) -> Any:
        base, reduced = type(self).__bases__[1], super().__reduce_ex__(protocol)
        return (base.__new__, (base,), *reduced[2:]) if reduced[1] == (type(self),) else reduced


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Bring all modules into evaluation mode, for the code of this thread in the context."""
    modules = {id(m): m for module in model.modules() for m in (module, unwrap(module))}
    before = INSIDE.set(INSIDE.get() | modules.keys())
    _count(modules, 1)
    try:
        yield
    finally:
        _count(modules, -1)
        INSIDE.reset(before)


def _count(modules: Mapping[int, nn.Module], step: int) -> None:
    """Count the users that evaluate modules, and mask modules while there are any.

    Only the class of a module changes: its identity, attributes and hooks stay.
    """
    with _LOCK:
        for key, module in modules.items():
            _USERS[key] += step
            kind = base = getattr(type(module), "_reglib_own", type(module))
            # A compiled module reads the flag of the module that it wraps.
            if _USERS[key] and not hasattr(base, "training"):
                kind = _subclass(Masked, base, base.__name__, _reglib_own=base)
            object.__setattr__(module, "__class__", kind)
            if not _USERS[key]:
                del _USERS[key]


def check(model: object, *, lazy: bool = True) -> None:
    """Check that a module can have a view.

    Args:
        model: a network in Python.
        lazy: whether submodules may be lazy, and not yet called.

    Raises:
        ValueError: `model` is no module, or holds a module of a refused kind, which is named.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for name, module in unwrap(model).named_modules():
        kind, reason = type(module), ""
        if isinstance(module, torch.jit.ScriptModule):
            reason = "a module in Python, got TorchScript; pass the module that was scripted"
        elif isinstance(module, nn.modules.lazy.LazyModuleMixin) and not (name and lazy):
            reason = f"known shapes, got {kind.__name__}; call it once on an input first"
        elif QUANTISED.match(kind.__module__ + kind.__name__):
            reason = f"a floating-point module, got the quantised {kind.__name__}"
        elif not name and kind.__basicsize__ > nn.Module.__basicsize__:
            reason = f"attributes in a __dict__, got {kind.__name__} with __slots__"
        if reason:
            raise ValueError(f"model{'.' if name else ''}{name}: expected {reason}")


class Fast(View):
    """A view that calls the exact autograd functions of this package."""

    _reglib_lays_out = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Hooks may keep tensors beyond the call, and expect their usual layout.
        hooked = any(is_hooked(module) for module in self.modules())
        with FastLayers(lays_out=self._reglib_lays_out and not hooked):
            result = super().__call__(*args, **kwargs)
        make_contiguous([result])
        return result


class LaidOut(Fast):
    """A fast view that brings images into channels-last layout inside."""

    _reglib_lays_out = True


def fast_double_backward(model: nn.Module, *, channels_last: bool = False) -> Any:
    r"""Return a view of a network whose gradients are differentiated faster.

    The view shares the state of the network: parameters, buffers, submodules, hooks, training mode
    and names in `state_dict`. While the view is called, convolution, batch normalisation, ReLU and
    its relatives, and pooling run exact autograd functions of this package, whichever module calls
    them. Stock autograd runs all other functions; `calls_of` lists both. Derivatives of any order
    by any parameter are exact, also those of hardsigmoid and attention, which stock PyTorch
    differentiates only once. Function transforms (`torch.func`), forward-mode differentiation,
    activation checkpointing and complex tensors get stock functions.

    Attention switches off the fused kernels of the process (`torch.backends.cuda`) while it runs.
    Attention in other threads is then slower, with the same result up to rounding. If two threads
    call attention through views at once, the kernels may stay off afterwards.

    A view saves time if convolutions, batch normalisation, ReLU and its relatives and pooling take
    most of it. It saves none if group normalisation, SiLU or small linear layers do, and steps of a
    few milliseconds can get slower. On CUDA measure first: on an H200 stock autograd was faster for
    four of five networks.

    Args:
        model: any network in Python. It can still be called itself, and then runs stock functions.
        channels_last: whether to bring contiguous images into channels-last layout inside a
            contiguous network, which is faster on a CPU with AVX-512. The output is contiguous
            again, and so are the arguments of PyTorch functions that are not known to do the same
            in any layout. A network with hooks keeps its layout. Code that PyTorch does not report
            may get channels-last images: TorchScript, extensions in C++, a module that keeps
            feature maps, and the caller, in an output that is no tensor, list, tuple or mapping.
            By default network and images keep their layout;
            `model.to(memory_format=torch.channels_last)` is faster still, where it is possible.

    Returns:
        A module whose class is a subclass of the class `C` of `model`, so that `type(self) is C` is
        false in it. Copies and pickles of a view are views.

    Raises:
        ValueError: TorchScript or quantised modules, `__slots__` in the class of the network, or a
            lazy network that was never called.
    """
    check(model)
    kind = LaidOut if channels_last else Fast
    return model if isinstance(model, View) else view_of(model, kind)


class Calls(NamedTuple):
    """Numbers of calls with a gradient, by name of the function: of fast and of stock functions."""

    fast: Counter[str]
    stock: Counter[str]


def calls_of(model: nn.Module, *inputs: Any) -> Calls:
    """Count the fast and the stock functions in one forward pass of a network.

    Args:
        model: a network, of which a copy is called.
        inputs: inputs of the network; at least one requires a gradient.

    Raises:
        ValueError: as `fast_double_backward`.
    """
    check(model)
    calls = Calls(Counter(), Counter())
    with FastLayers(calls._asdict()), torch.enable_grad():
        copy_network(unwrap(model))(*inputs)
    return calls
