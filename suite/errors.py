"""The errors that a user can cause, and how to name what was probably meant."""

from collections.abc import Iterable


class UsageError(ValueError):
    """What was asked for cannot be done; nothing was computed (exit code 2)."""


class DataMissing(UsageError):
    """A data set is not on this machine; the message says how to get it."""


class RunFailed(RuntimeError):
    """A computation failed; what was finished before is stored (exit code 1)."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> UsageError:
    """Return the error for a name that is none of `choices`, with the nearest one.

    >>> str(unknown("metric", "entrpy", ["entropy", "accuracy"]))
    "unknown metric 'entrpy': did you mean 'entropy'? Known: accuracy, entropy."
    """
    from reglib import _checks  # imports torch, which most commands do not need

    return UsageError(str(_checks.unknown(kind, name, choices)))
