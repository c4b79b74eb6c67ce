"""The commands of `python -m suite`."""

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from suite import notebooks
from suite.cli import batch
from suite.errors import RunFailed, UsageError, expected
from suite.paths import NOTEBOOKS, ROOT, executed_folder

PARAMETER = click.option(
    "-p", "parameter", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter."
)
FILE = click.option("-f", "file", type=Path, metavar="FILE", help="YAML file of parameters.")


@click.group()
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def app(debug: bool) -> None:
    """Run the chapters of the book, and see the results.

    `compute` is for clusters, and has its own help.
    """
    for file in notebooks.strays():
        folder = f"notebooks/profiles/{file.stem}"
        click.echo(f"notebooks/{file.name} is no chapter: no profile in {folder}", err=True)


@app.command("list")
def list_chapters() -> None:
    """List chapters, their profiles, and their parameters with type, default and meaning."""
    for chapter in notebooks.chapters():
        click.echo(f"{chapter}\n  profiles: {', '.join(notebooks.profiles(chapter))}")
        for name, (default, meaning, _) in notebooks.parameters(chapter).items():
            click.echo(f"  {name}: {type(default).__name__} = {default!r}\n      {meaning}")


@app.command()
@click.argument("chapters", nargs=-1, metavar="[CHAPTER]...")
@click.option("--profile", default="desktop", help=", ".join(notebooks.PROFILES) + ".")
@PARAMETER
@FILE
@click.option("--jobs", type=int, help="Local processes; default: the cores.")
@click.option("--device", help="auto, cpu or cuda.")
@click.option("--dask", help="Address of a Dask scheduler.")
@click.option("--double-backward", help="fast, stock or captured; default: by the device.")
@click.option("--fresh", is_flag=True, help="Ignore kept results: compute what is not stored here.")
@click.option("--force", is_flag=True, help="Compute again what is stored here.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def run(
    chapters: tuple[str, ...], profile: str, fresh: bool, force: bool, dry_run: bool, **options: Any
) -> None:
    """Execute chapters: read stored or kept results, compute the rest.

    CHAPTER is a name of `list`; without one, all run.
    """
    names = chapters or notebooks.chapters()
    changes = batch.read_changes(options.pop("file"), options.pop("parameter"))
    values = notebooks.resolve_all(names, profile, changes)
    from suite.runs import Resources, compute  # after the checks: this takes seconds
    from suite.runs.executors import cores

    resources = {name: value for name, value in options.items() if value is not None}
    Resources(**resources)  # refuses impossible values before any work
    os.environ |= {f"REGLIB_{name.upper()}": str(value) for name, value in resources.items()}
    os.environ |= {"REGLIB_FRESH": "1"} if fresh else {}
    units = {name: notebooks.units_of(name, values[name]) for name in names}
    if dry_run:
        page_data = {name: notebooks.page_data(name, values[name]) for name in names}
        runs = ((f"{n}, run", values[n]["profile"], units[n], page_data[n]) for n in units)
        batch.print_plans(runs, force=force)
        return
    _check_machine()
    batch.warn_of_unknown_commit()
    # Missing units are computed on all cores; then chapters, which only read them, run in parallel.
    # A failure is raised here, before a chapter would compute the unit a second time.
    compute([unit for part in units.values() for unit in part], force=force)
    if failures := _execute(names, values, cores()):
        raise RunFailed("\n\n".join(map(str, failures))) from failures[0]


def _execute(
    names: Sequence[str], values: Mapping[str, Mapping[str, Any]], n_parallel: int
) -> list[RunFailed]:
    """Execute chapters, `n_parallel` at a time; return the errors."""

    def execute_one(name: str) -> RunFailed | None:
        click.echo(f"{name}, run {values[name]['profile']}", err=True)
        try:
            click.echo(f"{name}: {notebooks.run(name, values[name], bar=n_parallel == 1)}")
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


@app.command()
@click.argument("chapter")
@click.argument("profile")
@PARAMETER
@FILE
@click.option("--store", "folders", type=Path, multiple=True, help="A further store, of a part.")
def keep(chapter: str, profile: str, folders: tuple[Path, ...], **changes: Any) -> None:
    """Move a finished run into the results of the project.

    Parts that were computed in other stores, or are kept already, are merged.
    """
    values = notebooks.resolve(chapter, profile, batch.read_changes(**changes))
    from suite.runs import Store
    from suite.runs.keep import keep

    if absent := [folder for folder in folders if not folder.is_dir()]:
        raise expected("--store", "a folder of results", absent[0])
    plan, paper = notebooks.plan_of(chapter, values), notebooks.paper(chapter)
    click.echo(keep(chapter, values, plan, paper, stores=[Store(), *map(Store, folders)]))


@app.command()
def status() -> None:
    """List for each chapter and profile how many units are stored, and the seconds spent."""
    batch.print_plans(
        (f"{name},", profile, notebooks.units_of(name, values), ())
        for name in notebooks.chapters()
        for profile, values in notebooks.profiles(name).items()
    )


@app.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
def compare(runs: tuple[str, ...]) -> None:
    """Compare runs of the chapter your_network: dials in a table, and in one picture.

    The picture also has their maps of the same images, for example of a network before and after.
    """
    from suite.book.compared import compare

    click.echo(compare(runs, executed_folder() / "results"))


@app.command()
def judge() -> None:
    """Judge the kept results by the present claims: tables, picture, README."""
    from suite.book.pages import judge_kept

    for file in judge_kept(ROOT / "README.md"):
        click.echo(file)


@app.command()
@click.option("--html", type=Path, default=ROOT / "_build" / "html", show_default=True)
@click.option("--pdf", is_flag=True, help="Make the PDF too, with Chromium.")
def book(html: Path, pdf: bool) -> None:
    """Build the book from the executed chapters."""
    from suite.book.build import build

    click.echo(f"Open {build(html, pdf=pdf)}")


@app.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(as_json: bool) -> None:
    """Print the verdicts of the latest runs and of the kept results."""
    from suite.evidence.report import all_verdicts, damaged_results

    verdicts, damaged = all_verdicts(every=True), damaged_results()
    text = verdicts.to_string(index=False, float_format="{:.3g}".format)
    text = "no results yet: python -m suite run" if verdicts.empty else text
    click.echo(verdicts.to_json(orient="records", indent=1) if as_json else text)
    if damaged:
        raise RunFailed("\n".join(["damaged, so run or check out again:", *damaged]))


def run_words(words: Sequence[str]) -> Any:
    """Run the words of a command line; return the exit code, or None for 0.

    Raises:
        UsageError: the words are no command.
    """
    try:
        return app(list(words) or ["--help"], standalone_mode=False)
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.UsageError as error:
        raise UsageError(error.format_message()) from error
