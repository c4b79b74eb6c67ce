"""A network, other threads and memory are as without its views; views are as their network."""

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib import closed_form_hessian, fast_double_backward, surrogate_loss
from reglib.double_backward import calls_of, evaluation_mode, folded_copy, folding_of
from reglib.double_backward.modules import in_evaluation_mode
from reglib.input_hessian import true_hessian
from reglib.top_gap import TopGAPNet
from tests.double_backward import in_general_position, randn

MAKERS = [fast_double_backward, evaluation_mode]
both = pytest.mark.parametrize("make", MAKERS)


def conv_and_norm(width=3):
    layers = nn.Conv2d(2, width, 3), nn.BatchNorm2d(width), nn.ReLU()
    return in_general_position(nn.Sequential(*layers).double())


def images(n=4):
    return randn(n, 2, 6, 6)


def evaluated(model, x):
    """The output of a copy in evaluation mode, by stock functions."""
    return copy.deepcopy(model).eval()(x)


def assert_same_derivatives(view, net, x):
    """Compare outputs, input gradients and their gradients with those of a copy of a network."""
    results = []
    for model in (view, copy.deepcopy(net).eval()):
        x = x.detach().requires_grad_()
        y = model(x)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        wanted = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(g.square().sum(), wanted, materialize_grads=True)
        results.append([y, g, *gradients])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


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
    @pytest.mark.parametrize(
        "make",
        [
            *MAKERS,
            folding_of,
            folded_copy,
            lambda net: calls_of(net, torch.rand(2, 2, 5, 5).requires_grad_()),
        ],
        ids=["fast", "evaluation", "folding_of", "folded_copy", "calls_of"],
    )
    def test_leaves_the_network_and_random_numbers_alone(self, make):
        net, seen = Streaming().eval(), []
        net(torch.rand(2, 2, 5, 5).requires_grad_())
        net.inner.register_forward_hook(lambda module, given, out: seen.append(out))
        features, attributes = net.features, {**vars(net)}
        state, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
        make(net)
        assert (net.calls, len(net.log)) == (1, 1)
        assert net.features is features
        assert {**vars(net)} == attributes
        assert all(torch.equal(v, state[n]) for n, v in net.state_dict().items())
        assert not [out for out in seen if not isinstance(out, torch.Tensor)]
        if make is not MAKERS[0] and make in (evaluation_mode, folding_of, folded_copy):
            assert not seen
            assert torch.equal(rng, torch.get_rng_state())

    def test_hooks_of_all_modules_see_no_symbol(self):
        seen = []
        hook = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given))
        evaluation_mode(nn.Sequential(conv_and_norm()))
        hook.remove()
        assert not seen

    def test_leaves_spectral_normalisation_in_training_mode_alone(self):
        conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 3, 3))
        net = nn.Sequential(conv, nn.BatchNorm2d(3))
        before = statistics(net)
        assert not folding_of(net).folded
        evaluation_mode(net)
        assert changed(before, net) == 0

    def test_calls_still_reach_the_attributes_of_the_network(self):
        net = Streaming()
        evaluation_mode(net)(torch.rand(2, 2, 5, 5))
        assert net.calls == 1
        assert isinstance(net.features, torch.Tensor)


