"""Metrics of the marginal-density chapter: see `suite.metrics` for what most of them mean."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reglib import marginal_density_penalty
from reglib._common import forward_again
from reglib.autodiff import input_gradient
from suite import metrics
from suite.data import ImageData, load_data, null_block_masks
from suite.errors import UsageError
from suite.papers.binding import area, bind
from suite.training import optimizers
from suite.training.evaluated import EvaluatedModel, Result
from suite.training.loop import initial_network
from suite.units import Training

Form = Literal["naive", "stable", "efficient"]
LogitPart = Literal["label", "others", "cosine", "probability"]


class Centred(nn.Module):
    """Subtract their mean from logits, (B, classes)."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits - logits.mean(1, keepdim=True)


# Shifts that leave all predictions as they are.
SHIFTS = {"centred": Centred(), "log_probability": nn.LogSoftmax(dim=1)}


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
    """See `suite.metrics.feature_leakage`; for BlockMNIST. `shift` is one of `SHIFTS` or None.

    With `alone` the network is shown the null block alone, as equation 9 is written, and not the
    whole image, whose maps the paper draws. With `other` the map is that of the class after the
    label, the first one after the last. With `beside_lines` it is what lies beside the lines of the
    block, where its half of the image is black, and, relative, as a share of the map in that half.
    """
    network = nn.Sequential(subject.folded, SHIFTS[shift]).eval() if shift else subject.folded
    images, labels = subject.test_images(n_images)
    masks = null_block_masks(subject.data.test)[:n_images].to(images.device)
    images = images * masks if alone else images
    labels = (labels + 1) % len(subject.data.classes) if other else labels
    maps = metrics.saliency_maps(network, saliency)(images, labels)
    if beside_lines:
        maps, masks = maps * masks, masks & (images == 0)
    return Result(metrics.feature_leakage(maps, masks, relative=relative))


def _perturbation(
    sizes: Tensor,
    model: nn.Module,
    images: Tensor,
    class_index: Tensor,
    *,
    n_steps: int,
    over: Literal["image", "mean"] = "image",
    centred: bool = False,
) -> Tensor:
    """See `suite.metrics.pixel_perturbation`.

    `centred` takes logits less their mean, and maps of these: no shift of all logits moves either.
    """
    if centred:
        model = nn.Sequential(model, SHIFTS["centred"]).eval()
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
    """See `suite.metrics.insertion_curve`; `fractional` is the fractional change of the output.

    That is the change since nothing was there, over its mean over all whole images. Logits then
    have their mean subtracted: a shift of all of them, which no prediction shows, would rule it.
    """
    shown = nn.Sequential(model, SHIFTS["centred"]).eval() if fractional else model
    curves = metrics.insertion_curve(maps, shown, images, class_index, n_steps=n_steps, score=score)
    change = curves - curves[:, :1]
    return change / change[:, -1].mean() if fractional else curves


def _logit_gradient(values: metrics.LogitGradients, *, part: LogitPart = "label") -> Result:
    return Result(getattr(values, part), values._asdict() if part == "cosine" else {})


def worst_group_accuracy(subject: EvaluatedModel, *, n_images: int | None = None) -> Result:
    """Accuracy in the group where it is lowest, of all groups of the test images; all are kept."""
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
    """See `suite.metrics.auroc`; `score` is one of `OOD_SCORES`, or "logit" for `logit_auroc`."""
    check_other_images(subject.data, load_data(data), subject.unit.data, data)
    shown = (subject.test_images(n_images, name, labelled=False)[0] for name in (None, data))
    known, others = map(subject.logits, shown)
    if score == "logit":
        return Result(metrics.logit_auroc(known, others))
    to_score = metrics.OOD_SCORES[score]
    return Result(metrics.auroc(to_score(known), to_score(others)))


def check_other_images(own: ImageData, shown: ImageData, own_name: str, name: str) -> None:
    """Check that images are not those of the training.

    Raises:
        UsageError: they are, by whatever name.
    """
    if shown.fingerprint == own.fingerprint:
        why = f"data: expected other images than those of the training, got {name!r}, "
        raise UsageError(f"{why}which are those of {own_name!r}")


def _penalised(
    network: nn.Module, images: Tensor, labels: Tensor, form: str, strength: float
) -> tuple[Tensor, Tensor]:
    """Give the parameters their gradient; return the input gradient's norm by a form, and the loss.

    "naive" is not guarded here, unlike in `reglib`, which raises an error before it goes wrong.
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

    The value of a step is 1 where the norm of the gradient that the form gives, a mean over the
    batch of 128, is not finite, or more than twice or less than half of that of the gradient of
    logsumexp of the same network and batch; else 0. Steps after a weight has become infinite count
    as 1. Kept are, a step each: that `norm`, the `true` one, the cross-entropy `loss`, and
    whether a weight's gradient was finite.
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
        norm, loss = _penalised(network, images, labels, form, strength)
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        optimizer.step()
        steps.append([norm.item(), true, loss.item(), float(finite)])
    table = torch.tensor(steps, dtype=torch.float64)
    ratio = table[:, 0] / table[:, 1]
    useful = (ratio <= 2) & (ratio >= 0.5) & table[:, 3].bool()
    kept = dict(zip(("norm", "true", "loss", "finite"), table.T.float().contiguous(), strict=True))
    return Result((~useful).double(), kept)


def activation_ascent(
    subject: EvaluatedModel, *, n_classes: int, n_steps: int, step_size: float, seed: int = 0
) -> Result:
    """Raise the logit of each of the first classes from the same noise; the images are kept.

    The value is the logit that was reached; see `suite.metrics.maximise_activation`.
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
    "pixel_perturbation": bind(_perturbation, area, saliency="smooth_grad"),
}
