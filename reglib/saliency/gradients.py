"""Saliency maps: which pixels of an image matter to a network.

A method is a function of (model, images, class_index) that returns maps of the images' shape.
"""

import warnings
from collections.abc import Callable

from torch import Tensor, nn

from reglib.autodiff import input_gradient

Saliency = Callable[[nn.Module, Tensor, Tensor], Tensor]


def logit_gradient(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
    r"""Compute the input gradient of a logit.

    .. math:: a(x) = \nabla_x f_c(x)

    Args:
        model: network in evaluation mode, from images to logits (B, classes).
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).

    Returns:
        Signed maps, (B, C, H, W).

    Source: :cite:t:`simonyan2014`, without the absolute value; "input gradient" in
    :cite:t:`demoor2025`, section 3.1.
    """
    inputs = images.detach().requires_grad_()
    logits = model(inputs)
    return input_gradient(logits.gather(1, class_index[:, None]), inputs).detach()


def deeplift(model: nn.Module, images: Tensor, class_index: Tensor) -> Tensor:
    """Compute DeepLIFT attributions of a logit (rescale rule, baseline zero), by Captum.

    Args:
        model: network in evaluation mode whose activations are modules, each used once.
        images: (B, C, H, W).
        class_index: the class of each image, (B,).

    Returns:
        Signed maps, (B, C, H, W), that sum to the logit minus the logit of the baseline.

    Source: :cite:t:`shrikumar2017`. The baseline is zero in the units of `images`: middle grey for
    images in [-1, 1], black for images in [0, 1].
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Setting forward, backward hooks")
        warnings.filterwarnings("ignore", message="IProgress not found")
        from captum.attr import DeepLift

        # Captum hooks tensors: an activation that directly follows a pooling layer shares one with
        # it, and would lose its rule. So each activation gets a tensor of its own.
        own = [
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].clone(),))
            for module in model.modules()
            if isinstance(module, nn.ReLU)
        ]
        try:
            attribution = DeepLift(model).attribute(
                images.detach().requires_grad_(), target=class_index
            )
        finally:
            for handle in own:
                handle.remove()
    return attribution.detach()


SALIENCIES: dict[str, Saliency] = {"logit_gradient": logit_gradient, "deeplift": deeplift}
