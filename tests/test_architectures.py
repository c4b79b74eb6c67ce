from collections import Counter

import pytest
import timm
import torch
import torchvision
from torch import nn

from suite.errors import UsageError
from suite.networks import load_pretrained
from suite.networks.architectures import MLP, NETWORKS, VGG11, LeNet5, build_network

SLIM = {"width": 4, "blocks": (1, 1, 1)}
STEM, EXCLUSIVE = {"stem": "cifar10"}, {"bottleneck": True, "pre_activation": True}
TIMM = {"k": 1, "backbone": "resnet18"}
RESNET50 = {"blocks": (3, 4, 6, 3), "bottleneck": True, "stem": "imagenet"}
SMALL = [
    ("lenet5", (1, 28, 28), {}),
    ("lenet5", (3, 12, 12), {}),
    ("lenet5", (3, 33, 33), {}),
    ("mlp", (1, 28, 28), {"hidden": (5,)}),
    ("mlp", (2, 56, 28), {}),
    ("vgg11", (3, 32, 32), {"width": 2}),
    ("vgg11", (1, 56, 28), {"width": 2}),
    ("convnet", (3, 32, 32), {"width": 4}),
    ("convnet", (3, 24, 12), {"width": 4}),
    ("fast_vgg", (3, 32, 32), {}),
    ("resnet", (3, 32, 32), {"width": 4, "blocks": (1, 1, 1)}),
    ("resnet", (3, 32, 32), {"width": 4, "blocks": (1, 1), "stem": "strided"}),
    ("resnet", (1, 64, 64), {"width": 4, "blocks": (2, 1), "stem": "imagenet"}),
    ("resnet", (3, 32, 32), {"width": 4, "blocks": (1, 2), "pre_activation": True}),
    ("resnet", (3, 32, 32), {"width": 2, "blocks": (1, 2), "bottleneck": True}),
    ("resnet", (3, 32, 32), {"width": 4, "blocks": (1, 2), "activation": "swish"}),
    ("wide_resnet", (3, 32, 32), {"depth": 10, "factor": 1}),
    ("top_gap", (3, 32, 32), {"k": 5, "width": 4, "backbone_options": SLIM}),
    ("top_gap", (1, 28, 28), {"k": 0.1, "fpn": False, "backbone": "convnet"}),
]


def build(name, shape, options=None, classes=10, seed=0):
    return build_network(name, shape, classes, options=options or {}, seed=seed).eval()


def count_parameters(network):
    return sum(p.numel() for p in network.parameters())


