import dataclasses

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence import rules
from suite.evidence.rules import CONTRADICTED, HOLDS, INCONCLUSIVE, NO_EFFECT, SMALLER, decide
from suite.evidence.statistics import Interval

ALPHAS = np.logspace(2, 10, 33)
NONE = {"unit": "network", "size": 0.5, "x": "alpha"}


def frame_of(values, x=ALPHAS, seed=0, **columns):
    return pd.DataFrame({"alpha": x, "value": values, "seed": seed, **columns})


def noise(n=33, scale=1.0, seed=0):
    return np.random.default_rng(seed).normal(scale=scale, size=n)


def judge(low, high, published=rules.NAN, **settings):
    interval = Interval((low + high) / 2, low, high, 6)
    return decide(rules.Finding("", interval, **settings), published)


def simulate(true, n, repeats, seed):
    rng = np.random.default_rng(seed)
    samples = [true + rng.normal(scale=0.03, size=n) for _ in range(repeats)]
    findings = [rules.Finding("", rules.mean_interval(s), least=0.02) for s in samples]
    return [decide(finding).word for finding in findings]


class TestWords:
    """The table of words, with the smallest effect 0.02."""

    @pytest.mark.parametrize(
        ("low", "high", "word"),
        [
            (0.05, 0.15, HOLDS),
            (0.001, 0.02, HOLDS),  # reaches the smallest effect
            (0.001, 0.019, SMALLER),
            (-0.019, 0.019, NO_EFFECT),
            (-0.01, -0.001, NO_EFFECT),  # negative, and smaller than the smallest effect
            (-0.02, -0.001, CONTRADICTED),
            (-0.1, -0.05, CONTRADICTED),
            (-0.1, 0.01, INCONCLUSIVE),
            (-0.02, 0.01, INCONCLUSIVE),  # reaches the smallest effect on the other side
            (-0.01, 0.02, INCONCLUSIVE),
            (-0.1, 0.1, INCONCLUSIVE),
        ],
    )
    @pytest.mark.parametrize("sign", [1, -1])
    def test_table_in_both_directions(self, low, high, word, sign):
        ends = sorted([sign * low, sign * high])
        assert judge(*ends, sign=sign, least=0.02).word == word

    @pytest.mark.parametrize(
        ("low", "high", "word", "detail"),
        [
            (0.10, 0.20, HOLDS, "as large as published"),
            (0.05, 0.10, HOLDS, "smaller than published"),
            (0.20, 0.30, HOLDS, "larger than published"),
            (0.01, 0.07, SMALLER, "less than half of the published effect"),
            (0.001, 0.01, SMALLER, ""),
            (-0.05, 0.07, INCONCLUSIVE, ""),
            (-0.01, 0.01, NO_EFFECT, ""),
        ],
    )
    def test_size_beside_published_effect(self, low, high, word, detail):
        assert judge(low, high, least=0.02, published=0.16)[:2] == (word, detail)

    def test_published_effect_of_other_sign(self):
        assert judge(0.03, 0.05, least=0.02, published=-0.16).word == HOLDS

    @pytest.mark.parametrize("true", [0.0, 0.01, 0.03, -0.03])
    def test_false_words_are_rare(self, true):
        """A word that contradicts the true effect comes in at most about one of 20 cases."""
        words = simulate(true, n=12, repeats=400, seed=1)
        wrong = {HOLDS, SMALLER} if true <= 0 else set()
        wrong |= {CONTRADICTED} if true >= 0 else set()
        wrong |= {NO_EFFECT} if abs(true) >= 0.02 else set()
        assert np.mean([word in wrong for word in words]) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)

    @pytest.mark.parametrize(
        ("true", "word"), [(0.0, NO_EFFECT), (0.01, SMALLER), (0.05, HOLDS), (-0.05, CONTRADICTED)]
    )
    def test_right_words_with_many_networks(self, true, word):
        assert simulate(true, n=300, repeats=50, seed=2).count(word) >= 45


