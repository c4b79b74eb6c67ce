"""Attacks on linear networks, whose worst perturbation is known."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from suite import attacks
from suite.attacks import ATTACKS, auto_attack, fgsm, judged, pgd
from suite.errors import UsageError

SIDE = 8
FAST = {
    "auto_attack": {"steps": 10, "queries": 40, "n_targets": 2},
    "fgsm": {},
    "pgd": {"steps": 20, "relative_step": 0.2},
}
each_attack = pytest.mark.parametrize("name", ATTACKS)
each_gradient_attack = pytest.mark.parametrize("name", ["fgsm", "pgd"])
each_norm = pytest.mark.parametrize("norm", ["linf", "l2"])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(name, *arguments, seed=0, **settings):
    if name != "fgsm":
        settings = FAST[name] | {"generator": generator(seed)} | settings
    return ATTACKS[name](*arguments, **settings)


class Linear(nn.Sequential):
    """Logits (w x + offset, 0, -1000, -1001)."""

    def __init__(self, weight, offset=0.0):
        super().__init__(nn.Flatten(), nn.Linear(weight.numel(), 4))
        self[1].weight.data.zero_()
        self[1].weight.data[0] = weight.flatten()
        self[1].bias.data = torch.tensor([offset, 0.0, -1000.0, -1001.0])
        self.eval()


def images(count=40):
    """Make images far enough from 0 and 1 that the range does not bind."""
    return 0.3 + 0.4 * torch.rand(count, 2, SIDE, SIDE, generator=generator(1))


def weight(constant=False):
    if constant:
        return torch.ones(2, SIDE, SIDE) / (2 * SIDE * SIDE)
    return torch.randn(2, SIDE, SIDE, generator=generator(2))


def dual_norm(w, norm):
    """Return the largest change of w x by a perturbation of norm 1."""
    return float(w.abs().sum() if norm == "linf" else w.norm())


def size(change, norm):
    change = change.flatten(1)
    return change.abs().amax(1) if norm == "linf" else change.norm(dim=1)


def assert_changes_what_the_worst_changes(name, norm="linf", *, near=0.95, scale=1.0, **settings):
    """Attack 40 images on both sides of the boundary; `near` is a share of what can be reached."""
    w, x = weight(constant=settings.get("parts") == ["square"]), images()
    epsilon = 0.01 if norm == "linf" else 0.1
    reach = scale * epsilon * dual_norm(w, norm)
    # No image lies on the boundary itself, where FAB's smallest change rounds to none.
    network = Linear(w, 0.1 * reach / scale - float((x.flatten(1) @ w.flatten()).median()))
    for parameter in network.parameters():
        parameter.data *= scale
    margin = network(x)[:, 0].abs().detach()
    changed, far = margin < near * reach, margin > 1.001 * reach
    assert changed.sum() > 5
    assert far.sum() > 5
    found = run(name, network, x, torch.zeros(40).long(), epsilon=epsilon, norm=norm, **settings)
    assert not found.unchanged[changed].any()
    assert found.unchanged[far].all()
    assert (size(found.images - x, norm) <= epsilon * (1 + 1e-4)).all()


class TestPredictionsChangeWhereTheWorstPerturbationChangesThem:
    @each_gradient_attack
    @each_norm
    def test_by_gradients(self, name, norm):
        assert_changes_what_the_worst_changes(name, norm)

    @pytest.mark.parametrize(
        ("part", "norm"),
        [(part, norm) for part in attacks.AUTO_ATTACK for norm in ("linf", "l2")][:-1],
    )
    def test_by_parts_of_the_ensemble(self, part, norm):
        settings = {"parts": [part], "steps": 20, "queries": 300}
        settings |= {"near": 0.5} if part == "square" else {}
        assert_changes_what_the_worst_changes("auto_attack", norm, **settings)


class TestGradientAttacks:
    @each_gradient_attack
    @each_norm
    def test_perturbation_is_the_worst(self, name, norm):
        w, x = weight(), images(3)
        network = Linear(w, offset=float(-(x.flatten(1) @ w.flatten()).min()) + 0.5)
        direction = w.sign() if norm == "linf" else w / w.norm()
        found = run(name, network, x, torch.zeros(3).long(), epsilon=0.05, norm=norm)
        atol = 1e-6 if norm == "linf" or name == "fgsm" else 2e-3
        torch.testing.assert_close(found.images, x - 0.05 * direction, rtol=0, atol=atol)

    def test_default_steps_cross_the_ball(self):
        w, x = weight(), images(20)
        network = Linear(w, offset=float(-(x.flatten(1) @ w.flatten()).min()) + 0.5)
        worst = x - 0.03 * w.sign()

        def distance(steps):
            found = pgd(
                network, x, torch.zeros(20).long(), epsilon=0.03, steps=steps, generator=generator()
            )
            return float((found.images - worst).abs().max())

        assert distance(20) == pytest.approx(0.03 * 4 / 3, rel=0.01)
        assert distance(60) == pytest.approx(0, abs=1e-6)

    def test_restarts_find_more(self):
        """A bump that only a start near one corner of the ball can climb."""

        class Bump(nn.Module):
            def forward(self, x):
                inside = (
                    (x - 0.5).flatten(1).amin(1)
                )  # above 0.05: all values of the start are high
                return torch.stack([0.02 - inside, torch.zeros_like(inside)], 1)

        x = torch.full((60, 1, 1, 2), 0.5)
        settings = {"epsilon": 0.05, "steps": 1, "relative_step": 1e-6}
        labels = torch.zeros(60).long()
        one, many = (
            pgd(Bump(), x, labels, restarts=n, generator=generator(), **settings).unchanged.sum()
            for n in (1, 6)
        )
        assert one < 60
        assert many < one - 10


class TestEachAttack:
    def test_images_stay_in_range(self):
        x = torch.rand(6, 2, SIDE, SIDE, generator=generator(3)).round()
        for name in ATTACKS:
            found = run(name, Linear(weight()), x, torch.zeros(6).long(), epsilon=0.2)
            assert 0 <= found.images.min() <= found.images.max() <= 1

    def test_robust_is_not_correct(self):
        w, x = weight(), images(4)
        network = Linear(w, offset=50.0)  # far from the boundary: always class 0
        found = fgsm(network, x, torch.tensor([0, 1, 0, 2]), epsilon=0.01)
        assert found.unchanged.tolist() == [True] * 4
        assert found.correct.tolist() == [True, False, True, False]
        weak = Linear(w, offset=float(-(x.flatten(1) @ w.flatten()).max()) + 1e-3)
        found = fgsm(weak, x, torch.tensor([0, 0, 1, 1]), epsilon=0.2)
        assert found.unchanged.tolist() == [False] * 4
        assert found.correct.tolist() == [False] * 4

    def test_judged_on_another_network(self):
        w, x = weight(), images(4)
        near, far = (Linear(w, float(d - (x.flatten(1) @ w.flatten()).min())) for d in (0.1, 90.0))
        labels = torch.zeros(4).long()
        attacked = fgsm(near, x, labels, epsilon=0.2)
        assert not attacked.unchanged.any()
        assert judged(far, x, attacked.images, labels).unchanged.all()
        assert not judged(near, x, attacked.images, labels).unchanged.any()

    @pytest.mark.parametrize("name", sorted(ATTACKS.keys() - {"fgsm"}))
    def test_generator_decides(self, name):
        x, labels = images(4), torch.zeros(4).long()
        network, settings = Linear(weight(), offset=20.0), {}
        if name == "auto_attack":  # which gives images back as they were where it fails
            network = Linear(
                weight(), offset=float(0.02 - (x.flatten(1) @ weight().flatten()).min())
            )
            settings = {"parts": ["square"]}
        first, again, other = (
            run(name, network, x, labels, epsilon=0.01, seed=seed, **settings).images
            for seed in (5, 5, 6)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_batches_change_nothing(self, monkeypatch):
        x, labels = images(10), torch.zeros(10).long()
        network = Linear(weight(), offset=float(-(x.flatten(1) @ weight().flatten()).median()))
        together = fgsm(network, x, labels, epsilon=0.02)
        monkeypatch.setattr("suite.attacks.BATCH_SIZE", 3)
        apart = fgsm(network, x, labels, epsilon=0.02)
        assert torch.equal(together.images, apart.images)
        assert torch.equal(together.unchanged, apart.unchanged)

    @each_attack
    def test_leaves_everything_alone(self, name):
        network = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)
        )
        before = copy.deepcopy(network.state_dict())
        x = images(4)
        kept = x.clone()
        states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        run(name, network, x, torch.zeros(4).long(), epsilon=0.01)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (np.random.get_state()[1] == states[1]).all()
        assert random.getstate() == states[2]
        assert network.training
        assert torch.equal(x, kept)
        assert all(p.grad is None and p.requires_grad for p in network.parameters())
        assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


REFUSED = {
    "norm": (fgsm, {"norm": "l1"}, UsageError, "unknown norm 'l1'"),
    "steps": (pgd, {"steps": 0}, ValueError, "steps: expected a positive number, got 0"),
    "parts": (
        auto_attack,
        {"parts": ["apgd-ce", "fab"]},
        UsageError,
        "unknown part of AutoAttack 'fab': did you mean 'fab-t'",
    ),
    "none": (auto_attack, {"parts": []}, UsageError, r"parts: expected some of .*, got none"),
}


class TestRefused:
    @each_attack
    def test_images_outside_the_range(self, name):
        with pytest.raises(
            ValueError, match=r"expected values in \[0, 1\], got -1 to 1; make what"
        ):
            run(
                name,
                Linear(weight()),
                2 * images(2).round() - 1,
                torch.zeros(2).long(),
                epsilon=0.1,
            )

    @each_attack
    @pytest.mark.parametrize("epsilon", [0.0, -0.1, 8.0, float("nan")])
    def test_epsilon_outside_the_range(self, name, epsilon):
        with pytest.raises(
            ValueError, match=r"epsilon: expected a number above 0 and up to 1, .*8/255"
        ):
            run(name, Linear(weight()), images(2), torch.zeros(2).long(), epsilon=epsilon)

    @pytest.mark.parametrize(
        ("attack", "settings", "error", "message"), REFUSED.values(), ids=REFUSED
    )
    def test_settings(self, attack, settings, error, message):
        given = {"epsilon": 0.1} | ({} if attack is fgsm else {"generator": generator()}) | settings
        with pytest.raises(error, match=message):
            attack(Linear(weight()), images(2), torch.zeros(2).long(), **given)

    def test_networks(self):
        network, given = Linear(weight()), (images(2), torch.zeros(2).long())
        settings = {"epsilon": 0.1, "generator": generator()}
        two = nn.Sequential(nn.Flatten(), nn.Linear(2 * SIDE * SIDE, 2))
        message = "four classes or more for 'apgd-t', got 2; leave it out"
        with pytest.raises(ValueError, match=message):
            auto_attack(two, *given, **settings)
        network[1].bias.data[0] = torch.nan
        with pytest.raises(ValueError, match="model: expected finite logits"):
            auto_attack(network, *given, **settings)

    def test_largest_euclidean_change(self):
        network, x, labels = Linear(weight()), images(2), torch.zeros(2).long()
        fgsm(network, x, labels, epsilon=11.0, norm="l2")
        with pytest.raises(ValueError, match=r"up to 11\.31"):
            fgsm(network, x, labels, epsilon=12.0, norm="l2")


class TestEnsemble:
    def test_changes_what_the_worst_changes(self):
        assert_changes_what_the_worst_changes("auto_attack")

    def test_small_logits_hide_nothing(self):
        """Of logits of 1e-9 gradients of cross-entropy round to the same, their ratio does not."""
        settings = {"parts": ["apgd-t"], "steps": 20}
        assert_changes_what_the_worst_changes("auto_attack", scale=1e-9, **settings)

    @pytest.mark.parametrize("settings", [{"parts": ["square"], "queries": 300}, {}])
    def test_queries_reach_the_bound(self, settings):
        w, x = weight(constant=True), images()
        epsilon = 0.03
        offsets = torch.linspace(-2, 2, 40) * epsilon - x.flatten(1) @ w.flatten()
        for factor, changed in ((0.5, True), (1.01, False)):
            chosen = (offsets + x.flatten(1) @ w.flatten()).abs() / epsilon
            chosen = chosen < factor if changed else chosen > factor
            for b in chosen.nonzero()[:3, 0]:
                network = Linear(w, offset=float(offsets[b]))
                given = network, x[b : b + 1], torch.tensor([0])
                found = run("auto_attack", *given, epsilon=epsilon, **settings)
                assert found.unchanged.tolist() == [not changed]
                assert float(size(found.images - x[b : b + 1], "linf")) <= epsilon * (1 + 1e-4)

    def test_robust_images_withstand_all_parts(self, monkeypatch):
        """Two parts that blacken one value of those images whose first pixel they are made for."""
        network, x = Linear(weight(), offset=0.0), torch.full((5, 2, SIDE, SIDE), 0.5)
        network[1].weight.data.zero_()
        network[1].weight.data[0, -1], network[1].bias.data[0] = (
            1.0,
            -0.25,
        )  # the last value decides
        x[:, 0, 0, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.2])
        tried = []

        def blacken(*levels):
            def perturb(self, images, predicted):
                tried.append(images[:, 0, 0, 0].tolist())
                result = images.clone()
                for image in result:
                    if any(torch.isclose(image[0, 0, 0], torch.tensor(level)) for level in levels):
                        image[-1, -1, -1] = 0.0
                return result

            return perturb

        monkeypatch.setattr("pyautoattack.autopgd_base.APGDAttack.perturb", blacken(0.2))
        monkeypatch.setattr("pyautoattack.square.SquareAttack.perturb", blacken(0.2, 0.3))
        settings = {"epsilon": 0.1, "parts": ["apgd-ce", "square"]}
        found = run("auto_attack", network, x, torch.tensor([0, 0, 0, 1, 1]), **settings)
        expected = [0.1, 0.2, 0.3, 0.4, 0.2], [0.1, 0.3, 0.4]
        assert tried == [pytest.approx(levels) for levels in expected]
        assert found.unchanged.tolist() == [True, False, False, True, False]
        assert found.correct.tolist() == [True, False, False, False, False]
        assert found.images[:, -1, -1, -1].tolist() == [0.5, 0.0, 0.0, 0.5, 0.0]

    @each_norm
    @pytest.mark.parametrize("shape", [(16, 8), (8, 16), (40, 6)])
    def test_square_on_oblong_images(self, shape, norm):
        """The network looks at one corner, which some square must have covered."""
        corner = torch.zeros(1, *shape)
        corner[:, :2, :2] = 1 / 4
        network = nn.Sequential(nn.Flatten(), nn.Linear(corner.numel(), 2))
        network[1].weight.data = torch.stack([corner.flatten(), -corner.flatten()])
        network[1].bias.data = torch.tensor([-0.5, 0.5])
        x = torch.full((3, 1, *shape), 0.52)
        settings = {"parts": ["square"], "queries": 400, "norm": norm}
        epsilon = 0.1 if norm == "linf" else 0.5
        found = run(
            "auto_attack", network.eval(), x, torch.zeros(3).long(), epsilon=epsilon, **settings
        )
        assert not found.unchanged.any()
        assert (size(found.images - x, norm) <= epsilon * (1 + 1e-4)).all()

    def test_aiming_at_other_classes(self):
        w = weight()
        network, x = Linear(w, offset=50.0), images(3)
        network[1].weight.data[2] = -4 * w.flatten()  # class 2 comes near faster than class 1
        network[1].bias.data[2] = 0.0
        reach = 5 * 0.2 * dual_norm(w, "linf")
        margin = (network(x)[:, 0] - network(x)[:, 2]).detach()
        network[1].bias.data[2] = float(margin.max()) - 0.8 * reach
        settings = {"epsilon": 0.2, "parts": ["apgd-t"]}
        found = run("auto_attack", network, x, torch.zeros(3).long(), **settings)
        assert not found.unchanged.any()
        assert (network(found.images).argmax(1) == 2).all()

    def test_layout_changes_nothing(self):
        torch.manual_seed(0)
        layers = (
            nn.Conv2d(3, 8, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
        network = nn.Sequential(*layers).eval()
        x = torch.rand(6, 3, 8, 8)
        labels = network(x).argmax(1)
        settings = {"steps": 3, "n_targets": 2, "queries": 5, "epsilon": 0.3}
        plain = auto_attack(
            network, x, labels, generator=torch.Generator().manual_seed(0), **settings
        )
        network = network.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
        found = auto_attack(
            network, x, labels, generator=torch.Generator().manual_seed(0), **settings
        )
        torch.testing.assert_close(found.images, plain.images, rtol=1e-3, atol=1e-3)
