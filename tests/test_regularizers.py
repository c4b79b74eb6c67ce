"""The contract that every penalty keeps, and the closed forms of each."""

import copy
import inspect
import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import reglib
from reglib._common import normal_noise
from reglib.double_backward import fast_double_backward
from reglib.landscape import curvature_penalty, data_smoothness, importance_landscape
from reglib.regularizers import activation_l1, finite_difference_penalty, input_gradient_penalty
from reglib.top_gap import class_map_l1
from suite.errors import UsageError
from suite.networks import build_network
from suite.training import penalties
from suite.training.penalties import PENALTIES, PenaltyInputs, TrainingContext, forward
from tests.double_backward import randn
from tests.small_batches import generator, left_alone

SHAPE, CLASSES, BATCH = (2, 12, 12), 4, 3
LABELS = torch.tensor([3, 0, 1])
RESNET = {"width": 2, "blocks": (1, 1)}
SETTINGS = {
    "without batch normalisation": ("lenet5", {}, False),
    "batch normalisation in training mode": ("convnet", {"width": 4}, True),
    "batch normalisation in evaluation mode": ("resnet", RESNET, False),
}
PLAIN, TRAINING, _ = SETTINGS.values()
LAST_MAP = {"k": 0.2, "fpn": False, "backbone_options": RESNET}
TOP_GAP = {
    "Top-GAP in training mode": ("top_gap", {"k": 9, "width": 3, "backbone_options": RESNET}, True),
    "Top-GAP of the last map": ("top_gap", LAST_MAP, False),
}


class Case(NamedTuple):
    """A penalty with its settings.

    `signed`: it can be negative. `third_order`: it differentiates three times, which stock batch
    normalisation in training mode cannot. `bfloat16`: it is smooth enough for this type.
    """

    name: str
    settings: dict[str, Any] = {}
    signed: bool = False
    third_order: bool = False
    bfloat16: bool = True

    def __call__(self, step):
        return PENALTIES[self.name](step, **self.settings)


RANDOM = ("input_hessian", "score_matching", "adversarial")
TAYLOR = {"trace": "taylor", "n_samples": 2, "noise_std": 0.5, "stability": 0.1}
FGSM = {"epsilon": 0.1, "step_size": 0.1}
PGD = FGSM | {"n_steps": 2, "random_start": True}
WITHOUT_SETTINGS = """activation_l1 class_map_l1 input_gradient landscape_curvature landscape_target
logit_gradient marginal_density""".split()
CASES = {name: Case(name) for name in WITHOUT_SETTINGS} | {
    "activation_l1, all": Case("activation_l1", {"layers": "all"}),
    "logit_gradient, p = 1": Case("logit_gradient", {"p": 1}),
    "marginal_density, naive": Case("marginal_density", {"implementation": "naive"}),
    "marginal_density, stable": Case("marginal_density", {"implementation": "stable"}),
    "marginal_density, p = 1.2": Case("marginal_density", {"p": 1.2}),
    "input_hessian": Case("input_hessian", {}, third_order=True, bfloat16=False),
    "cure": Case("cure", {"radius": 0.5}, bfloat16=False),
    "finite_difference": Case("finite_difference", {"step": 0.5}, bfloat16=False),
    "score_matching": Case("score_matching", {}, signed=True, third_order=True, bfloat16=False),
    "score_matching, taylor": Case("score_matching", TAYLOR, signed=True, bfloat16=False),
    "adversarial": Case("adversarial", FGSM, signed=True, bfloat16=False),
    "adversarial, PGD": Case("adversarial", PGD, signed=True, bfloat16=False),
}


def settings_of(name, penalty):
    """Return the networks to test a penalty on: several for its defaults, else one."""
    if penalty.name == "class_map_l1":
        return list(TOP_GAP)
    return [*SETTINGS, "Top-GAP in training mode"] if name == penalty.name else [*SETTINGS][1:2]


ALL_CASES = {
    f"{name}-{title}": (penalty, (SETTINGS | TOP_GAP)[title])
    for name, penalty in CASES.items()
    for title in settings_of(name, penalty)
}
each_case = pytest.mark.parametrize(("penalty", "setting"), ALL_CASES.values(), ids=ALL_CASES)


