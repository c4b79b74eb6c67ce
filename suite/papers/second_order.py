"""Measurements of the loss to second order, and of interpretations, for each image of a network."""

import time
from collections.abc import Callable, Iterable
from typing import Any

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
from reglib.saliency import cafo, choose_lambda1, surrogate_loss
from suite import metrics
from suite.errors import UsageError
from suite.metrics.display import normalised_for_display
from suite.metrics.saliency import SALIENCIES, caso_converged, loss_gradient
from suite.training.evaluated import EvaluatedModel, Result

MARGINS = (10.0, 100.0)


class LikeliestClasses(nn.Module):
    """A network that keeps the logits of given classes only, for each image its own.

    Args:
        network: from images to logits (B, classes).
        classes: class indices, (B, n).
    """

    def __init__(self, network: nn.Module, classes: Tensor) -> None:
        super().__init__()
        self.network = network
        self.classes = classes
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).gather(1, self.classes)


def _in_batches(
    numbers_of: Callable[[Tensor, Tensor], dict[str, Tensor]],
    batches: Iterable[tuple[Tensor, Tensor]],
    value: str,
) -> Result:
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
    closed_form = not folding_of(subject.folded).nonlinear

    def numbers_of(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        predicted = subject.predict(images)
        model, index = _few_classes(subject.folded, images, predicted, n_classes)
        numbers = _compared(model, images, index, k, closed_form)
        return {"labels": labels, "predicted": predicted, **numbers}

    return _in_batches(numbers_of, subject.batches(n_images, first, step), "difference")


def _compared(
    model: nn.Module, images: Tensor, index: Tensor, k: int, closed_form: bool
) -> dict[str, Tensor]:
    hessian = input_hessian(model, images, index, closed_form=closed_form)
    k = min(k, hessian.logits.shape[1] - 1)
    pairs = hessian_eigenpairs(hessian, k=k)
    loss = surrogate_loss(model, images, index, closed_form=closed_form)
    second = [unit_vectors(caso_converged(loss, margin=margin).maps) for margin in MARGINS]
    gradient = unit_vectors(loss.gradient)
    vector = pairs.vectors[:, 0].flatten(1)
    return {
        "confidence": hessian.logits.double().softmax(1).amax(1),
        "eigenvalues": pairs.values,
        "share": _share_of_first(pairs.values),
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
    classes = logits.topk(n_classes, dim=1).indices
    return LikeliestClasses(model, classes), torch.zeros_like(predicted)


def exact_share(subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1) -> Result:
    """Decompose the Hessian; the value is the share of the first squared eigenvalue among all.

    Beside it all eigenvalues, (B, classes). Eigenvectors are computed too, as a decomposition has
    them: what it takes is compared with the paper's time.
    """

    def numbers_of(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        eigenvalues = decomposition(subject.folded, images, n_vectors=None).values
        return {"share": _share_of_first(eigenvalues), "eigenvalues": eigenvalues}

    return _in_batches(numbers_of, subject.batches(n_images, first, step, size=1), "share")


def _share_of_first(eigenvalues: Tensor) -> Tensor:
    squares = eigenvalues.square()
    return squares[:, 0] / squares.sum(1)


def closed_form_error(
    subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1, seed: int = 0
) -> Result:
    """Compare the closed-form Hessian with two differentiations: see `closed_form_difference`."""
    differences = [
        closed_form_difference(
            subject.folded, images, subject.predict(images), generator=subject.generator(seed)
        )
        for images, _ in subject.batches(n_images, first, step)
    ]
    return Result(torch.cat(differences).double())


def largest_eigenvalue(subject: EvaluatedModel, *, way: str, n_images: int) -> Result:
    """Find the largest eigenvalue of the Hessian in one of `WAYS`; beside it the seconds, (B,)."""
    values, seconds = [], []
    for images, _ in subject.batches(n_images, size=1):
        start = time.perf_counter()
        values.append(WAYS[way](subject.folded, images))
        seconds.append(time.perf_counter() - start)
    return Result(torch.stack(values), {"seconds": torch.tensor(seconds, dtype=torch.float64)})


def _dense(model: nn.Module, images: Tensor) -> Tensor:
    """Form the Hessian by PyTorch, and decompose it."""
    with torch.no_grad():
        label = model(images).argmax(1)

    def loss(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x.view_as(images)), label)

    hessian = torch.autograd.functional.hessian(loss, images.flatten())
    return torch.linalg.eigvalsh(hessian).max()


WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "dense": _dense,
    "all": lambda model, images: decomposition(model, images).values[0, 0],
    "leading": lambda model, images: hessian_eigenpairs(closed_form_hessian(model, images)).values[
        0, 0
    ],
}


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
    closed, true = closed_form_hessian(model, images), true_hessian(model, images, labels)
    v = closed.product(
        torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    )
    by_closed_form, twice = closed.product(v).flatten(1), true.product(v).flatten(1)
    norm = twice.norm(dim=1)
    norm = torch.where(norm > 0, norm, by_closed_form.norm(dim=1))
    return (by_closed_form - twice).norm(dim=1) / torch.where(norm > 0, norm, 1)


def interpretation_quality(
    subject: EvaluatedModel,
    *,
    saliency: str,
    n_images: int,
    first: int = 0,
    step: int = 1,
    n_samples: int = 0,
    radius: float = 0.2,
    patch: int = 16,
    n_steps: int = 28,
    seed: int = 0,
) -> Result:
    r"""Judge maps of the predicted class by the metrics of chapter one and by insertion.

    Maps count by their size, :math:`s = \sum_{\text{channels}} |a|`, since the paper draws them so.

    Args:
        subject: network and images.
        saliency: a name in `suite.metrics.SALIENCIES`.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        n_samples, radius, seed: of `suite.metrics.max_sensitivity`; 0 leaves it out.
        patch: side of the squares of pixels that are changed at a time for the faithfulness
            estimate, in which the map is summed.
        n_steps: points of the curves of insertion and deletion after the first.

    Returns:
        The value is the area under the curve of insertion; beside it for each image (B,):
        deletion; faithfulness, with the sizes of the effects; entropy; max_sensitivity; sparsity,
        the share of values of the map that are exactly zero; overlap, of the values that are not
        zero and the equally many largest ones of the loss gradient (intersection over union);
        confidence; predicted; and the maps as they are drawn, as uint8 (B, H, W).
    """

    def sizes_of(images: Tensor, index: Tensor) -> Tensor:
        return SALIENCIES[saliency](subject.folded, images, index).abs().sum(1, keepdim=True)

    def numbers_of(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        confidence, predicted = subject.logits(images).double().softmax(1).max(1)
        maps = SALIENCIES[saliency](subject.folded, images, predicted)
        numbers = _quality(subject, images, predicted, maps, patch, n_steps)
        numbers["max_sensitivity"] = torch.full_like(confidence, torch.nan)
        if n_samples:
            noise: Any = {"radius": radius, "generator": subject.generator(seed)}
            numbers["max_sensitivity"] = metrics.max_sensitivity(
                sizes_of, images, predicted, n_samples=n_samples, **noise
            ).double()
        drawn = _uint8(normalised_for_display(maps))
        return numbers | {"confidence": confidence, "predicted": predicted, "maps": drawn}

    return _in_batches(numbers_of, subject.batches(n_images, first, step, size=1), "insertion")


def _quality(
    subject: EvaluatedModel,
    images: Tensor,
    predicted: Tensor,
    maps: Tensor,
    patch: int,
    n_steps: int,
) -> dict[str, Tensor]:
    sizes = maps.abs().sum(1, keepdim=True)
    in_patches = nn.functional.avg_pool2d(sizes, patch)
    effects = _patch_effects(subject, images, predicted, patch)
    inserted, deleted = (
        metrics.area_under_curve(curve(sizes, subject.folded, images, predicted, n_steps=n_steps))
        for curve in (metrics.insertion_curve, metrics.deletion_curve)
    )
    gradient = loss_gradient(subject.folded, images, predicted)
    sparsity = (maps == 0).flatten(1).double().mean(1)
    largest, in_map = clipped_to(gradient, sparsity) != 0, maps != 0
    return {
        "insertion": inserted.double(),
        "deletion": deleted.double(),
        "faithfulness": metrics.faithfulness_estimate(in_patches, effects.abs()),
        "entropy": metrics.entropy(sizes).double(),
        "sparsity": sparsity,
        "overlap": _share(largest & in_map, largest | in_map),
    }


def _share(subset: Tensor, values: Tensor) -> Tensor:
    """Return how many of the values in one set are in the other, (B,)."""
    return subset.flatten(1).sum(1).double() / values.flatten(1).sum(1)


def _patch_effects(
    subject: EvaluatedModel, images: Tensor, predicted: Tensor, patch: int
) -> Tensor:
    """Effects of the squares, which are the same for every saliency method."""
    key = (hash(images.cpu().numpy().tobytes()), patch)
    return subject.cached(
        key, lambda: metrics.patch_effects(subject.folded, images, predicted, patch=patch)
    )


def first_and_second_order(subject: EvaluatedModel, *, n_images: int) -> Result:
    """Keep CAFO, CASO (both without L1 norm, of norm 1) and their difference for two images.

    They are the most and the least confident ones of the first n_images. All three are drawn on the
    scale of CAFO.

    Returns:
        The value is the norm of the difference; beside it for both images: index, labels,
        predicted, confidence, images (2, 3, H, W) and, as uint8, maps (2, 3, H, W).
    """
    images, labels = subject.test_images(n_images)
    logits = subject.logits(images, batch_size=50)
    confidence, predicted = logits.double().softmax(1).max(1)
    index = torch.stack([confidence.argmax(), confidence.argmin()])
    tensors = {
        "index": index,
        "labels": labels[index],
        "predicted": predicted[index],
        "confidence": confidence[index],
        "images": subject.data.test.images[index.cpu()],
    }
    images, predicted = images[index], predicted[index]
    loss = surrogate_loss(subject.folded, images, predicted)
    first, second = unit_vectors(loss.gradient), unit_vectors(caso_converged(loss).maps)
    sizes = torch.stack([v.view_as(images).abs().sum(1) for v in (first, second, second - first)])
    cap = torch.quantile(sizes[0].flatten(1), 0.99, dim=1).view(1, -1, 1, 1)
    tensors["maps"] = _uint8((sizes / cap).clamp_max(1)).transpose(0, 1).contiguous()
    return Result((second - first).norm(dim=1), tensors)


def lambda1_sweep(subject: EvaluatedModel, *, n_images: int, image: int) -> Result:
    """Keep the maps of one image for all strengths of the L1 norm that are tried.

    Beside CAFO and CASO stands the gradient, clipped to as many values as CASO has.

    Args:
        subject: network and images.
        n_images: how many images there must be.
        image: which one.

    Returns:
        The value is the chosen strength of CASO. Beside it `image` (3, H, W) and, for K strengths,
        lambda1 (K,) and, of each `method`: METHOD_maps (K, H, W) as uint8, METHOD_sparsity (K,),
        METHOD_chosen (the chosen strength, (1,)).
    """
    images, _ = subject.test_images(1, first=image)
    predicted = subject.predict(images)
    loss = surrogate_loss(subject.folded, images, predicted)
    tensors = {"image": subject.data.test.images[image]}
    for name, method in (("cafo", cafo), ("caso", caso_converged)):
        choice = choose_lambda1(loss, method=method)
        tensors |= {
            "lambda1": choice.grid.lambda1[:, 0],
            f"{name}_maps": _uint8(normalised_for_display(choice.grid.maps[:, 0])),
            f"{name}_sparsity": choice.grid.sparsity[:, 0],
            f"{name}_chosen": choice.interpretation.lambda1,
        }
    clipped = torch.cat([clipped_to(loss.gradient, s) for s in tensors["caso_sparsity"].split(1)])
    tensors["clipped_maps"] = _uint8(normalised_for_display(clipped))
    tensors["clipped_sparsity"] = (clipped == 0).flatten(1).double().mean(1)
    return Result(tensors["caso_chosen"].double(), tensors)


def clipped_to(maps: Tensor, sparsity: Tensor) -> Tensor:
    """Keep of each map the largest absolute values, as many as a share of zeros (B,) leaves.

    >>> clipped_to(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), torch.tensor([0.75]))
    tensor([[ 0., -3.,  0.,  0.]])
    """
    sizes = maps.abs().flatten(1)
    zeros = (sparsity * sizes.shape[1]).round().long()
    rank = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where((rank >= zeros[:, None]).view_as(maps), maps, 0)


def _uint8(values: Tensor) -> Tensor:
    """Return values in [0, 1] as uint8."""
    return (values * 255).round().to(torch.uint8)


_METRICS = (
    closed_form_error,
    exact_share,
    first_and_second_order,
    high_order,
    interpretation_quality,
    lambda1_sweep,
    largest_eigenvalue,
)
METRICS: dict[str, Callable[..., Result]] = {metric.__name__: metric for metric in _METRICS}
