"""The private names of PyTorch that this library uses still do what it needs."""

import re

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from reglib import _torch_private as private
from suite.paths import ROOT

MODULES = [*(ROOT / "reglib").rglob("*.py")]
PRIVATE = re.compile(r"torch\._(?!assert\b)|\b_(current_level|BatchNorm|forward_(pre_)?hooks)\b")


class Recorded(torch.autograd.Function):
    """y = a + b, which records in its backward pass which of the two will run."""

    records: list[list[bool]] = []

    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, gradient):
        Recorded.records.append([private.will_run(node) for node, _ in ctx.next_functions])
        return gradient, gradient


def test_will_run_knows_the_needed_nodes():
    leaves = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for index in (0, 1):
        torch.autograd.grad(Recorded.apply(*[leaf * 2 for leaf in leaves]).sum(), leaves[index])
        assert Recorded.records.pop() == [index == 0, index == 1]
    torch.autograd.grad(Recorded.apply(leaves[0], torch.ones(2)).sum(), leaves[0])
    assert Recorded.records.pop()[0]


def record_calls(predicate, function):
    """Return a function that records the value of a predicate in each call, and the records."""
    records = []

    def recorded(x):
        records.append(predicate())
        return function(x)

    return recorded, records


def test_checkpointing_hooks_saved_tensors():
    function, hooked = record_calls(private.saved_tensors_are_hooked, torch.square)
    assert not private.saved_tensors_are_hooked()
    checkpoint(function, torch.ones(2, requires_grad=True), use_reentrant=False)
    assert hooked == [True]


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_traces_are_seen():
    function, traced = record_calls(private.is_traced, torch.neg)
    function(torch.ones(1))
    torch.jit.trace(function, torch.ones(1), check_trace=False)
    assert traced == [False, True]


def test_transforms_are_seen():
    function, transformed = record_calls(private.is_transformed, torch.sum)
    function(torch.ones(2))
    torch.func.grad(function)(torch.ones(2))
    torch.func.vmap(function)(torch.ones(2, 2))
    with forward_ad.dual_level():
        function(torch.ones(2))
    function(torch.ones(2))
    assert transformed == [False, True, True, True, False]


def test_batched_gradients_are_seen():
    batched, x = [], torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: batched.append(private.is_batched(gradient)))
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert batched == [True]
    assert not private.is_batched(x)


def test_batch_normalisations_have_one_base():
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        assert issubclass(kind, private.BatchNorm)
    assert not issubclass(nn.GroupNorm, private.BatchNorm)


KINDS = ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"]


@pytest.mark.parametrize("kind", KINDS)
def test_module_and_global_hooks_are_seen(kind):
    module, other = nn.Identity(), nn.Identity()
    assert not private.is_hooked(module)
    handle = getattr(module, f"register_{kind}")(lambda *_: None)
    assert (private.is_hooked(module), private.is_hooked(other)) == (True, False)
    handle.remove()
    handle = getattr(nn.modules.module, f"register_module_{kind}")(lambda *_: None)
    assert private.is_hooked(other)
    handle.remove()
    assert not private.is_hooked(module)


def test_operators_exist():
    names = re.findall(r"\baten\.(\w+)", "".join(path.read_text() for path in MODULES))
    assert len(set(names)) > 10
    assert not [name for name in names if not hasattr(private.aten, name)]


def test_no_other_module_reaches_into_torch():
    for path in MODULES:
        if path.name != "_torch_private.py":
            lines = path.read_text(encoding="utf-8").splitlines()
            assert not [line for line in lines if PRIVATE.search(line)], path
