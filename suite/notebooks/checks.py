"""Parameters: read from the cell of a notebook and a profile, checked by name; names of runs.

The comment of a parameter is read, too. "1 to 5" bounds its numbers; "0: ..." or "0 for ..." says
what zero means, which is refused elsewhere; "at most NAME", "at least NAME" and "below NAME"
compare it with another parameter.
"""

import ast
import hashlib
import io
import json
import math
import operator
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from suite.errors import UsageError, expected, unknown
from suite.paths import LONGEST_NAME, read_yaml

EXAMPLES: dict[str, Any] = {"str": "", "int": 0, "float": 0.0, "list": [], "dict": {}}
COMPARED = {"at most": operator.le, "at least": operator.ge, "below": operator.lt}
# Settings of networks and optimizers, which those check, and the range of pixels.
OPAQUE = ("backbone", "pixel_range", "penalties")
# Fields of a training, of which zero means none.
ZERO = ("crop_padding", "input_noise", "label_smoothing", "fold", "shift", "warm_up", "first_seed")
AS_TEXT = " (text; values are written as in Python or JSON, in YAML 1e3 as 1.0e+3)"
TEXT = ("data", "network", "maps_of", "optimizer")


class Parameter(NamedTuple):
    """A parameter of a chapter: its default, what it means, and a value of its type."""

    default: Any
    help: str
    like: Any


def read_cell(notebook: Path) -> dict[str, Parameter]:
    """Read the parameters of a notebook: lines `NAME: TYPE = LITERAL  # meaning`.

    Raises:
        UsageError: there is no cell tagged `parameters`, or a line of it is something else.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if not tagged:
        raise UsageError(f"{notebook.name}: expected a cell tagged 'parameters', got none")
    source, where = "".join(tagged[0]["source"]), f"{notebook.name}, cell of parameters, line"
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        got = f"{(error.text or '').strip()!r} ({error.msg})"
        raise expected(f"{where} {error.lineno}", "NAME: TYPE = LITERAL", got) from error
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found = {}
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        try:
            default = ast.literal_eval(node.value or "None")
        except (ValueError, TypeError):
            default = None
        if not isinstance(default, bool | int | float | str | list | dict):
            what = "a literal is needed: a number, text in quotes, True, False, a list or a dict"
            raise UsageError(f"{where} {node.lineno}: {name}: {what}; got {ast.unparse(node)}")
        of = "" if isinstance(node, ast.Assign) else ast.unparse(node.annotation)
        example = EXAMPLES.get(of.removeprefix("list[").removesuffix("]"))
        like = [example] if default == [] and of.startswith("list[") else default
        meaning = comments.get(node.lineno) or comments.get(node.end_lineno or 0, "")
        found[name] = Parameter(default, meaning, like)
    return found


def read_profile(file: Path, but: Collection[str]) -> dict[str, Parameter]:
    """Read the parameters of a profile, all but some: `NAME: VALUE  # meaning`, a line each.

    The meaning of an empty list may begin with its type, such as "list[str]: ".
    """
    values, text, found = read_yaml(file), file.read_text(encoding="utf-8-sig"), {}
    for name in [name for name in values if name not in but]:
        comment = re.search(rf"^{name}:.*?\s# (.*)$", text, re.MULTILINE)
        meaning = comment[1] if comment else ""
        of = re.match(r"list\[(\w+)\]", meaning)
        like = [EXAMPLES[of[1]]] if of and values[name] == [] else values[name]
        found[name] = Parameter(values[name], meaning, like)
    return found


def check(chapter: str, values: Mapping[str, Any], entries: Mapping[str, Parameter]) -> None:
    """Check the names, types and ranges of parameters, and of what they hold.

    Args:
        chapter: whose parameters they are, for messages.
        values: all parameters of a run.
        entries: of `read_cell`.

    Raises:
        UsageError: names the parameter, what was expected and what came.
    """
    for name, value in values.items():
        if name not in entries:
            raise unknown(f"parameter of {chapter}", name, entries)
        if entries[name].default and value == []:
            raise expected(f"parameter {name}", "at least one value", "an empty list")
        for label, key, part in _parts(f"parameter {name}", name, value):
            like = entries[key].like if key in entries and label.endswith(key) else part
            if not _same_type(part, like):
                got = f"{part!r}{AS_TEXT if isinstance(part, str) else ''}"
                raise expected(label, f"{type(like).__name__} like {like!r}", got)
            _check_part(label, key, part, entries[key].help if key in entries else "")
    for name, value in values.items():
        for word, other in re.findall(r"\b(at most|at least|below) (\w+)", entries[name].help):
            if other in values and not COMPARED[word](value, values[other]):
                raise expected(f"parameter {name}", f"{word} {other}, {values[other]}", value)


def check_choices(values: Mapping[str, Any], choices: Mapping[str, Collection[str]]) -> None:
    """Check names in lists, and those that are keys, wherever they are among parameters.

    Args:
        values: all parameters of a run.
        choices: for a parameter, or a key within one, the names that it may hold.

    Raises:
        UsageError: names the parameter and the nearest names.
    """
    for label, key, value in _parts("", "", values):
        for part in value if key in choices and isinstance(value, list | dict) else ():
            if isinstance(part, str) and part not in choices[key]:
                raise unknown(f"name in {label.removeprefix('.')}", part, choices[key])


def _parts(label: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield a value and all that it holds, with the nearest name that says what it is."""
    yield label, name, value
    name = "-" if name.endswith("options") or name in OPAQUE else name
    if isinstance(value, Mapping):
        for key, part in value.items():
            inner = name if name == "-" or "seed" in name else str(key)
            yield from _parts(f"{label}.{key}", inner, part)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _parts(f"{label}[{place}]", name, part)


