import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import metrics
from suite.metrics import effective_receptive_field, erf_distance, largest_mask_iou
from suite.networks import build_network
from tests.small_batches import left_alone
from tests.small_batches import random_images as random


def convolution(weights):
    layer = nn.Conv2d(1, 2, 3, bias=False).double()
    layer.weight.data = torch.stack([weights, 2 * weights])[:, None]
    return layer


class TestReceptiveField:
    def test_is_the_kernel_of_a_convolution(self):
        kernel = random(3, 3)
        field = effective_receptive_field(convolution(kernel), random(2, 1, 9, 8), location=(4, 2))
        expected = torch.zeros(2, 1, 9, 8, dtype=torch.float64)
        expected[:, :, 4:7, 2:5] = 3 * kernel  # the channels have 1 and 2 of it
        torch.testing.assert_close(field, expected)

    def test_negative_and_missing_locations(self):
        layer, x = convolution(random(3, 3)), random(1, 1, 9, 8)
        last, same = (effective_receptive_field(layer, x, location=n) for n in ((-1, -1), (6, 5)))
        assert torch.equal(last, same)
        for location in ((7, 0), (0, 6), (-8, 0)):
            with pytest.raises(ValueError, match=r"a row and a column of maps of 7 x 6, got \("):
                effective_receptive_field(layer, x, location=location)


class CentreAndCorner(nn.Module):
    """A map of 7 x 7 whose fourth location sees `centre` of each pixel, whose first `corner`."""

    def __init__(self, centre, corner):
        super().__init__()
        self.centre, self.corner = centre, corner

    def forward(self, x):
        maps = x.new_zeros(len(x), 1, 7, 7) + 0 * x.sum()
        maps[:, 0, 3, 3] += (x * self.centre).sum((1, 2, 3))
        maps[:, 0, 0, 0] += (x * self.corner).sum((1, 2, 3))
        return maps


class TestErfDistance:
    def test_of_known_gradients(self):
        centre, corner = 5 * random(1, 6, 6) - 2, random(1, 6, 6, seed=1) - 0.5
        model, x = CentreAndCorner(centre, corner), random(3, 1, 6, 6, seed=2)

        def z(values):
            return ((values - values.mean()) / values.std(correction=0)).abs().mean().expand(3)

        expected = {"centre": z(centre), "corner": z(corner), "difference": z(centre) - z(corner)}
        for part, value in expected.items():
            options = {} if part == "difference" else {"part": part}
            torch.testing.assert_close(erf_distance(model, x, **options), value)

    def test_is_zero_for_constant_gradients(self):
        model, x = CentreAndCorner(random(1, 6, 6), 0 * random(1, 6, 6)), random(2, 1, 6, 6)
        assert erf_distance(model, x, part="corner").tolist() == [0, 0]
        assert (erf_distance(model, x, part="centre") > 0.5).all()

    def test_centre_of_an_even_map(self):
        seen, kernel = [], torch.ones(1, 1, 1, 1, dtype=torch.float64)

        def maps_of(x):
            maps = F.conv2d(x, kernel)
            if maps.requires_grad:
                maps.register_hook(lambda g: seen.append(g[0, 0].nonzero().tolist()))
            return maps

        erf_distance(maps_of, random(1, 1, 8, 5))
        assert seen == [[[3, 2]], [[0, 0]]]

    def test_does_not_change_the_network(self):
        options = {"k": 0.1, "width": 3, "backbone_options": {"width": 2, "blocks": (1, 1)}}
        network = build_network("top_gap", (1, 16, 16), 4, options=options, seed=0).double().eval()
        x = random(3, 1, 16, 16)
        with left_alone(network, x):
            together, alone = (erf_distance(network.class_maps, part) for part in (x, x[1:2]))
        torch.testing.assert_close(together[1:2], alone)

    @pytest.mark.parametrize("size", [(2, 2), (1, 5), (7, 2)])
    def test_refuses_small_maps(self, size):
        message = rf"at least 3 x 3, .* got {size[0]} x {size[1]}; leave"
        with pytest.raises(ValueError, match=message):
            erf_distance(nn.AdaptiveAvgPool2d(size), random(2, 1, 8, 8))


class TestMaskIou:
    def test_of_the_best_threshold(self):
        maps = random(20, 6, 7).mul(12).round() / 12
        masks = random(20, 6, 7, seed=1) > 0.6
        marked = maps >= torch.arange(13).double().view(13, 1, 1, 1) / 12
        overlaps = (marked & masks).sum((2, 3)) / (marked | masks).sum((2, 3))
        torch.testing.assert_close(largest_mask_iou(maps, masks), overlaps.amax(0))

    def test_beyond_other_images_of_the_class(self):
        """A mask as map gives the difference between masks; one map for all gives 0 on average."""
        masks = torch.zeros(4, 8, 8, dtype=torch.bool)
        masks[0, 2:6, 0:4] = masks[1, 2:6, 2:6] = masks[2, :4] = masks[3, 4:] = True
        labels = torch.tensor([0, 0, 1, 2])
        differences = metrics.mask_iou_beyond_others(masks.float(), masks, labels)
        torch.testing.assert_close(differences[:2], torch.full((2,), 1 - 8 / 24))
        assert differences[2:].isnan().all()  # no other image of their class
        masks = random(30, 6, 7, seed=1) > 0.6
        labels = torch.arange(30) % 3
        everywhere = metrics.mask_iou_beyond_others(random(1, 6, 7).expand(30, 6, 7), masks, labels)
        assert everywhere.abs().max() > 0.02
        torch.testing.assert_close(everywhere.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)

    def test_refuses_wrong_maps_and_masks(self):
        maps, masks = random(3, 8, 8), random(3, 8, 8, seed=1) > 0.6
        only_first = masks & (torch.arange(3) == 0)[:, None, None]
        for arguments, message in (
            ((maps, only_first), "got an empty mask for image 1 and 1 more"),
            ((maps, masks.float()), r"masks: expected booleans of shape \(3, 8, 8\).*float32"),
            ((maps, masks[:, :, 1:]), r"masks: expected booleans.*of shape \(3, 8, 7\)"),
        ):
            with pytest.raises(ValueError, match=message):
                largest_mask_iou(*arguments)
        message = r"maps: expected class activation maps \(B, H, W\)"
        for invalid in (maps * 2, maps - 1, maps[None], maps * torch.nan):
            for measure in (lambda maps: largest_mask_iou(maps, masks), metrics.map_sparsity):
                with pytest.raises(ValueError, match=message):
                    measure(invalid)
