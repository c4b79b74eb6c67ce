"""Measures of the marginal-density chapter against closed forms and other programs."""

import math

import pytest
import scipy.stats
import torch
from torch import nn

from suite.metrics import (
    OOD_SCORES,
    auroc,
    chunks,
    density_change,
    density_gradients,
    feature_leakage,
    gradient_change,
    group_accuracies,
    logit_auroc,
    logit_gradients,
    maximise_activation,
)
from suite.metrics.saliency import integrated_gradients, logit_gradient
from suite.networks import build_network
from tests.test_metrics import LABELS, generator, linear_network, random_images


class TestLogitGradients:
    def test_density_is_the_weighted_mean(self):
        model = build_network("lenet5", (1, 12, 12), 3, options={}, seed=2).double().eval()
        images = random_images(3, 1, 12, 12).requires_grad_()
        logits = model(images)
        rows = [
            torch.autograd.grad(f.sum(), images, retain_graph=True)[0] for f in logits.unbind(1)
        ]
        each = torch.stack(rows, 1).flatten(2)
        density = torch.autograd.grad(logits.logsumexp(1).sum(), images)[0].flatten(1)
        own = each[range(3), LABELS]
        found = logit_gradients(model, images, LABELS)
        torch.testing.assert_close(found.label, own.norm(dim=1))
        torch.testing.assert_close(found.others, (each.norm(dim=2).sum(1) - found.label) / 2)
        torch.testing.assert_close(found.cosine, torch.cosine_similarity(own, density))
        p = logits.softmax(1)[range(3), LABELS].detach()
        torch.testing.assert_close(found.probability, p)

    def test_of_a_sure_network(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        sure = nn.Sequential(*model)
        with torch.no_grad():
            sure[-1].bias.fill_(-100.0)
            sure[-1].bias[1] = 100.0
        found = logit_gradients(sure, images, torch.ones(3).long())
        torch.testing.assert_close(found.cosine, torch.ones(3).double())


def null_masks():
    """Mark the upper half of image 0, the lower ones of the others."""
    masks = torch.zeros(3, 1, 4, 4, dtype=torch.bool)
    masks[0, :, :2] = masks[1:, :, 2:] = True
    return masks


class TestFeatureLeakage:
    def test_of_a_linear_network(self):
        """Integrated Gradients are w x."""
        model, images = linear_network(32), random_images(3, 2, 4, 4)
        maps = model[1].weight.detach()[LABELS].view_as(images) * images
        kept = torch.stack([maps[0, :, :2], maps[1, :, 2:], maps[2, :, 2:]]).flatten(1)
        given = integrated_gradients(model, images, LABELS), null_masks()
        torch.testing.assert_close(feature_leakage(*given), kept.norm(dim=1))
        share = kept.norm(dim=1) / maps.flatten(1).norm(dim=1)
        torch.testing.assert_close(feature_leakage(*given, relative=True), share)

    @pytest.mark.parametrize(
        ("masks", "text"),
        [
            (
                torch.ones(3, 1, 4, 5).bool(),
                r"shape \(3, 1, 4, 4\) .* got torch.bool of shape \(3, 1, 4, 5\)",
            ),
            (torch.ones(1, 1, 4, 4).bool(), r"shape \(3, 1, 4, 4\)"),
            (torch.ones(3, 1, 4, 4), r"booleans .* got torch.float32"),
            (
                torch.eye(3).bool()[:, 1].view(3, 1, 1, 1).expand(3, 1, 4, 4),
                "got an empty mask for image 0",
            ),
        ],
    )
    def test_refuses_masks(self, masks, text):
        with pytest.raises(ValueError, match=f"masks: expected .*{text}"):
            feature_leakage(random_images(3, 2, 4, 4), masks)


class Square(nn.Module):
    """Logits of half the squared norm times 1, 2, 3: gradients are multiples of x."""

    def forward(self, x):
        return x.square().flatten(1).sum(1, keepdim=True) / 2 * torch.tensor([[1.0, 2.0, 3.0]])


def noises(n_samples, std, shape=(1, 4, 4)):
    source = generator(5)
    return [
        std * torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(n_samples)
    ]


class TestGradientChange:
    def test_absolute_is_the_norm_of_the_difference(self):
        model = build_network("lenet5", (1, 12, 12), 3, options={}, seed=2).double().eval()
        images = random_images(3, 1, 12, 12)
        norms = logit_gradient(model, images, LABELS).flatten(1).norm(dim=1)
        both = [
            gradient_change(
                model, images, LABELS, generator=generator(), noise_std=0.1, relative=relative
            )
            for relative in (True, False)
        ]
        torch.testing.assert_close(both[1], both[0] * norms)

    def test_of_a_quadratic(self):
        images = random_images(3, 1, 4, 4)
        found = gradient_change(
            Square().eval(), images, LABELS, generator=generator(5), noise_std=0.3, n_samples=4
        )
        expected = sum(noise.norm() for noise in noises(4, 0.3)) / 4
        torch.testing.assert_close(found, expected / images.flatten(1).norm(dim=1))


class Shifted(nn.Module):
    """Logits plus a function of the image, the same for all classes."""

    def __init__(self, network, scale):
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, x):
        return self.network(x) + self.scale * x.square().flatten(1).sum(1, keepdim=True)


