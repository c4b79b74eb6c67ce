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
STEM, BOTH = {"stem": "cifar10"}, {"bottleneck": True, "pre_activation": True}
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


def count(network):
    return sum(p.numel() for p in network.parameters())


def activations_in_graph(logits):
    """Count ReLU nodes in the graph: a functional call would be one more than there are modules."""
    seen, todo, found = set(), [logits.grad_fn], 0
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += node.name().startswith("ReluBackward")
        todo += [parent for parent, _ in node.next_functions]
    return found


def test_mlp_has_two_hidden_layers_of_256_units():
    sizes = [(m.in_features, m.out_features) for m in MLP(1, (56, 28), 10) if hasattr(m, "weight")]
    assert sizes == [(1568, 256), (256, 256), (256, 10)]


class TestVGG11:
    def test_has_the_convolutions_of_its_authors(self):
        reference = torchvision.models.vgg11(num_classes=10)
        with torch.device("meta"):
            ours = VGG11(3, 32, 10)
        shapes = [
            [m.weight.shape for m in network.modules() if isinstance(m, nn.Conv2d)]
            for network in (ours, reference)
        ]
        assert shapes[0] == shapes[1]
        pools, activations = (
            sum(isinstance(m, kind) for m in ours) for kind in (nn.MaxPool2d, nn.ReLU)
        )
        assert (pools, activations) == (5, 8)

    def test_signal_does_not_fade(self):
        network = build("vgg11", (3, 32, 32), {"width": 16})
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert nn.Sequential(*list(network)[:-1])(images).std() > 0.1


def test_convnet_has_six_convolutions_of_its_width():
    network = build("convnet", (3, 32, 32), {"width": 5})
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convolutions] == [5] * 6
    assert [conv.stride[0] for conv in convolutions] == [1, 1, 2, 1, 2, 1]


class TestResNet:
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (RESNET50, torchvision.models.resnet50),
            ({"blocks": (3, 4, 6, 3)}, torchvision.models.resnet34),
        ],
        ids=["resnet50", "resnet34"],
    )
    def test_agrees_with_torchvision(self, ours, theirs):
        """With the very weights of torchvision's network, in the order in which both list them."""
        own = build("resnet", (3, 224, 224), {**ours, "stem": "imagenet"}, classes=1000)
        other = theirs().eval()
        weights = zip(own.state_dict(), other.state_dict().values(), strict=True)
        own.load_state_dict(dict(weights))
        assert count(own) == count(other)
        images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            torch.testing.assert_close(own(images), other(images))

    def test_pre_activation_block_passes_its_input_on(self):
        network = build("resnet", (3, 32, 32), {"width": 4, "blocks": (2,), "pre_activation": True})
        kinds = [type(module).__name__ for module in network]
        body = "Conv2d PreActivationBlock PreActivationBlock BatchNorm2d ReLU"
        assert kinds == f"{body} AdaptiveAvgPool2d Flatten Linear".split()
        stem, first, second = network[0], network[1], network[2]
        for block in (first, second):
            nn.init.zeros_(block.residual[-1].weight)
        images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        assert torch.equal(second(first(stem(images))), stem(images))

    @pytest.mark.parametrize("kind", [{}, {"pre_activation": True}, {"bottleneck": True}], ids=str)
    def test_swish_takes_the_place_of_each_relu(self, kind):
        options = {"width": 4, "blocks": (1, 2), **kind}
        relu = build("resnet", (3, 32, 32), options)
        assert build(
            "resnet", (3, 32, 32), {**options, "activation": "relu"}
        ).state_dict().keys() == (relu.state_dict().keys())
        swish = build("resnet", (3, 32, 32), {**options, "activation": "swish"})
        kinds = [[type(module) for module in network.modules()] for network in (relu, swish)]
        assert kinds[1] == [nn.SiLU if kind is nn.ReLU else kind for kind in kinds[0]]
        weights = swish.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in relu.state_dict().items())
        images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
        assert not torch.allclose(swish(images), relu(images))

    @pytest.mark.parametrize(
        ("stem", "side"), [("cifar", 32), ("strided", 16), ("imagenet", 8)], ids=lambda v: str(v)
    )
    def test_stem_decides_the_resolution(self, stem, side):
        network = build("resnet", (3, 32, 32), {"width": 2, "blocks": (1,), "stem": stem})
        sides = []
        block = next(module for module in network if hasattr(module, "residual"))
        block.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[-1]))
        network(torch.zeros(1, 3, 32, 32))
        assert sides == [side]


class TestLeNet5:
    def test_layers(self):
        kinds = Counter(type(module) for module in LeNet5(1, 28, 10))
        assert kinds == {nn.Conv2d: 2, nn.MaxPool2d: 2, nn.Flatten: 1, nn.Linear: 3, nn.ReLU: 4}


