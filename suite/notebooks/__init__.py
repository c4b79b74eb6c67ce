"""Run chapters: check their parameters, and replace a page only after a complete run."""

import importlib
import importlib.util
import logging
import os
import re
import sys
import textwrap
import uuid
from collections import UserDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from suite.errors import RunFailed, UsageError, check_name, expected, unknown
from suite.notebooks import checks
from suite.notebooks.checks import Parameter
from suite.paths import NOTEBOOKS, ROOT, check_run_name, executed_folder, read_yaml, resolve_paths

PROFILES = ("smoke", "laptop", "desktop", "workstation", "gpu", "paper")
BASE = "desktop"  # the profile of the unchanged notebook, and the default of other profiles
Values = Mapping[str, Any]
Entries = Mapping[str, Parameter]


class Profiles(UserDict[str, Any]):
    """The profiles of a chapter, read one by one at access: a broken file breaks no other.

    A chapter with a module in `suite.papers` and no file has `BASE`: the unchanged notebook.
    Folders of images are relative to the folder of the project.
    """

    def __init__(self, chapter: str) -> None:
        files = {file.stem: file for file in (NOTEBOOKS / "profiles" / chapter).glob("*.yml")}
        names = dict.fromkeys([*PROFILES, *sorted(files)])
        unchanged = {} if files or not _has_module(chapter) else {BASE: None}
        super().__init__(unchanged | {name: files[name] for name in names if name in files})

    def __getitem__(self, name: str) -> dict[str, Any]:
        file = self.data[name]
        values = read_yaml(file) if file else {}
        if values.setdefault("profile", name) != check_run_name(name):
            raise expected(f"{file}: profile", f"its name, {name}", values["profile"])
        return resolve_paths(values, ROOT)


