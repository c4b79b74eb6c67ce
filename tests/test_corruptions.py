from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from suite.errors import UsageError
from suite.metrics import CORRUPTIONS, area_under_curve, corrupt
from suite.papers.measure import measure
from suite.units import Measurement
from tests.small_batches import Untrained


def photographs(count=2, channels=3, size=32):
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    return (255 * smooth).to(torch.uint8)


class TestCorruptions:
    @pytest.mark.parametrize("name", [n for group in CORRUPTIONS.values() for n in group])
    def test_changes_images_by_the_seed_alone(self, name):
        images = photographs()
        np.random.seed(1)
        state = np.random.get_state()[1].copy()
        first = corrupt(images, corruption=name, level=3, seed=4)
        assert np.array_equal(np.random.get_state()[1], state)
        assert (first.shape, first.dtype) == (images.shape, torch.uint8)
        assert not torch.equal(first, images)
        np.random.seed(2)
        assert torch.equal(corrupt(images[1:], corruption=name, level=3, seed=5), first[1:])

    def test_grey_images_stay_grey(self):
        images = photographs(channels=1)
        result = corrupt(images, corruption="contrast", level=2, seed=0)
        colour = corrupt(images.expand(-1, 3, -1, -1), corruption="contrast", level=2, seed=0)
        assert result.shape == images.shape
        assert int((result.int() - colour[:, :1].int()).abs().max()) <= 1

    def test_categories_of_the_paper(self):
        from imagecorruptions import get_corruption_names

        for category, names in CORRUPTIONS.items():
            assert list(names) == get_corruption_names(category)

    def test_refuses_wrong_images_and_levels(self):
        images, fog = photographs(), {"corruption": "fog", "level": 1}
        gauss = "unknown corruption .* did you mean 'gaussian_noise'"
        for pixels, options, message in (
            (images, {"corruption": "gauss_noise", "level": 1}, gauss),
            (images, fog | {"level": 6}, "level: expected an integer from 1 to 5, got 6"),
            (images, fog | {"level": 0}, "level: expected an integer from 1 to 5, got 0"),
            (photographs(size=28), fog, "at least 32 pixels a side, got .*28, 28"),
            (photographs(channels=2), fog, "uint8 with 1 or 3 channels"),
            (images.float(), fog, "expected uint8"),
        ):
            with pytest.raises(UsageError, match=message):
                corrupt(pixels, **options, seed=0)


NETWORK = Untrained("digits-centred")


def _correct(subject):
    images, labels = subject.test_uint8(None)
    return subject.predict(images) == labels


class TestMeasurements:
    def test_ablation_auc(self):
        result = NETWORK.measured("ablation_auc", n_images=4, n_baselines=3, n_steps=5, stride=100)
        assert result.per_image.shape == (4,)
        assert result.tensors["counts"].tolist() == [*range(0, 1024, 100), 1024]
        curve = result.tensors["curve"]
        assert float(curve[0]) == pytest.approx(1)
        area = area_under_curve(curve[None], result.tensors["counts"].tolist())
        assert float(area) == pytest.approx(float(result.per_image.mean()), rel=1e-5)
        with pytest.raises(UsageError, match=r"classified right, and the rest of 1000, got 900"):
            NETWORK.measured("ablation_auc", n_images=900, n_baselines=3)
        with pytest.raises(UsageError, match="stride: expected a positive integer, got 0"):
            NETWORK.measured("ablation_auc", n_images=4, n_baselines=3, stride=0)

    def test_corruption_robustness(self):
        settings = {"category": "noise", "level": 5, "n_images": 40}
        result = NETWORK.measured("corruption_robustness", **settings)
        subject = NETWORK.subject()
        pixels, labels = subject.test_uint8(40)

        def probabilities(images):
            return subject.network(images.float() / 255).softmax(1).detach()

        clean = probabilities(pixels)
        changed = [corrupt(pixels, corruption=n, level=5, seed=0) for n in CORRUPTIONS["noise"]]
        ratios = [(probabilities(images) / clean)[range(40), labels] for images in changed]
        right = clean.argmax(1) == labels
        assert 0 < right.sum() < 40
        expected = torch.stack(ratios).mean(0).double().where(right, torch.nan)
        torch.testing.assert_close(result.per_image, expected, rtol=1e-4, atol=0, equal_nan=True)

    def test_pair_counts_common_correct_images(self):
        related, subject = Untrained("digits-centred", seed=11), NETWORK.subject()
        subject.related = lambda unit: related.subject()

        def measured(metric, **settings):
            settings["beside"] = related.unit.identity
            unit = Measurement(training=NETWORK.unit, metric=metric, settings=settings)
            return measure(subject, unit)

        correct, common = _correct(subject), _correct(subject) & _correct(related.subject())
        assert 0 < common[:200].sum() < correct[:200].sum()
        result = measured("corruption_robustness", category="noise", level=1, n_images=200)
        assert torch.equal(result.per_image.isfinite(), common[:200])
        n_common, options = int(common.sum()), {"n_baselines": 3, "n_steps": 2, "stride": 512}
        with pytest.raises(UsageError, match=f"expected at most the {n_common} test images"):
            measured("ablation_auc", n_images=n_common + 1, **options)

    def test_few_images_are_corrupted_once(self, monkeypatch):
        calls, n = Mock(wraps=corrupt), len(CORRUPTIONS["digital"])
        monkeypatch.setattr("suite.metrics.corrupt", calls)
        settings = {"category": "digital", "level": 5, "n_images": 4}
        for changes, more in (({}, n), ({}, 0), ({"level": 4}, n), ({"n_images": 5}, n)):
            calls.reset_mock()
            NETWORK.measured("corruption_robustness", **settings | changes)
            assert calls.call_count == more
        monkeypatch.setattr("suite.papers.pilcro_measures.REMEMBERED_BYTES", 10)
        NETWORK.measured("corruption_robustness", **settings)
        assert calls.call_count == 2 * n
