"""The importance landscape of a network: of a batch, differentiable, and of a whole data set."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from reglib._checks import check_images, check_network
from reglib.autodiff import input_gradient, linearise
from reglib.double_backward.folding import Evaluation

Network = Callable[[Tensor], Tensor]


def scaled_norm(values: Tensor) -> Tensor:
    r"""Take the norm over channels at each place, scaled so that its mean square is one.

    .. math:: v'_{hw} = \sqrt{H W} \, \frac{\|v_{\cdot hw}\|_2}{\|v\|_2}

    The mean square over places is one for any `v` but zero. The mean itself is at most one, and one
    only where the map is flat: "one on expectation" in the paper holds for the square.

    Args:
        values: (..., C, H, W).

    Returns:
        (..., H, W); zeros where `values` are all zero.

    Source: equation 6 of :cite:t:`moens2020`.

    >>> scaled_norm(torch.tensor([[[0.0, 3.0], [0.0, 4.0]]])).square()
    tensor([[0.0000, 1.4400],
            [0.0000, 2.5600]])
    """
    height, width = values.shape[-2:]
    norms = torch.linalg.vector_norm(_without_scale(values, (-3, -2, -1)), dim=-3)
    total = torch.linalg.vector_norm(norms, dim=(-2, -1), keepdim=True)
    return norms * (math.sqrt(height * width) / total.where(total > 0, torch.ones_like(total)))


def sample_classes(logits: Tensor, generator: torch.Generator) -> Tensor:
    r"""Draw a class for each image from the softmax of its logits.

    Args:
        logits: (B, classes).
        generator: source of one uniform number for each image, on any device.

    Returns:
        Class indices, (B,). Logits that are not finite give some class, and no error.
    """
    uniform = torch.rand(len(logits), 1, generator=generator, device=generator.device)
    below = logits.float().softmax(1).cumsum(1)[:, :-1] < uniform.to(logits.device)
    return below.sum(1)


def importance_landscape(
    model: Network, images: Tensor, *, generator: torch.Generator, create_graph: bool = False
) -> Tensor:
    r"""Estimate the importance landscape from a batch, with one class drawn for each image.

    .. math:: I_{chw}^2 = \frac 1 B \sum_{b=1}^B
       \left( \frac{\partial f_{y_b}(x_b)}{\partial x_{b,chw}} \right)^2, \quad
       y_b \sim p(y \mid x_b), \qquad
       I'_{hw} = \sqrt{H W} \, \frac{\|I^2_{\cdot hw}\|_2}{\|I^2\|_2}

    The norms are of the *squares* :math:`I^2`, as printed. See `scaled_norm` for the scale.

    Args:
        model: from (B, C, H, W) to logits (B, classes): a network in evaluation mode, or a view by
            `reglib.double_backward.evaluation_mode` of one in any mode.
        images: (B, C, H, W).
        generator: source of the classes.
        create_graph: keep the graph, so that the landscape can be differentiated by parameters.

    Returns:
        The landscape, (H, W), with a mean square of one; zeros where all gradients are zero.

    Raises:
        ValueError: the network is in training mode or couples the images; its output is not
            (B, classes) or does not depend on the images; images are not floats (B, C, H, W).

    Source: equation 6 and section 3.3.3 of :cite:t:`moens2020`.
    """
    _check(model, images)
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(inputs)
        _check_logits(logits, len(images))
        classes = sample_classes(logits.detach(), generator)
        gradient = input_gradient(
            logits.gather(1, classes[:, None]), inputs, create_graph=create_graph
        )
        landscape = scaled_norm(_without_scale(gradient, (0, 1, 2, 3)).square().mean(0))
    return landscape if create_graph else landscape.detach()


def expected_importance_landscape(model: Network, batches: Iterable[Tensor]) -> Tensor:
    r"""Compute the importance landscape over a data set, exact in the classes.

    .. math:: I_{chw}^2 = \frac 1 M \sum_{m=1}^M \sum_y p(y \mid x_m)
       \left( \frac{\partial f_y(x_m)}{\partial x_{m,chw}} \right)^2

    then as in `importance_landscape`. One pass over the data, with a backward pass for each class;
    sums are in float64, so how the data are cut into batches does not matter.

    Args:
        model: as in `importance_landscape`.
        batches: images, (B, C, H, W) each.

    Returns:
        The landscape, (H, W), in float64.

    Raises:
        ValueError: as `importance_landscape`, or there is no image.

    Source: the equation before equation 6 of :cite:t:`moens2020`.
    """
    total: Tensor | None = None
    for images in batches:
        _check(model, images)
        at = linearise(model, images)
        _check_logits(at.outputs, len(images))
        probs = at.outputs.double().softmax(1)
        for c in range(probs.shape[1]):
            one = torch.zeros_like(at.outputs)
            one[:, c] = 1
            squares = at.pull(one).double().square() * probs[:, c].view(-1, 1, 1, 1)
            total = squares.sum(0) if total is None else total + squares.sum(0)
    if total is None:
        raise ValueError("batches: expected at least one batch of images, got none")
    return scaled_norm(total)


def _without_scale(values: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Divide by the largest absolute value, so that squares neither overflow nor vanish."""
    largest = values.detach().abs().amax(dim, keepdim=True)
    return values / largest.clamp_min(torch.finfo(values.dtype).tiny)


def _check(model: Network, images: Tensor) -> None:
    if isinstance(model, nn.Module) and not isinstance(model, Evaluation):
        check_network(model)
    if images.ndim != 4:
        raise ValueError(f"images: expected shape (B, C, H, W), got {tuple(images.shape)}")
    check_images(images)


def _check_logits(logits: Tensor, n_images: int) -> None:
    if logits.ndim != 2 or len(logits) != n_images:
        raise ValueError(
            f"model: expected logits of shape ({n_images}, classes), got {tuple(logits.shape)}"
        )
