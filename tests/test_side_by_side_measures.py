from types import SimpleNamespace

import pytest
import torch

from suite.data import load_data
from suite.errors import UsageError
from suite.papers import side_by_side_measures as measures
from suite.papers.measure import METRICS


def test_halves_of_the_test_images():
    labels = load_data("mnist5k").test.labels

    def right_in(half, rows):
        """Count the correct predictions in a half, of a network that is right on `rows` alone."""
        logits = torch.zeros(len(labels), 11)
        logits[:, 10] = 1
        logits[rows, labels[rows]] = 2
        subject = SimpleNamespace(test_uint8=lambda *_: (None, labels))
        subject.test_logits = lambda *_: logits
        values = METRICS["accuracy"](subject, half=half).per_image
        assert len(values) == 500
        return int(values.sum())

    assert all(right_in(0, [row]) + right_in(1, [row]) == 1 for row in range(0, 1000, 13))
    classes = [(labels == digit).nonzero()[:, 0] for digit in range(10)]
    assert all(min(right_in(0, rows), right_in(1, rows)) > 30 for rows in classes)


def test_calibration_error():
    top = torch.tensor([0.9, 0.9, 0.6, 0.6], dtype=torch.float64)
    right = torch.tensor([True, False, True, True])
    # Bins of a tenth: |0.9 - 0.5| and |0.6 - 1|, half of the images each.
    assert float(measures.expected_calibration_error(top, right, 10)) == pytest.approx(0.4)
    assert float(measures.expected_calibration_error(right.double(), right, 10)) == 0


def test_shift_repeats_outermost_pixels():
    image = torch.arange(9).view(1, 1, 3, 3)
    assert measures.shift(image, 1, 0)[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert measures.shift(image, 0, -1)[0, 0].tolist() == [[1, 2, 2], [4, 5, 5], [7, 8, 8]]


def test_share_on_the_object():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    images, labels = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 1, 0])
    masks = torch.rand(8, 4, 4) < 0.5
    split = SimpleNamespace(masks=masks)
    subject = SimpleNamespace(
        data=SimpleNamespace(test=split, shape=(1, 4, 4)),
        unit=SimpleNamespace(data="d"),
        folded=network,
        test_images=lambda n: (images[:n], labels[:n]),
    )
    weights = network[1].weight[labels[:4]].detach().abs()  # the gradients of the labels' logits
    expected = (weights * masks[:4].flatten(1)).sum(1) / weights.sum(1)
    shares = measures.share_on_object(subject, n_images=4).per_image
    torch.testing.assert_close(shares, expected.double())
    other = (weights[1] * masks[3].flatten()).sum() / weights[1].sum()  # the class of image 1
    beyond = measures.share_on_object(subject, n_images=4, beyond_others=True).per_image
    torch.testing.assert_close(beyond[1], (expected[1] - other).double())
    assert beyond[[0, 2]].isnan().all()  # alone in their classes
    split.masks = None
    with pytest.raises(UsageError, match="share_on_object: expected a data set with masks, got"):
        measures.share_on_object(subject, n_images=4)


def test_grid_of_four():
    labels = torch.tensor([0, 0, 1, 2, 3, 1])
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 2, 2)
    grids, positions = measures.image_grids(images, labels)
    assert grids.shape == (6, 1, 4, 4)
    for index, position in enumerate(positions.tolist()):
        corners = grids[index, 0, ::2, ::2].flatten().long()
        assert corners[position] == index
        assert len(set(labels[corners].tolist())) == 4
    with pytest.raises(UsageError, match="four classes"):
        measures.image_grids(images[:3], labels[:3])