def network_of(setting, dtype=torch.float64):
    """Build a network in general position: with biases of zero some ReLU would be at its kink."""
    name, options, training = setting
    network, source = build_network(name, SHAPE, CLASSES, options=options, seed=7), generator(6)
    for parameter in network.double().parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * normal_noise(parameter, source)
    return network.to(dtype).train(training)


def network_for(penalty, setting):
    """Build a network whose layers can be differentiated as often as the penalty does."""
    model = network_of(setting)
    return fast_double_backward(model) if penalty.third_order and model.training else model


def images(dtype=torch.float64):
    return randn(BATCH, *SHAPE, seed=8, dtype=dtype)


def step_of(model, inputs):
    """Make one step; its generator has the same seed each time."""
    inputs = inputs.detach().requires_grad_()
    source = torch.Generator(inputs.device).manual_seed(9)
    settings = {"context": TrainingContext(model, lambda: [images()]), "with_activations": True}
    labels = LABELS.to(inputs.device)
    return forward(model, inputs, labels, source, pixel_range=(-9, 9), **settings)


def parameter_gradients(values, model):
    """Differentiate the mean penalty; a parameter that it does not depend on gets zeros."""
    return torch.autograd.grad(values.mean(), list(model.parameters()), materialize_grads=True)


def test_cases_hold_every_penalty():
    assert {case.name for case in CASES.values()} == PENALTIES.keys()


