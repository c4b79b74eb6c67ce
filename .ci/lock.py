"""Write the locks: the version here of all that pyproject.toml needs, directly or not.

`requirements.lock` has what the book needs, `requirements-test.lock` what only the tests add. Run
by `make lock` in a fresh environment. A package that only Linux (CUDA) or some Pythons need has a
marker, so that the same file installs on macOS and on each of them.
"""

import importlib
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "darwin": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
}


def closure(roots: list[str], environment: dict[str, str]) -> set[str]:
    """Return the names of all packages that the requirements in `roots` lead to."""
    found: dict[str, set[str]] = {}
    todo = [Requirement(text) for text in roots]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        new = (wanted.extras | {""}) - found.get(name, set())
        if not new:
            continue
        found.setdefault(name, set()).update(new)
        for requirement in map(Requirement, requires(name) or [] if installed(name) else []):
            marker = requirement.marker
            if any(marker is None or marker.evaluate(environment | {"extra": e}) for e in new):
                todo.append(requirement)
    return set(found)


def installed(name: str) -> str | None:
    """Return the version of a package that is installed here, without a local label."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def needed(*extras: str) -> dict[str, set[tuple[str, str]]]:
    """Return the (platform, Python) pairs that need each package of these extras."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    roots = project["build-system"]["requires"] + project["project"]["dependencies"]
    for extra in extras:
        roots += project["project"]["optional-dependencies"][extra]
    where: dict[str, set[tuple[str, str]]] = {}
    for platform, values in PLATFORMS.items():
        for python in PYTHONS:
            environment = {"python_version": python, "python_full_version": f"{python}.0"}
            for name in closure(roots, values | environment):
                where.setdefault(name, set()).add((platform, python))
    return where


def marker(pairs: set[tuple[str, str]]) -> str:
    """Return the marker that holds for these pairs."""
    pythons = sorted({python for _, python in pairs})
    parts = [] if "darwin" in dict(pairs) else ['sys_platform == "linux"']
    if len(pythons) < len(PYTHONS):
        parts.append(f"({' or '.join(f'python_version == {python!r}' for python in pythons)})")
    return " ; " + " and ".join(parts) if parts else ""


def write(path: str, names: set[str], where: dict[str, set[tuple[str, str]]], what: str) -> None:
    """Write a lock of these packages, a line each."""
    lines = [f"{name}=={installed(name)}{marker(where[name])}\n" for name in sorted(names)]
    Path(path).write_text(f"# Written by `make lock`: {what}\n" + "".join(lines), encoding="utf-8")


def on_linux(where: dict[str, set[tuple[str, str]]]) -> set[str]:
    """Return the packages that Linux needs."""
    return {name for name, pairs in where.items() if "linux" in dict(pairs)}


def main() -> None:
    """Write both locks; install first what only another Python needs."""
    while missing := sorted(n for n in on_linux(needed("suite", "test")) if not installed(n)):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing], check=True)
        importlib.invalidate_caches()
    book, everything = needed("suite"), needed("suite", "test")
    write("requirements.lock", on_linux(book), book, "what the book was built with.")
    more = on_linux(everything) - on_linux(book)
    write("requirements-test.lock", more, everything, "what only the tests need.")


if __name__ == "__main__":
    main()
