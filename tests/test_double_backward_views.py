"""What a view shares with its network, what it leaves to stock autograd, what it refuses."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reglib.double_backward import calls_of, evaluation_mode, fast_double_backward
from suite.training.loop import DEFAULT
from tests.double_backward import CLASSES, assert_same_step, in_general_position, randn, small


def test_a_view_has_the_state_of_its_network():
    model = small()
    fast = fast_double_backward(model)
    assert isinstance(fast, type(model))
    assert list(fast.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters()))
    fast.eval()
    assert not model.training
    assert not model[0].training
    model.double()
    assert next(fast.parameters()).dtype == torch.float64
    fast[-1] = nn.Linear(4, 2)
    assert model[-1].out_features == 2
    assert fast_double_backward(fast) is fast


@pytest.mark.parametrize("make", [fast_double_backward, evaluation_mode])
def test_a_view_outlives_every_other_name_of_its_network(make):
    x = torch.rand(2, 2, 12, 12)
    view = make(small())
    gc.collect()
    wanted = make(model := small())(x)
    torch.testing.assert_close(view(x), wanted)
    assert view[0].weight is view.get_submodule("0").weight
    assert len(view) == len(model)


class Named(nn.Sequential):
    """A network with a method and attributes that a view might hide."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.original = self.viewed = self.folded = "mine"

    def make(self, factor):
        return factor * 2


def test_a_view_hides_no_name_of_the_network():
    model = Named(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    for view in (fast_double_backward(model), evaluation_mode(model)):
        for again in (view, copy.deepcopy(view), evaluation_mode(view)):
            assert (again.original, again.viewed, again.folded, again.make(2)) == (
                "mine",
                "mine",
                "mine",
                4,
            )


def test_the_network_itself_is_as_it_was():
    model = small()
    before = set(vars(model))
    fast_double_backward(model)
    evaluation_mode(model)
    assert type(model).__name__ == "ConvNet"
    assert set(vars(model)) == before
    x = torch.rand(2, 2, 12, 12)
    assert model[0](x).grad_fn.name() == "ConvolutionBackward0"
    assert model(x).requires_grad


def test_hooks_of_every_kind_fire():
    model = small()
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append("network, before"))
    model[0].register_forward_hook(lambda *_: seen.append("convolution"))
    model[1].register_full_backward_hook(lambda *_: seen.append("norm, gradient"))
    fast = fast_double_backward(model)
    model[2].register_forward_hook(lambda *_: seen.append("registered later"))
    fast(torch.rand(2, 2, 12, 12, requires_grad=True)).sum().backward()
    assert seen == ["network, before", "convolution", "registered later", "norm, gradient"]


@pytest.mark.parametrize("make", [fast_double_backward, evaluation_mode])
def test_copies_and_pickles_are_views_with_a_state_of_their_own(make):
    view = make(small())
    file = io.BytesIO()
    torch.save(view, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for again in (copy.deepcopy(view), pickle.loads(pickle.dumps(view)), loaded):
        assert type(again).__name__ == type(view).__name__
        x = torch.rand(2, 2, 12, 12)
        torch.testing.assert_close(again(x), view(x))
        assert not any(a is b for a, b in zip(again.parameters(), view.parameters()))
        with torch.no_grad():
            next(again.parameters()).zero_()
        assert next(view.parameters()).any()


def test_loading_a_state_reaches_the_network():
    model, other = small(), small()
    with torch.no_grad():
        other[0].weight.fill_(2)
    fast_double_backward(model).load_state_dict(other.state_dict())
    assert torch.equal(model[0].weight, other[0].weight)


def test_what_is_fast_is_listed_and_what_is_not():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.SiLU(), nn.Flatten(), nn.Linear(18, 2)
    )
    calls = calls_of(model, torch.rand(2, 1, 5, 5))
    assert dict(calls.fast) == {"torch.nn.functional.conv2d": 1}
    assert set(calls.stock) == {
        "torch.nn.functional.group_norm",
        "torch.nn.functional.silu",
        "torch.Tensor.flatten",
        "torch.nn.functional.linear",
    }


