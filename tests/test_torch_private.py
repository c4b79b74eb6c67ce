"""The private names of PyTorch that this library uses still do what it needs."""

import re

import pytest
from torch import nn

from reglib import _torch_private as private
from suite.paths import ROOT

MODULES = [*(ROOT / "reglib").rglob("*.py")]
PRIVATE = re.compile(r"torch\._(?!assert\b)|\b_(current_level|BatchNorm|forward_(pre_)?hooks)\b")


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
