r"""Top-GAP: a prior on the size of the image regions that a network uses.

>>> import torch
>>> layers = torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 8, 3, stride=2)
>>> backbone = torch.nn.Sequential(*layers, torch.nn.ReLU())
>>> network = TopGAPNet(backbone, 10, k=0.1, width=8, image_size=32)
>>> maps = network.class_maps(torch.rand(2, 1, 32, 32))  # (2, 10, 32, 32)
>>> logits = network.pool(maps)  # the output of network(images)
>>> class_map_l1(maps).shape, logits.shape
(torch.Size([2]), torch.Size([2, 10]))
>>> logits, l1 = top_gap_and_l1(maps, k=0.1)  # both, on CUDA in one pass
"""

from reglib.top_gap.backbones import FeatureMap, feature_maps
from reglib.top_gap.network import TopGAPNet, scaled_maps
from reglib.top_gap.pooling import Pooled, TopGAP, class_map_l1, top_gap, top_gap_and_l1

__all__ = [
    "FeatureMap", "Pooled", "TopGAP", "TopGAPNet", "class_map_l1", "feature_maps",
    "scaled_maps", "top_gap", "top_gap_and_l1",
]  # fmt: skip
