import pytest
import torch
from torch import nn

from suite.metrics import chunks, local_lipschitz_estimate, max_sensitivity
from tests.small_batches import LABELS, Recorder, generator, random_images


def square(images, class_index):
    return images.square()


METRICS = {local_lipschitz_estimate: "noise_std", max_sensitivity: "radius"}
each_noisy = pytest.mark.parametrize("metric", METRICS)


def values(metric, maps_of=square, n=3, seed=0, **options):
    images = random_images(n, 1, 4, 4)
    return metric(maps_of, images, LABELS[:n], generator=generator(seed), **options)


@each_noisy
def test_is_the_largest_change(metric):
    """Over the length of the noise, which is normal; or over the map's, of uniform noise."""
    images, draws = random_images(3, 2, 4, 4), generator(5)
    options = {"generator": generator(5), "n_samples": 7, METRICS[metric]: 0.3}
    result = metric(square, images, LABELS, **options)
    for b in range(3):
        if metric is local_lipschitz_estimate:
            noise = 0.3 * torch.randn(7, 2, 4, 4, generator=draws, dtype=torch.float64)
            lengths = noise.flatten(1).norm(dim=1)
        else:
            noise = 0.6 * torch.rand(7, 2, 4, 4, generator=draws, dtype=torch.float64) - 0.3
            lengths = images[b].square().norm()
        changes = ((images[b] + noise).square() - images[b].square()).flatten(1).norm(dim=1)
        assert result[b].item() == pytest.approx(float((changes / lengths).max()), rel=1e-12)


@each_noisy
class TestBoth:
    def test_same_seed_same_bits(self, metric):
        before = torch.get_rng_state()
        first, again, third = (values(metric, seed=seed, n_samples=5) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, third)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(("chunk", "size"), [(1, 1), (3 * 128, 3), (10**9, 10)])
    def test_makes_n_samples_maps(self, metric, chunk, size, monkeypatch):
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        recorder = Recorder(nn.Identity())
        values(metric, lambda x, class_index: recorder(x), n=1, n_samples=10)
        assert recorder.batches == [1, *[size] * (10 // size), *[1] * (10 % size)]

    @pytest.mark.parametrize("chunk", [1, 3 * 128])
    def test_chunks_change_nothing(self, metric, chunk, monkeypatch):
        """The stream of normal numbers comes in blocks of 16; other sizes draw other noise."""
        expected = values(metric, n=2, n_samples=10)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
        torch.testing.assert_close(values(metric, n=2, n_samples=10), expected, rtol=1e-12, atol=0)

    def test_refuses_zero(self, metric):
        for argument in ("n_samples", METRICS[metric]):
            with pytest.raises(ValueError, match=f"{argument}: expected a positive number, got 0"):
                values(metric, n=1, **{"n_samples": 1, argument: 0})
