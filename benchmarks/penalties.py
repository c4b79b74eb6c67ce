"""Training steps with each method of the marginal-density chapter, against the plain step."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.timing import Row, median_row, ratios, time_in_turns
from benchmarks.training_step import DENSITY_GOAL, LAYOUTS, Batch, Case, batch_of, plain_step
from reglib.autodiff import input_gradient
from reglib.double_backward import fast_double_backward
from reglib.regularizers import group_dro
from suite.networks import with_softplus
from suite.training.penalties import PENALTIES, forward

CASES = {
    "MLP, BlockMNIST": Case("mlp", {}, (1, 56, 28), 128, 0),
    "VGG-11": Case("vgg11", {}, (3, 32, 32), 32, 0),
    "ResNet-18, CIFAR form": Case("resnet", {}, (3, 32, 32), 32, 0),
}
PGD = {"epsilon": 0.3, "step_size": 0.1, "n_steps": 3, "random_start": True}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "marginal density, naive": ("marginal_density", {"implementation": "naive"}),
    "marginal density, stable": ("marginal_density", {"implementation": "stable"}),
    "marginal density, efficient": ("marginal_density", {}),
    "double backpropagation": ("input_gradient", {}),
    "gradient of the label's logit": ("logit_gradient", {}),
    "input Hessian": ("input_hessian", {}),
    "CURE": ("cure", {}),
    "score matching, Hutchinson": ("score_matching", {}),
    "score matching, Taylor": ("score_matching", {"trace": "taylor"}),
    "FGSM": ("adversarial", {"epsilon": 0.3, "step_size": 0.3}),
    "PGD of 3 steps": ("adversarial", PGD),
}
DENSITY, DOUBLE = "marginal density, efficient", "double backpropagation"
LOGSUMEXP = "marginal density, logsumexp"
N_CLASSES = (10, 100, 1000)


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps of all networks."""
    rounds = {name: 50 if case.network == "mlp" else 7 for name, case in CASES.items()}
    rows = [row for n in CASES for row in _rows(n, device, rounds=1 if quick else rounds[n])]
    classes = [row for n in N_CLASSES for row in _of_classes(n, device, 1 if quick else 5)]
    return [*rows, *classes]


def _rows(name: str, device: torch.device, *, rounds: int) -> Iterator[Row]:
    batch = batch_of(CASES[name], device, LAYOUTS["channels-last"])
    smooth = batch._replace(network=with_softplus(batch.network, beta=10))
    model = fast_double_backward(batch.network)
    steps: dict[str, Callable[[], None]] = {
        "plain": lambda: plain_step(batch),
        "SoftPlus": lambda: plain_step(smooth),
        "Group DRO": lambda: _group_step(batch),
    }
    for label, (penalty, settings) in SETTINGS.items():
        steps[label] = lambda p=penalty, s=settings: _step(batch, model, p, s)  # type: ignore[misc]
    steps[LOGSUMEXP] = lambda: _logsumexp_step(batch, model)
    seconds = time_in_turns(steps, rounds=rounds)
    yield median_row("penalties", f"{name}: plain", [1000 * s for s in seconds["plain"]], "ms")
    for label in [*SETTINGS, LOGSUMEXP, "SoftPlus", "Group DRO"]:
        values = ratios(seconds[label], seconds["plain"])
        yield median_row("penalties", f"{name}: {label} / plain", values, "x")
    values, case = ratios(seconds[DENSITY], seconds[DOUBLE]), f"{name}: {DENSITY} / {DOUBLE}"
    yield median_row("penalties", case, values, "x", at_most=DENSITY_GOAL)


def _step(batch: Batch, model: torch.nn.Module, penalty: str, settings: dict[str, Any]) -> None:
    x = batch.inputs()
    step = forward(model, x, batch.labels, torch.Generator(x.device).manual_seed(0))
    values = PENALTIES[penalty](step, **settings)
    batch.backward(F.cross_entropy(step.logits, batch.labels) + values.mean())


def _logsumexp_step(batch: Batch, model: torch.nn.Module) -> None:
    """Penalise the gradient of PyTorch's logsumexp, which subtracts the largest logit."""
    x = batch.inputs()
    logits = model(x)
    gradient = input_gradient(logits.logsumexp(1), x, create_graph=True)
    penalty = gradient.flatten(1).norm(dim=1).mean()
    batch.backward(F.cross_entropy(logits, batch.labels) + penalty)


def _of_classes(n: int, device: torch.device, rounds: int) -> Iterator[Row]:
    """Time the density's gradient against the number of classes.

    "Gradients of all logits" searches the largest gradient among the classes, which section 5 of
    the paper counts as O(n); logsumexp searches only the largest logit.
    """
    case = Case("mlp", {}, (1, 56, 28), 128, 0)
    batch = batch_of(case, device, LAYOUTS["channels-last"], n_classes=n)
    model = fast_double_backward(batch.network)

    def all_gradients() -> None:
        x = batch.inputs()
        for logit in batch.network(x).unbind(1):
            input_gradient(logit, x, create_graph=True)

    steps: dict[str, Callable[[], None]] = {
        "plain": lambda: plain_step(batch),
        "efficient": lambda: _step(batch, model, "marginal_density", {}),
        "logsumexp": lambda: _logsumexp_step(batch, model),
        "gradients of all logits": all_gradients,
    }
    seconds = time_in_turns(steps, rounds=rounds)
    for label in ("efficient", "logsumexp", "gradients of all logits"):
        name = f"MLP, {n} classes: {label} over the plain step"
        yield median_row("penalties", name, ratios(seconds[label], seconds["plain"]), "x")


def _group_step(batch: Batch) -> None:
    losses = F.cross_entropy(batch.network(batch.images), batch.labels, reduction="none")
    weights = losses.new_full((4,), 0.25)
    batch.backward(group_dro(losses, batch.labels % 4, weights, step_size=0.01).loss)
