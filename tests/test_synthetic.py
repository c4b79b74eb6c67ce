import pytest
import torch

from suite.data import Split, image_shape, load_data
from suite.data.synthetic import BIAS, SHIFT, SIDE, SIZES, clutter, pad_digits

LABELS = torch.arange(400) % 10


def squares(labels=LABELS, ink=255):
    """Make squares of 28 x 28, whose position on the canvas is seen in the mask."""
    return Split(torch.full((len(labels), 1, 28, 28), ink, dtype=torch.uint8), labels)


@pytest.fixture(scope="module")
def pair():
    return load_data("digit_canvas"), load_data("digit_canvas_swapped")


class TestClutter:
    def test_masks_show_the_digit(self):
        result, _ = clutter(squares(), seed=0, swapped=False)
        assert (result.images.shape, result.images.dtype) == ((400, 1, SIDE, SIDE), torch.uint8)
        rows, columns = result.masks.any(2), result.masks.any(1)
        heights, widths = rows.sum(1), columns.sum(1)
        assert torch.equal(result.masks, rows[:, :, None] & columns[:, None, :])
        assert torch.equal(heights, widths)
        assert set(heights.tolist()) == set(range(SIZES[0], SIZES[1] + 1))
        first = rows.int().argmax(1) - (SIDE - heights) // 2
        assert set(first.tolist()) == set(range(-SHIFT, SHIFT + 1))
        assert (result.images[:, 0][result.masks] == 255).all()

    def test_half_covered_pixel_is_mixed(self):
        black, _ = clutter(squares(LABELS[:5], ink=0), seed=3, swapped=False)
        result, _ = clutter(squares(LABELS[:5], ink=100), seed=3, swapped=False)
        assert not result.masks.any()
        middle = (slice(None), 0, slice(16, 24), slice(16, 24))
        before, after = black.images[middle].int(), result.images[middle].int()
        with_patches = before.clamp_min(50)  # half as bright as the digits that they are cut from
        mixed = [(under * 155 + 100 * 255) // 255 for under in (before, with_patches)]
        assert ((after == mixed[0]) | (after == mixed[1])).all()

    def test_opaque_hides_the_background(self):
        drawn = squares(LABELS[:20], ink=40)
        drawn.images[:, :, 8:20, 8:20] = 0  # a hole
        result, _ = clutter(drawn, seed=0, swapped=False, opaque=True)
        full, _ = clutter(squares(LABELS[:20]), seed=0, swapped=False)
        assert torch.equal(result.masks, full.masks)
        inside, outside = (result.images[:, 0][m] for m in (result.masks, ~result.masks))
        assert (inside.max(), inside.min()) == (40, 0)
        see_through = clutter(drawn, seed=0, swapped=False)[0].images[:, 0]
        assert torch.equal(outside, see_through[~result.masks])

    def test_backgrounds_follow_the_label(self):
        labels = torch.arange(4000) % 10
        _, backgrounds = clutter(squares(labels), seed=1, swapped=False)
        share = float((backgrounds == labels).double().mean())
        assert share == pytest.approx(BIAS, abs=3 * (BIAS * (1 - BIAS) / 4000) ** 0.5)
        _, swapped = clutter(squares(labels), seed=1, swapped=True)
        assert not (swapped == labels).any()
        steps = ((swapped - labels) % 10).bincount(minlength=10)
        assert steps[0] == 0
        assert (steps[1:] > 350).all()

    def test_swapping_changes_backgrounds_in_testing(self, pair):
        plain, swapped = pair
        assert torch.equal(plain.train.images, swapped.train.images)
        assert torch.equal(plain.test.masks, swapped.test.masks)
        assert torch.equal(plain.test.labels, swapped.test.labels)
        assert plain.fingerprint != swapped.fingerprint
        different = (plain.test.images != swapped.test.images)[:, 0]
        assert float(different.flatten(1).any(1).double().mean()) == pytest.approx(BIAS, abs=0.05)
        assert not different[plain.test.images[:, 0] == 255].any()  # the middle of strokes

    def test_same_bytes_everywhere(self, pair):
        assert [d.fingerprint[:16] for d in pair] == ["8174b22592c91fd6", "dc0ca7421ba613a8"]

    def test_leaves_the_random_state(self):
        before = torch.get_rng_state()
        clutter(squares(LABELS[:3]), seed=0, swapped=False)
        assert torch.equal(torch.get_rng_state(), before)


FINGERPRINTS = {
    "digits-centred": "fe21b9dd9c9b09e12cef57eeae3a4ded05164231a53b2ead2c81ffc41a0cba91",
    "digits-anywhere": "6713c5dd666df6f507c111a6918e71e04b2054e499afe256b6df6cfdcc56a4db",
}


def drawing(height, width, top=1, left=2, canvas=(8, 9)):
    image = torch.zeros(1, 1, *canvas, dtype=torch.uint8)
    values = torch.arange(1, height * width + 1, dtype=torch.uint8).view(height, width)
    image[..., top : top + height, left : left + width] = values
    return image


def box_of(image):
    rows, columns = (image.any(0).any(axis).nonzero()[:, 0] for axis in (1, 0))
    return [int(v) for v in (rows[0], rows[-1], columns[0], columns[-1])]


def put_on_canvas(images, anywhere=False):
    labels = torch.zeros(len(images), dtype=torch.int64)
    return pad_digits(Split(images, labels), part=0, anywhere=anywhere).images


class TestOnCanvas:
    def test_centres_a_drawing(self):
        placed = put_on_canvas(drawing(2, 4))
        assert (placed.shape, placed.dtype) == ((1, 1, 32, 32), torch.uint8)
        assert box_of(placed[0]) == [15, 16, 14, 17]
        assert placed[0, 0, 15:17, 14:18].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert int(placed.sum()) == 36

    def test_positions_are_uniform(self):
        images = drawing(1, 1).expand(4000, -1, -1, -1)
        placed = put_on_canvas(images, anywhere=True)
        corners = torch.tensor([box_of(image)[::2] for image in placed]) - 9  # in the box of 20
        counts = torch.stack([c.bincount(minlength=13) for c in corners.T])
        assert counts.shape == (2, 13)
        assert 230 < int(counts.min()) <= int(counts.max()) < 390
        assert (placed.flatten(1).sum(1) == 1).all()

    def test_refuses_drawings_beyond_the_box(self):
        with pytest.raises(ValueError, match="at most 20 x 20 pixels, got 2 x 21 in image 0"):
            put_on_canvas(drawing(2, 21, canvas=(8, 28)))
        assert not put_on_canvas(torch.zeros(1, 2, 8, 8, dtype=torch.uint8)).any()


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_padded_digits_of_mnist5k(name):
    loaded = load_data(name)
    assert loaded.fingerprint == FINGERPRINTS[name]
    assert loaded.shape == image_shape(name) == (1, 32, 32)
    boxes = torch.tensor([box_of(image) for image in loaded.test.images])
    middle = (boxes[:, :2].sum(1) / 2, boxes[:, 2:].sum(1) / 2)
    spread = [float(m.max() - m.min()) for m in middle]
    assert spread == ([0.5, 0.5] if name == "digits-centred" else pytest.approx([12, 12], abs=0.6))
