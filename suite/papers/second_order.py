"""Measurements of the loss to second order, and of interpretations, for each image."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reglib import input_hessian as hessians
from reglib._common import normal_noise
from reglib.autodiff import Map
from reglib.double_backward import folding_of
from reglib.saliency import SurrogateLoss, surrogate_loss
from suite.errors import expected
from suite.metrics.saliency import caso_converged
from suite.training.evaluated import ChangedLogits, EvaluatedModel, Result

MARGINS = (1.0, 10.0, 100.0)  # lambda2 - L / 2, for pixels in [0, 1]
MARGIN = 10.0  # the paper's
Numbers = dict[str, Tensor]  # tensors by name, with a first axis of images


def keep_likeliest(network: nn.Module, logits: Tensor, n: int) -> nn.Module:
    """Return a network that keeps only the logits of each image's likeliest classes.

    Args:
        network: from images to logits (B, classes).
        logits: of the same images, (B, classes).
        n: number of classes to keep.

    Raises:
        UsageError: `n` is below 2, or above the network's number of classes.
    """
    if not 2 <= n <= logits.shape[1]:
        raise expected("n_classes", f"2 to {logits.shape[1]} of the network's", n)
    classes = logits.topk(n, dim=1).indices
    return ChangedLogits(network, lambda of_all: of_all.gather(1, classes))


def measure_batches(measure: Callable[..., Numbers], batches: Iterable[Any], value: str) -> Result:
    """Measure batches and concatenate the numbers; the value is the tensor named `value`."""
    columns = [measure(images, labels) for images, labels in batches]
    tensors = {name: torch.cat([c[name] for c in columns]) for name in columns[0]}
    return Result(tensors.pop(value), tensors)


def high_order(
    subject: EvaluatedModel,
    *,
    n_images: int,
    first: int = 0,
    step: int = 1,
    n_classes: int | None = None,
    margins: Sequence[float] = MARGINS,
) -> Result:
    r"""Compare CASO with CAFO without L1 norm, and the Hessian with a matrix of rank one.

    The loss is that of the predicted class, a function of pixels in [0, 1].

    Args:
        subject: network and images.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        n_classes: number of likeliest classes of each image whose logits are kept; None for all.
        margins: M values of lambda2 - L / 2.

    Returns:
        The value is the share of the first eigenvalue, (B,): its square over the sum of the k <= 5
        largest squares, an upper bound of its share of all. Kept for each image, (B,), are labels;
        predicted; confidence, the probability of the predicted class; eigenvalues, (B, k); and
        cosine, the absolute cosine of the gradient and the first eigenvector. Kept for each margin,
        (B, M), are residuals of the solver (`reglib.saliency.Interpretation`); differences,
        :math:`\| \hat\Delta_{CASO} - \hat\Delta_{CAFO} \|_2` of maps of norm 1; norms,
        :math:`\rho` of CASO; and changes in loss at :math:`\rho \hat\Delta`: true_cafo and
        true_caso by forward passes, first_cafo and second_cafo by the expansion to that order. With
        `n_classes` the norms and changes are left out.
    """
    closed_form = not folding_of(subject.folded).nonlinear

    def measure(images: Tensor, labels: Tensor) -> Numbers:
        logits, model = subject.logits(images), subject.folded
        predicted = index = logits.argmax(1)
        if n_classes is not None:
            model, index = keep_likeliest(model, logits, n_classes), torch.zeros_like(predicted)
        hessian = hessians.input_hessian(model, images, index, closed_form=closed_form)
        pairs = hessians.hessian_eigenpairs(hessian, k=min(5, hessian.logits.shape[1] - 1))
        loss = surrogate_loss(model, images, index, closed_form=closed_form)
        with warnings.catch_warnings():
            # With a small margin, rounding leaves more than the tolerance. Residuals are kept.
            warnings.filterwarnings("ignore", "CASO did not converge", RuntimeWarning)
            solutions = [caso_converged(loss, margin=margin) for margin in margins]
        second = [solution.maps.flatten(1) for solution in solutions]
        gradient = unit_vectors(loss.gradient)
        gaps = [(unit_vectors(maps) - gradient).norm(dim=1) for maps in second]
        numbers = {
            "labels": labels,
            "predicted": predicted,
            "confidence": hessian.logits.double().softmax(1).amax(1),
            "eigenvalues": pairs.values,
            "share": _share_of_first(pairs.values),
            "cosine": (gradient * pairs.vectors[:, 0].flatten(1)).sum(1).abs().double(),
            "differences": torch.stack(gaps, 1).double(),
            "residuals": torch.stack([solution.residual for solution in solutions], 1).double(),
        }
        if n_classes is None:
            numbers |= _loss_changes(loss, second, partial(loss_change, model, images, index))
        return numbers

    return measure_batches(measure, subject.batches(n_images, first, step), "share")


def _loss_changes(loss: SurrogateLoss, second: Sequence[Tensor], change: Map) -> Numbers:
    """Return changes in loss by the expansion and by forward passes: see `high_order`."""
    norms = torch.stack([maps.norm(dim=1) for maps in second], 1).double()  # (B, M)
    direction = unit_vectors(loss.gradient)
    vectors = loss.gradient, loss.product(direction.view_as(loss.gradient))
    slope, curvature = ((direction * v.flatten(1)).sum(1).double()[:, None] for v in vectors)
    first = norms * slope
    steps = [norm[:, None].to(direction) * direction for norm in norms.unbind(1)]
    return {
        "norms": norms,
        "first_cafo": first,
        "second_cafo": first + norms**2 * curvature / 2,
        "true_cafo": torch.stack([change(step) for step in steps], 1),
        "true_caso": torch.stack([change(maps) for maps in second], 1),
    }


@torch.no_grad()
def loss_change(model: nn.Module, images: Tensor, index: Tensor, change: Tensor) -> Tensor:
    r"""Return :math:`l(x + \Delta) - l(x)` for changes of the images, (B, d): (B,), in nats."""
    logits = (model(x).double() for x in (images + change.view_as(images), images))
    after, before = (nn.functional.cross_entropy(z, index, reduction="none") for z in logits)
    return after - before


def exact_share(subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1) -> Result:
    r"""Decompose the Hessian; the value is the first squared eigenvalue over the sum of all, (B,).

    Kept are all eigenvalues, (B, classes), and map_error, (B,): the relative distance of CASO
    without L1 norm from the paper's closed form (theorem 5) with all eigenvectors,

    .. math:: (2 \lambda_2 I - H)^{-1} g = \frac{g}{2 \lambda_2}
       + \sum_i \Bigl( \frac{1}{2 \lambda_2 - \sigma_i} - \frac{1}{2 \lambda_2} \Bigr) v_i v_i^T g
    """

    def measure(images: Tensor, _: Tensor) -> Numbers:
        parts = hessians.decomposition(subject.folded, images, n_vectors=None)
        loss = surrogate_loss(subject.folded, images, subject.predict(images))
        solution = caso_converged(loss, margin=MARGIN)
        g, twice = loss.gradient.flatten(1)[0], 2 * solution.lambda2.double()
        vectors, values = parts.vectors[0].flatten(1), parts.values[0]
        weights = 1 / (twice - values) - 1 / twice
        exact = g / twice + (weights * (vectors @ g)).to(g.dtype) @ vectors
        error = ((solution.maps.flatten() - exact).norm() / exact.norm()).double().view(1)
        numbers = {"share": _share_of_first(parts.values), "eigenvalues": parts.values}
        return numbers | {"map_error": error}

    return measure_batches(measure, subject.batches(n_images, first, step, size=1), "share")


def _share_of_first(eigenvalues: Tensor) -> Tensor:
    squares = eigenvalues.square()
    return squares[:, 0] / squares.sum(1)


def closed_form_error(
    subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1, seed: int = 0
) -> Result:
    """Compare the closed-form Hessian with double differentiation: see `closed_form_difference`."""
    differences = []
    for images, _ in subject.batches(n_images, first, step):
        arguments = subject.folded, images, subject.predict(images)
        differences.append(closed_form_difference(*arguments, generator=subject.generator(seed)))
    return Result(torch.cat(differences).double())


def unit_vectors(maps: Tensor) -> Tensor:
    """Return maps as vectors of norm 1, (B, d); a map of zeros stays zero."""
    return nn.functional.normalize(maps.flatten(1), dim=1, eps=0.0)


def closed_form_difference(
    model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Return the relative difference of products with the Hessian, in closed form and by autograd.

    A random vector is first projected by the closed form, into its range. Otherwise nearly all of
    the vector would lie in directions without curvature.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        labels: class indices, (B,).
        generator: source of the vector, on the device of `images`.

    Returns:
        Norm of the difference over the norm of the product by autograd, or of the other product
        where that is zero, (B,).

    Raises:
        ValueError: as `true_hessian`.
    """
    closed = hessians.closed_form_hessian(model, images)
    true = hessians.true_hessian(model, images, labels)
    v = closed.product(normal_noise(images, generator))
    by_closed_form, twice = closed.product(v).flatten(1), true.product(v).flatten(1)
    norm = twice.norm(dim=1)
    norm = torch.where(norm > 0, norm, by_closed_form.norm(dim=1))
    return (by_closed_form - twice).norm(dim=1) / torch.where(norm > 0, norm, 1)


