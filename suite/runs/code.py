"""Checksums of the code that computes a unit, which tell results of other code.

The key of a unit holds its settings, not its code. So each record also has two checksums of
uncommitted code: of the functions that its unit *names* (a penalty, a metric, a network), and of
the *tree*, all files that compute, if one of them has changed. Both are empty for committed code,
for which `suite.units.VERSIONS` and the tests are responsible.
"""

import functools
import inspect
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from suite.networks import NETWORKS
from suite.networks.defences import CHANGES
from suite.papers.measure import CHOICES, METRICS
from suite.paths import ROOT
from suite.store import Record, checksum
from suite.training.penalties import PENALTIES
from suite.units import Unit

CHOSEN = [table for table in CHOICES.values() if isinstance(table, Mapping)]
REGISTRIES: list[Mapping[str, Any]] = [PENALTIES, METRICS, NETWORKS, CHANGES, *CHOSEN]
NAMES = re.compile(r'"([^"\\]*)"')  # in JSON
COMPUTING = "reglib/**/*.py suite/attacks.py".split() + [
    f"suite/{part}/**/*.py" for part in ("data", "metrics", "networks", "papers", "training")
]


class Sources:
    """The present code of units."""

    def __init__(self) -> None:
        self.changed, self._named = changes(*COMPUTING), dict[frozenset[str], str]()
        self._clean = not self.changed and commit() != "unknown"
        files = [f for part in COMPUTING for f in sorted(ROOT.glob(part)) if not self._clean]
        self._tree = _sha256([file.read_text(encoding="utf-8") for file in files])

    def provenance(self, unit: Unit) -> dict[str, str]:
        """Return the checksums of uncommitted code for the record of a unit."""
        return {"named": self._named_checksum(unit), "tree": self._tree}

    def differs(self, part: str, unit: Unit, provenance: Mapping[str, Any]) -> bool:
        """Whether a result comes from other functions ("named") or other files ("tree") than now.

        If the present commit is unknown, results of a commit are accepted.
        """
        if commit() == "unknown" != provenance.get("commit", "unknown"):
            return False
        now = self._tree if part == "tree" else self._named_checksum(unit)
        return bool(provenance.get("code", {}).get(part, "") != now)

    def _named_checksum(self, unit: Unit) -> str:
        """Return the checksum of the functions that a unit names."""
        names = frozenset(NAMES.findall(json.dumps(unit.identity)))
        if names not in self._named:
            named = [table[n] for table in REGISTRIES for n in sorted(names & table.keys())]
            self._named[names] = _sha256([text for v in named if (text := self._new_source(v))])
        return self._named[names]

    def _new_source(self, value: Any) -> str:
        """Return the uncommitted source of a function, and of the functions in its closure.

        Outside the project the source is the whole file, since functions call others.
        """
        if isinstance(value, functools.partial):
            parts = (value.func, *value.args, *value.keywords.values())
            return "".join(map(self._new_source, filter(callable, parts)))
        value, enclosed = getattr(value, "__func__", value), list[Any]()  # of a bound method
        if isinstance(value, FunctionType):
            enclosed = [f for f in inspect.getclosurevars(value).nonlocals.values() if callable(f)]
        elif not isinstance(value, type):
            value = type(value)
        code, text = getattr(value, "__code__", value), ""  # of the wrapper, not of the wrapped
        try:
            file = Path(inspect.getfile(code))
            if (in_project := _is_in_project(file)) and not self._clean:
                source = inspect.getsource(code)
                text = "" if source.strip() in _committed_text(file) else source
            elif not in_project and "/site-packages/torch/" not in str(file):  # known by version
                text = file.read_text(encoding="utf-8") if file.is_file() else ""
                text = text or inspect.getsource(code)
        except (OSError, TypeError):  # typed in, or not Python
            text = getattr(code, "co_code", b"").hex()
        return "".join([text, *map(self._new_source, enclosed)])


@functools.cache
def _is_in_project(file: Path) -> bool:
    return any(file.is_relative_to(ROOT / part.partition("/**")[0]) for part in COMPUTING)


@functools.cache
def _committed_text(file: Path) -> str:
    return git("show", f"HEAD:./{file.relative_to(ROOT)}")


def find_other_code(
    records: Mapping[str, Record], units: Mapping[str, Unit], sources: Sources
) -> tuple[set[str], list[str]]:
    """Return the keys of results to compute anew, and reports on results of other code."""
    named, tree = (
        {k for k, r in records.items() if sources.differs(part, units[k], r.provenance)}
        for part in ("named", "tree")
    )
    n_read = len(tree - named)
    files = ", ".join(map(str.strip, sources.changed)) or "changed then, and not now"
    anew = f"computed anew, because functions that they name changed: {len(named)} units"
    read = f"read, though other code changed ({files}): {n_read} units; --force computes them anew"
    return named, [anew] * bool(named) + [read] * bool(n_read)


def _sha256(texts: list[str]) -> str:
    return checksum(repr(texts).encode())[:16] if texts else ""


@functools.cache
def commit() -> str:
    """Return the commit of the project, with "+changes" where files differ from it."""
    return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(changes()) or "unknown"


def changes(*paths: str) -> list[str]:
    """Return the files that differ from the commit, one line each.

    Args:
        paths: where to look, also for untracked files; default: all tracked files except kept
            results.
    """
    untracked, *where = ("all", *paths) if paths else ("no", ".", ":!results")
    return git("status", "--porcelain", f"--untracked-files={untracked}", "--", *where).splitlines()


def git(*command: str) -> str:
    """Return the output of a git command in the project; "" if it fails or git is missing."""
    words = ["git", "-C", str(ROOT), *command]
    try:
        return subprocess.check_output(words, stderr=subprocess.DEVNULL, encoding="utf-8").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
