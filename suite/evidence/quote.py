"""Values that prose takes by name: each knows its interval and verdict, and writes itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from suite.errors import expected
from suite.evidence.names import name_of
from suite.evidence.rules import NAN, NOT_RUN, Sides
from suite.evidence.statistics import Interval, difference, mean_interval
from suite.evidence.tables import best_rows, interval_text, unit_of

# Forms of a value: factor, sign of positive numbers, and the words behind it.
FORMS = {
    "points": (100, "+", " points"),
    "more": (100, "", " points"),
    "%": (100, "", "%"),
    "times": (1, "", " times"),
    "signed": (1, "+", ""),
}


@dataclass(frozen=True)
class Value:
    """An estimate with its 95% interval, and the verdict that rests on it.

    In a format string a value writes itself: `{}` with its interval; `{:points}`, `{:more}` (points
    in a sentence that says the direction), `{:%}` and `{:times}` with a unit, and `{:signed}`; a
    `~` behind these leaves out the interval; any other form is that of the estimate alone. A value
    that was not measured writes "not run" in every form.

    Args:
        estimate, low, high: of the effect or mean.
        n: networks or images.
        word, shown, scale: of the verdict, as it is and as pages show it; empty for a mean.
        published: what the paper prints.
        on: data and network, by their names.
        profile: of the run.

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
    profile: str = ""

    def __format__(self, form: str) -> str:
        if not self:
            return NOT_RUN
        name, bare = form.removesuffix("~"), form.endswith("~")
        if name and name not in FORMS:
            return format(self.estimate, form).replace("-", "−")
        factor, sign, unit = FORMS.get(name, (1, "", ""))
        ends = factor * self.estimate, factor * self.low, factor * self.high
        middle, space, interval = interval_text(Interval(*ends), sign=sign).partition(" [")
        if bare:
            middle = _two_digits(factor * self.estimate, factor * (self.high - self.low) / 2, sign)
        return middle + unit + ("" if bare else space + interval)

    def __bool__(self) -> bool:
        return math.isfinite(self.estimate)


def _two_digits(estimate: float, half: float, sign: str) -> str:
    """Write an estimate to the first digit that its interval leaves.

    >>> _two_digits(1.604, 0.57, "+"), _two_digits(81.37, 0.3, "")
    ('+1.6', '81.4')
    """
    known = half > 0 and math.isfinite(half)
    form = f".{max(0, -math.floor(math.log10(half)))}f" if known else ".3g"
    return f"{estimate:{sign}{form}}".replace("-", "−")


def sentence(text: str, values: Mapping[str, Value], expects: Mapping[str, str]) -> str:
    """Fill values into a sentence that was written for certain verdicts.

    Args:
        text: with the names of values in braces, see `Value`.
        values: by these names.
        expects: for some of them the word that the sentence was written for, or several words,
            separated by " or ".

    Returns:
        The sentence; where a verdict is another one, what was expected and what came; where a
        value is missing, "not run" in its place.

    Raises:
        UsageError: the sentence or `expects` names a value that is not given.

    >>> gain = Value(0.016, 0.0103, 0.0217, n=12, word="smaller than claimed")
    >>> sentence("PGD: {gain:points~}.", {"gain": gain}, {"gain": "smaller than claimed"})
    'PGD: +1.6 points.'
    >>> sentence("PGD: {gain:points~}.", {"gain": gain}, {"gain": "holds"})
    '*A sentence on “gain” was written for “holds”; this run says “smaller than claimed”.*'
    """
    if wrong := [name for name in expects if name not in values]:
        raise expected("expects", f"some of {', '.join(values)}", wrong)
    for name, words in expects.items():
        came = values[name].word if values[name] else NOT_RUN
        if came not in words.split(" or "):
            if came == NOT_RUN:
                return f"*On “{name}”: not run.*"
            return f"*A sentence on “{name}” was written for “{words}”; this run says “{came}”.*"
    try:
        return text.format(**values)
    except KeyError as error:
        raise expected("the sentence's values", f"some of {', '.join(values)}", error) from error


def mean(rows: pd.DataFrame) -> Value:
    """Return the mean of `value` over seeds, whose rows are averaged first, at the best profile.

    Where rows are of single images, these take the place of seeds.
    """
    rows = best_rows(rows.dropna(subset="value"))
    units = rows.groupby(unit_of(rows))["value"].mean()
    return _value_of(rows, mean_interval(units)) if len(units) else Value()


def paired(rows: pd.DataFrame, between: str, first: str, second: str) -> Value:
    """Return how far `first` is ahead of `second`, over pairs of one seed, at the best profile.

    Args:
        rows: see `mean`, with `value`, `seed` and the column `between`, of which both are values.
        between, first, second: the difference is first minus second.

    Returns:
        The mean difference; its word is "higher", "lower" or, where the interval has both signs,
        "unclear".
    """
    rows = best_rows(rows[rows[between].isin([first, second])].dropna(subset="value"))
    if rows[between].nunique() < 2:
        return Value()
    return _sign(rows, mean_interval(Sides(between, first, second).gaps(rows, unit_of(rows))))


def unpaired(rows: pd.DataFrame, between: str, first: str, second: str) -> Value:
    """Return how far the mean of `first` is ahead of that of other networks, as `paired` does."""
    rows = best_rows(rows[rows[between].isin([first, second])].dropna(subset="value"))
    if rows[between].nunique() < 2:
        return Value()
    means = [mean_interval(rows.loc[rows[between] == name, "value"]) for name in (first, second)]
    return _sign(rows, difference(means[0], means[1]))


def _sign(rows: pd.DataFrame, ahead: Interval) -> Value:
    word = "higher" if ahead.low > 0 else "lower" if ahead.high < 0 else "unclear"
    return replace(_value_of(rows, ahead), word=word)


def _value_of(rows: pd.DataFrame, interval: Interval) -> Value:
    on = " and ".join(sorted({name_of(data) for data in rows["data"]}))
    return Value(*interval, on=on, profile=str(rows["profile"].iloc[0]))
