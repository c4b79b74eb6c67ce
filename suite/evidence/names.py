"""What data sets and networks are called in figures and tables."""

from typing import Any

from suite import data, networks

# The columns of a table that tell its panels apart.
PANEL = ["profile", "data", "network"]


def name_of(key: object) -> str:
    """Return the name of a data set or network as figures show it.

    >>> name_of("cifar100-cropped")
    'CIFAR-100, RC+'
    """
    name = str(key)
    if name.endswith("-cropped"):
        return f"{name_of(name.removesuffix('-cropped'))}, RC+"
    return networks.title(data.title(name))


def panel_name(panel: Any) -> str:
    """Name a panel, a tuple of the values of `PANEL`, in a sentence.

    >>> panel_name(("laptop", "mnist5k", "lenet5"))
    'MNIST (5,000) with LeNet-5 (laptop)'
    """
    profile, data_set, network = panel
    return f"{name_of(data_set)} with {name_of(network)} ({profile})"
