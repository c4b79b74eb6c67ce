"""Landscape penalties by stock autograd: with the network in training and in evaluation mode.

`reglib.landscape.importance_landscape` refuses training mode, so its lines are written out.
"""

import sys
from functools import partial

import torch

from benchmarks.memory import in_process, peak, reset_peak
from benchmarks.timing import Row, median_row, ratios, time_in_turns
from benchmarks.training_step import Batch, Case, batch_of
from reglib.autodiff import input_gradient
from reglib.landscape import curvature_penalty, sample_classes, scaled_norm

# The small network of the chapter on landscapes, and a narrow one of the paper's layout.
CASES = {
    "Small ResNet": Case("resnet", {"blocks": [1, 1, 1], "width": 16}, (3, 32, 32), 32),
    "ResNet-50, width 16": Case(
        "resnet", {"blocks": [3, 4, 6, 3], "bottleneck": True, "width": 16}, (3, 32, 32), 8
    ),
}
MODES = ("training", "evaluation")
RATIO = "landscape penalty, training / evaluation"


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the penalty in both modes; measure its memory on the CPU, in separate processes."""
    rows = []
    for name, case in CASES.items():
        title = f"{name}, batch {case.batch}"
        steps = {mode: partial(penalise, prepare(case, device, mode)) for mode in MODES}
        seconds = time_in_turns(steps, rounds=2 if quick else 9)
        times = ratios(*(seconds[mode] for mode in MODES))
        rows.append(median_row("evaluation mode", f"{title}: {RATIO}", times, "x"))
        if device.type == "cpu" and sys.platform == "linux":
            training, evaluation = (float(in_process(__name__, name, mode)) for mode in MODES)
            case_of_memory = f"{title}: memory of {RATIO}"
            rows.append(Row("evaluation mode", case_of_memory, training / evaluation, "x"))
    return rows


def prepare(case: Case, device: torch.device, mode: str) -> Batch:
    """Return a batch with its network in a mode."""
    batch = batch_of(case, device, torch.contiguous_format)
    batch.network.train(mode == "training")
    return batch


def penalise(batch: Batch) -> None:
    """Differentiate the curvature of the importance landscape."""
    x, generator = batch.inputs(), torch.Generator().manual_seed(2)
    logits = batch.network(x)
    chosen = logits.gather(1, sample_classes(logits.detach(), generator)[:, None])
    gradient = input_gradient(chosen, x, create_graph=True)
    batch.backward(curvature_penalty(scaled_norm(gradient.square().mean(0))))


def measure(name: str, mode: str) -> float:
    """Return the memory that three steps add to the peak, in MiB."""
    batch, before = prepare(CASES[name], torch.device("cpu"), mode), reset_peak()
    for _ in range(3):
        penalise(batch)
    return peak() - before


if __name__ == "__main__":
    print(measure(*sys.argv[1:]))
