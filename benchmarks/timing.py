"""Timing of functions in turns, and the rows of the table of results."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Row:
    """A number that was measured, with its quartiles where it is a median, and its goal.

    `at_least` and `at_most` are the goal; both are None where the project has set no goal.
    """

    benchmark: str
    case: str
    value: float
    unit: str
    _: KW_ONLY
    quartiles: tuple[float, float] | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        """The goal in words; empty where there is none."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    def as_json(self) -> dict[str, Any]:
        """Return the row for the file of results, with numbers to four digits."""
        spread = self.quartiles and [_round(value) for value in self.quartiles]
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            "value": _round(self.value),
            "unit": self.unit,
            "quartiles": spread,
            "goal": self.goal or None,
            "met": self.met,
        }


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def median_row(
    benchmark: str, case: str, values: Sequence[float], unit: str, **goal: float | None
) -> Row:
    """Make a row of the median and the quartiles of several measurements."""
    low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
    return Row(benchmark, case, middle, unit, quartiles=(low, high), **goal)


def time_in_turns(
    functions: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Time functions in turns, so that whatever slows the machine slows all of them.

    Args:
        functions: what to time, by name.
        rounds: how often each is timed.
        warm_up: untimed rounds before them.

    Returns:
        For each name the seconds of each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(warm_up + rounds):
        for name, function in functions.items():
            duration = seconds_of(function)
            if index >= warm_up:
                seconds[name].append(duration)
    return seconds


def seconds_of(function: Callable[[], object]) -> float:
    """Time one call, until the device has finished."""
    _synchronize()
    start = time.perf_counter()
    function()
    _synchronize()
    return time.perf_counter() - start


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Divide the seconds of each round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