class TestMemory:
    @both
    @pytest.mark.parametrize("names", ["view last", "network last", "copies"])
    def test_is_freed_with_the_last_name(self, make, names):
        gc.collect()
        gc.disable()
        try:
            net = conv_and_norm()
            weight = weakref.ref(net[0].weight)
            view = make(net)
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
    def test_views_of_a_class_have_one_class(self, make):
        assert type(make(conv_and_norm())) is type(make(conv_and_norm(5)))

    @both
    def test_whole_networks_are_saved_and_loaded(self, make):
        backbone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2))
        net = nn.Sequential(TopGAPNet(backbone, 5, k=0.5, width=8, image_size=16), nn.Identity())
        x = torch.rand(2, 2, 16, 16)
        file = io.BytesIO()
        torch.save(nn.ModuleList([make(net), net]), file)
        file.seek(0)
        view, loaded = torch.load(file, weights_only=False)
        torch.testing.assert_close(view(x), evaluated(net, x))
        torch.testing.assert_close(loaded.eval()(x), evaluated(net, x))


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
    @pytest.mark.parametrize("name", ["forward", "forward_features", "before_normalisation"])
    def test_of_an_evaluation_view_run_in_evaluation_mode(self, name):
        net, x = Methods(), images()
        before, view = statistics(net), evaluation_mode(net)
        wanted = getattr(copy.deepcopy(net).eval(), name)(x)
        torch.testing.assert_close(getattr(view, name)(x), wanted)
        assert changed(before, net) == 0
        assert all(net.is_training())
        assert not any(view.is_training())

    def test_have_second_derivatives(self):
        net, x = Methods(), images().requires_grad_()
        results = []
        for model in (copy.deepcopy(net).eval(), evaluation_mode(net)):
            (g,) = torch.autograd.grad(model.forward(x, scale=2).sum(), x, create_graph=True)
            results.append([g, *torch.autograd.grad(g.square().sum(), model.body[0].weight)])
        for got, wanted in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)

    def test_that_set_the_mode_set_it(self):
        net = Methods()
        view = evaluation_mode(net)
        view.freeze()
        assert not net.body[1].training
        view.train()
        assert net.body[1].training
        assert net.training
        view.eval()
        assert not net.training

    def test_put_on_the_network_itself_run_in_evaluation_mode_too(self):
        net, x = Methods(), images()
        net.forward = net.forward_features
        torch.testing.assert_close(evaluation_mode(net).forward(x), evaluated(net.body, x))

    def test_of_top_gap_give_the_same_maps_twice(self):
        backbone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, 2))
        net = TopGAPNet(backbone, 5, k=0.5, width=8, image_size=16, dropout=0.5).double()
        view, x, labels = evaluation_mode(net), randn(3, 2, 16, 16), torch.arange(3)
        before = statistics(net)
        torch.testing.assert_close(view.class_maps(x), copy.deepcopy(net).eval().class_maps(x))
        maps = [view.class_activation_maps(x, labels) for _ in range(2)]
        torch.testing.assert_close(*maps)
        assert changed(before, net) == 0


