"""Pooling against torch.topk, and the network against Table 1 and unmodified networks."""

import copy
import io
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision import models

from reglib.double_backward import evaluation_mode, fast_double_backward, folded_copy
from reglib.top_gap import TopGAP, TopGAPNet, feature_maps, scaled_maps, top_gap, top_gap_and_l1
from suite.networks import ResNet
from suite.paths import ROOT
from tests.double_backward import Net, randn
from tests.small_batches import left_alone


def by_topk(maps, k):
    return maps.flatten(2).topk(k, sorted=False).values.mean(2)


def small(k=0.1, **options):
    backbone = ResNet(2, 16, 10, width=4, blocks=(1, 1, 1))
    return TopGAPNet(backbone, 5, k=k, width=8, image_size=16, **options).eval()


def images(n=2, seed=0):
    return randn(n, 2, 16, 16, seed=seed, dtype=torch.float32)


def count(network):
    return sum(p.numel() for p in network.parameters())


def test_k_as_number_and_as_fraction():
    maps = randn(3, 4, 5, 6)
    for share, k in ((1e-9, 1), (1.0, 30), (0.5, 15), (0.12, 4)):  # of 3.6
        assert torch.equal(top_gap(maps, k=share), top_gap(maps, k=k))


def test_transforms_and_bfloat16_agree_with_topk():
    maps = randn(3, 2, 4, 5)
    by_transform = torch.func.vmap(torch.func.grad(lambda m: top_gap(m[None], k=4).sum()))(maps)
    (expected,) = torch.autograd.grad(by_topk(x := maps.clone().requires_grad_(), 4).sum(), x)
    torch.testing.assert_close(by_transform, expected)
    half = maps.bfloat16()
    assert torch.equal(top_gap(half, k=4), by_topk(half, 4))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.float64, Fraction])
def test_k_may_be_a_numpy_number(kind):
    k, same = (kind(3), 3) if issubclass(kind, np.integer) else (kind(1) / 2, 0.5)
    maps, layer = randn(2, 3, 5, 6), TopGAP(k)
    for logits in (top_gap(maps, k=k), top_gap_and_l1(maps, k=k).logits, layer(maps)):
        assert torch.equal(logits, top_gap(maps, k=same))
    assert (type(layer.k), layer.k) == (type(same), same)


NO_K = [0, -3, 0.0, -0.5, 1.5, float("nan"), True, "4", np.int64(0), np.float32(2), np.True_]


@pytest.mark.parametrize("k", NO_K)
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=r"k: expected a number of locations.*got "):
        TopGAP(k)


@pytest.mark.parametrize("pool", [top_gap, top_gap_and_l1])
def test_unsuitable_maps_are_refused(pool):
    with pytest.raises(ValueError, match=r"an integer from 1 to 16, the locations .*got 17"):
        pool(torch.zeros(1, 1, 4, 4), k=17)
    with pytest.raises(ValueError, match=r"expected class maps \(B, classes, h, w\), got shape"):
        pool(torch.zeros(1, 10), k=1)


# Table 1. No arrangement of 3 or 4 maps and 3 x 3 convolutions has the 8.03M of the paper for
# DenseNet-121.
@pytest.mark.parametrize(
    ("make", "name", "classes", "unmodified", "top_gap"),
    [
        (models.get_model, "vgg11_bn", 1000, 132_868_840, 12_432_872),
        (timm.create_model, "efficientnet_b0", 53, 4_075_441, 4_752_817),
        (models.get_model, "densenet121", 1000, 7_978_856, 13_699_944),
    ],
)
def test_parameter_counts_of_table_1(make, name, classes, unmodified, top_gap):
    with torch.device("meta"):
        assert count(make(name, num_classes=classes)) == unmodified
        network = TopGAPNet(name, classes, k=256)
    assert count(network) == top_gap


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "efficientnet_b0", "convnext_tiny"])
def test_feature_maps_of_timm_and_torchvision(name):
    with torch.device("meta"):
        maps = feature_maps(timm.create_model(name)).maps
        listed = timm.create_model(name, features_only=True).feature_info
        if name in ("resnet18", "efficientnet_b0"):
            other = feature_maps(models.get_model(name, weights=None)).maps
            assert [m[1:] for m in maps] == [m[1:] for m in other]
    assert [m.channels for m in maps] == listed.channels()
    assert [224 // m.size[0] for m in maps] == listed.reduction()


def test_block_with_late_stride_stays_whole():
    def strided():
        layers = {"first": nn.Conv2d(3, 3, 3, 1, 1), "second": nn.Conv2d(3, 3, 3, 2, 1)}
        return Net(lambda net, x: net.second(net.first(x)), **layers)

    blocks = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), strided(), strided())
    assert [m.name for m in feature_maps(blocks, image_size=16).maps] == ["0", "1", "2"]


