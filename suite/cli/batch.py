"""`python -m suite compute`: units without a notebook, and what `run` has in common with it."""

import argparse
import ast
import contextlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import notebooks
from suite.errors import expected
from suite.paths import ROOT, read_yaml

TIME_IS_UP = 3  # an exit code
AGAIN = 5.0  # seconds from one signal to the next: Python drops what a finalizer raises


class TimeIsUp(KeyboardInterrupt):
    """The minutes that a command was given are over."""


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
    given = parser.parse_args(words[1:])
    if not 0 <= given.minutes < 1e6:
        raise expected("--minutes", "a number of minutes", given.minutes)
    if not 1 <= given.part[0] <= given.part[1]:
        raise expected("--part", "I from 1 to N", given.part)
    signal.signal(signal.SIGALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60 * given.minutes, AGAIN)
        values = notebooks.resolve_all(given.chapters, given.profile, changes(None, given.p))
        from suite.runs import compute, part_of  # after the checks: this takes seconds

        units = {n: part_of(notebooks.units_of(n, v), *given.part) for n, v in values.items()}
        if not given.dry_run:
            warn_of_unknown_commit()
            compute([unit for part in units.values() for unit in part])
        say_plans(units, values)
    except TimeIsUp:
        print("time is up; what was finished is stored, run again to go on", file=sys.stderr)
        return TIME_IS_UP
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _stop(*_: object) -> None:
    raise TimeIsUp


def warn_of_unknown_commit() -> None:
    """Say now what `keep` would say of results for which no commit is known."""
    from suite.runs.code import commit

    if commit() == "unknown":
        print(f"'git -C {ROOT} status' fails, so 'keep' will refuse this run", file=sys.stderr)


def say_plans(units: Mapping[str, Any], values: Mapping[str, Any], *, force: bool = False) -> None:
    """Print what runs would do; for the profile `gpu` steps of the trainings are timed here."""
    for name, part in units.items():
        profile = values[name]["profile"]
        timed = profile.partition("+")[0] == "gpu"
        print(f"{name}, run {profile}: {plan_line(part, {}, force, timed)}")


def plan_line(
    units: Sequence[Any], shared: dict[str, Any], force: bool = False, timed: bool = False
) -> str:
    """Say what a run would do; `shared` takes what is read once for several runs."""
    from suite.runs import Store, kept_layer
    from suite.runs.code import Sources
    from suite.runs.plan import plan

    if not units:
        return "no units: it runs anew each time"
    if not shared:
        shared |= {"kept": kept_layer(), "looked": {}, "sources": Sources()}
    return str(plan(units, Store(), force=force, timed=timed, **shared))


def changes(file: Path | None, parameter: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the parameters of a file, and then those of the command line."""
    return (read_yaml(file) if file else {}) | {name: _literal(value) for name, value in parameter}


def _literal(text: str) -> Any:
    """Read a value as Python or JSON writes it, or a number that is none; else it is text."""
    for read in (ast.literal_eval, json.loads, float):  # a check refuses nan and inf
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return read(text)
    return text
