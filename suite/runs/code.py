"""Which code computes a unit, so that results of other code are told from those of this one.

The key of a unit holds what it asks for, not how that is computed. So each record also has two
checksums of code that no commit has: of functions that its unit *names* (a penalty, a metric, a
network), and of the *tree*, all files that compute, where one of them was changed. A commit answers
for its own code, by `suite.units.VERSIONS` and the tests: of that both are empty.
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
    """The code of units, as it is now."""

    def __init__(self) -> None:
        self.changed, self._named = changes(*COMPUTING), dict[frozenset[str], str]()
        self._clean = not self.changed and commit() != "unknown"
        files = [f for part in COMPUTING for f in sorted(ROOT.glob(part)) if not self._clean]
        self._tree = _sha256([file.read_text(encoding="utf-8") for file in files])

    def provenance(self, unit: Unit) -> dict[str, str]:
        """Return what the record of a unit says of code that no commit has."""
        return {"named": self._named_checksum(unit), "tree": self._tree}

    def differs(self, part: str, unit: Unit, provenance: Mapping[str, Any]) -> bool:
        """Whether a result is of other functions ("named"), or other files ("tree"), than now.

        Where no commit is known, results of a commit are taken as they are.
        """
        if commit() == "unknown" != provenance.get("commit", "unknown"):
            return False
        now = self._tree if part == "tree" else self._named_checksum(unit)
        return bool(provenance.get("code", {}).get(part, "") != now)

    def _named_checksum(self, unit: Unit) -> str:
        """Return the checksum of what a unit names."""
        names = frozenset(NAMES.findall(json.dumps(unit.identity)))
        if names not in self._named:
            named = [table[n] for table in REGISTRIES for n in sorted(names & table.keys())]
            self._named[names] = _sha256([text for v in named if (text := self._new_source(v))])
        return self._named[names]

    def _new_source(self, value: Any) -> str:
        """Return the text of a function, and of those it was made of, where no commit has it.

        Of a file that is none of the project's, it is all: functions call others.
        """
        if isinstance(value, functools.partial):
            parts = (value.func, *value.args, *value.keywords.values())
            return "".join(map(self._new_source, filter(callable, parts)))
        value, held = getattr(value, "__func__", value), list[Any]()  # of a bound method
        if isinstance(value, FunctionType):
            held = [f for f in inspect.getclosurevars(value).nonlocals.values() if callable(f)]
        elif not isinstance(value, type):
            value = type(value)
        code, text = getattr(value, "__code__", value), ""  # its own, where it wraps another
        try:
            file = Path(inspect.getfile(code))
            if (own := _is_in_project(file)) and not self._clean:
                source = inspect.getsource(code)
                text = "" if source.strip() in _head_text(file) else source
            elif not own and "/site-packages/torch/" not in str(file):  # records have its version
                text = "" if file.is_file() else inspect.getsource(code)
                text = text or file.read_text(encoding="utf-8")
        except (OSError, TypeError):  # typed in, or no Python
            text = getattr(code, "co_code", b"").hex()
        return "".join([text, *map(self._new_source, held)])


@functools.cache
def _is_in_project(file: Path) -> bool:
    return any(file.is_relative_to(ROOT / part.partition("/**")[0]) for part in COMPUTING)


@functools.cache
def _head_text(file: Path) -> str:
    return git("show", f"HEAD:./{file.relative_to(ROOT)}")


def find_other_code(
    records: Mapping[str, Record], units: Mapping[str, Unit], sources: Sources
) -> tuple[set[str], list[str]]:
    """Return the keys of results that must be computed anew, and what to say of other code."""

    def of_other(part: str) -> set[str]:
        about = records.items()
        return {key for key, r in about if sources.differs(part, units[key], r.provenance)}

    refused, n = (named := of_other("named")), len(of_other("tree") - named)
    files = ", ".join(map(str.strip, sources.changed)) or "changed then, and not now"
    anew = f"computed anew, because functions that they name changed: {len(refused)} units"
    read = f"read, though other code changed ({files}): {n} units; --force computes them anew"
    return refused, [anew] * bool(refused) + [read] * bool(n)


def _sha256(texts: list[str]) -> str:
    return checksum(repr(texts).encode())[:16] if texts else ""


@functools.cache
def commit() -> str:
    """Return the commit of the project, with "+changes" where files differ from it."""
    return git("rev-parse", "--short=12", "HEAD") + "+changes" * bool(changes()) or "unknown"


def changes(*paths: str) -> list[str]:
    """Return what differs from the commit, a line a file.

    Args:
        paths: what to look at, files that no commit has included; default: all files that a commit
            has, but for kept results, which may differ.
    """
    untracked, *among = ("all", *paths) if paths else ("no", ".", ":!results")
    return git("status", "--porcelain", f"--untracked-files={untracked}", "--", *among).splitlines()


def git(*command: str) -> str:
    """Return the output of a git command on the project; "" if it fails or git is missing."""
    words = ["git", "-C", str(ROOT), *command]
    try:
        return subprocess.check_output(words, stderr=subprocess.DEVNULL, encoding="utf-8").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
