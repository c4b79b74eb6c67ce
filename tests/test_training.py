import copy
import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from reglib import landscape
from reglib.double_backward import fast_double_backward
from reglib.double_backward.modules import View
from reglib.regularizers import group_dro, input_gradient_penalty
from suite.data import ImageData, Split, load_data, to_float
from suite.errors import UsageError
from suite.networks import build_network
from suite.training import loop as training
from suite.training.loop import check, initial_network, memory_format, train
from suite.training.penalties import PENALTIES
from suite.units import Training

CPU = torch.device("cpu")
PENALTY = {"input_gradient": {"strength": 0.1}}
FIELDS = {"data": "mnist5k", "network": "lenet5", "epochs": 3, "learning_rate": 2e-3, "seed": 4}
UNIT = Training(**FIELDS, n_train=96, batch_size=32, penalties=PENALTY)
WITH_BATCH_NORM = replace(UNIT, network="convnet", network_options={"width": 4}, n_train=64)
DECAY = {"momentum": 0.9, "weight_decay": 1e-3, "decay_all": False}
SGD = {"learning_rate": 0.1, "optimizer": "sgd", "optimizer_options": DECAY, "cosine_epochs": 4}
CROPS = {"crop_padding": 4, "flip": True, "zoom": 1.25, "label_smoothing": 0.1}
TARGET = {"landscape_target": {"strength": 1.0, "every": 2}}
SCHEDULED = {"cure": {"strength": 0.1, "radius": [0.5, 1.0]}}
CAPTURED = [{}, TARGET, {"marginal_density": {"strength": 0.1, "warm_up": 3}}, SCHEDULED]
AS_IN_THE_PAPER = replace(WITH_BATCH_NORM, **SGD, **CROPS, penalties=TARGET)
GROUPED = replace(UNIT, data="grouped", penalties={}, balance_groups=True)
GROUP_DRO = replace(GROUPED, balance_groups=False, group_dro=0.1, batch_size=96)
FIXED = replace(WITH_BATCH_NORM, fixed_statistics=True, epochs=1)
each_unit = pytest.mark.parametrize("unit", [UNIT, WITH_BATCH_NORM], ids=["lenet5", "convnet"])


@functools.cache
def grouped_data():
    """Return digits, of which one in eight is in a rare group with wrong labels."""
    data = load_data("mnist5k")
    rare = torch.arange(96) % 8 == 0
    labels = torch.where(rare, 9 - data.train.labels[:96], data.train.labels[:96])
    split = Split(data.train.images[:96], labels, groups=rare.long())
    return ImageData(split, split, data.classes, "")


def with_strength(strength, **changes):
    return replace(UNIT, penalties={"input_gradient": {"strength": strength}}, **changes)


def run(unit, **options):
    data = grouped_data() if unit.data == "grouped" else load_data(unit.data)
    return train(unit, data, device=CPU, **options)


def run_and_record(unit):
    states = []

    def record(state):
        states.append(copy.deepcopy(state()))

    return run(unit, on_epoch=record), states


def have_same_bits(first, second):
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def compute_loss(network, count, strength):
    train_split = load_data("mnist5k").train
    inputs = to_float(train_split.images[:count], UNIT.pixel_range).requires_grad_()
    labels, logits = train_split.labels[:count], network(inputs)
    penalty = input_gradient_penalty(logits, labels, inputs).mean()
    return float((nn.functional.cross_entropy(logits, labels) + strength * penalty).detach())


EVERY = "every, of penalty .* expected a positive integer, got {!r}"
WARM_UP = "warm_up, of penalty .* expected an integer of 0 or more, got {!r}"


def penalty(name="input_gradient", **settings):
    return {"penalties": {name: {"strength": 1, **settings}}}


