"""A convolutional network with Top-GAP pooling on any backbone."""

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

    Feature maps :math:`F_j` of a backbone go through 3 x 3 convolutions and are upsampled to the
    largest map (nearest neighbour, as in the feature pyramid of Lin et al., "Feature pyramid
    networks for object detection" (2017) :cite:p:`lin2017`). Their sum is convolved to one map for
    each class. Without `fpn` the class maps are computed from the map that the head of the backbone
    pools. With `k` = 1.0 this is the unmodified network, if its head is a linear layer after global
    average pooling.

    Args:
        backbone: name of a network in timm or torchvision, or a network, which is copied.
        num_classes: number of classes.
        k: number (integer) or fraction (float) of the locations that are pooled.
        fpn: combine several feature maps.
        n_maps: number of feature maps, counted from the last. None takes up to four of at most
            56 x 56 on an image of `image_size`, the paper's size for 224 pixels.
        width: number of filters of the 3 x 3 convolutions.
        dropout: probability of dropping a value before the class maps, in training.
        pretrained: load the default weights of a backbone given by name.
        image_size: height and width that the backbone is made for; images may have other sizes.

    Raises:
        ValueError: the backbone is unknown, has feature maps of one size only, or cannot be traced
            by torch.fx; `k`, `n_maps` or `dropout` is out of range.

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
        available = feature_maps(backbone, image_size=image_size)
        chosen = _choose_last(available, n_maps) if fpn else [available.final]
        self.backbone = extractor(backbone, [m.name for m in chosen])
        lateral = (nn.Conv2d(m.channels, width, 3, padding=1) for m in chosen if fpn)
        self.lateral = nn.ModuleList(lateral)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Conv2d(width if fpn else available.final.channels, num_classes, 1)
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

        With the pyramid it is the class map. Without, it is the Grad-CAM of the map that the head
        pools (definition 3.4 of the paper),

        .. math:: \text{ReLU} \Bigl( \sum_j W_{jc} F_j \Bigr), \qquad
           W_{jc} = \text{GAP}(\partial \hat y_c / \partial F_j) = V_{cj} / hw \text{ for any } k ,

        which is the class map without its bias and its negative values.

        Args:
            images: (B, C, H, W).
            class_index: class indices, (B,).

        Returns:
            The maps, (B, H, W), each scaled to [0, 1] by `scaled_maps`.

        Raises:
            ValueError: as `scaled_maps`.
        """
        maps = self.class_maps(images)[torch.arange(len(images)), class_index]
        if not len(self.lateral) and self.classifier.bias is not None:
            maps = (maps - self.classifier.bias[class_index, None, None]).relu()
        return scaled_maps(maps, images.shape[-2:])


def scaled_maps(maps: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    r"""Upsample maps to the size of the image, and scale each to [0, 1].

    .. math:: a = \frac{\text{up}(X) - \min \text{up}(X)}{\max \text{up}(X) - \min \text{up}(X)}

    Upsampling is bilinear. A constant map becomes zero.

    Args:
        maps: one map for each image, (B, h, w).
        size: (H, W).

    Returns:
        The scaled maps, (B, H, W).

    Raises:
        ValueError: a map holds infinity or NaN.

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


def _choose_last(available: FeatureMaps, n_maps: int | None) -> list[FeatureMap]:
    """Return the last feature maps, from large to small."""
    if n_maps is None:
        small = [m for m in available.maps if max(m.size) <= LARGEST]
        return small[-4:] or available.maps[-1:]
    if not 1 <= n_maps <= len(available.maps):
        sizes = ", ".join(f"{m.name!r} {m.size[0]} x {m.size[1]}" for m in available.maps)
        what = f"1 to {len(available.maps)}, the feature maps of the backbone ({sizes})"
        raise expected("n_maps", what, n_maps)
    return available.maps[-n_maps:]
