"""The command `python -m suite`."""

import ast
import functools
import http.server
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from suite import notebooks
from suite.errors import RunFailed, UsageError
from suite.paths import store_folder

app = typer.Typer(
    help="Run the chapters of the book, and see what came out.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
state = {"debug": False}

Profile = Annotated[str, typer.Option(help="smoke, laptop, workstation or paper.")]
Chapters = Annotated[list[str] | None, typer.Argument(help="Names of chapters; default: all.")]


@app.callback()
def common(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Run the chapters of the book, and see what came out."""
    state["debug"] = debug


@app.command("list")
def list_chapters() -> None:
    """List chapters, their profiles, and their parameters with type, default and meaning."""
    for chapter in notebooks.chapters():
        typer.echo(f"{chapter}\n  profiles: {', '.join(notebooks.profiles(chapter))}")
        for entry in notebooks.parameters(chapter).values():
            kind = type(entry.default).__name__
            typer.echo(f"  {entry.name}: {kind} = {entry.default!r}\n      {entry.help}")


@app.command()
def run(
    chapters: Chapters = None,
    profile: Profile = "laptop",
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="NAME VALUE", help="Set a parameter.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", metavar="FILE", help="YAML file of parameters.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Local processes; default: the cores.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler.")] = None,
    double_backward: Annotated[
        str | None, typer.Option(help="fast or stock; default: the faster one of the device.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Compute again what is stored.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
) -> None:
    """Execute chapters: what the store has is read, the rest is computed."""
    from suite.runs.executors import Resources

    names = chapters or notebooks.chapters()
    changes = {**_from_file(file), **_from_options(parameter or [])}
    values = notebooks.resolve_all(names, profile, changes)
    # Refuses what cannot be, before any work.
    Resources(device=device, jobs=jobs, dask=dask, double_backward=double_backward)
    if dry_run:
        for name in names:
            typer.echo(f"{name}, profile {profile}: {_plan(name, values[name])}")
        return
    environment = {
        "REGLIB_DEVICE": device,
        "REGLIB_JOBS": str(jobs or ""),
        "REGLIB_DASK": dask or "",
        "REGLIB_DOUBLE_BACKWARD": double_backward or "",
        "REGLIB_FORCE": "1" if force else "",
    }
    failures = []
    for name in names:
        try:
            page = notebooks.run(name, values[name], environment=environment)
            typer.echo(f"{name}: {page}")
        except RunFailed as error:
            if len(names) == 1:
                raise
            failures.append(str(error))
    if failures:
        raise RunFailed("\n\n".join(failures))


@app.command()
def status() -> None:
    """Say for each chapter and profile how many units are stored, and the seconds spent."""
    for name in notebooks.chapters():
        for profile in notebooks.profiles(name):
            typer.echo(f"{name}, {profile}: {_plan(name, notebooks.resolve(name, profile, {}))}")


@app.command()
def book(
    html: Annotated[Path, typer.Option(help="Where to put the built book.")] = Path("_build/html"),
    pdf: Annotated[bool, typer.Option(help="Make the PDF too, with Chromium.")] = True,
) -> None:
    """Build the book from the executed chapters."""
    from suite.book.build import build

    index = build(html, pdf=pdf)
    typer.echo(f"Open {index}")


@app.command()
def report(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the verdicts of the latest runs and of the kept results."""
    from suite.evidence.report import all_verdicts

    verdicts = all_verdicts()
    if as_json:
        typer.echo(verdicts.to_json(orient="records", indent=1))
    elif verdicts.empty:
        typer.echo("no results yet: python -m suite run")
    else:
        typer.echo(verdicts.to_string(index=False, float_format="%.3g"))


@app.command()
def compare(first: Path, second: Path) -> None:
    """Compare two folders of results: where they agree within their spread, and where not."""
    from suite.evidence.report import compare_folders

    table = compare_folders(first, second)
    typer.echo(table.to_string(index=False, float_format="%.4g"))
    typer.echo(f"{table['agrees'].sum()} of {len(table)} agree within twice the standard error")


@app.command()
def serve(
    html: Annotated[Path, typer.Option(help="The built book.")] = Path("_build/html"),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8000,
) -> None:
    """Serve the built book on 127.0.0.1, where its search finds full texts."""
    if not (html / "index.html").exists():
        raise UsageError(f"{html}: expected a built book; run 'make book' first")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        typer.echo(f"http://127.0.0.1:{server.server_port}  (Ctrl-C ends it)")
        server.serve_forever()


def _plan(name: str, values: dict[str, Any]) -> str:
    from suite.evidence.results import load_results
    from suite.runs.plan import plan
    from suite.store import Store

    kept = load_results(name, values["profile"]).provenance
    units = notebooks.units_of(name, values)
    if not units:
        return "no units: it runs anew each time"
    result = plan(units, Store(store_folder()), typical=kept.get("median_seconds"))
    lines = [
        f"{result.total} units, {result.stored} stored ({result.spent:.0f} s spent), "
        f"{result.total - result.stored} missing"
    ]
    if result.seconds:
        more = f"; {result.unknown} units have none to go by" if result.unknown else ""
        lines.append(
            f"  estimate: {result.seconds:,.0f} s of one worker, by stored and kept results{more}"
        )
    elif result.unknown:
        lines.append("  no estimate: nothing similar is stored or kept")
    messages = dict.fromkeys(result.missing_data.values())
    lines += [f"  missing data: {message}" for message in messages]
    return "\n".join(lines)


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        values = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not a readable YAML file ({error})") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected 'name: value' lines, got {type(values).__name__}")
    return values


def _from_options(options: list[str]) -> dict[str, Any]:
    pairs = (option.partition("=") for option in options)
    return {name: _literal(value) for name, _, value in pairs}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _join_pairs(arguments: list[str]) -> list[str]:
    """Turn `-p NAME VALUE`, as papermill has it, into one value for the option."""
    joined = list(arguments)
    for index in range(len(joined) - 1, -1, -1):
        if joined[index] == "-p":
            if len(joined) < index + 3:
                raise UsageError("-p: expected a name and a value, as in -p n_images 32")
            joined[index + 1 : index + 3] = ["=".join(joined[index + 1 : index + 3])]
    return joined


def main() -> None:
    """Run the command; exit with 2 for a usage error and 1 for a failure."""
    try:
        code = app(_join_pairs(sys.argv[1:]), standalone_mode=False)
        sys.exit(code)
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was finished is stored, run again to go on", err=True)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the last place to say what happened
        if state["debug"]:
            traceback.print_exc()
        typer.echo(_message(error), err=True)
        usage = isinstance(error, UsageError) or getattr(error, "exit_code", None) == 2
        sys.exit(2 if usage else 1)


def _message(error: Exception) -> str:
    if hasattr(error, "format_message"):  # an error of the command line
        return f"suite: {error.format_message()}"
    if isinstance(error, UsageError | RunFailed):
        text = str(error)
        return f"suite: {text if state['debug'] else text.partition('Traceback in')[0].strip()}"
    return f"suite: {type(error).__name__}: {error} (--debug shows where)"
