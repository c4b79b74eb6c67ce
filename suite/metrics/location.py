"""Is an object recognised wherever it lies?"""

from collections.abc import Callable

import torch
from torch import Tensor

from suite.errors import expected


@torch.no_grad()
def correct_by_location(
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    *,
    margin: int,
    stride: int = 1,
) -> Tensor:
    """Shift images over their empty margin, and see where they are classified right.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W), each with one colour in a margin around its object.
        labels: class indices, (B,).
        margin: width of the margin, from 0; shifts go from `-margin` to `margin`.
        stride: pixels from one shift to the next; divides `margin`.

    Returns:
        1 where the class of highest logit is the label, else 0: (B, n, n), shifts down first, then
        to the right, with `n = 2 margin // stride + 1`.

    Raises:
        UsageError: `margin` or `stride` is out of its range, or an image has more in its margin.
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
        one = f"one colour in a margin of {margin} pixels"
        raise expected("images", one, f"others in image {filled[0]}")
    shifts = range(-margin, margin + 1, stride)
    # The margin is of one colour, so what leaves on one side is what enters on the other.
    moved = (images.roll((down, across), (2, 3)) for down in shifts for across in shifts)
    right = torch.stack([(model(shown).argmax(1) == labels).double() for shown in moved], 1)
    return right.view(len(images), len(shifts), len(shifts))


def centre_to_rim(landscape: Tensor) -> Tensor:
    r"""Compare the middle of a map with its border.

    .. math:: \frac{\text{mean over the middle half of the rows and columns}}
       {\text{mean over the outermost eighth on each side}}

    Args:
        landscape: (H, W), at least eight positions a side.

    Returns:
        One value; 1 for a flat map.

    >>> centre_to_rim(torch.ones(16, 16))
    tensor(1.)
    """
    height, width = landscape.shape
    top, left = height // 4, width // 4
    rim = torch.ones_like(landscape, dtype=torch.bool)
    rim[height // 8 : height - height // 8, width // 8 : width - width // 8] = False
    return landscape[top : height - top, left : width - left].mean() / landscape[rim].mean()