def in_threads(*functions):
    """Run functions side by side; raise what one of them raises."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Waits(nn.Module):
    """A layer where two threads meet in the midst of their passes, if they are told to."""

    def __init__(self):
        super().__init__()
        self.meet = None

    def forward(self, x):
        if self.meet is not None:
            self.meet.wait(20)
        return x


def meeting():
    # Without momentum the statistics that a pass counts are the same for both threads.
    norm = nn.BatchNorm2d(3, momentum=0.0)
    layers = Waits(), nn.Conv2d(2, 3, 3), norm, nn.Dropout(0.5), Waits()
    return in_general_position(nn.Sequential(*layers).double())


class TestThreads:
    def test_one_that_trains_does_so_while_another_evaluates(self):
        net, x = meeting(), images()
        view, wanted = evaluation_mode(net), evaluated(net, x)
        net[0].meet = net[4].meet = threading.Barrier(2)
        outputs = {}
        in_threads(
            lambda: outputs.update(evaluated=view(x)), lambda: outputs.update(trained=net(x))
        )
        assert int(net[2].num_batches_tracked) == 1
        assert (outputs["trained"] == 0).any()
        torch.testing.assert_close(outputs["evaluated"], wanted)
        assert all(module.training for module in net.modules())

    def test_may_evaluate_through_one_view_at_once(self):
        net, x, left = meeting(), images(), threading.Event()
        view, wanted, before = evaluation_mode(net), evaluated(net, x), statistics(net)
        net[0].meet = threading.Barrier(2)

        def hook(*_):
            if threading.current_thread().name == "slow":
                left.wait(20)

        net[0].register_forward_hook(hook)

        def slow():
            threading.current_thread().name = "slow"
            torch.testing.assert_close(view(x), wanted)

        def quick():
            torch.testing.assert_close(view(x), wanted)
            left.set()

        in_threads(slow, quick)
        assert changed(before, net) == 0
        assert [type(m) for m in net] == [Waits, nn.Conv2d, nn.BatchNorm2d, nn.Dropout, Waits]

    def test_may_turn_training_on_while_another_evaluates(self):
        net, x = meeting().eval(), images()
        view, wanted, before = evaluation_mode(net), evaluated(net, x), statistics(net)
        net[0].meet = threading.Barrier(2)

        def start_training():
            net[0].meet.wait(20)
            net.train()

        outputs = []
        net[0].register_forward_hook(lambda *_: net.train() and None)
        in_threads(lambda: outputs.append(view(x)), start_training)
        torch.testing.assert_close(outputs[0], wanted)
        assert changed(before, net) == 0
        assert net[2].training

    def test_may_copy_and_save_a_network_that_is_evaluated(self):
        net, x, copies = conv_and_norm(), images(), []

        def copy_it(module, given):
            copies.extend([copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.copy(net)])

        class Copies(nn.Sequential):
            def forward(self, x):
                copy_it(None, None)
                return super().forward(x)

        evaluation_mode(Copies(net))(x)
        for other in copies:
            assert [type(m) for m in other] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
            assert type(other) is nn.Sequential
            assert other.training

    def test_that_nn_data_parallel_starts_evaluate(self):
        net, replicas = conv_and_norm(), []

        class Replicates(nn.Sequential):
            def forward(self, x):
                replicas.append(self[0][1]._replicate_for_data_parallel())
                return super().forward(x)

        evaluation_mode(Replicates(net))(images())
        assert net[1].training
        assert not replicas[0].training
        assert replicas[0].train().training

    @both
    def test_replicas_of_views_run_with_their_own_weights(self, make):
        net, x = conv_and_norm(), images()
        replica = make(net)._replicate_for_data_parallel()
        other = in_general_position(copy.deepcopy(net), seed=5)
        for index, layer in enumerate(net):
            copied = layer._replicate_for_data_parallel()
            for name, value in (*other[index].named_parameters(), *other[index].named_buffers()):
                setattr(copied, name, value.detach().clone().requires_grad_(value.requires_grad))
            replica._modules[str(index)] = copied
        wanted = other.eval() if make is evaluation_mode else other
        torch.testing.assert_close(replica(x), copy.deepcopy(wanted)(x))

    def test_code_inside_sees_evaluation_mode_and_other_networks_do_not(self):
        net, other = conv_and_norm(), conv_and_norm()
        with in_evaluation_mode(net), in_evaluation_mode(net[1]):
            assert not any(module.training for module in net.modules())
            assert other.training
        assert type(net) is nn.Sequential
        assert net[1].training


class TestChanges:
    """What becomes of a network after its evaluation view was made."""

    def of(self, *layers):
        net = in_general_position(nn.Sequential(*layers).double())
        return net, evaluation_mode(net)

    @pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
    @pytest.mark.parametrize(
        "norm",
        [
            nn.utils.weight_norm,
            nn.utils.spectral_norm,
            nn.utils.parametrizations.weight_norm,
            nn.utils.parametrizations.spectral_norm,
        ],
        ids=["weight, hook", "spectral, hook", "weight", "spectral"],
    )
    @pytest.mark.parametrize("widths", [(4, 4, 4), (3, 4, 5)], ids=["equal", "unequal"])
    def test_parametrised_layers(self, norm, widths):
        layers = [
            layer
            for given, width in zip((2, *widths), widths, strict=False)
            for layer in (nn.Conv2d(given, width, 3), nn.BatchNorm2d(width), nn.ReLU())
        ]
        net, view = self.of(*layers)
        x = randn(2, 2, 9, 9)
        view(x)
        for index in (0, 3, 6):
            norm(net[index])
        for _ in range(3):
            with torch.no_grad():
                got = view(x)
                net.eval()
                torch.testing.assert_close(got, net(x))
                net.train()

    @pytest.mark.parametrize(
        "change",
        [
            lambda net: net.__setitem__(1, nn.Identity()),
            lambda net: net.__setitem__(1, nn.GroupNorm(1, 3)),
            lambda net: net.__setitem__(1, nn.BatchNorm2d(3)),
            lambda net: net.__setitem__(0, nn.Conv2d(2, 3, 3)),
            lambda net: net.__setitem__(0, nn.Sequential(nn.Conv2d(2, 3, 3), nn.SiLU())),
            lambda net: net.insert(1, nn.SiLU()),
            lambda net: net.insert(1, nn.BatchNorm2d(3)),
            lambda net: net.append(nn.Conv2d(3, 2, 1)),
            lambda net: net.pop(1),
            lambda net: net.__delitem__(2),
            lambda net: (
                setattr(net[1], "running_mean", None) or setattr(net[1], "running_var", None)
            ),
            lambda net: setattr(net[0], "weight", nn.Parameter(2 * net[0].weight.detach())),
            lambda net: setattr(net[0], "bias", None),
        ],
        ids="no norm,group norm,norm,conv,block,between,another norm,more,popped,less,"
        "statistics,weight,bias".split(","),
    )
    def test_layers_replaced_moved_or_removed(self, change):
        net, view = self.of(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        x = images()
        view(x)
        change(net)
        net.double()
        assert_same_derivatives(view, net, x)

    def test_layers_that_change_places(self):
        layers = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
        net, view = self.of(*layers)
        view(images())
        net[0], net[1], net[3] = net[1], net[3], net[0]
        assert_same_derivatives(view, net, images())

    def test_a_block_with_layers_of_the_same_names(self):
        class Block(nn.Module):
            def __init__(self, first):
                super().__init__()
                self.conv, self.norm, self.first = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), first

            def forward(self, x):
                x = self.conv(x) if self.first else self.norm(x)
                return self.norm(x) if self.first else self.conv(x)

        net, view = self.of(Block(True))
        view(images())
        net[0] = in_general_position(Block(False).double())
        assert_same_derivatives(view, net, images())
        assert folding_of(net).folded == {}

    def test_another_order_of_the_same_layers(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm, self.order = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), 0

            def forward(self, x):
                x = self.conv(x)
                orders = (
                    self.norm,
                    F.relu,
                    lambda x: self.norm(F.relu(x)),
                    lambda x: self.norm(x) + x,
                )
                return orders[self.order](x)

        net, view = self.of(Block())
        for order in range(4):
            net[0].order = order
            assert_same_derivatives(view, net, images())


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x):
        conv, norm = self.conv, self.norm
        x = F.conv2d(weight=conv.weight, bias=conv.bias, input=x)
        x = F.batch_norm(
            running_var=norm.running_var,
            running_mean=norm.running_mean,
            weight=norm.weight,
            bias=norm.bias,
            training=self.training,
            input=x,
        )
        return F.conv2d(input=norm(conv(input=x[:, :2]))[:, :2], weight=conv.weight)


class SomeKeywords(Keywords):
    def forward(self, x):
        conv, norm = self.conv, self.norm
        x = F.conv2d(x, conv.weight, bias=conv.bias, stride=2, padding=1)
        return F.batch_norm(
            x, norm.running_mean, running_var=norm.running_var, weight=norm.weight, bias=norm.bias
        )


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, bias=self.bias, weight=self.weight)


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(
            x, self.running_mean, self.running_var, weight=self.weight, bias=self.bias
        )


class DoubledNorm(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, 2 * self.weight, self.bias)


class Own(Keywords):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = OwnConv(2, 3, 3), OwnNorm(3)

    def forward(self, x):
        return self.norm(self.conv(x))


class Doubled(Own):
    def __init__(self):
        super().__init__()
        self.norm = DoubledNorm(3)


class Named(Keywords):
    def forward(self, x):
        return self.norm(input=self.conv(input=x))


class TestKeywords:
    @pytest.mark.parametrize("kind", [Keywords, SomeKeywords, Named, Own, Doubled])
    def test_of_functions_and_layers_are_taken(self, kind):
        net, x = in_general_position(kind().double()), randn(3, 2, 9, 9)
        wanted = evaluated(net, x)
        assert_same_derivatives(evaluation_mode(net), net, x)
        torch.testing.assert_close(folded_copy(net)(x), wanted)
        fast = fast_double_backward(copy.deepcopy(net).eval())
        torch.testing.assert_close(fast(x), wanted)

    @pytest.mark.parametrize("kind", [Own, Named])
    def test_do_not_stop_the_folding(self, kind):
        assert folding_of(kind()).folded == {"norm": "conv"}


class TestTracing:
    @both
    @pytest.mark.parametrize("training", [True, False])
    def test_a_network_that_holds_a_view(self, make, training):
        inner = nn.Sequential(conv_and_norm(), nn.Dropout(0.5))
        whole = nn.Sequential(nn.Identity(), make(inner)).train(training)
        traced = torch.fx.symbolic_trace(whole)
        x, before = images(), statistics(inner)
        if make is fast_double_backward:
            torch.manual_seed(0)
            got = traced(x)
            assert (changed(before, inner) > 0) == training
            with torch.no_grad():
                for buffer, value in zip(inner.buffers(), before, strict=True):
                    buffer.copy_(value)
            torch.manual_seed(0)
            torch.testing.assert_close(got, nn.Sequential(nn.Identity(), inner)(x))
        else:
            torch.testing.assert_close(traced(x), evaluated(inner, x))
            assert changed(before, inner) == 0

    @both
    def test_a_network_that_holds_a_view_folds_as_with_the_network_itself(self, make):
        inner = conv_and_norm()
        whole, plain = (
            nn.Sequential(nn.Identity(), make(inner)),
            nn.Sequential(nn.Identity(), inner),
        )
        assert folding_of(whole) == folding_of(plain)
        assert folding_of(whole).folded == {"1.1": "1.0"}
        torch.testing.assert_close(evaluation_mode(whole)(images()), evaluated(plain, images()))
        torch.testing.assert_close(folded_copy(whole)(images()), evaluated(plain, images()))


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.sum = nn.Conv2d(2, 2, 1), torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.sum.add_relu(self.conv(x), x)


@both
def test_floating_point_functions_of_quantisation_are_accepted(make):
    net = in_general_position(Sums().double())
    x = images().requires_grad_()
    results = []
    for model in (copy.deepcopy(net), make(net)):
        (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        results.append([g, *torch.autograd.grad(g.square().sum(), list(model.parameters()))])
    for got, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class TestHooks:
    KINDS = "forward_hook forward_pre_hook full_backward_hook full_backward_pre_hook".split()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("where", ["0", "1", "0.0", "1.0", "all"])
    def test_see_what_they_see_in_evaluation_mode(self, kind, where):
        parts = conv_and_norm()
        net = nn.Sequential(nn.Sequential(parts[0]), nn.Sequential(parts[1]), nn.ReLU())
        view, x = evaluation_mode(net), images().requires_grad_()
        view(x)
        results = []
        for model in (copy.deepcopy(net).eval(), view):
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
        assert len(results[0]) == len(results[1]) > 0
        for got, wanted in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)

    def test_that_change_what_a_block_hands_on_are_heard(self):
        parts = conv_and_norm()
        net = nn.Sequential(nn.Sequential(parts[0]), parts[1])
        net[0].register_forward_hook(lambda module, given, out: 2 * out)
        torch.testing.assert_close(evaluation_mode(net)(images()), evaluated(net, images()))
        torch.testing.assert_close(folded_copy(net)(images()), evaluated(net, images()))


class TestHessians:
    def test_accept_an_evaluation_view_of_a_network_in_training_mode(self):
        net = in_general_position(
            nn.Sequential(
                nn.Conv2d(2, 3, 3),
                nn.BatchNorm2d(3),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(48, 3),
            ).double()
        )
        view, x, labels = evaluation_mode(net), images(), torch.tensor([0, 1, 2, 0])
        stock, v = copy.deepcopy(net).eval(), randn(4, 2, 6, 6, seed=3)
        before = statistics(net)
        for hessian in (closed_form_hessian, lambda *given: true_hessian(*given, labels)):
            torch.testing.assert_close(hessian(view, x).product(v), hessian(stock, x).product(v))
        got, wanted = (surrogate_loss(model, x, labels) for model in (view, stock))
        torch.testing.assert_close(got.gradient, wanted.gradient)
        torch.testing.assert_close(got.largest_eigenvalue, wanted.largest_eigenvalue)
        assert net.training
        assert changed(before, net) == 0

    def test_still_refuse_batch_statistics_and_training_mode(self):
        net = nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten())
        with pytest.raises(ValueError, match="normalises by statistics of the batch"):
            closed_form_hessian(evaluation_mode(net), images())
        with pytest.raises(ValueError, match="is in training mode"):
            closed_form_hessian(fast_double_backward(nn.Sequential(nn.Flatten())), images())


class TestClasses:
    @both
    def test_with_init_subclass_arguments_and_registries(self, make):
        registry = []

        class Base(nn.Module):
            def __init_subclass__(cls, *, key):
                assert key not in registry
                registry.append(key)

        class Net(Base, key="net"):
            def forward(self, x):
                return 2 * x

        view = make(Net())
        assert isinstance(view, Net)
        assert registry == ["net"]
        torch.testing.assert_close(view(images()), 2 * images())

    @both
    def test_with_a_metaclass_that_keeps_a_list(self, make):
        class Registers(type):
            names: list[str] = []

            def __new__(mcs, name, bases, namespace):
                mcs.names.append(name)
                return super().__new__(mcs, name, bases, namespace)

        class Net(nn.Module, metaclass=Registers):
            def forward(self, x):
                return F.relu(x)

        torch.testing.assert_close(make(Net())(images()), F.relu(images()))
        assert Registers.names == ["Net"]

    @both
    def test_with_slots_are_refused_at_the_top_and_work_below(self, make):
        class Slots(nn.Module):
            __slots__ = ("scale",)

            def __init__(self):
                super().__init__()
                self.scale = 2

            def forward(self, x):
                return self.scale * x

        with pytest.raises(ValueError, match=r"model: expected .* got Slots with __slots__"):
            make(Slots())
        torch.testing.assert_close(make(nn.Sequential(Slots()))(images()), 2 * images())

    def test_that_are_lazy_are_refused_inside_an_evaluation_view(self):
        net = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d())
        with pytest.raises(ValueError, match=r"model\.0: .* got LazyConv2d; call it once"):
            evaluation_mode(net)
        net(torch.rand(2, 2, 6, 6))
        assert folding_of(net).folded == {"1": "0"}
