"""The commands of `python -m suite`. `compute` needs no package for pages."""

import argparse
import ast
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from suite import notebooks
from suite.errors import RunFailed, UsageError, expected
from suite.paths import NOTEBOOKS, ROOT, executed_folder, read_yaml

TIME_IS_UP = 3  # an exit code
AGAIN = 5.0  # seconds from one signal to the next: Python drops what a finalizer raises


class TimeIsUp(KeyboardInterrupt):
    """The time limit of a command has passed."""


def list_chapters(_: argparse.Namespace) -> None:
    """List chapters, their profiles, and their parameters with type, default and meaning."""
    for chapter in notebooks.chapters():
        print(f"{chapter}\n  profiles: {', '.join(notebooks.profiles(chapter))}")
        for name, (default, meaning, _) in notebooks.parameters(chapter).items():
            print(f"  {name}: {type(default).__name__} = {default!r}\n      {meaning}")


def run(args: argparse.Namespace) -> None:
    """Execute chapters: read stored or kept results, compute the rest."""
    names = args.chapters or notebooks.chapters()
    values = notebooks.resolve_all(names, args.profile, read_changes(args.file, args.parameter))
    from suite.runs import Resources, compute  # after the checks: this takes seconds
    from suite.runs.executors import cores

    options = {name: getattr(args, name) for name in "jobs device dask double_backward".split()}
    resources = {name: value for name, value in options.items() if value is not None}
    Resources(**resources)  # refuses impossible values before any work
    os.environ |= {f"REGLIB_{name.upper()}": str(value) for name, value in resources.items()}
    os.environ |= {"REGLIB_FRESH": "1"} if args.fresh else {}
    units = {name: notebooks.units_of(name, values[name]) for name in names}
    if args.dry_run:
        page_data = {name: notebooks.page_data(name, values[name]) for name in names}
        runs = ((f"{n}, run", values[n]["profile"], units[n], page_data[n]) for n in units)
        _print_plans(runs, force=args.force)
        return
    _check_machine()
    _warn_of_unknown_commit()
    # Missing units are computed on all cores; then chapters, which only read them, run in parallel.
    # A failure is raised here, before a chapter would compute the unit a second time.
    compute([unit for part in units.values() for unit in part], force=args.force)
    if failures := _execute(names, values, cores()):
        raise RunFailed("\n\n".join(map(str, failures))) from failures[0]


def _execute(
    names: Sequence[str], values: Mapping[str, Mapping[str, Any]], n_parallel: int
) -> list[RunFailed]:
    """Execute chapters, `n_parallel` at a time; return the errors."""

    def execute_one(name: str) -> RunFailed | None:
        print(f"{name}, run {values[name]['profile']}", file=sys.stderr)
        try:
            print(f"{name}: {notebooks.run(name, values[name], bar=n_parallel == 1)}")
        except RunFailed as error:
            return error
        return None

    # Threads share the working folder, in which kernels start: all paths are made absolute.
    for variable in ("REGLIB_EXECUTED", "REGLIB_STORE", "REGLIB_DATA"):
        if folder := os.environ.get(variable):
            os.environ[variable] = str(Path(folder).expanduser().resolve())
    if n_parallel > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # kernels would compete for the cores
    with contextlib.chdir(NOTEBOOKS), ThreadPoolExecutor(n_parallel) as pool:
        return [error for error in pool.map(execute_one, names) if error]


def _check_machine() -> None:
    """Check that this machine can execute chapters, before any time is spent.

    Raises:
        UsageError: the folder of executed chapters cannot be written, or there is no loopback
            network, which connects to kernels.
    """
    from suite.store import check_folder

    check_folder(executed_folder() / "partial", "folder of executed chapters", "REGLIB_EXECUTED")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise UsageError(f"{error}: notebooks need 127.0.0.1, try 'ip link set lo up'") from error


def compute_units(args: argparse.Namespace) -> int:
    """Compute units of chapters without a notebook; exit with 3 if time was up."""
    if not 0 <= args.minutes < 1e6:
        raise expected("--minutes", "a number of minutes", args.minutes)
    if not 1 <= args.part[0] <= args.part[1]:
        raise expected("--part", "I from 1 to N", args.part)
    signal.signal(signal.SIGALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes, AGAIN)
        changes = read_changes(args.file, args.parameter)
        values = notebooks.resolve_all(args.chapters, args.profile, changes)
        from suite.runs import compute, part_of  # after the checks: this takes seconds

        units = {n: part_of(notebooks.units_of(n, v), *args.part) for n, v in values.items()}
        if not args.dry_run:
            _warn_of_unknown_commit()
            compute([unit for part in units.values() for unit in part])
        _print_plans((f"{n}, run", values[n]["profile"], part, ()) for n, part in units.items())
    except TimeIsUp:
        print("time is up; what was finished is stored, run again to go on", file=sys.stderr)
        return TIME_IS_UP
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _stop(*_: object) -> None:
    raise TimeIsUp


def _warn_of_unknown_commit() -> None:
    """Warn that `keep` will refuse the results if the commit is unknown."""
    from suite.runs.code import commit

    if commit() == "unknown":
        print(f"'git -C {ROOT} status' fails, so 'keep' will refuse this run", file=sys.stderr)


def _print_plans(runs: Iterable[tuple[str, str, Any, Any]], *, force: bool = False) -> None:
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
        text = plan(units, Store(), **options) if units else "no units: it runs anew each time"
        print(f"{title} {profile}: {text}")


