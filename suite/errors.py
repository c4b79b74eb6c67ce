"""Errors that a user can cause, with suggestions for misspelt names."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any


class UsageError(ValueError):
    """Invalid request; nothing was computed (exit code 2)."""


class DataMissing(UsageError):
    """A data set is not on this machine; the message says how to get it."""


class RunFailed(RuntimeError):
    """A computation failed; what was finished before is stored (exit code 1)."""


class Diverged(RunFailed):
    """The training of a network that is needed diverged."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> UsageError:
    """Return the error for a name that is none of `choices`, with the nearest one.

    >>> str(unknown("metric", "entrpy", ["entropy", "accuracy"]))
    "unknown metric 'entrpy': did you mean 'entropy'? Known: accuracy, entropy."
    """
    known = sorted(choices)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(f"unknown {kind} {str(name)!r}: {hint}Known: {', '.join(known) or 'none'}.")


def check_name(kind: str, name: object, choices: Collection[str]) -> None:
    """Raise the error for a name that is none of `choices`; see `unknown`."""
    if name not in choices:
        raise unknown(kind, name, choices)


def expected(name: str, what: str, got: object) -> UsageError:
    """Return the error for a value that is not what it must be.

    >>> str(expected("k", "a positive integer", -1))
    'k: expected a positive integer, got -1'
    """
    return UsageError(f"{name}: expected {what}, got {got}")


def check_keys(
    kind: str, values: Mapping[str, Any], known: Iterable[str], required: Iterable[str] = ()
) -> None:
    """Check the keys of a mapping, such as a panel.

    Raises:
        UsageError: a key is unknown (the message has the nearest one), or one is missing.
    """
    known = {*known}
    for key in values:
        check_name(f"key of {kind}", key, known)
    if missing := sorted({*required} - values.keys()):
        raise expected(kind, f"a value for {', '.join(missing)}", dict(values))


_signature = functools.lru_cache(inspect.signature)


def check_call(
    kind: str,
    name: str,
    choices: Mapping[str, Callable[..., object]],
    settings: Mapping[str, Any],
    *,
    supplied: Collection[str] = (),
    extra: Collection[str] = (),
) -> None:
    """Check the name of a function and its settings, before any time is spent.

    Args:
        kind: what `choices` are, for the message.
        name: one of `choices`.
        choices: functions by name.
        settings: keyword arguments of the function, and settings in `extra`.
        supplied: arguments of the functions that are not settings.
        extra: settings that are not arguments of the functions.

    Raises:
        UsageError: a name or setting is unknown, or a setting is missing.
    """
    check_name(kind, name, choices)
    parameters = _signature(choices[name]).parameters.values()
    signature = inspect.Signature([p for p in parameters if p.name not in supplied])
    for setting in settings:
        check_name(f"setting of {kind} {name!r}", setting, {*extra, *signature.parameters})
    try:
        signature.bind(**{key: value for key, value in settings.items() if key not in extra})
    except TypeError as error:
        raise UsageError(f"{kind} {name!r}: {error}") from error
