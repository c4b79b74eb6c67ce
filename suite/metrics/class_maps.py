"""Sparsity, entropy and position of maps, their overlap with the object, and their scale."""

import torch
from torch import Tensor

from suite.errors import expected


def map_sparsity(maps: Tensor) -> Tensor:
    r"""Average a class activation map: the smaller, the fewer pixels it marks.

    .. math:: \frac{1}{n m} \| X \|_1

    Args:
        maps: class maps of the label, upsampled and scaled to [0, 1], (B, H, W).

    Returns:
        One value in [0, 1] for each image, (B,).

    Raises:
        UsageError: maps that are not scaled.

    Source: section 4.2 of :cite:t:`topgap`.

    >>> map_sparsity(torch.tensor([[[0.0, 1.0], [0.5, 0.5]]]))
    tensor([0.5000])
    """
    _check_maps(maps)
    return maps.mean((1, 2))


def entropy(maps: Tensor) -> Tensor:
    r"""Compute the entropy of the shares that the pixels have in a map.

    .. math:: -\sum_i P_i \ln P_i, \qquad P_i = \frac{|a_i|}{\sum_j |a_j|}

    It is zero for a map with one non-zero pixel, and :math:`\ln n` for a uniform map.

    Args:
        maps: saliency, (B, C, H, W); channels are summed before the absolute value.

    Returns:
        One value in nats for each image, (B,); NaN where the map is zero.

    Source: :cite:t:`bhatt2020`, as in section 3.2 of :cite:t:`demoor2025`.

    >>> entropy(torch.ones(1, 1, 2, 2)).exp()
    tensor([4.])
    """
    shares = maps.sum(1).flatten(1).abs()
    shares = shares / shares.sum(1, keepdim=True)
    # 0 ln 0 is 0: the bound only keeps the logarithm finite, and it is faster than xlogy.
    logs = shares.clamp_min(torch.finfo(shares.dtype).tiny).log()
    return -(shares * logs).sum(1)


