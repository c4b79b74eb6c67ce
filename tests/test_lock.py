"""pyproject.toml, requirements.lock and environment.yml say the same."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from suite.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCK = [
    line
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
]


def pins():
    found = {}
    for line in LOCK:
        pin = Requirement(line)
        (specifier,) = pin.specifier
        found[canonicalize_name(pin.name)] = specifier.version
    return found


@pytest.mark.parametrize(
    "wanted",
    PROJECT["build-system"]["requires"]
    + PROJECT["project"]["dependencies"]
    + EXTRAS["suite"]
    + EXTRAS["test"],
)
def test_each_dependency_is_pinned_within_its_specifier(wanted):
    requirement = Requirement(wanted)
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("line", LOCK)
def test_a_line_is_an_exact_public_version(line):
    assert re.fullmatch(r"[a-z0-9.-]+==[0-9a-z.]+( ; [a-z_()=.' \"0-9]+)?", line)


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_every_pin_that_is_installed_takes_every_patch_of_a_python(python):
    refusing = {}
    for name in pins():
        try:
            wanted = metadata(name).get("Requires-Python")
        except PackageNotFoundError:  # a package of another platform
            continue
        if wanted and not SpecifierSet(wanted).contains(python):
            refusing[name] = wanted
    assert not refusing


def test_lines_are_sorted_and_each_package_stands_once():
    names = [Requirement(line).name for line in LOCK]
    assert names == sorted(set(names))
    assert len(names) > 100


def test_torch_and_torchvision_are_the_pair_that_fits():
    assert (pins()["torch"], pins()["torchvision"]) == ("2.15.0", "0.29.2")


def test_what_only_one_platform_has_carries_a_marker():
    only_linux = [line for line in LOCK if line.startswith(("nvidia-", "cuda-", "triton"))]
    assert only_linux
    assert all("sys_platform" in line for line in only_linux)


def test_heavy_extras_are_not_locked():
    assert "jupyterlab" not in pins()


def test_conda_installs_the_lock_and_no_second_list():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, packages = environment["dependencies"]
    assert (pip, packages) == ("pip", {"pip": ["-r requirements.lock"]})
    assert python.startswith("python")
    (lowest,) = Requirement("python" + PROJECT["project"]["requires-python"]).specifier
    assert str(lowest) in python


def test_the_makefile_tries_every_python_that_the_project_takes():
    versions = re.search(r"foreach version,([0-9. ]+),", (ROOT / "Makefile").read_text())
    assert versions[1].split() == ["3.13", "3.12", "3.11"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
