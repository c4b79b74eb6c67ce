"""Views: the state they share with their network, stock functions in them, refused modules."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reglib.double_backward import calls_of, evaluation_mode, fast_double_backward, folding_of
from tests.double_backward import VIEWS, Net, assert_same_step, cases, each_view, randn, small


class Named(nn.Sequential):
    """A network whose method and attributes a view might hide."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.original = self.viewed = self.folded = "original"

    def make(self, factor):
        return factor * 2


class TestView:
    def test_has_the_state_of_its_network(self):
        model = small()
        fast = fast_double_backward(model)
        assert isinstance(fast, type(model))
        assert list(fast.state_dict()) == list(model.state_dict())
        assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
        fast.eval()
        assert not model.training
        assert not model[0].training
        model.double()
        assert next(fast.parameters()).dtype == torch.float64
        fast[-1] = nn.Linear(4, 2)
        assert model[-1].out_features == 2
        assert fast[0].weight is fast.get_submodule("0").weight
        assert len(fast) == len(model)
        assert fast_double_backward(fast) is fast

    @each_view
    def test_hides_no_name(self, make):
        view = make(Named(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
        for network in (view, copy.deepcopy(view), evaluation_mode(view)):
            assert {network.original, network.viewed, network.folded} == {"original"}
            assert network.make(2) == 4

    def test_hooks_of_every_kind(self):
        model, calls = small(), []
        model.register_forward_pre_hook(lambda *_: calls.append("network, before"))
        model[0].register_forward_hook(lambda *_: calls.append("convolution"))
        model[1].register_full_backward_hook(lambda *_: calls.append("norm, gradient"))
        fast = fast_double_backward(model)
        model[2].register_forward_hook(lambda *_: calls.append("registered later"))
        fast(torch.rand(2, 2, 12, 12, requires_grad=True)).sum().backward()
        assert calls == ["network, before", "convolution", "registered later", "norm, gradient"]

    @cases(VIEWS)
    def test_copies_and_pickles(self, case):
        view, x, file = case(small()), torch.rand(2, 2, 12, 12), io.BytesIO()
        torch.save(view, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for copied in (copy.deepcopy(view), pickle.loads(pickle.dumps(view)), loaded):
            assert type(copied) is type(view)
            torch.testing.assert_close(copied(x), view(x))
            assert not any(a is b for a, b in zip(copied.parameters(), view.parameters()))

    def test_calls_are_listed(self):
        layers = nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.SiLU(), nn.Flatten(), nn.Linear(18, 2)
        calls = calls_of(nn.Sequential(*layers), torch.rand(2, 1, 5, 5))
        assert dict(calls.fast) == {"torch.nn.functional.conv2d": 1}
        stock = {f"torch.nn.functional.{name}" for name in ("group_norm", "silu", "linear")}
        assert set(calls.stock) == stock | {"torch.Tensor.flatten"}

    def test_records_nothing_without_gradients(self):
        fast, x = fast_double_backward(small()), torch.rand(2, 2, 12, 12)
        with torch.no_grad():
            assert fast(x).grad_fn is None
        with torch.inference_mode():
            assert fast(x).is_inference()
        assert fast(x).requires_grad


def checkpointed():
    body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())

    def call(net, x):
        return net.head(checkpoint(net.body, x, use_reentrant=False).mean((2, 3)))

    return Net(call, body=body, head=nn.Linear(3, 5)).double()


class TestCheckpointing:
    def test_gets_stock_functions(self):
        model, x = checkpointed(), randn(3, 2, 6, 6)
        assert_same_step(model, x)
        assert not calls_of(model, x.requires_grad_()).fast

    def test_is_refused_in_training_mode(self):
        model, x = checkpointed(), randn(3, 2, 6, 6).requires_grad_()
        with pytest.raises(RuntimeError, match="expected no activation checkpointing"):
            evaluation_mode(model)(x)
        torch.testing.assert_close(evaluation_mode(model.eval())(x), copy.deepcopy(model).eval()(x))


class TestStockFunctions:
    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
    def test_in_transforms_and_forward_mode(self):
        model = small().double().eval()
        fast, x, direction = fast_double_backward(model), randn(2, 2, 12, 12), randn(2, 2, 12, 12)
        expected = torch.func.jvp(model, (x,), (direction,))
        torch.testing.assert_close(torch.func.jvp(fast, (x,), (direction,)), expected)

        def gradients(network):
            return torch.func.vmap(torch.func.grad(lambda v: network(v[None]).sum()))(x)

        torch.testing.assert_close(gradients(fast), gradients(model))
        with torch.autograd.forward_ad.dual_level():
            dual = fast(torch.autograd.forward_ad.make_dual(x, direction))
            tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
        torch.testing.assert_close(tangent, expected[1])

    @pytest.mark.parametrize(
        ("shape", "dtype"), [((1, 1, 4, 4), torch.complex128), ((1, 4, 4), None)], ids=str
    )
    def test_for_complex_and_single_images(self, shape, dtype):
        conv, x = nn.Conv2d(1, 2, 3, dtype=dtype), torch.rand(shape, dtype=dtype).requires_grad_()
        assert calls_of(conv, x).fast == {}
        torch.testing.assert_close(fast_double_backward(conv)(x), conv(x))


SCRIPTED = r"model.0: expected a module in Python, got TorchScript"
QUANTISED = r"model.0: expected a floating-point module.*Conv2d"
REFUSED = {
    "function": (lambda: F.relu, "model: expected a torch.nn.Module, got function"),
    "lazy": (lambda: nn.LazyConv2d(2, 3), "got LazyConv2d; call it once on an input first"),
    "TorchScript": (lambda: nn.Sequential(torch.jit.script(nn.ReLU())), SCRIPTED),
    "quantised": (lambda: nn.Sequential(torch.ao.nn.quantized.Conv2d(1, 1, 3)), QUANTISED),
}


class TestRefused:
    def test_one_value_in_a_channel(self):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when train"):
            fast_double_backward(nn.BatchNorm2d(2))(torch.rand(1, 2, 1, 1).requires_grad_())

    def test_weights_changed_between_passes(self):
        model, x = nn.Sequential(nn.Conv2d(1, 1, 3)), torch.rand(1, 1, 5, 5).requires_grad_()
        y = fast_double_backward(model)(x).square().sum()
        with torch.no_grad():
            model[0].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, x, create_graph=True)

    @each_view
    @cases(REFUSED)
    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
    def test_modules_without_views(self, case, make):
        model, text = case
        with pytest.raises(ValueError, match=text):
            make(model())

    def test_lazy_submodules_in_evaluation_only(self):
        model = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d())
        with pytest.raises(ValueError, match=r"model\.0: .* got LazyConv2d; call it once"):
            evaluation_mode(model)
        fast, x = fast_double_backward(model), torch.rand(2, 1, 5, 5).requires_grad_()
        assert fast(x).shape == (2, 2, 3, 3)
        assert calls_of(fast, x).fast
        assert folding_of(model).folded == {"1": "0"}
