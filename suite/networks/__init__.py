"""Networks that the papers train, defences that change them, and pretrained networks."""

from suite.networks.architectures import NETWORKS, ResNet, build_network
from suite.networks.defences import is_activation, with_softplus
from suite.networks.pretrained import PRETRAINED, load_pretrained, pretrained_weights, title
