"""Select the rows of a table, and format their means and intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from suite.errors import UsageError
from suite.evidence.names import name_of
from suite.evidence.statistics import Interval, mean_interval

PROFILES = ("paper", "gpu", "workstation", "desktop", "laptop", "smoke")  # the best first


def select(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows that have a value, or one of a list of values, in each named column.

    Raises:
        UsageError: there is no such column.

    >>> len(select(pd.DataFrame({"metric": ["tv", "accuracy"]}), metric=["tv", "entropy"]))
    1
    """
    for column, value in values.items():
        if column not in rows:
            raise UsageError(f"rows: expected a column {column!r}, got {list(rows)}")
        cells = rows[column]
        rows = rows[cells.isin(value) if isinstance(value, list) else cells == value]
    return rows


def best_rows(rows: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of the best profile in each group of equal values in `by`.

    A run outside `PROFILES` is the reader's own and precedes all of them.
    """
    rank = rows["profile"].map({name: n for n, name in enumerate(PROFILES)}).fillna(-1)
    best = rank.groupby([rows[name] for name in by]).transform("min") if by else rank.min()
    return rows[rank == best]


def mean_text(
    values: ArrayLike, digits: str = ".3f", half: str | None = None, empty: str = "not run"
) -> str:
    """Write the mean of the defined values with the half-width of its 95% interval.

    >>> mean_text([1.0, 2.0, 3.0], ".2f"), mean_text([]), mean_text([0.5])
    ('2.00 ± 2.48', 'not run', '0.500')
    """
    defined = pd.Series(np.asarray(values, float)).dropna()
    if defined.empty:
        return empty
    mean = mean_interval(defined)
    text = f"{mean.estimate:{digits}}"
    return text if mean.n < 2 else f"{text} ± {mean.high - mean.estimate:{half or digits}}"


def interval_text(interval: Interval, digits: str | None = None, sign: str = "") -> str:
    """Write an estimate with the ends of its interval, if it has one.

    By default half of the interval has two significant digits. The sign "+" marks positive numbers.

    >>> interval_text(Interval(-0.00117, -0.00506, 0.00273, n=4))
    '−0.0012 [−0.0051, 0.0027]'
    >>> interval_text(Interval(2.0, 1.0, 3.0, n=4)), interval_text(Interval(2.0, n=1), "+.1f")
    ('2.0 [1.0, 3.0]', '+2.0')
    """
    estimate, low, high, _ = interval
    places = 1 - math.floor(math.log10((high - low) / 2)) if high > low else 9
    form = digits or (f".{max(places, 0)}f" if places < 7 and abs(estimate) < 1e6 else ".3g")
    form = form if form[0] in "+-" else sign + form
    text = f"{estimate:{form}}" + (f" [{low:{form}}, {high:{form}}]" if np.isfinite(low) else "")
    return text.replace("-", "−")


def wide(
    rows: pd.DataFrame,
    index: str,
    columns: str,
    names: Mapping[Any, str],
    *,
    printed: Mapping[str, Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Return means of shares with half of their 95% intervals, in percent, for a tab of a page.

    Args:
        rows: with `value`, `seed`, `index` and `columns`; the rows of a seed are averaged first.
        index, columns: columns whose values name the rows and the columns of the table.
        names: of the rows, in order; other rows are dropped.
        printed: numbers of the paper: further rows, by row and column.
    """

    def write(values: "pd.Series[float]") -> str:
        return mean_text(100 * values, ".1f", empty="") + "%" if values.notna().any() else "–"

    heads = list(dict.fromkeys(rows[columns]))
    table = _pivot(rows, [index], columns, write)
    table = table.reindex([n for n in names if n in table.index], columns=heads).rename(names)
    for name, values in (printed or {}).items():
        texts = (f"{100 * values[head]:.1f}%" if head in values else "–" for head in heads)
        table.loc[f"<i>{name}</i>"] = [f"<i>{text}</i>" for text in texts]
    return table.rename_axis(index="", columns=None).reset_index()


def _pivot(
    rows: pd.DataFrame, index: Sequence[str], columns: str, write: Callable[..., str]
) -> pd.DataFrame:
    """Write the values of each cell of a table; the rows of a seed are averaged first."""
    options: dict[str, Any] = {"sort": False, "dropna": False}
    seeds = rows.groupby([*index, columns, unit_of(rows)], **options)["value"].mean()
    return seeds.groupby(level=[*index, columns], **options).agg(write).unstack(columns).fillna("–")


def unit_of(rows: pd.DataFrame) -> str:
    """Return the column of the unit of a measurement: a seed, or a single image."""
    return "image" if "image" in rows else "seed"


def means(
    rows: pd.DataFrame,
    index: Sequence[str],
    columns: str = "metric",
    names: Mapping[Any, str] | None = None,
    *,
    digits: str = ".3f",
    half: str | None = None,
) -> pd.DataFrame:
    """Return means with half of their 95% intervals, and how many seeds they have, for the record.

    Args:
        rows: with `value`, `seed`, `index` and `columns`; the rows of a seed are averaged first.
        index: columns whose values name the rows.
        columns: column whose values head the columns.
        names: titles of values and columns.
        digits, half: formats of a mean and of half of its interval; by default they are the same.
    """
    if rows.empty:
        return pd.DataFrame({"": ["not run at the profiles that are shown"]})
    table = _pivot(rows, index, columns, lambda values: mean_text(values, digits, half, "–"))
    counts = _pivot(rows, index, columns, lambda values: f"{values.count() or '–'}").to_numpy()
    sizes = [sorted({*row} - {"–"}, key=int) for row in counts]
    table["n"] = [" to ".join(dict.fromkeys(row[:1] + row[-1:])) for row in sizes]
    table = table.reset_index().rename_axis(columns=None)
    table[[*index]] = table[[*index]].map(lambda value: _word(value, names or {}))
    return table.rename(columns=names or {})


def _word(value: Any, names: Mapping[Any, str]) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:g}"
    return names.get(value, name_of(value))
