"""Metrics of the marginal-density chapter; `suite.metrics` defines most of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reglib import marginal_density_penalty
from reglib._common import forward_again
from reglib.autodiff import Map, input_gradient
from suite import metrics
from suite.data import ImageData, load_data, null_block_masks
from suite.errors import UsageError
from suite.papers.binding import area, bind
from suite.training import optimizers
from suite.training.evaluated import ChangedLogits, EvaluatedModel, Result
from suite.training.loop import initial_network
from suite.units import Training

Form = Literal["naive", "stable", "efficient"]
LogitPart = Literal["label", "others", "cosine", "probability"]
Feature = Literal["block", "digit"]
Statistic = Literal["size", "share", "range", "spread"]


# Shifts of all logits, which leave the predictions as they are.
SHIFTS: dict[str, Map] = {"centred": lambda logits: logits - logits.mean(1, keepdim=True)}
SHIFTS |= {"log_probability": partial(torch.log_softmax, dim=1)}


def feature_leakage(
    subject: EvaluatedModel,
    *,
    n_images: int,
    relative: bool = False,
    shift: str | None = None,
    alone: bool = False,
    other: bool = False,
    beside_lines: bool = False,
    saliency: str = "integrated_gradients",
) -> Result:
    """Measure the leakage of BlockMNIST: see `suite.metrics.feature_leakage`.

    Args:
        subject: network and images.
        n_images: number of test images.
        relative: whether the leakage is a share of the whole map.
        shift: one of `SHIFTS`, applied to the logits, or None.
        alone: whether the network sees the null block alone, as equation 9 is written. By default
            it sees the whole image, whose maps the paper draws.
        other: whether maps are of the class after the label (after the last, the first).
        beside_lines: whether only the black pixels of the block's half count. The relative leakage
            is then their share of the map in that half.
        saliency: method of the maps.
    """
    network = ChangedLogits(subject.folded, SHIFTS[shift]) if shift else subject.folded
    images, labels = subject.test_images(n_images)
    masks = null_block_masks(subject.data.test)[:n_images].to(images.device)
    images = images * masks if alone else images
    labels = (labels + 1) % len(subject.data.classes) if other else labels
    maps = metrics.saliency_maps(network, saliency)(images, labels)
    if beside_lines:
        maps, masks = maps * masks, masks & (images == 0)
    return Result(metrics.feature_leakage(maps, masks, relative=relative))


def removal(
    subject: EvaluatedModel, *, n_images: int, feature: Feature, statistic: Statistic
) -> Result:
    r"""Measure how removing a half of images of BlockMNIST changes the logit of the label.

    .. math:: M_{\text{feature}} = f_y(x) - f_y(x_{[\text{feature} = 0]})

    Args:
        subject: network and images.
        n_images: number of test images.
        feature: "block", the half with the null block, or "digit", the other half.
        statistic: "size", :math:`|M|`, and "share", :math:`|M|` over its sum for both features, are
            of each image, (B,), in logits and in [0, 1]. "range", the largest less the smallest
            :math:`M`, in logits, and "spread", the standard deviation of :math:`M` over the mean
            :math:`|M|`, are of the images of each class, (classes,).

    Source: section 3 of :cite:t:`yang2024`. The range is the least :math:`h` of definition 1 if the
    metric :math:`c`, which the paper leaves open, is the distance in logits.
    """
    images, labels = subject.test_images(n_images)
    block = null_block_masks(subject.data.test)[:n_images].to(images.device)
    logits = (subject.logits(images * kept) for kept in (1, ~block, block))
    whole, *without = (logit.gather(1, labels[:, None])[:, 0] for logit in logits)
    changes = dict(zip(("block", "digit"), [whole - logit for logit in without], strict=True))
    change = changes[feature]
    if statistic in ("size", "share"):
        sizes = torch.stack([*changes.values()]).abs()
        return Result(change.abs() / (sizes.sum(0) if statistic == "share" else 1))
    classes = [change[labels == label] for label in labels.unique()]
    if statistic == "range":
        return Result(torch.stack([c.max() - c.min() for c in classes]))
    return Result(torch.stack([c.std(correction=0) / c.abs().mean() for c in classes]))


def _perturbation(
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int,
    over: Literal["image", "mean"] = "image",
    centred: bool = False,
) -> Tensor:
    """Compute the curves of `suite.metrics.pixel_perturbation`, for maps by SmoothGrad.

    With `centred`, scores and maps are of centred logits, which no shift of all logits changes.
    """
    model = ChangedLogits(model, SHIFTS["centred"]) if centred else model
    sizes = metrics.saliency_maps(model, "smooth_grad")(images, class_index).abs()
    return metrics.pixel_perturbation(sizes, model, images, class_index, n_steps=n_steps, over=over)


def _insertion_curve(
    maps: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int,
    score: str = "probability",
    fractional: bool = False,
) -> Tensor:
    """Compute the curves of `suite.metrics.insertion_curve`.

    With `fractional` they are the changes from the empty image, over the mean change to the whole
    image. Logits are then centred, since a shift of all logits would dominate the change.
    """
    model = ChangedLogits(model, SHIFTS["centred"]) if fractional else model
    curves = metrics.insertion_curve(maps, model, images, class_index, n_steps=n_steps, score=score)
    change = curves - curves[:, :1]
    return change / change[:, -1].mean() if fractional else curves


def _logit_gradient(values: dict[str, Tensor], *, part: LogitPart = "label") -> Result:
    return Result(values[part], values if part == "cosine" else {})


def worst_group_accuracy(subject: EvaluatedModel, *, n_images: int | None = None) -> Result:
    """Return the accuracy of the worst group of test images; keep the accuracies of all groups."""
    groups = subject.data.test.groups
    if groups is None:
        raise UsageError(f"data set {subject.unit.data!r}: expected groups of images, got none")
    images, labels = subject.test_images(n_images)
    correct = (subject.predict(images) == labels).double()
    count = int(groups.max()) + 1
    accuracies = metrics.group_accuracies(correct, groups[:n_images].to(correct.device), count)
    return Result(accuracies.amin()[None], {"accuracies": accuracies})


def ood_auroc(
    subject: EvaluatedModel, *, data: str, score: str = "log_density", n_images: int | None = None
) -> Result:
    """Measure how well a score separates test images from those of another data set.

    The `score` is one of `suite.metrics.OOD_SCORES`; see `suite.metrics.mean_auroc`.
    """
    check_other_images(subject.data, load_data(data), subject.unit.data, data)
    images = (subject.test_images(n_images, name, labelled=False)[0] for name in (None, data))
    scores = (metrics.OOD_SCORES[score](subject.logits(x)) for x in images)
    return Result(metrics.mean_auroc(*scores))


def check_other_images(own: ImageData, other: ImageData, own_name: str, other_name: str) -> None:
    """Check that a data set is not a network's own, on which it was trained.

    Raises:
        UsageError: both have the same images, by whatever name.
    """
    if other.fingerprint == own.fingerprint:
        why = f"data: expected other images than those of the training, got {other_name!r}, "
        raise UsageError(f"{why}which are those of {own_name!r}")


def _backpropagate(
    network: nn.Module, images: Tensor, labels: Tensor, form: str, strength: float
) -> tuple[Tensor, Tensor]:
    """Backpropagate the penalised loss; return the mean penalty by a form, and the cross-entropy.

    The form "naive" is not guarded here; that of `reglib` raises an error before it overflows.
    """
    inputs = images.clone().requires_grad_()
    logits = network(inputs)
    if form == "naive":
        total = logits.exp().sum(1)
        gradient = input_gradient(total, inputs, create_graph=True).flatten(1)
        norm = (gradient / total[:, None]).norm(dim=1).mean()
    else:
        source = torch.Generator(images.device).manual_seed(0)
        options: dict[str, Any] = {"generator": source, "implementation": form}
        norm = marginal_density_penalty(logits, inputs, **options).mean()
    loss = nn.functional.cross_entropy(logits, labels)
    network.zero_grad()
    (loss + strength * norm).backward()
    return norm, loss


def training_steps(subject: EvaluatedModel, *, form: Form, n_steps: int, strength: float) -> Result:
    """Train the network from the start with one form of the penalty, in training mode.

    Each step compares two norms, means over its batch of 128: that of the gradient by the form, and
    that of the gradient of logsumexp.

    Returns:
        The value of a step is 0 where the first norm is half to twice the second and all gradients
        of weights are finite, else 1. Kept for each step: `norm`, the `true` norm, the
        cross-entropy `loss`, and whether the gradients of weights are `finite`.

    Raises:
        UsageError: a network that is not trained here.
    """
    unit, split = subject.unit, subject.data.train
    if not isinstance(unit, Training):
        raise UsageError(f"expected a network that is trained here, got {unit.network!r}")
    network = initial_network(unit, subject.data).to(subject.device).train()
    optimizer = optimizers.build_optimizer(unit, network)
    generator = torch.Generator().manual_seed(unit.seed)
    steps = []
    for _ in range(n_steps):
        index = torch.randint(len(split.labels), (128,), generator=generator)
        images = subject.as_inputs(split.images[index].to(subject.device))
        # In training mode; running statistics are left to the step itself.
        inputs = images.clone().requires_grad_()
        total = forward_again(network, inputs).logsumexp(1)
        true = input_gradient(total, inputs).flatten(1).norm(dim=1).mean().item()
        labels = split.labels[index].to(subject.device)
        norm, loss = _backpropagate(network, images, labels, form, strength)
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        optimizer.step()
        steps.append([norm.item(), true, loss.item(), float(finite)])
    table = torch.tensor(steps, dtype=torch.float64)
    ratio = table[:, 0] / table[:, 1]
    useful = (ratio <= 2) & (ratio >= 0.5) & table[:, 3].bool()
    names = ("norm", "true", "loss", "finite")
    return Result((~useful).double(), dict(zip(names, table.T.float().contiguous(), strict=True)))


def activation_ascent(
    subject: EvaluatedModel, *, n_classes: int, n_steps: int, step_size: float, seed: int = 0
) -> Result:
    """Maximise the logit of each of the first classes, from the same noise; keep the images.

    The value is the final logit; see `suite.metrics.maximise_activation`.
    """
    classes = torch.arange(min(n_classes, len(subject.data.classes)), device=subject.device)
    shape = (1, *subject.data.shape)
    noise = torch.rand(shape, generator=subject.generator(seed), device=subject.device)
    start = (0.5 + 0.1 * (noise - 0.5)).expand(len(classes), *noise.shape[1:])
    steps: dict[str, Any] = {"n_steps": n_steps, "step_size": step_size}
    images = metrics.maximise_activation(subject.folded, start, classes, **steps)
    reached = subject.logits(images).gather(1, classes[:, None])[:, 0]
    return Result(reached, {"images": (255 * images.detach()).byte()})


METRICS: dict[str, Callable[..., Result]] = {
    "density_gradient": bind(metrics.density_gradients),
    "insertion_auc": bind(_insertion_curve, area),
    "logit_gradient": bind(metrics.logit_gradients, _logit_gradient),
    "pixel_perturbation": bind(_perturbation, area),
}
