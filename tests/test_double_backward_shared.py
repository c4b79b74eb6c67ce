"""Views leave networks, other threads and memory alone, and follow their network."""

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
from tests import double_backward as helpers
from tests.double_backward import Net, assert_same_second_order, each_view, in_general_position


def net_of(*layers):
    return in_general_position(nn.Sequential(*layers).double())


def conv_and_norm(width=3):
    return net_of(nn.Conv2d(2, width, 3), nn.BatchNorm2d(width), nn.ReLU())


def images():
    return helpers.randn(4, 2, 6, 6)


def stock(net):
    return copy.deepcopy(net).eval()


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def statistics(model):
    return [buffer.clone() for buffer in model.buffers()]


def count_changes(before, model):
    return sum(not torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def stream(net, x):
    """Change attributes, buffers and parameters."""
    net.calls += 1
    net.log.append(x.shape)
    net.mean.mul_(0.9).add_(torch.rand(2, 1, 1))
    for parameter in net.parameters():
        parameter.data.mul_(0.5)
    net.features = x - net.mean
    return net.norm(net.conv(net.features))


MAKERS = [fast_double_backward, evaluation_mode, folding_of, folded_copy, calls_of]


@pytest.mark.parametrize("make", MAKERS)
def test_making_leaves_network_and_generator_alone(make):
    layers = {"conv": nn.Conv2d(2, 3, 3), "norm": nn.BatchNorm2d(3), "calls": 0, "log": []}
    net, x = Net(stream, **layers).eval(), torch.rand(2, 2, 5, 5).requires_grad_()
    net.register_buffer("mean", torch.ones(2, 1, 1))
    net(x)
    features, attributes = net.features, {**vars(net)}
    state, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    make(net, x) if make is calls_of else make(net)
    assert (net.calls, len(net.log)) == (1, 1)
    assert net.features is features
    assert {**vars(net)} == attributes
    assert all(torch.equal(v, state[n]) for n, v in net.state_dict().items())
    assert make is calls_of or torch.equal(rng, torch.get_rng_state())


class TestMemory:
    @each_view
    @pytest.mark.parametrize("names", ["view last", "network last", "copies"])
    def test_is_freed_with_last_name(self, make, names):
        gc.collect()
        gc.disable()
        try:
            net = conv_and_norm()
            view, weight = make(net), weakref.ref(net[0].weight)
            view(images())
            if names == "copies":
                copies = copy.deepcopy(view), pickle.loads(pickle.dumps(view))
                weight = weakref.ref(copies[0][0].weight)
                del copies
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

    @each_view
    def test_views_share_one_class(self, make):
        assert type(make(conv_and_norm())) is type(make(conv_and_norm(5)))


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.dropout = conv_and_norm(), nn.Dropout(0.5)

    def forward_features(self, x):
        return self.dropout(self.body(x))

    def before_normalisation(self, x):
        return self.body[0](x)

    def forward(self, x):
        return self.forward_features(x).mean((2, 3))

    def freeze(self):
        self.body[1].eval()

    def is_training(self):
        return [module.training for module in self.modules()]


class TestMethods:
    def test_run_in_evaluation_mode(self):
        net, x = Methods(), images()
        net.attribute = net.forward_features
        before, view = statistics(net), evaluation_mode(net)
        for name in ("forward", "forward_features", "before_normalisation", "attribute"):
            expected = stock(net.body)(x) if name == "attribute" else getattr(stock(net), name)(x)
            assert_close(getattr(view, name)(x=x), expected)
            assert count_changes(before, net) == 0
            assert all(net.is_training())
            assert not any(view.is_training())

    def test_may_set_the_mode(self):
        net = Methods()
        view = evaluation_mode(net)
        view.freeze()
        assert not net.body[1].training
        view.train()
        assert net.training
        assert net.body[1].training
        view.eval()
        assert not net.training


def in_threads(*functions):
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(function) for function in functions]:
            job.result()


def meeting():
    """Return a network whose first and last layer wait at a barrier, if they have one."""

    def wait(layer, x):
        if layer.meet is not None:
            layer.meet.wait(20)
        return x

    # Without momentum the running statistics of all threads agree.
    norm = nn.BatchNorm2d(3, momentum=0.0)
    gates = Net(wait, meet=None), Net(wait, meet=None)
    return net_of(gates[0], nn.Conv2d(2, 3, 3), norm, nn.Dropout(0.5), gates[1])


