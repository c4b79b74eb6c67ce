"""Each rule can say each of its words, and says them where it should."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence import rules
from suite.evidence.rules import CANNOT, HOLDS, NO_EFFECT, OPEN, OPPOSITE, Finding, decide
from suite.evidence.statistics import Interval

ALPHAS = np.logspace(2, 10, 33)


def frame_of(values, x=ALPHAS, seed=0, **columns):
    return pd.DataFrame({"alpha": x, "value": values, "seed": seed, **columns})


def noise(n=33, scale=1.0, seed=0):
    return np.random.default_rng(seed).normal(scale=scale, size=n)


def found(low, high, **changes):
    return Finding("", Interval((low + high) / 2, low, high, 6), **changes)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.05, 0.15, HOLDS),
        (0.001, 0.01, NO_EFFECT),  # it is there, and too small to matter
        (-0.01, 0.01, NO_EFFECT),
        (-0.1, -0.05, OPPOSITE),
        (-0.1, 0.1, OPEN),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_words_of_an_effect(low, high, word, sign):
    ends = sorted([sign * low, sign * high])
    assert decide(found(*ends, sign=sign, least=0.02)).word == word


@pytest.mark.parametrize(
    ("low", "high", "word", "detail"),
    [
        (0.10, 0.20, HOLDS, "as large as published"),
        (0.05, 0.10, HOLDS, "smaller than published"),
        (0.20, 0.30, HOLDS, "larger than published"),
        (-0.05, 0.07, NO_EFFECT, "less than half of the published size"),
        (-0.05, 0.09, OPEN, ""),
    ],
)
def test_words_beside_a_published_effect(low, high, word, detail):
    assert decide(found(low, high, least=0.02), published=0.16)[:2] == (word, detail)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(-0.005, 0.02, HOLDS), (-0.009, -0.008, HOLDS), (-0.05, -0.02, OPPOSITE), (-0.05, 0.01, OPEN)],
)
def test_words_of_a_loss_that_counts_as_none(low, high, word):
    assert decide(found(low, high, bound=-0.01)).word == word


@pytest.mark.parametrize(
    ("low", "high", "word"), [(-0.2, 0.3, HOLDS), (0.6, 0.9, OPPOSITE), (0.2, 0.8, OPEN)]
)
def test_words_of_staying_within(low, high, word):
    assert decide(found(low, high, sign=0, bound=0.5)).word == word


@pytest.mark.parametrize(
    ("low", "high", "null", "word"),
    [
        (0.6, 0.7, 0.5, HOLDS),
        (0.1, 0.2, 0.5, OPPOSITE),
        (0.1, 0.2, 0.0, NO_EFFECT),
        (0.4, 0.6, 0.0, OPEN),
    ],
)
def test_words_of_a_level(low, high, null, word):
    finding = found(low, high, bound=0.5, null=null, least=0.5 - null)
    assert decide(finding).word == word


@pytest.mark.parametrize(
    ("low", "high", "word", "detail"),
    [
        (0.06, 0.1, HOLDS, ""),
        (0.18, 0.22, OPEN, "between the two limits"),
        (0.1, 0.2, OPEN, ""),
        (0.35, 0.4, OPPOSITE, ""),
    ],
)
def test_nothing_is_decided_between_two_limits(low, high, word, detail):
    rows = frame_of([low, (low + high) / 2, high], [1] * 3, range(3))
    finding = rules.level(rows, unit="network", size=0.14, expected="below", opposite=0.316)
    assert finding.undecided
    finding = dataclasses.replace(finding, interval=Interval((low + high) / 2, low, high, 3))
    assert decide(finding)[:2] == (word, detail)


def test_ratios_are_compared_by_their_logarithms():
    ratio = {"sign": -1, "bound": 1.0, "null": 1.0, "least": np.log(1.1), "scale": "ratio"}
    assert decide(found(0.02, 0.05, **ratio), published=0.05).word == HOLDS
    assert decide(found(0.04, 0.06, **ratio), published=0.05).detail == "as large as published"
    assert decide(found(0.95, 1.05, **ratio)).word == NO_EFFECT
    assert decide(found(0.8, 1.1, **ratio), published=0.25).word == NO_EFFECT
    assert decide(found(0.8, 1.1, **ratio)).word == OPEN


def test_what_is_open_says_how_many_would_settle_it():
    rng = np.random.default_rng(0)
    settled = 0
    for _ in range(300):
        pilot = rng.normal(0.3, 1.0, 30)
        finding = Finding("", rules.mean_interval(pilot), least=0.0)
        verdict = decide(finding)
        if verdict.word == OPEN and abs(finding.interval.estimate - 0.3) < 0.02:
            more = rng.normal(0.3, 1.0, int(verdict.needed))
            settled += decide(Finding("", rules.mean_interval(more))).word == HOLDS
            settled += 1000
    tried, held = divmod(settled, 1000)
    assert tried > 5
    assert 0.5 < held / tried <= 1


@pytest.mark.parametrize(
    ("values", "expected", "word"),
    [
        (np.arange(33) + noise(), "rise", HOLDS),
        (np.arange(33) + noise(), "fall", OPPOSITE),
        (noise(9), "rise", OPEN),
    ],
)
def test_trend(values, expected, word):
    rows = frame_of(values, ALPHAS[: len(values)])
    finding = rules.trend(rows, unit="network", size=0.3, x="alpha", expected=expected)
    assert decide(finding).word == word


def test_trend_can_say_that_there_is_none():
    rows = frame_of(noise(400, seed=1), np.linspace(1, 2, 400), seed=range(400))
    finding = rules.trend(rows, unit="network", size=0.3, x="alpha", expected="rise")
    assert decide(finding).word == NO_EFFECT
    assert finding.interval.n == 400


def test_trend_of_seeds_is_one_correlation_a_seed():
    rows = pd.concat([frame_of(np.arange(33) + 100 * s, seed=s) for s in (0, 3, 1)])
    one = rules.trend(rows, unit="network", size=0.3, x="alpha", expected="rise")
    assert one.interval.estimate == 1
    assert one.p < 0.001


def test_trend_over_kinds_counts_kinds():
    rows = pd.concat([frame_of(np.arange(7) + noise(7, 0.1, s), range(7), s) for s in range(6)])
    rows = rows.assign(model=rows["alpha"].map("kind {}".format))
    finding = rules.trend(rows, unit="network", size=0.3, x="alpha", expected="rise", over="model")
    assert finding.interval.n == 7


def test_no_trend():
    many = frame_of(noise(200, seed=1), np.linspace(1, 2, 200), seed=range(200))
    assert decide(rules.no_trend(many, unit="network", size=0.5, x="alpha")).word == HOLDS
    rising = frame_of(np.arange(33.0))
    assert decide(rules.no_trend(rising, unit="network", size=0.5, x="alpha")).word == OPPOSITE
    few = frame_of(noise(7), ALPHAS[:7])
    assert decide(rules.no_trend(few, unit="network", size=0.5, x="alpha")).word == OPEN


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slope", [0.0, 0.02, 0.05, 1.0])
def test_the_p_value_of_no_trend_is_that_of_the_margin(seed, slope):
    """So that Holm's adjustment weighs what the verdict rests on."""
    values = noise(60, seed=seed) + slope * np.arange(60)
    rows = frame_of(values, np.linspace(1, 2, 60), seed=range(60))
    finding = rules.no_trend(rows, unit="network", size=0.5, x="alpha")
    decided = decide(finding).word in (HOLDS, OPPOSITE)
    assert decided == (finding.p < 0.05)


