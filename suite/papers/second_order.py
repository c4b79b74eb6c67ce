"""Measurements of the loss to second order, and of interpretations, for each image of a network."""

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
from suite.training.evaluated import EvaluatedModel, Result

MARGINS = (1.0, 10.0, 100.0)  # of lambda2 over L / 2, by pixels in [0, 1]; the paper's is 10
MARGIN = 10.0
Numbers = dict[str, Tensor]  # of each image, by name


class LikeliestClasses(nn.Module):
    """A network that keeps the logits of the likeliest classes only, for each image its own.

    Args:
        network: from images to logits (B, classes).
        logits: of the images, (B, classes).
        n: number of classes.

    Raises:
        UsageError: `n` is below 2, or more than the network has.
    """

    def __init__(self, network: nn.Module, logits: Tensor, n: int) -> None:
        super().__init__()
        if not 2 <= n <= logits.shape[1]:
            raise expected("n_classes", f"2 to {logits.shape[1]} of the network's", n)
        self.network, self.classes = network, logits.topk(n, dim=1).indices
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).gather(1, self.classes)


def in_batches(numbers_of: Callable[..., Numbers], batches: Iterable[Any], value: str) -> Result:
    """Put what is measured of batches together; the tensor with the name `value` is the value."""
    columns = [numbers_of(images, labels) for images, labels in batches]
    tensors = {name: torch.cat([c[name] for c in columns]) for name in columns[0]}
    return Result(tensors.pop(value), tensors)


def high_order(
    subject: EvaluatedModel,
    *,
    n_images: int,
    first: int = 0,
    step: int = 1,
    k: int = 5,
    n_classes: int | None = None,
    margins: Sequence[float] = MARGINS,
) -> Result:
    r"""Compare CASO with CAFO without L1 norm, and the Hessian with a matrix of rank one.

    The loss is that of the predicted class, differentiated by pixels in [0, 1].

    Args:
        subject: network and images.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        k: number of leading eigenvalues.
        n_classes: keep only the logits of so many likeliest classes of each image; None for all.
        margins: M values of lambda2 - L / 2.

    Returns:
        The value is the share of the first eigenvalue: its square over the sum of those of the k,
        which bounds its share of all from above. Beside it, for each image (B,): labels;
        predicted; confidence, the probability of the predicted class; eigenvalues, (B, k); cosine
        of the gradient and the first eigenvector, without sign; and for each margin, (B, M):
        residuals, of the solver (`reglib.saliency.Interpretation`); differences,
        :math:`\| \hat\Delta_{CASO} - \hat\Delta_{CAFO} \|_2` of both divided by their
        norms; norms, those of CASO, :math:`\rho`; and what the loss changes by at
        :math:`\rho \hat\Delta`: true_cafo and true_caso by a forward pass, first_cafo and
        second_cafo by the expansion to that order. These are left out with `n_classes`.
    """
    closed_form = not folding_of(subject.folded).nonlinear

    def numbers_of(images: Tensor, labels: Tensor) -> Numbers:
        logits, model = subject.logits(images), subject.folded
        predicted = index = logits.argmax(1)
        if n_classes is not None:
            model, index = LikeliestClasses(model, logits, n_classes), torch.zeros_like(predicted)
        hessian = hessians.input_hessian(model, images, index, closed_form=closed_form)
        pairs = hessians.hessian_eigenpairs(hessian, k=min(k, hessian.logits.shape[1] - 1))
        loss = surrogate_loss(model, images, index, closed_form=closed_form)
        with warnings.catch_warnings():
            # With a small margin rounding leaves more than the tolerance: what, is kept.
            warnings.filterwarnings("ignore", "CASO did not converge", RuntimeWarning)
            found = [caso_converged(loss, margin=margin) for margin in margins]
        second = [result.maps.flatten(1) for result in found]
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
            "residuals": torch.stack([result.residual for result in found], 1).double(),
        }
        if n_classes is None:
            numbers |= _changes(loss, second, partial(loss_change, model, images, index))
        return numbers

    return in_batches(numbers_of, subject.batches(n_images, first, step), "share")


def _changes(loss: SurrogateLoss, second: Sequence[Tensor], change: Map) -> Numbers:
    """Return what the loss changes by, by the expansion and in truth: see `high_order`."""
    norms = torch.stack([maps.norm(dim=1) for maps in second], 1).double()  # (B, M)
    along = unit_vectors(loss.gradient)
    both = loss.gradient, loss.product(along.view_as(loss.gradient))
    slope, curvature = ((along * v.flatten(1)).sum(1).double()[:, None] for v in both)
    first = norms * slope
    steps = [norm[:, None].to(along) * along for norm in norms.unbind(1)]
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
    both = (model(x).double() for x in (images + change.view_as(images), images))
    after, before = (nn.functional.cross_entropy(z, index, reduction="none") for z in both)
    return after - before


