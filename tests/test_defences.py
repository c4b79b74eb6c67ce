import math
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from reglib.double_backward import folded_copy
from suite.errors import UsageError
from suite.networks import ResNet, build_network, defences
from suite.networks.defences import FrequencyLowCut, KWinnersTakeAll, with_k_wta, with_softplus

each_change = pytest.mark.parametrize("change", [{"k_wta": 0.3}, {"flc_pooling": True}])
SMALL = {"width": 2, "blocks": (1, 1), "pre_activation": True}


def build(name, shape, options=None):
    return build_network(name, shape, 10, options=options or {}, seed=0)


def random(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


class TestSoftplus:
    def test_is_close_to_relu_and_smooth(self):
        network, images = build("lenet5", (1, 28, 28)), random(3, 1, 28, 28)
        smooth, close = (with_softplus(network, beta=beta) for beta in (5.0, 500))
        gaps = [(model(images) - network(images)).abs().max() for model in (smooth, close)]
        assert gaps[0] > 1e-2
        assert gaps[1] < 1e-2 * gaps[0] + 1e-3
        kinds = Counter(map(type, smooth.modules()))
        assert (kinds[nn.Softplus], kinds[nn.ReLU]) == (4, 0)
        x = torch.tensor([-1.0, 0.0, 2.0])
        torch.testing.assert_close(smooth[2](x), (1 + (5 * x).exp()).log() / 5)

    def test_of_relu6(self):
        network = nn.Sequential(nn.Linear(3, 3), nn.ReLU6(), nn.ReLU())
        smooth, close = (with_softplus(network, beta=beta) for beta in (5.0, 500.0))
        x = torch.tensor([-1.0, 0.0, 3.0, 6.0, 9.0])
        torch.testing.assert_close(close[1](x), network[1](x), rtol=0, atol=2e-3)
        assert isinstance(smooth[2], nn.Softplus)
        bent = smooth[1](x[[1, 3]]) - x[[1, 3]]
        torch.testing.assert_close(bent, torch.tensor([1, -1]) * math.log(2) / 5)
        assert type(network[1]) is nn.ReLU6

    def test_copy_keeps_the_mode(self):
        network = build("resnet", (3, 32, 32), {"width": 2, "blocks": (1,)}).train()
        network[0].eval()
        smooth = with_softplus(network, beta=10.0)
        assert type(smooth) is ResNet
        assert smooth.training
        assert not smooth[0].training
        assert any(isinstance(module, nn.ReLU) for module in network.modules())
        nn.init.zeros_(smooth[-1].weight)
        assert network[-1].weight.any()

    def test_is_an_option_of_every_network(self):
        network = build("mlp", (1, 28, 28), {"hidden": (5,), "softplus": 3.0})
        assert network[2].beta == 3.0
        assert torch.equal(network[1].weight, build("mlp", (1, 28, 28), {"hidden": (5,)})[1].weight)


class TestKWinnersTakeAll:
    def test_of_each_sample(self):
        x = torch.tensor([[[[3.0, -1.0]], [[2.0, 0.5]]], [[[-4.0, -1.0]], [[-2.0, -3.0]]]])
        expected = torch.tensor([[[[3.0, 0.0]], [[2.0, 0.0]]], [[[0.0, -1.0]], [[-2.0, 0.0]]]])
        assert torch.equal(KWinnersTakeAll(0.5)(x), expected)
        assert KWinnersTakeAll(0.001)(x).count_nonzero() == 2
        assert torch.equal(KWinnersTakeAll(1)(x), x)


class TestFrequencyLowCut:
    @pytest.mark.parametrize("size", [(8, 8), (8, 6), (7, 5), (6, 9)])
    def test_keeps_low_frequencies_exactly(self, size):
        """Waves below a quarter of a cycle per pixel pass, whatever their phase; others do not."""

        def positions(size):
            return torch.meshgrid(*(torch.arange(n).double() / n for n in size), indexing="ij")

        small = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        waves = [2 + torch.cos(2 * torch.pi * sum(positions(s)) + 0.3) for s in (size, small)]
        fast = torch.cos(2 * torch.pi * positions(size)[0] * (size[0] // 2))
        slow, mixed = (FrequencyLowCut()(w[None, None])[0, 0] for w in (waves[0], waves[0] + fast))
        assert slow.shape == small
        torch.testing.assert_close(slow, waves[1])
        torch.testing.assert_close(mixed, waves[1], atol=1e-12, rtol=0)

    def test_replaces_strides(self):
        network = build("resnet", (3, 32, 32), SMALL | {"stem": "strided"}).eval()
        changed, images = defences.with_flc_pooling(network), torch.rand(2, 3, 32, 32)
        assert type(changed) is ResNet
        layers = ([*network.modules()], [*changed.modules()])
        before, after = ([m.stride for m in ms if isinstance(m, nn.Conv2d)] for ms in layers)
        assert before.count((2, 2)) == Counter(map(type, changed.modules()))[FrequencyLowCut] == 3
        assert set(after) == {(1, 1)}
        shapes = [nn.Sequential(*list(net)[:-3])(images).shape for net in (network, changed)]
        assert shapes[0] == shapes[1]
        assert (changed(images) - network(images)).abs().max() > 1e-4


class TestChanged:
    @each_change
    @pytest.mark.parametrize("pre_activation", [False, True])
    def test_is_folded_to_the_same_function(self, change, pre_activation):
        network = build("resnet", (3, 32, 32), SMALL | {"pre_activation": pre_activation} | change)
        images = random(8, 3, 32, 32, seed=2)
        network.train()(images)
        network.eval()
        torch.testing.assert_close(folded_copy(network)(images), network(images))

    @each_change
    def test_top_gap_can_be_changed(self, change):
        options = {"k": 0.2, "width": 4, "backbone_options": SMALL}
        plain, changed = (build("top_gap", (3, 32, 32), options | more) for more in ({}, change))
        images = random(2, 3, 32, 32, seed=2)
        assert changed.class_maps(images).shape == plain.class_maps(images).shape
        assert not torch.allclose(changed(images), plain(images))
        for a, b in zip(plain.parameters(), changed.parameters(), strict=True):
            assert torch.equal(a, b)


TANH, LENET = nn.Sequential(nn.Tanh()), partial(build, "lenet5", (1, 28, 28))
NO_RELU = r"softplus: expected a network with modules of .*ReLU"
NO_SHARE = "k_wta: expected a share above 0 and up to 1, got"
NO_STRIDE = r"flc_pooling: .* convolutions of stride 2, found none"
REFUSED = [
    (partial(with_softplus, TANH, beta=1.0), NO_RELU),
    (partial(LENET, {"softplus": 0}), "softplus: expected a positive sharpness, got 0"),
    (partial(with_k_wta, TANH, share=0.5), r"k_wta: expected a network with modules of .*ReLU"),
    (partial(LENET, {"flc_pooling": True}), NO_STRIDE),
    *((partial(LENET, {"k_wta": share}), NO_SHARE) for share in (0, -0.5, 1.5, True, "half")),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refuses_impossible_changes(call, message):
    with pytest.raises(UsageError, match=message):
        call()