@each_case
def test_penalty_is_finite_and_changes_nothing(penalty, setting):
    model = network_for(penalty, setting)
    only_forward = copy.deepcopy(model)
    only_forward(images())
    step = step_of(model, images())
    logits = step.logits.detach().clone()
    with left_alone(model, step.inputs):
        values = penalty(step)
    assert values.shape == (BATCH,)
    assert values.isfinite().all()
    assert (values != 0 if penalty.signed else values > 0).all()
    expected = only_forward.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert torch.equal(step.logits, logits)
    assert torch.equal(step.labels, torch.tensor([3, 0, 1]))
    # The loss can still be differentiated afterwards.
    loss = F.cross_entropy(step.logits, step.labels) + values.mean()
    loss.backward(inputs=list(model.parameters()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@each_case
def test_penalty_is_least_for_constant_outputs(penalty, setting):
    model = network_for(penalty, setting)
    last = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]
    for parameter in (model if penalty.name == "activation_l1" else last).parameters():
        nn.init.zeros_(parameter)
    step = step_of(model, images())
    values, least = penalty(step), 0.0
    if penalty.name == "landscape_target":  # the landscape is zero, the target is not
        least = float(step.context.smoothness(3).square().mean())
    torch.testing.assert_close(values, torch.full_like(values, least), rtol=1e-12, atol=0)
    gradients = parameter_gradients(values, model)
    if penalty.name.startswith("landscape"):
        assert not any(g.any() for g in gradients)
    assert all(g.isfinite().all() for g in gradients)


@each_case
def test_parameter_gradient_agrees_with_finite_differences(penalty, setting):
    """Along one direction that moves every parameter by the same length."""
    if penalty.name == "finite_difference":
        return  # its direction is held constant: see TestFiniteDifferences
    model = network_for(penalty, setting)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0  # penalties take running statistics as constants
    values = penalty(step_of(model, images()))
    gradients = parameter_gradients(values, model)
    directions = [F.normalize(randn(*g.shape, seed=i), dim=None) for i, g in enumerate(gradients)]
    slope = finite_difference(penalty, model, directions)
    product = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    rounding = 1e-12 + 1e-9 * float(values.detach().abs().amax())
    tolerance = 1e-5 * float(torch.stack([g.norm() for g in gradients]).norm()) + rounding
    assert product == pytest.approx(slope, rel=0, abs=tolerance)


def finite_difference(penalty, model, directions, step=1e-6):
    start = [parameter.detach().clone() for parameter in model.parameters()]
    values = []
    for size in (step, -step, 0.0):
        with torch.no_grad():
            for parameter, at, direction in zip(model.parameters(), start, directions, strict=True):
                parameter.copy_(at + size * direction)
        values.append(float(penalty(step_of(model, images())).mean().detach()))
    return (values[0] - values[1]) / (2 * step)


@each_case
def test_penalty_under_bfloat16_autocast(penalty, setting):
    model = network_for(penalty, setting).float()
    exact = penalty(step_of(copy.deepcopy(model), images(torch.float32)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = penalty(step_of(model, images(torch.float32)))
    assert values.isfinite().all()
    if penalty.bfloat16:
        atol = 0.3 * float(exact.detach().max())
        torch.testing.assert_close(values.float(), exact, rtol=0.25, atol=atol)
    gradients = parameter_gradients(values, model)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients)


@each_case
def test_penalty_in_other_layouts_and_views(penalty, setting):
    model = network_for(penalty, setting)
    others = [copy.deepcopy(model).to(memory_format=torch.channels_last)]
    if penalty.third_order and model.training:
        stock = network_of(setting)
        refuses = pytest.raises(RuntimeError, match="batch_norm does not support 3rd")
        with nullcontext() if torch.__version__.startswith("2.11") else refuses:  # a wrong one
            parameter_gradients(penalty(step_of(stock, images())), stock)
    else:
        others.append(fast_double_backward(copy.deepcopy(model)))
    expected = penalty(step_of(model, images()))
    gradients = parameter_gradients(expected, model)
    for other, layout in zip(others, (torch.channels_last, torch.contiguous_format)):
        values = penalty(step_of(other, images().contiguous(memory_format=layout)))
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=0)
        results = parameter_gradients(values, other)
        torch.testing.assert_close(results, gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@each_case
def test_penalty_on_cuda(penalty, setting):
    model = network_of(setting)
    if penalty.name in RANDOM:
        pytest.skip("the generators of the two devices give other numbers")
    expected = penalty(step_of(model, images()))
    step = step_of(network_of(setting).cuda(), images().cuda())
    if penalty.name.startswith("landscape"):  # these take a generator of any device
        step = step._replace(generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(penalty(step).cpu(), expected, rtol=1e-9, atol=1e-12)


class TestInputGradientPenalty:
    def test_of_a_linear_softmax_network(self):
        r"""With logits W x + c, the gradient of sample b is W^T (p_b - e_y)."""
        weight, bias, x = (randn(*s, seed=i) for i, s in enumerate(((4, 6), (4,), (3, 6))))
        logits = x.requires_grad_() @ weight.T + bias
        values = input_gradient_penalty(logits, LABELS, x)
        errors = logits.detach().softmax(1) - F.one_hot(LABELS, 4)
        torch.testing.assert_close(values, (errors @ weight).square().sum(1), rtol=1e-12, atol=0)

    def test_sums_the_losses_under_batch_statistics(self):
        model, x = network_of(TRAINING), images().requires_grad_()
        logits = model(x)
        values = input_gradient_penalty(logits, LABELS, x)
        losses = F.cross_entropy(logits, LABELS, reduction="none")
        rows = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in losses]
        torch.testing.assert_close(values, sum(rows).square().sum((1, 2, 3)), rtol=1e-10, atol=0)
        alone = torch.stack([rows[b][b].square().sum() for b in range(BATCH)])
        assert ((values - alone).abs() > 1e-3 * alone).all()


class TestFiniteDifferences:
    @pytest.fixture
    def smooth(self):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 3)).double()
        return network, torch.randn(3, 6, dtype=torch.float64).requires_grad_()

    def penalty(self, network, x, step):
        return finite_difference_penalty(network, network(x), LABELS % 3, x, step=step)

    def test_first_order_in_the_step(self, smooth):
        network, x = smooth
        exact = input_gradient_penalty(network(x), LABELS % 3, x)
        errors = [self.penalty(network, x, h) - exact for h in (1e-1, 1e-2, 1e-3)]
        first, second, third = (error.abs().max().item() for error in errors)
        assert second / first == pytest.approx(0.1, rel=0.5)
        assert third / second == pytest.approx(0.1, rel=0.1)

    def test_direction_is_constant(self, smooth):
        network, x = smooth
        self.penalty(network, x, 0.1).sum().backward()
        by_penalty = network[0].weight.grad.clone()
        network.zero_grad()
        (gradient,) = torch.autograd.grad(F.cross_entropy(network(x), LABELS % 3), x)
        points = x.detach() + 0.1 * gradient / gradient.norm(dim=1, keepdim=True), x.detach()
        losses = [F.cross_entropy(network(at), LABELS % 3, reduction="none") for at in points]
        ((losses[0] - losses[1]) / 0.1).square().sum().backward()
        torch.testing.assert_close(by_penalty, network[0].weight.grad)


