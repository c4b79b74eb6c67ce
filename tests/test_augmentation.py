import itertools

import pytest
import torch

from suite.errors import UsageError
from suite.training.augmentation import check_size, crop_and_flip, swap_halves, zoom_in
from suite.units import Training
from tests.small_batches import generator


def move(image, down, right, padding):
    """Cut an image out of itself, padded by PyTorch's own reflection."""
    height, width = image.shape[1:]
    padded = torch.nn.functional.pad(image.float(), [padding] * 4, mode="reflect")
    top, left = padding + down, padding + right
    return padded[:, top : top + height, left : left + width].to(image.dtype)


def images(count=400, size=(7, 9)):
    """Draw bytes, which seldom agree at two positions of an image in all channels."""
    return torch.randint(0, 256, (count, 3, *size), generator=generator(9), dtype=torch.uint8)


class TestCropAndFlip:
    @pytest.mark.parametrize("flip", [False, True])
    def test_is_a_crop_of_the_image(self, flip):
        before, shifts = images(), range(-2, 3)
        after = crop_and_flip(before, crop_padding=2, flip=flip, generator=generator())
        matches = []
        for old, new in zip(before, after):
            pairs = itertools.product(shifts, repeat=2)
            crops = {(*pair, False): move(old, *pair, 2) for pair in pairs}
            crops |= {(d, r, True): crop.flip(2) for (d, r, _), crop in list(crops.items())}
            (match,) = [change for change, crop in crops.items() if torch.equal(crop, new)]
            matches.append(match)
        for axis in (0, 1):
            counts = [sum(match[axis] == shift for match in matches) for shift in shifts]
            assert min(counts) > 50  # 80 on average
        mirrored = sum(match[2] for match in matches)
        assert 160 < mirrored < 240 if flip else mirrored == 0

    def test_depends_on_the_generator_alone(self):
        first, again, third = (
            crop_and_flip(images(), crop_padding=3, flip=True, generator=generator(seed))
            for seed in (0, 0, 1)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, third)

    def test_mirrors_alike_with_cropping(self):
        columns = torch.arange(50.0).expand(40, 1, 50, 50)
        plain, cropped = (
            crop_and_flip(columns, crop_padding=padding, flip=True, generator=generator())
            for padding in (0, 4)
        )
        falls = [batch[:, 0, 0, 30] < batch[:, 0, 0, 20] for batch in (plain, cropped)]
        assert torch.equal(*falls)
        assert 5 < int(falls[0].sum()) < 35

    def test_draws_alike_without_changes(self):
        first, second, before = generator(), generator(), images()
        assert crop_and_flip(before, generator=first) is before
        crop_and_flip(before, crop_padding=4, flip=True, generator=second)
        assert torch.equal(first.get_state(), second.get_state())

    def test_refuses_padding_beyond_the_image(self):
        unit = Training(data="", network="", epochs=1, learning_rate=1, seed=0, crop_padding=7)
        with pytest.raises(UsageError, match=r"crop_padding: expected 0 to 6 .* 7 x 9, got 7"):
            check_size(unit, (7, 9))
        check_size(unit, (8, 9))

    @pytest.mark.gpu
    def test_cuda_agrees_with_the_cpu(self):
        cuda, cpu = (
            crop_and_flip(images().to(device), crop_padding=2, flip=True, generator=generator())
            for device in ("cuda", "cpu")
        )
        assert torch.equal(cuda.cpu(), cpu)


class TestZoom:
    def test_flattens_a_slope_by_the_factor(self):
        """Interpolation is exact on a plane, so the factor of each image can be read off it."""
        lines = torch.arange(8.0, dtype=torch.float64)[:, None]
        plane = (10 * lines + torch.arange(12.0)).expand(500, 2, 8, 12)
        zoomed = zoom_in(plane, 1.5, generator=generator())
        factors = 10 / (zoomed[:, 0, 4, 0] - zoomed[:, 0, 3, 0])
        rows = 3.5 + (lines - 3.5) / factors[:, None, None]
        columns = 5.5 + (torch.arange(12.0) - 5.5) / factors[:, None, None]
        expected = (10 * rows + columns)[:, None].expand(500, 2, 8, 12)
        torch.testing.assert_close(zoomed, expected, rtol=1e-5, atol=1e-5)
        assert 1 <= factors.min() < 1.01
        assert 1.49 < factors.max() <= 1.5
        assert abs(factors.mean() - 1.25) < 0.02

    def test_keeps_uint8_and_range(self):
        assert zoom_in(images(50), 2.0, generator=generator()).dtype == torch.uint8
        flat = torch.full((3, 1, 6, 6), 77, dtype=torch.uint8)
        assert torch.equal(zoom_in(flat, 3.0, generator=generator()), flat)


def test_swaps_half_of_the_images():
    before = images(400, (6, 9))
    after = swap_halves(before, generator=generator())
    halves = torch.cat([before[:, :, 3:], before[:, :, :3]], dim=2)
    swapped = (after == halves).all((1, 2, 3))
    assert ((after == before).all((1, 2, 3)) ^ swapped).all()
    assert 160 < swapped.sum() < 240