UNKNOWN = [
    ({"network": "lenet"}, r"unknown network 'lenet': did you mean 'lenet5'\?"),
    ({"optimizer": "adan"}, r"unknown optimizer 'adan': did you mean 'adam'\?"),
    (penalty("input_gradeint"), "penalty 'input_gradeint': did you mean 'input_gradient'"),
    (penalty(strenght=2), "penalty 'input_gradient' 'strenght': did you mean 'strength'"),
    (penalty(kernel_width=3), "'input_gradient' 'kernel_width': .*Known: every, strength"),
    (penalty("landscape_curvature", kernel_with=3), "'kernel_with': did you mean 'kernel_wi"),
    *((penalty(every=n), EVERY.format(n)) for n in (0, -1, 2.0, True, "2", None)),
    *((penalty(warm_up=n), WARM_UP.format(n)) for n in (-1, 2.0, True, None)),
    (penalty("cure", radios=2), r"'radios': did you mean 'radius'\? Known: every, radius"),
    (penalty("adversarial", epsilon=0.1), "missing a required argument: 'step_size'"),
]
REFUSED = [
    ({"crop_padding": 28}, {}, "crop_padding: expected 0 to 27 pixels"),
    ({"data": "resized:mnist5k:27", "swap_halves": True}, {}, "images of an even height, got 27"),
    ({"group_dro": 0.1}, {}, "data set 'mnist5k': expected groups of images"),
    ({"balance_groups": True}, {}, "data set 'mnist5k': expected groups of images"),
    ({}, {"resume": {"weights": torch.zeros(1)}}, "resume: expected the state that on_epoch gave"),
]


def record_inputs(monkeypatch, unit):
    """Train with a penalty of zero, and return the batches of images that it gets."""
    batches = []

    def record(batch):
        batches.append(batch.inputs.detach().clone())
        return batch.logits.sum(1) * 0

    monkeypatch.setitem(PENALTIES, "logit_gradient", record)
    run(replace(unit, penalties={"logit_gradient": {"strength": 1}}))
    return batches


class TestAugmentation:
    def test_shifts_inputs_of_penalties(self, monkeypatch):
        units = (replace(UNIT, epochs=2, crop_padding=pixels) for pixels in (0, 3))
        plain, shifted = (torch.cat(record_inputs(monkeypatch, unit)) for unit in units)
        inner = (slice(None), slice(3, -3), slice(3, -3))

        def find_shift(shifted, image):
            for shift in itertools.product(range(-3, 4), repeat=2):
                if torch.equal(image.roll(shift, (1, 2))[inner], shifted[inner]):
                    return shift
            raise AssertionError("no shift of the image")

        shifts = [find_shift(a, b) for a, b in zip(shifted, plain, strict=True)]
        assert len(set(shifts)) > 30
        assert shifts[:96] != shifts[96:]

    def test_zooms_anew_in_each_epoch(self, monkeypatch):
        batches = record_inputs(monkeypatch, replace(UNIT, epochs=2, batch_size=96, zoom=2.0))
        ink = [images.sum((1, 2, 3)).sort().values for images in batches]  # whatever the order
        images = to_float(load_data("mnist5k").train.images[:96], (0, 1))
        plain = images.sum((1, 2, 3)).sort().values
        # 7/3 if no ink left the image
        assert all((zoomed.mean() / plain.mean()) > 1.5 for zoomed in ink)
        assert not torch.allclose(ink[0], ink[1], rtol=1e-3)

    def test_swaps_halves_anew_in_each_epoch(self, monkeypatch):
        changes = {"data": "blockmnist5k", "network": "mlp", "batch_size": 96}
        batches = record_inputs(monkeypatch, replace(UNIT, epochs=2, swap_halves=True, **changes))
        above, below = (  # by the upper side of the block's frame
            [(images[:, 0, line, 4:24] == 1).all(1) for images in batches] for line in (4, 32)
        )
        assert all((a ^ b).all() for a, b in zip(above, below))
        assert not torch.equal(above[0], above[1])


class TestResume:
    @pytest.mark.parametrize("unit", [UNIT, WITH_BATCH_NORM, AS_IN_THE_PAPER, GROUP_DRO])
    def test_from_any_epoch(self, unit):
        expected, states = run_and_record(unit)
        assert len(states) == 3
        for epochs, state in enumerate(states, start=1):
            assert state["losses"] == expected.losses[:epochs]
            torch.manual_seed(epochs)
            resumed = run(unit, resume=state)
            assert have_same_bits(resumed.network, expected.network)
            assert resumed.losses == expected.losses

    def test_without_group_weights_is_refused(self):
        state = run_and_record(replace(GROUPED, balance_groups=False))[1][0]
        expected = "resume: expected the state of a training with groups"
        with pytest.raises(UsageError, match=expected):
            run(GROUPED, resume=state)


