"""Running units: the store of results, and `compute`."""

from reglib.runs.compute import compute
from reglib.runs.store import Store

__all__ = ["Store", "compute"]
