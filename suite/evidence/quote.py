"""Values for prose, which know their interval and verdict, and format themselves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from suite.errors import expected
from suite.evidence.names import name_of
from suite.evidence.rules import NAN, NOT_RUN, Sides
from suite.evidence.statistics import Interval, difference, mean_interval
from suite.evidence.tables import best_rows, interval_text, unit_of

# Forms of a value: factor, sign of positive numbers, and unit.
FORMS = {
    "points": (100, "+", " points"),
    "more": (100, "", " points"),
    "%": (100, "", "%"),
    "times": (1, "", " times"),
    "signed": (1, "+", ""),
}


@dataclass(frozen=True)
class Value:
    """An estimate with its 95% interval, and its verdict.

    In a format string, `{}` writes the estimate with its interval. `{:points}`, `{:more}` (points
    in a sentence that says the direction), `{:%}` and `{:times}` add a unit, `{:signed}` a sign. A
    `~` after these omits the interval. Any other form formats the estimate alone. A value that was
    not measured writes "not run" in every form.

    Args:
        estimate, low, high: the effect or mean, and its interval.
        n: the number of networks or images.
        word, shown, scale: the verdict, its text on pages, and its scale; empty for a mean.
        published: the published effect.
        on: the names of the data.

    >>> gain = Value(0.016, 0.0103, 0.0217, n=12)
    >>> f"{gain:points}; {gain:points~}; {gain:.3f}; {gain}"
    '+1.60 points [+1.03, +2.17]; +1.6 points; 0.016; 0.0160 [0.0103, 0.0217]'
    >>> f"{Value():%}"
    'not run'
    """

    estimate: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    word: str = ""
    shown: str = ""
    scale: str = ""
    published: str = ""
    on: str = ""

    def __format__(self, form: str) -> str:
        if not self:
            return NOT_RUN
        name, alone = form.removesuffix("~"), form.endswith("~")
        if name and name not in FORMS:
            return format(self.estimate, form).replace("-", "−")
        factor, sign, unit = FORMS.get(name, (1, "", ""))
        ends = factor * self.estimate, factor * self.low, factor * self.high
        middle, space, interval = interval_text(Interval(*ends), sign=sign).partition(" [")
        if alone:
            middle = _two_digits(factor * self.estimate, factor * (self.high - self.low) / 2, sign)
        return middle + unit + ("" if alone else space + interval)

    def __bool__(self) -> bool:
        return math.isfinite(self.estimate)

    @property
    def interval(self) -> Interval:
        """The estimate with its interval, and `n`."""
        return Interval(self.estimate, self.low, self.high, self.n)


def _two_digits(estimate: float, half: float, sign: str) -> str:
    """Write an estimate to the first digit of half its interval.

    >>> _two_digits(1.604, 0.57, "+"), _two_digits(81.37, 0.3, "")
    ('+1.6', '81.4')
    """
    known = half > 0 and math.isfinite(half)
    form = f".{max(0, -math.floor(math.log10(half)))}f" if known else ".3g"
    return f"{estimate:{sign}{form}}".replace("-", "−")


def sentence(text: str, values: Mapping[str, Value], expects: Mapping[str, str]) -> str:
    """Fill values into a sentence that was written for certain verdicts.

    Args:
        text: a format string with the names of values, see `Value`.
        values: the values by name.
        expects: for some names, the verdict of the sentence, or several joined by " or ".

    Returns:
        The sentence; for another verdict, the expected and the actual one; "not run" for a
        missing value.

    Raises:
        UsageError: the sentence or `expects` names an unknown value.

    >>> gain = Value(0.016, 0.0103, 0.0217, n=12, word="smaller than claimed")
    >>> sentence("PGD: {gain:points~}.", {"gain": gain}, {"gain": "smaller than claimed"})
    'PGD: +1.6 points.'
    >>> sentence("PGD: {gain:points~}.", {"gain": gain}, {"gain": "holds"})
    '*A sentence on “gain” was written for “holds”; this run says “smaller than claimed”.*'
    """
    if wrong := [name for name in expects if name not in values]:
        raise expected("expects", f"some of {', '.join(values)}", wrong)
    for name, words in expects.items():
        word = values[name].word if values[name] else NOT_RUN
        if word not in words.split(" or "):
            if word == NOT_RUN:
                return f"*On “{name}”: not run.*"
            return f"*A sentence on “{name}” was written for “{words}”; this run says “{word}”.*"
    try:
        return text.format(**values)
    except KeyError as error:
        raise expected("the sentence's values", f"some of {', '.join(values)}", error) from error


def mean(rows: pd.DataFrame) -> Value:
    """Return the mean of `value` over seeds or, for rows of single images, over images.

    Rows of one seed or image are averaged first. The best profile is used.
    """
    rows = best_rows(rows.dropna(subset="value"))
    units = rows.groupby(unit_of(rows))["value"].mean()
    return Value(*mean_interval(units), on=_names(rows)) if len(units) else Value()


def paired(
    rows: pd.DataFrame, between: str, first: str, second: str, *, within: bool = True
) -> Value:
    """Return the mean difference of `first` and `second` over pairs of one seed.

    Args:
        rows: see `mean`.
        between: the column of both values.
        first, second: the difference is first minus second.
        within: whether to compare pairs of one seed; else two sets of networks, by their means.

    Returns:
        The difference, with the word of `judge_gap`.
    """
    rows = best_rows(rows[rows[between].isin([first, second])].dropna(subset="value"))
    if rows[between].nunique() < 2:
        return Value()
    if within:
        gap = mean_interval(Sides(between, first, second).gaps(rows, unit_of(rows)))
    else:
        one, other = (rows.loc[rows[between] == name, "value"] for name in (first, second))
        gap = difference(mean_interval(one), mean_interval(other))
    return judge_gap(gap, _names(rows))


def judge_gap(gap: Interval, on: str = "") -> Value:
    """Return a difference as a value, with a word.

    The word is "higher", "lower" or, where the interval is unknown or has zero, "unclear".

    Args:
        gap: the difference.
        on: the names of the data.
    """
    word = "higher" if gap.low > 0 else "lower" if gap.high < 0 else "unclear"
    return Value(*gap, word=word, on=on)


def _names(rows: pd.DataFrame) -> str:
    return " and ".join(sorted({name_of(data) for data in rows["data"]}))