def centre_to_rim(landscape: Tensor) -> Tensor:
    r"""Divide the mean of the middle of a map by the mean of its border.

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


def largest_mask_iou(maps: Tensor, masks: Tensor) -> Tensor:
    r"""Compute the largest intersection over union that any threshold gives, for each image.

    .. math:: \max_\theta \frac{|\{X \ge \theta\} \cap M|}{|\{X \ge \theta\} \cup M|}

    This is our reading of "the predicted mask that has the largest overlap with the ground truth".
    A threshold that is chosen by the mask flatters every method. A map that marks everything still
    gets the share of the image that the object covers.

    Args:
        maps: scaled to [0, 1], (B, H, W).
        masks: True where the object is, (B, H, W).

    Returns:
        One value in (0, 1] for each image, (B,).

    Raises:
        UsageError: maps that are not scaled; masks of another shape, not of booleans, or empty.

    Source: appendix D of :cite:t:`topgap`.
    """
    _check_maps(maps)
    _check_masks(masks, tuple(maps.shape))
    values, order = maps.flatten(1).sort(1, descending=True)
    inside = masks.flatten(1).gather(1, order).cumsum(1)
    marked = torch.arange(1, values.shape[1] + 1, device=maps.device)
    iou = inside / (marked + inside[:, -1:] - inside)
    # Equal values are marked together: a threshold lies between two different values.
    between = torch.ones_like(order, dtype=torch.bool)
    between[:, :-1] = values[:, :-1] > values[:, 1:]
    return torch.where(between, iou, 0).amax(1)


def mask_iou_beyond_others(maps: Tensor, masks: Tensor, labels: Tensor) -> Tensor:
    r"""Compute how much more a map overlaps with the mask of its image than with other masks.

    .. math:: \text{IOU}(X_i, M_i) - \operatorname{mean}_{j \ne i,\, y_j = y_i} \text{IOU}(X_i, M_j)

    with the largest overlap over all thresholds. A map that marks the usual position of a class,
    whatever the image shows, has 0 on average. A map that equals the mask has the difference
    between the masks of its class.

    Args:
        maps, masks: see `largest_mask_iou`.
        labels: class indices, (B,).

    Returns:
        One value in (-1, 1) for each image, (B,); NaN where no other image has its class.

    Raises:
        UsageError: see `largest_mask_iou`.

    Source: added here to appendix D of :cite:t:`topgap`.
    """
    overlap = largest_mask_iou(maps, masks)
    others = torch.full_like(overlap, torch.nan)
    for n, label in enumerate(labels.tolist()):
        same = (labels == label).to(masks.device)
        same[n] = False
        if same.any():
            peers = masks[same]
            others[n] = largest_mask_iou(maps[n].expand(len(peers), -1, -1), peers).mean()
    return overlap - others


def feature_leakage(maps: Tensor, masks: Tensor, *, relative: bool = False) -> Tensor:
    r"""Compute the norm of saliency maps on features that say nothing about the class.

    .. math:: \| m \odot a(x) \|_F \qquad \text{or, relative,} \qquad
       \frac{\| m \odot a(x) \|_F}{\| a(x) \|_F}

    The first is the published measure, which the paper averages over images. It is smaller for a
    network with smaller logits, whatever the network looks at. The second does not depend on the
    scale of the logits.

    Args:
        maps: signed saliency, (B, C, H, W): Integrated Gradients in the paper, see
            `suite.metrics.saliency.integrated_gradients`.
        masks: True on the uninformative features, (B, 1, H, W) or of the shape of `maps`.
        relative: return the share of the map's norm.

    Returns:
        One value for each image, (B,); the relative value is NaN where the map is zero.

    Raises:
        UsageError: masks that are not boolean, of another size, or that mark nothing.

    Source: equation 9 of :cite:t:`yang2024`. As printed, it integrates along a path on which only
    the null block changes; the maps in its figures, and this function, are of whole images.
    """
    n, channels, height, width = maps.shape
    _check_masks(masks, (n, 1, height, width), (n, channels, height, width))
    absolute = (maps * masks).flatten(1).norm(dim=1)
    return absolute / maps.flatten(1).norm(dim=1) if relative else absolute


def normalised_for_display(maps: Tensor) -> Tensor:
    r"""Bring maps to [0, 1] without a sign, as the paper draws them.

    .. math:: \min \Bigl( \frac{s}{q}, 1 \Bigr), \qquad s = \sum_{\text{channels}} |a|

    with `q` the 99th percentile of `s` over the pixels of an image. Where `q` is zero, in a map of
    few pixels, the largest value replaces it.

    Args:
        maps: saliency, (B, C, H, W).

    Returns:
        Maps (B, H, W), zero where the saliency is zero.

    Source: appendix D of :cite:t:`singla2019`, after :cite:t:`smilkov2017`, whose program also
    subtracts the smallest value.

    >>> normalised_for_display(torch.tensor([[[[1.0, -2.0, 4.0]]]]))
    tensor([[[0.2525, 0.5051, 1.0000]]])
    """
    flat = maps.abs().sum(1).flatten(1)
    cap = torch.quantile(flat, 0.99, dim=1, keepdim=True)
    cap = torch.where(cap > 0, cap, flat.amax(1, keepdim=True))
    scaled = flat / torch.where(cap > 0, cap, 1)
    return scaled.clamp_max(1).unflatten(1, maps.shape[2:])


def _check_maps(maps: Tensor) -> None:
    if maps.ndim != 3 or not bool(((maps >= 0) & (maps <= 1)).all()):
        got = f"shape {tuple(maps.shape)} and {float(maps.min()):.3g} to {float(maps.max()):.3g}"
        got += "; see reglib.top_gap.scaled_maps"
        raise expected("maps", "class activation maps (B, H, W) with values in [0, 1]", got)


def _check_masks(masks: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raise a UsageError unless masks are booleans of a shape, (B, ...), and none is empty."""
    if masks.shape not in shapes or masks.dtype != torch.bool:
        valid = f"booleans of shape {shapes[0]} like the maps"
        raise expected("masks", valid, f"{masks.dtype} of shape {tuple(masks.shape)}")
    if empty := (~masks.flatten(1).any(1)).nonzero()[:, 0].tolist():
        others = f" and {len(empty) - 1} more" if empty[1:] else ""
        got = f"an empty mask for image {empty[0]}{others}; does it lie outside?"
        raise expected("masks", "an object in every image", got)