def count_activations_in_graph(logits):
    """Return the number of ReLU nodes in the graph, those of functional calls included."""
    visited, nodes = set(), [logits.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visited:
            visited.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    return sum(node.name().startswith("ReluBackward") for node in visited)


def convolutions_of(network):
    return [module for module in network.modules() if isinstance(module, nn.Conv2d)]


def random_images(count=2, side=32, seed=1):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


class TestLayers:
    def test_of_mlp(self):
        layers = [layer for layer in MLP(1, (56, 28), 10) if hasattr(layer, "weight")]
        sizes = [(layer.in_features, layer.out_features) for layer in layers]
        assert sizes == [(1568, 256), (256, 256), (256, 10)]

    def test_of_lenet5(self):
        kinds = Counter(type(module) for module in LeNet5(1, 28, 10))
        assert kinds == {nn.Conv2d: 2, nn.MaxPool2d: 2, nn.Flatten: 1, nn.Linear: 3, nn.ReLU: 4}

    def test_of_vgg11_are_its_authors(self):
        with torch.device("meta"):
            network, reference = VGG11(3, 32, 10), torchvision.models.vgg11(num_classes=10)
        shapes = [[m.weight.shape for m in convolutions_of(n)] for n in (network, reference)]
        assert shapes[0] == shapes[1]
        kinds = Counter(type(module) for module in network)
        assert (kinds[nn.MaxPool2d], kinds[nn.ReLU]) == (5, 8)
        network = build("vgg11", (3, 32, 32), {"width": 16})
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert nn.Sequential(*list(network)[:-1])(images).std() > 0.1  # the signal does not fade

    def test_of_convnet(self):
        convolutions = convolutions_of(build("convnet", (3, 32, 32), {"width": 5}))
        assert [conv.out_channels for conv in convolutions] == [5] * 6
        assert [conv.stride[0] for conv in convolutions] == [1, 1, 2, 1, 2, 1]

    def test_initial_layers_of_fast_vgg(self):
        first, _, _, second, *_ = build("fast_vgg", (3, 32, 32))
        filters = first.weight.detach().flatten(1)
        assert torch.allclose(filters[:12] @ filters[:12].T, torch.eye(12), atol=1e-6)
        assert torch.equal(filters[12:], -filters[:12])
        maps = first(random_images())
        assert torch.equal(second(maps)[:, :24], maps)
        assert second.weight[24:].std() > 0.01


class TestResNet:
    @pytest.mark.parametrize("name", ["resnet34", "resnet50"])
    def test_agrees_with_torchvision(self, name):
        """Load the weights of torchvision, whose state has the same order."""
        options = RESNET50 | {"bottleneck": name == "resnet50"}
        net = build("resnet", (3, 224, 224), options, classes=1000)
        reference = torchvision.models.get_model(name).eval()
        weights = reference.state_dict().values()
        net.load_state_dict(dict(zip(net.state_dict(), weights, strict=True)))
        assert count_parameters(net) == count_parameters(reference)
        images = random_images(1, 64, seed=3)
        with torch.no_grad():
            torch.testing.assert_close(net(images), reference(images))

    def test_pre_activation_block_passes_its_input(self):
        network = build("resnet", (3, 32, 32), {"width": 4, "blocks": (2,), "pre_activation": True})
        kinds = [type(module).__name__ for module in network]
        body = "Conv2d PreActivationBlock PreActivationBlock BatchNorm2d ReLU"
        assert kinds == f"{body} AdaptiveAvgPool2d Flatten Linear".split()
        stem, first, second = network[0], network[1], network[2]
        for block in (first, second):
            nn.init.zeros_(block.residual[-1].weight)
        images = random_images()
        assert torch.equal(second(first(stem(images))), stem(images))

    @pytest.mark.parametrize("kind", [{}, {"pre_activation": True}, {"bottleneck": True}], ids=str)
    def test_swish_replaces_each_relu(self, kind):
        options = {"width": 4, "blocks": (1, 2), **kind}
        relu = build("resnet", (3, 32, 32), options)
        swish = build("resnet", (3, 32, 32), {**options, "activation": "swish"})
        named = build("resnet", (3, 32, 32), {**options, "activation": "relu"})
        assert named.state_dict().keys() == relu.state_dict().keys()
        kinds = [[type(module) for module in network.modules()] for network in (relu, swish)]
        assert kinds[1] == [nn.SiLU if kind is nn.ReLU else kind for kind in kinds[0]]
        weights = swish.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in relu.state_dict().items())
        images = random_images()
        assert not torch.allclose(swish(images), relu(images))

    def test_stem_decides_the_resolution(self):
        for stem, side in {"cifar": 32, "strided": 16, "imagenet": 8}.items():
            layers = list(build("resnet", (3, 32, 32), {"width": 2, "blocks": (1,), "stem": stem}))
            block = next(n for n, layer in enumerate(layers) if hasattr(layer, "residual"))
            assert nn.Sequential(*layers[: block + 1])(torch.zeros(1, 3, 32, 32)).shape[-1] == side


REFUSED = [
    ("top_gap", (1, 64, 64), TIMM, "colour .* got 1 channels"),
    ("top_gap", (3, 64, 64), {**TIMM, "backbone_options": SLIM}, "no backbone_options"),
    ("top_gap", (3, 64, 64), {"k": 1, "pretrained": True}, "no pretrained weights"),
    ("top_gap", (3, 64, 64), {"k": 1, "backbone": "resnet_18"}, "got 'resnet_18'; similar"),
    ("lenet", (1, 28, 28), {}, r"unknown network 'lenet': did you mean 'lenet5'\?"),
    ("lenet5", (1, 28, 32), {}, "expected square images, got 28 x 32"),
    ("lenet5", (1, 11, 11), {}, "at least 12 pixels a side, got 11"),
    ("fast_vgg", (1, 28, 28), {}, "fast_vgg: expected colour images, got 1 channels"),
    ("convnet", (3, 32, 32), {"widht": 8}, r"network 'convnet': .*'widht'"),
    ("resnet", (3, 32, 32), STEM, "unknown stem 'cifar10': did you mean 'cifar'"),
    ("resnet", (3, 32, 32), {"activation": "swich"}, "'swich': did you mean 'swish'"),
    ("resnet", (3, 32, 32), EXCLUSIVE, "expected bottleneck or pre_activation, got both"),
]
DEPTH = "depth of 10, 16, 22, 28, ..., got"
REFUSED += [("wide_resnet", (3, 32, 32), {"depth": d}, f"{DEPTH} {d}") for d in (4, 11, 27, -2)]


