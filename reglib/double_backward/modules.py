"""Views of a network whose calls go through other functions, with the same state."""

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
    """Base of classes that are made of the class of a network, which is not told of it."""

    def __init_subclass__(cls) -> None:
        """Call no other one: it may want arguments, or keep a list."""


class View(Unheard):
    """Base of views: modules that have the very state of another one, its training flag included.

    A view of a network of class `C` is an instance of a subclass of `C`, so that its parameters,
    buffers, hooks, submodules and their names are those of the network. The names that are added
    here are long, so that they hide nothing of the network.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        return view_of, (unwrap(self), getattr(type(self), "_reglib_own", type(self)).__bases__[0])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return view_of(*(copy.deepcopy(value, memo) for value in self.__reduce_ex__(4)[1]))


_SUBCLASSES: WeakValueDictionary[tuple[type, type], type] = WeakValueDictionary()


def _subclass(kind: type, base: type, name: str, **added: Any) -> type:
    """Return the one subclass of a kind and of the class of a network, which holds no network.

    It is made by `type` itself, so that the metaclass of the network does not hear of it.
    """
    added |= {"__module__": base.__module__, "__qualname__": name}
    if (made := _SUBCLASSES.get((kind, base))) is None:
        made = _SUBCLASSES[kind, base] = type.__new__(type(base), name, (kind, base), added)
    return made


def unwrap(model: nn.Module) -> Any:
    """Return the network that a module is a view of, or the module itself."""
    # A replica that nn.DataParallel makes of a view has no other network.
    return getattr(model, "_reglib_model", model) if isinstance(model, View) else model


def view_of(model: nn.Module, kind: type[View]) -> Any:
    """Return a view of `model`, of class `kind` and of the class of `model`."""
    base = getattr(type(model), "_reglib_own", type(model))
    name = f"{kind.__name__}{base.__name__}"
    view: Any = object.__new__(_subclass(kind, base, name, __slots__=["_reglib_model"]))
    # The view keeps the network alive: Python may empty the attributes of an object that ends.
    object.__setattr__(view, "_reglib_model", model)
    object.__setattr__(view, "__dict__", model.__dict__)
    return view


INSIDE: ContextVar[frozenset[int]] = ContextVar("INSIDE", default=frozenset())  # by id
_USERS: Counter[int] = Counter()
_LOCK = Lock()


class Masked(Unheard):
    """A module while a thread evaluates it, whose flag says so to this thread, and to no other."""

    training = property(
        lambda self: id(self) not in INSIDE.get() and vars(self)["training"],
        lambda self, mode: vars(self).update(training=mode),
    )

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()  # for a thread of its own
        replica.training = self.training
        return replica

    def __reduce_ex__(self, protocol: Any) -> Any:
        base, reduced = type(self).__bases__[1], super().__reduce_ex__(protocol)
        return (base.__new__, (base,), *reduced[2:]) if reduced[1] == (type(self),) else reduced


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Bring all modules into evaluation mode, for the code of this thread that is inside."""
    modules = {id(m): m for module in model.modules() for m in (module, unwrap(module))}
    before = INSIDE.set(INSIDE.get() | modules.keys())
    _count(modules, 1)
    try:
        yield
    finally:
        _count(modules, -1)
        INSIDE.reset(before)


def _count(modules: Mapping[int, nn.Module], step: int) -> None:
    """Count who evaluates modules; the identity, attributes and hooks of a module never change."""
    with _LOCK:
        for key, module in modules.items():
            _USERS[key] += step
            kind = base = getattr(type(module), "_reglib_own", type(module))
            # A compiled module has the flag of another.
            if _USERS[key] and not hasattr(base, "training"):
                kind = _subclass(Masked, base, base.__name__, _reglib_own=base)
            object.__setattr__(module, "__class__", kind)
            if not _USERS[key]:
                del _USERS[key]


def check(model: object, *, lazy: bool = True) -> None:
    """Check that a view of a module can be made and means something.

    Args:
        model: to be a network in Python.
        lazy: whether modules inside may still wait for the shape of their first input.

    Raises:
        ValueError: not a module, or one of a kind that is refused, by name.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for name, module in unwrap(model).named_modules():
        kind, reason = type(module), ""
        if isinstance(module, torch.jit.ScriptModule):
            reason = "a module in Python, got TorchScript; give the module that it was made from"
        elif isinstance(module, nn.modules.lazy.LazyModuleMixin) and not (name and lazy):
            reason = f"known shapes, got {kind.__name__}; call it once on an input first"
        elif QUANTISED.match(kind.__module__ + kind.__name__):
            reason = f"a floating-point module, got the quantised {kind.__name__}"
        elif not name and kind.__basicsize__ > nn.Module.__basicsize__:
            reason = f"attributes in a __dict__, got {kind.__name__} with __slots__"
        if reason:
            raise ValueError(f"model{'.' if name else ''}{name}: expected {reason}")


class Fast(View):
    """A view that calls exact autograd functions of ours."""

    _reglib_lays_out = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # What hooks keep beyond the call is to be laid out as without.
        hooked = any(is_hooked(module) for module in self.modules())
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

    Attention switches off the fused kernels of the whole process (`torch.backends.cuda`) while it
    runs. Other threads then attend more slowly, with the same result up to rounding. Where two
    threads call attention through views at once, the kernels may stay off afterwards.

    It pays where convolutions, batch normalisation, ReLU and its relatives and pooling take most of
    the time. Where group normalisation, SiLU or small linear layers do, it gains nothing, and steps
    of a few milliseconds can get slower. On CUDA measure first: stock autograd was faster on an
    H200, for four of five networks.

    Args:
        model: any network in Python. It can be used by itself as before.
        channels_last: whether to lead contiguous images through a contiguous network in
            channels-last layout, which convolutions on a CPU with AVX-512 take faster. Functions of
            PyTorch that are not known to do the same in both layouts get contiguous images, and so
            does the caller; a network with forward hooks keeps its layout. What PyTorch does not
            tell of may find channels-last images: TorchScript, extensions in C++, a module that
            keeps feature maps, and you, in an output that is no tensor, list, tuple or mapping.
            Without it the layout is that of the network and the images, and
            `model.to(memory_format=torch.channels_last)` is faster where you can do that.

    Returns:
        A module of a subclass of the class of `model`, so `type(self) is C` is false in it. Copies
        and pickles of it are again views.

    Raises:
        ValueError: TorchScript or quantised modules, `__slots__` in the class of the network, or a
            lazy module that was never called.
    """
    check(model)
    kind = LaidOut if channels_last else Fast
    return model if isinstance(model, View) else view_of(model, kind)


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
        copy_network(unwrap(model))(*inputs)
    return calls