def first_and_second_order(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Keep CAFO and CASO without L1 norm, of norm 1, and their difference for two images.

    The images are the most and the least confident of the first `n_images`. All three maps are
    drawn on the scale of CAFO.

    Returns:
        The value is the norm of the difference, (2,). Kept for both images are index, labels,
        predicted, confidence, images (2, 3, H, W) and, as uint8, maps (2, 3, H, W).
    """
    images, labels = subject.test_images(n_images)
    confidence, predicted = subject.logits(images, batch_size=50).double().softmax(1).max(1)
    index = torch.stack([confidence.argmax(), confidence.argmin()])
    columns = {"labels": labels, "predicted": predicted, "confidence": confidence}
    tensors = {"index": index} | {name: values[index] for name, values in columns.items()}
    tensors["images"], images = subject.data.test.images[index.cpu()], images[index]
    loss = surrogate_loss(subject.folded, images, tensors["predicted"])
    first, second = unit_vectors(loss.gradient), unit_vectors(caso_converged(loss).maps)
    sizes = torch.stack([v.view_as(images).abs().sum(1) for v in (first, second, second - first)])
    cap = torch.quantile(sizes[0].flatten(1), 0.99, dim=1).view(1, -1, 1, 1)
    tensors["maps"] = as_uint8((sizes / cap).clamp_max(1)).transpose(0, 1).contiguous()
    return Result((second - first).norm(dim=1), tensors)


def as_uint8(values: Tensor) -> Tensor:
    """Convert values in [0, 1] to uint8."""
    return (values * 255).round().to(torch.uint8)