class TestGroups:
    def test_balanced_are_equally_frequent(self, monkeypatch):
        sums = torch.cat(record_inputs(monkeypatch, GROUPED)).flatten(1).sum(1).tolist()
        split = grouped_data().train
        rare = to_float(split.images, UNIT.pixel_range)[split.groups == 1].flatten(1).sum(1)
        rare_sums = {round(v, 3) for v in rare.tolist()}
        assert len(sums) == 3 * 96
        assert sum(round(v, 3) in rare_sums for v in sums) / len(sums) == pytest.approx(
            0.5, abs=0.1
        )

    def test_dro_weighs_the_larger_loss(self):
        """The first loss has equal weights, which then move to the group of wrong labels."""
        result, states = run_and_record(GROUP_DRO)
        network = initial_network(GROUP_DRO, grouped_data())
        labels, groups = grouped_data().train.labels, grouped_data().train.groups
        logits = network(to_float(grouped_data().train.images, UNIT.pixel_range))
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        expected = group_dro(losses, groups, torch.full((2,), 0.5), step_size=0.1)
        assert result.losses[0] == pytest.approx(float(expected.loss.detach()), rel=1e-5)
        torch.testing.assert_close(states[0]["group_weights"], expected.weights)
        assert states[2]["group_weights"].sum().item() == pytest.approx(1, rel=1e-5)


class TestPenalty:
    def test_gets_settings_and_epoch(self):
        def losses(**settings):
            penalties = {"cure": {"strength": 1.0, **settings}}
            return run(replace(UNIT, penalties=penalties, epochs=2, batch_size=96)).losses

        default, flat, rising = losses(), losses(radius=0.1), losses(radius=[0.1, 2.0])
        assert default == losses(radius=1.5)
        assert losses(radius=3.0)[0] > default[0] + 1e-4
        assert rising[0] == flat[0]
        assert rising[1] > flat[1]

    def test_knows_the_pixel_range(self, monkeypatch):
        ranges = []

        def penalty(batch):
            ranges.append(batch.pixel_range)
            return PENALTIES["input_gradient"](batch)

        monkeypatch.setitem(PENALTIES, "logit_gradient", penalty)
        changes = {"epochs": 1, "penalties": {"logit_gradient": {"strength": 1}}}
        run(replace(UNIT, pixel_range=(-1, 2), **changes))
        assert ranges == [(-1, 2)] * 3

    def test_strength_zero_is_no_penalty(self):
        without, zero = run(replace(UNIT, penalties={})), run(with_strength(0))
        assert zero.losses == pytest.approx(without.losses, rel=1e-4)
        for a, b in zip(zero.network.parameters(), without.network.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)

    def test_more_strength_flattens(self):
        networks = [run(with_strength(s, epochs=6)).network for s in (0, 10, 100)]
        norms = [compute_loss(n, 96, 1.0) - compute_loss(n, 96, 0.0) for n in networks]
        assert norms[0] > 1.5 * norms[1]
        assert norms[1] > 1.5 * norms[2]

    @pytest.mark.parametrize(
        ("name", "differentiates"), [("landscape_curvature", False), ("logit_gradient", True)]
    )
    def test_acts_in_every_second_step(self, monkeypatch, name, differentiates):
        calls = []

        def record(batch, *, kernel_width=3):
            calls.append((kernel_width, batch.inputs.requires_grad, batch.labels))
            return 0 * batch.logits.sum(1) + 1

        monkeypatch.setitem(PENALTIES, name, record)
        unit = replace(UNIT, penalties={name: {"strength": 9.0, "every": 2, "kernel_width": 5}})
        sparse, states = run_and_record(unit)
        # Steps 2, 4, 6 and 8 of 9.
        assert [(width, grad) for width, grad, _ in calls] == [(5, differentiates)] * 4
        plain = run(replace(UNIT, penalties={}))
        extra = [a - b for a, b in zip(sparse.losses, plain.losses)]
        steps_of_epochs = [1, 2, 1]
        assert extra == pytest.approx([9.0 * n / 3 for n in steps_of_epochs], rel=1e-3)
        later = calls[1:]
        calls.clear()
        run(unit, resume=states[0])
        assert all(torch.equal(a[2], b[2]) for a, b in zip(calls, later, strict=True))

    def test_strength_rises(self, monkeypatch):
        monkeypatch.setitem(PENALTIES, "cure", lambda batch: 0 * batch.logits.sum(1) + 1)
        unit = replace(UNIT, penalties={"cure": {"strength": 9.0, "warm_up": 5}})
        rising, plain = run(unit), run(replace(UNIT, penalties={}))
        extra = [a - b for a, b in zip(rising.losses, plain.losses)]
        means_of_three_steps = [9 * (0.2 + 0.4 + 0.6) / 3, 9 * (0.8 + 1 + 1) / 3, 9]
        assert extra == pytest.approx(means_of_three_steps, rel=1e-3)

    @pytest.mark.parametrize(
        ("name", "strength"), [("landscape_curvature", 100.0), ("landscape_target", 80.0)]
    )
    def test_flattens_the_landscape(self, name, strength):
        settings = {name: {"strength": strength, "every": 2}}
        unit = replace(WITH_BATCH_NORM, penalties=settings, epochs=8, learning_rate=5e-3)
        results = [run(replace(unit, penalties={}))]
        results += [run(unit, double_backward=way) for way in ("fast", "stock")]
        inputs = to_float(load_data("mnist5k").train.images[:64], UNIT.pixel_range)
        target, distances = landscape.data_smoothness([inputs]).float(), []
        for result in results:
            flat = landscape.expected_importance_landscape(result.network, [inputs]).float()
            if name == "landscape_curvature":
                distances.append(landscape.curvature_penalty(flat))
            else:
                distances.append(landscape.target_penalty(flat, target))
            assert not result.diverged
        assert distances[0] > 1.5 * max(distances[1:])