class TestEveryNetwork:
    def test_is_tested_here(self):
        assert {name for name, _, _ in SMALL} == set(NETWORKS)

    @pytest.mark.parametrize(("name", "shape", "options"), SMALL)
    def test_gives_a_logit_for_each_class(self, name, shape, options):
        network = build(name, shape, options, classes=7)
        assert network(torch.zeros(2, *shape)).shape == (2, 7)

    @pytest.mark.parametrize(("name", "shape", "options"), SMALL)
    def test_uses_each_activation_module_once(self, name, shape, options):
        network = build(name, shape, options)
        calls = Counter()
        relus = [module for module in network.modules() if isinstance(module, nn.ReLU)]
        for module in relus:
            module.register_forward_hook(lambda module, *_: calls.update([module]))
        logits = network(torch.rand(1, *shape, requires_grad=True))
        assert [calls[module] for module in relus] == [1] * len(relus)
        assert activations_in_graph(logits) == len(relus)

    @pytest.mark.parametrize(
        ("name", "shape", "classes", "options", "parameters"),
        [
            ("lenet5", (1, 28, 28), 10, {}, 61_706),
            ("resnet", (3, 32, 32), 10, {}, 11_173_962),
            # 11,171,146 where the last normalisation is left out, as is common.
            ("resnet", (3, 32, 32), 10, {"pre_activation": True}, 11_172_170),
            ("resnet", (3, 224, 224), 1000, RESNET50, 25_557_032),
            # 36.5M in the paper; this is the count of the authors' network for ten classes.
            ("wide_resnet", (3, 32, 32), 10, {}, 36_479_194),
        ],
    )
    def test_number_of_parameters(self, name, shape, classes, options, parameters):
        with torch.device("meta"):
            assert count(NETWORKS[name](shape[0], shape[1], classes, **options)) == parameters

    def test_same_seed_same_weights_and_another_seed_others(self):
        first, again, other = (build("lenet5", (1, 28, 28), seed=seed) for seed in (5, 5, 6))
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))
        assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters()))

    def test_leaves_the_global_random_state(self):
        before = torch.get_rng_state()
        build("lenet5", (1, 28, 28), seed=3)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("name", "shape", "options", "message"),
        [
            ("top_gap", (1, 64, 64), TIMM, "colour .* got 1 channels"),
            ("top_gap", (3, 64, 64), {**TIMM, "backbone_options": SLIM}, "no backbone_options"),
            ("top_gap", (3, 64, 64), {"k": 1, "pretrained": True}, "no pretrained weights"),
            ("top_gap", (3, 64, 64), {"k": 1, "backbone": "resnet_18"}, "got 'resnet_18'; near it"),
            ("lenet", (1, 28, 28), {}, r"unknown network 'lenet': did you mean 'lenet5'\?"),
            ("lenet5", (1, 28, 32), {}, "expected square images, got 28 x 32"),
            ("lenet5", (1, 11, 11), {}, "at least 12 pixels a side, got 11"),
            ("convnet", (3, 32, 32), {"widht": 8}, r"network 'convnet': .*'widht'"),
            ("resnet", (3, 32, 32), STEM, "unknown stem 'cifar10': did you mean 'cifar'"),
            ("resnet", (3, 32, 32), {"activation": "swich"}, "'swich': did you mean 'swish'"),
            ("resnet", (3, 32, 32), BOTH, "expected bottleneck or pre_activation, got both"),
            *(
                ("wide_resnet", (3, 32, 32), {"depth": d}, f"depth of 10, 16, 22, 28, ..., got {d}")
                for d in (4, 11, 27, -2)
            ),
        ],
    )
    def test_refuses(self, name, shape, options, message):
        with pytest.raises(UsageError, match=message):
            build(name, shape, options)


class TestTopGap:
    def test_backbone_of_timm_normalises_its_images(self):
        options = {"k": 0.1, "width": 4, "backbone": "test_efficientnet"}
        network = build("top_gap", (3, 64, 64), options).eval()
        normalise = network.get_submodule("backbone.0")
        about = timm.create_model("test_efficientnet").pretrained_cfg
        assert normalise.mean.flatten().tolist() == pytest.approx(about["mean"])
        assert normalise.std.flatten().tolist() == pytest.approx(about["std"])
        images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        before = network(images)
        normalise.mean += 0.1
        assert not torch.allclose(network(images), before)

    def test_weights_of_a_packaged_backbone_are_trained_on(self):
        options = {"k": 0.1, "backbone": "efficientnet_lite0", "width": 4}
        network = build("top_gap", (3, 64, 64), options)
        maps = network.class_maps(torch.rand(1, 3, 64, 64))
        assert maps.shape == (1, 10, 16, 16)
        assert all(parameter.requires_grad for parameter in network.parameters())
        stem = next(p for name, p in network.named_parameters() if "conv_stem" in name)
        packaged = dict(load_pretrained("efficientnet_lite0").named_parameters())
        assert any(torch.equal(stem, p) for p in packaged.values())

    def test_class_maps_pool_to_the_own_logits_without_a_pyramid(self):
        """Its last activation is a module that it uses elsewhere too."""
        whole = load_pretrained("efficientnet_lite0")
        options = {"k": 1.0, "backbone": "efficientnet_lite0", "fpn": False}
        network = build("top_gap", (3, 64, 64), options).eval()
        head = whole[1]._fc
        rows = {"weight": head.weight[:10, :, None, None], "bias": head.bias[:10]}
        network.classifier.load_state_dict(rows)
        images = torch.rand(2, 3, 64, 64)
        torch.testing.assert_close(network(images), whole(images)[:, :10], rtol=1e-4, atol=1e-4)
