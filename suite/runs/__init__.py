"""Running units: the store of results, and `compute`."""

from suite.runs.compute import compute
from suite.runs.images import per_image
from suite.store import Store

__all__ = ["Store", "compute", "per_image"]
