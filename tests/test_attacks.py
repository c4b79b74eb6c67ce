"""Attacks on linear networks, for which the worst perturbation is known."""

import random
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from suite.attacks import ATTACKS, AUTO_ATTACK, fgsm, judge_attack, pgd
from suite.errors import UsageError
from tests.small_batches import generator, left_alone

SIDE = 8
FAST = {"pgd": {"steps": 20, "relative_step": 0.2}}
FAST |= {"auto_attack": {"steps": 10, "queries": 40, "n_targets": 2}}
NORMS = "linf", "l2"
each_attack = pytest.mark.parametrize("name", ATTACKS)


def run(name, network, x, *, seed=0, **settings):
    if name != "fgsm":
        settings = FAST[name] | {"generator": generator(seed)} | settings
    return ATTACKS[name](network, x, **settings)


def keeps_prediction(network, x, attacked):
    return judge_attack(network, x, attacked, torch.zeros(len(x)).long()).unchanged


class Linear(nn.Sequential):
    """Logits (w x + offset, 0, -1000, -1001)."""

    def __init__(self, weight, offset=0.0):
        super().__init__(nn.Flatten(), nn.Linear(weight.numel(), 4))
        self[1].weight.data.zero_()
        self[1].weight.data[0] = weight.flatten()
        self[1].bias.data = torch.tensor([offset, 0.0, -1000.0, -1001.0])
        self.eval()


def images(count=40):
    """Return images so far from 0 and 1 that perturbations stay in range."""
    return 0.3 + 0.4 * torch.rand(count, 2, SIDE, SIDE, generator=generator(1))


def weight(constant=False):
    if constant:
        return torch.ones(2, SIDE, SIDE) / (2 * SIDE * SIDE)
    return torch.randn(2, SIDE, SIDE, generator=generator(2))


def scores(w, x):
    return x.flatten(1) @ w.flatten()


def size(change, norm):
    change = change.flatten(1)
    return change.abs().amax(1) if norm == "linf" else change.norm(dim=1)


def assert_near_worst(name, norm="linf", *, near=0.95, scale=1.0, **settings):
    """Attack 40 images on either side of the boundary.

    Predictions have to change where the worst perturbation changes them: up to a share `near` of
    its largest change of the margin.
    """
    w, x = weight(constant=settings.get("parts") == ["square"]), images()
    epsilon = 0.01 if norm == "linf" else 0.1
    # The largest change of w x under the perturbation.
    reach = scale * epsilon * float(w.abs().sum() if norm == "linf" else w.norm())
    # No image lies on the boundary, where FAB's smallest change rounds to zero.
    network = Linear(w, 0.1 * reach / scale - float(scores(w, x).median()))
    for parameter in network.parameters():
        parameter.data *= scale
    margin = network(x)[:, 0].abs().detach()
    changed, far = margin < near * reach, margin > 1.001 * reach
    assert changed.sum() > 5
    assert far.sum() > 5
    attacked = run(name, network, x, epsilon=epsilon, norm=norm, **settings)
    stays = keeps_prediction(network, x, attacked)
    assert not stays[changed].any()
    assert stays[far].all()
    assert (size(attacked - x, norm) <= epsilon * (1 + 1e-4)).all()


class TestNearWorst:
    @pytest.mark.parametrize(
        ("name", "norm"), [*product(("fgsm", "pgd"), NORMS), ("auto_attack", "linf")]
    )
    def test_attack(self, name, norm):
        assert_near_worst(name, norm)

    @pytest.mark.parametrize(("part", "norm"), [*product(AUTO_ATTACK, NORMS)][:-1])
    def test_part_of_ensemble(self, part, norm):
        settings = {"parts": [part], "steps": 20, "queries": 300}
        settings |= {"near": 0.5} if part == "square" else {}
        assert_near_worst("auto_attack", norm, **settings)


class TestGradientAttacks:
    def test_default_steps_cross_the_ball(self):
        w, x = weight(), images(20)
        network = Linear(w, offset=float(-scores(w, x).min()) + 0.5)
        worst = x - 0.03 * w.sign()
        for steps, distance in ((20, 0.03 * 4 / 3), (60, 0)):
            moved = pgd(network, x, epsilon=0.03, steps=steps, generator=generator())
            assert float((moved - worst).abs().max()) == pytest.approx(distance, rel=0.01, abs=1e-6)


class TestEachAttack:
    def test_images_stay_in_range(self):
        x = torch.rand(6, 2, SIDE, SIDE, generator=generator(3)).round()
        for name in ATTACKS:
            attacked = run(name, Linear(weight()), x, epsilon=0.2)
            assert 0 <= attacked.min() <= attacked.max() <= 1

    def test_robust_is_not_correct(self):
        w, x = weight(), images(4)
        network = Linear(w, offset=50.0)  # far from the boundary: always class 0
        after = judge_attack(network, x, fgsm(network, x, epsilon=0.01), torch.tensor([0, 1, 0, 2]))
        assert after.unchanged.tolist() == [True] * 4
        assert after.correct.tolist() == [True, False, True, False]
        weak, labels = Linear(w, float(1e-3 - scores(w, x).max())), torch.tensor([0, 0, 1, 1])
        attacked = fgsm(weak, x, epsilon=0.2)
        assert not any(map(torch.any, judge_attack(weak, x, attacked, labels)))
        assert judge_attack(network, x, attacked, labels).unchanged.all()

    @pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"fgsm"}))
    def test_generator_decides(self, name):
        x = images(4)
        network, settings = Linear(weight(), offset=20.0), {}
        if name == "auto_attack":  # returns the original images where it fails
            network = Linear(weight(), offset=float(0.02 - scores(weight(), x).min()))
            settings = {"parts": ["square"]}
        settings |= {"epsilon": 0.01}
        first, again, third = (run(name, network, x, seed=n, **settings) for n in (5, 5, 6))
        assert torch.equal(first, again)
        assert not torch.equal(first, third)

    def test_batches_change_nothing(self, monkeypatch):
        x = images(10)
        network = Linear(weight(), offset=float(-scores(weight(), x).median()))
        together = fgsm(network, x, epsilon=0.02)
        expected = keeps_prediction(network, x, together)
        monkeypatch.setattr("suite.attacks.BATCH_SIZE", 3)
        assert torch.equal(together, fgsm(network, x, epsilon=0.02))
        assert torch.equal(expected, keeps_prediction(network, x, together))

    @each_attack
    def test_has_no_side_effects(self, name):
        layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)
        network, x = nn.Sequential(*layers), images(4)
        states = np.random.get_state()[1].copy(), random.getstate()
        with left_alone(network, x):
            judge_attack(network, x, run(name, network, x, epsilon=0.01), torch.zeros(4).long())
        assert (np.random.get_state()[1] == states[0]).all()
        assert random.getstate() == states[1]


