"""What is left of a prediction when the pixels that matter most are taken away?"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from suite.metrics.insertion import scores_by_count


def ablation_curve(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    maps: Tensor,
    *,
    counts: Sequence[int],
    max_bytes: int | None = None,
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
    # Ablation by k is insertion of the image into its mean, with both exchanged.
    means = images.mean((2, 3), keepdim=True).expand_as(images)
    scores = scores_by_count(
        maps,
        model,
        means,
        images,
        class_index,
        torch.tensor([0, *counts], device=images.device),
        score="probability",
        max_bytes=max_bytes,
    )
    return scores[:, 1:] / scores[:, :1]
