"""Measurements of maps with group-features: their quality, objective and location."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reglib._common import normal_noise
from reglib.saliency import Settings, cafo, caso, surrogate_loss
from suite import metrics
from suite.data import class_names
from suite.errors import UsageError, check_name, expected
from suite.metrics.class_maps import normalised_for_display
from suite.metrics.saliency import SALIENCIES, caso_converged, loss_gradient, sparse_choice
from suite.papers.second_order import as_uint8, loss_change, measure_batches, unit_vectors
from suite.training.evaluated import EvaluatedModel, Result

GREY = 0.5
CLIPPED = "clipped_"
Area = tuple[slice, slice]
Names = Sequence[str]
Scene = Literal["pair", "box"]


def map_quality(
    subject: EvaluatedModel,
    *,
    saliencies: Sequence[str],
    n_images: int,
    first: int = 0,
    step: int = 1,
    n_steps: int = 28,
    keep_maps: bool = False,
) -> Result:
    r"""Measure insertion, sparsity and overlap of maps of the predicted class.

    Maps count by their size, :math:`s = \sum_{\text{channels}} |a|`, as the paper draws them.
    Insertion stops after as many pixels as CASO's map marks, since a sparse map gives its zeros no
    order. A map that marks fewer pixels continues in the order of the loss gradient.

    Args:
        subject: network and images.
        saliencies: S names, see `compute_maps`.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        n_steps: points of the insertion curve after the first.
        keep_maps: whether to keep the maps as figures draw them.

    Returns:
        The value is the confidence, (B,). Kept are predicted, (B,), and for each saliency, (B, S):
        insertion, the area under the curve from a grey image to as many pixels as CASO marks, on a
        scale of length 1; sparsity, the share of the map's values that are exactly zero; overlap,
        the intersection over union of its nonzero values and equally many largest values of the
        loss gradient; and with `keep_maps` the maps, uint8 (B, S, H, W).
    """

    def measure(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        confidence, predicted = subject.logits(images).double().softmax(1).max(1)
        arguments = subject.folded, images, predicted
        gradient = loss_gradient(*arguments)
        sparse, *maps = compute_maps(*arguments, ["caso", *saliencies])
        n_marked = int((sparse != 0).any(1).sum())
        counts = [k * n_marked // n_steps for k in range(n_steps + 1)]

        def judge(m: Tensor) -> dict[str, Tensor]:
            sizes, ties = (values.abs().sum(1, keepdim=True) for values in (m, gradient))
            order = ranks(sizes, ties)
            curve = metrics.insertion_curve(order, *arguments, n_steps=counts, baseline=GREY)
            largest, in_map = keep_largest(gradient, zero_share(m)) != 0, m != 0
            same, either = (s.flatten(1).sum(1) for s in (largest & in_map, largest | in_map))
            numbers = {"insertion": metrics.area_under_curve(curve).double()}
            numbers |= {"sparsity": zero_share(m), "overlap": same.double() / either}
            return numbers | ({"maps": as_uint8(normalised_for_display(m))} if keep_maps else {})

        numbers = [*map(judge, maps)]
        stacked = {name: torch.stack([n[name] for n in numbers], 1) for name in numbers[0]}
        return stacked | {"confidence": confidence, "predicted": predicted}

    return measure_batches(measure, subject.batches(n_images, first, step, size=1), "confidence")


def compute_maps(
    model: nn.Module, images: Tensor, class_index: Tensor, saliencies: Sequence[str]
) -> list[Tensor]:
    """Compute the maps of several methods, (B, C, H, W) each.

    Args:
        model, images, class_index: see `suite.metrics.SALIENCIES`.
        saliencies: names in `SALIENCIES`. The prefix "clipped_" keeps the largest values of a
            method's maps, as many as CASO's maps have nonzero ones.

    Raises:
        UsageError: an unknown name.
    """

    @functools.cache
    def compute(name: str) -> Tensor:
        check_name("saliency", name, SALIENCIES)
        return SALIENCIES[name](model, images, class_index)

    def clip(name: str) -> Tensor:
        maps = compute(name.removeprefix(CLIPPED))
        return keep_largest(maps, zero_share(compute("caso"))) if name.startswith(CLIPPED) else maps

    return [*map(clip, saliencies)]


def zero_share(maps: Tensor) -> Tensor:
    """Return the share of the values of each map that are exactly zero, (B,)."""
    return (maps == 0).flatten(1).double().mean(1)


def ranks(maps: Tensor, ties: Tensor) -> Tensor:
    """Rank the values of each map from 0 up; `ties` order equal values.

    >>> ranks(torch.tensor([[0.0, 2.0, 0.0]]), torch.tensor([[5.0, 0.0, 1.0]]))
    tensor([[1., 2., 0.]])
    """
    flat, other = maps.flatten(1), ties.flatten(1)
    by_other = other.argsort(dim=1, stable=True)
    order = by_other.gather(1, flat.gather(1, by_other).argsort(dim=1, stable=True))
    return order.argsort(dim=1).to(maps.dtype).view_as(maps)


def group_objective(
    subject: EvaluatedModel, *, n_images: int, first: int = 0, step: int = 1, seed: int = 0
) -> Result:
    r"""Evaluate the paper's objective, its equation 2: the change in loss by groups of pixels.

    All candidates change the same number k of values by the same norm :math:`\rho`. Both are those
    of CASO's map, with the L1 norm that the paper's rule chooses.

    Returns:
        The value is the true change in loss by CASO, :math:`l(x + \Delta) - l(x)`, (B,). Kept for
        each image, (B,), are confidence; k; norm; and true_NAME, the same change by cafo with k
        values, by the loss gradient and the negative logit gradient clipped to k values, and by
        random, normal noise clipped to k values. The authors take ten steps of FISTA from a step
        size of 0.1: ten_cosine compares their map with the maximum, ten_norm is the ratio of norms,
        and ten_sparsity its share of zeros.
    """
    model = subject.folded

    def measure(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        confidence, predicted = subject.logits(images).double().softmax(1).max(1)
        loss = surrogate_loss(model, images, predicted)
        chosen = sparse_choice(loss, caso_converged)
        zeros, norm = zero_share(chosen.maps), chosen.maps.flatten(1).norm(dim=1, keepdim=True)
        logit = SALIENCIES["logit_gradient"](model, images, predicted)
        clipped = keep_largest(loss.gradient, zeros)
        # CAFO with k values is soft thresholding at the largest value that is left out.
        threshold = torch.where(clipped == 0, loss.gradient.abs(), 0).flatten(1).amax(1)
        random = keep_largest(normal_noise(images, subject.generator(seed)), zeros)
        candidates = {"caso": chosen.maps, "cafo": cafo(loss, lambda1=threshold).maps}
        candidates |= {"clipped_loss_gradient": clipped}
        candidates |= {"clipped_logit_gradient": -keep_largest(logit, zeros), "random": random}
        with warnings.catch_warnings():
            # The settings of the authors; ten steps do not converge.
            warnings.simplefilter("ignore", RuntimeWarning)
            ten = caso(loss, lambda1=chosen.lambda1, settings=Settings(step=0.1, max_iterations=10))
        change = functools.partial(loss_change, model, images, predicted)
        cosine = (unit_vectors(ten.maps) * unit_vectors(chosen.maps)).sum(1)
        length = ten.maps.flatten(1).norm(dim=1) / norm[:, 0]
        numbers = {"confidence": confidence, "k": (chosen.maps != 0).flatten(1).sum(1).double()}
        numbers |= {"norm": norm[:, 0].double()}
        numbers |= {f"true_{n}": change(norm * unit_vectors(m)) for n, m in candidates.items()}
        numbers |= {"ten_cosine": cosine.double(), "ten_norm": length.double()}
        return numbers | {"ten_sparsity": zero_share(ten.maps)}

    return measure_batches(measure, subject.batches(n_images, first, step, size=1), "true_caso")


def on_object(
    subject: EvaluatedModel, *, scene: Scene, saliencies: Names, n_images: int, first: int = 0
) -> Result:
    r"""Measure how much of each map lies on the object that the network names.

    .. math:: \frac{\sum_{i \in \text{object}} s_i}{\sum_i s_i}, \qquad
       s = \sum_{\text{channels}} |a|

    Args:
        subject: network, and images whose classes are of ImageNet.
        scene: "pair" puts two photographs of different classes side by side, each at 5/7 of its
            side, the second from the other half of the test images. The object is the half whose
            class is predicted. "box" puts a photograph at half its side into a quarter of a grey
            canvas.
        saliencies: S names, see `compute_maps`.
        n_images, first: which test images, see `EvaluatedModel.test_images`.

    Returns:
        The value is the probability of the predicted class, (B,). Kept is share, (B, S), NaN where
        the network names no object of the scene. By chance it is the object's share of the area:
        1/2 in a pair, 1/4 in a box.

    Raises:
        UsageError: classes that are not of ImageNet, images of one class for pairs, or more images
            than there are.
    """
    pixels, labels = subject.test_uint8(None)
    if (last := first + n_images - 1) >= len(pixels):
        raise expected("n_images", f"at most {len(pixels)} test images", last + 1)
    labels = torch.tensor(imagenet_indices(subject.data.classes), device=labels.device)[labels]
    values, shares = [], []
    for i in range(first, first + n_images):
        canvas, areas = (_pair if scene == "pair" else _box)(pixels, labels, i)
        confidence, predicted = subject.logits(canvas).double().softmax(1).max(1)
        values.append(confidence)
        share = torch.full_like(confidence, torch.nan).expand(len(saliencies))
        if (area := areas.get(int(predicted))) is not None:
            maps = compute_maps(subject.folded, canvas, predicted, saliencies)
            sizes = [m.abs().sum((0, 1)).double() for m in maps]
            share = torch.stack([s[area].sum() / s.sum() for s in sizes])
        shares.append(share)
    return Result(torch.cat(values), {"share": torch.stack(shares)})


def _pair(pixels: Tensor, labels: Tensor, i: int) -> tuple[Tensor, dict[int, Area]]:
    """Return two photographs side by side, (1, C, h, 2 h), and the half of each class."""
    n = len(pixels)
    others = (j % n for j in range(i + n // 2, i + n // 2 + n))
    j = next((j for j in others if labels[j] != labels[i]), None)
    if j is None:
        raise UsageError("scene: expected images of two classes or more for pairs, got one")
    side = 5 * pixels.shape[-1] // 7
    order = (i, j) if i % 2 == 0 else (j, i)
    halves = [_resize(pixels[index : index + 1], side) for index in order]
    areas = (slice(None), slice(side)), (slice(None), slice(side, None))
    return torch.cat(halves, 3), dict(zip(labels[[*order]].tolist(), areas, strict=True))


def _box(pixels: Tensor, labels: Tensor, i: int) -> tuple[Tensor, dict[int, Area]]:
    """Return a photograph in a quarter of a grey canvas, (1, C, H, W), and its area."""
    image = pixels[i : i + 1]
    side = image.shape[-1] // 2
    down, right = divmod(i % 4, 2)
    area = slice(down * side, (down + 1) * side), slice(right * side, (right + 1) * side)
    canvas = torch.full(image.shape, GREY, device=image.device)
    canvas[:, :, area[0], area[1]] = _resize(image, side)
    return canvas, {int(labels[i]): area}


def _resize(pixels: Tensor, side: int) -> Tensor:
    """Resize uint8 images to squares of floats in [0, 1]."""
    return nn.functional.interpolate(pixels / 255, [side, side], mode="bilinear", antialias=True)


def imagenet_indices(classes: Sequence[str]) -> list[int]:
    """Return the indices in ImageNet of classes, given by name.

    Raises:
        UsageError: a name that is not ImageNet's.
    """
    names = class_names()
    if unknown := [name for name in classes if name not in names]:
        raise expected("classes", "names of ImageNet's", ", ".join(unknown[:3]))
    # Some of ImageNet's names occur twice, where `index` would be wrong.
    return [*range(len(names))] if tuple(classes) == names else [names.index(n) for n in classes]


def lambda1_sweep(subject: EvaluatedModel, *, n_images: int, image: int) -> Result:
    """Keep the maps of one image for strengths of the L1 norm around the chosen one.

    Strengths are a factor of 2 apart, from an eighth of CASO's chosen one to eight times that. The
    methods are CAFO, CASO, and the loss gradient clipped to as many values as CASO has.

    Args:
        subject: network and images.
        n_images: how many test images there must be.
        image: position of the image among them.

    Returns:
        The value is the chosen strength of CASO, (1,). Kept are image, (3, H, W), and for K
        strengths lambda1, (K,), METHOD_maps, uint8 (K, H, W), and METHOD_sparsity, (K,), with
        METHOD cafo, caso or clipped; and METHOD_chosen, (1,), the chosen strength, but for clipped.
    """
    images, _ = subject.test_images(1, first=image)
    loss = surrogate_loss(subject.folded, images, subject.predict(images))
    methods: dict[str, Any] = {"cafo": cafo, "caso": caso_converged}
    chosen = {name: sparse_choice(loss, method).lambda1 for name, method in methods.items()}
    strengths = chosen["caso"] * 2.0 ** torch.arange(-3, 4, device=images.device)
    grids = {name: method(loss, lambda1=strengths[:, None]) for name, method in methods.items()}
    zeros = {name: grid.sparsity[:, 0] for name, grid in grids.items()}
    maps = {name: grid.maps[:, 0] for name, grid in grids.items()}
    maps["clipped"] = torch.cat([keep_largest(loss.gradient, s) for s in zeros["caso"].split(1)])
    zeros["clipped"] = zero_share(maps["clipped"])
    tensors = {"image": subject.data.test.images[image], "lambda1": strengths}
    tensors |= {f"{name}_maps": as_uint8(normalised_for_display(m)) for name, m in maps.items()}
    tensors |= {f"{name}_sparsity": share for name, share in zeros.items()}
    tensors |= {f"{name}_chosen": strength for name, strength in chosen.items()}
    return Result(chosen["caso"].double(), tensors)


def keep_largest(maps: Tensor, sparsity: Tensor) -> Tensor:
    """Set all but the largest absolute values of each map to zero, a share of `sparsity` (B,).

    >>> keep_largest(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), torch.tensor([0.75]))
    tensor([[ 0., -3.,  0.,  0.]])
    """
    sizes = maps.abs().flatten(1)
    zeros = (sparsity * sizes.shape[1]).round().long()
    rank = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where((rank >= zeros[:, None]).view_as(maps), maps, 0)