TWO = nn.Sequential(nn.Flatten(), nn.Linear(2 * SIDE * SIDE, 2))
UNKNOWN = "unknown part of AutoAttack 'fab': did you mean 'fab-t'"
FOUR = "four classes or more for 'apgd-t', got 2; leave it out"
TEN = Linear(weight())
REFUSED = [  # attack, network, settings, error, message
    ("fgsm", TEN, {"norm": "l1"}, UsageError, "unknown norm 'l1'"),
    ("fgsm", TEN, {"epsilon": 12.0, "norm": "l2"}, ValueError, r"up to 11\.31"),
    ("pgd", TEN, {"steps": 0}, ValueError, "steps: expected a positive number, got 0"),
    ("auto_attack", TEN, {"parts": ["apgd-ce", "fab"]}, UsageError, UNKNOWN),
    ("auto_attack", TEN, {"parts": []}, UsageError, "parts: expected some of .*, got none"),
    ("auto_attack", TWO, {"parts": [*AUTO_ATTACK]}, ValueError, FOUR),
    ("auto_attack", Linear(weight(), torch.nan), {}, ValueError, "model: expected finite logits"),
]


class TestRefused:
    @each_attack
    def test_values_outside_the_range(self, name):
        network, x = Linear(weight()), images(2)
        message = r"expected values in \[0, 1\], got -1 to 1; make what"
        with pytest.raises(ValueError, match=message):
            run(name, network, 2 * x.round() - 1, epsilon=0.1)
        message = "epsilon: expected a number above 0 and up to 1, .*8/255"
        for epsilon in (0.0, -0.1, 8.0, float("nan")):
            with pytest.raises(ValueError, match=message):
                run(name, network, x, epsilon=epsilon)
        fgsm(network, x, epsilon=11.0, norm="l2")  # accepted up to 11.31

    @pytest.mark.parametrize(("name", "network", "settings", "error", "message"), REFUSED)
    def test_settings_and_networks(self, name, network, settings, error, message):
        options = {"epsilon": 0.1, **settings}
        with pytest.raises(error, match=message):
            run(name, network, images(2), **options)


class TestEnsemble:
    def test_robust_images_survive_all_parts(self, monkeypatch):
        """Run two parts that blacken one value of images whose first pixel has certain levels."""
        network, x = Linear(weight(), offset=0.0), torch.full((5, 2, SIDE, SIDE), 0.5)
        network[1].weight.data.zero_()
        network[1].weight.data[0, -1] = 1.0  # the last value decides
        network[1].bias.data[0] = -0.25
        x[:, 0, 0, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.2])
        attacked_levels = []

        def blacken(*levels):
            def perturb(self, images, predicted):
                first_pixels, result = images[:, 0, 0, 0], images.clone()
                attacked_levels.append(first_pixels.tolist())
                result[torch.isin(first_pixels, torch.tensor(levels)), -1, -1, -1] = 0.0
                return result

            return perturb

        monkeypatch.setattr("pyautoattack.autopgd_base.APGDAttack.perturb", blacken(0.2))
        monkeypatch.setattr("pyautoattack.square.SquareAttack.perturb", blacken(0.2, 0.3))
        settings = {"epsilon": 0.1, "parts": ["apgd-ce", "square"]}
        attacked = run("auto_attack", network, x, **settings)
        outcome = judge_attack(network, x, attacked, torch.tensor([0, 0, 0, 1, 1]))
        expected = [0.1, 0.2, 0.3, 0.4, 0.2], [0.1, 0.3, 0.4]
        assert attacked_levels == [pytest.approx(levels) for levels in expected]
        assert outcome.unchanged.tolist() == [True, False, False, True, False]
        assert outcome.correct.tolist() == [True, False, False, False, False]
        assert attacked[:, -1, -1, -1].tolist() == [0.5, 0.0, 0.0, 0.5, 0.0]

    def test_layout_changes_nothing(self):
        torch.manual_seed(0)
        first = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        network = nn.Sequential(*first, nn.Flatten(), nn.Linear(8, 5)).eval()
        x = torch.rand(6, 3, 8, 8)
        settings = {"steps": 3, "n_targets": 2, "queries": 5, "epsilon": 0.3}
        plain = run("auto_attack", network, x, **settings)
        network = network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
        attacked = run("auto_attack", network, x, **settings)
        torch.testing.assert_close(attacked, plain, rtol=1e-3, atol=1e-3)
