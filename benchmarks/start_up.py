"""Seconds of importing this library, beyond those of importing PyTorch."""

import subprocess
import sys

import torch

from benchmarks.timing import Row, median_row

MODULES: dict[str, dict[str, float]] = {
    "reglib": {"at_most": 0.3},
    "reglib.regularizers": {"at_most": 0.3},
    "suite.metrics": {"at_most": 0.3},
    "suite.runs": {},
}


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Import each module in fresh processes, in turns."""
    seconds: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(2 if quick else 7):
        for module in MODULES:
            seconds[module].append(_import_after_torch(module))
    return [
        median_row("import beyond torch", module, seconds[module], "s", **goal)
        for module, goal in MODULES.items()
    ]


def _import_after_torch(module: str) -> float:
    program = "import time, torch; start = time.perf_counter(); "
    program += f"import {module}; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