def test_same_trend_compares_the_two_values_of_a_column():
    def word(a, b):
        both = [frame_of(a, saliency="deeplift"), frame_of(b, saliency="gradient")]
        settings = {"unit": "network", "size": 0.5, "x": "alpha", "between": "saliency"}
        return decide(rules.same_trend(pd.concat(both), **settings)).word

    rising = np.arange(33.0)
    assert word(rising, rising**2) == HOLDS
    assert word(rising, -rising) == OPPOSITE
    assert word(noise()[:33], noise(seed=1)) == OPEN
    with pytest.raises(UsageError, match="two values of 'saliency'"):
        rules.same_trend(
            frame_of(rising, saliency="deeplift"),
            unit="network",
            size=0.5,
            x="alpha",
            between="saliency",
        )


def test_trends_are_compared_with_those_on_other_data():
    rising, falling = frame_of(np.arange(33.0)), frame_of(-np.arange(33.0))
    settings = {"unit": "network", "size": 0.5, "x": "alpha", "named": "MNIST"}
    assert decide(rules.similar_trend(rising, reference=rising, **settings)).word == HOLDS
    assert decide(rules.similar_trend(falling, reference=rising, **settings)).word == OPPOSITE
    lower = settings | {"expected": "lower"}
    assert decide(rules.stronger_trend(falling, reference=rising, **lower)).word == HOLDS
    assert decide(rules.stronger_trend(rising, reference=falling, **lower)).word == OPPOSITE
    assert decide(rules.stronger_trend(rising, reference=rising, **lower)).word == NO_EFFECT
    some = frame_of(noise(9), ALPHAS[:9])
    assert decide(rules.stronger_trend(some, reference=some, **lower)).word == OPEN


