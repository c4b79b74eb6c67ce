import math

import pytest
import scipy.stats
import torch

from suite import metrics
from suite.metrics.saliency import integrated_gradients
from suite.networks import build_network
from tests.double_backward import Net
from tests.small_batches import LABELS, generator, left_alone, linear_network, random_images

PARTS = ("whole", "shift", "centred")


@pytest.fixture
def lenet():
    return build_network("lenet5", (1, 12, 12), 3, options={}, seed=2).double().eval()


@pytest.fixture
def linear():
    return linear_network(16), random_images(3, 1, 4, 4)


class TestLogitGradients:
    def test_density_is_the_weighted_mean(self, lenet):
        images = random_images(3, 1, 12, 12).requires_grad_()
        logits = lenet(images)
        sums = [*logits.sum(0), logits.logsumexp(1).sum()]
        rows = [torch.autograd.grad(f, images, retain_graph=True)[0].flatten(1) for f in sums]
        slopes, density = torch.stack(rows[:3], 1), rows[3]
        label, result = slopes[range(3), LABELS], metrics.logit_gradients(lenet, images, LABELS)
        torch.testing.assert_close(result["label"], label.norm(dim=1))
        torch.testing.assert_close(
            result["others"], (slopes.norm(dim=2).sum(1) - result["label"]) / 2
        )
        torch.testing.assert_close(result["cosine"], torch.cosine_similarity(label, density))
        torch.testing.assert_close(
            result["probability"], logits.softmax(1)[range(3), LABELS].detach()
        )


class TestFeatureLeakage:
    def test_of_a_linear_network(self):
        """Integrated Gradients are w x; the upper half of image 0 counts, the lower of others."""
        model, images = linear_network(32), random_images(3, 2, 4, 4)
        maps = model[1].weight.detach()[LABELS].view_as(images) * images
        masks = torch.zeros(3, 1, 4, 4, dtype=torch.bool)
        masks[0, :, :2] = masks[1:, :, 2:] = True
        leak = torch.stack([maps[0, :, :2], maps[1, :, 2:], maps[2, :, 2:]]).flatten(1).norm(dim=1)
        arguments = integrated_gradients(model, images, LABELS), masks
        torch.testing.assert_close(metrics.feature_leakage(*arguments), leak)
        share = leak / maps.flatten(1).norm(dim=1)
        torch.testing.assert_close(metrics.feature_leakage(*arguments, relative=True), share)

    @pytest.mark.parametrize(
        ("masks", "text"),
        [
            (torch.ones(3, 1, 4, 5).bool(), r"shape \(3, 1, 4, 4\) .* got torch.bool of shape \("),
            (torch.ones(1, 1, 4, 4).bool(), r"shape \(3, 1, 4, 4\)"),
            (torch.ones(3, 1, 4, 4), r"booleans .* got torch.float32"),
            (torch.arange(3).view(3, 1, 1, 1).expand(3, 1, 4, 4) > 0, "an empty mask for image 0"),
        ],
    )
    def test_refuses_masks(self, masks, text):
        with pytest.raises(ValueError, match=f"masks: expected .*{text}"):
            metrics.feature_leakage(random_images(3, 2, 4, 4), masks)


def square(net, x):
    """Logits of half the squared norm times 1, 2, 3: gradients are multiples of x."""
    return x.square().flatten(1).sum(1, keepdim=True) / 2 * torch.tensor([[1.0, 2.0, 3.0]])


def noise_of(std, shape=(1, 4, 4)):
    return std * torch.randn(shape, generator=generator(5), dtype=torch.float64)


class TestGradientChange:
    def test_of_a_quadratic(self):
        images, noise = random_images(3, 1, 4, 4), {"noise_std": 0.3}
        arguments = Net(square).eval(), images, LABELS
        relative, absolute = (
            metrics.gradient_change(*arguments, generator=generator(5), **noise, relative=relative)
            for relative in (True, False)
        )
        expected = noise_of(0.3).norm()
        torch.testing.assert_close(relative, expected / images.flatten(1).norm(dim=1))
        torch.testing.assert_close(absolute, expected * (LABELS + 1))


