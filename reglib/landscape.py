"""Importance landscapes: how much each position of the image matters to a network, on average.

The landscape of a batch can be differentiated by the parameters; the landscape of a data set is
exact in the classes. Penalties measure the distance of a landscape from a flat one, or from a
target.
"""

import math
from collections.abc import Iterable, Iterator
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from reglib import _checks
from reglib.autodiff import Map, input_gradient


def scaled_norm(values: Tensor) -> Tensor:
    r"""Take the norm over channels at each position, scaled so that its mean square is one.

    .. math:: v'_{hw} = \sqrt{H W} \, \frac{\|v_{\cdot hw}\|_2}{\|v\|_2}

    The mean square over positions is one for every nonzero `v`. The mean is at most one, and one
    only for a flat map: "one on expectation" in the paper holds for the square.

    Args:
        values: (..., C, H, W).

    Returns:
        The scaled norms, (..., H, W); zeros where all `values` are zero.

    Source: equation 6 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making importance landscapes flat
    again" (2020) :cite:p:`moens2020`.

    >>> scaled_norm(torch.tensor([[[0.0, 3.0], [0.0, 4.0]]])).square()
    tensor([[0.0000, 1.4400],
            [0.0000, 2.5600]])
    """
    height, width = values.shape[-2:]
    norms = torch.linalg.vector_norm(_divide_by_peak(values, (-3, -2, -1)), dim=-3)
    total = torch.linalg.vector_norm(norms, dim=(-2, -1), keepdim=True)
    return norms * (math.sqrt(height * width) / total.where(total > 0, torch.ones_like(total)))


def sample_classes(logits: Tensor, generator: torch.Generator) -> Tensor:
    r"""Draw a class for each image from the softmax of its logits.

    Args:
        logits: (B, classes).
        generator: source of one uniform number for each image, on any device.

    Returns:
        Class indices, (B,). Logits with infinity or NaN give an arbitrary class, without an error.

    Raises:
        ValueError: `generator` is no `torch.Generator`.
    """
    _checks.check_type("generator", generator, Generator)
    uniform = torch.rand(len(logits), 1, generator=generator, device=generator.device)
    below = logits.float().softmax(1).cumsum(1)[:, :-1] < uniform.to(logits.device)
    return below.sum(1)


def importance_landscape(
    model: Map, images: Tensor, *, generator: torch.Generator, create_graph: bool = False
) -> Tensor:
    r"""Estimate the importance landscape from a batch, with one class drawn for each image.

    .. math:: I_{chw}^2 = \frac 1 B \sum_{b=1}^B
       \left( \frac{\partial f_{y_b}(x_b)}{\partial x_{b,chw}} \right)^2, \quad
       y_b \sim p(y \mid x_b), \qquad
       I'_{hw} = \sqrt{H W} \, \frac{\|I^2_{\cdot hw}\|_2}{\|I^2\|_2}

    The norms are those of the *squares* :math:`I^2`, as in the paper. `scaled_norm` explains the
    scale.

    Args:
        model: from images (B, C, H, W) to logits (B, classes): a network in evaluation mode, or the
            `reglib.double_backward.evaluation_mode` view of a network in any mode.
        images: (B, C, H, W).
        generator: source of the classes, on any device.
        create_graph: build a graph, so that the landscape can be differentiated by parameters.

    Returns:
        The landscape, (H, W), with a mean square of one; zeros where all gradients are zero.

    Raises:
        ValueError: the network is in training mode or couples the images; its output is not
            (B, classes) or does not depend on the images; images are not finite floats
            (B, C, H, W).

    Source: equation 6 and section 3.3.3 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making
    importance landscapes flat again" (2020) :cite:p:`moens2020`.
    """
    _check(model, images)
    inputs = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = _checks.check_logits_shape(model(inputs), len(images))
        classes = sample_classes(logits.detach(), generator)
        chosen = logits.gather(1, classes[:, None])
        gradient = input_gradient(chosen, inputs, create_graph=create_graph)
        landscape = scaled_norm(_divide_by_peak(gradient, (0, 1, 2, 3)).square().mean(0))
    return landscape if create_graph else landscape.detach()