def accuracy(seeds, width=0.0):
    """Fall from 0.9 to 0.1 about 1e8, the later the larger the seed."""
    places = np.log10(ALPHAS)
    return pd.concat(
        [
            frame_of(np.interp(places, [7 + s / 4, 7.5 + s / 4 + width], [0.9, 0.1]), seed=s)
            for s in range(seeds)
        ]
    )


PLACES = {"between": "place", "first": "past", "second": "before"}


@pytest.mark.parametrize(
    ("gap", "size", "word"),
    [(-1.0, 0.2, HOLDS), (1.0, 0.2, OPPOSITE), (0.0, 3.0, NO_EFFECT), (-0.5, 0.2, OPEN)],
)
def test_units_apart_that_are_no_pairs(gap, size, word):
    n = 4 if word == OPEN else 30
    kinds = np.repeat(["before", "past"], n)
    values = noise(2 * n, 0.5) + gap * (kinds == "past")
    rows = pd.DataFrame({"seed": range(2 * n), "place": kinds, "value": values})
    finding = rules.apart(rows, unit="network", size=size, expected="lower", **PLACES)
    assert decide(finding).word == word
    assert finding.interval.low < gap < finding.interval.high
    with pytest.raises(UsageError, match="apart: expected place"):
        rules.apart(rows, unit="network", size=1, expected="lower", **(PLACES | {"first": "?"}))


@pytest.mark.parametrize(
    ("factor", "scale", "word"), [(4, 0.2, HOLDS), (1 / 4, 0.2, HOLDS), (1, 0.1, NO_EFFECT)]
)
def test_a_change_that_is_unequal_in_either_direction(factor, scale, word):
    kinds = np.repeat(["before", "past"], 20)

    def rows(change, seed):
        values = np.exp(noise(40, scale, seed)) * np.where(kinds == "past", change, 1)
        return pd.DataFrame({"seed": range(40), "place": kinds, "value": values})

    finding = rules.unequal_change(
        rows(3 * factor, 0), reference=rows(3, 1), unit="network", size=1.5, named="B", **PLACES
    )
    assert decide(finding).word == word
    assert finding.interval.low < factor < finding.interval.high
    few = rows(12, 0).iloc[[0, 1, 20, 21]]
    loose = rules.unequal_change(
        few, reference=few.assign(value=few["value"] ** 1.01), unit="network", size=1.01,
        named="B", **PLACES,
    )  # fmt: skip
    assert decide(loose).word == OPEN


def test_a_cut_off_of_networks_with_seeds_of_their_own_is_one_curve():
    settings = {"unit": "network", "size": 2.5, "x": "alpha", "plateau_below": 1e5}
    together = rules.cut_off(accuracy(1), **settings)
    alone = rules.cut_off(accuracy(1).assign(seed=range(33)), **settings)
    assert alone == together


def test_cut_off_is_interpolated_and_as_wide_as_the_grid_leaves_open():
    settings = {"unit": "network", "size": 2.5, "x": "alpha", "plateau_below": 1e5}
    one = rules.cut_off(accuracy(1), **settings)
    true = 0.5 * 0.45 / (0.8 / 0.9)
    assert one.interval.estimate == pytest.approx(true, abs=0.05)
    assert one.interval.low <= true <= one.interval.high <= one.interval.low + 0.5 + 1e-9
    assert decide(one).word == HOLDS
    assert rules.cut_off(accuracy(3), **settings).interval.n == 3
    assert decide(rules.cut_off(accuracy(1, 3), **(settings | {"size": 1.0}))).word == OPPOSITE
    assert decide(rules.cut_off(frame_of(np.full(33, 0.9)), **settings)).word == CANNOT


