"""Whether a training can be: its names and settings, before any time is spent."""

import inspect
from collections.abc import Mapping
from typing import Any

from suite.errors import UsageError, unknown
from suite.networks import NETWORKS
from suite.training.optimizers import check_optimizer
from suite.training.registry import PENALTIES
from suite.units import Training

# Settings that every penalty has: its coefficient, and T, if it acts in every T-th step only.
COMMON = ("strength", "every")


def check(unit: Training) -> None:
    """Check the names in a unit before any time is spent.

    Raises:
        UsageError: unknown network, optimizer, penalty or setting of a penalty, or a setting that
            is missing.
    """
    names: list[tuple[str, str, Mapping[str, Any]]] = [
        ("network", unit.network, NETWORKS),
        *(("penalty", name, PENALTIES) for name in unit.penalties),
    ]
    for kind, name, known in names:
        if name not in known:
            raise unknown(kind, name, known)
    check_optimizer(unit)
    for name, settings in unit.penalties.items():
        _check_penalty(name, settings)


def _check_penalty(name: str, settings: Mapping[str, Any]) -> None:
    signature = inspect.signature(PENALTIES[name])
    known = {*COMMON, *signature.parameters} - {"step"}
    if extra := settings.keys() - known:
        raise unknown(f"setting of penalty {name!r}", min(extra), known)
    every = settings.get("every", 1)
    if type(every) is not int or every < 1:
        raise UsageError(
            f"every, of penalty {name!r}: expected a positive integer, the number of steps of "
            f"which the penalty acts in one, got {every!r}"
        )
    try:
        signature.bind(None, **own_settings(settings))
    except TypeError as error:
        raise UsageError(f"penalty {name!r}: {error}") from error


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a penalty: its settings in a unit without those that all have."""
    return {name: value for name, value in settings.items() if name not in COMMON}
