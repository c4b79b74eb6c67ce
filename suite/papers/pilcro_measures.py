"""Measures of the chapter on importance landscapes: see `suite.metrics` and `reglib.landscape`."""

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import update_bn

from reglib import landscape as lib
from reglib.double_backward import folded_copy
from reglib.top_gap.backbones import Normalise
from suite import metrics
from suite.data import image_shape, load_data
from suite.errors import expected
from suite.metrics.saliency import integrated_gradients
from suite.papers.path_counts import path_counts
from suite.training.evaluated import Count, EvaluatedModel, Result
from suite.units import Network, from_identity

# Corrupting images takes longer than a forward pass. So small images, of at most so many bytes,
# are corrupted once for all networks of a process.
REMEMBERED_BYTES = 2**22
Of = Literal["network", "paths", "target"]
BATCH_PIXELS = 100 * 32 * 32  # of the images in a batch
# Changes of a network or of its images, to see whether the landscape changes.
Condition = Literal[
    "white noise", "black margin", "random biases", "statistics of images", "its paths, scaled"
]
MARGIN, BIAS_STD = 8, 0.1  # pixels on each side; standard deviation


def accuracy_by_location(
    subject: EvaluatedModel,
    *,
    margin: int,
    stride: int = 1,
    n_images: Count = None,
    data: str | None = None,
) -> Result:
    """Return the share of shifts over an empty margin for which an image is classified right.

    The accuracy of each shift is kept. See `suite.metrics.correct_by_location`.
    """
    batch = subject.test_images(n_images, data)
    correct = metrics.correct_by_location(subject.logits, *batch, margin=margin, stride=stride)
    return Result(correct.mean((1, 2)), {"accuracy": correct.mean(0)})


def importance_landscape(
    subject: EvaluatedModel, *, n_images: Count = None, n_draws: Count = None, of: Of = "network"
) -> Result:
    """Return the total variation of the importance landscape over test images; keep the landscape.

    `n_draws` is the number of classes that are drawn for each image, in place of all. See
    `reglib.landscape.expected_squared_gradients` and `reglib.landscape.total_variation`; for `of`,
    see `flatness`.
    """
    return _keep_landscape(_halves(subject, n_images, n_draws, of).mean(0))


def _keep_landscape(squares: Tensor) -> Result:
    """Return the total variation of the landscape of squared values, (C, H, W), and keep it."""
    landscape = lib.scaled_norm(squares)
    return Result(lib.total_variation(landscape)[None], {"landscape": landscape.float()})


def flatness(
    subject: EvaluatedModel,
    *,
    part: Literal["tv", "noise", "block_tv", "centre_to_rim", "target_distance"],
    n_images: Count = None,
    n_draws: Count = None,
    block: int = 4,
    of: Of = "network",
) -> Result:
    """Return a measure of the flatness of the importance landscape over test images: one value.

    Args:
        subject, n_images, n_draws: see `importance_landscape`.
        part: "tv", the total variation; "noise", its part due to the finite number of images;
            "block_tv", the total variation of means over squares, in which a grid averages out;
            "centre_to_rim", see `suite.metrics.centre_to_rim`; "target_distance", the mean squared
            distance to the smoothness of the training images.
        block: side of the squares, in pixels.
        of: "network"; or, for comparison, "paths", its path counts with the mean square of the
            weights of each layer (`suite.papers.path_counts`), or "target", the smoothness of the
            images; these two have no "noise".
    """
    halves = _halves(subject, n_images, n_draws, of)
    landscape = lib.scaled_norm(halves.mean(0))
    if part == "centre_to_rim":
        value = metrics.centre_to_rim(landscape)
    elif part == "target_distance":
        value = lib.target_penalty(landscape, _target(subject.unit).to(landscape))
    elif part == "noise":
        value = lib.total_variation((lib.scaled_norm(halves[0]) - lib.scaled_norm(halves[1])) / 2)
    else:
        size = block if part == "block_tv" else 1
        value = lib.total_variation(F.avg_pool2d(landscape[None], size)[0])
    return Result(value[None])