def read_changes(file: Path | None, parameter: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the parameters of a file, overridden by those of the command line."""
    return (read_yaml(file) if file else {}) | {name: _parse(value) for name, value in parameter}


def _parse(text: str) -> Any:
    """Read a value written as in Python or JSON, or nan or inf; anything else is text."""
    for read in (ast.literal_eval, json.loads, float):  # nan and inf are refused by a later check
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return read(text)
    return text


def keep(args: argparse.Namespace) -> None:
    """Move a finished run into the results of the project.

    Parts that were computed in other stores, or are kept already, are merged.
    """
    changes = read_changes(args.file, args.parameter)
    values = notebooks.resolve(args.chapter, args.profile, changes)
    from suite.runs import Store
    from suite.runs.keep import keep

    if absent := [folder for folder in args.store if not folder.is_dir()]:
        raise expected("--store", "a folder of results", absent[0])
    plan, paper = notebooks.plan_of(args.chapter, values), notebooks.paper(args.chapter)
    print(keep(args.chapter, values, plan, paper, stores=[Store(), *map(Store, args.store)]))


def status(_: argparse.Namespace) -> None:
    """List for each chapter and profile how many units are stored, and the seconds spent."""
    _print_plans(
        (f"{name},", profile, notebooks.units_of(name, values), ())
        for name in notebooks.chapters()
        for profile, values in notebooks.profiles(name).items()
    )


def compare(args: argparse.Namespace) -> None:
    """Compare runs of the chapter your_network: dials in a table, and in one picture.

    The picture also has their maps of the same images, for example of a network before and after.
    """
    from suite.book.compared import compare

    print(compare(args.runs, executed_folder() / "results"))


def judge(_: argparse.Namespace) -> None:
    """Judge the kept results by the present claims: tables, picture, README."""
    from suite.book.pages import judge_kept

    print(*judge_kept(ROOT / "README.md"), sep="\n")


def book(args: argparse.Namespace) -> None:
    """Build the book from the executed chapters."""
    from suite.book.build import build

    print(f"Open {build(args.html, pdf=args.pdf)}")


def report(args: argparse.Namespace) -> None:
    """Print the verdicts of the latest runs and of the kept results."""
    from suite.evidence.report import all_verdicts, damaged_results

    verdicts, damaged = all_verdicts(every=True), damaged_results()
    text = verdicts.to_string(index=False, float_format="{:.3g}".format)
    text = "no results yet: python -m suite run" if verdicts.empty else text
    print(verdicts.to_json(orient="records", indent=1) if args.json else text)
    if damaged:
        raise RunFailed("\n".join(["damaged, so run or check out again:", *damaged]))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line, with the function of its `command`.

    Raises:
        SystemExit: the words are no command (2, with the reason on the terminal), or ask for help.
    """
    about = "Run the chapters of the book, and see the results."
    parser = argparse.ArgumentParser(prog="python -m suite", description=about)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    profiles, yes = ", ".join(notebooks.PROFILES), {"action": "store_true"}

    def add(name: str, function: Any) -> Any:
        text = function.__doc__
        options = {"help": text.partition("\n")[0], "description": text, "allow_abbrev": False}
        command = parsers.add_parser(name, **options)
        command.set_defaults(command=function)
        return command.add_argument

    def add_parameters(add: Any) -> None:
        names = {"metavar": ("NAME", "VALUE"), "dest": "parameter", "help": "a parameter"}
        add("-p", nargs=2, action="append", default=[], **names)
        add("-f", dest="file", type=Path, metavar="FILE", help="YAML file of parameters")

    add("list", list_chapters)
    option = add("run", run)
    option("chapters", nargs="*", metavar="CHAPTER", help="a name of 'list'; default: all")
    option("--profile", default="desktop", help=profiles)
    add_parameters(option)
    option("--jobs", type=int, help="local processes; default: the cores")
    option("--device", help="auto, cpu or cuda")
    option("--dask", help="address of a Dask scheduler")
    option("--double-backward", help="fast, stock or captured; default: by the device")
    option("--fresh", **yes, help="ignore kept results: compute what is not stored here")
    option("--force", **yes, help="compute again what is stored here")
    option("--dry-run", **yes, help="only say what would be done")
    option = add("compute", compute_units)
    option("chapters", nargs="+", metavar="CHAPTER", help="a name of 'list'")
    option("--profile", default="desktop", help=profiles)
    add_parameters(option)
    option("--minutes", type=float, default=0.0, help="stop then; what is finished is stored")
    option("--part", type=int, nargs=2, default=(1, 1), metavar=("I", "N"), help="part I of N")
    option("--dry-run", **yes, help="only say what would be done")
    option = add("keep", keep)
    option("chapter")
    option("profile")
    add_parameters(option)
    option("--store", type=Path, action="append", default=[], help="a further store, of a part")
    add("status", status)
    add("compare", compare)("runs", nargs="+", metavar="RUN")
    add("judge", judge)
    option = add("book", book)
    option("--html", type=Path, default=ROOT / "_build" / "html", help="default: _build/html")
    option("--pdf", **yes, help="make the PDF too, with Chromium")
    add("report", report)("--json", **yes, help="print JSON")
    return parser.parse_args(list(words) or ["--help"])


def run_words(words: Sequence[str]) -> int | None:
    """Run the words of a command line; return the exit code, or None for 0."""
    args = parse(words)
    for stray in notebooks.strays():
        folder = f"notebooks/profiles/{stray.stem}"
        print(f"notebooks/{stray.name} is no chapter: no profile in {folder}", file=sys.stderr)
    return args.command(args)
