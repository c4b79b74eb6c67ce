r"""Definitions and equation 1 of Top-GAP, each checked in float64, as printed or as read here.

With a plain sum of strength :math:`\mu`, empty maps minimise equation 1 if :math:`\mu k \ge 1 -
1/C`, for C classes. For the cross-entropy is convex in the logits, its slopes at 0 are at most
:math:`1 - 1/C`, and a logit is at most :math:`\lVert X_t \rVert_1 / k`:

.. math:: \text{CE}(\text{Top-GAP}(X, k)) + \mu \lVert X \rVert_1
   \ge \ln C + \bigl(\mu - \tfrac{1 - 1/C}{k}\bigr) \lVert X \rVert_1 .

The norm is that of one image, and both terms are averaged over images.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.autodiff import input_gradient
from reglib.top_gap import class_map_l1, scaled_maps, top_gap
from suite.metrics import effective_receptive_field, erf_distance
from suite.networks import build_network
from suite.papers.pilcro_equations import Check, draw, tabulate

CLASSES, K, LEAST = 10, 4, 0.9 / 4  # of free maps, and the least μ that empties them


def table(*parts: Callable[..., Iterator[Check]]) -> pd.DataFrame:
    """Return a row for each check of some parts, by default of all: see `tabulate`."""
    return tabulate("top_gap", parts or (_definitions, _bound, _minimum, _fields))


def _network(**options: Any) -> Any:
    options |= {"k": 3, "width": 3, "backbone_options": {"width": 2, "blocks": (1, 1)}}
    return build_network("top_gap", (1, 16, 16), 4, options=options, seed=0).double().eval()


def _definitions(source: torch.Generator) -> Iterator[Check]:
    """Pool random maps, and differentiate logits of a network without pyramid by its features."""
    maps = draw(source, 3, 4, 5, 6).requires_grad_()
    yield "max", top_gap(maps, k=1), maps.amax((2, 3))
    yield "mean", top_gap(maps, k=30), maps.mean((2, 3))
    mean, total = class_map_l1(maps), maps.abs().sum((1, 2, 3)) / (4 * 5 * 6)
    yield "norm", input_gradient(mean, maps), input_gradient(total, maps)

    images, labels, network = draw(source, 8, 1, 16, 16), torch.arange(8) % 4, _network(fpn=False)
    features = network.backbone(images)[0].detach().requires_grad_()
    logits = network.pool(network.classifier(features))[torch.arange(8), labels]
    weighted = input_gradient(logits, features).mean((2, 3), keepdim=True) * features
    by_autograd = scaled_maps(weighted.sum(1).relu(), (16, 16))
    yield "grad-cam", network.class_activation_maps(images, labels), by_autograd


def _entropy(maps: Tensor) -> Tensor:
    """Return the cross-entropy of each image, (B,), whose labels are 0 to 9, again and again."""
    labels = torch.arange(len(maps)) % CLASSES
    return F.cross_entropy(top_gap(maps, k=K), labels, reduction="none")


def _bound(source: torch.Generator) -> Iterator[Check]:
    """Draw maps of all sizes, dense and sparse."""
    size, share = 10 ** (3 * torch.rand(2, 5000, 1, 1, 1, generator=source) - 2)
    maps = size * draw(source, 5000, CLASSES, 5, 5)
    maps *= torch.rand(maps.shape, generator=source) < share
    excess = _entropy(maps) + LEAST * maps.abs().sum((1, 2, 3)) - math.log(CLASSES)
    yield "bound", excess.relu(), excess


def _minimum(source: torch.Generator) -> Iterator[Check]:
    """Minimise equation 1 over the maps of an image of each class, by proximal gradient descent."""
    for key, share, kept in (("below", 0.95, K), ("above", 1.05, 0)):
        maps = draw(source, CLASSES, CLASSES, 5, 5) / 10
        for _ in range(200):
            slope = input_gradient(_entropy(maps.requires_grad_()), maps)
            maps = F.softshrink(maps - K * slope, K * share * LEAST).detach()
        yield key, maps.eq(0).sum((2, 3)), 25 - kept * torch.eye(CLASSES)


def _fields(source: torch.Generator) -> Iterator[Check]:
    """Differentiate by central differences."""
    network, image = _network(), draw(source, 1, 1, 16, 16)
    steps = 1e-5 * torch.eye(256, dtype=image.dtype).view(256, 1, 16, 16)
    layers = {"class maps": network.class_maps, "features": lambda x: network.backbone(x)[-1]}
    slopes = {}  # of the sum over channels, (pixels, h, w)
    for key, layer in layers.items():
        slopes[key] = (layer(image + steps) - layer(image - steps)).sum(1) / 2e-5
        field = effective_receptive_field(layer, image, location=(3, 5))
        yield key, field.flatten(), slopes[key][:, 3, 5]
    pair = slopes["class maps"][:, [7, 0], [7, 0]].T  # the centre and the corner
    each = torch.std_mean(pair, 1, correction=0, keepdim=True)
    for key, (std, mean) in {"each": each, "together": torch.std_mean(pair, correction=0)}.items():
        centre, corner = ((pair - mean) / std).abs().mean(1)
        yield key, erf_distance(network.class_maps, image), centre - corner
