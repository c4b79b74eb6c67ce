"""Class activation maps of networks that do not make them themselves."""

from torch import Tensor, nn

from reglib._checks import check_images, check_network
from reglib.top_gap import scaled_maps
from suite.metrics.saliency import _quiet_captum


def grad_cam(model: nn.Module, layer: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
    r"""Compute Grad-CAM, upsampled to the images and scaled to [0, 1], by Captum.

    .. math:: \text{ReLU} \Bigl( \sum_k W_{k} X_k \Bigr), \qquad
       W_{k} = \text{GAP} \left( \frac{\partial f_c(x)}{\partial X_k} \right)

    Where global average pooling and a linear layer follow, this is what is positive in the class
    activation map of the network.

    Args:
        model: network in evaluation mode, from images to logits.
        layer: module of the network whose output, (B, channels, h, w), is :math:`X`.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).

    Returns:
        (B, H, W), see `reglib.top_gap.scaled_maps`; zero where nothing speaks for the class.

    Raises:
        ValueError: a module in training mode; images that are not finite.

    Source: definition 3.4 of :cite:t:`topgap`, after :cite:t:`selvaraju2017`.
    """
    check_network(model)
    check_images(images)
    with _quiet_captum():
        from captum.attr import LayerGradCam

        maps = LayerGradCam(model, layer).attribute(images, class_index, relu_attributions=True)
    return scaled_maps(maps.detach()[:, 0], images.shape[-2:])
