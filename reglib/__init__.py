"""Regularizers and measurements of what image classifiers look at.

Import the part that you need: ``reglib.regularizers``, ``reglib.saliency``, ``reglib.top_gap``.
Importing does nothing else: no device is chosen, nothing is downloaded.
"""

__version__ = "0.1.0"
