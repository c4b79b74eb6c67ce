"""Running units: the store of results, and `compute`."""

from reglib.runs.compute import compute
from reglib.runs.images import per_image
from reglib.runs.store import Store

__all__ = ["Store", "compute", "per_image"]
