"""Training steps with each method of the chapter "side by side", over one without a method."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.timing import Row, interleaved, median_row, ratios
from reglib.double_backward import fast_double_backward
from suite import notebooks
from suite.data import image_shape
from suite.networks import build_network
from suite.papers import side_by_side as chapter
from suite.training import penalties
from suite.units import Training

PROFILE = "workstation"


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps of all methods on the network of the chapter, which take turns."""
    name = "side_by_side"
    parameters = notebooks.all_parameters(name, notebooks.resolve(name, PROFILE, {}))
    p = chapter.panels(parameters)[0]
    shape = image_shape(p.data)
    steps = {
        method: step_of(
            chapter.training(p, chapter.Network(method, strengths[0], 0, True)), shape, device
        )
        for method, strengths in {"none": [0.0], **p.strengths}.items()
    }
    seconds = interleaved(steps, rounds=1 if quick else 15)
    plain = seconds.pop("none")
    rows = [median_row("side by side", "none", [1000 * s for s in plain], "ms")]
    for method, times in seconds.items():
        rows.append(median_row("side by side", method, ratios(times, plain), "x"))
    return rows


def step_of(
    unit: Training, shape: tuple[int, int, int], device: torch.device
) -> Callable[[], None]:
    """Return what makes a step of a training on random images, without that of the optimizer."""
    network = build_network(unit.network, shape, 10, options=unit.network_options, seed=0)
    network = network.to(device).to(memory_format=torch.channels_last).train()
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(unit.batch_size, *shape, generator=generator).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (unit.batch_size,), generator=generator).to(device)
    terms = penalties.terms(unit.penalties)
    model = fast_double_backward(network) if terms else network
    context = penalties.TrainingContext(model, lambda: [images])
    names = {term.name for term in terms}
    looked_at = bool(names - penalties.NEEDS_OWN_FORWARD)

    def step() -> None:
        given = penalties.forward(
            model if looked_at else network,
            images.detach().requires_grad_(looked_at),
            labels,
            torch.Generator(device).manual_seed(2),
            context=context,
            with_class_maps="class_map_l1" in names,
        )
        loss = F.cross_entropy(given.logits, labels)
        for term in terms:
            loss = loss + term.strength * term.penalty(given).mean()
        torch.autograd.backward(loss, inputs=list(network.parameters()))

    return step
