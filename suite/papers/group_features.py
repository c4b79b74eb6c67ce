"""Measurements of maps with group-features: their quality, their objective, where they lie."""

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
from suite.metrics.display import normalised_for_display
from suite.metrics.saliency import SALIENCIES, caso_converged, loss_gradient, sparse_choice
from suite.papers.second_order import as_uint8, in_batches, loss_change, unit_vectors
from suite.training.evaluated import EvaluatedModel, Result

GREY = 0.5
OF_THE_AUTHORS = Settings(step=0.1, max_iterations=10)
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
    r"""Judge maps of the predicted class by insertion, sparsity and overlap.

    Maps count by their size, :math:`s = \sum_{\text{channels}} |a|`, since the paper draws them so.
    Insertion ends where CASO's map does, after as many pixels as it marks: what a sparse map leaves
    out has no order of its own. A map that marks fewer goes on in the order of the loss gradient.

    Args:
        subject: network and images.
        saliencies: S names, see `maps_of`.
        n_images, first, step: which test images, see `EvaluatedModel.test_images`.
        n_steps: points of the curve of insertion after the first.
        keep_maps: whether to keep the maps as they are drawn.

    Returns:
        The value is the confidence; beside it predicted, (B,), and for each saliency, (B, S):
        insertion, the area under the curve from a grey image to as many pixels as CASO marks, on a
        scale of length 1; sparsity, the share of values of the
        map that are exactly zero; overlap, of the values that are not zero and the equally many
        largest ones of the loss gradient (intersection over union); and with `keep_maps` the maps,
        uint8 (B, S, H, W).
    """

    def numbers_of(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        confidence, predicted = subject.logits(images).double().softmax(1).max(1)
        given = subject.folded, images, predicted
        gradient = loss_gradient(*given)
        sparse, *maps = maps_of(*given, ["caso", *saliencies])
        most = int((sparse != 0).any(1).sum())
        counts = [k * most // n_steps for k in range(n_steps + 1)]

        def judge(m: Tensor) -> dict[str, Tensor]:
            sizes, ties = (one.abs().sum(1, keepdim=True) for one in (m, gradient))
            order = ranks(sizes, ties)
            curve = metrics.insertion_curve(order, *given, n_steps=counts, baseline=GREY)
            largest, in_map = clipped_to(gradient, zeros_of(m)) != 0, m != 0
            same, either = (s.flatten(1).sum(1) for s in (largest & in_map, largest | in_map))
            numbers = {"insertion": metrics.area_under_curve(curve).double()}
            numbers |= {"sparsity": zeros_of(m), "overlap": same.double() / either}
            return numbers | ({"maps": as_uint8(normalised_for_display(m))} if keep_maps else {})

        judged = [*map(judge, maps)]
        stacked = {name: torch.stack([n[name] for n in judged], 1) for name in judged[0]}
        return stacked | {"confidence": confidence, "predicted": predicted}

    return in_batches(numbers_of, subject.batches(n_images, first, step, size=1), "confidence")


def maps_of(
    model: nn.Module, images: Tensor, class_index: Tensor, saliencies: Sequence[str]
) -> list[Tensor]:
    """Compute maps by several methods, (B, C, H, W) each.

    Args:
        model, images, class_index: see `suite.metrics.SALIENCIES`.
        saliencies: names there; "clipped_" before a name keeps the largest values of that method's
            maps, as many as CASO's have.

    Raises:
        UsageError: an unknown name.
    """

    @functools.cache
    def whole(name: str) -> Tensor:
        check_name("saliency", name, SALIENCIES)
        return SALIENCIES[name](model, images, class_index)

    def named(name: str) -> Tensor:
        maps = whole(name.removeprefix(CLIPPED))
        return clipped_to(maps, zeros_of(whole("caso"))) if name.startswith(CLIPPED) else maps

    return [*map(named, saliencies)]


def zeros_of(maps: Tensor) -> Tensor:
    """Return the share of the values of each map that are exactly zero, (B,)."""
    return (maps == 0).flatten(1).double().mean(1)


def ranks(maps: Tensor, ties: Tensor) -> Tensor:
    """Return maps with the same order, and equal values in that of others: from 0 up.

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
    r"""Evaluate the paper's objective (its equation 2): which group of pixels raises the loss most?

    All candidates change the same number k of values, that of CASO's map with the L1 norm that the
    paper's rule chooses, by the same norm :math:`\rho`, that of CASO's.

    Returns:
        The value is what the loss really changes by with CASO, :math:`l(x + \Delta) - l(x)`.
        Beside it, for each image (B,): confidence; k; norm; true_NAME for cafo (its k values), the
        loss gradient and the negative logit gradient clipped to k values, and random: k values
        drawn evenly. And of the authors' ten steps of FISTA from 0.1 in place of the maximum:
        ten_cosine with it, ten_norm over its norm, ten_sparsity.
    """
    model = subject.folded

    def numbers_of(images: Tensor, _: Tensor) -> dict[str, Tensor]:
        confidence, predicted = subject.logits(images).double().softmax(1).max(1)
        loss = surrogate_loss(model, images, predicted)
        chosen = sparse_choice(loss, caso_converged)
        zeros, norm = zeros_of(chosen.maps), chosen.maps.flatten(1).norm(dim=1, keepdim=True)
        logit = SALIENCIES["logit_gradient"](model, images, predicted)
        clipped = clipped_to(loss.gradient, zeros)
        # CAFO with as many values is soft thresholding at the largest one that is left out.
        left_out = torch.where(clipped == 0, loss.gradient.abs(), 0).flatten(1).amax(1)
        random = clipped_to(normal_noise(images, subject.generator(seed)), zeros)
        candidates = {"caso": chosen.maps, "cafo": cafo(loss, lambda1=left_out).maps}
        candidates |= {"clipped_loss_gradient": clipped}
        candidates |= {"clipped_logit_gradient": -clipped_to(logit, zeros), "random": random}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # so few steps do not converge
            ten = caso(loss, lambda1=chosen.lambda1, settings=OF_THE_AUTHORS)
        change = functools.partial(loss_change, model, images, predicted)
        cosine = (unit_vectors(ten.maps) * unit_vectors(chosen.maps)).sum(1)
        length = ten.maps.flatten(1).norm(dim=1) / norm[:, 0]
        numbers = {"confidence": confidence, "k": (chosen.maps != 0).flatten(1).sum(1).double()}
        numbers |= {"norm": norm[:, 0].double()}
        numbers |= {f"true_{n}": change(norm * unit_vectors(m)) for n, m in candidates.items()}
        numbers |= {"ten_cosine": cosine.double(), "ten_norm": length.double()}
        return numbers | {"ten_sparsity": zeros_of(ten.maps)}

    return in_batches(numbers_of, subject.batches(n_images, first, step, size=1), "true_caso")


def on_object(
    subject: EvaluatedModel, *, scene: Scene, saliencies: Names, n_images: int, first: int = 0
) -> Result:
    r"""Measure how much of each map lies on the object that the network names.

    .. math:: \frac{\sum_{i \in \text{object}} s_i}{\sum_i s_i}, \qquad
       s = \sum_{\text{channels}} |a|

    Args:
        subject: network and images whose classes are of ImageNet.
        scene: "pair": two photographs of different classes side by side, each at 5/7 of its side,
            the second from the other half of the test images; the object is the half whose class
            is predicted. "box": a photograph at half its side in a quarter of a grey canvas.
        saliencies: S names, see `maps_of`.
        n_images, first: which test images, see `EvaluatedModel.test_images`.

    Returns:
        The value is the probability of the class; beside it share, (B, S), NaN where the network
        names neither object. By chance it is the share of the area: 1/2 in a pair, 1/4 in a box.

    Raises:
        UsageError: classes that are not of ImageNet.
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
            maps = maps_of(subject.folded, canvas, predicted, saliencies)
            sizes = [one.abs().sum((0, 1)).double() for one in maps]
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
    halves = [_shrunk_to(pixels[index : index + 1], side) for index in order]
    areas = (slice(None), slice(side)), (slice(None), slice(side, None))
    return torch.cat(halves, 3), dict(zip(labels[[*order]].tolist(), areas, strict=True))


def _box(pixels: Tensor, labels: Tensor, i: int) -> tuple[Tensor, dict[int, Area]]:
    """Return a photograph in a quarter of a grey canvas, (1, C, H, W), and its place."""
    image = pixels[i : i + 1]
    side = image.shape[-1] // 2
    down, right = divmod(i % 4, 2)
    area = slice(down * side, (down + 1) * side), slice(right * side, (right + 1) * side)
    canvas = torch.full(image.shape, GREY, device=image.device)
    canvas[:, :, area[0], area[1]] = _shrunk_to(image, side)
    return canvas, {int(labels[i]): area}


def _shrunk_to(pixels: Tensor, side: int) -> Tensor:
    """Return uint8 images as smaller ones of pixels in [0, 1]."""
    return nn.functional.interpolate(pixels / 255, [side, side], mode="bilinear", antialias=True)


def imagenet_indices(classes: Sequence[str]) -> list[int]:
    """Return the places of classes, by their names, among those of ImageNet.

    Raises:
        UsageError: a name that is not among them.
    """
    names = class_names()
    if foreign := [name for name in classes if name not in names]:
        raise expected("classes", "names of ImageNet's", ", ".join(foreign[:3]))
    whole = tuple(classes) == names  # which has some names twice
    return [*range(len(names))] if whole else [names.index(name) for name in classes]


def lambda1_sweep(subject: EvaluatedModel, *, n_images: int, image: int) -> Result:
    """Keep the maps of one image for strengths of the L1 norm around the one that is chosen.

    They are a factor of 2 apart, from an eighth of CASO's to eight times that. Beside CAFO and CASO
    stands the gradient, clipped to as many values as CASO has.

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
    loss = surrogate_loss(subject.folded, images, subject.predict(images))
    methods: dict[str, Any] = {"cafo": cafo, "caso": caso_converged}
    chosen = {name: sparse_choice(loss, method).lambda1 for name, method in methods.items()}
    strengths = chosen["caso"] * 2.0 ** torch.arange(-3, 4, device=images.device)
    grids = {name: method(loss, lambda1=strengths[:, None]) for name, method in methods.items()}
    zeros = {name: grid.sparsity[:, 0] for name, grid in grids.items()}
    maps = {name: grid.maps[:, 0] for name, grid in grids.items()}
    maps["clipped"] = torch.cat([clipped_to(loss.gradient, s) for s in zeros["caso"].split(1)])
    zeros["clipped"] = zeros_of(maps["clipped"])
    tensors = {"image": subject.data.test.images[image], "lambda1": strengths}
    tensors |= {f"{name}_maps": as_uint8(normalised_for_display(m)) for name, m in maps.items()}
    tensors |= {f"{name}_sparsity": share for name, share in zeros.items()}
    tensors |= {f"{name}_chosen": strength for name, strength in chosen.items()}
    return Result(chosen["caso"].double(), tensors)


def clipped_to(maps: Tensor, sparsity: Tensor) -> Tensor:
    """Keep of each map the largest absolute values, as many as a share of zeros (B,) leaves.

    >>> clipped_to(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), torch.tensor([0.75]))
    tensor([[ 0., -3.,  0.,  0.]])
    """
    sizes = maps.abs().flatten(1)
    zeros = (sparsity * sizes.shape[1]).round().long()
    rank = sizes.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where((rank >= zeros[:, None]).view_as(maps), maps, 0)