LOSS, WITHIN = {"bound": -0.01}, {"sign": 0, "bound": 0.5}
ABOVE_HALF = {"bound": 0.5, "null": 0.5, "least": 0.0}
LEVEL = {"bound": 0.5, "null": 0.0, "least": 0.5}


class TestMargins:
    @pytest.mark.parametrize(
        ("settings", "low", "high", "word"),
        [
            (LOSS, -0.005, 0.02, HOLDS),  # a loss that counts as none
            (LOSS, -0.009, -0.008, HOLDS),
            (LOSS, -0.05, -0.02, CONTRADICTED),
            (LOSS, -0.05, 0.01, INCONCLUSIVE),
            (WITHIN, -0.2, 0.3, HOLDS),
            (WITHIN, 0.6, 0.9, CONTRADICTED),
            (WITHIN, 0.2, 0.8, INCONCLUSIVE),
            (ABOVE_HALF, 0.6, 0.7, HOLDS),
            (ABOVE_HALF, 0.1, 0.2, CONTRADICTED),
            (LEVEL, 0.1, 0.2, SMALLER),
            (LEVEL, -0.2, 0.2, NO_EFFECT),
            (LEVEL, -0.6, -0.1, CONTRADICTED),
            (LEVEL, 0.4, 0.6, INCONCLUSIVE),
        ],
    )
    def test_words_of_margins_and_levels(self, settings, low, high, word):
        assert judge(low, high, **settings).word == word

    @pytest.mark.parametrize(
        ("low", "high", "word", "detail"),
        [
            (0.06, 0.1, HOLDS, ""),
            (0.18, 0.22, INCONCLUSIVE, "between the two limits"),
            (0.1, 0.2, INCONCLUSIVE, ""),
            (0.35, 0.4, CONTRADICTED, ""),
        ],
    )
    def test_two_limits(self, low, high, word, detail):
        rows = frame_of([low, (low + high) / 2, high], [1] * 3, range(3))
        finding = rules.level(rows, unit="network", size=0.14, expected="below", opposite=0.316)
        assert finding.least == 0
        finding = dataclasses.replace(finding, interval=Interval((low + high) / 2, low, high, 3))
        assert decide(finding)[:2] == (word, detail)

    def test_ratios(self):
        ratio = {"sign": -1, "bound": 1.0, "null": 1.0, "least": np.log(1.1), "scale": "ratio"}
        assert judge(0.02, 0.05, **ratio, published=0.05).word == HOLDS
        assert judge(0.04, 0.06, **ratio, published=0.05).detail == "as large as published"
        assert judge(0.95, 1.05, **ratio).word == NO_EFFECT
        assert judge(0.8, 0.95, **ratio, published=0.25).word == SMALLER
        assert judge(0.8, 1.1, **ratio).word == INCONCLUSIVE

    def test_needed_units_settle_a_claim(self):
        rng, held = np.random.default_rng(0), []
        for _ in range(300):
            finding = rules.Finding("", rules.mean_interval(rng.normal(0.3, 1.0, 30)), least=0.0)
            verdict = decide(finding)
            if verdict.word == INCONCLUSIVE and abs(finding.interval.estimate - 0.3) < 0.02:
                more = rng.normal(0.3, 1.0, int(verdict.needed))
                held.append(decide(rules.Finding("", rules.mean_interval(more))).word == HOLDS)
        assert len(held) > 5
        assert 0.5 < np.mean(held) <= 1


TREND = {"unit": "network", "size": 0.3, "x": "alpha", "expected": "rise"}
MANY = frame_of(noise(200, seed=1), np.linspace(1, 2, 200), seed=range(200))