def test_sizes_of_class_maps():
    network = TopGAPNet("resnet18", 3, k=256, width=2).eval()
    with torch.no_grad():
        assert network.class_maps(torch.zeros(1, 3, 224, 224)).shape == (1, 3, 56, 56)
        assert network.class_maps(torch.zeros(1, 3, 64, 96)).shape == (1, 3, 16, 24)


@pytest.mark.parametrize("make", [models.resnet18, partial(timm.create_model, "efficientnet_b0")])
def test_without_pyramid_network_is_unmodified(make):
    unmodified = make(num_classes=4).eval()
    network = TopGAPNet(unmodified, 4, k=1.0, fpn=False).eval()
    assert count(network) == count(unmodified)
    last = [module for module in unmodified.modules() if isinstance(module, nn.Linear)][-1]
    network.classifier.weight.data = last.weight.data[:, :, None, None]
    network.classifier.bias.data = last.bias.data
    x = randn(2, 3, 32, 32, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(network(x), unmodified(x), rtol=1e-4, atol=1e-5)


def test_class_maps_sum_upsampled_convolutions():
    network, x = small(n_maps=2), images()
    features = network.backbone(x)
    assert [f.shape[-1] for f in features] == [8, 4]
    first, second = (conv(f) for conv, f in zip(network.lateral, features))
    repeated = second.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    expected = network.classifier(first + repeated)
    torch.testing.assert_close(network.class_maps(x), expected)
    torch.testing.assert_close(network(x), by_topk(expected, 6))  # 0.1 of 64


def test_dropout_acts_in_training_only():
    network, x = small(dropout=0.5), images()
    assert torch.equal(network(x), network(x))
    network.train()
    assert not torch.equal(network(x), network(x))


def test_backbone_parts_follow_its_mode():
    drop = Net(lambda net, x: net.conv(F.dropout(x, 0.5, net.training)), conv=nn.Conv2d(2, 4, 3))
    backbone = nn.Sequential(drop, nn.Conv2d(4, 4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network, x = TopGAPNet(backbone, 5, k=3, width=8, image_size=16), images()
    assert not torch.equal(network(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_backbone_is_copied():
    backbone = ResNet(2, 16, 10, width=4, blocks=(1, 1)).eval()
    with left_alone(backbone), torch.random.fork_rng():
        network = TopGAPNet(backbone, 5, k=3, width=8, image_size=16)
        network(images()).sum().backward()
    assert network.training
    weights, before = network.backbone.state_dict(), backbone.state_dict()
    assert all(torch.equal(before[n], w) for n, w in weights.items() if n.endswith("weight"))


VIT = "vit_tiny_patch16_224"
LENET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
TWO = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, 2))
BRANCHING = Net(lambda net, x: net.convs(x if x.shape[1] < 2 else x[:, :1]), convs=TWO)
DENSE = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
SMALL = ResNet(2, 16, 10, width=4, blocks=(1, 1, 1))
ONE_SIZE = r"on an image of 224 x 224.*VisionTransformer has maps of \[\(14, 14\)\] only"

REFUSED = {
    "name": (
        "resnet_18",
        {},
        r"backbone: expected the name .*'resnet_18'; similar names: .*resnet18",
    ),
    "one size": (VIT, {}, ONE_SIZE),
    "no convolution": (DENSE, {}, r"got Sequential, which holds no nn\.Conv2d"),
    "size": (LENET, {"image_size": 9}, r"cannot be run on an image of shape \(1, 9, 9\)"),
    "fixed size": (VIT, {"image_size": 96}, r"shape \(3, 96, 96\) .*; give the image_size that"),
    "branching": (BRANCHING, {"image_size": 16}, r"that torch\.fx can trace, got Net"),
    "maps": (SMALL, {"image_size": 16, "n_maps": 4}, r"n_maps: expected 1 to 3, .*16 x 16.*got 4"),
}


@pytest.mark.parametrize(("backbone", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_unsuitable_backbones_are_refused(backbone, options, message):
    with pytest.raises(ValueError, match=message):
        TopGAPNet(backbone, 3, k=1, **options)


def test_class_activation_maps_are_scaled_maps():
    network, x = small(), images()
    maps = network.class_activation_maps(x, torch.tensor([4, 1]))
    assert maps.shape == (2, 16, 16)
    chosen = torch.stack([network.class_maps(x)[0, 4], network.class_maps(x)[1, 1]])
    up = nn.Upsample((16, 16), mode="bilinear")(chosen[:, None])[:, 0]
    for b in range(2):
        torch.testing.assert_close(maps[b], (up[b] - up[b].min()) / (up[b].max() - up[b].min()))
        assert (maps[b].min(), maps[b].max()) == (0, 1)


def test_scaling_of_constant_and_nonfinite_maps():
    assert torch.equal(scaled_maps(torch.full((1, 2, 2), 3.0), (4, 4)), torch.zeros(1, 4, 4))
    maps = torch.zeros(3, 2, 2)
    maps[1, 0, 0], maps[2, 1, 1] = torch.inf, torch.nan
    with pytest.raises(ValueError, match="got infinity or NaN for image 1 and 1 more"):
        scaled_maps(maps, (4, 4))


def test_network_in_other_layouts_and_types():
    network, x, last = small(), images(), {"memory_format": torch.channels_last}
    expected, folded = network(x), folded_copy(network)
    torch.testing.assert_close(copy.deepcopy(network).to(**last)(x.contiguous(**last)), expected)
    torch.testing.assert_close(fast_double_backward(network)(x.requires_grad_()), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(network(x).float(), expected, rtol=0.05, atol=0.02)
    torch.testing.assert_close(folded(x), expected)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


def test_exported_network_takes_any_batch():
    network, sizes = small(), {"images": {0: torch.export.Dim("batch", min=2)}}
    exported = torch.export.export(network, (images(),), dynamic_shapes=sizes)
    x = images(5, seed=3)
    torch.testing.assert_close(exported.module()(x), network(x))


def test_backbone_may_have_any_dtype():
    backbone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2))
    for dtype in (torch.float64, torch.bfloat16):
        network = TopGAPNet(backbone.to(dtype), 5, k=3, width=8, image_size=16).to(dtype)
        assert network(images().to(dtype)).dtype == dtype


HOLDERS = {
    "network": lambda network: network,
    "fast view": fast_double_backward,
    "evaluation view": evaluation_mode,
    "moving average": AveragedModel,
    "part of a network": lambda network: nn.Sequential(nn.Identity(), network),
}
LOADING = """
import sys, torch; torch.set_num_threads(1)
x, expected, holder = torch.load(sys.argv[1], weights_only=False)
assert torch.equal(holder(x), expected)
print(type(holder).__name__, holder.training)
"""


class TestSavedNetwork:
    @pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
    @pytest.mark.parametrize("options", [{"k": 7}, {"fpn": False}], ids=str)
    def test_gives_the_same(self, hold, options):
        holder = hold(small(**options).train("k" in options))
        file = io.BytesIO()
        torch.save(holder, file)
        file.seek(0)
        for loaded in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(holder))):
            assert type(loaded).__name__ == type(holder).__name__
            modes = [[m.training for m in model.modules()] for model in (loaded, holder)]
            assert modes[0] == modes[1]
            assert loaded.state_dict().keys() == holder.state_dict().keys()
            assert torch.equal(loaded(images()), copy.deepcopy(holder)(images()))

    def test_trains_on(self):
        network = small().train()
        loaded = pickle.loads(pickle.dumps(network))
        for model in (network, loaded, copy.deepcopy(loaded)):
            model(images()).square().sum().backward()
            pairs = zip(model.parameters(), network.parameters(), strict=True)
            assert all(torch.equal(p.grad, q.grad) for p, q in pairs)

    def test_loads_in_another_process(self, tmp_path):
        holder, file = evaluation_mode(small()), tmp_path / "network.pt"
        torch.save((images(), holder(images()), holder), file)
        command, environment = [sys.executable, "-c", LOADING, file], {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["EvaluationTopGAPNet", "False"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the size of the maps is fixed
@pytest.mark.parametrize(
    ("k", "view"),
    [(1.0, copy.deepcopy), (7, copy.deepcopy), (0.5, fast_double_backward), (64, evaluation_mode)],
)
def test_traced_network_takes_any_batch(k, view):
    network, file, x = small(k), io.BytesIO(), images(5, seed=3)
    torch.jit.save(torch.jit.trace(view(network), images().requires_grad_()), file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file)(x), network(x))


def test_weights_go_through_safetensors(tmp_path):
    network, other = small(), small()
    save_file(network.state_dict(), tmp_path / "network.safetensors")
    other.load_state_dict(load_file(tmp_path / "network.safetensors"))
    assert torch.equal(network(images()), other(images()))
