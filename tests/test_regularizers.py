"""The contract that every penalty keeps, and the closed forms of each."""

import copy
import inspect
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
from reglib.networks import build_network
from reglib.regularizers import PENALTIES, Step, input_gradient_penalty, of_step

SHAPE, CLASSES, BATCH = (2, 12, 12), 4, 3
LABELS = torch.tensor([3, 0, 1])
SETTINGS = {
    "without batch normalisation": ("lenet5", {}, False),
    "batch normalisation in training mode": ("convnet", {"width": 4}, True),
    "batch normalisation in evaluation mode": ("resnet", {"width": 2, "blocks": (1, 1)}, False),
}


class Case(NamedTuple):
    """A penalty with settings of its own.

    `signed`: it can be negative. `third_order`: it differentiates three times, which stock batch
    normalisation in training mode cannot. `bfloat16`: it is smooth enough for that type.
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
CASES = {
    "input_gradient": Case("input_gradient"),
    "logit_gradient": Case("logit_gradient"),
    "logit_gradient, p = 1": Case("logit_gradient", {"p": 1}),
    "marginal_density": Case("marginal_density"),
    "marginal_density, naive": Case("marginal_density", {"implementation": "naive"}),
    "marginal_density, stable": Case("marginal_density", {"implementation": "stable"}),
    "marginal_density, p = 1.2": Case("marginal_density", {"p": 1.2}),
    "input_hessian": Case("input_hessian", {}, third_order=True, bfloat16=False),
    "cure": Case("cure", {"radius": 0.5}, bfloat16=False),
    "score_matching": Case("score_matching", {}, signed=True, third_order=True, bfloat16=False),
    "score_matching, taylor": Case("score_matching", TAYLOR, signed=True, bfloat16=False),
    "adversarial": Case("adversarial", FGSM, signed=True, bfloat16=False),
    "adversarial, PGD": Case(
        "adversarial", FGSM | {"n_steps": 2, "random_start": True}, signed=True, bfloat16=False
    ),
}  # fmt: skip

each_penalty = pytest.mark.parametrize("penalty", CASES.values(), ids=CASES)
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def network_of(setting, dtype=torch.float64):
    """Build a network in general position: with biases of zero some ReLU would be at its kink."""
    name, options, training = setting
    network = build_network(name, SHAPE, CLASSES, options=options, seed=7).double()
    generator = torch.Generator().manual_seed(6)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.1 * noise
    return network.to(dtype).train(training)


def network_for(penalty, setting):
    """Build a network whose layers can be differentiated as often as the penalty does."""
    model = network_of(setting)
    return fast_double_backward(model) if penalty.third_order and model.training else model


def images(dtype=torch.float64):
    generator = torch.Generator().manual_seed(8)
    return torch.randn(BATCH, *SHAPE, generator=generator, dtype=torch.float64).to(dtype)


def step_of(model, inputs):
    """Make one step; its generator has the same seed each time."""
    inputs = inputs.detach().requires_grad_()
    generator = torch.Generator(inputs.device).manual_seed(9)
    labels = LABELS.to(inputs.device)
    return Step(model, inputs, labels, model(inputs), generator, pixel_range=(-9, 9))


def parameter_gradients(values, model):
    """Differentiate the mean penalty; a parameter that it does not depend on gets zeros."""
    parameters = list(model.parameters())
    return torch.autograd.grad(values.mean(), parameters, materialize_grads=True)


def hooks(model):
    kinds = ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"]
    return [len(getattr(module, kind)) for module in model.modules() for kind in kinds]


def test_every_penalty_is_tested_here():
    assert {case.name for case in CASES.values()} == PENALTIES.keys()


def test_settings_of_a_penalty_are_the_arguments_that_no_step_holds():
    def function(inputs, labels, *, radius, order=2):
        return inputs.sum(1) * radius + labels * order

    penalty = of_step(function)
    assert str(inspect.signature(penalty)) == "(step, /, *, radius, order=2)"
    inputs = torch.ones(3, 2)
    step = Step(nn.Identity(), inputs, LABELS, inputs, torch.Generator())
    assert torch.equal(penalty(step, radius=10), 20 + 2 * LABELS)
    assert torch.equal(penalty(step, radius=10, order=0), torch.full((3,), 20.0))


@each_penalty
@each_setting
def test_one_finite_value_for_each_sample(penalty, setting):
    values = penalty(step_of(network_for(penalty, setting), images()))
    assert values.shape == (BATCH,)
    assert values.isfinite().all()
    assert (values != 0 if penalty.signed else values > 0).all()


@each_penalty
@each_setting
def test_zero_where_the_output_does_not_depend_on_the_input(penalty, setting):
    model = network_for(penalty, setting)
    nn.init.zeros_(model[-1].weight)
    values = penalty(step_of(model, images()))
    assert torch.equal(values, torch.zeros_like(values))
    assert all(g.isfinite().all() for g in parameter_gradients(values, model))


@each_penalty
@each_setting
def test_parameter_gradient_agrees_with_finite_differences(penalty, setting):
    model = network_for(penalty, setting)
    step = step_of(model, images())
    gradients = parameter_gradients(penalty(step), model)
    generator = torch.Generator().manual_seed(10)
    for parameter, gradient in zip(model.parameters(), gradients):
        direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        direction /= direction.norm()
        slope = finite_difference(penalty, model, parameter, direction)
        tolerance = 1e-5 * float(gradient.norm()) + 1e-12
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=0, abs=tolerance)


def finite_difference(penalty, model, parameter, direction, step=1e-6):
    """Differentiate the mean penalty along a direction, by central differences."""
    kept = parameter.detach().clone()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.copy_(kept + sign * step * direction)
        values.append(float(penalty(step_of(model, images())).mean().detach()))
    with torch.no_grad():
        parameter.copy_(kept)
    return (values[0] - values[1]) / (2 * step)


@each_penalty
@each_setting
def test_model_inputs_and_global_random_state_are_left_as_they_were(penalty, setting):
    model = network_for(penalty, setting)
    only_forward = copy.deepcopy(model)
    only_forward(images())
    step = step_of(model, images())
    inputs, logits = step.inputs.detach().clone(), step.logits.detach().clone()
    modes = [module.training for module in model.modules()]
    hooked, random = hooks(model), torch.get_rng_state()

    penalty(step)

    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert hooks(model) == hooked
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    expected = only_forward.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert torch.equal(step.inputs, inputs)
    assert torch.equal(step.logits, logits)
    assert step.inputs.grad is None
    assert torch.equal(step.labels, torch.tensor([3, 0, 1]))


@each_penalty
@each_setting
def test_the_loss_can_still_be_differentiated_afterwards(penalty, setting):
    model = network_for(penalty, setting)
    step = step_of(model, images())
    loss = F.cross_entropy(step.logits, step.labels)
    total = loss + penalty(step).mean()
    total.backward(inputs=list(model.parameters()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@each_penalty
@each_setting
def test_bfloat16_autocast_gives_nearly_the_same(penalty, setting):
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


@each_penalty
@each_setting
def test_channels_last_gives_the_same(penalty, setting):
    model = network_for(penalty, setting)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    expected = penalty(step_of(model, images()))
    inputs = images().contiguous(memory_format=torch.channels_last)
    values = penalty(step_of(last, inputs))
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=0)
    pairs = zip(parameter_gradients(values, last), parameter_gradients(expected, model))
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@each_penalty
@each_setting
def test_fast_double_backpropagation_gives_the_same(penalty, setting):
    model = network_of(setting)
    if penalty.third_order and model.training:
        with pytest.raises(RuntimeError, match="batch_norm does not support 3rd"):
            parameter_gradients(penalty(step_of(model, images())), model)
        return
    fast = fast_double_backward(copy.deepcopy(model))
    expected, values = penalty(step_of(model, images())), penalty(step_of(fast, images()))
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=0)
    pairs = zip(parameter_gradients(values, fast), parameter_gradients(expected, model))
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@each_penalty
@each_setting
def test_cuda_gives_the_same(penalty, setting):
    model = network_of(setting)
    if penalty.name in RANDOM:
        pytest.skip("the generators of the two devices give other numbers")
    expected = penalty(step_of(model, images()))
    on_gpu = penalty(step_of(network_of(setting).cuda(), images().cuda()))
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=1e-9, atol=1e-12)


def test_input_gradient_penalty_of_a_linear_softmax_network():
    r"""With logits W x + c, the gradient of sample b is W^T (p_b - e_y)."""
    generator = torch.Generator().manual_seed(11)
    weight = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    x = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    logits = x @ weight.T + bias
    values = input_gradient_penalty(logits, LABELS, x)
    errors = logits.detach().softmax(1) - F.one_hot(LABELS, 4)
    torch.testing.assert_close(values, (errors @ weight).square().sum(1), rtol=1e-12, atol=0)


def test_input_gradient_penalty_of_a_sample_does_not_depend_on_the_batch():
    model = network_of(SETTINGS["without batch normalisation"])
    together = PENALTIES["input_gradient"](step_of(model, images()))
    for b in range(BATCH):
        x = images()[b : b + 1].requires_grad_()
        alone = input_gradient_penalty(model(x), LABELS[b : b + 1], x)
        torch.testing.assert_close(together[b : b + 1], alone, rtol=1e-12, atol=0)


def test_input_gradient_penalty_under_batch_statistics_differentiates_the_summed_loss():
    model = network_of(SETTINGS["batch normalisation in training mode"])
    step = step_of(model, images())
    values = input_gradient_penalty(step.logits, step.labels, step.inputs)
    x = images().requires_grad_()
    losses = F.cross_entropy(model(x), LABELS, reduction="none")
    rows = [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in losses]
    torch.testing.assert_close(values, sum(rows).square().sum((1, 2, 3)), rtol=1e-10, atol=0)
    own = torch.stack([rows[b][b].square().sum() for b in range(BATCH)])
    assert ((values - own).abs() > 1e-3 * own).all()


def test_input_gradient_penalty_refuses_inputs_without_gradient():
    logits = torch.zeros(1, 2, requires_grad=True)
    with pytest.raises(ValueError, match="inputs: expected a tensor that requires a gradient"):
        input_gradient_penalty(logits, torch.tensor([0]), torch.zeros(1, 2))
