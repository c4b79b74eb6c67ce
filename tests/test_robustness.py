import pytest
import torch
from torch import nn

from suite.metrics import chunks, local_lipschitz_estimate, max_sensitivity
from tests.small_batches import LABELS, Recorder, generator, random_images


def constant_map(images, class_index):
    return torch.ones_like(images)


def doubled(images, class_index):
    """The gradient of |x|^2, whose Lipschitz constant is 2."""
    return 2 * images


def squared(images, class_index):
    return images.square()


each_noisy = pytest.mark.parametrize("metric", [local_lipschitz_estimate, max_sensitivity])


class TestLipschitz:
    def test_is_the_largest_ratio(self):
        images = random_images(3, 2, 4, 4)
        values = local_lipschitz_estimate(
            squared, images, LABELS, generator=generator(5), n_samples=7, noise_std=0.3
        )
        draws = generator(5)
        for b in range(3):
            noise = 0.3 * torch.randn(7, 2, 4, 4, generator=draws, dtype=torch.float64)
            change = (images[b] + noise).square() - images[b].square()
            ratios = [float(c.norm() / n.norm()) for c, n in zip(change, noise)]
            assert values[b].item() == pytest.approx(max(ratios), rel=1e-12)


class TestMaxSensitivity:
    def test_is_the_largest_relative_change(self):
        images = random_images(3, 2, 4, 4)
        values = max_sensitivity(
            squared, images, LABELS, generator=generator(5), n_samples=7, radius=0.3
        )
        draws = generator(5)
        for b in range(3):
            uniform = torch.rand(7, 2, 4, 4, generator=draws, dtype=torch.float64)
            noise = 0.6 * uniform - 0.3
            change = (images[b] + noise).square() - images[b].square()
            expected = max(float(c.norm()) for c in change) / float(images[b].square().norm())
            assert values[b].item() == pytest.approx(expected, rel=1e-12)


class TestBoth:
    @each_noisy
    def test_constant_map_has_zero(self, metric):
        images = random_images(3, 1, 4, 4)
        values = metric(constant_map, images, LABELS, generator=generator(), n_samples=5)
        assert torch.equal(values, torch.zeros(3, dtype=torch.float64))

    @each_noisy
    def test_same_seed_same_bits(self, metric):
        images = random_images(3, 1, 4, 4)
        first, again, other = (
            metric(squared, images, LABELS, generator=generator(seed), n_samples=5)
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    @each_noisy
    def test_leaves_the_global_random_state(self, metric):
        before = torch.get_rng_state()
        metric(squared, random_images(3, 1, 4, 4), LABELS, generator=generator(), n_samples=5)
        assert torch.equal(torch.get_rng_state(), before)

    @each_noisy
    @pytest.mark.parametrize(("chunk", "size"), [(1, 1), (3 * 128, 3), (10**9, 10)])
    def test_makes_as_many_maps_as_asked_for(self, metric, chunk, size, monkeypatch):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        recorder = Recorder(nn.Identity())
        metric(
            lambda x, class_index: recorder(x),
            random_images(1, 1, 4, 4),
            LABELS[:1],
            generator=generator(),
            n_samples=10,
        )
        assert recorder.batches == [1, *[size] * (10 // size), *[1] * (10 % size)]

    @each_noisy
    @pytest.mark.parametrize("chunk", [1, 3 * 128])
    def test_chunks_change_nothing(self, metric, chunk, monkeypatch):
        """The stream of normal numbers comes in blocks of 16; other sizes draw other noise."""
        images = random_images(2, 1, 4, 4)
        expected = metric(squared, images, LABELS[:2], generator=generator(), n_samples=10)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        values = metric(squared, images, LABELS[:2], generator=generator(), n_samples=10)
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=0)

    @pytest.mark.parametrize(
        ("metric", "name"), [(local_lipschitz_estimate, "noise_std"), (max_sensitivity, "radius")]
    )
    def test_refuses_what_is_not_positive(self, metric, name):
        images = random_images(1, 1, 2, 2)
        for argument in ("n_samples", name):
            settings = {"n_samples": 1} | {argument: 0}
            with pytest.raises(ValueError, match=f"{argument}: expected a positive number, got 0"):
                metric(squared, images, LABELS[:1], generator=generator(), **settings)