def exact_share(subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1) -> Result:
    r"""Decompose the Hessian; the value is the share of the first squared eigenvalue among all.

    Beside it all eigenvalues, (B, classes), and map_error, (B,): the relative distance of CASO
    without L1 norm from the paper's closed form (theorem 5) by all eigenvectors,

    .. math:: (2 \lambda_2 I - H)^{-1} g = \frac{g}{2 \lambda_2}
       + \sum_i \Bigl( \frac{1}{2 \lambda_2 - \sigma_i} - \frac{1}{2 \lambda_2} \Bigr) v_i v_i^T g
    """

    def numbers_of(images: Tensor, _: Tensor) -> Numbers:
        parts = hessians.decomposition(subject.folded, images, n_vectors=None)
        loss = surrogate_loss(subject.folded, images, subject.predict(images))
        found = caso_converged(loss, margin=MARGIN)
        g, twice = loss.gradient.flatten(1)[0], 2 * found.lambda2.double()
        vectors, values = parts.vectors[0].flatten(1), parts.values[0]
        weights = 1 / (twice - values) - 1 / twice
        exact = g / twice + (weights * (vectors @ g)).to(g.dtype) @ vectors
        error = ((found.maps.flatten() - exact).norm() / exact.norm()).double().view(1)
        numbers = {"share": _share_of_first(parts.values), "eigenvalues": parts.values}
        return numbers | {"map_error": error}

    return in_batches(numbers_of, subject.batches(n_images, first, step, size=1), "share")


def _share_of_first(eigenvalues: Tensor) -> Tensor:
    squares = eigenvalues.square()
    return squares[:, 0] / squares.sum(1)


def closed_form_error(
    subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1, seed: int = 0
) -> Result:
    """Compare the closed-form Hessian with two differentiations: see `closed_form_difference`."""
    differences = []
    for images, _ in subject.batches(n_images, first, step):
        shown = subject.folded, images, subject.predict(images)
        differences.append(closed_form_difference(*shown, generator=subject.generator(seed)))
    return Result(torch.cat(differences).double())


def unit_vectors(maps: Tensor) -> Tensor:
    """Return maps as vectors of norm 1, (B, d); a map of zeros stays zero."""
    return nn.functional.normalize(maps.flatten(1), dim=1, eps=0.0)


def closed_form_difference(
    model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Say by how much products with the closed form differ from those by differentiating twice.

    The random vector is put into the range of the closed form first: a vector with equal shares of
    all directions would compare what hardly matters.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        labels: class indices, (B,).
        generator: source of the vector, on the device of `images`.

    Returns:
        Norm of the difference of both products, over that of the true one (over that of the other
        where the true one is zero), (B,).

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
    """Keep CAFO, CASO (both without L1 norm, of norm 1) and their difference for two images.

    They are the most and the least confident ones of the first n_images. All three are drawn on the
    scale of CAFO.

    Returns:
        The value is the norm of the difference; beside it for both images: index, labels,
        predicted, confidence, images (2, 3, H, W) and, as uint8, maps (2, 3, H, W).
    """
    images, labels = subject.test_images(n_images)
    confidence, predicted = subject.logits(images, batch_size=50).double().softmax(1).max(1)
    index = torch.stack([confidence.argmax(), confidence.argmin()])
    every = {"labels": labels, "predicted": predicted, "confidence": confidence}
    tensors = {"index": index} | {name: values[index] for name, values in every.items()}
    tensors["images"], images = subject.data.test.images[index.cpu()], images[index]
    loss = surrogate_loss(subject.folded, images, tensors["predicted"])
    first, second = unit_vectors(loss.gradient), unit_vectors(caso_converged(loss).maps)
    sizes = torch.stack([v.view_as(images).abs().sum(1) for v in (first, second, second - first)])
    cap = torch.quantile(sizes[0].flatten(1), 0.99, dim=1).view(1, -1, 1, 1)
    tensors["maps"] = as_uint8((sizes / cap).clamp_max(1)).transpose(0, 1).contiguous()
    return Result((second - first).norm(dim=1), tensors)


def as_uint8(values: Tensor) -> Tensor:
    """Return values in [0, 1] as uint8."""
    return (values * 255).round().to(torch.uint8)
