"""Checks of the fields of a unit: what a value must be, and the error that says so."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from suite.errors import UsageError


def require(name: str, value: object, expected: str, holds: Callable[[Any], bool]) -> None:
    """Raise a `UsageError` that names a field and what it must be, unless `holds(value)`."""
    if not holds(value):
        kind = type(value).__name__
        raise UsageError(f"{name}: expected {expected}, got {value!r} ({kind})")


def is_name(value: Any) -> bool:
    return isinstance(value, str)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_count(value: Any) -> bool:
    return is_integer(value) and value > 0


def is_rising(value: Any) -> bool:
    listed = isinstance(value, tuple | list) and all(map(is_count, value))
    return listed and sorted(set(value)) == list(value)


def is_seed(value: Any) -> bool:
    return is_integer(value) and 0 <= value < 2**63


def is_positive(value: Any) -> bool:
    return is_finite(value) and value > 0


def is_strength(value: Any) -> bool:
    return is_finite(value) and value >= 0


def is_range(value: Any) -> bool:
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_finite, value))
    return pair and value[0] < value[1]


def is_settings(value: Any) -> bool:
    """Say whether a value is a mapping from names to what JSON can hold."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
