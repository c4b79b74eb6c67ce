"""Forward and backward passes with a penalty on an input gradient, against passes without.

Plain steps are timed in both layouts. Penalised ones are timed as training does them (`fast`:
channels-last, `reglib.double_backward`), with stock autograd in both layouts, and by
forward-over-reverse differentiation, which needs no second derivative of a layer.

"As a user has it" means contiguous network and images, and `loss.backward()`, which also
differentiates with respect to the images. Two networks are timed only in this way, in the settings
of old complaints about stock autograd.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import Row, median_row, ratios, time_in_turns
from reglib.autodiff import input_gradient
from reglib.double_backward import evaluation_mode, fast_double_backward
from reglib.landscape import curvature_penalty, importance_landscape
from reglib.regularizers import input_gradient_penalty
from suite.networks import build_network

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
CHANNELS_LAST_GOAL, DENSITY_GOAL, LANDSCAPE_GOAL = 2.4, 1.05, 1.15
LANDSCAPE_EVERY = 10


class Case(NamedTuple):
    """A network, its batch, and the goals for penalised over plain."""

    network: str
    options: dict[str, Any]
    shape: tuple[int, int, int]
    batch: int
    goal: float | None = None
    natural_goal: float | None = None


CASES = {
    "LeNet-5": Case("lenet5", {}, (1, 28, 28), 128, 2.2, 2.2),
    "ConvNet, width 32": Case("convnet", {"width": 32}, (3, 32, 32), 128, 1.9, 2.0),
    "ResNet-18, CIFAR form": Case("resnet", {}, (3, 32, 32), 32, 2.05, 2.05),
}
# pytorch/pytorch#3076 has three convolutions with batch normalisation, #7714 the batch too.
COMPLAINTS = {
    "Three convolutions": Case("three", {}, (3, 32, 32), 128),
    "PreAct-ResNet-18": Case("resnet", {"pre_activation": True}, (3, 32, 32), 128),
}
NATURAL = {"fast": "fast, as a user has it", "stock": "stock, as a user has it"}


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps of all networks."""
    rows = [row for name in CASES for row in _rows(name, device, rounds=2 if quick else 9)]
    for name, case in COMPLAINTS.items():
        techniques = ["contiguous", *NATURAL.values()]
        steps = {technique: step(case, device, technique) for technique in techniques}
        seconds = time_in_turns(steps, rounds=1 if quick else 5)
        rows += [*_times(name, case, seconds), *_natural_rows(name, case, seconds)]
    return rows


