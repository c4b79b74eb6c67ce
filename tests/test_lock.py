"""pyproject.toml, the two locks and environment.yml say the same."""

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
BOOK, TESTS = (
    [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    for name in ("requirements.lock", "requirements-test.lock")
)
BUILD = PROJECT["build-system"]["requires"] + PROJECT["project"]["dependencies"]


def pins(lock):
    found = {}
    for pin in map(Requirement, lock):
        (specifier,) = pin.specifier
        found[canonicalize_name(pin.name)] = specifier.version
    return found


class TestLocks:
    def test_each_dependency_is_pinned_within_its_specifier(self):
        for wanted in BUILD + EXTRAS["suite"] + EXTRAS["test"]:
            lock = BOOK + TESTS * (wanted in EXTRAS["test"])
            requirement = Requirement(wanted)
            pin = pins(lock)[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), wanted

    def test_what_only_tests_need_is_not_in_the_lock_of_the_book(self):
        assert not pins(BOOK).keys() & pins(TESTS).keys()
        assert {"pytest", "mypy", "ruff", "playwright", "quantus"} <= pins(TESTS).keys()
        assert "jupyterlab" not in pins(BOOK + TESTS), "heavy extras are not locked"

    def test_lines_are_exact_public_versions_sorted_and_each_once(self):
        for lock in (BOOK, TESTS):
            for line in lock:
                assert re.fullmatch(r"[a-z0-9.-]+==[0-9a-z.]+( ; [a-z_()=.' \"0-9]+)?", line), line
            names = [Requirement(line).name for line in lock]
            assert names == sorted(set(names))

    @pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
    def test_every_pin_that_is_installed_takes_every_patch_of_a_python(self, python):
        refusing = {}
        for name in pins(BOOK + TESTS):
            try:
                wanted = metadata(name).get("Requires-Python")
            except PackageNotFoundError:  # a package of another platform
                continue
            if wanted and not SpecifierSet(wanted).contains(python):
                refusing[name] = wanted
        assert not refusing

    def test_torch_and_torchvision_are_the_pair_that_fits(self):
        assert (pins(BOOK)["torch"], pins(BOOK)["torchvision"]) == ("2.15.0", "0.29.2")

    def test_what_only_one_platform_has_carries_a_marker(self):
        only_linux = [line for line in BOOK if line.startswith(("nvidia-", "cuda-", "triton"))]
        assert only_linux
        assert all("sys_platform" in line for line in only_linux)


class TestOtherFiles:
    def test_conda_installs_the_lock_and_no_second_list(self):
        environment = yaml.safe_load((ROOT / "environment.yml").read_text())
        python, pip, packages = environment["dependencies"]
        assert (pip, packages) == ("pip", {"pip": ["-r requirements.lock"]})
        assert python.startswith("python")
        (lowest,) = Requirement("python" + PROJECT["project"]["requires-python"]).specifier
        assert str(lowest) in python

    def test_the_makefile_tries_every_python_that_the_project_takes(self):
        versions = re.search(r"foreach version,([0-9. ]+),", (ROOT / "Makefile").read_text())
        assert versions[1].split() == ["3.13", "3.12", "3.11"]
        assert PROJECT["project"]["requires-python"] == ">=3.11"
