"""Top-GAP around any convolutional network."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reglib._checks import check_finite, expected
from reglib.top_gap.backbones import FeatureMap, FeatureMaps, backbone_of, extractor, feature_maps
from reglib.top_gap.pooling import TopGAP

LARGEST = 56


class TopGAPNet(nn.Module):
    r"""A convolutional network whose logits are pooled class maps.

    .. math:: X^{(n+1)} &= V * \sum_j \text{up}(W_j * F_j), \\
       \hat y &= \text{softmax}(\text{Top-GAP}(X^{(n+1)}, k))

    Feature maps :math:`F_j` of a backbone go through 3 x 3 convolutions, are upsampled to the
    largest (nearest neighbour, as in the feature pyramid of Lin et al., "Feature pyramid networks
    for object detection" (2017) :cite:p:`lin2017`), added, and convolved to one map for each class.
    Without `fpn` the class maps are made from what the head of the backbone pools: with `k` = 1.0
    that is the unmodified network, if its head is a linear layer behind global average pooling.

    Args:
        backbone: name of a network in timm or torchvision, or a network; a copy of it is used.
        num_classes: number of classes.
        k: number (integer) or fraction (float) of the locations that are pooled.
        fpn: combine several feature maps.
        n_maps: how many, the last ones; default: up to four, none above 56 x 56 for an image of
            `image_size`, which is the size that the paper has for 224 pixels.
        width: filters of the 3 x 3 convolutions.
        dropout: probability to drop a value before the class maps, in training.
        pretrained: load the default weights of a named backbone.
        image_size: height and width that the backbone is made for; any size can be given later.

    Raises:
        ValueError: unknown backbone.
        ValueError: `k`, `n_maps` or `dropout` out of range; a backbone without feature maps that
            shrink, or that torch.fx cannot trace.

    Source: section 3 of anonymous authors, "Top-GAP: integrating size priors in CNNs for more
    robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.
    """

    def __init__(
        self,
        backbone: str | nn.Module,
        num_classes: int,
        *,
        k: int | float,
        fpn: bool = True,
        n_maps: int | None = None,
        width: int = 256,
        dropout: float = 0.0,
        pretrained: bool = False,
        image_size: int = 224,
    ) -> None:
        super().__init__()
        pool = TopGAP(k)
        if isinstance(backbone, str):
            backbone = backbone_of(backbone, pretrained=pretrained)
        listed = feature_maps(backbone, image_size=image_size)
        used = _choose_last(listed, n_maps) if fpn else [listed.final]
        self.backbone = extractor(backbone, [m.name for m in used])
        self.lateral = nn.ModuleList(
            nn.Conv2d(used_map.channels, width, 3, padding=1) for used_map in used if fpn
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Conv2d(width if fpn else listed.final.channels, num_classes, 1)
        self.pool = pool

    def class_maps(self, images: Tensor) -> Tensor:
        """Compute one map for each class, (B, classes, h, w), from images (B, C, H, W)."""
        features = self.backbone(images)
        if len(self.lateral):
            features = [conv(feature) for conv, feature in zip(self.lateral, features)]
        merged = features[0]
        for feature in features[1:]:
            merged = merged + F.interpolate(feature, size=merged.shape[-2:])
        return self.classifier(self.dropout(merged))

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, classes) from images (B, C, H, W)."""
        return self.pool(self.class_maps(images))

    def class_activation_maps(self, images: Tensor, class_index: Tensor) -> Tensor:
        r"""Compute the class activation map of a class for each image.

        Of a network with the pyramid it is the class map. Without, it is the Grad-CAM of what the
        head pools (definition 3.4 of the paper),

        .. math:: \text{ReLU} \Bigl( \sum_j W_{jc} F_j \Bigr), \qquad
           W_{jc} = \text{GAP}(\partial \hat y_c / \partial F_j) = V_{cj} / hw \text{ for any } k ,

        which is the class map without its bias and its negative values.

        Args:
            images: (B, C, H, W).
            class_index: (B,).

        Returns:
            (B, H, W), each scaled to [0, 1] as by `scaled_maps`.
        """
        maps = self.class_maps(images)[torch.arange(len(images)), class_index]
        if not len(self.lateral) and self.classifier.bias is not None:
            maps = (maps - self.classifier.bias[class_index, None, None]).relu()
        return scaled_maps(maps, images.shape[-2:])


def scaled_maps(maps: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    r"""Upsample maps to the size of the image, and scale each to [0, 1].

    .. math:: a = \frac{\text{up}(X) - \min \text{up}(X)}{\max \text{up}(X) - \min \text{up}(X)}

    Upsampling is bilinear. A constant map marks nothing and becomes zero.

    Args:
        maps: one map for each image, (B, h, w).
        size: (H, W).

    Returns:
        (B, H, W).

    Raises:
        ValueError: infinity or NaN in a map.

    Source: mode 2 of section 3.1 of anonymous authors, "Top-GAP: integrating size priors in CNNs
    for more robustness, interpretability, and bias mitigation" (2024) :cite:p:`topgap`.

    >>> scaled_maps(torch.tensor([[[1.0, 3.0]]]), (1, 2))
    tensor([[[0., 1.]]])
    """
    check_finite("maps", maps, "has the training diverged?")
    up = F.interpolate(maps[:, None], size=size, mode="bilinear")[:, 0]
    low, high = up.amin((1, 2), keepdim=True), up.amax((1, 2), keepdim=True)
    span = high - low
    return (up - low) / torch.where(span > 0, span, 1)


def _choose_last(listed: FeatureMaps, n_maps: int | None) -> list[FeatureMap]:
    """Choose the last feature maps, from large to small."""
    if n_maps is None:
        small = [m for m in listed.maps if max(m.size) <= LARGEST]
        return small[-4:] or listed.maps[-1:]
    if not 1 <= n_maps <= len(listed.maps):
        sizes = ", ".join(f"{m.name!r} {m.size[0]} x {m.size[1]}" for m in listed.maps)
        what = f"1 to {len(listed.maps)}, the feature maps of the backbone ({sizes})"
        raise expected("n_maps", what, n_maps)
    return listed.maps[-n_maps:]
