"""How much each pixel of an image contributes to one location of its class maps."""

from typing import Literal

import torch
from torch import Tensor

from reglib.autodiff import Map, input_gradient
from suite.errors import expected

Part = Literal["distance", "centre", "corner"]


def effective_receptive_field(maps_of: Map, images: Tensor, *, location: tuple[int, int]) -> Tensor:
    r"""Differentiate a location of the maps, summed over channels, with respect to the pixels.

    .. math:: \text{ERF}_{ij} = \sum_t \frac{\partial X^{(n+1)}_{location, t}}{\partial x_{ij}}

    Args:
        maps_of: from images to maps (B, channels, h, w), such as `TopGAPNet.class_maps` in
            evaluation mode, where samples do not influence one another.
        images: (B, C, H, W).
        location: row and column in the maps, from 0; negative ones count from the end.

    Returns:
        The gradient, (B, C, H, W).

    Raises:
        UsageError: no such location.
        ValueError: maps that do not depend on the images.

    Source: definition 3.1 of :cite:t:`topgap`, after :cite:t:`luo2016`.
    """
    x = images.detach().requires_grad_()
    with torch.enable_grad():
        maps = maps_of(x)
        row, column = location
        height, width = maps.shape[-2:]
        if not (-height <= row < height and -width <= column < width):
            inside = f"a row and a column of maps of {height} x {width}"
            raise expected("location", inside, location)
        return input_gradient(maps[:, :, row, column], x)


def erf_distance(maps_of: Map, images: Tensor, *, part: Part = "distance") -> Tensor:
    r"""Subtract the effective receptive field of the corner of the maps from that of the centre.

    .. math:: \text{ERF}(l) = \frac{1}{n} \sum_{ij} \left| z_{ij}(l) \right|, \qquad
       \text{ERF}(\text{centre}) - \text{ERF}(\text{corner})

    Each gradient is normalised to mean 0 and standard deviation 1. So ERF measures how evenly a
    gradient is spread, not how large it is: 0.8 for normal values, next to 0 if a few pixels have
    all of it.

    Args:
        maps_of, images: see `effective_receptive_field`. The corner is (0, 0), the centre
            ((h - 1) // 2, (w - 1) // 2): the fourth of seven, as in the paper.
        part: "distance" for the difference; "centre" or "corner" for the mean absolute gradient of
            that location.

    Returns:
        One value for each image, (B,); zero where a gradient is constant.

    Raises:
        UsageError: maps smaller than 3 x 3, whose centre would be the corner.
        ValueError: maps that do not depend on the images.

    Source: definition 4.1 and section B.1 of :cite:t:`topgap`, which does not say over which values
    the gradients are normalised.
    """
    with torch.no_grad():
        height, width = maps_of(images[:1]).shape[-2:]
    check_map_size(height, width)
    locations = ((height - 1) // 2, (width - 1) // 2), (0, 0)
    pair = [effective_receptive_field(maps_of, images, location=place) for place in locations]
    fields = torch.stack(pair, dim=1).flatten(2)  # (B, 2, C * H * W)
    spread = fields.std(2, correction=0, keepdim=True)
    fields = (fields - fields.mean(2, keepdim=True)) / torch.where(spread > 0, spread, 1)
    middle, corner = fields.abs().mean(2).T
    return {"distance": middle - corner, "centre": middle, "corner": corner}[part]


def check_map_size(height: int, width: int) -> None:
    """Raise a UsageError if the centre of maps of this size is their corner."""
    if min(height, width) < 3:
        larger = "maps of at least 3 x 3, or the position called the centre is the corner"
        got = f"{height} x {width}; leave out a stride, or give larger images"
        raise expected("maps_of", larger, got)
