"""Everything that needs a GPU, in one call of nine minutes: `python -m benchmarks.one_gpu FOLDER`.

The parts are the tests that need a CUDA device, the captured step against the eager step, and as
much of a chapter at the profile `gpu` as time allows. FOLDER gets logs, `captured_step.json`, and
the results as `store.tar.gz`, in pieces of 15 MiB (join them by `cat`). Weights are left out.
Unpacked, it is a store for `python -m suite keep CHAPTER gpu --store`. Each part runs even if the
one before failed. `--toy` rehearses the call on any machine.

Besides the packages of `suite compute`, the tests need pytest and mlxtend. The attacks, without
which Top-GAP has no headline, need foolbox and pyautoattack, DeepLIFT captum, and corruptions
imagecorruptions. Units whose package is missing are left out and reported. `pip wheel -w carried
NAME` collects packages for a machine without a network, and `pip install --no-index --find-links
carried NAME` installs them there.
"""

import argparse
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.captured_step import rows
from benchmarks.training_step import CASES
from suite.store import Store

ROOT = Path(__file__).resolve().parents[1]
TESTS, STEPS = 150, 150  # seconds that the first two parts may take
ENDING = 25  # seconds to pack the results
PIECE = 15 * 2**20  # bytes of a file
LARGEST = 8 * 2**20  # bytes of tensors of a result; weights are larger


def main() -> None:
    """Run the parts one after another, and print how each ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_gpu", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chapter", default="top_gap")
    parser.add_argument("--minutes", type=float, default=9.0, help="of all parts together")
    parser.add_argument("--commit", default="", help="of these files, if git does not know it")
    parser.add_argument("--toy", action="store_true", help="small sizes, on any machine")
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)  # the second part
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.steps:
        _steps(options.folder, toy=options.toy)
        return
    end = time.monotonic() + 60 * options.minutes
    store = options.folder.resolve() / "store"
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    os.environ |= {"REGLIB_STORE": str(store), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    named = [str(file) for file in (ROOT / "tests").glob("test_*.py")]
    files = [file for file in named if "mark.gpu" in Path(file).read_text(encoding="utf-8")]
    tests = ["-m", "pytest", "-q", "-m", "gpu", "--color=no", "-p", "no:cacheprovider", *files]
    itself = ["-m", "benchmarks.one_gpu", str(options.folder), "--steps", *["--toy"] * options.toy]
    _part(options.folder, "tests", tests, min(TESTS, end - time.monotonic()))
    _part(options.folder, "steps", itself, min(STEPS, end - time.monotonic()))
    left = end - time.monotonic() - ENDING
    profile = "smoke" if options.toy else "gpu"
    asked = [options.chapter, "--profile", profile, "--minutes", f"{max(left, 1) / 60:.3f}"]
    _part(options.folder, "chapter", ["-m", "suite", "compute", *asked], left + ENDING / 2)
    if store.exists():
        _pack(Store(store), options.folder, options.commit)


def _part(folder: Path, name: str, words: list[str], seconds: float) -> None:
    """Run a part in a separate process, with a time limit and its output in a log."""
    start = time.monotonic()
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        try:
            command = [sys.executable, *words]
            done = subprocess.run(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=max(seconds, 1)
            )
            ended = f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = "its time was up"
    print(f"{name}: {ended}, {time.monotonic() - start:.0f} s", flush=True)


def _steps(folder: Path, *, toy: bool) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = {"LeNet-5": CASES["LeNet-5"]} if toy else CASES
    about: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rows": [],
    }
    # The first case, which is compiled too, comes last, when the other results are already written.
    for name in reversed(cases):
        how = {"rounds": 2 if toy else 15, "calls": 1 if toy else 10}
        about["rows"] += [row.as_json() for row in rows(device, cases={name: cases[name]}, **how)]
        text = json.dumps(about, indent=1) + "\n"
        (folder / "captured_step.json").write_text(text, encoding="utf-8")
    print(text)


def _pack(store: Store, folder: Path, commit: str) -> None:
    """Pack results without weights, and with their commit where git did not know it."""
    small = Store(store.folder.with_name("small"))
    for path in store.folder.glob("??/*.json"):
        if (record := store.read(path.stem)) is None:
            continue
        tensors = store.read_tensors(path.stem) or {}
        few = sum(tensor.nbytes for tensor in tensors.values()) <= LARGEST
        provenance = dict(record.provenance)
        if commit and provenance["commit"] == "unknown":
            provenance |= {"commit": commit, "code": {"named": "", "tree": ""}}
        slim = replace(record, provenance=provenance, tensors=None)
        small.write(path.stem, slim, tensors if few else None)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(small.folder, "store")
    contents = packed.getvalue()
    for number, start in enumerate(range(0, len(contents), PIECE)):
        piece = folder / f"store.tar.gz.{number:02}"
        piece.write_bytes(contents[start : start + PIECE])
    for part in (store.folder, small.folder):
        shutil.rmtree(part)


if __name__ == "__main__":
    main()
