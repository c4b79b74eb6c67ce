import pytest
import torch
from torch import nn

from suite import metrics
from suite.errors import UsageError
from suite.metrics import ablation_curve, deletion_curve, insertion_curve, pixel_perturbation
from suite.networks import build_network
from tests.small_batches import LABELS, left_alone, linear_network, random_images


def gains(model, images, baseline):
    """Return what each pixel adds to the label's logit of a linear network, (B, P)."""
    weight = model[1].weight.detach()[LABELS].view_as(images)
    return ((images - baseline) * weight).sum(1).flatten(1)


class TestInsertionCurve:
    @pytest.mark.parametrize("baseline", [0.0, 0.4, random_images(3, 2, 4, 4, seed=9)])
    def test_of_a_linear_network(self, baseline):
        model, images = linear_network(32), random_images(3, 2, 4, 4)
        gain = gains(model, images, baseline)
        inputs = gain.view(3, 1, 4, 4), model, images, LABELS
        options = {"n_steps": 16, "baseline": baseline, "score": "logit"}
        start = model(torch.zeros_like(images) + baseline).gather(1, LABELS[:, None]).detach()
        end = model(images).gather(1, LABELS[:, None]).detach()
        moved = gain.sort(dim=1, descending=True).values.cumsum(1)
        inserted, deleted = insertion_curve(*inputs, **options), deletion_curve(*inputs, **options)
        torch.testing.assert_close(inserted, torch.cat([start, start + moved], dim=1))
        torch.testing.assert_close(deleted, torch.cat([end, end - moved], dim=1))

    @pytest.mark.parametrize("n_steps", [1, 5, 144])
    def test_agrees_with_a_plain_loop(self, n_steps):
        model = build_network("lenet5", (3, 12, 12), 3, options={}, seed=2).double().eval()
        images, maps = random_images(3, 3, 12, 12), random_images(3, 3, 12, 12, seed=1) - 0.5
        curves = insertion_curve(maps, model, images, LABELS, n_steps=n_steps)
        counts = torch.arange(n_steps + 1) * 144 // n_steps
        assert curves.shape == (3, n_steps + 1)
        for b in range(3):
            ranked = sorted(range(144), key=lambda i: -float(maps[b, :, i // 12, i % 12].sum()))
            mixed = torch.zeros(n_steps + 1, 3, 12, 12, dtype=torch.float64)
            for rank, i in enumerate(ranked):
                mixed[counts > rank, :, i // 12, i % 12] = images[b, :, i // 12, i % 12]
            expected = model(mixed).softmax(1)[:, LABELS[b]].detach()
            torch.testing.assert_close(curves[b], expected, rtol=1e-12, atol=0)

    def test_equal_pixels_go_by_index(self):
        model, images = linear_network(900), random_images(3, 1, 30, 30)
        flat = insertion_curve(torch.zeros(3, 1, 30, 30), model, images, LABELS, n_steps=90)
        falling = -torch.arange(900.0).view(1, 1, 30, 30).expand(3, -1, -1, -1)
        assert torch.equal(flat, insertion_curve(falling, model, images, LABELS, n_steps=90))

    def test_changes_nothing_and_builds_no_graph(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        with left_alone(model, images):
            maps = images.clone().requires_grad_()
            assert not deletion_curve(maps, model, images, LABELS, n_steps=4).requires_grad

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"n_steps": 0}, "n_steps: expected 1 to 16, .* got 0"),
            ({"n_steps": 17}, "n_steps: expected 1 to 16, .* got 17"),
            ({"maps": torch.zeros(2, 1, 4, 4)}, r"maps: expected .*\(3, C, 4, 4\) .* got \(2, 1"),
            ({"maps": torch.zeros(3, 1, 2, 8)}, r"maps: expected shape \(3, C, 4, 4\)"),
            ({"score": "logits"}, "unknown score 'logits': did you mean 'logit'"),
        ],
    )
    def test_refuses(self, changes, text):
        images = random_images(3, 1, 4, 4)
        arguments = {"maps": images, "images": images, "class_index": LABELS, "n_steps": 4}
        with pytest.raises(UsageError, match=text):
            insertion_curve(model=nn.Flatten(), **arguments | changes)


class TestPixelPerturbation:
    def test_of_a_linear_network(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        gain = gains(model, images, 0)
        sizes = gain.abs().view_as(images)
        curves = pixel_perturbation(sizes, model, images, LABELS, n_steps=16)
        logits = model(images).gather(1, LABELS[:, None]).detach()
        by_size = gain.gather(1, gain.abs().argsort(dim=1))
        top, bottom = by_size.flip(1).cumsum(1).abs(), by_size.cumsum(1).abs()
        torch.testing.assert_close(curves[:, 1:], (top - bottom) / logits.abs())
        assert torch.equal(curves[:, 0], torch.zeros(3).double())
        torch.testing.assert_close(curves[:, -1], torch.zeros(3).double())

    def test_over_the_mean_logit(self):
        model, images = linear_network(16), random_images(3, 1, 4, 4)
        maps = random_images(3, 1, 4, 4, seed=4)
        single = pixel_perturbation(maps, model, images, LABELS, n_steps=16)
        logits = model(images).gather(1, LABELS[:, None]).detach().abs()
        averaged = pixel_perturbation(maps, model, images, LABELS, n_steps=16, over="mean")
        torch.testing.assert_close(averaged, single * logits / logits.mean())

    def test_refuses_signed_maps(self):
        images = random_images(3, 1, 4, 4)
        with pytest.raises(ValueError, match="sizes: expected saliency without sign"):
            pixel_perturbation(-images, linear_network(16), images, LABELS, n_steps=2)


class TestAblationCurve:
    def test_most_salient_pixels_become_the_mean(self, monkeypatch):
        shape, labels, counts = (2, 3, 4), torch.tensor([2, 0]), [0, 1, 5, 12]
        images, maps = random_images(2, *shape), random_images(2, *shape, seed=1) - 0.5
        model = linear_network(24)
        together = ablation_curve(model, images, labels, maps, counts=counts)
        monkeypatch.setattr(metrics.chunks, "CHUNK_BYTES", 1)
        curve = ablation_curve(model, images, labels, maps, counts=counts)
        for b, c in enumerate(labels):
            total = maps[b].sum(0).flatten()
            for k, ratio in zip(counts, curve[b]):
                changed = images[b].clone().flatten(1)
                for p in sorted(range(12), key=lambda i: -total[i])[:k]:
                    changed[:, p] = images[b].mean((1, 2))
                pair = torch.stack([images[b], changed.view(shape)])
                before, after = model(pair).softmax(1)[:, c].tolist()
                assert float(ratio) == pytest.approx(after / before, rel=1e-12)
        assert torch.equal(curve[:, 0], torch.ones(2).double())
        torch.testing.assert_close(together, curve)

    @pytest.mark.parametrize(
        ("counts", "size", "message"),
        [
            ([], (3, 4), "counts: expected numbers from 0 to 12"),
            ([-1, 2], (3, 4), "counts: expected numbers from 0 to 12"),
            ([0, 13], (3, 4), "counts: expected numbers from 0 to 12"),
            ([1], (4, 3), r"maps: expected shape \(1, C, 3, 4\) .* got \(1, 2, 4, 3\)"),
        ],
    )
    def test_refuses_wrong_counts_and_maps(self, counts, size, message):
        model, images, labels = linear_network(24), random_images(1, 2, 3, 4), LABELS[:1]
        with pytest.raises(ValueError, match=message):
            ablation_curve(model, images, labels, random_images(1, 2, *size), counts=counts)