class TestTrain:
    def test_first_loss_includes_the_penalty(self):
        unit = with_strength(0.5, epochs=1, batch_size=96)
        expected = compute_loss(initial_network(unit, load_data("mnist5k")), 96, 0.5)
        assert run(unit).losses == pytest.approx([expected], rel=1e-5)

    @each_unit
    def test_same_seed_gives_same_bits(self, unit):
        images = load_data("mnist5k").train.images
        before = images[:96].clone()
        torch.manual_seed(1)
        first = run(unit)
        torch.manual_seed(2)
        state = torch.get_rng_state()
        again, third = run(unit), run(replace(unit, seed=5))
        assert torch.equal(torch.get_rng_state(), state)
        assert images.dtype == torch.uint8
        assert torch.equal(images[:96], before)
        assert have_same_bits(first.network, again.network)
        assert first.losses == again.losses
        assert not have_same_bits(first.network, third.network)

    def test_each_epoch_has_its_order(self, monkeypatch):
        orders, randperm = [], torch.randperm

        def record(*arguments, **options):
            orders.append(randperm(*arguments, **options))
            return orders[-1]

        monkeypatch.setattr(torch, "randperm", record)
        run(UNIT)
        run(replace(UNIT, seed=5))
        assert len({tuple(order.tolist()) for order in orders}) == 6
        assert all(sorted(order.tolist()) == list(range(96)) for order in orders)

    @pytest.mark.parametrize(("strength", "learning_rate"), [(0.1, 1e30), (1e300, 2e-3)])
    def test_divergence_ends_training(self, strength, learning_rate):
        result, states = run_and_record(with_strength(strength, learning_rate=learning_rate))
        assert result.diverged
        assert not math.isfinite(result.losses[-1])
        assert len(states) == len(result.losses) - 1
        assert not result.network.training

    def test_infinite_weights_count_as_diverged(self):
        assert run(replace(UNIT, epochs=1, batch_size=96, learning_rate=1e38)).diverged

    @pytest.mark.parametrize(("changes", "text"), UNKNOWN)
    def test_unknown_names_are_refused(self, changes, text):
        unit = replace(UNIT, **changes)
        for refuse in (check, run):
            with pytest.raises(UsageError, match=text):
                refuse(unit)

    @pytest.mark.parametrize(("changes", "options", "text"), REFUSED)
    def test_refuses_impossible_data_and_options(self, changes, options, text):
        with pytest.raises(UsageError, match=text):
            run(replace(UNIT, **changes), **options)

    @pytest.mark.parametrize(
        ("network", "device", "layout"),
        [
            ("lenet5", "cpu", (torch.channels_last, torch.channels_last)),
            ("convnet", "cpu", (torch.channels_last, torch.contiguous_format)),
            ("lenet5", "cuda", (torch.contiguous_format, torch.contiguous_format)),
        ],
    )
    def test_layout_is_the_faster_one(self, network, device, layout):
        model = build_network(network, (1, 28, 28), 10, options={}, seed=0)
        ways = (memory_format(model, torch.device(device), stock_penalties=s) for s in (0, 1))
        assert tuple(ways) == layout

    @each_unit
    def test_fast_and_stock_agree(self, unit):
        unit = replace(unit, epochs=2, n_train=64, batch_size=64)
        fast, stock, default = (run(unit, double_backward=w) for w in ("fast", "stock", None))
        assert fast.losses[0] == pytest.approx(stock.losses[0], rel=1e-5)
        # Adam's first step follows the sign of a gradient, even if the gradient is rounding error.
        assert fast.losses[1] == pytest.approx(stock.losses[1], rel=1e-3)
        assert have_same_bits(default.network, fast.network)
        assert not have_same_bits(stock.network, fast.network)
        assert type(fast.network) is type(stock.network)

    def test_captured_is_stock_on_the_cpu(self):
        unit = replace(WITH_BATCH_NORM, epochs=1, n_train=64)
        stock, graph = (run(unit, double_backward=way) for way in ("stock", "captured"))
        assert have_same_bits(stock.network, graph.network)
        assert stock.losses == graph.losses

    @pytest.mark.gpu
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    @pytest.mark.parametrize("penalties", CAPTURED, ids=lambda names: "-".join(names) or "none")
    def test_captured_agrees_with_stock_on_cuda(self, optimizer, penalties):
        changes = {"epochs": 3, "cosine_epochs": 3, "optimizer": optimizer, "penalties": penalties}
        unit, device = replace(WITH_BATCH_NORM, **changes), torch.device("cuda")
        stock, graph = (
            train(unit, load_data("mnist5k"), device=device, double_backward=way)
            for way in ("stock", "captured")
        )
        assert graph.losses == pytest.approx(stock.losses, rel=2e-2)

    @pytest.mark.gpu
    def test_cuda_gives_the_same_bits(self):
        data, device = load_data("mnist5k"), torch.device("cuda")
        first, again = (train(UNIT, data, device=device) for _ in range(2))
        assert have_same_bits(first.network, again.network)
        assert first.losses == pytest.approx(run(UNIT).losses, rel=1e-2)

    @pytest.mark.gpu
    def test_images_off_the_device(self, monkeypatch):
        penalties, device = {"landscape_target": {"strength": 1.0}}, torch.device("cuda")
        unit = replace(WITH_BATCH_NORM, penalties=penalties, batch_size=24)
        resident = train(unit, load_data("mnist5k"), device=device)
        monkeypatch.setattr(training, "RESIDENT_BYTES", 0)
        brought = train(unit, load_data("mnist5k"), device=device)
        assert have_same_bits(resident.network, brought.network)
        assert resident.losses == brought.losses


