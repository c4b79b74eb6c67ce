"""Data sets by name. Nothing is downloaded and nothing is replaced."""

from suite.data.folds import data_of
from suite.data.grouped import null_block_masks
from suite.data.loading import ImageData, image_shape, load_data, to_float
from suite.data.natural_sources import CORRUPTIONS, FAMILIES
from suite.data.photographs import class_names
from suite.data.readers import Source, Split
from suite.data.sources import SOURCES, source, title

__all__ = [
    "CORRUPTIONS",
    "FAMILIES",
    "SOURCES",
    "ImageData",
    "Source",
    "Split",
    "class_names",
    "data_of",
    "image_shape",
    "load_data",
    "null_block_masks",
    "source",
    "title",
    "to_float",
]
