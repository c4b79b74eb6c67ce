"""Timings of this library, next to its goals: `python -m benchmarks`."""