class TestDensity:
    @pytest.mark.parametrize("chunk", [1, 2**20])
    def test_change_agrees_with_its_formula(self, chunk, monkeypatch):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        found = density_change(model, images, generator=generator(5), noise_std=0.3, n_samples=4)
        weight = model[1].weight.detach()
        changes = [weight @ noise.flatten() for noise in noises(4, 0.3)]
        published = sum(change.exp().sum() for change in changes) / 4
        torch.testing.assert_close(found, published.expand(3))

    def test_gradients_of_a_linear_network(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        weight, p = model[1].weight.detach(), model(images).detach().softmax(1)
        found = [density_gradients(model, images, part=k) for k in ("whole", "shift", "centred")]
        torch.testing.assert_close(found[0], (p @ weight).norm(dim=1))
        torch.testing.assert_close(found[1], weight.mean(0).norm().expand(3))
        torch.testing.assert_close(found[2], ((p - 1 / 3) @ weight).norm(dim=1))

    def test_shift_of_logits_leaves_the_centred_part(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        shifted = Shifted(model, 10.0)
        torch.testing.assert_close(shifted(images).softmax(1), model(images).softmax(1))
        for part in ("whole", "shift", "centred"):
            before, after = (density_gradients(m, images, part=part) for m in (model, shifted))
            if part == "centred":
                torch.testing.assert_close(after, before)
            else:
                assert (after > 10 * before).all()

    @pytest.mark.parametrize("name", ["noise_std", "n_samples"])
    def test_refuses_noise_that_is_not_positive(self, name):
        settings = {"generator": generator(), "noise_std": 0.1, "n_samples": 1} | {name: 0}
        with pytest.raises(ValueError, match=f"{name}: expected a positive number, got 0"):
            density_change(linear_network(16), random_images(3, 1, 4, 4), **settings)


class TestGroupAccuracies:
    def test_are_means_within_groups(self):
        correct = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
        found = group_accuracies(correct, torch.tensor([0, 1, 1, 2, 1]), 3)
        torch.testing.assert_close(found, torch.tensor([1.0, 1 / 3, 1.0]))

    @pytest.mark.parametrize(
        ("groups", "text"),
        [([0, 0, 2], "got none of group 1"), ([0, -1, 2], "got -1"), ([0, 1], r"of shape \(2,\)")],
    )
    def test_refuses_groups(self, groups, text):
        with pytest.raises(ValueError, match=f"groups: expected .*{text}"):
            group_accuracies(torch.ones(3), torch.tensor(groups), 3)


class TestAuroc:
    @pytest.mark.parametrize("decimals", [1, 12])
    def test_agrees_with_mann_whitney(self, decimals):
        """With one decimal there are ties."""
        known, foreign = random_images(40, seed=1), random_images(30, seed=2) - 0.2
        known, foreign = known.round(decimals=decimals), foreign.round(decimals=decimals)
        statistic = scipy.stats.mannwhitneyu(known.numpy(), foreign.numpy()).statistic
        assert auroc(known, foreign).double().mean().item() == pytest.approx(statistic / 1200)

    def test_of_logits_is_a_mean_over_classes(self):
        known, foreign = random_images(7, 3, seed=1), random_images(5, 3, seed=2)
        expected = sum(auroc(known[:, i], foreign[:, i]) for i in range(3)) / 3
        torch.testing.assert_close(logit_auroc(known, foreign), expected)

    @pytest.mark.parametrize("score", OOD_SCORES)
    def test_scores_are_higher_for_surer_logits(self, score):
        sure, unsure = torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, 1.0]])
        assert OOD_SCORES[score](sure).shape == (1,)
        assert OOD_SCORES[score](sure) > OOD_SCORES[score](unsure)

    @pytest.mark.parametrize("foreign", [[], [math.nan, 1.0], [[1.0]]])
    def test_refuses_what_are_no_numbers(self, foreign):
        with pytest.raises(ValueError, match="unfamiliar: expected scores"):
            auroc(torch.ones(2), torch.tensor(foreign))


class TestMaximiseActivation:
    def test_goes_along_the_weight(self):
        model, start = linear_network(16), 0.5 * torch.ones(3, 1, 4, 4, dtype=torch.float64)
        found = maximise_activation(model, start, LABELS, n_steps=4, step_size=0.1)
        weight = model[1].weight.detach()[LABELS]
        expected = start.flatten(1) + 0.4 * weight / weight.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found.flatten(1), expected)

    def test_raises_the_logit_within_the_range(self):
        model = build_network("lenet5", (1, 12, 12), 3, options={}, seed=2).double().eval()
        start = random_images(3, 1, 12, 12)
        before = start.clone()
        found = maximise_activation(model, start, LABELS, n_steps=20, step_size=0.5)
        logits = [model(x).gather(1, LABELS[:, None]) for x in (start, found)]
        assert (logits[1] > logits[0]).all()
        assert found.amin() == 0
        assert found.amax() == 1
        assert torch.equal(start, before)
        assert logit_gradient(model, found, LABELS).any()
