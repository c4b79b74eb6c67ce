"""Read parameters from the cell of a notebook and a profile, check them, and name runs.

The comment of a parameter is part of its check. "1 to 5" bounds its numbers; "0: ..." or
"0 for ..." permits zero; "at most NAME", "at least NAME" and "below NAME" compare it with another
parameter.
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

from suite.errors import UsageError, check_name, expected
from suite.paths import LONGEST_NAME, read_yaml

EXAMPLES: dict[str, Any] = {"str": "", "int": 0, "float": 0.0, "list": [], "dict": {}}
COMPARED = {"at most": operator.le, "at least": operator.ge, "below": operator.lt}
# Settings that networks and optimizers check, and the range of pixels.
OPAQUE = ("backbone", "pixel_range", "penalties")
# Fields of a training that may be zero, for none.
ZERO = ("crop_padding", "input_noise", "label_smoothing", "fold", "shift", "warm_up", "first_seed")
AS_TEXT = " (text; values are written as in Python or JSON, in YAML 1e3 as 1.0e+3)"
TEXT = ("data", "network", "maps_of", "optimizer")


class Parameter(NamedTuple):
    """A parameter of a chapter: its default, its meaning, and a value of its type."""

    default: Any
    help: str
    like: Any


def read_cell(notebook: Path) -> dict[str, Parameter]:
    """Read the parameters of a notebook: lines `NAME: TYPE = LITERAL  # meaning`.

    Raises:
        UsageError: there is no cell tagged `parameters`, or it has a line of another form.
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
    parameters = {}
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
        kind = "" if isinstance(node, ast.Assign) else ast.unparse(node.annotation)
        meaning = comments.get(node.lineno) or comments.get(node.end_lineno or 0, "")
        parameters[name] = Parameter(default, meaning, _value_of(kind, default))
    return parameters


def read_profile(file: Path, known: Collection[str]) -> dict[str, Parameter]:
    """Read the parameters of a profile that are not `known`: lines `NAME: VALUE  # meaning`.

    The meaning of an empty list may begin with its type, such as "list[str]: ".
    """
    values, text, parameters = read_yaml(file), file.read_text(encoding="utf-8-sig"), {}
    for name in [name for name in values if name not in known]:
        comment = re.search(rf"^{name}:.*?\s# (.*)$", text, re.MULTILINE)
        meaning = comment[1] if comment else ""
        parameters[name] = Parameter(values[name], meaning, _value_of(meaning, values[name]))
    return parameters


def _value_of(kind: str, default: Any) -> Any:
    """Return the default or, for an empty list of a kind "list[TYPE]", a list of one value."""
    match = re.match(r"list\[(\w+)\]", kind)
    return [EXAMPLES.get(match[1])] if match and default == [] else default


def check(chapter: str, values: Mapping[str, Any], entries: Mapping[str, Parameter]) -> None:
    """Check the names, types and ranges of parameters, and of what they hold.

    Args:
        chapter: the name of the chapter, for messages.
        values: all parameters of a run.
        entries: of `read_cell`.

    Raises:
        UsageError: names the parameter, what was expected and what came.
    """
    for name, value in values.items():
        check_name(f"parameter of {chapter}", name, entries)
        if entries[name].default and value == []:
            raise expected(f"parameter {name}", "at least one value", "an empty list")
        for label, key, item in _iterate(f"parameter {name}", name, value):
            like = entries[key].like if key in entries and label.endswith(key) else item
            if not _same_type(item, like):
                got = f"{item!r}{AS_TEXT if isinstance(item, str) else ''}"
                raise expected(label, f"{type(like).__name__} like {like!r}", got)
            _check_value(label, key, item, entries[key].help if key in entries else "")
    for name, value in values.items():
        for word, other in re.findall(r"\b(at most|at least|below) (\w+)", entries[name].help):
            if other in values and not COMPARED[word](value, values[other]):
                raise expected(f"parameter {name}", f"{word} {other}, {values[other]}", value)


def check_choices(values: Mapping[str, Any], choices: Mapping[str, Collection[str]]) -> None:
    """Check the names in lists and the keys of mappings, at any depth of the parameters.

    Args:
        values: all parameters of a run.
        choices: the permitted names of a parameter, or of a key within one.

    Raises:
        UsageError: names the parameter and the nearest names.
    """
    for label, key, value in _iterate("", "", values):
        for name in value if key in choices and isinstance(value, list | dict) else ():
            if isinstance(name, str):
                check_name(f"name in {label.removeprefix('.')}", name, choices[key])


def _iterate(label: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield a value and all values within it, each with its label and the nearest name."""
    yield label, name, value
    name = "-" if name.endswith("options") or name in OPAQUE else name
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = name if name == "-" or "seed" in name else str(key)
            yield from _iterate(f"{label}.{key}", inner, item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iterate(f"{label}[{index}]", name, item)


def _same_type(value: Any, like: Any) -> bool:
    if isinstance(like, list):
        kinds = like[:1] * len(value) if isinstance(value, list) else []
        return isinstance(value, list) and all(map(_same_type, value, kinds))
    return type(value) in (int, float) if isinstance(like, float) else type(value) is type(like)


def _check_value(label: str, name: str, value: Any, meaning: str) -> None:
    """Check a value by its nearest name, and by the comment of the parameter of this name."""
    if name in TEXT and not isinstance(value, str):
        raise expected(label, "text", repr(value))
    if isinstance(value, list) and name not in ("-", "mean", "std"):
        for index, item in enumerate(value):
            if item in value[:index]:
                raise expected(label, "each value once", f"{item!r} again")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    bounds = re.search(r"\b([\d.]+) to ([\d.]+)\b", meaning)
    if not math.isfinite(value):
        raise expected(label, "a finite number", value)
    if bounds and not float(bounds[1]) <= value <= float(bounds[2]):
        raise expected(label, f"a number from {bounds[0]}", value)
    is_seed = "seed" in name and label.endswith("]")
    zero = is_seed or name in ZERO or re.search(r"\b0(:| for)", meaning)
    if name != "-" and (value < 0 or (value == 0 and not zero)):
        raise expected(label, "a number >= 0" if zero else "a positive number", value)


def run_name(profile: str, values: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the name of a run: the profile and the changed parameters.

    Args:
        profile: the name of the profile.
        values: parameters of the run.
        base: parameters of the profile.

    >>> run_name("smoke", {"n": 2, "seeds": [0, 1]}, {"n": 2, "seeds": [0]})
    'smoke+seeds=0-1'
    """
    changed = {n: values[n] for n in sorted(values) if n != "profile" and values[n] != base.get(n)}
    name = "+".join([profile, *(f"{n}={_shorten(v)}" for n, v in changed.items())])
    short = f"{profile}+{len(changed)}_parameters-{_hash(changed)}"
    return name if len(name) <= LONGEST_NAME else short


def _shorten(value: Any) -> str:
    """Write a value in characters of a name; a cut or changed value ends with a hash."""
    numbers = isinstance(value, list) and all(isinstance(part, int | float) for part in value)
    text = "-".join(map(str, value)) if numbers else str(value)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")
    exact = slug == text and len(slug) <= 24 and (numbers or not isinstance(value, list | dict))
    return slug if exact else f"{slug[:16]}-{_hash(value)}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
