import itertools
import math

import pytest
import torch
from torch import nn

from suite import metrics
from suite.errors import UsageError
from suite.metrics import chunks, entropy, faithfulness_estimate, invert, pixel_effects
from tests.small_batches import LABELS, Recorder, generator, linear_network, random_images


def test_invert_mirrors_within_the_range():
    images = torch.tensor([[[[0.0, 1.0, 0.25]]], [[[-1.0, 3.0, 0.0]]]])
    assert torch.equal(invert(images), torch.tensor([[[[1.0, 0.0, 0.75]]], [[[3.0, -1.0, 2.0]]]]))


class TestFaithfulness:
    def test_of_squares(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        weights = model[1].weight[LABELS].detach().view_as(images)
        maps = (invert(images) - images) * weights
        effects = pixel_effects(model, images, LABELS, patch=2, score="logit")
        estimate = faithfulness_estimate(maps, effects, patch=2)
        torch.testing.assert_close(estimate, torch.ones(3, dtype=torch.float64))

    def test_is_the_correlation(self):
        maps, effects = random_images(3, 2, 4, 4, seed=3), random_images(3, 16, seed=4)
        values = faithfulness_estimate(maps, effects)
        for b in range(3):
            pair = torch.stack([maps[b].sum(0).flatten(), effects[b]])
            torch.testing.assert_close(values[b], torch.corrcoef(pair)[0, 1])

    def test_is_undefined_for_constants(self):
        maps, effects = random_images(2, 1, 2, 2), random_images(2, 4, seed=1)
        assert faithfulness_estimate(0 * maps, effects).isnan().all()
        assert faithfulness_estimate(maps, 0 * effects).isnan().all()

    def test_refuses_other_pixel_counts(self):
        with pytest.raises(ValueError, match=r"maps: expected \(2, 9\) .* got \(2, 4\)"):
            faithfulness_estimate(random_images(2, 1, 2, 2), random_images(2, 9))


class TestEntropy:
    @pytest.mark.parametrize(
        ("channels", "expected"),
        [
            ([[-0.3] * 20], math.log(20)),
            ([[0.0, -7.0, 0.0]], 0),
            ([[1.0, -3.0]], -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))),
            ([[1.0, 2.0], [-1.0, 2.0]], 0),  # channels are summed before the absolute value
            ([[0.0, 0.0]], math.nan),
        ],
    )
    def test_of_a_map(self, channels, expected):
        result = entropy(torch.tensor(channels, dtype=torch.float64)[None, :, None])
        assert result.item() == pytest.approx(expected, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("side", [8, 28, 64])
def test_batches_fit_into_a_chunk(side, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 2**15)
    images = random_images(1, 1, side, side, dtype=torch.float32)
    model = Recorder(nn.Sequential(nn.Flatten(), nn.Linear(side * side, 3)).eval())
    options = {"generator": generator(), "n_samples": 150}
    pixel_effects(model, images, LABELS[:1])
    for metric in (metrics.local_lipschitz_estimate, metrics.max_sensitivity):
        metric(lambda x, class_index: model(x), images, LABELS[:1], **options)
    assert 2**15 - 4 * side * side < model.largest_bytes <= 2**15


class TestPixelEffects:
    @pytest.mark.parametrize("chunk", [1, 4 * 48 * 8, chunks.CHUNK_BYTES])
    @pytest.mark.parametrize("patch", [1, 2])
    @pytest.mark.parametrize("score", ["logit", "probability", "confidence"])
    def test_agree_with_a_loop(self, score, patch, chunk, monkeypatch):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        model, images = linear_network(2 * 4 * 6), random_images(3, 2, 4, 6)
        effects = pixel_effects(model, images, LABELS, patch=patch, score=score)
        corners = list(itertools.product(range(0, 4, patch), range(0, 6, patch)))
        assert effects.shape == (3, len(corners))
        for (row, column), effect in zip(corners, effects.T):
            square = ..., slice(row, row + patch), slice(column, column + patch)
            changed = images.clone()
            changed[square] = invert(images)[square]
            after, before = (model(x).detach() for x in (changed, images))
            if score != "logit":
                after, before = after.softmax(1), before.softmax(1)
            torch.testing.assert_close(effect, (after - before)[range(3), LABELS])

    def test_confidence_of_a_sure_network(self):
        def doubt(inputs):  # 1 - p, where p is almost 1
            logits = model(inputs).detach().double()
            return (logits[:, 1:] - logits[:, :1]).exp().sum(1)

        images, labels = random_images(3, 1, 4, 4).float(), torch.zeros(3, dtype=torch.int64)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        model[1].bias.data = torch.tensor([60.0, 0.0, 0.0])
        assert not pixel_effects(model, images, labels).any()
        effects = pixel_effects(model, images, labels, score="confidence")
        assert (effects != 0).all()
        for b in range(3):
            changed = images[b].flatten().repeat(16, 1)
            changed[range(16), range(16)] = invert(images[b : b + 1]).flatten()
            expected = doubt(images[b : b + 1]) - doubt(changed.view(16, 1, 4, 4))
            torch.testing.assert_close(effects[b], expected, rtol=1e-2, atol=0)

    def test_change_of_one_channel(self):
        model, images = linear_network(32), random_images(3, 2, 4, 4)
        images[:, 0] = 0
        effects = pixel_effects(model, images, LABELS, score="logit", perturb=torch.zeros_like)
        weights = model[1].weight[LABELS].detach().view_as(images)
        torch.testing.assert_close(effects, -(images * weights)[:, 1].flatten(1))

    def test_unchanged_pixel_costs_no_pass(self):
        images, model = random_images(2, 1, 4, 4), Recorder(linear_network(16))
        images[0, 0, 0, :3] = images[1] = 0
        effects = pixel_effects(model, images, LABELS[:2], perturb=torch.zeros_like)
        assert torch.equal(effects[0] == 0, images[0].flatten() == 0)
        assert not effects[1].any()
        assert sum(model.batches) == (1 + 13) + 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"patch": 0}, "patch: expected a divisor of 3 and 4, got 0"),
            ({"patch": 5}, "patch: expected a divisor of 3 and 4, got 5"),
            ({"score": "logits"}, r"unknown score 'logits': did you mean 'logit'\?"),
        ],
    )
    def test_refuse_wrong_options(self, options, message):
        with pytest.raises(UsageError, match=message):
            pixel_effects(linear_network(12), random_images(3, 1, 3, 4), LABELS, **options)