def _same_type(value: Any, like: Any) -> bool:
    if isinstance(like, list):
        kinds = like[:1] * len(value) if isinstance(value, list) else []
        return isinstance(value, list) and all(map(_same_type, value, kinds))
    return type(value) in (int, float) if isinstance(like, float) else type(value) is type(like)


def _check_part(label: str, name: str, value: Any, meaning: str) -> None:
    """Check a value by the nearest name, and by the comment of the parameter of that name."""
    if name in TEXT and not isinstance(value, str):
        raise expected(label, "text", repr(value))
    if isinstance(value, list) and name not in ("-", "mean", "std"):
        for place, part in enumerate(value):
            if part in value[:place]:
                raise expected(label, "each value once", f"{part!r} again")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    bounds = re.search(r"\b([\d.]+) to ([\d.]+)\b", meaning)
    if not math.isfinite(value):
        raise expected(label, "a finite number", value)
    if bounds and not float(bounds[1]) <= value <= float(bounds[2]):
        raise expected(label, f"a number from {bounds[0]}", value)
    of_seed = "seed" in name and label.endswith("]")
    zero = of_seed or name in ZERO or re.search(r"\b0(:| for)", meaning)
    if name != "-" and (value < 0 or (value == 0 and not zero)):
        raise expected(label, "a number >= 0" if zero else "a positive number", value)


def run_name(profile: str, values: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Return the name of a run: that of its profile, and what differs.

    Args:
        profile: its name.
        values: parameters of the run.
        there: those of the profile.

    >>> run_name("smoke", {"n": 2, "seeds": [0, 1]}, {"n": 2, "seeds": [0]})
    'smoke+seeds=0-1'
    """
    changed = {n: values[n] for n in sorted(values) if n != "profile" and values[n] != there.get(n)}
    name = "+".join([profile, *(f"{n}={_short(v)}" for n, v in changed.items())])
    many = f"{profile}+{len(changed)}_parameters-{_hash(changed)}"
    return name if len(name) <= LONGEST_NAME else many


def _short(value: Any) -> str:
    """Write a value in characters of a name; one that is cut or changed has a hash behind it."""
    numbers = isinstance(value, list) and all(isinstance(part, int | float) for part in value)
    text = "-".join(map(str, value)) if numbers else str(value)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")
    exact = slug == text and len(slug) <= 24 and (numbers or not isinstance(value, list | dict))
    return slug if exact else f"{slug[:16]}-{_hash(value)}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
