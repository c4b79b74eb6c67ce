"""How noise and shifts change input gradients and the density that the logits imply."""

from typing import Literal

import torch
from torch import Generator, Tensor, nn

from reglib._checks import check_positive
from reglib._common import normal_noise
from reglib.autodiff import input_gradient
from suite.metrics.chunks import chunk_size
from suite.metrics.saliency import logit_gradient


def density_gradients(
    model: nn.Module, images: Tensor, *, part: Literal["whole", "shift", "centred"] = "whole"
) -> Tensor:
    r"""Split the gradient of the log marginal density into a shift and the rest.

    .. math:: \nabla_x \log Z = \nabla_x s + \nabla_x \log \textstyle\sum_i e^{f_i - s}, \qquad
       s(x) = \frac 1 C \sum_i f_i(x)

    Adding any function of the image to all logits leaves every :math:`p(y | x)` unchanged and
    changes the first part alone. Of the three norms, the predictions determine only the third.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        part: "whole", the gradient; "shift", the gradient of the shift; or "centred", the rest.

    Returns:
        The Euclidean norm of the part for each image, (B,).

    Source: a control added here; the ambiguity is that of equation 1 of :cite:t:`srinivas2021`.
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(inputs)
        shift = logits.mean(1)
        total = input_gradient(logits.logsumexp(1), inputs, create_graph=True).detach()
        mean = input_gradient(shift, inputs)
    return {"whole": total, "shift": mean, "centred": total - mean}[part].flatten(1).norm(dim=1)


def logit_gradients(model: nn.Module, images: Tensor, class_index: Tensor) -> dict[str, Tensor]:
    r"""Compare the gradients of all logits with that of the log marginal density.

    .. math:: \nabla_x \log \textstyle\sum_i e^{f_i} = \sum_i p_i \, \nabla_x f_i, \qquad
       p = \operatorname{softmax}(f)

    Where :math:`p_y` is 1, the gradient of the density equals that of the label's logit.

    Args:
        model: network in evaluation mode, from images to logits.
        images: (B, C, H, W).
        class_index: the label `y` of each image, (B,).

    Returns:
        :math:`\|\nabla f_y\|_2`; the mean of :math:`\|\nabla f_j\|_2` over the other classes; the
        cosine between :math:`\nabla f_y` and the gradient of the density, NaN where one of them is
        zero; and :math:`p_y`.

    Source: equations 4 and 8 and remark 3 of :cite:t:`yang2024`; the identity is added here.
    """
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(inputs)
        slopes = [input_gradient(f, inputs, create_graph=True).detach() for f in logits.unbind(1)]
    gradients = torch.stack(slopes, 1).flatten(2)  # (B, classes, pixels)
    probability = logits.detach().softmax(1)
    norms = gradients.norm(dim=2)
    index = class_index[:, None]
    label = norms.gather(1, index)[:, 0]
    slope = gradients.gather(1, index[:, :, None].expand(-1, -1, gradients.shape[2]))[:, 0]
    density = torch.einsum("bc,bcn->bn", probability, gradients)
    cosine = (slope * density).sum(1) / (label * density.norm(dim=1))
    others = (norms.sum(1) - label) / (logits.shape[1] - 1)
    values = {"label": label, "others": others, "cosine": cosine}
    return values | {"probability": probability.gather(1, index)[:, 0]}


def gradient_change(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    generator: Generator,
    noise_std: float,
    relative: bool = True,
) -> Tensor:
    r"""Measure how far noise moves the input gradient of a logit, relative to its norm or not.

    .. math::
       \frac{\| \nabla_x f_c(x + \delta) - \nabla_x f_c(x) \|_2}{\| \nabla_x f_c(x) \|_2},
       \qquad \delta \sim \mathcal N(0, \sigma^2 I)

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        class_index: the class `c` of each image, (B,).
        generator: source of the noise, on the device of `images`.
        noise_std: :math:`\sigma`, in the units of `images`.
        relative: divide by the norm without noise. A penalty that shrinks gradients also shrinks
            their changes, so the relative change may grow while the change itself shrinks.

    Returns:
        One value for each image, (B,); a relative one is NaN where the gradient is zero.

    Raises:
        ValueError: `noise_std` is not positive.

    Source: figures 6b and 8a of :cite:t:`yang2024`, after :cite:t:`srinivas2021`.
    """
    clean = logit_gradient(model, images, class_index).flatten(1)
    noisy = _add_noise(images, generator, noise_std)
    change = (logit_gradient(model, noisy, class_index).flatten(1) - clean).norm(dim=1)
    return change / clean.norm(dim=1) if relative else change


@torch.no_grad()
def density_change(
    model: nn.Module, images: Tensor, *, generator: Generator, noise_std: float
) -> Tensor:
    r"""Measure how far noise moves the density that the logits imply, as published.

    .. math:: \sum_{i=1}^C e^{f_i(x + \delta) - f_i(x)}

    Without noise the value is `C`. The class whose logit rises most dominates it.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        generator: source of the noise, on the device of `images`.
        noise_std: standard deviation of :math:`\delta`, in the units of `images`.

    Returns:
        One value for each image, (B,).

    Raises:
        ValueError: `noise_std` is not positive.

    Source: section 7.3 and figures 6b and 8b of :cite:t:`yang2024`.
    """
    clean = _logits(model, images)
    noisy = _add_noise(images, generator, noise_std)
    return (_logits(model, noisy) - clean).exp().sum(1)


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(chunk) for chunk in images.split(chunk_size(images))])


def _add_noise(images: Tensor, generator: Generator, std: float) -> Tensor:
    """Add the same noise to all images, so that it does not depend on the rest of the batch."""
    check_positive(noise_std=std)
    return images + std * normal_noise(images[0], generator)
