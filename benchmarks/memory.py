"""Memory that the metrics take on the CPU, against the number of pixels."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.timing import Row
from reglib import metrics
from reglib.networks import build_network
from reglib.saliency import logit_gradient

METRICS = ("faithfulness", "lipschitz")


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Measure each metric at each size of image in a process of its own; only on Linux."""
    if sys.platform != "linux":
        return []
    rows = []
    for metric in METRICS:
        for side in (16, 64) if quick else (16, 32, 64, 128):
            mebibytes, largest = _in_process(metric, side)
            case = f"{metric}, {side} x {side} pixels"
            rows += [
                Row(benchmark="memory", case=f"{case}: peak above start", value=mebibytes,
                    unit="MiB"),
                Row(benchmark="memory", case=f"{case}: largest batch", value=largest / 1024,
                    unit="KiB", at_most=metrics.CHUNK_BYTES / 1024),
            ]  # fmt: skip
    return rows


def _in_process(metric: str, side: int) -> tuple[float, int]:
    command = [sys.executable, "-m", "benchmarks.memory", metric, str(side)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    mebibytes, largest = output.split()
    return float(mebibytes), int(largest)


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

    The network has as many parameters whatever the size of the images.
    """
    network = build_network(
        "resnet", (1, side, side), 10, options={"width": 4, "blocks": (1, 1)}, seed=0
    )
    model = _Recorder(network).eval()
    images = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1])
    logit_gradient(model, images, labels)
    before = _reset_peak()
    if metric == "faithfulness":
        metrics.pixel_effects(model, images, labels)
    else:
        metrics.local_lipschitz_estimate(
            lambda x, class_index: logit_gradient(model, x, class_index), images, labels,
            generator=torch.Generator().manual_seed(0), n_samples=600,
        )  # fmt: skip
    return _peak() - before, model.largest


def _reset_peak() -> float:
    """Forget the largest memory of this process so far; return the present one in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    """Return the largest resident memory since the last reset in MiB (on Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kibibytes) / 1024


if __name__ == "__main__":
    print(*measure(sys.argv[1], int(sys.argv[2])))