def _times(name: str, case: Case, seconds: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    for technique, values in seconds.items():
        words = f"{'plain, ' if technique in LAYOUTS else ''}{technique}"
        label = f"{name}, batch {case.batch}: {words}"
        yield median_row("training step", label, [1000 * s for s in values], "ms")


def _natural_rows(name: str, case: Case, seconds: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    for way, technique in NATURAL.items():
        values = ratios(seconds[technique], seconds["contiguous"])
        label = f"{name}, batch {case.batch}: as a user has it, {way} / plain"
        goal = case.natural_goal if way == "fast" else None
        yield median_row("training step", label, values, "x", at_most=goal)


def _rows(name: str, device: torch.device, *, rounds: int) -> Iterator[Row]:
    case = CASES[name]
    steps = {
        technique: step(case, device, technique)
        for technique in (*LAYOUTS, *STEPS, "stock, channels-last", *NATURAL.values())
    }
    seconds = time_in_turns(steps, rounds=rounds)
    title = f"{name}, batch {case.batch}"
    yield from _times(name, case, seconds)
    yield from _natural_rows(name, case, seconds)

    def ratio(technique: str, base: str, words: str, **goal: float | None) -> Row:
        values = ratios(seconds[technique], seconds[base])
        return median_row("training step", f"{title}: {words}", values, "x", **goal)

    plain, last = LAYOUTS
    yield ratio("fast", plain, "fast / plain", at_most=case.goal)
    yield ratio("fast", last, "fast / plain in channels-last", at_most=CHANNELS_LAST_GOAL)
    yield ratio("stock", plain, "stock / plain")
    yield ratio("stock, channels-last", plain, "stock in channels-last / plain")
    yield ratio("forward-over-reverse", plain, "forward-over-reverse / plain")
    words = "marginal density / penalised, both fast"
    yield ratio("fast density", "fast", words, at_most=DENSITY_GOAL)
    added = [s / LANDSCAPE_EVERY for s in seconds["fast landscape"]]
    with_landscape = [p + a for p, a in zip(seconds[last], added, strict=True)]
    words = f"{title}: landscape penalty in each 10th step / plain, channels-last"
    values = ratios(with_landscape, seconds[last])
    yield median_row("training step", words, values, "x", at_most=LANDSCAPE_GOAL)


class Batch(NamedTuple):
    """A network in training mode with its images and labels."""

    network: nn.Module
    images: Tensor
    labels: Tensor

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the parameters, and nothing else."""
        self.network.zero_grad()
        torch.autograd.backward(loss, inputs=list(self.network.parameters()))

    def inputs(self) -> Tensor:
        """Return the images with a gradient required."""
        return self.images.detach().requires_grad_()


def batch_of(
    case: Case, device: torch.device, layout: torch.memory_format, *, n_classes: int = 10
) -> Batch:
    """Build a network and draw random images."""
    network = (
        three_convolutions()
        if case.network == "three"
        else build_network(case.network, case.shape, n_classes, options=case.options, seed=0)
    )
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(case.batch, *case.shape, generator=generator)
    labels = torch.randint(10, (case.batch,), generator=generator).to(device)
    network = network.to(device).to(memory_format=layout).train()
    return Batch(network, images.to(device, memory_format=layout), labels)


def three_convolutions() -> nn.Module:
    """Build three convolutions with batch normalisation and ReLU, and a linear layer."""
    layers: list[nn.Module] = []
    for channels in (3, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def plain_step(batch: Batch) -> None:
    """Differentiate the cross-entropy."""
    batch.backward(F.cross_entropy(batch.network(batch.images), batch.labels))


def penalised_step(batch: Batch, model: nn.Module) -> None:
    """Differentiate the cross-entropy and the penalty on its input gradient."""
    batch.backward(penalised_loss(batch, model))


def natural_step(batch: Batch, model: nn.Module) -> None:
    """Differentiate the penalised loss as a user does, with respect to the images too."""
    loss = penalised_loss(batch, model)
    batch.network.zero_grad()
    loss.backward()


def penalised_loss(batch: Batch, model: nn.Module) -> Tensor:
    """Return the cross-entropy plus the penalty on its input gradient."""
    x = batch.inputs()
    logits = model(x)
    penalty = input_gradient_penalty(logits, batch.labels, x).mean()
    return F.cross_entropy(logits, batch.labels) + penalty


def density_step(batch: Batch, model: nn.Module) -> None:
    """Differentiate the loss with a penalty on the input gradient of the logits' logsumexp."""
    x = batch.inputs()
    logits = model(x)
    gradient = input_gradient(logits.logsumexp(1), x, create_graph=True)
    penalty = gradient.square().flatten(1).sum(1).mean()
    batch.backward(F.cross_entropy(logits, batch.labels) + penalty)


def landscape_pass(batch: Batch, model: nn.Module) -> None:
    """Differentiate the curvature of the importance landscape."""
    generator = torch.Generator().manual_seed(2)
    landscape = importance_landscape(model, batch.images, generator=generator, create_graph=True)
    batch.backward(curvature_penalty(landscape))


def forward_over_reverse_step(batch: Batch, model: nn.Module) -> None:
    r"""Differentiate by :math:`\nabla_\theta \|g\|^2 = 2\,\partial_t \nabla_\theta L(x + t g)`."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    buffers = dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        # A copy of the running statistics: they cannot be changed in place under a transform.
        state = parameters | {name: buffer.clone() for name, buffer in buffers.items()}
        logits = torch.func.functional_call(model, state, (x,))
        return F.cross_entropy(logits, batch.labels, reduction="sum")

    direction = torch.func.grad(loss, argnums=1)(parameters, batch.images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, when forward mode is loaded
        gradient = partial(torch.func.grad(loss), parameters)
        torch.func.jvp(gradient, (batch.images,), (direction,))


def _itself(network: nn.Module) -> nn.Module:
    return network


# Techniques: how each prepares the network once, and how it differentiates in each step.
STEPS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[Batch, nn.Module], None]]] = {
    "stock": (_itself, penalised_step),
    "fast": (fast_double_backward, penalised_step),
    "fast density": (fast_double_backward, density_step),
    "fast landscape": (evaluation_mode, landscape_pass),
    "forward-over-reverse": (_itself, forward_over_reverse_step),
}


def step(case: Case, device: torch.device, technique: str) -> Callable[[], None]:
    """Return a function that computes the gradients of one step."""
    if technique in LAYOUTS:
        batch = batch_of(case, device, LAYOUTS[technique])
        return lambda: plain_step(batch)
    name, _, manner = technique.partition(", ")
    natural = technique in NATURAL.values()
    last = not natural and (manner or name.startswith("fast"))
    batch = batch_of(case, device, torch.channels_last if last else torch.contiguous_format)
    prepare, differentiate = STEPS[name]
    if natural:
        differentiate = natural_step
    model = prepare(batch.network)
    if natural and name == "fast":
        model = fast_double_backward(batch.network, channels_last=True)
    return lambda: differentiate(batch, model)
