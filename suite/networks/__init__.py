"""Networks that the papers train, defences that change them, and pretrained networks."""

from suite.networks.architectures import (
    MLP,
    NETWORKS,
    VGG11,
    ConvNet,
    LeNet5,
    ResNet,
    build_network,
    wide_resnet,
)
from suite.networks.blocks import BasicBlock
from suite.networks.defences import is_activation, with_softplus
from suite.networks.pretrained import (
    PRETRAINED,
    check_weights,
    load_pretrained,
    network_inputs,
    pretrained_weights,
)

__all__ = [
    "MLP",
    "NETWORKS",
    "PRETRAINED",
    "VGG11",
    "BasicBlock",
    "ConvNet",
    "LeNet5",
    "ResNet",
    "build_network",
    "check_weights",
    "is_activation",
    "load_pretrained",
    "network_inputs",
    "pretrained_weights",
    "title",
    "wide_resnet",
    "with_softplus",
]

_TITLES = {
    "efficientnet_lite0": "EfficientNet-Lite0",
    "efficientnet_lite0_smooth": "smooth EfficientNet-Lite0",
    "resnet50": "ResNet-50",
    "se_resnet50": "SE-ResNet-50",
    "top_gap": "ResNet with Top-GAP",
    "lenet5": "LeNet-5",
    "resnet": "ResNet",
    "mlp": "MLP",
    "vgg11": "VGG-11",
    "wide_resnet": "WideResNet",
}


def title(name: str) -> str:
    """Return the name of a network as figures show it.

    >>> title("lenet5")
    'LeNet-5'
    """
    return _TITLES.get(name, name)
