"""What is handed in by mistake is named, by all public functions that it can be given to."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reglib
from reglib import regularizers
from reglib.double_backward import calls_of, folded_copy, folding_of
from reglib.input_hessian import decomposition, input_hessian, leading_eigenpairs, true_hessian
from reglib.landscape import (
    expected_importance_landscape,
    expected_squared_gradients,
    sample_classes,
)
from reglib.saliency import smooth_surrogate_loss
from reglib.top_gap import feature_maps
from tests.double_backward import Net

IMAGES, LABELS = torch.rand(2, 3, 9, 9), torch.tensor([0, 1])
BALL = {"epsilon": 0.1, "step_size": 0.1}


def generator():
    return torch.Generator().manual_seed(0)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(243, 3), nn.Tanh(), nn.Linear(3, 3)).eval()


def step(model):
    x = IMAGES.clone().requires_grad_()
    return model(x), LABELS, x


# What calls a network: on images, and in a step whose logits a network gave.
OF_IMAGES = {
    "closed_form_hessian": lambda m, x: reglib.closed_form_hessian(m, x),
    "decomposition": lambda m, x: decomposition(m, x),
    "input_hessian": lambda m, x: input_hessian(m, x, LABELS),
    "smooth_surrogate_loss": lambda m, x: smooth_surrogate_loss(
        m, x, LABELS, generator=generator()
    ),
    "surrogate_loss": lambda m, x: reglib.surrogate_loss(m, x, LABELS),
    "true_hessian": lambda m, x: true_hessian(m, x, LABELS),
    "adversarial_examples": lambda m, x: regularizers.adversarial_examples(
        m, x, LABELS, **BALL, n_steps=1, generator=generator()
    ),
}
OF_ANY_CALLABLE = {
    "importance_landscape": lambda m, x: reglib.importance_landscape(m, x, generator=generator()),
    "expected_importance_landscape": lambda m, x: expected_importance_landscape(m, [x]),
    "expected_squared_gradients": lambda m, x: expected_squared_gradients(m, [x]),
}
CALLING = {
    "adversarial_penalty": lambda m, *given: reglib.adversarial_penalty(
        m, *given, **BALL, generator=generator()
    ),
    "cure_penalty": reglib.cure_penalty,
    "finite_difference_penalty": reglib.finite_difference_penalty,
    "score_matching_penalty": lambda m, *given: reglib.score_matching_penalty(
        m, *given, trace="taylor", generator=generator()
    ),
}
OF_LOGITS = {
    "input_gradient_penalty": reglib.input_gradient_penalty,
    "input_hessian_penalty": lambda *given: reglib.input_hessian_penalty(
        *given, generator=generator()
    ),
    "logit_gradient_penalty": reglib.logit_gradient_penalty,
    "marginal_density_penalty": lambda logits, labels, x: reglib.marginal_density_penalty(
        logits, x, generator=generator()
    ),
}
ALL_OF_LOGITS = OF_LOGITS | {
    name: lambda *given, penalty=penalty: penalty(network(), *given)
    for name, penalty in CALLING.items()
}
NETWORK_CALLS = (
    OF_IMAGES
    | OF_ANY_CALLABLE
    | {
        name: lambda m, x, penalty=penalty: penalty(m, *step(network()))
        for name, penalty in CALLING.items()
    }
)


def each(functions):
    return pytest.mark.parametrize("function", functions.values(), ids=functions)


def refuses(message):
    return pytest.raises(ValueError, match=message)


def test_every_penalty_of_a_gradient_or_a_second_call_is_here():
    elsewhere = {"curvature_penalty", "target_penalty"}  # take landscapes
    penalties = {name for name in reglib.__all__ if name.endswith("_penalty")}
    assert penalties - elsewhere == ALL_OF_LOGITS.keys()


@each(NETWORK_CALLS)
def test_a_network_that_returns_no_tensor_is_refused(function):
    for pack in (lambda y: {"logits": y}, lambda y: (y, y), lambda y: None):
        kind = type(pack(0)).__name__
        with refuses(f"output of model: expected a PyTorch Tensor, got {kind}; give a module"):
            function(
                Net(lambda net, x, pack=pack: pack(net.layers(x)), layers=network()).eval(), IMAGES
            )


@each(NETWORK_CALLS)
def test_a_function_has_a_landscape_and_is_else_no_network(function):
    model = network()
    wanted = function(model, IMAGES)
    assert wanted is not None
    if function in OF_ANY_CALLABLE.values():
        assert torch.equal(function(lambda x: model(x), IMAGES), wanted)
    else:
        with refuses("model: expected a PyTorch Module, got function"):
            function(lambda x: model(x), IMAGES)


VIEWS = {
    f.__name__: f
    for f in (reglib.evaluation_mode, reglib.fast_double_backward, folding_of, folded_copy)
}


BACKBONES = {"feature_maps": feature_maps, "TopGAPNet": lambda b: reglib.TopGAPNet(b, 3, k=1)}


@each(VIEWS | {"calls_of": lambda m: calls_of(m, IMAGES)} | BACKBONES)
def test_a_function_has_no_view_and_is_no_backbone(function):
    name = "backbone" if function in BACKBONES.values() else "model"
    with refuses(rf"{name}: expected a .*Module, got function"):
        function(lambda x: x)


@each(ALL_OF_LOGITS)
class TestPenalty:
    def test_of_all_that_a_network_returned_is_refused(self, function):
        logits, labels, x = step(network())
        with refuses("logits: expected a PyTorch Tensor, got dict; take the logits out"):
            function({"logits": logits}, labels, x)
        with refuses("logits: expected a PyTorch Tensor, got NoneType"):
            function(None, labels, x)

    def test_of_a_list_of_inputs_is_refused(self, function):
        logits, labels, x = step(network())
        with refuses("(inputs|images): expected a PyTorch Tensor, got list"):
            function(logits, labels, [x])


@each({k: f for k, f in ALL_OF_LOGITS.items() if k != "marginal_density_penalty"})
def test_labels_are_a_tensor(function):
    logits, _, x = step(network())
    with refuses("labels: expected a PyTorch Tensor, got list"):
        function(logits, [0, 1], x)


@each({k: f for k, f in ALL_OF_LOGITS.items() if k != "adversarial_penalty"})
def test_a_graph_that_begins_too_late_or_is_cut_is_explained(function):
    hint = re.escape("call inputs.requires_grad_() before the forward pass")
    x = IMAGES.clone()
    logits = network()(x)
    with refuses(f"got independent ones; {hint}"):
        function(logits, LABELS, x.requires_grad_())
    x = IMAGES.clone()
    logits = network().requires_grad_(False)(x)
    with refuses(r"without a graph; .* before inputs\.requires_grad_\(\)"):
        function(logits, LABELS, x.requires_grad_())
    logits = network()(x.detach())
    with refuses(f"got independent ones; {hint}, in which nothing may detach"):
        function(logits, LABELS, x)


GENERATORS = {
    "importance_landscape": lambda g: reglib.importance_landscape(network(), IMAGES, generator=g),
    "sample_classes": lambda g: sample_classes(IMAGES.flatten(1), g),
    "marginal_density_penalty": lambda g: reglib.marginal_density_penalty(
        *step(network())[::2], generator=g
    ),
    "input_hessian_penalty": lambda g: reglib.input_hessian_penalty(*step(network()), generator=g),
    "score_matching_penalty": lambda g: reglib.score_matching_penalty(
        network(), *step(network()), generator=g
    ),
    "smooth_surrogate_loss": lambda g: smooth_surrogate_loss(
        network(), IMAGES, LABELS, generator=g
    ),
    "adversarial_examples": lambda g: regularizers.adversarial_examples(
        network(), IMAGES, LABELS, **BALL, n_steps=1, generator=g
    ),
    "adversarial_examples, l2": lambda g: regularizers.adversarial_examples(
        network(), IMAGES, LABELS, **BALL, n_steps=1, norm="l2", generator=g
    ),
}


@each(GENERATORS)
def test_a_generator_is_asked_for(function):
    with refuses(r"generator: expected a PyTorch Generator, got NoneType; torch\.Generator\(dev"):
        function(None)
    function(generator())


LOADER = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2)
OF_BATCHES = {
    "data_smoothness": reglib.data_smoothness,
    "expected_importance_landscape": lambda b: expected_importance_landscape(network(), b),
    "expected_squared_gradients": lambda b: expected_squared_gradients(network(), b),
}


@each(OF_BATCHES)
class TestBatches:
    def test_of_images_and_labels_are_refused(self, function):
        with refuses(r"images: expected a PyTorch Tensor, got list; .* for images, _ in loader"):
            function(LOADER)

    def test_of_images_alone_out_of_a_loader_are_fine(self, function):
        assert torch.equal(function(images for images, _ in LOADER), function([IMAGES]))

    def test_in_one_tensor_are_refused(self, function):
        with refuses(r"images: expected shape \(B, C, H, W\), got \(3, 9, 9\)"):
            function(IMAGES)


def test_a_batch_of_images_and_labels_has_no_landscape():
    with refuses("images: expected a PyTorch Tensor, got list"):
        reglib.importance_landscape(network(), next(iter(LOADER)), generator=generator())


EMPTY = torch.zeros(0, 5, 4, 4)


class TestEmptyBatch:
    def test_has_no_norms(self):
        assert reglib.class_map_l1(EMPTY).shape == (0,)
        assert reglib.activation_l1([EMPTY, EMPTY.flatten(1)], layers="all").shape == (0,)
        for k in (3, 1.0):
            pooled = reglib.top_gap_and_l1(EMPTY, k=k)
            assert pooled.logits.shape == (0, 5)
            assert pooled.l1.shape == (0,)

    def test_has_no_eigenpairs(self):
        pairs = leading_eigenpairs(lambda v: v, torch.zeros(0, 4), k=2)
        assert pairs.values.shape == (0, 2)
        assert pairs.vectors.shape == (0, 2, 4)

    @each({k: f for k, f in (OF_IMAGES | OF_ANY_CALLABLE).items() if "adversarial" not in k})
    def test_has_no_hessian_and_no_landscape(self, function):
        with refuses("images: expected a batch .* of at least one image"):
            function(network(), IMAGES[:0])

    def test_has_no_adversarial_examples(self):
        settings = BALL | {"n_steps": 1, "generator": generator()}
        found = regularizers.adversarial_examples(network(), IMAGES[:0], LABELS[:0], **settings)
        assert found.shape == (0, 3, 9, 9)
