"""Running chapters: parameters checked first, the page replaced only by a complete run."""

import ast
import importlib
import importlib.util
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from suite.errors import RunFailed, UsageError, expected, unknown
from suite.paths import NOTEBOOKS, ROOT, executed_folder, with_whole_paths

PROFILES = ("smoke", "laptop", "desktop", "workstation", "paper")
START_ATTEMPTS = 3


class Parameter(NamedTuple):
    """A parameter of a chapter: its default, whose type it must have, and what it means."""

    default: Any
    help: str


def chapters() -> list[str]:
    """Return the names of all chapters."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def title(chapter: str) -> str:
    """Return the title of a chapter, its first heading."""
    import nbformat

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
    import papermill

    return {
        name: Parameter(ast.literal_eval(entry["default"]), entry["help"])
        for name, entry in papermill.inspect_notebook(str(source(chapter))).items()
    }


def profiles(chapter: str) -> dict[str, dict[str, Any]]:
    """Read the profiles of a chapter: the parameters that each one sets.

    Folders of own images are relative to the folder of the project.
    """
    import yaml

    files = {file.stem: file for file in (NOTEBOOKS / "profiles" / chapter).glob("*.yml")}
    names = [name for name in dict.fromkeys([*PROFILES, *sorted(files)]) if name in files]
    values = {name: yaml.safe_load(files[name].read_text()) for name in names}
    return {name: with_whole_paths(of_profile, ROOT) for name, of_profile in values.items()}


def resolve(chapter: str, profile: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a run: those of the profile, then `changes`, all checked.

    Raises:
        UsageError: unknown chapter, profile or parameter, or a value of the wrong type.
    """
    return resolve_all([chapter], profile, changes)[chapter]


def resolve_all(
    names: Sequence[str], profile: str, changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of several runs; each takes those of the changes that it knows.

    Raises:
        UsageError: as `resolve`, or a parameter that no chapter of them has.
    """
    known = {chapter: parameters(chapter) for chapter in names}
    of_any = {name for entries in known.values() for name in entries}
    for name in changes:
        if name not in of_any:
            raise unknown(f"parameter of {', '.join(names)}", name, of_any)
    resolved = {}
    for chapter, entries in known.items():
        by_profile = profiles(chapter)
        if profile not in by_profile:
            raise unknown("profile", profile, by_profile)
        changed = {name: value for name, value in changes.items() if name in entries}
        resolved[chapter] = with_whole_paths({**by_profile[profile], **changed})
        for name, value in resolved[chapter].items():
            _check(chapter, name, value, entries)
    return resolved


def _check(chapter: str, name: str, value: Any, entries: Mapping[str, Parameter]) -> None:
    if name not in entries:
        raise unknown(f"parameter of {chapter}", name, entries)
    default = entries[name].default
    if not _same_type(value, default):
        hint = " (YAML wants 1.0e+3 for 1e3)" if isinstance(default, float) else ""
        like = f"{type(default).__name__} like {default!r}"
        raise expected(f"parameter {name}", like, f"{value!r}{hint}")
    if isinstance(default, list) and not value:
        raise expected(f"parameter {name}", "at least one value", "an empty list")


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(default, list):
        kinds = default[:1] * len(value) if isinstance(value, list) else []
        return isinstance(value, list) and all(map(_same_type, value, kinds))
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def units_of(chapter: str, values: Mapping[str, Any]) -> list[Any]:
    """Return the units of a run, from `units` in the module of the paper.

    A page that has no such module has none.

    Raises:
        UsageError: the parameters do not make sense.
    """
    module = paper(chapter)
    return list(module.units(all_parameters(chapter, values))) if module else []


def paper(chapter: str) -> Any:
    """Return the module in `suite.papers` of a chapter, or None where there is none."""
    name = f"suite.papers.{chapter}"
    there = name in sys.modules or importlib.util.find_spec(name)
    return importlib.import_module(name) if there else None


def all_parameters(chapter: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a run: `values`, and the defaults of the others."""
    return {name: entry.default for name, entry in parameters(chapter).items()} | dict(values)


def run(chapter: str, values: Mapping[str, Any], *, bar: bool = True) -> Path:
    """Execute a chapter; its page is there afterwards if and only if every cell ran.

    Args:
        chapter: its name.
        values: parameters, from `resolve`.
        bar: show on the terminal what the chapter says of its progress.

    Returns:
        The executed notebook.

    Raises:
        UsageError: the chapter refuses its parameters or data are missing.
        RunFailed: a cell failed; the message has the cell, the error, and where the partial
            notebook lies.
    """
    page = executed_folder() / f"{chapter}.ipynb"
    partial = page.parent / "partial" / page.name
    partial.parent.mkdir(parents=True, exist_ok=True)
    page.unlink(missing_ok=True)
    _execute(source(chapter), partial, values, sys.stderr if bar else None)
    _finish(partial)
    shutil.move(partial, page)
    return page


def _execute(notebook: Path, partial: Path, values: Mapping[str, Any], log: TextIO | None) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    for attempt in range(1, START_ATTEMPTS + 1):
        partial.unlink(missing_ok=True)
        try:
            papermill.execute_notebook(
                notebook,
                partial,
                parameters=dict(values),
                kernel_name="python3",
                progress_bar=False,
                stderr_file=log,
                # A kernel is interrupted when it ends, of which it would tell as of an error.
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                shutdown_kernel="immediate",
            )
            return
        except PapermillExecutionError as error:
            if error.ename in ("UsageError", "DataMissing"):
                raise UsageError(f"{notebook.stem}: {error.evalue}") from error
            raise RunFailed(
                f"{notebook.stem} failed in cell {error.exec_count}: {error.ename}: "
                f"{error.evalue}\n\n{textwrap.indent(error.source.strip(), '    ')}\n\n"
                f"Partial notebook: {partial}"
            ) from error
        except RuntimeError as error:  # the kernel died; before any cell ran, it could not start
            if attempt == START_ATTEMPTS or any(_executed(partial)):
                raise RunFailed(f"{notebook.stem}: {error}. Partial notebook: {partial}") from error


def _executed(partial: Path) -> list[bool]:
    """Return for each cell of code whether it ran."""
    import nbformat

    cells = nbformat.read(partial, as_version=4).cells if partial.exists() else []
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    return [bool(cell.execution_count) for cell in code]


def _finish(partial: Path) -> None:
    """Check that every cell ran, and take out what differs from run to run."""
    import nbformat

    if not all(_executed(partial)):
        raise RunFailed(f"{partial.stem}: a cell of code did not run. Partial notebook: {partial}")
    notebook = nbformat.read(partial, as_version=4)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("remove-cell")
        if cell.cell_type == "code":
            cell.outputs = list(filter(_without_progress, cell.outputs))
    notebook.metadata.pop("papermill", None)
    nbformat.write(notebook, partial)


def _without_progress(output: Any) -> bool:
    """Take bars of progress, which begin with a carriage return; say whether anything is left."""
    if output.get("name") != "stderr":
        return True
    output.text = re.sub(r"\r[^\r\n]*", "", output.text)
    return bool(output.text.strip())
