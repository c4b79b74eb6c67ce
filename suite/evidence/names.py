"""Names of data sets and networks in figures and tables."""

from typing import Any

from suite import data, networks

# The columns that identify a panel of a table.
PANEL = ["profile", "data", "network"]


def name_of(key: object) -> str:
    """Return the name of a data set or network in figures.

    >>> name_of("cifar100-cropped")
    'CIFAR-100, RC+'
    """
    name = str(key)
    if name.endswith("-cropped"):
        return f"{name_of(name.removesuffix('-cropped'))}, RC+"
    return networks.title(data.title(name))


def readable(value: Any) -> str:
    """Write a value of a provenance without brackets.

    >>> readable({"first": "a", "last": "b"}), readable([1, 2]), readable(1_200_000.5)
    ('first a, last b', '1, 2', '1,200,000')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
