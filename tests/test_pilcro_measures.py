from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from reglib.landscape import (
    data_smoothness,
    expected_importance_landscape,
    scaled_norm,
    total_variation,
)
from suite.data import load_data
from suite.errors import UsageError
from suite.metrics import CORRUPTIONS, area_under_curve, centre_to_rim, correct_by_location, corrupt
from suite.papers.measure import measure
from suite.papers.path_counts import path_counts
from suite.units import Measurement
from tests.double_backward import Net
from tests.small_batches import Untrained

NETWORK = Untrained("mnist5k")


@pytest.fixture
def logits_and_labels():
    images, labels = NETWORK.subject().test_images(60)
    return NETWORK.subject().network(images).detach(), labels


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_counts_higher_logits(k, logits_and_labels):
    logits, labels = logits_and_labels
    higher = (logits > logits[range(60), labels][:, None]).sum(1)
    value = NETWORK.measured("top_k_accuracy", k=k, n_images=60).per_image
    assert torch.equal(value, (higher < k).double())
    assert 0 < value.mean() < 1
    with pytest.raises(UsageError, match="k: expected 1 to 10 classes, got 11"):
        NETWORK.measured("top_k_accuracy", k=11)


def test_cross_entropy_of_the_label(logits_and_labels):
    logits, labels = logits_and_labels
    expected = logits.logsumexp(1) - logits[range(60), labels]
    value = NETWORK.measured("cross_entropy", n_images=60).per_image
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_corrupted_accuracy_averages_corruptions():
    subject, settings = NETWORK.subject(), {"n_images": 20, "level": 5}
    pixels, labels = subject.test_uint8(20)
    larger = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")  # 32 pixels a side

    def right(name):
        changed = corrupt(torch.from_numpy(larger), corruption=name, level=5, seed=0)
        images = subject.as_inputs(changed[..., 2:-2, 2:-2])
        return (subject.network(images).argmax(1) == labels).double()

    by_name = {name: right(name) for kind in CORRUPTIONS.values() for name in kind}
    weather = NETWORK.measured("corrupted_accuracy", category="weather", **settings).per_image
    expected = torch.stack([by_name[name] for name in CORRUPTIONS["weather"]]).mean(0)
    torch.testing.assert_close(weather, expected)
    every = NETWORK.measured("corrupted_accuracy", **settings).per_image
    torch.testing.assert_close(every, torch.stack([*by_name.values()]).mean(0))
    assert every.unique().numel() > 1
    with pytest.raises(UsageError, match="unknown category 'blurr': did you mean 'blur'"):
        NETWORK.measured("corrupted_accuracy", category="blurr", **settings)


def test_flatness_of_paths_and_target():
    paths = path_counts(NETWORK.subject().network, (1, 28, 28), squared=True)
    images = data_smoothness([load_data("mnist5k").train.images])[None]
    for of, squares in (("paths", paths), ("target", images)):
        value = NETWORK.measured("flatness", of=of, part="centre_to_rim", n_images=60).per_image
        expected = centre_to_rim(scaled_norm(squares)).to(value)[None]
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
        assert expected > 1.5


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


CENTRED = Untrained("digits-centred")


def _correct(subject):
    images, labels = subject.test_uint8(None)
    return subject.predict(images) == labels


class TestCorrupted:
    def test_ablation_auc(self):
        result = CENTRED.measured("ablation_auc", n_images=4, n_baselines=3, n_steps=5, stride=100)
        assert result.per_image.shape == (4,)
        assert result.tensors["counts"].tolist() == [*range(0, 1024, 100), 1024]
        curve = result.tensors["curve"]
        assert float(curve[0]) == pytest.approx(1)
        area = area_under_curve(curve[None], result.tensors["counts"].tolist())
        assert float(area) == pytest.approx(float(result.per_image.mean()), rel=1e-5)
        with pytest.raises(UsageError, match=r"classified right, and the rest of 1000, got 900"):
            CENTRED.measured("ablation_auc", n_images=900, n_baselines=3)
        with pytest.raises(UsageError, match="stride: expected a positive integer, got 0"):
            CENTRED.measured("ablation_auc", n_images=4, n_baselines=3, stride=0)

    def test_corruption_robustness(self):
        settings = {"category": "noise", "level": 5, "n_images": 40}
        result = CENTRED.measured("corruption_robustness", **settings)
        subject = CENTRED.subject()
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
        related, subject = Untrained("digits-centred", seed=11), CENTRED.subject()
        subject.related = lambda unit: related.subject()

        def measured(metric, **settings):
            settings["beside"] = dict(related.unit.identity)
            unit = Measurement(training=CENTRED.unit, metric=metric, settings=settings)
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
            CENTRED.measured("corruption_robustness", **settings | changes)
            assert calls.call_count == more
        monkeypatch.setattr("suite.papers.pilcro_measures.REMEMBERED_BYTES", 10)
        CENTRED.measured("corruption_robustness", **settings)
        assert calls.call_count == 2 * n