def test_without_gradients_nothing_is_recorded():
    fast = fast_double_backward(small())
    x = torch.rand(2, 2, 12, 12)
    with torch.no_grad():
        assert fast(x).grad_fn is None
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert fast(x).requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_function_transforms_and_forward_mode_get_stock_functions():
    model = small().double().eval()
    fast = fast_double_backward(model)
    x, direction = randn(2, 2, 12, 12), randn(2, 2, 12, 12, seed=1)
    wanted = torch.func.jvp(model, (x,), (direction,))
    got = torch.func.jvp(fast, (x,), (direction,))
    torch.testing.assert_close(got, wanted)
    rows = [
        torch.func.vmap(torch.func.grad(lambda v, f=f: f(v[None]).sum())) for f in (fast, model)
    ]
    torch.testing.assert_close(rows[0](x), rows[1](x))
    with torch.autograd.forward_ad.dual_level():
        dual = fast(torch.autograd.forward_ad.make_dual(x, direction))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, wanted[1])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False).mean((2, 3)))


def test_activation_checkpointing_gets_stock_functions():
    model = in_general_position(Checkpointed().double())
    assert_same_step(model, randn(3, 2, 6, 6), torch.tensor([0, 3, 1]))
    calls = calls_of(model, randn(3, 2, 6, 6).requires_grad_())
    assert not calls.fast


def test_checkpointing_is_refused_where_it_would_run_in_another_mode():
    model = in_general_position(Checkpointed().double())
    x = randn(3, 2, 6, 6).requires_grad_()
    with pytest.raises(RuntimeError, match="expected no activation checkpointing"):
        evaluation_mode(model)(x)
    wanted = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(evaluation_mode(model.eval())(x), wanted)


def test_complex_convolutions_stay_stock():
    conv = nn.Conv2d(1, 2, 3, dtype=torch.complex128)
    x = torch.rand(1, 1, 4, 4, dtype=torch.complex128, requires_grad=True)
    assert calls_of(conv, x).fast == {}
    torch.testing.assert_close(fast_double_backward(conv)(x), conv(x))


def test_a_single_image_without_a_batch_stays_stock():
    conv = nn.Conv2d(1, 2, 3)
    x = torch.rand(1, 4, 4, requires_grad=True)
    torch.testing.assert_close(fast_double_backward(conv)(x), conv(x))
    assert calls_of(conv, x).fast == {}


def test_one_value_in_a_channel_is_refused_as_by_stock_autograd():
    x = torch.rand(1, 2, 1, 1, requires_grad=True)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        fast_double_backward(nn.BatchNorm2d(2))(x)


def test_a_network_changed_in_place_between_the_passes_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 1, 3))
    x = torch.rand(1, 1, 5, 5, requires_grad=True)
    y = fast_double_backward(model)(x).square().sum()
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: F.relu, "model: expected a torch.nn.Module, got function"),
        (lambda: nn.LazyConv2d(2, 3), "got LazyConv2d; call it once on an input first"),
        (
            lambda: nn.Sequential(torch.jit.script(nn.ReLU())),
            "model.0: expected a module in Python, got TorchScript",
        ),
    ],
    ids=["function", "lazy", "TorchScript"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_what_a_view_cannot_be_made_of_is_refused_by_name(model, text):
    for make in (fast_double_backward, evaluation_mode):
        with pytest.raises(ValueError, match=text):
            make(model())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_modules_are_refused_by_name():
    model = nn.Sequential(torch.ao.nn.quantized.Conv2d(1, 1, 3))
    with pytest.raises(ValueError, match=r"model.0: expected a floating-point module.*Conv2d"):
        fast_double_backward(model)


def test_a_submodule_may_be_lazy_until_its_first_call():
    fast = fast_double_backward(nn.Sequential(nn.LazyConv2d(2, 3), nn.ReLU()))
    x = torch.rand(1, 1, 5, 5, requires_grad=True)
    assert fast(x).shape == (1, 2, 3, 3)
    assert calls_of(fast, x).fast


def test_defaults_are_choices():
    assert set(DEFAULT) == {"cpu", "cuda"}
    assert set(DEFAULT.values()) <= {"fast", "stock"}
