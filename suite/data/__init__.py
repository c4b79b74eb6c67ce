"""Data sets by name. Nothing is downloaded and nothing is replaced."""

from suite.data.grouped import null_block_masks
from suite.data.image_folders import class_names, wordnet_ids
from suite.data.loading import ImageData, image_shape, load_data, to_float
from suite.data.sources import SOURCES, Source, source, title
from suite.data.splits import Split