class TestLandscapePenalties:
    @pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
    def test_use_evaluation_mode(self, setting):
        model = network_of(setting)
        curvature = penalties.landscape_curvature(step_of(model, images()), kernel_width=5)
        target = penalties.landscape_target(step_of(model, images()), kernel_width=5)
        model(images())  # the running statistics after a third step
        last = penalties.landscape_curvature(step_of(model, images()), kernel_width=5)
        landscape = importance_landscape(model.eval(), images(), generator=generator(9))
        expected = curvature_penalty(landscape, kernel_width=5)
        torch.testing.assert_close(last, expected.expand(BATCH), rtol=1e-12, atol=0)
        if not setting[2]:
            torch.testing.assert_close(curvature, last, rtol=1e-12, atol=0)
            distance = (landscape - data_smoothness([images()], kernel_width=5)).square().mean()
            torch.testing.assert_close(target, distance.expand(BATCH), rtol=1e-12, atol=0)

    def test_draw_classes_from_the_generator(self):
        step = step_of(network_of(PLAIN), images())
        values = [penalties.landscape_curvature(step) for _ in range(8)]
        assert len({float(v[0].detach()) for v in values}) > 1
        step.generator.manual_seed(9)
        assert torch.equal(penalties.landscape_curvature(step), values[0])

    def test_take_a_batch_of_one(self):
        model, x = network_of(TRAINING), images()[:1]
        step = PenaltyInputs(model, x, LABELS[:1], torch.empty(0), generator(3))
        with left_alone(model):
            value = penalties.landscape_curvature(step)
        expected = importance_landscape(model.eval(), x, generator=generator(3))
        torch.testing.assert_close(value, curvature_penalty(expected)[None], rtol=1e-12, atol=0)

    def test_refuse_impossible_steps(self):
        step = step_of(network_of(PLAIN), images())
        with pytest.raises(ValueError, match=r"context: expected TrainingContext.* got None"):
            penalties.landscape_target(step._replace(context=None))
        with pytest.raises(ValueError, match="batches: expected an image that has an edge"):
            penalties.landscape_target(step._replace(context=TrainingContext(step.model)))
        layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False)
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(300, 4)).double()
        with pytest.raises(ValueError, match="BatchNorm2d '1' normalises by statistics of the"):
            penalties.landscape_curvature(step_of(model, images()))
        assert model.training

    def test_make_constants_once(self):
        calls = []
        constants = TrainingContext(network_of(PLAIN), lambda: calls.append(1) or [images()])
        assert constants.smoothness(3) is constants.smoothness(3)
        assert (constants.smoothness(5).shape, len(calls)) == ((12, 12), 2)
        assert constants.evaluated is constants.evaluated


class TestClassMapL1:
    def test_takes_maps_of_the_forward_pass(self):
        model, passes = network_of(TOP_GAP["Top-GAP in training mode"]), []
        model.classifier.register_forward_hook(lambda module, inputs, maps: passes.append(maps))
        step = step_of(model, images())
        assert len(passes) == 1
        assert step.class_maps is passes[0]
        assert torch.equal(step.logits, model.pool(step.class_maps))
        torch.testing.assert_close(PENALTIES["class_map_l1"](step), class_map_l1(passes[0]))

    def test_is_the_mean_of_absolute_values(self):
        maps = torch.tensor([[[[1.0, -2.0]], [[0.0, 3.0]]], [[[0.0, 0.0]], [[0.5, -0.5]]]])
        assert torch.equal(class_map_l1(maps), torch.tensor([1.5, 0.25]))
        maps.requires_grad_()
        class_map_l1(maps).sum().backward()
        assert torch.equal(maps.grad, maps.detach().sign() / 4)

    def test_sums_beyond_the_range_of_float16(self):
        maps = torch.full((1, 10, 100, 100), 2.0, dtype=torch.float16)
        assert class_map_l1(maps) == activation_l1([maps]) == 2

    def test_needs_class_maps(self):
        step = step_of(network_of(PLAIN), images())
        assert step.class_maps is None
        with pytest.raises(UsageError, match="expected a network with a TopGAP layer, got LeNet5"):
            PENALTIES["class_map_l1"](step)