def test_level_counts_units_and_not_rows():
    rows = pd.concat([frame_of([0.6 + 0.01 * s] * 5, range(5), seed=s) for s in range(6)])
    finding = rules.level(rows, unit="network", size=0.5, expected="above")
    assert finding.interval.n == 6
    assert decide(finding).word == HOLDS
    assert decide(rules.level(rows, unit="network", size=0.5, expected="below")).word == OPPOSITE
    part = rules.level(rows, unit="network", size=0.5, expected="above", x="alpha", at_most=2)
    assert part.interval.n == 6


def test_level_where_all_are_zero_is_as_wide_as_the_images_allow():
    rows = pd.concat([frame_of([0.0], [1], seed=s, n=600) for s in range(6)])
    interval = rules.level(rows, unit="network", size=0.5, expected="above", no_effect=0.0).interval
    assert interval.low == 0
    assert interval.high == pytest.approx(1 - 0.025 ** (1 / 600))


def both(shift, n=6, **columns):
    """Return two methods, one ahead of the other by about `shift`, for each seed and radius."""
    level, small = noise(n, 5, 2), noise(n, 0.01, 3)
    parts = []
    for radius in (1, 2, 3):
        for method, ahead in (("density", shift + small), ("standard", 0.0)):
            rows = frame_of(np.exp(level / 10 + ahead), [radius] * n, range(n), **columns)
            parts.append(rows.assign(method=method))
    return pd.concat(parts)


PAIR = {"unit": "network", "between": "method", "first": "density", "second": "standard"}


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_paired_counts_one_value_a_network(shift):
    word = {True: HOLDS, False: OPPOSITE}
    for expected, sign in (("higher", 1), ("lower", -1)):
        settings = PAIR | {"size": 0.01, "expected": expected, "match": ["alpha"]}
        finding = rules.paired(both(shift), **settings)
        assert finding.interval.n == 6
        assert decide(finding).word == word[shift * sign > 0]


def test_paired_by_ratio_is_a_geometric_mean():
    settings = PAIR | {"size": 1.1, "expected": "lower", "match": ["alpha"], "ratio": True}
    finding = rules.paired(both(-1.0), **settings)
    assert finding.interval.estimate == pytest.approx(np.exp(-1 + noise(6, 0.01, 3).mean()))
    assert decide(finding, 0.37)[:2] == (HOLDS, "as large as published")
    assert decide(rules.paired(both(0.0), **settings)).word == NO_EFFECT


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize("method", ["density", "standard"])
def test_a_pair_with_a_value_that_is_not_positive_has_no_ratio(method, value):
    settings = PAIR | {"size": 1.1, "expected": "lower", "match": ["alpha"], "ratio": True}
    rows = both(-1.0)
    # One network at all radii, and another one at one radius only.
    without = (rows["seed"] == 0) | ((rows["seed"] == 1) & (rows["alpha"] == 2))
    rest = rules.paired(rows[~without], **settings)
    rows["value"] = rows["value"].mask(without & (rows["method"] == method), value)
    finding = rules.paired(rows, **settings)
    assert finding.interval.n == 5
    assert finding.interval == rest.interval
    differences = rules.paired(rows, **PAIR, size=0.01, expected="lower")
    assert differences.interval.n == 6


def test_paired_takes_units_that_have_both_sides():
    rows = both(0.5)
    rows = rows[(rows["method"] == "standard") | (rows["seed"] < 4)]
    settings = PAIR | {"size": 0.01, "expected": "higher"}
    assert rules.paired(rows, **settings).interval.n == 4
    with pytest.raises(UsageError, match=r"expected method \['density'\], got \['standard'\]"):
        rules.paired(rows[rows["method"] == "standard"], **settings)


def test_not_worse():
    settings = PAIR | {"size": 0.05}
    assert decide(rules.not_worse(both(0.0), **settings)).word == HOLDS
    assert decide(rules.not_worse(both(-0.5), **settings)).word == OPPOSITE
    lower = settings | {"better": "lower"}
    assert decide(rules.not_worse(both(-0.5), **lower)).word == HOLDS
    assert decide(rules.not_worse(both(0.5), **lower)).word == OPPOSITE
