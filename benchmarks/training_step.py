"""Forward and backward pass with the input-gradient penalty, against those without."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.timing import Row, interleaved, median_row, ratios
from reglib.networks import build_network
from reglib.regularizers import input_gradient_penalty

LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
CHANNELS_LAST_GOAL = 2.4


class Case(NamedTuple):
    """A network, its batch, and the goal for penalised over plain."""

    network: str
    options: dict[str, Any]
    shape: tuple[int, int, int]
    batch: int
    goal: float


CASES = {
    "LeNet-5": Case("lenet5", {}, (1, 28, 28), 128, 2.2),
    "ConvNet, width 32": Case("convnet", {"width": 32}, (3, 32, 32), 128, 1.9),
    "ResNet-18, CIFAR form": Case("resnet", {}, (3, 32, 32), 32, 2.05),
}


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps of all networks in both layouts."""
    return [row for name in CASES for row in _rows(name, device, rounds=2 if quick else 5)]


def _rows(name: str, device: torch.device, *, rounds: int) -> list[Row]:
    case = CASES[name]
    steps = {
        f"{kind}, {layout}": step(case, device, layout, penalised=kind == "penalised")
        for layout in LAYOUTS
        for kind in ("plain", "penalised")
    }
    seconds = interleaved(steps, rounds=rounds)
    title = f"{name}, batch {case.batch}"
    rows = [
        median_row("training step", f"{title}: {kind}", [1000 * s for s in values], "ms")
        for kind, values in seconds.items()
    ]
    for layout, goal in (("contiguous", case.goal), ("channels-last", CHANNELS_LAST_GOAL)):
        ratio = ratios(seconds[f"penalised, {layout}"], seconds[f"plain, {layout}"])
        label = f"{title}: penalised / plain, {layout}"
        rows.append(median_row("training step", label, ratio, "x", at_most=goal))
    return rows


def step(case: Case, device: torch.device, layout: str, *, penalised: bool) -> Callable[[], None]:
    """Return a function that computes the gradients of one training step."""
    network = build_network(case.network, case.shape, 10, options=case.options, seed=0)
    network = network.to(device).to(memory_format=LAYOUTS[layout]).train()
    parameters = list(network.parameters())
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(case.batch, *case.shape, generator=generator)
    images = images.to(device, memory_format=LAYOUTS[layout])
    labels = torch.randint(10, (case.batch,), generator=generator).to(device)

    def gradients() -> None:
        inputs = images.detach().requires_grad_(penalised)
        logits = network(inputs)
        loss = F.cross_entropy(logits, labels)
        if penalised:
            loss = loss + input_gradient_penalty(logits, labels, inputs).mean()
        network.zero_grad()
        torch.autograd.backward(loss, inputs=parameters)

    return gradients
