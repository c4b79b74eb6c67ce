"""The library alone: a wheel with `reglib` only, in an environment with torch only."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from suite.paths import ROOT

HEADING = "Take a penalty into your own training loop"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = ROOT / "book" / "use_in_your_training.md"
PARTS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
# Warnings are errors, except PyTorch's warning that there is no NumPy.
WARNINGS = ("-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning")
# A program for a user's type checker; it need not read torch.
TYPED = """
from reglib import TopGAP, fast_double_backward, input_gradient_penalty
from reglib.top_gap import scaled_maps

reveal_type(TopGAP(k=1).k)
reveal_type(input_gradient_penalty)
scaled_maps("maps", 3, 4)
"""
# Run each program where there is only torch, in one process, after `only_torch.py`. There is no
# suite, there are no backbones by name, and `python -m reglib` prints what to do.
PROGRAMS = """
import runpy, sys
for file in sys.argv[1:]:
    print("run", file)
    names = runpy.run_path(file, run_name="__main__")
    if file.endswith("program0.py"):  # of the README
        assert all(p.grad.isfinite().all() for p in names["model"].parameters())
import reglib
for program in ("import suite", "reglib.TopGAPNet('resnet18', 10, k=0.1)"):
    try:
        exec(program)
    except (ModuleNotFoundError, ValueError) as error:
        print(error)
runpy.run_module("reglib", run_name="__main__")
"""


def distributions(name, seen):
    """Add to `seen` the distributions that a distribution needs, with their top-level files."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # another platform's, say
        return
    if name not in seen:
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        seen[name] = {Path(str(distribution.locate_file(top))) for top in tops}
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                distributions(requirement.name, seen)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return the interpreter of an environment with the wheel, torch, and torch's dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    interpreter = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    needed: dict[str, set[Path]] = {}
    distributions("torch", needed)
    for path in set().union(*needed.values()):
        if path.exists():
            (site / path.name).symlink_to(path)
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return interpreter


def example_of_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return FENCE.search(text[text.index(f"## {HEADING}") :])[1]


@pytest.fixture(scope="module")
def printed(python, tmp_path_factory):
    """Return the output of the programs where there is torch alone, outside the checkout."""
    folder, blocks = tmp_path_factory.mktemp("programs"), FENCE.findall(PARTS[1])
    assert len(blocks) >= 4
    files = []
    for number, code in enumerate([example_of_the_readme(), *blocks]):
        files.append(folder / f"program{number}.py")
        files[-1].write_text(code)
    command = [python, "-I", *WARNINGS, "-c", PROGRAMS, ROOT / "tests" / "only_torch.py", *files]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 1, done.stderr  # `python -m reglib` ends with an error
    assert all(f"run {file}" in done.stdout for file in files), done.stderr
    return done.stdout + done.stderr


def test_the_wheel_holds_reglib_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"reglib"}
    assert {f"reglib/{path.name}" for path in (ROOT / "reglib").glob("*.py")} <= set(names)
    assert "reglib/py.typed" in names
    required = [Requirement(r) for r in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)]
    assert [r.name for r in required if r.marker is None] == ["torch"]
    assert all("extra ==" in str(r.marker) for r in required if r.name != "torch")
    backbones = {r.name for r in required if 'extra == "backbones"' in str(r.marker)}
    assert backbones == {"timm", "torchvision"}


def test_penalties_need_torch_alone(printed):
    assert "ok 14" in printed
    assert "No module named 'suite'" in printed
    assert 'pip install ".[backbones]"' in printed
    assert "used from a checkout" in printed  # by `python -m reglib`


def test_the_example_of_the_readme_runs(printed):
    imports = set(re.findall(r"^(?:from|import) (\w+)", example_of_the_readme(), re.MULTILINE))
    assert imports == {"torch", "reglib"}
    epochs = re.findall(r"^epoch (\d): loss \S+, penalty \S+, accuracy (\S+)$", printed, re.M)
    assert [number for number, _ in epochs[:3]] == ["0", "1", "2"]
    accuracies = [float(accuracy) for _, accuracy in epochs]
    assert accuracies[2] > max(0.5, accuracies[0])  # of four classes


def test_training_page_shows_both_ways():
    top, alone, suite = PARTS
    assert alone.startswith("With `reglib` alone")
    assert suite.startswith("With the suite")
    code = "".join(FENCE.findall(alone))
    assert set(re.findall(r"^(?:from|import) (\w+)", code, re.M)) == {"torch", "reglib"}
    assert all("from suite" in code for code in FENCE.findall(suite))
    assert "`pip install .` in a checkout" in top
    assert '`pip install --editable ".[suite]"` in the checkout' in suite


def test_installed_package_is_typed(python, tmp_path):
    file, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    file.write_text(TYPED)
    settings.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--strict"]
    command += ["--python-executable", python, "--cache-dir", tmp_path / "cache", file]
    output = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    assert 'Revealed type is "int | float"' in output or "Union[int, float]" in output
    assert "logits:" in output
    assert 'Too many arguments for "scaled_maps"' in output
    assert "py.typed" not in output
    assert "explicitly export" not in output
