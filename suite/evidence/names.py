"""What data sets and networks are called in figures and tables."""

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


# The columns of a table that tell its panels apart.
PANEL = ["profile", "data", "network"]