class TestThreads:
    def test_one_trains_while_another_evaluates(self):
        net, x = meeting(), images()
        view, expected, outputs = evaluation_mode(net), stock(net)(x), {}
        net[0].meet = net[4].meet = threading.Barrier(2)
        in_threads(lambda: outputs.update(view=view(x)), lambda: outputs.update(net=net(x)))
        assert int(net[2].num_batches_tracked) == 1
        assert (outputs["net"] == 0).any()
        assert_close(outputs["view"], expected)
        assert all(module.training for module in net.modules())

    def test_may_share_a_view(self):
        net, x, left = meeting(), images(), threading.Event()
        view, expected, before = evaluation_mode(net), stock(net)(x), statistics(net)
        kinds = [type(module) for module in net]
        net[0].meet = threading.Barrier(2)

        def hook(*_):
            if threading.current_thread().name == "slow":
                left.wait(20)

        net[0].register_forward_hook(hook)

        def slow():
            threading.current_thread().name = "slow"
            assert_close(view(x), expected)

        def quick():
            assert_close(view(x), expected)
            left.set()

        in_threads(slow, quick)
        assert (count_changes(before, net), [type(module) for module in net]) == (0, kinds)

    def test_may_start_training_meanwhile(self):
        net, x, outputs = meeting().eval(), images(), []
        view, expected, before = evaluation_mode(net), stock(net)(x), statistics(net)
        net[0].meet = threading.Barrier(2)

        def start_training():
            net[0].meet.wait(20)
            net.train()

        net[0].register_forward_hook(lambda *_: net.train() and None)
        in_threads(lambda: outputs.append(view(x)), start_training)
        assert_close(outputs[0], expected)
        assert count_changes(before, net) == 0
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
        *copied, replica = copies
        assert not replica.training
        assert replica.train().training
        assert len(copied) == 3
        for network in copied:
            assert [type(m) for m in network] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
            assert type(network) is nn.Sequential
            assert network.training

    @each_view
    def test_replicas_use_their_weights(self, make):
        net, x = conv_and_norm(), images()
        replica = make(net)._replicate_for_data_parallel()
        redrawn = in_general_position(copy.deepcopy(net), seed=5)
        for index, layer in enumerate(redrawn):
            copied = net[index]._replicate_for_data_parallel()
            for name, value in (*layer.named_parameters(), *layer.named_buffers()):
                setattr(copied, name, value.detach().clone().requires_grad_(value.requires_grad))
            replica._modules[str(index)] = copied
        expected = stock(redrawn) if make is evaluation_mode else redrawn
        assert_close(replica(x), expected(x))


CHANGES = {
    "values": lambda net: in_general_position(net, seed=9),
    "no norm": lambda net: net.__setitem__(1, nn.Identity()),
    "norm": lambda net: net.__setitem__(1, nn.BatchNorm2d(3)),
    "conv": lambda net: net.__setitem__(0, nn.Conv2d(2, 3, 3)),
    "between": lambda net: net.insert(1, nn.SiLU()),
    "two norms": lambda net: net.insert(1, nn.BatchNorm2d(3)),
    "statistics": lambda net: vars(net[1])["_buffers"].update(running_mean=None, running_var=None),
    "bias": lambda net: setattr(net[0], "bias", None),
}
NORMS = {
    "weight, hook": nn.utils.weight_norm,
    "spectral, hook": nn.utils.spectral_norm,
    "weight": nn.utils.parametrizations.weight_norm,
    "spectral": nn.utils.parametrizations.spectral_norm,
}


class TestChanges:
    """Networks that change after their evaluation view was made."""

    @pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
    @helpers.cases(NORMS)
    def test_parametrised_layers(self, case):
        net, x = conv_and_norm(), images()
        view = evaluation_mode(net)
        view(x)
        case(net[0])
        assert not folding_of(net).folded
        expected, before = helpers.second_order(net.eval(), x), statistics(net.train())
        assert_close(helpers.second_order(view, x), expected)
        assert count_changes(before, net) == 0

    @helpers.cases(CHANGES)
    def test_layers_replaced_inserted_or_removed(self, case):
        net, x = conv_and_norm(), images()
        view = evaluation_mode(net)
        view(x)
        case(net)
        net.double()
        assert_same_second_order(view, stock(net), x)

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


class CustomConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, bias=self.bias, weight=self.weight)


class CustomNorm(nn.BatchNorm2d):
    factor = 1

    def forward(self, x):
        weight = self.weight if self.factor == 1 else self.factor * self.weight
        return F.batch_norm(x, self.running_mean, self.running_var, weight=weight, bias=self.bias)


class DoubledNorm(CustomNorm):
    factor = 2


def keywords(net, x):
    conv, norm = net.conv, net.norm
    x = F.conv2d(weight=conv.weight, bias=conv.bias, input=x)
    state = {name: getattr(norm, name) for name in "running_var running_mean weight bias".split()}
    x = F.batch_norm(**state, training=net.training, input=x)
    return F.conv2d(input=norm(conv(input=x[:, :2]))[:, :2], weight=conv.weight)


def in_order(net, x):
    return net.norm(net.conv(x))


PAIRS = {
    "functions": (keywords, nn.Conv2d, nn.BatchNorm2d),
    "layers": (lambda net, x: net.norm(input=net.conv(input=x)), nn.Conv2d, nn.BatchNorm2d),
    "custom layers": (in_order, CustomConv, CustomNorm),
    "doubled": (in_order, CustomConv, DoubledNorm),
}


@helpers.cases(PAIRS)
def test_keyword_arguments_of_layers(case):
    call, conv, norm = case
    net = in_general_position(Net(call, conv=conv(2, 3, 3), norm=norm(3)).double())
    x = helpers.randn(3, 2, 9, 9)
    assert_same_second_order(evaluation_mode(net), stock(net), x)
    for model in (folded_copy(net), fast_double_backward(stock(net))):
        assert_close(model(x), stock(net)(x))
    if case in (PAIRS["layers"], PAIRS["custom layers"]):
        assert folding_of(net).folded == {"norm": "conv"}


