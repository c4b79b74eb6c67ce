"""Running units: the store of results, and `compute`."""

from suite.runs.compute import compute, part_of
from suite.runs.execute import load_subject
from suite.runs.executors import Resources
from suite.store import Archive, Layers, Record, Store, kept_layer