class TestTrend:
    @pytest.mark.parametrize(
        ("rows", "expected", "word"),
        [
            (frame_of(np.arange(33) + noise()), "rise", HOLDS),
            (frame_of(np.arange(33) + noise()), "fall", CONTRADICTED),
            (frame_of(noise(9), ALPHAS[:9]), "rise", INCONCLUSIVE),
            (MANY, "rise", NO_EFFECT),
            (MANY, "none", HOLDS),
            (frame_of(np.arange(33.0)), "none", CONTRADICTED),
            (frame_of(noise(7), ALPHAS[:7]), "none", INCONCLUSIVE),
        ],
    )
    def test_words(self, rows, expected, word):
        finding = rules.trend(rows, expected=expected, **NONE)
        assert (decide(finding).word, finding.interval.n) == (word, len(rows))

    def test_one_correlation_for_each_seed(self):
        rows = pd.concat([frame_of(np.arange(33) + 100 * s, seed=s) for s in (0, 3, 1)])
        finding = rules.trend(rows, **TREND)
        assert finding.interval.estimate == 1
        assert finding.p < 0.001

    def test_kinds_are_pairs(self):
        rows = pd.concat([frame_of(np.arange(7) + noise(7, 0.1, s), range(7), s) for s in range(6)])
        rows = rows.assign(model=rows["alpha"].map("kind {}".format))
        assert rules.trend(rows, **TREND, over="model").interval.n == 7

    @pytest.mark.parametrize("slope", [0.0, 0.02, 0.05, 1.0])
    def test_p_of_no_trend(self, slope):
        for seed in range(8):
            values = noise(60, seed=seed) + slope * np.arange(60)
            rows = frame_of(values, np.linspace(1, 2, 60), seed=range(60))
            finding = rules.trend(rows, expected="none", **NONE)
            assert (decide(finding).word in (HOLDS, CONTRADICTED)) == (finding.p < 0.05)


class TestTrendAgainst:
    SETTINGS = {"unit": "network", "size": 0.5, "x": "alpha", "named": "MNIST"}

    LINE, NOISE = np.arange(33.0), frame_of(noise(9), ALPHAS[:9], data="a")
    RISING, FALLING = frame_of(LINE, data="a"), frame_of(-LINE, data="a")
    OTHER = frame_of(LINE, data="b")

    @pytest.mark.parametrize(
        ("rows", "reference", "expected", "word"),
        [
            (RISING, OTHER, "alike", HOLDS),
            (FALLING, OTHER, "alike", CONTRADICTED),
            (FALLING, OTHER, "lower", HOLDS),
            (OTHER, FALLING, "lower", CONTRADICTED),
            (RISING, OTHER, "lower", NO_EFFECT),
            (NOISE, NOISE.assign(data="b"), "lower", INCONCLUSIVE),
        ],
    )
    def test_words(self, rows, reference, expected, word):
        settings = self.SETTINGS | {"reference": reference, "expected": expected}
        assert decide(rules.trend_against(rows, **settings)).word == word

    def test_shared_units_narrow_the_interval(self):
        values = np.arange(33.0) + noise(33, 10)
        rows, reference = frame_of(values), frame_of(values + noise(33, 1, 1))
        settings = self.SETTINGS | {"expected": "alike"}
        shared = rules.trend_against(rows, reference=reference, **settings).interval
        rows, reference = rows.assign(data="a"), reference.assign(data="b")
        separate = rules.trend_against(rows, reference=reference, **settings).interval
        assert shared.estimate == separate.estimate
        assert shared.high - shared.low < 0.7 * (separate.high - separate.low)

    def test_sign_of_the_difference(self):
        settings = self.SETTINGS | {"reference": self.FALLING, "expected": "higher"}
        finding = rules.trend_against(self.RISING, **settings)
        assert finding.interval.estimate == pytest.approx(2)