def chapters() -> list[str]:
    """Return the names of all chapters: notebooks with a profile, or a module in `suite.papers`."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb") if profiles(path.stem))


def strays() -> list[Path]:
    """Return the notebooks that are no chapters, such as copies by Jupyter."""
    return sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not profiles(path.stem))


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
    check_name("chapter", chapter, chapters())
    return NOTEBOOKS / f"{chapter}.ipynb"


def parameters(chapter: str) -> dict[str, Parameter]:
    """Read the parameters of a chapter from its cell, and those that only `BASE` sets."""
    cell, file = checks.read_cell(source(chapter)), profiles(chapter).data.get(BASE)
    return cell | (checks.read_profile(file, cell) if file else {})


def profiles(chapter: str) -> Profiles:
    """Return the profiles of a chapter: the parameters that each of them sets."""
    return Profiles(chapter)


def resolve(chapter: str, profile: str, changes: Values) -> dict[str, Any]:
    """Return all checked parameters of a run: those of the profile, with `changes`.

    The parameter "profile" is the name of the run, which has the changed parameters.

    Raises:
        UsageError: unknown chapter, profile or parameter, or a value of the wrong type or range.
    """
    return resolve_all([chapter], profile, changes)[chapter]


def resolve_all(names: Sequence[str], profile: str, changes: Values) -> dict[str, dict[str, Any]]:
    """Return the parameters of several runs; each takes the changes of its own parameters.

    Raises:
        UsageError: as `resolve`, or a parameter that none of the chapters has.
    """
    known = {chapter: parameters(chapter) for chapter in names}
    for name in changes:
        check_name(f"parameter of {', '.join(names)}", name, set[str]().union(*known.values()))
    resolved = {}
    for chapter, entries in known.items():
        by_profile = profiles(chapter)
        check_name("profile", profile, by_profile)
        changed = {name: value for name, value in changes.items() if name in entries}
        values = all_parameters(chapter, by_profile[profile] | changed)
        resolved[chapter] = _check_and_name(chapter, values, entries)
        other = values["profile"].partition("+")[0]
        if other != profile and other in by_profile:
            what = f"a name of your own, or --profile {other}"
            raise expected("parameter profile", what, repr(values["profile"]))
    return resolved


def notebook_parameters(chapter: str, namespace: Values) -> dict[str, Any]:
    """Return the parameters of a running notebook, checked and named as by `resolve`.

    Args:
        chapter: the name of the notebook.
        namespace: its `globals()`. Parameters that the notebook leaves as in `BASE`, and the cell
            of papermill does not set, are those of the named profile.

    Raises:
        UsageError: as `resolve`.
    """
    entries, by_profile = parameters(chapter), profiles(chapter)
    cells = [text for text in namespace.get("In", ()) if text.startswith("# Parameters\n")]
    injected = re.findall(r"^(\w+) = ", "\n".join(cells), re.MULTILINE)
    base, names = all_parameters(chapter, {}), dict.fromkeys([*entries, *injected])
    values = {name: namespace[name] for name in names if name in namespace}
    changed = {n: value for n, value in values.items() if n in injected or value != base.get(n)}
    profile = by_profile.get(str(values["profile"]).partition("+")[0], {})
    return _check_and_name(chapter, base | profile | changed, entries)


def _check_and_name(chapter: str, values: Values, entries: Entries) -> dict[str, Any]:
    """Check the parameters of a run, and name it by its profile and its changed parameters."""
    values = resolve_paths(dict(values))
    checks.check(chapter, values, entries)
    by_profile, name = profiles(chapter), check_run_name(values["profile"])
    base = name.partition("+")[0]
    if base in by_profile:
        name = checks.run_name(base, values, all_parameters(chapter, by_profile[base]))
    elif base in PROFILES:
        raise unknown("profile", base, by_profile)
    return {**values, "profile": name}


def notice(chapter: str, values: Values) -> str:
    """Return the notice on the page of a run that is of no profile; "" for a profile.

    Args:
        chapter: the name of the chapter.
        values: the parameters, from `resolve` or `notebook_parameters`.
    """
    name = values["profile"]
    if name in profiles(chapter):
        return ""
    base, differs, _ = name.partition("+")
    which = f"a run of the profile *{base}*: parameters differ" if differs else "that of a profile"
    return f"**The run `{name}` is not {which}.** It takes the place of no kept results."


def plan_of(chapter: str, values: Values) -> Any:
    """Return the plan of a run, from the module of the paper.

    Raises:
        UsageError: the parameters do not make sense.
    """
    module, values = paper(chapter), all_parameters(chapter, values)
    if hasattr(module, "choices"):
        checks.check_choices(values, module.choices(values))
    return module.plan(values)


def units_of(chapter: str, values: Values) -> list[Any]:
    """Return the units of a run; a page without a module in `suite.papers` has none."""
    return list(plan_of(chapter, values).units()) if _has_module(chapter) else []


def page_data(chapter: str, values: Values) -> list[str]:
    """Return the data sets that a page reads itself: see `DERIVES_FROM` of its module."""
    name = getattr(paper(chapter), "DERIVES_FROM", None)
    return [entry["data"] for entry in values[name]] if name else []


def paper(chapter: str) -> Any:
    """Return the module of a chapter in `suite.papers`, or None."""
    return importlib.import_module(f"suite.papers.{chapter}") if _has_module(chapter) else None


def _has_module(chapter: str) -> bool:
    return importlib.util.find_spec(f"suite.papers.{chapter}") is not None


def all_parameters(chapter: str, values: Values) -> dict[str, Any]:
    """Return the parameters of a run: `values`, then `BASE`, then the notebook."""
    defaults = {name: entry.default for name, entry in parameters(chapter).items()}
    return defaults | profiles(chapter).get(BASE, {}) | dict(values)


def run(chapter: str, values: Values, *, bar: bool = True) -> Path:
    """Execute a chapter; its page exists afterwards if and only if every cell ran.

    Args:
        chapter: the name of the chapter.
        values: parameters, from `resolve`.
        bar: show the progress of the chapter on the terminal.

    Returns:
        The executed notebook.

    Raises:
        UsageError: the chapter refuses its parameters, or data are missing.
        RunFailed: a cell failed; the message has the cell, the error, and the path of the partial
            notebook.
    """
    page = executed_folder() / f"{chapter}.ipynb"
    partial = page.parent / "partial" / page.name
    # Another run of this chapter has a file of its own.
    working = partial.with_stem(f".{chapter}-{uuid.uuid4().hex}")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        page.unlink(missing_ok=True)
        _execute(source(chapter), working, values, sys.stderr if bar else None)
        _finish(chapter, working, notice(chapter, all_parameters(chapter, values)))
        os.replace(working, page)
    except (RunFailed, OSError) as error:
        if working.exists():
            os.replace(working, partial)
        raise RunFailed(f"{error}\n\nPartial notebook: {partial}") from error
    finally:
        working.unlink(missing_ok=True)
    return page


def _execute(notebook: Path, partial: Path, values: Values, log: TextIO | None) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    # A kernel may take minutes to start on a busy machine.
    options: dict[str, Any] = {"kernel_name": "python3", "start_timeout": 300}
    # Papermill interrupts a kernel at its end, which the kernel would log as an error.
    options |= {"extra_arguments": ["--IPKernelApp.log_level=CRITICAL"]}
    options |= {"shutdown_kernel": "immediate", "progress_bar": False}
    # It warns about parameters outside the cell, which `checks` has checked.
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        papermill.execute_notebook(notebook, partial, dict(values), stderr_file=log, **options)
    except PapermillExecutionError as error:
        if error.ename in ("UsageError", "DataMissing"):
            raise UsageError(f"{notebook.stem}: {error.evalue}") from error
        why = f"{notebook.stem} failed in cell {error.exec_count}: {error.ename}: {error.evalue}"
        why += f"\n\n{textwrap.indent(error.source.strip(), '    ')}"
        raise RunFailed(why) from error
    except RuntimeError as error:  # the kernel died
        raise RunFailed(f"{notebook.stem}: {error}") from error


def _finish(chapter: str, partial: Path, notice: str) -> None:
    """Check that every cell ran, remove what differs between runs, and put a notice first."""
    import nbformat

    notebook = nbformat.read(partial, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if not all(cell.execution_count for cell in code):
        raise RunFailed(f"{chapter}: a cell of code did not run")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("remove-cell")
        if cell.cell_type == "code":
            outputs = filter(_strip_progress, cell.outputs)
            cell.outputs = [o for o in outputs if o.get("data", {}).get("text/markdown") != notice]
    if notice:
        heading, _, rest = notebook.cells[0].source.partition("\n")
        notebook.cells[0].source = f"{heading}\n\n{notice}\n{rest}"
    notebook.metadata.pop("papermill", None)
    nbformat.write(notebook, partial)


def _strip_progress(output: Any) -> bool:
    """Remove progress bars, which begin with a carriage return; return whether text remains."""
    if output.get("name") != "stderr":
        return True
    output.text = re.sub(r"\r[^\r\n]*", "", output.text)
    return bool(output.text.strip())
