"""Errors of public functions for wrong arguments, by all functions of an argument."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reglib
from reglib import landscape, regularizers
from reglib.double_backward import calls_of, folded_copy, folding_of
from reglib.input_hessian import decomposition, input_hessian, leading_eigenpairs, true_hessian
from reglib.landscape import expected_importance_landscape, expected_squared_gradients
from reglib.saliency import smooth_surrogate_loss
from reglib.top_gap import feature_maps
from tests.double_backward import Net
from tests.small_batches import generator

IMAGES, LABELS = torch.rand(2, 3, 9, 9), torch.tensor([0, 1])
BALL = {"epsilon": 0.1, "step_size": 0.1}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(243, 3), nn.Tanh(), nn.Linear(3, 3)).eval()


def step(model):
    x = IMAGES.clone().requires_grad_()
    return model(x), LABELS, x


def seeded(function, **settings):
    """Return a function whose generator is made at each call."""
    return lambda *inputs: function(*inputs, **settings, generator=generator())


# Functions that call a network: on images, and in a step with its logits.
examples = seeded(regularizers.adversarial_examples, **BALL, n_steps=1)
OF_IMAGES = {
    "closed_form_hessian": reglib.closed_form_hessian,
    "decomposition": decomposition,
    "input_hessian": lambda m, x: input_hessian(m, x, LABELS),
    "smooth_surrogate_loss": lambda m, x: seeded(smooth_surrogate_loss)(m, x, LABELS),
    "surrogate_loss": lambda m, x: reglib.surrogate_loss(m, x, LABELS),
    "true_hessian": lambda m, x: true_hessian(m, x, LABELS),
    "adversarial_examples": lambda m, x: examples(m, x, LABELS),
}
OF_ANY_CALLABLE = {
    "importance_landscape": seeded(reglib.importance_landscape),
    "expected_importance_landscape": lambda m, x: expected_importance_landscape(m, [x]),
    "expected_squared_gradients": lambda m, x: expected_squared_gradients(m, [x]),
}
CALLING = {
    "adversarial_penalty": seeded(reglib.adversarial_penalty, **BALL),
    "cure_penalty": reglib.cure_penalty,
    "finite_difference_penalty": reglib.finite_difference_penalty,
    "score_matching_penalty": seeded(reglib.score_matching_penalty, trace="taylor"),
}
density_penalty = seeded(reglib.marginal_density_penalty)
OF_LOGITS = {
    "input_gradient_penalty": reglib.input_gradient_penalty,
    "input_hessian_penalty": seeded(reglib.input_hessian_penalty),
    "logit_gradient_penalty": reglib.logit_gradient_penalty,
    "marginal_density_penalty": lambda logits, labels, x: density_penalty(logits, x),
}
ALL_OF_LOGITS = OF_LOGITS | {
    name: lambda *inputs, penalty=penalty: penalty(network(), *inputs)
    for name, penalty in CALLING.items()
}
IN_STEPS = {n: lambda m, x, call=call: call(m, *step(network())) for n, call in CALLING.items()}
NETWORK_CALLS = OF_IMAGES | OF_ANY_CALLABLE | IN_STEPS


def for_each(functions):
    return pytest.mark.parametrize("function", functions.values(), ids=functions)


def refuses(message):
    return pytest.raises(ValueError, match=message)


def test_every_penalty_is_covered():
    of_landscapes = {"curvature_penalty", "target_penalty"}
    penalties = {name for name in reglib.__all__ if name.endswith("_penalty")}
    assert penalties - of_landscapes == ALL_OF_LOGITS.keys()


@for_each(NETWORK_CALLS)
def test_network_without_tensor_output_is_refused(function):
    for pack in (lambda y: {"logits": y}, lambda y: (y, y), lambda y: None):
        kind = type(pack(0)).__name__
        packing = Net(lambda net, x, pack=pack: pack(net.layers(x)), layers=network()).eval()
        with refuses(f"output of model: expected a PyTorch Tensor, got {kind}; wrap the network"):
            function(packing, IMAGES)


@for_each(NETWORK_CALLS)
def test_only_landscapes_take_functions(function):
    model = network()
    expected = function(model, IMAGES)
    assert expected is not None
    if function in OF_ANY_CALLABLE.values():
        assert torch.equal(function(lambda x: model(x), IMAGES), expected)
    else:
        with refuses(r"model: expected a .*Module, got function"):
            function(lambda x: model(x), IMAGES)


def test_function_has_no_view_or_backbone():
    views = reglib.evaluation_mode, reglib.fast_double_backward, folding_of, folded_copy
    for view in (*views, lambda model: calls_of(model, IMAGES)):
        with refuses(r"model: expected a .*Module, got function"):
            view(lambda x: x)
    for of_backbone in (feature_maps, lambda backbone: reglib.TopGAPNet(backbone, 3, k=1)):
        with refuses(r"backbone: expected a .*Module, got function"):
            of_backbone(lambda x: x)


@for_each(ALL_OF_LOGITS)
def test_penalties_take_tensors(function):
    logits, labels, x = step(network())
    with refuses("logits: expected a PyTorch Tensor, got dict; take the logits from"):
        function({"logits": logits}, labels, x)
    with refuses("logits: expected a PyTorch Tensor, got NoneType"):
        function(None, labels, x)
    with refuses("(inputs|images): expected a PyTorch Tensor, got list"):
        function(logits, labels, [x])
    if function is not ALL_OF_LOGITS["marginal_density_penalty"]:  # it takes no labels
        with refuses("labels: expected a PyTorch Tensor, got list"):
            function(logits, [0, 1], x)
        for outside in (3, -1):
            with refuses(f"labels: expected indices from 0 to 2, got {outside}"):
                function(logits, torch.tensor([0, outside]), x)
        with refuses(r"labels: expected integers \(torch.int64\) of shape \(2,\)"):
            function(logits, labels.int(), x)


def test_class_maps_have_four_dimensions():
    with refuses(r"maps: expected class maps \(B, classes, h, w\), got shape \(2, 3\)"):
        reglib.class_map_l1(torch.ones(2, 3))


@for_each({k: f for k, f in ALL_OF_LOGITS.items() if k != "adversarial_penalty"})
def test_missing_graph_is_explained(function):
    hint, x = re.escape("call inputs.requires_grad_() before the forward pass"), IMAGES.clone()
    logits = network()(x)
    with refuses(f"got independent values; {hint}"):
        function(logits, LABELS, x.requires_grad_())
    x = IMAGES.clone()
    logits = network().requires_grad_(False)(x)
    with refuses(r"without a graph; .* before inputs\.requires_grad_\(\)"):
        function(logits, LABELS, x.requires_grad_())
    logits = network()(x.detach())
    with refuses(f"got independent values; {hint}, and detach nothing in it"):
        function(logits, LABELS, x)


def test_generator_is_required():
    model, inputs = network(), (network(), IMAGES, LABELS)
    message = r"generator: expected a PyTorch Generator, got NoneType; torch\.Generator\(dev"
    attack = {**BALL, "n_steps": 1}
    for function, arguments, settings in (
        (reglib.importance_landscape, inputs[:2], {}),
        (reglib.marginal_density_penalty, step(model)[::2], {}),
        (reglib.input_hessian_penalty, step(model), {}),
        (reglib.score_matching_penalty, (model, *step(model)), {}),
        (smooth_surrogate_loss, inputs, {}),
        (regularizers.adversarial_examples, inputs, attack),
        (regularizers.adversarial_examples, inputs, attack | {"norm": "l2"}),
        (lambda x, generator: landscape.sample_classes(x, generator), (IMAGES.flatten(1),), {}),
    ):
        with refuses(message):
            function(*arguments, **settings, generator=None)
        function(*arguments, **settings, generator=generator())


LOADER = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2)
OF_BATCHES = {
    "data_smoothness": reglib.data_smoothness,
    "expected_importance_landscape": lambda b: expected_importance_landscape(network(), b),
    "expected_squared_gradients": lambda b: expected_squared_gradients(network(), b),
}


@for_each(OF_BATCHES)
def test_batches_have_images_alone(function):
    with refuses(r"images: expected a PyTorch Tensor, got list; .* for images, _ in loader"):
        function(LOADER)
    assert torch.equal(function(images for images, _ in LOADER), function([IMAGES]))
    with refuses(r"images: expected shape \(B, C, H, W\), got \(3, 9, 9\)"):
        function(IMAGES)


EMPTY = torch.zeros(0, 5, 4, 4)


class TestEmptyBatch:
    def test_has_no_norms_and_no_eigenpairs(self):
        assert reglib.class_map_l1(EMPTY).shape == (0,)
        assert reglib.activation_l1([EMPTY, EMPTY.flatten(1)], layers="all").shape == (0,)
        for k in (3, 1.0):
            pooled = reglib.top_gap_and_l1(EMPTY, k=k)
            assert (pooled.logits.shape, pooled.l1.shape) == ((0, 5), (0,))
        pairs = leading_eigenpairs(lambda v: v, torch.zeros(0, 4), k=2)
        assert (pairs.values.shape, pairs.vectors.shape) == ((0, 2), (0, 2, 4))

    @for_each({k: f for k, f in (OF_IMAGES | OF_ANY_CALLABLE).items() if "adversarial" not in k})
    def test_has_no_hessian_and_no_landscape(self, function):
        with refuses("images: expected a batch .* of at least one image"):
            function(network(), IMAGES[:0])

    def test_has_no_adversarial_examples(self):
        assert examples(network(), IMAGES[:0], LABELS[:0]).shape == (0, 3, 9, 9)
