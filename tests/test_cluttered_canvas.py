"""Canvases: what is known about each image holds, and the same bytes come out everywhere."""

import pytest
import torch

from suite.data import load_data
from suite.data.cluttered_digits import BIAS, SHIFT, SIDE, SIZES, place_on_canvases

LABELS = torch.arange(400) % 10


def digits(n=400):
    """Make white squares of 28 x 28, whose place on the canvas is seen in the mask."""
    return torch.full((n, 1, 28, 28), 255, dtype=torch.uint8)


@pytest.fixture(scope="module")
def pair():
    return load_data("digit_canvas"), load_data("digit_canvas_swapped")


def test_masks_show_where_and_how_large_the_digit_is():
    made = place_on_canvases(digits(), LABELS, seed=0, swapped=False)
    assert made.images.shape == (400, 1, SIDE, SIDE)
    assert made.images.dtype == torch.uint8
    rows, columns = made.masks.any(2), made.masks.any(1)
    heights, widths = rows.sum(1), columns.sum(1)
    assert torch.equal(made.masks, rows[:, :, None] & columns[:, None, :])
    assert torch.equal(heights, widths)
    assert set(heights.tolist()) == set(range(SIZES[0], SIZES[1] + 1))
    first = rows.int().argmax(1) - (SIDE - heights) // 2
    assert set(first.tolist()) == set(range(-SHIFT, SHIFT + 1))
    assert (made.images[:, 0][made.masks] == 255).all()


def test_a_digit_that_covers_half_a_pixel_mixes_with_the_background():
    half = torch.full((5, 1, 28, 28), 100, dtype=torch.uint8)
    black = place_on_canvases(torch.zeros_like(half), LABELS[:5], seed=3, swapped=False)
    made = place_on_canvases(half, LABELS[:5], seed=3, swapped=False)
    assert not made.masks.any()
    middle = (slice(None), 0, slice(16, 24), slice(16, 24))
    before, after = black.images[middle].int(), made.images[middle].int()
    with_patches = before.clamp_min(50)  # half as bright as the digits that they are cut from
    mixed = [(under * 155 + 100 * 255) // 255 for under in (before, with_patches)]
    assert ((after == mixed[0]) | (after == mixed[1])).all()


def test_backgrounds_follow_the_label_as_often_as_they_should():
    labels = torch.arange(4000) % 10
    made = place_on_canvases(digits(4000), labels, seed=1, swapped=False)
    share = float((made.backgrounds == labels).double().mean())
    assert share == pytest.approx(BIAS, abs=3 * (BIAS * (1 - BIAS) / 4000) ** 0.5)
    swapped = place_on_canvases(digits(4000), labels, seed=1, swapped=True)
    assert not (swapped.backgrounds == labels).any()
    steps = ((swapped.backgrounds - labels) % 10).bincount(minlength=10)
    assert steps[0] == 0
    assert (steps[1:] > 350).all()


def test_swapping_changes_only_the_background_of_the_test_split(pair):
    own, swapped = pair
    assert torch.equal(own.train.images, swapped.train.images)
    assert torch.equal(own.test.masks, swapped.test.masks)
    assert torch.equal(own.test.labels, swapped.test.labels)
    assert own.fingerprint != swapped.fingerprint
    different = (own.test.images != swapped.test.images)[:, 0]
    followed = different.flatten(1).any(1).double().mean()
    assert float(followed) == pytest.approx(BIAS, abs=0.05)
    assert not different[own.test.images[:, 0] == 255].any()  # the middle of strokes


def test_every_image_has_a_mask_and_the_bytes_are_the_same_everywhere(pair):
    own, _ = pair
    for split, count in ((own.train, 4000), (own.test, 1000)):
        assert split.images.shape == (count, 1, SIDE, SIDE)
        assert split.masks.shape == (count, SIDE, SIDE)
        assert split.masks.flatten(1).any(1).all()
        assert (split.images[:, 0][split.masks] > 127).all()
    assert [d.fingerprint[:16] for d in pair] == ["8174b22592c91fd6", "dc0ca7421ba613a8"]


def test_random_state_is_left_as_it_was():
    before = torch.get_rng_state()
    place_on_canvases(digits(3), LABELS[:3], seed=0, swapped=False)
    assert torch.equal(torch.get_rng_state(), before)
