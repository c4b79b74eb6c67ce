"""Run all benchmarks, print a table and write it to `benchmarks/results/DEVICE.json`.

The long benchmark of architectures has its own table, in `architectures.json`.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import architectures
from benchmarks.timing import Row

RESULTS = Path(__file__).parent / "results"
# Modules with a function `run`.
BENCHMARKS = "training_step captured_step saliency_metrics penalties side_by_side".split()
BENCHMARKS += ["input_hessian", "class_matrix", "top_gap", "evaluation_mode"]
ON_CPU_ONLY = ["memory", "start_up", "stored_units"]


def main() -> None:
    """Run the benchmarks that the command line names, on every available device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats; writes no file")
    parser.add_argument(
        "--only",
        choices=[*BENCHMARKS, *ON_CPU_ONLY, "architectures"],
        help="one benchmark: its rows replace those in the file",
    )
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU; default: its own")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.only != "architectures":
        _on_every_device(options)
    if options.only in (None, "architectures"):
        load = os.getloadavg()[0]
        table = architectures.run(quick=options.quick)
        if not options.quick:
            _write("architectures", {**_circumstances("cpu", load), **table})


def _on_every_device(options: argparse.Namespace) -> None:
    for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
        names = BENCHMARKS + (ON_CPU_ONLY if device == "cpu" else [])
        names = [name for name in names if options.only in (None, name)]
        load = os.getloadavg()[0]
        rows = [row.as_json() for row in _run(names, torch.device(device), quick=options.quick)]
        about = _circumstances(device, load)
        contents = {**about, "rows": add_dates(about, rows)}
        if options.only:
            contents = merge(RESULTS / f"{device}.json", about, rows)
        if not options.quick:
            _write(device, contents)


def add_dates(about: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row the date of its measurement, and the load of the machine."""
    return [{**row, "date": about["date"], "load_average": about["load_average"]} for row in rows]


def merge(file: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Replace the rows of a benchmark in a file by new rows.

    Raises:
        SystemExit: the other rows were measured with other versions or threads.
    """
    if not file.exists():
        return {**about, "rows": add_dates(about, rows)}
    before = json.loads(file.read_text(encoding="utf-8"))
    for name in ("device", "threads", "system", "versions"):
        if before[name] != about[name]:
            raise SystemExit(
                f"{file}: measured with {name} {before[name]}, now {about[name]}: run all of them"
            )
    new = {row["benchmark"] for row in rows}
    others = [row for row in before["rows"] if row["benchmark"] not in new]
    older = [row if "date" in row else add_dates(before, [row])[0] for row in others]
    order = [row["benchmark"] for row in (*before["rows"], *rows)]
    merged = [*add_dates(about, rows), *older]
    return {**about, "rows": sorted(merged, key=lambda row: order.index(row["benchmark"]))}


def _run(names: Sequence[str], device: torch.device, *, quick: bool) -> list[Row]:
    rows = []
    for name in names:
        for row in importlib.import_module(f"benchmarks.{name}").run(device, quick=quick):
            print(line(row), flush=True)
            rows.append(row)
    return rows


def line(row: Row) -> str:
    """Format a row as one line."""
    spread = "({:.3g} to {:.3g})".format(*row.quartiles) if row.quartiles else ""
    verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
    value = f"{row.value:9.3g} {row.unit:<4}{spread:<20}"
    return f"{row.benchmark:<24}{row.case:<66}{value} {row.goal:<14} {verdict}".rstrip()


def _write(name: str, contents: dict[str, Any]) -> None:
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def _circumstances(device: str, load: float) -> dict[str, Any]:
    hardware = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    packages = ("torch", "captum", "quantus", "numpy", "pandas")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else hardware,
        "threads": torch.get_num_threads(),
        "load_average": f"{load:.2f} and {os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


if __name__ == "__main__":
    main()
