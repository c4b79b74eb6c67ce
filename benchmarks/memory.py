"""Memory on the CPU, of metrics against the number of pixels, and of training steps."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Row
from benchmarks.training_step import CASES, step
from suite import metrics
from suite.metrics.saliency import logit_gradient
from suite.networks import build_network

METRICS = ("faithfulness", "lipschitz")
STEPS = {
    "stock": "penalised step, stock",
    "fast": "penalised step, fast",
    "channels-last": "plain step, channels-last",
    "fast landscape": "landscape penalty alone",
}


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Measure each metric at each image size in a separate process; only on Linux."""
    if sys.platform != "linux":
        return []
    rows = []
    for metric in METRICS:
        for side in (16, 64) if quick else (16, 32, 64, 128):
            added, largest = in_process(__name__, metric, str(side)).split()
            case = f"{metric}, {side} x {side} pixels"
            goal, batch = metrics.chunks.CHUNK_BYTES / 1024, int(largest) / 1024
            rows.append(Row("memory", f"{case}: peak above start", float(added), "MiB"))
            rows.append(Row("memory", f"{case}: largest batch", batch, "KiB", at_most=goal))
    return [*rows, *(row for network in CASES for row in _of_steps(network))]


def _of_steps(network: str) -> list[Row]:
    title = f"{network}, batch {CASES[network].batch}"
    used = {way: float(in_process(__name__, "step", network, way)) for way in STEPS}
    rows = [
        Row("memory", f"{title}: {words}, peak above start", used[way], "MiB")
        for way, words in STEPS.items()
    ]
    ratios = {
        "penalised step, fast / stock": (used["fast"] / used["stock"], 1),
        "landscape penalty / plain step": (used["fast landscape"] / used["channels-last"], None),
    }
    return rows + [
        Row("memory", f"{title}: {words}", ratio, "x", at_most=goal)
        for words, (ratio, goal) in ratios.items()
    ]


def in_process(module: str, *arguments: str) -> str:
    """Run a module in a separate process; return its output."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class _Recorder(nn.Module):
    """A network that records the largest batch it gets, in bytes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, x.numel() * x.element_size())
        return self.network(x)


def measure(metric: str, side: int) -> tuple[float, int]:
    """Return the memory that a metric adds to the peak, in MiB, and its largest batch in bytes.

    The number of the network's parameters does not depend on the size of the images.
    """
    options = {"width": 4, "blocks": (1, 1)}
    network = build_network("resnet", (1, side, side), 10, options=options, seed=0)
    model = _Recorder(network).eval()
    images = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1])
    logit_gradient(model, images, labels)
    before = reset_peak()
    if metric == "faithfulness":
        metrics.pixel_effects(model, images, labels)
    else:
        noise: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "n_samples": 600}
        metrics.local_lipschitz_estimate(partial(logit_gradient, model), images, labels, **noise)
    return peak() - before, model.largest


def measure_step(name: str, way: str) -> float:
    """Return the memory that a training step adds to the peak, in MiB."""
    before = reset_peak()
    differentiate = step(CASES[name], torch.device("cpu"), way)
    for _ in range(3):
        differentiate()
    return peak() - before


def reset_peak() -> float:
    """Forget the largest memory of this process so far; return the present one in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> float:
    """Return the largest resident memory since the last reset in MiB (on Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kibibytes) / 1024


if __name__ == "__main__":
    if sys.argv[1] == "step":
        print(measure_step(*sys.argv[2:]))
    else:
        print(*measure(sys.argv[1], int(sys.argv[2])))