def _halves(subject: EvaluatedModel, n_images: Count, n_draws: Count, of: Of) -> Tensor:
    """Return squared values of one or two halves of the images, (1 or 2, C, H, W)."""

    def gradients() -> Tensor:
        images, _ = subject.test_images(n_images)
        return _squares(subject.folded, images, n_draws, subject.generator(0))

    if of == "target":
        return _target(subject.unit)[None, None]
    if of == "network":
        return subject.compute_once(("squared gradients", n_images, n_draws), gradients)
    network = subject.network
    if isinstance(network, nn.Sequential) and isinstance(network[0], Normalise):
        network = network[1]  # the paths behind normalisation
    return path_counts(network, image_shape(subject.unit.data), squared=True)[None]


def _squares(model: nn.Module, images: Tensor, n_draws: Count, generator: Generator) -> Tensor:
    """Return squared gradients of two halves of the images, (2, C, H, W)."""
    size = max(1, BATCH_PIXELS // images[0, 0].numel())
    source = None if n_draws is None else generator
    halves = [images[start::2].split(size) * (n_draws or 1) for start in (0, 1)]
    return torch.stack([lib.expected_squared_gradients(model, h, generator=source) for h in halves])


def landscape_under(
    subject: EvaluatedModel, *, condition: Condition, n_images: int, n_draws: Count = None
) -> Result:
    """Return the total variation of the landscape under a condition; keep the landscape.

    Args:
        subject, n_images, n_draws: see `importance_landscape`.
        condition: "white noise", equally likely pixels in place of test images; "black margin",
            test images that are black except in the middle; "random biases", normal ones;
            "statistics of images", those of the first training images in batch normalisation; or
            "its paths, scaled", the path counts, with weights scaled by these statistics.
    """
    pixels, _ = subject.test_uint8(n_images)
    network = copy.deepcopy(subject.network)
    source = subject.generator(getattr(subject.unit, "seed", 0))
    if condition == "white noise":
        pixels = torch.randint(256, pixels.shape, generator=source, device=pixels.device).byte()
    elif condition == "black margin":
        pixels = F.pad(pixels[..., MARGIN:-MARGIN, MARGIN:-MARGIN], [MARGIN] * 4)
    elif condition == "random biases":
        for bias in (p for name, p in network.named_parameters() if name.endswith("bias")):
            bias.data.normal_(0, BIAS_STD, generator=source)
    else:
        _take_statistics(network, subject.as_inputs(subject.data.train.images[:n_images]))
    network = folded_copy(network)
    if condition == "its paths, scaled":
        return _keep_landscape(path_counts(network, image_shape(subject.unit.data), squared=True))
    images = subject.as_inputs(pixels)
    return _keep_landscape(_squares(network, images, n_draws, subject.generator(0)).mean(0))


def _take_statistics(network: nn.Module, images: Tensor) -> None:
    """Set the statistics of batch normalisation to those of images, in place."""
    if not (any(isinstance(m, nn.BatchNorm2d) for m in network.modules()) and len(images)):
        raise expected("condition", "batch normalisation and training images", "none")
    update_bn([images], network)


@functools.lru_cache(4)
def _target_of(data: str, n_train: Count) -> Tensor:
    splits = load_data(data)
    images = splits.train.images if len(splits.train.images) else splits.test.images
    return lib.data_smoothness(images[:n_train].split(500))


def _target(unit: Network) -> Tensor:
    """Return the target of the penalty: the smoothness of the training images."""
    return _target_of(unit.data, getattr(unit, "n_train", None))


def _correct(
    subject: EvaluatedModel, beside: Mapping[str, Any] | None, images: Tensor, labels: Tensor
) -> Tensor:
    """Mark the images that the network classifies right, and so does `beside`, if it is given."""
    correct = subject.predict(images) == labels
    if beside is not None:
        correct &= subject.related(from_identity(beside)).predict(images) == labels
    return correct


def ablation_auc(
    subject: EvaluatedModel,
    *,
    n_images: int,
    n_baselines: int,
    n_steps: int = 50,
    stride: int = 1,
    beside: Mapping[str, Any] | None = None,
) -> Result:
    """Return the area under `suite.metrics.ablation_curve`, by Integrated Gradients.

    The images are random test images that the network classifies right, and so does the network
    of the identity `beside`, if given. Other test images are the baselines. The number of replaced
    pixels goes from none to all by `stride`; the mean curve is kept.
    """
    images, labels = subject.test_images(None)
    correct = _correct(subject, beside, images, labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    order = order.to(images.device)
    chosen = order[correct[order]][:n_images]
    others = order[~torch.isin(order, chosen)][:n_baselines]
    if len(chosen) < n_images or len(others) < n_baselines:
        limits = f"at most the {int(correct.sum())} test images that are classified right, "
        limits += f"and the rest of {len(images)}"
        raise expected("n_images, n_baselines", limits, f"{n_images} and {n_baselines}")
    problem = subject.folded, images[chosen], labels[chosen]
    maps = integrated_gradients(*problem, n_steps=n_steps, baselines=images[others])
    n_pixels = images[0, 0].numel()
    counts = [*range(0, n_pixels, stride), n_pixels]
    curves = metrics.ablation_curve(*problem, maps, counts=counts)
    tensors = {"counts": torch.tensor(counts), "curve": curves.mean(0)}
    return Result(metrics.area_under_curve(curves, counts), tensors)


@functools.lru_cache(15 * 5)  # all corruptions and levels
def _corrupted(pixels: bytes, shape: tuple[int, ...], corruption: str, level: int) -> Tensor:
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(shape)
    return metrics.corrupt(images, corruption=corruption, level=level, seed=0)


def corruption_robustness(
    subject: EvaluatedModel,
    *,
    category: str,
    level: int,
    n_images: Count = None,
    beside: Mapping[str, Any] | None = None,
) -> Result:
    """Return the mean of `suite.metrics.probability_ratio` over the corruptions of a category.

    The class is the label. The value is NaN for images that the network, or the network of the
    identity `beside`, if given, classifies wrong.
    """
    pixels, labels = subject.test_uint8(n_images)
    corrupted = _corruptions(pixels, category, level)
    ratios = [metrics.probability_ratio(subject.logits, pixels, c, labels) for c in corrupted]
    correct = _correct(subject, beside, pixels, labels)
    return Result(torch.stack(ratios).mean(0).double().where(correct, torch.nan))


def corrupted_accuracy(
    subject: EvaluatedModel, *, level: int, n_images: Count = None, category: str | None = None
) -> Result:
    """Return the share of corruptions under which a test image is classified right.

    The corruptions are all of `suite.metrics.CORRUPTIONS`, or those of one category.
    """
    pixels, labels = subject.test_uint8(n_images)
    correct = [subject.predict(x) == labels for x in _corruptions(pixels, category, level)]
    return Result(torch.stack(correct).double().mean(0))


def _corruptions(pixels: Tensor, category: str | None, level: int) -> Iterator[Tensor]:
    """Yield the corrupted images; small images are padded with their outermost pixels meanwhile."""
    corrupt = _corrupted if pixels.nbytes <= REMEMBERED_BYTES else _corrupted.__wrapped__
    height, width = pixels.shape[-2:]
    down, across = (max(0, metrics.SMALLEST_CORRUPTED - n) for n in (height, width))
    top, left = down // 2, across // 2
    sides = left, across - left, top, down - top
    padded = F.pad(pixels.float(), sides, mode="replicate").to(torch.uint8)
    content = padded.cpu().numpy().tobytes(), tuple(padded.shape)
    for group in [category] if category else metrics.CORRUPTIONS:
        for name in metrics.CORRUPTIONS[group]:
            corrupted = corrupt(*content, name, level)
            yield corrupted[..., top : top + height, left : left + width].to(pixels.device)


def top_k_accuracy(subject: EvaluatedModel, *, k: int = 5, n_images: Count = None) -> Result:
    """Return 1 where the label of a test image is among the `k` highest logits, else 0."""
    images, labels = subject.test_images(n_images)
    if k > len(subject.data.classes):
        raise expected("k", f"1 to {len(subject.data.classes)} classes", k)
    return Result((subject.logits(images).topk(k).indices == labels[:, None]).any(1).double())


def cross_entropy(subject: EvaluatedModel, *, n_images: Count = None) -> Result:
    """Return the cross-entropy of each test image, in nats, without penalties."""
    images, labels = subject.test_images(n_images)
    return Result(F.cross_entropy(subject.logits(images), labels, reduction="none"))
