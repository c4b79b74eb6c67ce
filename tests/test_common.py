import copy

import pytest
import torch
from torch import nn

import reglib
from reglib._common import copy_network, forward_again
from reglib.double_backward import calls_of, evaluation_mode, fast_double_backward, folded_copy
from reglib.regularizers import adversarial_examples
from tests.double_backward import Net
from tests.small_batches import generator, random_images

LABELS = torch.tensor([0, 2, 1])
FGSM = {"epsilon": 0.1, "step_size": 0.1}


def layers():
    torch.manual_seed(0)
    parts = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*parts).double()


def images():
    return random_images(3, 2, 6, 6, seed=1)


def keep_features(net, x):
    """Keep features as an attribute, in a list, and in a dictionary."""
    net.features = net.layers[:3](x)
    net.seen.append(net.features)
    net.named["features"] = net.features
    return net.layers[3:](net.features)


class TestCopyNetwork:
    def test_network_that_keeps_features(self):
        network = Net(keep_features, layers=layers(), seen=[], named={}).eval()
        expected = network(images())
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(network)
        duplicate = copy_network(network)
        for tensor in (duplicate.features, duplicate.seen[0], duplicate.named["features"]):
            assert torch.equal(tensor, network.features)
            assert not tensor.requires_grad
            assert tensor.data_ptr() != network.features.data_ptr()
        assert torch.equal(duplicate(images()), expected)
        assert network.features.requires_grad
        torch.testing.assert_close(folded_copy(network)(images()), expected.detach())
        assert sum(calls_of(network, images().requires_grad_()).fast.values()) > 0

    def test_parameters_are_copied_deeply(self):
        network = layers()
        network[4].bias.requires_grad_(False)
        modules = nn.ModuleList([network, network[0]])
        duplicate = copy_network(modules)
        assert duplicate[0][0] is duplicate[1]
        for old, new in zip(modules.parameters(), duplicate.parameters(), strict=True):
            assert type(new) is nn.Parameter
            assert torch.equal(old, new)
            assert old.requires_grad == new.requires_grad
            assert old.data_ptr() != new.data_ptr()

    def test_backbone_that_keeps_features(self):
        class Backbone(nn.Sequential):
            def forward(self, x):
                self.features = super().forward(x)
                return self.features

        backbone = Backbone(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2)).double()
        before = reglib.TopGAPNet(backbone, 5, k=3, width=8, image_size=16).double()
        backbone(images())
        after = reglib.TopGAPNet(backbone, 5, k=3, width=8, image_size=16).double()
        after.load_state_dict(before.state_dict())
        x = torch.rand(2, 2, 16, 16).double()
        assert torch.equal(after(x), before(x))


PENALTIES = {
    "adversarial": lambda model, *step: reglib.adversarial_penalty(
        model, *step, **FGSM, n_steps=2, generator=generator(2)
    ),
    "cure": reglib.cure_penalty,
    "finite_difference": reglib.finite_difference_penalty,
    "score_matching": lambda model, *step: reglib.score_matching_penalty(
        model, *step, trace="taylor", generator=generator(2)
    ),
}
WRAPPERS = {
    "itself": nn.DataParallel,
    "a part of it": lambda model: nn.Sequential(nn.DataParallel(model[:3]), model[3:]),
    "a view of it": lambda model: nn.DataParallel(fast_double_backward(model)),
}


class TestDataParallel:
    @pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
    @pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
    def test_penalties_are_those_of_the_network(self, penalty, wrap):
        def step(model):
            x = images().requires_grad_()
            logits = model(x)
            statistics = {name: b.clone() for name, b in model.named_buffers()}
            values = penalty(model, logits, LABELS, x)
            assert all(torch.equal(b, statistics[name]) for name, b in model.named_buffers())
            return values, torch.autograd.grad(values.sum(), list(model.parameters()))

        (values, gradients), (expected, references) = step(wrap(layers())), step(layers())
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(gradients, references, rtol=1e-8, atol=1e-12)

    def test_shared_statistics_are_kept(self):
        network = layers()
        network.add_module("again", nn.Identity())
        network.again.register_buffer("mean", network[1].running_mean)
        before = network[1].running_mean.clone()
        forward_again(nn.DataParallel(network), images())
        assert network.again.mean is network[1].running_mean
        assert torch.equal(network[1].running_mean, before)


class TestAdversarialExamples:
    def settings(self):
        return FGSM | {"n_steps": 2, "generator": generator(2)}

    def test_are_the_same_under_no_grad(self):
        network = layers().eval()
        expected = adversarial_examples(network, images(), LABELS, **self.settings())
        for model in (network, evaluation_mode(network.train())):
            with torch.no_grad():
                examples = adversarial_examples(network.eval(), images(), LABELS, **self.settings())
                step, start = (model(images()), LABELS, images()), {"random_start": True}
                penalty = reglib.adversarial_penalty(network, *step, **self.settings() | start)
            torch.testing.assert_close(examples, expected)
            assert not examples.requires_grad
            assert (penalty > 0).all()

    def test_inference_mode_is_named(self):
        with torch.inference_mode(), pytest.raises(ValueError, match=r"or inference_mode\(\)"):
            adversarial_examples(layers().eval(), images(), LABELS, **self.settings())
