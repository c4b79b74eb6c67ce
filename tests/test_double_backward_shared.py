"""A network, other threads and memory are as without its views; views are as their network."""

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib import closed_form_hessian, fast_double_backward, surrogate_loss
from reglib.double_backward import calls_of, evaluation_mode, folded_copy, folding_of
from reglib.input_hessian import true_hessian
from reglib.top_gap import TopGAPNet
from tests.double_backward import Net, assert_same_second_order, cases, in_general_position, randn

MAKERS = [fast_double_backward, evaluation_mode]
both = pytest.mark.parametrize("make", MAKERS)


def net_of(*layers):
    return in_general_position(nn.Sequential(*layers).double())


def conv_and_norm(width=3):
    return net_of(nn.Conv2d(2, width, 3), nn.BatchNorm2d(width), nn.ReLU())


def top_gap(**options):
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, stride=2)
    return TopGAPNet(nn.Sequential(*layers), 5, k=0.5, width=8, image_size=16, **options).double()


def images(n=4):
    return randn(n, 2, 6, 6)


def stock(net):
    """A copy in evaluation mode, with stock functions."""
    return copy.deepcopy(net).eval()


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def statistics(model):
    return [buffer.clone() for buffer in model.buffers()]


def changed(before, model):
    return sum(not torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


class Streaming(nn.Module):
    """A network whose `forward` changes everything that it can."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.calls, self.log, self.features = 0, [], None
        self.register_buffer("mean", torch.ones(2, 1, 1))
        self.inner = nn.Sequential(nn.Identity())

    def forward(self, x):
        self.calls += 1
        self.log.append(x.shape)
        self.mean.mul_(0.9).add_(torch.rand(2, 1, 1))
        for parameter in self.parameters():
            parameter.data.mul_(0.5)
        self.features = self.inner(x - self.mean)
        return self.norm(self.conv(self.features))


class TestMaking:
    @pytest.mark.parametrize("make", [*MAKERS, folding_of, folded_copy, calls_of])
    def test_leaves_network_and_generator_alone(self, make):
        net, seen, x = Streaming().eval(), [], torch.rand(2, 2, 5, 5).requires_grad_()
        net(x)
        net.inner.register_forward_hook(lambda module, given, out: seen.append(out))
        features, attributes = net.features, {**vars(net)}
        state, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
        make(net, x) if make is calls_of else make(net)
        assert (net.calls, len(net.log)) == (1, 1)
        assert net.features is features
        assert {**vars(net)} == attributes
        assert all(torch.equal(v, state[n]) for n, v in net.state_dict().items())
        if make is not calls_of:
            assert not seen
            assert torch.equal(rng, torch.get_rng_state())

    def test_hides_symbols_from_global_hooks(self):
        seen = []
        hook = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given))
        evaluation_mode(nn.Sequential(conv_and_norm()))
        hook.remove()
        assert not seen

    def test_leaves_spectral_normalisation_alone(self):
        conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 3, 3))
        net = nn.Sequential(conv, nn.BatchNorm2d(3))
        before = statistics(net)
        assert not folding_of(net).folded
        evaluation_mode(net)
        assert changed(before, net) == 0

    def test_lets_calls_set_attributes(self):
        net = Streaming()
        evaluation_mode(net)(torch.rand(2, 2, 5, 5))
        assert net.calls == 1
        assert isinstance(net.features, torch.Tensor)


class TestMemory:
    @both
    @pytest.mark.parametrize("names", ["view last", "network last", "copies"])
    def test_is_freed_with_last_name(self, make, names):
        gc.collect()
        gc.disable()
        try:
            net = conv_and_norm()
            view, weight = make(net), weakref.ref(net[0].weight)
            view(images())
            if names == "copies":
                others = copy.deepcopy(view), pickle.loads(pickle.dumps(view))
                weight = weakref.ref(others[0][0].weight)
                del others
            elif names == "view last":
                del net
                view(images())
                assert weight() is not None
                del view
            else:
                del view
                net(images())
                del net
            assert weight() is None
        finally:
            gc.enable()

    @both
    def test_holds_one_view_class_each(self, make):
        assert type(make(conv_and_norm())) is type(make(conv_and_norm(5)))


class Methods(nn.Module):
    """A network with dropout and methods of its own."""

    def __init__(self):
        super().__init__()
        self.body, self.dropout = conv_and_norm(), nn.Dropout(0.5)

    def forward_features(self, x):
        return self.dropout(self.body(x))

    def before_normalisation(self, x):
        return self.body[0](x)

    def forward(self, x, *, scale=1.0):
        return scale * self.forward_features(x).mean((2, 3))

    def freeze(self):
        self.body[1].eval()

    def is_training(self):
        return [module.training for module in self.modules()]


class TestMethods:
    def test_run_in_evaluation_mode(self):
        net, x = Methods(), images()
        net.put_on_it = net.forward_features
        before, view = statistics(net), evaluation_mode(net)
        for name in ("forward", "forward_features", "before_normalisation", "put_on_it"):
            wanted = stock(net.body)(x) if name == "put_on_it" else getattr(stock(net), name)(x)
            close(getattr(view, name)(x), wanted)
            assert changed(before, net) == 0
            assert all(net.is_training())
            assert not any(view.is_training())

    def test_have_second_derivatives(self):
        net, x = Methods(), images().requires_grad_()
        results = []
        for model in (stock(net), evaluation_mode(net)):
            (g,) = torch.autograd.grad(model.forward(x, scale=2).sum(), x, create_graph=True)
            results.append([g, *torch.autograd.grad(g.square().sum(), model.body[0].weight)])
        close(results[1], results[0])

    def test_that_set_the_mode_set_it(self):
        net = Methods()
        view = evaluation_mode(net)
        view.freeze()
        assert not net.body[1].training
        view.train()
        assert net.training
        assert net.body[1].training
        view.eval()
        assert not net.training

    def test_of_top_gap_are_deterministic(self):
        net = top_gap(dropout=0.5)
        view, x, labels = evaluation_mode(net), randn(3, 2, 16, 16), torch.arange(3)
        before = statistics(net)
        close(view.class_maps(x), stock(net).class_maps(x))
        close(view.class_activation_maps(x, labels), view.class_activation_maps(x, labels))
        assert changed(before, net) == 0


def in_threads(*functions):
    """Run functions side by side; raise what one of them raises."""
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(function) for function in functions]:
            job.result()


def meeting():
    """A network in whose first and last layer threads meet, if they are given a barrier."""

    def wait(layer, x):
        if layer.meet is not None:
            layer.meet.wait(20)
        return x

    # Without momentum the statistics that a pass counts are the same for both threads.
    norm = nn.BatchNorm2d(3, momentum=0.0)
    gates = Net(wait, meet=None), Net(wait, meet=None)
    return net_of(gates[0], nn.Conv2d(2, 3, 3), norm, nn.Dropout(0.5), gates[1])


class TestThreads:
    def test_one_trains_while_another_evaluates(self):
        net, x = meeting(), images()
        view, wanted, outputs = evaluation_mode(net), stock(net)(x), {}
        net[0].meet = net[4].meet = threading.Barrier(2)
        in_threads(lambda: outputs.update(view=view(x)), lambda: outputs.update(net=net(x)))
        assert int(net[2].num_batches_tracked) == 1
        assert (outputs["net"] == 0).any()
        close(outputs["view"], wanted)
        assert all(module.training for module in net.modules())

    def test_may_share_a_view(self):
        net, x, left = meeting(), images(), threading.Event()
        view, wanted, before = evaluation_mode(net), stock(net)(x), statistics(net)
        kinds = [type(module) for module in net]
        net[0].meet = threading.Barrier(2)

        def hook(*_):
            if threading.current_thread().name == "slow":
                left.wait(20)

        net[0].register_forward_hook(hook)

        def slow():
            threading.current_thread().name = "slow"
            close(view(x), wanted)

        def quick():
            close(view(x), wanted)
            left.set()

        in_threads(slow, quick)
        assert (changed(before, net), [type(module) for module in net]) == (0, kinds)

    def test_may_start_training_meanwhile(self):
        net, x, outputs = meeting().eval(), images(), []
        view, wanted, before = evaluation_mode(net), stock(net)(x), statistics(net)
        net[0].meet = threading.Barrier(2)

        def start_training():
            net[0].meet.wait(20)
            net.train()

        net[0].register_forward_hook(lambda *_: net.train() and None)
        in_threads(lambda: outputs.append(view(x)), start_training)
        close(outputs[0], wanted)
        assert changed(before, net) == 0
        assert net[2].training

    def test_may_copy_and_save_meanwhile(self):
        def call(outer, x):
            copies.extend(way(outer.net) for way in ways)
            copies.append(outer.net[1]._replicate_for_data_parallel())
            return outer.net(x)

        net, copies = conv_and_norm(), []
        ways = copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), copy.copy
        evaluation_mode(Net(call, net=net))(images())
        assert net[1].training
        *whole, replica = copies
        assert not replica.training
        assert replica.train().training
        assert len(whole) == 3
        for other in whole:
            assert [type(m) for m in other] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
            assert type(other) is nn.Sequential
            assert other.training

    @both
    def test_replicas_have_their_own_weights(self, make):
        net, x = conv_and_norm(), images()
        replica = make(net)._replicate_for_data_parallel()
        other = in_general_position(copy.deepcopy(net), seed=5)
        for index, layer in enumerate(net):
            copied = layer._replicate_for_data_parallel()
            for name, value in (*other[index].named_parameters(), *other[index].named_buffers()):
                setattr(copied, name, value.detach().clone().requires_grad_(value.requires_grad))
            replica._modules[str(index)] = copied
        wanted = other.eval() if make is evaluation_mode else other
        close(replica(x), copy.deepcopy(wanted)(x))


REPLACED = {
    "no norm": lambda net: net.__setitem__(1, nn.Identity()),
    "group norm": lambda net: net.__setitem__(1, nn.GroupNorm(1, 3)),
    "norm": lambda net: net.__setitem__(1, nn.BatchNorm2d(3)),
    "conv": lambda net: net.__setitem__(0, nn.Conv2d(2, 3, 3)),
    "block": lambda net: net.__setitem__(0, nn.Sequential(nn.Conv2d(2, 3, 3), nn.SiLU())),
    "between": lambda net: net.insert(1, nn.SiLU()),
    "another norm": lambda net: net.insert(1, nn.BatchNorm2d(3)),
    "more": lambda net: net.append(nn.Conv2d(3, 2, 1)),
    "less": lambda net: net.pop(1),
    "statistics": lambda net: vars(net[1])["_buffers"].update(running_mean=None, running_var=None),
    "weight": lambda net: setattr(net[0], "weight", nn.Parameter(2 * net[0].weight.detach())),
    "bias": lambda net: setattr(net[0], "bias", None),
}
NORMS = {
    "weight, hook": nn.utils.weight_norm,
    "spectral, hook": nn.utils.spectral_norm,
    "weight": nn.utils.parametrizations.weight_norm,
    "spectral": nn.utils.parametrizations.spectral_norm,
}


class TestChanges:
    """What becomes of a network after its evaluation view was made."""

    @pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
    @pytest.mark.parametrize("widths", [(4, 4, 4), (3, 4, 5)], ids=["equal", "unequal"])
    @cases(NORMS)
    def test_parametrised_layers(self, case, widths):
        pairs = zip((2, *widths), widths, strict=False)
        layers = [(nn.Conv2d(n, width, 3), nn.BatchNorm2d(width), nn.ReLU()) for n, width in pairs]
        net = net_of(*sum(layers, ()))
        view, x = evaluation_mode(net), randn(2, 2, 9, 9)
        view(x)
        for index in (0, 3, 6):
            case(net[index])
        assert not folding_of(net).folded
        for _ in range(3):
            with torch.no_grad():
                close(view(x), net.eval()(x))
                net.train()

    @cases(REPLACED)
    def test_layers_replaced_moved_or_removed(self, case):
        net, x = conv_and_norm(), images()
        view = evaluation_mode(net)
        view(x)
        case(net)
        net.double()
        assert_same_second_order(view, stock(net), x)

    def test_layers_that_change_places(self):
        net = net_of(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
        view = evaluation_mode(net)
        view(images())
        net[0], net[1], net[3] = net[1], net[3], net[0]
        assert_same_second_order(view, stock(net), images())

    def test_layers_called_in_another_order(self):
        orders = {
            "folds": lambda net, x: net.norm(net.conv(x)),
            "without norm": lambda net, x: F.relu(net.conv(x)),
            "between": lambda net, x: net.norm(F.relu(net.conv(x))),
            "forked": lambda net, x: net.norm(y := net.conv(x)) + y,
            "norm first": lambda net, x: net.conv(net.norm(x)),
        }
        net = net_of(Net(None, conv=nn.Conv2d(2, 2, 1), norm=nn.BatchNorm2d(2)))
        view = evaluation_mode(net)
        for name, net[0].call in orders.items():
            assert_same_second_order(view, stock(net), images())
            assert (folding_of(net).folded != {}) == (name == "folds")
        net[0] = in_general_position(copy.deepcopy(net[0]), seed=7)  # a block of other layers
        net[0].call = orders["folds"]
        assert_same_second_order(view, stock(net), images())


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, bias=self.bias, weight=self.weight)


class OwnNorm(nn.BatchNorm2d):
    factor = 1

    def forward(self, x):
        weight = self.weight if self.factor == 1 else self.factor * self.weight
        return F.batch_norm(x, self.running_mean, self.running_var, weight=weight, bias=self.bias)


class DoubledNorm(OwnNorm):
    factor = 2


def keywords(net, x):
    conv, norm = net.conv, net.norm
    x = F.conv2d(weight=conv.weight, bias=conv.bias, input=x)
    state = {name: getattr(norm, name) for name in "running_var running_mean weight bias".split()}
    x = F.batch_norm(**state, training=net.training, input=x)
    return F.conv2d(input=norm(conv(input=x[:, :2]))[:, :2], weight=conv.weight)


def some_keywords(net, x):
    conv, norm = net.conv, net.norm
    x = F.conv2d(x, conv.weight, bias=conv.bias, stride=2, padding=1)
    state = {name: getattr(norm, name) for name in "running_var weight bias".split()}
    return F.batch_norm(x, norm.running_mean, **state)


def in_order(net, x):
    return net.norm(net.conv(x))


PAIRS = {
    "functions": (keywords, nn.Conv2d, nn.BatchNorm2d),
    "some": (some_keywords, nn.Conv2d, nn.BatchNorm2d),
    "layers": (lambda net, x: net.norm(input=net.conv(input=x)), nn.Conv2d, nn.BatchNorm2d),
    "own layers": (in_order, OwnConv, OwnNorm),
    "doubled": (in_order, OwnConv, DoubledNorm),
}


@cases(PAIRS)
def test_keyword_arguments_of_layers(case):
    call, conv, norm = case
    net = in_general_position(Net(call, conv=conv(2, 3, 3), norm=norm(3)).double())
    x = randn(3, 2, 9, 9)
    assert_same_second_order(evaluation_mode(net), stock(net), x)
    for model in (folded_copy(net), fast_double_backward(stock(net))):
        close(model(x), stock(net)(x))
    if case in (PAIRS["layers"], PAIRS["own layers"]):
        assert folding_of(net).folded == {"norm": "conv"}


class TestTracing:
    @both
    @pytest.mark.parametrize("training", [True, False])
    def test_a_network_that_holds_a_view(self, make, training):
        inner = nn.Sequential(conv_and_norm(), nn.Dropout(0.5))
        whole, plain = (nn.Sequential(nn.Identity(), part) for part in (make(inner), inner))
        traced = torch.fx.symbolic_trace(whole.train(training))
        x, before = images(), statistics(inner)
        wanted = copy.deepcopy(inner) if make is fast_double_backward else stock(inner)
        results = []
        for model in (traced, wanted):
            torch.manual_seed(0)
            results.append(model(x))
        close(*results)
        assert (changed(before, inner) > 0) == (training and make is fast_double_backward)
        assert folding_of(whole) == folding_of(plain)
        assert folding_of(whole).folded == {"1.0.1": "1.0.0"}
        for model in (evaluation_mode(whole), folded_copy(whole)):
            close(model(x), stock(plain)(x))


@both
def test_float_functional_is_accepted(make):
    sums = torch.ao.nn.quantized.FloatFunctional()
    net = Net(lambda net, x: net.sum.add_relu(net.conv(x), x), conv=nn.Conv2d(2, 2, 1), sum=sums)
    net = in_general_position(net.double())
    assert_same_second_order(make(net), copy.deepcopy(net), images(), rtol=1e-12)


class TestHooks:
    KINDS = "forward_hook forward_pre_hook full_backward_hook full_backward_pre_hook".split()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("where", ["0", "1", "0.0", "1.0", "all"])
    def test_see_values_of_evaluation_mode(self, kind, where):
        conv, norm, relu = conv_and_norm()
        net = nn.Sequential(nn.Sequential(conv), nn.Sequential(norm), relu)
        view, x = evaluation_mode(net), images().requires_grad_()
        view(x)
        results = []
        for model in (stock(net), view):
            seen = []

            def keep(module, *given, seen=seen):
                given = [v for one in given for v in (one if isinstance(one, tuple) else (one,))]
                seen.extend(value.detach().clone() for value in given)

            if where == "all":
                handle = getattr(nn.modules.module, f"register_module_{kind}")(keep)
            else:
                handle = getattr(model.get_submodule(where), f"register_{kind}")(keep)
            model(x).square().sum().backward()
            handle.remove()
            results.append(seen)
        assert results[0]
        close(results[1], results[0])

    def test_may_keep_outputs_with_gradients(self):
        net, kept, results = nn.Sequential(*conv_and_norm()[:2]), [], []
        net[0].register_forward_hook(lambda module, given, out: kept.append(out))
        for model in (evaluation_mode(net), stock(net)):
            results.append(torch.autograd.grad(model(images()).square().sum(), kept[-1])[0])
        close(*results)

    def test_may_change_outputs_of_blocks(self):
        conv, norm, _ = conv_and_norm()
        net, x = nn.Sequential(nn.Sequential(conv), norm), images()
        net[0].register_forward_hook(lambda module, given, out: 2 * out)
        for model in (evaluation_mode(net), folded_copy(net)):
            close(model(x), stock(net)(x))


class TestHessians:
    def test_accept_an_evaluation_view(self):
        net = net_of(conv_and_norm(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 3))
        view, x, labels = evaluation_mode(net), images(), torch.tensor([0, 1, 2, 0])
        v, before = randn(4, 2, 6, 6, seed=3), statistics(net)
        for hessian in (closed_form_hessian, lambda *given: true_hessian(*given, labels)):
            close(hessian(view, x).product(v), hessian(stock(net), x).product(v))
        got, wanted = (surrogate_loss(model, x, labels) for model in (view, stock(net)))
        close(got.gradient, wanted.gradient)
        close(got.largest_eigenvalue, wanted.largest_eigenvalue)
        assert net.training
        assert changed(before, net) == 0

    def test_refuse_batch_statistics_and_training_mode(self):
        net = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten())
        with pytest.raises(ValueError, match="normalises by statistics of the batch"):
            closed_form_hessian(evaluation_mode(net), images())
        with pytest.raises(ValueError, match="is in training mode"):
            closed_form_hessian(fast_double_backward(nn.Sequential(nn.Flatten())), images())


class TestClasses:
    @both
    def test_in_registries_are_registered_once(self, make):
        keys, names = [], []

        class Registers(type):
            def __new__(mcs, name, bases, namespace, **given):
                names.append(name)
                return super().__new__(mcs, name, bases, namespace, **given)

        class Base(nn.Module, metaclass=Registers):
            def __init_subclass__(cls, *, key):
                assert key not in keys
                keys.append(key)

        class Net(Base, key="net"):
            def forward(self, x):
                return 2 * x

        view = make(Net())
        assert isinstance(view, Net)
        assert (keys, names) == (["net"], ["Base", "Net"])
        close(view(images()), 2 * images())

    @both
    def test_with_slots_work_as_submodules_only(self, make):
        class Slots(nn.Module):
            __slots__ = ("scale",)

            def __init__(self):
                super().__init__()
                self.scale = 2

            def forward(self, x):
                return self.scale * x

        with pytest.raises(ValueError, match=r"model: expected .* got Slots with __slots__"):
            make(Slots())
        close(make(nn.Sequential(Slots()))(images()), 2 * images())

    def test_of_lazy_modules_are_refused(self):
        net = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d())
        with pytest.raises(ValueError, match=r"model\.0: .* got LazyConv2d; call it once"):
            evaluation_mode(net)
        net(torch.rand(2, 2, 6, 6))
        assert folding_of(net).folded == {"1": "0"}