class Brightest(nn.Module):
    """Class 1 where the brightest pixel lies in the right half."""

    def forward(self, x):
        return torch.stack([half.amax(1) for half in x.amax((1, 2)).split(x.shape[3] // 2, 1)], 1)


class TestCorrectByLocation:
    def test_of_all_shifts(self):
        images, labels = torch.zeros(2, 1, 8, 8), torch.tensor([1, 0])
        images[:, 0, 4, 4] = 1  # in the right half, unless it is shifted to the left
        correct = correct_by_location(Brightest(), images, labels, margin=3)
        assert (correct.shape, correct[0].tolist()) == ((2, 7, 7), [[0, 0, 0, 1, 1, 1, 1]] * 7)
        assert torch.equal(correct[1], 1 - correct[0])
        coarse = correct_by_location(Brightest(), images, labels, margin=2, stride=2)
        assert coarse[0].tolist() == [[0, 1, 1]] * 3

    def test_shifts_down_along_the_first_axis(self):
        upper, images = Net(lambda net, x: Brightest()(x.mT)), torch.full((1, 2, 8, 8), 0.5)
        images[..., 3, 3] = 0.7
        correct = correct_by_location(upper, images, torch.tensor([0]), margin=2, stride=1)
        assert correct[0].tolist() == [[1] * 5] * 3 + [[0] * 5] * 2

    def test_refuses_a_filled_margin(self):
        images, labels = torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.long)
        images[1, 0, 1, 4] = 1
        correct_by_location(Brightest(), images, labels, margin=1)
        with pytest.raises(ValueError, match="a margin of 2 pixels, got others in image 1"):
            correct_by_location(Brightest(), images, labels, margin=2)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"margin": -1}, "margin: expected .* 8 x 8 pixels, got -1"),
            ({"margin": 4}, "margin: expected .* got 4"),
            ({"margin": 2, "stride": 0}, "stride: expected a divisor of the margin 2, got 0"),
            ({"margin": 3, "stride": 2}, "stride: expected a divisor of the margin 3, got 2"),
        ],
    )
    def test_refuses_impossible_shifts(self, options, message):
        with pytest.raises(ValueError, match=message):
            correct_by_location(Brightest(), torch.zeros(1, 1, 8, 8), torch.zeros(1), **options)


ANYWHERE = Untrained("digits-anywhere")


class TestLocation:
    def test_accuracy_by_location(self):
        settings = {"data": "digits-centred", "n_images": 60, "margin": 6, "stride": 3}
        result, subject = ANYWHERE.measured("accuracy_by_location", **settings), ANYWHERE.subject()
        assert result.per_image.shape == (60,)
        accuracy = result.tensors["accuracy"]
        assert float(accuracy.mean()) == pytest.approx(float(result.per_image.mean()))
        images, labels = subject.test_images(60, "digits-centred")
        right = (subject.network(images).argmax(1) == labels).double()
        assert float(accuracy[2, 2]) == pytest.approx(float(right.mean()))

    def test_importance_landscape(self):
        result = ANYWHERE.measured("importance_landscape", n_images=40)
        images, _ = ANYWHERE.subject().test_images(40)
        expected = expected_importance_landscape(ANYWHERE.subject().network, [images])
        landscape = result.tensors["landscape"].double()
        torch.testing.assert_close(landscape, expected, rtol=1e-4, atol=1e-5)
        assert float(result.per_image) == pytest.approx(float(total_variation(expected)), rel=1e-4)

    def test_flatness(self):
        subject = ANYWHERE.subject()
        images, _ = subject.test_images(60)
        landscape = expected_importance_landscape(subject.network, [images])
        halves = [expected_importance_landscape(subject.network, [images[i::2]]) for i in (0, 1)]
        squares = landscape.unflatten(0, (8, 4)).unflatten(2, (8, 4)).mean((1, 3))
        rim = landscape.sum() - landscape[4:28, 4:28].sum()
        smoothness = data_smoothness(subject.data.train.images.split(900))
        expected = {
            "tv": total_variation(landscape),
            "noise": total_variation((halves[0] - halves[1]) / 2),
            "block_tv": total_variation(squares),
            "centre_to_rim": landscape[8:24, 8:24].mean() / (rim / (32**2 - 24**2)),
            "target_distance": (landscape - smoothness).square().mean(),
        }
        for part, value in expected.items():
            result = ANYWHERE.measured("flatness", part=part, n_images=60).per_image
            assert float(result) == pytest.approx(float(value), rel=1e-3), part

    def test_drawn_classes_estimate_the_expectation(self):
        metric, numbers = "importance_landscape", (None, 60)
        results = [ANYWHERE.measured(metric, n_images=60, n_draws=n) for n in numbers]
        maps = torch.stack([r.tensors["landscape"].flatten() for r in results])
        assert float(torch.corrcoef(maps)[0, 1]) > 0.99
        assert not torch.equal(maps[0], maps[1])
