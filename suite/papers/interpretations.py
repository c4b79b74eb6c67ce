"""Measurements of second-order interpretations: one column of numbers, or maps, for each image."""

import torch
from torch import Tensor, nn

from reglib.saliency import cafo, choose_lambda1, surrogate_loss
from suite import metrics
from suite.metrics.display import normalised_for_display
from suite.metrics.saliency import SALIENCIES, caso_converged, loss_gradient
from suite.papers.high_order_saliency import unit_vectors
from suite.training.evaluated import EvaluatedModel, Result


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
        confidence; predicted; and the maps as they are drawn, in bytes (B, H, W).
    """

    def sizes_of(images: Tensor, index: Tensor) -> Tensor:
        return SALIENCIES[saliency](subject.folded, images, index).abs().sum(1, keepdim=True)

    columns: list[dict[str, Tensor]] = []
    for images, _ in subject.batches(n_images, first, step, size=1):
        with torch.no_grad():
            confidence, predicted = subject.folded(images).double().softmax(1).max(1)
        maps = SALIENCIES[saliency](subject.folded, images, predicted)
        found = _quality(subject, images, predicted, maps, patch, n_steps)
        found["max_sensitivity"] = torch.full_like(confidence, torch.nan)
        if n_samples:
            found["max_sensitivity"] = metrics.max_sensitivity(
                sizes_of,
                images,
                predicted,
                n_samples=n_samples,
                radius=radius,
                generator=subject.generator(seed),
            ).double()
        found |= {"confidence": confidence, "predicted": predicted}
        found["maps"] = _bytes(normalised_for_display(maps))
        columns.append(found)
    tensors = {name: torch.cat([c[name] for c in columns]) for name in columns[0]}
    return Result(tensors.pop("insertion"), tensors)


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
    largest, own = clipped_to(gradient, sparsity) != 0, maps != 0
    return {
        "insertion": inserted.double(),
        "deletion": deleted.double(),
        "faithfulness": metrics.faithfulness_estimate(in_patches, effects.abs()),
        "entropy": metrics.entropy(sizes).double(),
        "sparsity": sparsity,
        "overlap": _share(largest & own, largest | own),
    }


def _share(some: Tensor, all_of: Tensor) -> Tensor:
    """Return how many of the values in one set are in the other, (B,)."""
    return some.flatten(1).sum(1).double() / all_of.flatten(1).sum(1)


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
        predicted, confidence, images (2, 3, H, W) and, in bytes, maps (2, 3, H, W).
    """
    images, labels = subject.test_images(n_images)
    logits = subject.logits(images, batch_size=50)
    confidence, predicted = logits.double().softmax(1).max(1)
    index = torch.stack([confidence.argmax(), confidence.argmin()])
    kept = {
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
    kept["maps"] = _bytes((sizes / cap).clamp_max(1)).transpose(0, 1).contiguous()
    return Result((second - first).norm(dim=1), kept)


def lambda1_sweep(subject: EvaluatedModel, *, n_images: int, image: int) -> Result:
    """Keep the maps of one image for all strengths of the L1 norm that are tried.

    Beside CAFO and CASO stands the gradient, clipped to as many values as CASO has.

    Args:
        subject: network and images.
        n_images: how many images there must be.
        image: which one.

    Returns:
        The value is the chosen strength of CASO. Beside it `image` (3, H, W) and, for K strengths,
        lambda1 (K,) and, of each `method`: METHOD_maps (K, H, W) in bytes, METHOD_sparsity (K,),
        METHOD_chosen (the chosen strength, (1,)).
    """
    images, _ = subject.test_images(1, first=image)
    with torch.no_grad():
        predicted = subject.folded(images).argmax(1)
    loss = surrogate_loss(subject.folded, images, predicted)
    kept = {"image": subject.data.test.images[image]}
    for name, method in (("cafo", cafo), ("caso", caso_converged)):
        choice = choose_lambda1(loss, method=method)
        kept |= {
            "lambda1": choice.grid.lambda1[:, 0],
            f"{name}_maps": _bytes(normalised_for_display(choice.grid.maps[:, 0])),
            f"{name}_sparsity": choice.grid.sparsity[:, 0],
            f"{name}_chosen": choice.interpretation.lambda1,
        }
    clipped = torch.cat([clipped_to(loss.gradient, s) for s in kept["caso_sparsity"].split(1)])
    kept["clipped_maps"] = _bytes(normalised_for_display(clipped))
    kept["clipped_sparsity"] = (clipped == 0).flatten(1).double().mean(1)
    return Result(kept["caso_chosen"].double(), kept)


def clipped_to(maps: Tensor, sparsity: Tensor) -> Tensor:
    """Keep of each map the largest absolute values, as many as a share of zeros (B,) leaves.

    >>> clipped_to(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), torch.tensor([0.75]))
    tensor([[ 0., -3.,  0.,  0.]])
    """
    sizes = maps.abs().flatten(1)
    zeros = (sparsity * sizes.shape[1]).round().long()
    rank = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where((rank >= zeros[:, None]).view_as(maps), maps, 0)


def _bytes(shown: Tensor) -> Tensor:
    """Bring values in [0, 1] to bytes."""
    return (shown * 255).round().to(torch.uint8)
