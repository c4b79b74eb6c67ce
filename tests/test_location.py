import pytest
import torch
from torch import nn

from reglib.landscape import data_smoothness, expected_importance_landscape, total_variation
from suite.metrics import correct_by_location
from tests.double_backward import Net
from tests.small_batches import Untrained


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


NETWORK = Untrained("digits-anywhere")


class TestMeasurements:
    def test_accuracy_by_location(self):
        settings = {"data": "digits-centred", "n_images": 60, "margin": 6, "stride": 3}
        result, subject = NETWORK.measured("accuracy_by_location", **settings), NETWORK.subject()
        assert result.per_image.shape == (60,)
        accuracy = result.tensors["accuracy"]
        assert float(accuracy.mean()) == pytest.approx(float(result.per_image.mean()))
        images, labels = subject.test_images(60, "digits-centred")
        right = (subject.network(images).argmax(1) == labels).double()
        assert float(accuracy[2, 2]) == pytest.approx(float(right.mean()))

    def test_importance_landscape(self):
        result = NETWORK.measured("importance_landscape", n_images=40)
        images, _ = NETWORK.subject().test_images(40)
        expected = expected_importance_landscape(NETWORK.subject().network, [images])
        landscape = result.tensors["landscape"].double()
        torch.testing.assert_close(landscape, expected, rtol=1e-4, atol=1e-5)
        assert float(result.per_image) == pytest.approx(float(total_variation(expected)), rel=1e-4)

    def test_flatness(self):
        subject = NETWORK.subject()
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
            result = NETWORK.measured("flatness", part=part, n_images=60).per_image
            assert float(result) == pytest.approx(float(value), rel=1e-3), part

    def test_drawn_classes_estimate_the_expectation(self):
        metric, numbers = "importance_landscape", (None, 60)
        results = [NETWORK.measured(metric, n_images=60, n_draws=n) for n in numbers]
        maps = torch.stack([r.tensors["landscape"].flatten() for r in results])
        assert float(torch.corrcoef(maps)[0, 1]) > 0.99
        assert not torch.equal(maps[0], maps[1])