class TestActivationL1:
    def test_takes_outputs_of_activation_layers(self):
        model, outputs, x = network_of(PLAIN), [], images()
        step = step_of(model, images())
        for layer in model:
            x = layer(x)
            if isinstance(layer, torch.nn.ReLU):
                outputs.append(x.flatten(1).abs().mean(1))
        assert len(outputs) == 4
        torch.testing.assert_close(PENALTIES["activation_l1"](step), outputs[-1])
        torch.testing.assert_close(PENALTIES["activation_l1"](step, layers="all"), sum(outputs))
        with pytest.raises(ValueError, match="layers: expected last or all, got 'lst'"):
            PENALTIES["activation_l1"](step, layers="lst")

    def test_needs_activations(self):
        step = forward(network_of(PLAIN), images(), LABELS, torch.Generator())
        with pytest.raises(UsageError, match=r"got none; LeNet5 must .* with_activations=True"):
            PENALTIES["activation_l1"](step)


def test_failed_step_leaves_no_hook():
    model = network_of(TOP_GAP["Top-GAP of the last map"])
    with left_alone(model), pytest.raises(RuntimeError):
        step_of(model, images()[:, :1])


POSITIVE = "expected a positive number, got 0"
REFUSED = [
    ("input_hessian_penalty", {"n_samples": 0}, f"n_samples: {POSITIVE}"),
    ("input_hessian_penalty", {"of": "logits"}, "of: expected loss or logit, got 'logits'"),
    ("cure_penalty", {"radius": 0.0}, "radius: expected a positive length or .*, got 0.0"),
    ("cure_penalty", {"radius": [0.1, 0]}, r"sequence of positive lengths, got \[0.1, 0\]"),
    ("cure_penalty", {"radius": []}, r"sequence of positive lengths, got \[\]"),
    ("score_matching_penalty", {"n_samples": 0}, f"n_samples: {POSITIVE}"),
    ("score_matching_penalty", {"noise_std": 0}, f"noise_std: {POSITIVE}"),
    ("score_matching_penalty", {"trace": "tailor"}, "trace: expected hutchinson or taylor, got"),
    ("finite_difference_penalty", {"step": 0}, f"step: {POSITIVE}"),
    ("adversarial_penalty", {"epsilon": 0}, f"epsilon: {POSITIVE}"),
    ("adversarial_penalty", {"step_size": 0}, f"step_size: {POSITIVE}"),
    ("adversarial_penalty", {"n_steps": 0}, f"n_steps: {POSITIVE}"),
    ("adversarial_penalty", {"norm": "l_2"}, "norm: expected linf or l2, got 'l_2'"),
    ("marginal_density_penalty", {"implementation": "stabel"}, "or efficient, got 'stabel'"),
]
for order in (0.5, 0.0, -1.0, math.nan):
    no_norm = {"p": order}, f"p: expected the order of a norm, .* got {order}"
    REFUSED += [(f"{name}_penalty", *no_norm) for name in ("marginal_density", "logit_gradient")]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_settings_out_of_range_are_refused(name, settings, message):
    model, x, function = network_of(PLAIN), images().requires_grad_(), getattr(reglib, name)
    arguments = {"model": model, "logits": model(x), "labels": LABELS, "inputs": x} | FGSM
    arguments |= {"generator": generator()} | settings
    names = inspect.signature(function).parameters.keys()
    with pytest.raises(ValueError, match=message):
        function(**{name: arguments[name] for name in names & arguments.keys()})
