"""Measurements of the loss to second order: numbers for each image of a network."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reglib.double_backward import folding_of
from reglib.input_hessian import (
    closed_form_hessian,
    decomposition,
    hessian_eigenpairs,
    input_hessian,
    true_hessian,
)
from reglib.saliency import surrogate_loss
from suite.errors import UsageError
from suite.metrics.saliency import caso_converged
from suite.training.evaluated import EvaluatedModel, Result

MARGINS = (10.0, 100.0)


class LikeliestClasses(nn.Module):
    """A network that keeps the logits of given classes only, for each image its own.

    Args:
        network: from images to logits (B, classes).
        kept: class indices, (B, n).
    """

    def __init__(self, network: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.network = network
        self.kept = kept
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).gather(1, self.kept)


def high_order(
    subject: EvaluatedModel,
    *,
    n_images: int,
    first: int = 0,
    step: int = 1,
    k: int = 5,
    n_classes: int | None = None,
) -> Result:
    r"""Compare CASO with CAFO without L1 norm, and the Hessian with a matrix of rank one.

    The loss is that of the predicted class. The value is
    :math:`\| \hat\Delta_{CASO} - \hat\Delta_{CAFO} \|_2` with both interpretations of norm 1.

    Args:
        subject: network and images.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        k: number of leading eigenvalues.
        n_classes: keep only the logits of so many likeliest classes of each image; None for all.

    Returns:
        Beside the value, for each image (B,): labels; predicted; confidence, the probability of the
        predicted class; eigenvalues, (B, k); share, the square of the first eigenvalue over the sum
        of those of the k, which bounds its share of all from above; cosine of the gradient and the
        first eigenvector, without sign; moved, the norm of the change of CASO between margins 10
        and 100 (see `MARGINS`), of norm 1 both.
    """
    columns: list[dict[str, Tensor]] = []
    closed_form = not folding_of(subject.folded).nonlinear
    for images, labels in subject.batches(n_images, first, step):
        with torch.no_grad():
            predicted = subject.folded(images).argmax(1)
        model, index = _few_classes(subject.folded, images, predicted, n_classes)
        found = _compared(model, images, index, k, closed_form)
        columns.append({"labels": labels, "predicted": predicted, **found})
    tensors = {name: torch.cat([c[name] for c in columns]) for name in columns[0]}
    return Result(tensors.pop("difference"), tensors)


def _compared(
    model: nn.Module, images: Tensor, index: Tensor, k: int, closed_form: bool
) -> dict[str, Tensor]:
    hessian = input_hessian(model, images, index, closed_form=closed_form)
    k = min(k, hessian.logits.shape[1] - 1)
    pairs = hessian_eigenpairs(hessian, k=k)
    loss = surrogate_loss(model, images, index, closed_form=closed_form)
    second = [unit_vectors(caso_converged(loss, margin=margin).maps) for margin in MARGINS]
    gradient = unit_vectors(loss.gradient)
    squares = pairs.values.square()
    vector = pairs.vectors[:, 0].flatten(1)
    return {
        "confidence": hessian.logits.double().softmax(1).amax(1),
        "eigenvalues": pairs.values,
        "share": squares[:, 0] / squares.sum(1),
        "cosine": (gradient * vector).sum(1).abs().double(),
        "difference": (second[0] - gradient).norm(dim=1).double(),
        "moved": (second[0] - second[1]).norm(dim=1).double(),
    }


def _few_classes(
    model: nn.Module, images: Tensor, predicted: Tensor, n_classes: int | None
) -> tuple[nn.Module, Tensor]:
    """Return the network with its likeliest classes only, and which of them is the first."""
    if n_classes is None:
        return model, predicted
    with torch.no_grad():
        logits = model(images)
    if not 2 <= n_classes <= logits.shape[1]:
        raise UsageError(
            f"n_classes: expected 2 to {logits.shape[1]} of the network's, got {n_classes}"
        )
    kept = logits.topk(n_classes, dim=1).indices
    return LikeliestClasses(model, kept), torch.zeros_like(predicted)


def exact_share(subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1) -> Result:
    """Decompose the Hessian; the value is the share of the first squared eigenvalue among all.

    Beside it all eigenvalues, (B, classes).
    """
    values = [
        decomposition(subject.folded, images, n_vectors=0).values
        for images, _ in subject.batches(n_images, first, step, size=1)
    ]
    eigenvalues = torch.cat(values)
    squares = eigenvalues.square()
    return Result(squares[:, 0] / squares.sum(1), {"eigenvalues": eigenvalues})


def closed_form_error(
    subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1, seed: int = 0
) -> Result:
    """Compare the closed-form Hessian with two differentiations: see `HessianCase.difference`."""
    found = []
    for images, _ in subject.batches(n_images, first, step):
        with torch.no_grad():
            predicted = subject.folded(images).argmax(1)
        generator = subject.generator(seed)
        case = hessian_case(subject.folded, images, predicted, generator=generator)
        found.append(case.difference.double())
    return Result(torch.cat(found))


def unit_vectors(maps: Tensor) -> Tensor:
    """Return maps as vectors of norm 1, (B, d); a map of zeros stays zero."""
    return nn.functional.normalize(maps.flatten(1), dim=1, eps=0.0)


class HessianCase(NamedTuple):
    """Which Hessian a network has.

    Args:
        curved: reason by name of each call that is not known to be linear on pieces.
        difference: norm of the difference of both products with a random vector, over that of the
            true product (over that of the other where the true one is zero), (B,).
    """

    curved: dict[str, str]
    difference: Tensor

    @property
    def piecewise_linear(self) -> bool:
        """Whether nothing curved was found, so that the closed form is exact."""
        return not self.curved


def hessian_case(
    model: nn.Module, images: Tensor, labels: Tensor, *, generator: torch.Generator
) -> HessianCase:
    """Find out whether the closed form is exact for a network, and by how much it differs.

    The random vector is put into the range of the closed form first: a vector with equal shares of
    all directions would compare what hardly matters.

    Args:
        model: network in evaluation mode.
        images: (B, C, H, W).
        labels: class indices, (B,).
        generator: source of the vector, on the device of `images`.

    Raises:
        ValueError: as `true_hessian`.
    """
    closed, true = closed_form_hessian(model, images), true_hessian(model, images, labels)
    v = closed.product(
        torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    )
    ours, theirs = closed.product(v).flatten(1), true.product(v).flatten(1)
    norm = theirs.norm(dim=1)
    norm = torch.where(norm > 0, norm, ours.norm(dim=1))
    difference = (ours - theirs).norm(dim=1) / torch.where(norm > 0, norm, torch.ones_like(norm))
    return HessianCase(folding_of(model).nonlinear, difference)
