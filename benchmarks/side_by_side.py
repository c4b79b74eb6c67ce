"""Training steps with each method of the chapter "side by side", over a step without a method.

For the pretrained network that it fine-tunes, the memory of a step is measured too, on Linux.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from benchmarks.memory import in_process, peak, reset_peak
from benchmarks.tables import FINE_TUNED, PEAK
from benchmarks.timing import Row, median_row, ratios, time_in_turns
from reglib.double_backward import evaluation_mode, fast_double_backward
from suite import notebooks
from suite.data import image_shape
from suite.networks import build_network
from suite.papers import side_by_side as chapter
from suite.training import penalties
from suite.units import Training

PROFILE, TITLE = "workstation", "side by side"


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps of all methods in turns, on two networks of the chapter."""
    panels = _panels()
    rows = _times("", panels[0], device, rounds=1 if quick else 15)
    tuned = next(p for p in panels if chapter.is_fine_tuned(p))
    rows += _times(FINE_TUNED, tuned, device, rounds=1 if quick else 7)
    for method in _methods(tuned) if sys.platform == "linux" and device.type == "cpu" else ():
        added = float(in_process(__name__, method))
        case = f"{FINE_TUNED}{method}{PEAK}"
        rows.append(Row(TITLE, case, added, "MiB"))
    return rows


def _panels() -> list[SimpleNamespace]:
    name = "side_by_side"
    parameters = notebooks.all_parameters(name, notebooks.resolve(name, PROFILE, {}))
    return chapter.panels(parameters)


def _methods(p: SimpleNamespace) -> dict[str, float]:
    """Return the methods of a panel, none first, each with its weakest strength."""
    return {"none": 0.0} | {method: strengths[0] for method, strengths in p.strengths.items()}


def _step(p: SimpleNamespace, method: str, device: torch.device) -> Callable[[], None]:
    network = chapter.Network(method, _methods(p)[method], 0, True)
    return step_of(chapter.training(p, network), image_shape(p.data), device)


def _times(start: str, p: SimpleNamespace, device: torch.device, *, rounds: int) -> list[Row]:
    steps = {method: _step(p, method, device) for method in _methods(p)}
    seconds = time_in_turns(steps, rounds=rounds)
    plain = seconds.pop("none")
    rows = [median_row(TITLE, f"{start}none", [1000 * s for s in plain], "ms")]
    for method, times in seconds.items():
        rows.append(median_row(TITLE, f"{start}{method}", ratios(times, plain), "x"))
    return rows


def step_of(unit: Training, shape: tuple[int, ...], device: torch.device) -> Callable[[], None]:
    """Return a step of a training on random images, without the optimizer's."""
    network = build_network(unit.network, shape, 10, options=unit.network_options, seed=0)
    network = network.to(device).to(memory_format=torch.channels_last)
    network.train(not unit.fixed_statistics)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(unit.batch_size, *shape, generator=generator).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (unit.batch_size,), generator=generator).to(device)
    terms = penalties.terms(unit.penalties)
    model = plain = network
    if unit.fixed_statistics:
        model = plain = evaluation_mode(network)
    elif terms:
        model = fast_double_backward(network)
    context = penalties.TrainingContext(model, lambda: [images])
    names = {term.name for term in terms}
    penalised = bool(names - penalties.NEEDS_OWN_FORWARD)

    def step() -> None:
        batch = penalties.forward(
            model if penalised else plain,
            images.detach().requires_grad_(penalised),
            labels,
            torch.Generator(device).manual_seed(2),
            context=context,
            with_class_maps="class_map_l1" in names,
        )
        loss = F.cross_entropy(batch.logits, labels)
        for term in terms:
            loss = loss + term.strength * term.penalty(batch).mean()
        torch.autograd.backward(loss, inputs=list(network.parameters()))

    return step


def measure(method: str) -> float:
    """Return the memory that a step of fine-tuning adds to the peak, in MiB."""
    before = reset_peak()
    tuned = next(p for p in _panels() if chapter.is_fine_tuned(p))
    step = _step(tuned, method, torch.device("cpu"))
    for _ in range(3):
        step()
    return peak() - before


if __name__ == "__main__":
    print(measure(sys.argv[1]))