class TestLevel:
    def test_counts_units(self):
        rows = pd.concat([frame_of([0.6 + 0.01 * s] * 5, range(5), seed=s) for s in range(6)])
        level = {"unit": "network", "size": 0.5}
        finding = rules.level(rows, **level, expected="above")
        assert (finding.interval.n, decide(finding).word) == (6, HOLDS)
        assert decide(rules.level(rows, **level, expected="below")).word == CONTRADICTED
        assert rules.level(rows, **level, expected="above", x="alpha", at_most=2).interval.n == 6

    def test_zero_shares_have_exact_interval(self):
        rows = pd.concat([frame_of([0.0], [1], seed=s, n=600) for s in range(6)])
        level = {"unit": "network", "size": 0.5, "expected": "above"}
        interval = rules.level(rows, **level, no_effect=0.0).interval
        assert (interval.low, interval.high) == (0, pytest.approx(1 - 0.025 ** (1 / 600)))


def two_methods(shift):
    """Return two methods, which differ by about `shift`, for each seed and radius."""
    level, small = noise(6, 5, 2), noise(6, 0.01, 3)
    methods = {"density": np.exp(level / 10 + shift + small), "standard": np.exp(level / 10)}
    return pd.concat(
        frame_of(values, radius, range(6), method=method)
        for radius in (1, 2, 3)
        for method, values in methods.items()
    )


PAIR = {"unit": "network", "between": "method", "first": "density", "second": "standard"}
RATIO = PAIR | {"size": 1.1, "expected": "lower", "match": ["alpha"], "ratio": True}


class TestPaired:
    @pytest.mark.parametrize("shift", [0.5, -0.5])
    def test_counts_one_value_a_network(self, shift):
        for expected, sign in (("higher", 1), ("lower", -1)):
            settings = PAIR | {"size": 0.01, "expected": expected, "match": ["alpha"]}
            finding = rules.paired(two_methods(shift), **settings)
            word = HOLDS if shift * sign > 0 else CONTRADICTED
            assert (finding.interval.n, decide(finding).word) == (6, word)

    def test_ratio_is_a_geometric_mean(self):
        finding = rules.paired(two_methods(-1.0), **RATIO)
        assert finding.interval.estimate == pytest.approx(np.exp(-1 + noise(6, 0.01, 3).mean()))
        assert decide(finding, 0.37)[:2] == (HOLDS, "as large as published")
        assert decide(rules.paired(two_methods(0.0), **RATIO)).word == NO_EFFECT

    @pytest.mark.parametrize("value", [0.0, -1.0])
    @pytest.mark.parametrize("method", ["density", "standard"])
    def test_ratio_needs_positive_values(self, method, value):
        rows = two_methods(-1.0)
        # One network at all radii, and another at one radius.
        without = (rows["seed"] == 0) | ((rows["seed"] == 1) & (rows["alpha"] == 2))
        rest = rules.paired(rows[~without], **RATIO)
        rows["value"] = rows["value"].mask(without & (rows["method"] == method), value)
        finding = rules.paired(rows, **RATIO)
        assert (finding.interval.n, finding.interval) == (5, rest.interval)
        assert rules.paired(rows, **PAIR, size=0.01, expected="lower").interval.n == 6

    def test_takes_units_with_both_sides(self):
        rows = two_methods(0.5)
        rows = rows[(rows["method"] == "standard") | (rows["seed"] < 4)]
        settings = PAIR | {"size": 0.01, "expected": "higher"}
        assert rules.paired(rows, **settings).interval.n == 4
        with pytest.raises(UsageError, match=r"expected method \['density'\], got \['standard'\]"):
            rules.paired(rows[rows["method"] == "standard"], **settings)

    @pytest.mark.parametrize(
        ("shift", "better", "word"),
        [(0.0, "higher", HOLDS), (-0.5, "higher", CONTRADICTED)]
        + [(-0.5, "lower", HOLDS), (0.5, "lower", CONTRADICTED)],
    )
    def test_not_worse(self, shift, better, word):
        finding = rules.not_worse(two_methods(shift), **PAIR, size=0.05, better=better)
        assert decide(finding).word == word