def expected_squared_gradients(
    model: Map, batches: Iterable[Tensor], *, generator: torch.Generator | None = None
) -> Tensor:
    r"""Compute the mean squared gradient of the logits over a data set, exact in the classes.

    .. math:: I_{chw}^2 = \frac 1 M \sum_{m=1}^M \sum_y p(y \mid x_m)
       \left( \frac{\partial f_y(x_m)}{\partial x_{m,chw}} \right)^2

    One pass over the data, with a backward pass for each class. Sums are in float64, so the batch
    size does not matter. With a generator, one class is drawn for each image instead of the sum
    over all classes.

    Args:
        model: as in `importance_landscape`.
        batches: batches of images, (B, C, H, W) each.
        generator: source of the classes; None takes all classes.

    Returns:
        The mean squared gradients, (C, H, W), in float64.

    Raises:
        ValueError: as `importance_landscape`; there is no image.

    Source: the equation before equation 6 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making
    importance landscapes flat again" (2020) :cite:p:`moens2020`.
    """
    total, count = torch.zeros(()), 0
    for images in batches:
        _check(model, images)
        x = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = _checks.check_logits_shape(model(x), len(x))
        for classes, weights in _weigh_classes(logits.detach(), generator):
            squares = input_gradient(logits * classes, x, keep_graph=True).double().square()
            total = total.to(squares) + (squares * weights.view(-1, 1, 1, 1)).sum(0)
        count += len(images)
    if count == 0:
        raise ValueError("batches: expected at least one batch of images, got none")
    return total / count


