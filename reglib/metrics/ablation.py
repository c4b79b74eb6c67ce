"""What is left of a prediction when the pixels that matter most are taken away?"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reglib.metrics.chunks import CHUNK_BYTES, chunk_size


@torch.no_grad()
def ablation_curve(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    maps: Tensor,
    *,
    counts: Sequence[int],
    max_bytes: int = CHUNK_BYTES,
) -> Tensor:
    r"""Replace the `k` pixels of largest saliency by the mean of the image, for several `k`.

    .. math:: r_k = \frac{p_c(x^{(k)})}{p_c(x)}

    where :math:`x^{(k)}` has in each replaced pixel the mean of the channel over the image.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        maps: saliency, (B, C, H, W), signed; channels are summed, since a pixel is replaced in all.
        counts: numbers of pixels `k`, from 0 to H W.
        max_bytes: memory of the changed images held at a time.

    Returns:
        The ratios, (B, len(counts)), 1 for `k` of zero.

    Raises:
        ValueError: a count that is out of its range, or maps of another size.

    Source: section 4.1.2 of :cite:t:`moens2020`.
    """
    n_pixels = images[0, 0].numel()
    if not counts or not all(0 <= k <= n_pixels for k in counts):
        raise ValueError(f"counts: expected numbers from 0 to {n_pixels}, got {list(counts)}")
    if maps.shape[::2] != images.shape[::2] or maps.shape[3] != images.shape[3]:
        raise ValueError(
            f"maps: expected the size of images {tuple(images.shape)}, got {tuple(maps.shape)}"
        )
    order = maps.sum(1).flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(1)  # (B, P): 0 for the pixel of largest saliency
    means = images.mean((2, 3))  # (B, C)
    thresholds = torch.tensor(list(counts), device=images.device)
    size = chunk_size(images, max_bytes)
    ratios = []
    for b, c in enumerate(class_index.tolist()):
        before = model(images[b : b + 1]).softmax(1)[0, c]
        after = []
        for some in thresholds.split(size):
            removed = rank[b] < some[:, None]  # (k, P)
            changed = torch.where(removed[:, None], means[b][None, :, None], images[b].flatten(1))
            after.append(model(changed.view(-1, *images.shape[1:])).softmax(1)[:, c])
        ratios.append(torch.cat(after) / before)
    return torch.stack(ratios)


def area_under_curve(curves: Tensor, counts: Sequence[int]) -> Tensor:
    r"""Integrate curves by the trapezoidal rule, over counts scaled to a length of one.

    Args:
        curves: (B, n).
        counts: places of the values, increasing, `n` of at least two.

    Returns:
        One value for each curve, (B,); 1 for a curve of ones.

    >>> area_under_curve(torch.tensor([[1.0, 0.0, 0.0]]), [0, 5, 10])
    tensor([0.2500])
    """
    places = torch.tensor(list(counts), dtype=curves.dtype, device=curves.device)
    return torch.trapezoid(curves, places) / (places[-1] - places[0])