class TestDensity:
    @pytest.mark.parametrize("chunk", [1, 2**20])
    def test_change_agrees_with_its_formula(self, chunk, linear, monkeypatch):
        monkeypatch.setattr(metrics.chunks, "CHUNK_BYTES", chunk)
        result = metrics.density_change(*linear, generator=generator(5), noise_std=0.3)
        weight = linear[0][1].weight.detach()
        published = (weight @ noise_of(0.3).flatten()).exp().sum()
        torch.testing.assert_close(result, published.expand(3))

    def test_gradients_of_a_linear_network(self, linear):
        weight, p = linear[0][1].weight.detach(), linear[0](linear[1]).detach().softmax(1)
        result = [metrics.density_gradients(*linear, part=part) for part in PARTS]
        torch.testing.assert_close(result[0], (p @ weight).norm(dim=1))
        torch.testing.assert_close(result[1], weight.mean(0).norm().expand(3))
        torch.testing.assert_close(result[2], ((p - 1 / 3) @ weight).norm(dim=1))

    def test_shift_keeps_the_centred_part(self, linear):
        model, images = linear
        shifted = Net(lambda net, x: model(x) + 10 * x.square().flatten(1).sum(1, True)).eval()
        torch.testing.assert_close(shifted(images).softmax(1), model(images).softmax(1))
        models = model, shifted
        for part in PARTS:
            before, after = (metrics.density_gradients(m, images, part=part) for m in models)
            if part == "centred":
                torch.testing.assert_close(after, before)
            else:
                assert (after > 10 * before).all()

    def test_refuses_noise_that_is_not_positive(self, linear):
        with pytest.raises(ValueError, match="noise_std: expected a positive number, got 0"):
            metrics.density_change(*linear, generator=generator(), noise_std=0)


class TestAuroc:
    @pytest.mark.parametrize("decimals", [1, 12])
    def test_agrees_with_mann_whitney(self, decimals):
        known = random_images(40, seed=1).round(decimals=decimals)
        unfamiliar = (random_images(30, seed=2) - 0.2).round(decimals=decimals)
        statistic = scipy.stats.mannwhitneyu(known.numpy(), unfamiliar.numpy()).statistic
        result = metrics.auroc(known, unfamiliar).double().mean().item()
        assert result == pytest.approx(statistic / 1200)

    def test_of_logits_averages_over_classes(self):
        known, unfamiliar = random_images(7, 3, seed=1), random_images(5, 3, seed=2)
        expected = sum(metrics.auroc(known[:, i], unfamiliar[:, i]) for i in range(3)) / 3
        torch.testing.assert_close(metrics.mean_auroc(known, unfamiliar), expected)

    def test_scores_are_higher_for_surer_logits(self):
        logits = torch.tensor([[9.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        assert all(
            s[0, 0] > s[1, 0] for s in (score(logits) for score in metrics.OOD_SCORES.values())
        )

    @pytest.mark.parametrize("unfamiliar", [[], [math.nan, 1.0], [[1.0]]])
    def test_refuses_wrong_scores(self, unfamiliar):
        with pytest.raises(ValueError, match="unfamiliar: expected scores"):
            metrics.auroc(torch.ones(2), torch.tensor(unfamiliar))


class TestMaximiseActivation:
    def test_goes_along_the_weight(self, linear):
        model, start = linear[0], 0.5 * torch.ones(3, 1, 4, 4, dtype=torch.float64)
        result = metrics.maximise_activation(model, start, LABELS, n_steps=4, step_size=0.1)
        weight = model[1].weight.detach()[LABELS]
        expected = start.flatten(1) + 0.4 * weight / weight.norm(dim=1, keepdim=True)
        torch.testing.assert_close(result.flatten(1), expected)

    def test_raises_the_logit_within_the_range(self, lenet):
        start, steps = random_images(3, 1, 12, 12), {"n_steps": 20, "step_size": 0.5}
        with left_alone(lenet, start):
            result = metrics.maximise_activation(lenet, start, LABELS, **steps)
        logits = [lenet(x).gather(1, LABELS[:, None]) for x in (start, result)]
        assert (logits[1] > logits[0]).all()
        assert (result.amin(), result.amax()) == (0, 1)
