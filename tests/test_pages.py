"""The blocks of Python on the pages and in the README run as they stand."""

import os
import re
import subprocess
import sys

import pytest
from PIL import Image

from suite.paths import ROOT

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), start=1)
    if "from suite" in code  # `tests/test_library.py` runs the others, where there is torch alone
]


@pytest.fixture
def folder(tmp_path):
    """A folder with photographs in it, as the pages assume."""
    for part in ("train", "test"):
        for shade, name in enumerate(("cat", "dog")):
            place = tmp_path / "photos" / part / name
            place.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (32, 32), (90 * shade, 40 * number, 0)).save(
                    place / f"{number}.png"
                )
    return tmp_path


def test_there_are_blocks():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code, folder):
    (folder / "block.py").write_text(code, encoding="utf-8")
    environment = os.environ | {"REGLIB_JOBS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "block.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
