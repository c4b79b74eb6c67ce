"""Adversarial examples of linear networks, where the best ones are known."""

import pytest
import torch
import torch.nn.functional as F

from reglib.regularizers import adversarial_examples, adversarial_penalty
from tests.test_curvature import linear_network
from tests.test_gradients import generator
from tests.test_regularizers import LABELS, SETTINGS, images, network_of

WIDE = (-100.0, 100.0)


def attack(model, x, **changes):
    settings = {
        "epsilon": 0.3,
        "step_size": 0.1,
        "n_steps": 5,
        "pixel_range": WIDE,
        "generator": generator(),
    } | changes
    return adversarial_examples(model, x, LABELS, **settings)


class TestPenalty:
    def test_is_the_difference_of_losses(self):
        model, _, x, logits = linear_network()
        settings = {"epsilon": 0.3, "step_size": 0.3, "pixel_range": WIDE}
        values = adversarial_penalty(model, logits, LABELS, x, generator=generator(), **settings)
        moved = attack(model, x, step_size=0.3, n_steps=1, random_start=False)
        losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, moved)]
        torch.testing.assert_close(values, losses[1] - losses[0], rtol=1e-10, atol=0)
        assert (values > 0).all()

    def test_strength_one_trains_on_examples(self):
        model, _, x, logits = linear_network()
        settings = {"epsilon": 0.3, "step_size": 0.3, "pixel_range": WIDE}
        values = adversarial_penalty(model, logits, LABELS, x, generator=generator(), **settings)
        (F.cross_entropy(logits, LABELS) + values.mean()).backward(inputs=[model.weight])
        found, model.weight.grad = model.weight.grad, None
        moved = attack(model, x, step_size=0.3, n_steps=1, random_start=False)
        F.cross_entropy(model(moved), LABELS).backward(inputs=[model.weight])
        torch.testing.assert_close(found, model.weight.grad, rtol=1e-10, atol=1e-14)


class TestExamples:
    def test_fgsm_follows_the_sign(self):
        model, weight, x, logits = linear_network()
        errors = logits.softmax(1) - F.one_hot(LABELS, 4)
        found = attack(model, x, step_size=0.3, n_steps=1, random_start=False)
        expected = (x + 0.3 * (errors @ weight).sign()).detach()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)

    def test_euclidean_step_follows_the_gradient(self):
        model, weight, x, logits = linear_network()
        gradient = (logits.softmax(1) - F.one_hot(LABELS, 4)) @ weight
        found = attack(model, x, n_steps=1, random_start=False, norm="l2")
        expected = (x + 0.1 * gradient / gradient.norm(dim=1, keepdim=True)).detach()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("norm", ["linf", "l2"])
    @pytest.mark.parametrize("random_start", [True, False])
    def test_many_steps_end_on_the_sphere(self, norm, random_start):
        model = network_of(SETTINGS["without batch normalisation"])
        x = images().clamp(-1, 1)
        found = attack(model, x, norm=norm, random_start=random_start, n_steps=20)
        order = float("inf") if norm == "linf" else 2
        lengths = torch.linalg.vector_norm((found - x).flatten(1), ord=order, dim=1)
        torch.testing.assert_close(lengths, torch.full((3,), 0.3).double(), rtol=1e-6, atol=0)
        inside = attack(model, x, norm=norm, random_start=random_start, pixel_range=(-1, 1))
        assert inside.amin() >= -1
        assert inside.amax() <= 1
        losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, found)]
        assert (losses[1] > losses[0]).all()

    @pytest.mark.parametrize("norm", ["linf", "l2"])
    def test_random_starts_within_the_ball(self, norm):
        model = network_of(SETTINGS["without batch normalisation"])
        still = {"step_size": 1e-12, "n_steps": 1, "norm": norm}
        starts = [attack(model, images(), generator=generator(s), **still) for s in (1, 1, 2)]
        assert torch.equal(starts[0], starts[1])
        change = (starts[2] - images()).flatten(1)
        assert not torch.equal(starts[0], starts[2])
        length = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
        assert ((length > 0) & (length < 0.3 + 1e-9)).all()

    @pytest.mark.parametrize("name", ["epsilon", "step_size", "n_steps"])
    def test_settings_that_are_not_positive(self, name):
        model, _, x, _ = linear_network()
        with pytest.raises(ValueError, match=f"{name}: expected a positive number, got 0"):
            attack(model, x, **{name: 0})

    def test_unknown_norm(self):
        model, _, x, _ = linear_network()
        with pytest.raises(ValueError, match="norm: expected linf or l2, got 'l_2'"):
            attack(model, x, norm="l_2")
