"""Adversarial examples against closed forms of linear networks."""

import pytest
import torch
import torch.nn.functional as F

from reglib._common import unit_length
from reglib.regularizers import adversarial_examples, adversarial_penalty
from tests.small_batches import generator
from tests.test_curvature import linear_network
from tests.test_regularizers import LABELS, SETTINGS, images, network_of

WIDE = (-100.0, 100.0)


def attack(model, x, **changes):
    settings = {"epsilon": 0.3, "step_size": 0.1, "n_steps": 5, "pixel_range": WIDE}
    settings |= {"generator": generator()} | changes
    return adversarial_examples(model, x, LABELS, **settings)


def test_unit_length_of_extreme_gradients():
    for dtype, size in ((torch.float64, 1e-200), (torch.float32, 1e-30), (torch.float16, 6e4)):
        values = unit_length(torch.tensor([[size] * 4, [0.0] * 4], dtype=dtype))
        torch.testing.assert_close(values, torch.tensor([[0.5] * 4, [0.0] * 4], dtype=dtype))


def test_penalty_is_the_difference_of_losses():
    model, _, x, _ = linear_network()
    logits = model(x)
    settings = {"epsilon": 0.3, "step_size": 0.3, "pixel_range": WIDE, "generator": generator()}
    values = adversarial_penalty(model, logits, LABELS, x, **settings)
    moved = attack(model, x, step_size=0.3, n_steps=1, random_start=False)
    losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, moved)]
    torch.testing.assert_close(values, losses[1] - losses[0], rtol=1e-10, atol=0)
    assert (values > 0).all()
    total, on_examples = F.cross_entropy(logits, LABELS) + values.mean(), losses[1].mean()
    gradient, expected = (torch.autograd.grad(y, model.weight)[0] for y in (total, on_examples))
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)


class TestExamples:
    @pytest.mark.parametrize("norm", ["linf", "l2"])
    def test_one_step_follows_the_gradient(self, norm):
        """FGSM by its signs, in the Euclidean norm by its direction."""
        model, weight, x, logits = linear_network()
        gradient = (logits.softmax(1) - F.one_hot(LABELS, 4)) @ weight
        euclidean = 0.1 * gradient / gradient.norm(dim=1, keepdim=True)
        moves = {"linf": (0.3, 0.3 * gradient.sign()), "l2": (0.1, euclidean)}
        step_size, move = moves[norm]
        examples = attack(model, x, step_size=step_size, n_steps=1, random_start=False, norm=norm)
        torch.testing.assert_close(examples, (x + move).detach(), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("norm", ["linf", "l2"])
    @pytest.mark.parametrize("random_start", [True, False])
    def test_many_steps_end_on_the_sphere(self, norm, random_start):
        model, x = network_of(SETTINGS["without batch normalisation"]), images().clamp(-1, 1)
        options = {"norm": norm, "random_start": random_start}
        examples = attack(model, x, n_steps=20, **options)
        lengths = (examples - x).flatten(1).norm(float("inf") if norm == "linf" else 2, dim=1)
        torch.testing.assert_close(lengths, torch.full((3,), 0.3).double(), rtol=1e-6, atol=0)
        assert attack(model, x, pixel_range=(-1, 1), **options).abs().amax() <= 1
        losses = [F.cross_entropy(model(z), LABELS, reduction="none") for z in (x, examples)]
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
