"""Running units: the store of results, and `compute`."""

from suite.runs.compute import compute
from suite.runs.execute import load_subject
from suite.runs.executors import Resources
from suite.store import Record, Store

__all__ = ["Record", "Resources", "Store", "compute", "load_subject"]