def _weigh_classes(logits: Tensor, generator: Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one-hot classes, (B, classes), with their probabilities, (B,)."""
    one_hot = torch.eye(logits.shape[1], device=logits.device)
    probs = logits.double().softmax(1)
    if generator is not None:
        yield one_hot[sample_classes(logits, generator)], torch.ones_like(probs[:, 0])
        return
    for c in range(logits.shape[1]):
        yield one_hot[c].expand_as(logits), probs[:, c]


def expected_importance_landscape(model: Map, batches: Iterable[Tensor]) -> Tensor:
    """Compute the importance landscape of a data set, exact in the classes.

    The landscape is the `scaled_norm` of `expected_squared_gradients`.

    Args:
        model: as in `importance_landscape`.
        batches: batches of images, (B, C, H, W) each.

    Returns:
        The landscape, (H, W), in float64.

    Raises:
        ValueError: as `expected_squared_gradients`.
    """
    return scaled_norm(expected_squared_gradients(model, batches))


def laplacian(maps: Tensor, *, kernel_width: int = 3) -> Tensor:
    r"""Apply the discrete Laplacian with a kernel of width `k`.

    .. math:: (\Delta_k v)_{hw} = \frac{1}{2 (k^2 - 1)} \sum_{|i|, |j| \le (k - 1) / 2}
       (v_{h+i, w+j} - v_{hw})

    The absolute values of the kernel sum to one, so that a strength means the same for each width.
    The outermost values are repeated beyond the border. So the Laplacian is zero for constant maps,
    and constant for no other maps.

    Args:
        maps: (..., H, W).
        kernel_width: odd, from 3 to the smaller of H and W.

    Returns:
        The Laplacians, (..., H, W).

    Raises:
        ValueError: `kernel_width` is even or below 3, or the maps are smaller than the kernel.

    Source: section 3.3.1 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making importance landscapes
    flat again" (2020) :cite:p:`moens2020`, after Pertuz, Puig and Garcia, "Analysis of focus
    measure operators for shape-from-focus" (2013) :cite:p:`pertuz2013`. The paper specifies only
    the width of the kernel; this one is Kornia's, by Riba et al. (2020) :cite:p:`riba2020`.

    >>> laplacian(torch.tensor([[0.0, 0, 0], [0, 16, 0], [0, 0, 0]]))
    tensor([[ 1.,  1.,  1.],
            [ 1., -8.,  1.],
            [ 1.,  1.,  1.]])
    """
    if not isinstance(kernel_width, Integral) or kernel_width < 3 or kernel_width % 2 == 0:
        raise ValueError(f"kernel_width: expected an odd number from 3 up, got {kernel_width!r}")
    height, width = maps.shape[-2:]
    if min(height, width) < kernel_width:
        what = f"at least {kernel_width} x {kernel_width} positions, the size of the kernel"
        raise _checks.expected("maps", what, f"{height} x {width}")
    area, border = kernel_width**2, kernel_width // 2
    flat = maps.reshape(-1, 1, height, width)
    padded = F.pad(flat, [border] * 4, mode="replicate")
    differences = F.avg_pool2d(padded, kernel_width, stride=1) - flat
    return (differences * (area / (2 * (area - 1)))).view(maps.shape)


def curvature_penalty(landscape: Tensor, *, kernel_width: int = 3) -> Tensor:
    r"""Compute the variance of the Laplacian of a landscape, zero if and only if it is flat.

    .. math:: L_c = \hat\sigma^2 [\Delta_k I']

    is the variance over the `H W` positions, without Bessel's correction. For `k = 3` the mean of
    the Laplacian is zero, so its variance equals its energy.

    Args:
        landscape: (..., H, W).
        kernel_width: see `laplacian`.

    Returns:
        One value for each landscape, (...).

    Raises:
        ValueError: as `laplacian`.

    Source: equation 8 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making importance landscapes flat
    again" (2020) :cite:p:`moens2020`.
    """
    return laplacian(landscape, kernel_width=kernel_width).flatten(-2).var(-1, correction=0)


def target_penalty(landscape: Tensor, target: Tensor) -> Tensor:
    r"""Compute the mean squared distance of a landscape from a target.

    .. math:: L_t = \frac{1}{H W} \| I' - S \|_2^2

    The paper has the sum over positions. The mean, like the variance in `curvature_penalty`, is of
    the order of one for images of any size, as the published strengths of 1 to 100 require. The sum
    with strength `a` is the mean with strength `a H W`.

    Args:
        landscape: (..., H, W).
        target: (H, W), for example from `data_smoothness`.

    Returns:
        One value for each landscape, (...), from zero to about two.

    Raises:
        ValueError: the target has another size than the landscape, or is zero everywhere.

    Source: equation 9, divided by the number of positions, of Moens, Yu and Salimi-Khorshidi,
    "PILCRO: making importance landscapes flat again" (2020) :cite:p:`moens2020`.
    """
    if target.shape != landscape.shape[-2:]:
        size = tuple(landscape.shape[-2:])
        raise _checks.expected("target", f"the size of the landscape, {size}", tuple(target.shape))
    if _checks.may_be_read(target) and not target.any():
        raise ValueError("target: expected a map that is not flat, got zeros everywhere")
    return (landscape - target).square().mean((-2, -1))


def data_smoothness(batches: Iterable[Tensor], *, kernel_width: int = 3) -> Tensor:
    r"""Average the edges of the images of a data set, in one pass.

    .. math:: S_{hw} = \frac 1 M \sum_{m=1}^M
       \sqrt{H W} \, \frac{\|(\Delta_k x_m)_{\cdot hw}\|_2}{\|\Delta_k x_m\|_2}

    The map is large where the images are *not* smooth. It does not depend on the brightness and
    contrast of an image. An image of one colour has no edges, and is left out of the mean.

    Args:
        batches: batches of images, (B, C, H, W) each, floats or uint8.
        kernel_width: see `laplacian`.

    Returns:
        The map, (H, W), in float64. Its mean square is at most one.

    Raises:
        ValueError: as `laplacian`; images with infinity or NaN, or of several sizes; no image has
            an edge.

    Source: section 3.3.2 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making importance landscapes
    flat again" (2020) :cite:p:`moens2020`.
    """
    total, count = torch.zeros(()), 0
    for images in batches:
        _check_shape(images)
        _checks.check_finite("images", images)
        edges = laplacian(images.double(), kernel_width=kernel_width)
        # Rounding may make a mean of equal values differ from them.
        floor = 1e-12 * images.double().abs().amax((1, 2, 3), keepdim=True)
        edges = edges.where(edges.abs() > floor, torch.zeros_like(edges))
        maps = scaled_norm(edges)
        count += int(edges.flatten(1).any(1).sum())
        if total.ndim and total.shape != maps.shape[1:]:
            sizes = f"{tuple(total.shape)} and {tuple(maps.shape[1:])}"
            raise ValueError(f"batches: expected images of one size, got {sizes} pixels")
        total = total + maps.sum(0)
    if count == 0:
        raise ValueError("batches: expected an image that has an edge, got none")
    return total / count


def total_variation(landscape: Tensor) -> Tensor:
    r"""Compute the mean squared difference between neighbouring positions.

    .. math:: \mathrm{TV} = \frac{1}{|N|} \sum_{(p, q) \in N} (I'_p - I'_q)^2

    is the mean over all pairs `N` of adjacent positions in a row or a column.

    Args:
        landscape: (..., H, W), with at least two positions.

    Returns:
        One value for each landscape, (...).

    Raises:
        ValueError: the landscape has a single position.

    Source: section 4.1.1 of Moens, Yu and Salimi-Khorshidi, "PILCRO: making importance landscapes
    flat again" (2020) :cite:p:`moens2020`.

    >>> total_variation(torch.tensor([[0.0, 2.0], [0.0, 2.0]]))
    tensor(2.)
    """
    pairs = torch.cat([landscape.diff(dim=dim).flatten(-2) for dim in (-2, -1)], -1)
    if pairs.shape[-1] == 0:
        raise ValueError(f"landscape: expected two positions or more, got {tuple(landscape.shape)}")
    return pairs.square().mean(-1)


def _divide_by_peak(values: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Divide by the largest absolute value, so that squares neither overflow nor vanish."""
    largest = values.detach().abs().amax(dim, keepdim=True)
    return values / largest.clamp_min(torch.finfo(values.dtype).tiny)


def _check(model: Map, images: Tensor) -> None:
    if isinstance(model, nn.Module):
        _checks.check_network(model)
    _check_shape(images)
    _checks.check_images(images)


def _check_shape(images: Tensor) -> None:
    _checks.check_type("images", images, Tensor)
    if images.ndim != 4:
        raise ValueError(f"images: expected shape (B, C, H, W), got {tuple(images.shape)}")
