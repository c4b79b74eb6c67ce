"""Accuracy by the location of an object, and by the group of an image."""

import torch
from torch import Tensor

from reglib.autodiff import Map
from reglib.regularizers.groups import count_groups
from suite.errors import expected


@torch.no_grad()
def correct_by_location(
    model: Map, images: Tensor, labels: Tensor, *, margin: int, stride: int = 1
) -> Tensor:
    """Shift images over their empty margins, and record where they are classified correctly.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W), each with a margin of one colour around its object.
        labels: class indices, (B,).
        margin: width of the margin, from 0; shifts go from `-margin` to `margin`.
        stride: pixels from one shift to the next; divides `margin`.

    Returns:
        1 where the class of highest logit is the label, else 0: (B, n, n), shifts down first, then
        to the right, with `n = 2 margin // stride + 1`.

    Raises:
        UsageError: `margin` or `stride` is out of its range, or a margin has several colours.
    """
    height, width = images.shape[2:]
    if not 0 <= 2 * margin < min(height, width):
        most = f"a number from 0 to less than half of {height} x {width} pixels"
        raise expected("margin", most, margin)
    if stride < 1 or margin % stride:
        raise expected("stride", f"a divisor of the margin {margin}", stride)
    outside = torch.ones(height, width, dtype=torch.bool, device=images.device)
    outside[margin : height - margin, margin : width - margin] = False
    border = images[:, :, outside]  # (B, C, P)
    if filled := (border != border[:, :, :1]).flatten(1).any(1).nonzero()[:, 0].tolist():
        valid = f"one colour in a margin of {margin} pixels"
        raise expected("images", valid, f"others in image {filled[0]}")
    shifts = range(-margin, margin + 1, stride)
    # The margin has one colour, so the pixels that leave on one side may enter on the other.
    shifted = (images.roll((down, across), (2, 3)) for down in shifts for across in shifts)
    correct = torch.stack([(model(x).argmax(1) == labels).double() for x in shifted], 1)
    return correct.view(len(images), len(shifts), len(shifts))


def group_accuracies(correct: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Compute the accuracy within each group.

    The worst-group accuracy is the smallest value; the overall accuracy is `correct.mean()`.

    Args:
        correct: 1 where an image is classified correctly, else 0, (B,).
        groups: group of each image, (B,), integers below `n_groups`.
        n_groups: number of groups.

    Returns:
        One value in [0, 1] for each group, (n_groups,).

    Raises:
        ValueError: an image without a group, or a group without images.

    Source: :cite:t:`sagawa2020`.

    >>> group_accuracies(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]), 2).amin()
    tensor(0.5000)
    """
    counts = count_groups(groups, len(correct), n_groups)
    return correct.new_zeros(n_groups).index_add(0, groups, correct) / counts