class TestEveryNetwork:
    def test_is_tested_here(self):
        assert {name for name, _, _ in SMALL} == set(NETWORKS)

    @pytest.mark.parametrize(("name", "shape", "options"), SMALL)
    def test_uses_each_activation_once(self, name, shape, options):
        network, calls = build(name, shape, options, classes=7), Counter()
        relus = [module for module in network.modules() if isinstance(module, nn.ReLU)]
        for module in relus:
            module.register_forward_hook(lambda module, *_: calls.update([module]))
        logits = network(torch.rand(2, *shape, requires_grad=True))
        assert (logits.shape, [calls[module] for module in relus]) == ((2, 7), [1] * len(relus))
        assert count_activations_in_graph(logits) == len(relus)

    def test_number_of_parameters(self):
        for name, sizes, options, parameters in (
            ("lenet5", (1, 28, 10), {}, 61_706),
            ("resnet", (3, 32, 10), {}, 11_173_962),
            # 11,171,146 where the last normalisation is left out, as is common.
            ("resnet", (3, 32, 10), {"pre_activation": True}, 11_172_170),
            ("resnet", (3, 224, 1000), RESNET50, 25_557_032),
            # 36.5M in the paper; this is the number in the authors' network for ten classes.
            ("wide_resnet", (3, 32, 10), {}, 36_479_194),
        ):
            with torch.device("meta"):
                network = NETWORKS[name](*sizes, **options)
            assert count_parameters(network) == parameters, name

    def test_seed_decides_weights_and_nothing_else(self):
        before = torch.get_rng_state()
        first, again, third = (build("lenet5", (1, 28, 28), seed=seed) for seed in (5, 5, 6))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))
        assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters()))
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(("name", "shape", "options", "message"), REFUSED)
    def test_refuses(self, name, shape, options, message):
        with pytest.raises(UsageError, match=message):
            build(name, shape, options)


class TestTopGap:
    def test_backbone_of_timm_normalises_its_images(self):
        options = {"k": 0.1, "width": 4, "backbone": "test_efficientnet"}
        network, images = build("top_gap", (3, 64, 64), options), random_images(side=64)
        normalise = network.get_submodule("backbone.0")
        about = timm.create_model("test_efficientnet").pretrained_cfg
        assert normalise.mean.flatten().tolist() == pytest.approx(about["mean"])
        assert normalise.std.flatten().tolist() == pytest.approx(about["std"])
        before = network(images)
        normalise.mean += 0.1
        assert not torch.allclose(network(images), before)

    def test_packaged_backbone_is_trained(self):
        backbone, images = load_pretrained("efficientnet_lite0"), random_images(side=64)
        options = {"k": 0.1, "backbone": "efficientnet_lite0", "width": 4}
        network = build("top_gap", (3, 64, 64), options)
        assert network.class_maps(images).shape == (2, 10, 16, 16)
        assert all(parameter.requires_grad for parameter in network.parameters())
        stem = next(p for name, p in network.named_parameters() if "conv_stem" in name)
        assert any(torch.equal(stem, p) for p in backbone.parameters())
        # Without a pyramid, class maps pool to the logits of the backbone.
        network = build("top_gap", (3, 64, 64), options | {"k": 1.0, "fpn": False})
        head = backbone[1]._fc
        rows = {"weight": head.weight[:10, :, None, None], "bias": head.bias[:10]}
        network.classifier.load_state_dict(rows)
        torch.testing.assert_close(network(images), backbone(images)[:, :10], rtol=1e-4, atol=1e-4)

    def test_enlarges_images(self):
        options = {"k": 0.1, "backbone": "efficientnet_lite0", "width": 4}
        network = build("top_gap", (3, 32, 32), options | {"magnify": 2}).eval()
        plain, images = build("top_gap", (3, 64, 64), options).eval(), random_images()
        large = nn.functional.interpolate(images, scale_factor=2, mode="bilinear")
        torch.testing.assert_close(network(images), plain(large))
