"""`python -m suite compute`: units without a notebook, and functions that `run` shares."""

import argparse
import ast
import contextlib
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from suite import notebooks
from suite.errors import expected
from suite.paths import ROOT, read_yaml

TIME_IS_UP = 3  # an exit code
NO_UNITS = "no units: it runs anew each time"
AGAIN = 5.0  # seconds from one signal to the next: Python drops what a finalizer raises


class TimeIsUp(KeyboardInterrupt):
    """The time limit of a command has passed."""


def run(words: Sequence[str]) -> int:
    """Run `compute`, given the words of the command line; return the exit code."""
    about = f"Compute units of chapters without a notebook; exit with {TIME_IS_UP} if time was up."
    parser = argparse.ArgumentParser(prog="python -m suite compute", description=about)
    add = parser.add_argument
    add("chapters", nargs="+", metavar="CHAPTER", help="a name of 'list'")
    add("--profile", default="desktop", help=", ".join(notebooks.PROFILES))
    add("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter")
    add("--minutes", type=float, default=0.0, help="stop then; what is finished is stored")
    add("--part", type=int, nargs=2, default=(1, 1), metavar=("I", "N"), help="the I-th of N parts")
    add("--dry-run", action="store_true", help="only say what would be done")
    args = parser.parse_args(words[1:])
    if not 0 <= args.minutes < 1e6:
        raise expected("--minutes", "a number of minutes", args.minutes)
    if not 1 <= args.part[0] <= args.part[1]:
        raise expected("--part", "I from 1 to N", args.part)
    signal.signal(signal.SIGALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes, AGAIN)
        values = notebooks.resolve_all(args.chapters, args.profile, read_changes(None, args.p))
        from suite.runs import compute, part_of  # after the checks: this takes seconds

        units = {n: part_of(notebooks.units_of(n, v), *args.part) for n, v in values.items()}
        if not args.dry_run:
            warn_of_unknown_commit()
            compute([unit for part in units.values() for unit in part])
        print_plans((f"{n}, run", values[n]["profile"], part, ()) for n, part in units.items())
    except TimeIsUp:
        print("time is up; what was finished is stored, run again to go on", file=sys.stderr)
        return TIME_IS_UP
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _stop(*_: object) -> None:
    raise TimeIsUp


def warn_of_unknown_commit() -> None:
    """Warn that `keep` will refuse the results if the commit is unknown."""
    from suite.runs.code import commit

    if commit() == "unknown":
        print(f"'git -C {ROOT} status' fails, so 'keep' will refuse this run", file=sys.stderr)


def print_plans(runs: Iterable[tuple[str, str, Any, Any]], *, force: bool = False) -> None:
    """Print what runs would do, and read what they share once.

    Args:
        runs: for each its title, profile, units, and the data sets that its page reads. If a title
            ends in "run" and the profile is `gpu`, steps of the trainings are timed here.
        force: see `suite.runs.plan.plan`.
    """
    from suite.runs import Store, kept_layer
    from suite.runs.code import Sources
    from suite.runs.plan import plan

    shared: dict[str, Any] = {"kept": kept_layer(), "lookups": {}, "sources": Sources()}
    for title, profile, units, page_data in runs:
        timed = title.endswith("run") and profile.partition("+")[0] == "gpu"
        options = shared | {"page_data": page_data, "force": force, "timed": timed}
        print(f"{title} {profile}: {plan(units, Store(), **options) if units else NO_UNITS}")


def read_changes(file: Path | None, parameter: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the parameters of a file, overridden by those of the command line."""
    return (read_yaml(file) if file else {}) | {name: _parse(value) for name, value in parameter}


def _parse(text: str) -> Any:
    """Read a value written as in Python or JSON, or nan or inf; anything else is text."""
    for read in (ast.literal_eval, json.loads, float):  # nan and inf are refused by a later check
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return read(text)
    return text