class TestFixedStatistics:
    def test_trains_as_it_evaluates(self):
        before, after = initial_network(FIXED, load_data("mnist5k")), run(FIXED).network
        assert not isinstance(after, View)
        buffers = dict(after.named_buffers())
        assert all(torch.equal(value, buffers[name]) for name, value in before.named_buffers())
        scales = [module.weight for module in after.modules() if isinstance(module, nn.BatchNorm2d)]
        assert any((scale != 1).any() for scale in scales)  # the weights are trained
        expected = compute_loss(before.eval(), 32, 0.1)
        assert run(replace(FIXED, n_train=32)).losses == pytest.approx([expected], rel=1e-5)

    @pytest.mark.parametrize("penalised", [True, False])
    def test_folded_or_not_is_the_same(self, penalised):
        unit = FIXED if penalised else replace(FIXED, penalties={})
        fast, stock = (run(unit, double_backward=way) for way in ("fast", "stock"))
        assert fast.losses == pytest.approx(stock.losses, rel=1e-4)
        assert run(replace(unit, fixed_statistics=False)).losses != fast.losses


class TestSchedule:
    def test_cosine_ends_near_zero(self):
        changes = {"epochs": 4, "batch_size": 4, "n_train": 40, "penalties": {}}
        states = run_and_record(replace(AS_IN_THE_PAPER, **changes))[1]
        weights = [state["network"]["0.weight"] for state in states]
        moves = [float((b - a).norm()) for a, b in itertools.pairwise(weights)]
        assert moves[2] < 0.5 * moves[0]

    def test_label_smoothing(self):
        unit = replace(UNIT, penalties={}, epochs=1, batch_size=96, label_smoothing=0.3)
        data = load_data("mnist5k")
        logits = initial_network(unit, data)(to_float(data.train.images[:96], unit.pixel_range))
        spread = torch.full((96, 10), 0.03)
        spread[torch.arange(96), data.train.labels[:96]] += 0.7
        expected = -(spread * logits.log_softmax(1)).sum(1).mean()
        assert run(unit).losses == [pytest.approx(float(expected.detach()), rel=1e-5)]

    @pytest.mark.parametrize("network", ["resnet", "top_gap"])
    def test_bfloat16_takes_nearly_the_same_step(self, network):
        l1 = {"class_map_l1": {"strength": 1.0}} if network == "top_gap" else {}
        small = {"blocks": [1, 1], "width": 8}
        options = {"backbone_options": small, "width": 8, "k": 0.25} if l1 else small
        fields = {"epochs": 1, "batch_size": 96, "optimizer": "sgd", "learning_rate": 1.0}
        unit = replace(UNIT, **fields, network=network, network_options=options, penalties=l1)
        trained = [run(unit).network, run(replace(unit, precision="bfloat16")).network]
        networks = [initial_network(unit, load_data("mnist5k")), *trained]
        start, *ends = (torch.cat([p.flatten() for p in n.parameters()]) for n in networks)
        steps = [(end - start).detach() for end in ends]
        assert steps[1].dtype == torch.float32
        assert float(torch.cosine_similarity(*steps, dim=0)) > 0.99
        assert not torch.allclose(*steps, rtol=1e-4)

    @pytest.mark.parametrize("view", [nn.Sequential, fast_double_backward])
    def test_bfloat16_leaves_depthwise_convolutions_in_float32(self, view):
        layers = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4, bias=False)
        inputs = torch.rand(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        network, types = view(nn.Sequential(*layers)), []
        for layer in layers:
            layer.register_forward_hook(lambda *hooked: types.append(hooked[2].dtype))
        with torch.autocast("cpu", torch.bfloat16), training._FloatGrouped():
            outputs = network(inputs)
        assert types == [torch.bfloat16, torch.float32]
        (gradient,) = torch.autograd.grad(outputs.square().sum(), layers[1].weight)
        expected = torch.autograd.grad(
            nn.Sequential(*layers)(inputs).square().sum(), layers[1].weight
        )
        torch.testing.assert_close(gradient, expected[0], rtol=0.03, atol=0.03)

    def test_clipped_gradient_has_its_norm(self, monkeypatch):
        norms, step = [], torch.optim.SGD.step

        def record(optimizer, *arguments):
            gradients = [p.grad.flatten() for g in optimizer.param_groups for p in g["params"]]
            norms.append(float(torch.cat(gradients).norm()))
            return step(optimizer, *arguments)

        monkeypatch.setattr(torch.optim.SGD, "step", record)
        plain = replace(UNIT, optimizer="sgd", epochs=1)
        run(plain)
        free = norms.copy()
        norms.clear()
        run(replace(plain, clip=0.1))
        assert max(free) > 0.2
        assert max(norms) == pytest.approx(0.1, rel=1e-4)