class TestTracing:
    @each_view
    @pytest.mark.parametrize("training", [True, False])
    def test_network_that_contains_a_view(self, make, training):
        inner = nn.Sequential(conv_and_norm(), nn.Dropout(0.5))
        outer, plain = (nn.Sequential(nn.Identity(), layer) for layer in (make(inner), inner))
        traced = torch.fx.symbolic_trace(outer.train(training))
        x, before = images(), statistics(inner)
        expected = copy.deepcopy(inner) if make is fast_double_backward else stock(inner)
        results = []
        for model in (traced, expected):
            torch.manual_seed(0)
            results.append(model(x))
        assert_close(*results)
        assert (count_changes(before, inner) > 0) == (training and make is fast_double_backward)
        assert folding_of(outer) == folding_of(plain)
        assert folding_of(outer).folded == {"1.0.1": "1.0.0"}
        for model in (evaluation_mode(outer), folded_copy(outer)):
            assert_close(model(x), stock(plain)(x))


@each_view
def test_float_functional_is_accepted(make):
    sums = torch.ao.nn.quantized.FloatFunctional()
    net = Net(lambda net, x: net.sum.add_relu(net.conv(x), x), conv=nn.Conv2d(2, 2, 1), sum=sums)
    net = in_general_position(net.double())
    assert_same_second_order(make(net), copy.deepcopy(net), images(), rtol=1e-12)


class TestHooks:
    KINDS = "forward_hook forward_pre_hook full_backward_hook full_backward_pre_hook".split()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["0", "1", "0.0", "1.0", "global"])
    def test_get_values_of_evaluation_mode(self, kind, name):
        conv, norm, relu = conv_and_norm()
        net = nn.Sequential(nn.Sequential(conv), nn.Sequential(norm), relu)
        view, x = evaluation_mode(net), images().requires_grad_()
        view(x)
        results = []
        for model in (stock(net), view):
            values = []

            def record(module, *arguments, values=values):
                tuples = [a if isinstance(a, tuple) else (a,) for a in arguments]
                values.extend(value.detach().clone() for value in sum(tuples, ()))

            if name == "global":
                handle = getattr(nn.modules.module, f"register_module_{kind}")(record)
            else:
                handle = getattr(model.get_submodule(name), f"register_{kind}")(record)
            model(x).square().sum().backward()
            handle.remove()
            results.append(values)
        assert results[0]
        assert_close(results[1], results[0])

    def test_may_differentiate_by_outputs(self):
        net, outputs, results = nn.Sequential(*conv_and_norm()[:2]), [], []
        net[0].register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for model in (evaluation_mode(net), stock(net)):
            results.append(torch.autograd.grad(model(images()).square().sum(), outputs[-1])[0])
        assert_close(*results)

    def test_outputs_may_retain_gradients(self):
        def call(net, x):
            net.y = net.conv(x)
            net.y.retain_grad()
            return net.norm(net.y)

        net = net_of(Net(call, conv=nn.Conv2d(2, 3, 3), norm=nn.BatchNorm2d(3)))
        results = []
        for model in (evaluation_mode(net), stock(net)):
            model(images()).square().sum().backward()
            results.append(model[0].y.grad)
        assert_close(*results)

    def test_may_change_outputs_of_blocks(self):
        conv, norm, _ = conv_and_norm()
        net, x = nn.Sequential(nn.Sequential(conv), norm), images()
        net[0].register_forward_hook(lambda module, inputs, output: 2 * output)
        for model in (evaluation_mode(net), folded_copy(net)):
            assert_close(model(x), stock(net)(x))
        assert folding_of(net).kept == {"1": "0 has a hook or its own forward"}


class TestHessians:
    def test_accept_an_evaluation_view(self):
        net = net_of(conv_and_norm(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 3))
        view, x, labels = evaluation_mode(net), images(), torch.tensor([0, 1, 2, 0])
        v, before = helpers.randn(4, 2, 6, 6, seed=3), statistics(net)
        for hessian in (closed_form_hessian, lambda model, x: true_hessian(model, x, labels)):
            assert_close(hessian(view, x).product(v), hessian(stock(net), x).product(v))
        actual, expected = (surrogate_loss(model, x, labels) for model in (view, stock(net)))
        assert_close(actual.gradient, expected.gradient)
        assert_close(actual.largest_eigenvalue, expected.largest_eigenvalue)
        assert net.training
        assert count_changes(before, net) == 0


class TestClasses:
    @each_view
    def test_are_registered_once(self, make):
        keys, names = [], []

        class Registers(type):
            def __new__(mcs, name, bases, namespace, **options):
                names.append(name)
                return super().__new__(mcs, name, bases, namespace, **options)

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
        assert_close(view(images()), 2 * images())

    @each_view
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
        assert_close(make(nn.Sequential(Slots()))(images()), 2 * images())
