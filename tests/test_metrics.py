import math

import pytest
import torch
from torch import nn

from suite import metrics
from suite.errors import UsageError
from suite.metrics import chunks, entropy, faithfulness_estimate, invert, pixel_effects
from suite.networks import build_network
from tests.small_batches import LABELS, Recorder, generator, linear_network, random_images


def test_invert_mirrors_in_the_image_range():
    images = torch.tensor([[[[0.0, 1.0, 0.25]]], [[[-1.0, 3.0, 0.0]]]])
    assert torch.equal(invert(images), torch.tensor([[[[1.0, 0.0, 0.75]]], [[[3.0, -1.0, 2.0]]]]))


class TestFaithfulness:
    def test_of_squares(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        change = (invert(images) - images).flatten(1)
        maps = (change * model[1].weight[LABELS].detach()).view(3, 1, 4, 4)
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
        for constant in ((0 * maps, effects), (maps, 0 * effects)):
            assert faithfulness_estimate(*constant).isnan().all()

    def test_refuses_other_numbers_of_pixels(self):
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
    @pytest.mark.parametrize("score", ["probability", "logit"])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_agree_with_a_double_loop(self, score, channels):
        model = build_network("lenet5", (channels, 12, 12), 3, options={}, seed=2).double().eval()
        images = random_images(3, channels, 12, 12)
        effects = pixel_effects(model, images, LABELS, score=score)
        assert effects.shape == (3, 144)
        for b in range(3):
            for i in range(0, 144, 13):
                changed, (row, column) = images[b].clone(), divmod(i, 12)
                changed[:, row, column] = invert(images)[b, :, row, column]
                scores = model(torch.stack([changed, images[b]])).detach()
                scores = scores.softmax(1) if score == "probability" else scores
                after, before = scores[:, LABELS[b]]
                torch.testing.assert_close(effects[b, i], after - before, rtol=1e-9, atol=1e-12)

    def test_confidence_where_the_network_is_sure(self):
        def lacks(inputs):
            logits = model(inputs).detach().double()
            return (logits[:, 1:] - logits[:, :1]).exp().sum(1)  # 1 - p, where p is almost 1

        images, labels = random_images(3, 1, 4, 4).float(), torch.zeros(3, dtype=torch.int64)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        model[1].bias.data = torch.tensor([60.0, 0.0, 0.0])
        assert not pixel_effects(model, images, labels).any()
        effects = pixel_effects(model, images, labels, score="confidence")
        assert (effects != 0).all()
        for b in range(3):
            changed = images[b].flatten().repeat(16, 1)
            changed[range(16), range(16)] = invert(images[b : b + 1]).flatten()
            expected = lacks(images[b : b + 1]) - lacks(changed.view(16, 1, 4, 4))
            torch.testing.assert_close(effects[b], expected, rtol=1e-2, atol=0)

    def test_confidence_where_it_is_unsure(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        unsure = pixel_effects(model, images, LABELS, score="probability")
        torch.testing.assert_close(pixel_effects(model, images, LABELS, score="confidence"), unsure)

    def test_other_perturbations(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        effects = pixel_effects(model, images, LABELS, score="logit", perturb=torch.zeros_like)
        torch.testing.assert_close(effects, -images.flatten(1) * model[1].weight[LABELS].detach())

    def test_unchanged_pixel_costs_no_pass(self):
        images, model = random_images(2, 1, 4, 4), Recorder(linear_network(16))
        images[0, 0, 0, :3] = images[1] = 0
        effects = pixel_effects(model, images, LABELS[:2], perturb=torch.zeros_like)
        assert torch.equal(effects[0] == 0, images[0].flatten() == 0)
        assert not effects[1].any()
        assert sum(model.batches) == (1 + 13) + 1

    def test_change_of_one_channel(self):
        images, model = random_images(1, 2, 2, 2), linear_network(8)
        images[:, 0] = 0
        options = {"score": "logit", "perturb": torch.zeros_like}
        effects = pixel_effects(model, images, LABELS[:1], **options)
        weight = model[1].weight[2].detach().view(2, 4)
        torch.testing.assert_close(effects[0], -images[0, 1].flatten() * weight[1])

    @pytest.mark.parametrize("chunk", [1, 5 * 16 * 8, 10**9])
    def test_chunks_change_nothing(self, chunk, monkeypatch):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        expected = pixel_effects(model, images, LABELS)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        effects = pixel_effects(model, images, LABELS)
        torch.testing.assert_close(effects, expected, rtol=1e-12, atol=1e-15)

    def test_unknown_score(self):
        with pytest.raises(UsageError, match=r"unknown score 'logits': did you mean 'logit'\?"):
            pixel_effects(linear_network(16), random_images(1, 1, 4, 4), LABELS[:1], score="logits")

    @pytest.mark.parametrize("chunk", [1, chunks.CHUNK_BYTES])
    @pytest.mark.parametrize("score", ["logit", "probability"])
    def test_of_squares(self, score, chunk, monkeypatch):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        model, images = linear_network(2 * 4 * 6), random_images(3, 2, 4, 6)
        effects = pixel_effects(model, images, LABELS, patch=2, score=score)
        assert effects.shape == (3, 6)
        for square in range(6):
            top, left = 2 * (square // 3), 2 * (square % 3)
            changed, place = images.clone(), (..., slice(top, top + 2), slice(left, left + 2))
            changed[place] = invert(images)[place]
            after, before = (model(x).detach() for x in (changed, images))
            if score == "probability":
                after, before = after.softmax(1), before.softmax(1)
            expected = (after - before).gather(1, LABELS[:, None])[:, 0]
            torch.testing.assert_close(effects[:, square], expected)

    @pytest.mark.parametrize("patch", [0, 5])
    def test_squares_must_tile_the_image(self, patch):
        with pytest.raises(ValueError, match=f"patch: expected a divisor of 3 and 4, got {patch}"):
            pixel_effects(linear_network(12), random_images(3, 1, 3, 4), LABELS, patch=patch)
