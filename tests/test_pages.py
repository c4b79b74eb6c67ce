"""The blocks of Python on the pages and in the README run as they stand."""

import os
import re
import subprocess
import sys

from PIL import Image

from suite.paths import ROOT

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
BLOCKS = {
    f"{page.stem}-{number}": code
    for page in PAGES
    for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), start=1)
    if "from suite" in code  # `tests/test_library.py` runs the others, where there is torch alone
}
# Imports once, and runs each file in a fork, which changes nothing for the next one.
PROGRAM = """
import os, runpy, sys, torch

torch.set_num_threads(1)
import suite.runs

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        runpy.run_path(name, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {name}")
"""


def write_photographs(root, names=("cat", "dog"), *, side=32, count=2):
    for path in [root / "photos" / part / name for part in ("train", "test") for name in names]:
        path.mkdir(parents=True)
        for n in range(count):
            image = Image.new("RGB", (side, side), (90 * names.index(path.name), 10 * n, 0))
            image.save(path / f"{n}.png")


def test_blocks_run(tmp_path):
    assert len(BLOCKS) >= 5
    write_photographs(tmp_path)
    for name, code in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", PROGRAM]
        + [f"{name}.py" for name in BLOCKS],
        cwd=tmp_path,
        env=os.environ | {"REGLIB_JOBS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
