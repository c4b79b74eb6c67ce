"""Running chapters: parameters checked first, the page replaced only by a complete run."""

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm

from suite.errors import RunFailed, UsageError, unknown
from suite.paths import NOTEBOOKS, executed_folder
from suite.units import Unit

START_ATTEMPTS = 3


@dataclass(frozen=True)
class Parameter:
    """A parameter of a chapter: its default, whose type it must have, and what it means."""

    name: str
    default: Any
    help: str


def chapters() -> list[str]:
    """Return the names of all chapters."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def title(chapter: str) -> str:
    """Return the title of a chapter, its first heading."""
    first = nbformat.read(source(chapter), as_version=4).cells[0].source
    return str(first).splitlines()[0].removeprefix("# ")


def source(chapter: str) -> Path:
    """Return the notebook of a chapter.

    Raises:
        UsageError: there is none of that name.
    """
    if chapter not in chapters():
        raise unknown("chapter", chapter, chapters())
    return NOTEBOOKS / f"{chapter}.ipynb"


def parameters(chapter: str) -> dict[str, Parameter]:
    """Read the parameters of a chapter from its cell of parameters."""
    return {
        name: Parameter(name, ast.literal_eval(entry["default"]), entry["help"])
        for name, entry in papermill.inspect_notebook(str(source(chapter))).items()
    }


def profiles(chapter: str) -> dict[str, dict[str, Any]]:
    """Read the profiles of a chapter: the parameters that each one sets."""
    return yaml.safe_load((NOTEBOOKS / "profiles" / f"{source(chapter).stem}.yml").read_text())


def resolve(chapter: str, profile: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a run: those of the profile, then `changes`, all checked.

    Raises:
        UsageError: unknown chapter, profile or parameter, or a value of the wrong type.
    """
    known = parameters(chapter)
    by_profile = profiles(chapter)
    if profile not in by_profile:
        raise unknown("profile", profile, by_profile)
    values = {"profile": profile, **by_profile[profile], **changes}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"parameter of {chapter}", name, known)
        default = known[name].default
        if not _same_type(value, default):
            hint = " (YAML wants 1.0e+3 for 1e3)" if isinstance(default, float) else ""
            raise UsageError(
                f"parameter {name}: expected {type(default).__name__} like "
                f"{default!r}, got {value!r}{hint}"
            )
        if isinstance(default, list) and not value:
            raise UsageError(f"parameter {name}: expected at least one value, got an empty list")
    return values


def resolve_all(
    names: Sequence[str], profile: str, changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of several runs; each takes those of the changes that it knows.

    Raises:
        UsageError: as `resolve`, or a parameter that no chapter of them has.
    """
    known = {chapter: parameters(chapter) for chapter in names}
    of_any = sorted({name for entries in known.values() for name in entries})
    for name in changes:
        if name not in of_any:
            raise unknown(f"parameter of {', '.join(names)}", name, of_any)
    return {
        chapter: resolve(chapter, profile, {k: v for k, v in changes.items() if k in entries})
        for chapter, entries in known.items()
    }


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, list) and isinstance(value, list) and default:
        return all(_same_type(item, default[0]) for item in value)
    return isinstance(value, type(default))


def units_of(chapter: str, values: Mapping[str, Any]) -> list[Unit]:
    """Return the units of a run, by running the cells of a notebook up to that tagged "units".

    A notebook without such a cell has none, and is not run.

    Raises:
        UsageError: the parameters do not make sense.
    """
    if importlib.util.find_spec(f"suite.papers.{chapter}"):
        paper = importlib.import_module(f"suite.papers.{chapter}")
        if hasattr(paper, "units"):
            return list(
                paper.units({n: p.default for n, p in parameters(chapter).items()} | dict(values))
            )
    cells = nbformat.read(source(chapter), as_version=4).cells
    tagged = [(cell, cell.metadata.get("tags", [])) for cell in cells if cell.cell_type == "code"]
    last = next((n for n, (_, tags) in enumerate(tagged) if "units" in tags), None)
    if last is None:
        return []
    scope: dict[str, Any] = {}
    for cell, tags in tagged[: last + 1]:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(cell.source, f"<{chapter}>", "exec"), scope)
        if "parameters" in tags:
            scope.update(values)
    return scope["units"]


def run(
    chapter: str, values: Mapping[str, Any], *, environment: Mapping[str, str], bar: bool = True
) -> Path:
    """Execute a chapter; its page is there afterwards if and only if every cell ran.

    Args:
        chapter: its name.
        values: parameters, from `resolve`.
        environment: variables for the kernel, such as REGLIB_JOBS.
        bar: show progress on the terminal.

    Returns:
        The executed notebook.

    Raises:
        UsageError: the chapter refuses its parameters or data are missing.
        RunFailed: a cell failed; the message has the cell, the error, and where the partial
            notebook lies.
    """
    page = executed_folder() / f"{chapter}.ipynb"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.unlink(missing_ok=True)
    partial = page.parent / "partial" / page.name
    partial.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        _progress(scratch, chapter, bar) as file,
        _environment({**environment, "REGLIB_PROGRESS": file}),
    ):
        _execute(source(chapter), partial, values)
    _finish(partial)
    shutil.move(partial, page)
    return page


def _execute(notebook: Path, partial: Path, values: Mapping[str, Any]) -> None:
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            papermill.execute_notebook(
                str(notebook),
                str(partial),
                parameters=dict(values),
                kernel_name="python3",
                cwd=str(notebook.parent),
                progress_bar=False,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],
            )
            return
        except PapermillExecutionError as error:
            if error.ename in ("UsageError", "DataMissing"):
                raise UsageError(f"{notebook.stem}: {error.evalue}") from error
            raise RunFailed(
                f"{notebook.stem} failed in cell {error.exec_count}: {error.ename}: "
                f"{error.evalue}\n\n{_indented(error.source)}\n\nPartial notebook: {partial}"
            ) from error
        except RuntimeError as error:  # the kernel died
            if not _nothing_ran(partial) or attempt == START_ATTEMPTS:
                raise RunFailed(f"{notebook.stem}: {error}. Partial notebook: {partial}") from error


def _nothing_ran(partial: Path) -> bool:
    """Say whether no cell was run: such a kernel could not be started, and may be next time."""
    if not partial.exists():
        return True
    cells = nbformat.read(partial, as_version=4).cells
    return not any(cell.get("execution_count") for cell in cells)


def _finish(partial: Path) -> None:
    """Check that every cell ran, and take out what differs from run to run."""
    notebook = nbformat.read(partial, as_version=4)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip() and not cell.execution_count:
            raise RunFailed(f"{partial.stem}: cell {number} did not run. Partial: {partial}")
        cell.id = f"cell-{number}"
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("hide-cell")
    notebook.metadata.pop("papermill", None)
    nbformat.write(notebook, partial)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _progress(folder: str, chapter: str, bar: bool) -> Iterator[str]:
    """Show units done, total and time left, read from the file that `compute` writes."""
    file = Path(folder) / "progress"
    ended = threading.Event()

    def watch() -> None:
        with tqdm(desc=chapter, unit="unit", disable=not bar) as shown:
            while not ended.wait(0.5 if sys.stderr.isatty() else 10):
                counts = file.read_text().split() if file.exists() else []
                if len(counts) == 2:
                    shown.total = int(counts[1])
                    shown.update(int(counts[0]) - shown.n)
                    shown.refresh()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield str(file)
    finally:
        ended.set()
        watcher.join()
