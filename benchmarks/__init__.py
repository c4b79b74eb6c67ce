"""Timings of this library, beside the goals that it has: `python -m benchmarks`."""
