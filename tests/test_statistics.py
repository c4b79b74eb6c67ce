import numpy as np
import pytest
from scipy import stats

from suite.evidence import statistics
from suite.evidence.statistics import correlation, difference, mean_interval, permutation_p


@pytest.fixture
def noisy_line():
    rng, x = np.random.default_rng(1), np.arange(20.0)
    return x, x + rng.normal(scale=8, size=20)


def test_correlations_equal_those_of_scipy(noisy_line):
    x, y = noisy_line
    x = x.repeat(2)[::2].round(-1)  # ties
    assert statistics.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert statistics.pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert np.isnan(statistics.spearman([1, 2, 3], [5, 5, 5]))


class TestPermutationP:
    def test_counts_the_observed_order(self):
        x = np.arange(30.0)
        assert permutation_p(x, x) == 2 / 10_000  # both sides: twice (0 + 1) / (9999 + 1)
        assert permutation_p(x, -x) == 2 / 10_000
        assert permutation_p(x[:4], x[:4]) == pytest.approx(2 / 24)  # all orders of few values

    def test_agrees_with_the_t_test(self, noisy_line):
        for name in ("spearman", "pearson"):
            p = permutation_p(*noisy_line, statistic=getattr(statistics, name))
            of_scipy = getattr(stats, f"{name}r")(*noisy_line)
            assert p == pytest.approx(of_scipy.pvalue, abs=0.01)

    def test_permutes_within_seeds(self):
        rng, groups = np.random.default_rng(0), np.repeat(np.arange(6), 5)
        x = np.tile(np.arange(5.0), 6)
        y = 0.5 * x + 100 * rng.normal(size=6)[groups] + 0.5 * rng.normal(size=30)
        assert permutation_p(x, y) > 0.2
        assert permutation_p(x, y, groups) < 0.001
        assert permutation_p(x, y, groups, statistics.pearson) < 0.001
        assert permutation_p(x, rng.normal(size=30), groups) > 0.05


def coverage(interval_of, true, repeats=600):
    rng = np.random.default_rng(0)
    intervals = (interval_of(rng) for _ in range(repeats))
    return np.mean([interval.low <= true <= interval.high for interval in intervals])


def rank_correlation(r):
    return 6 / np.pi * np.arcsin(r / 2)


def pairs(rng, n, r):
    a, b = rng.normal(size=(2, n))
    return a, r * a + np.sqrt(1 - r * r) * b


# 0.93 less two standard errors of 600 samples.
LEAST = 0.93 - 2 * np.sqrt(0.05 * 0.95 / 600)


class TestCoverage:
    @pytest.mark.parametrize("n", [6, 9, 24, 50])
    @pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
    def test_correlation(self, n, r):
        assert coverage(lambda rng: correlation(*pairs(rng, n, r)), rank_correlation(r)) > LEAST

    @pytest.mark.parametrize(("n", "seeds"), [(4, 6), (9, 3), (15, 6)])
    @pytest.mark.parametrize("r", [0.0, 0.9])
    def test_correlation_with_levels_of_seeds(self, n, seeds, r):
        def interval(rng):
            groups = np.repeat(np.arange(seeds), n)
            x, y = np.hstack([pairs(rng, n, r) for _ in range(seeds)])
            return correlation(x, y + 3 * rng.normal(size=seeds)[groups], groups)

        assert coverage(interval, rank_correlation(r)) > LEAST

    @pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (0.8, -0.5), (0.9, 0.9)])
    @pytest.mark.parametrize("n", [7, 24])
    def test_difference_of_correlations(self, first, second, n):
        def interval(rng):
            return difference(*(correlation(*pairs(rng, n, r)) for r in (first, second)))

        assert coverage(interval, rank_correlation(first) - rank_correlation(second)) > LEAST

    @pytest.mark.parametrize(("first", "second", "noise"), [(0.0, 0.0, 0.3), (0.5, 0.5, 0.5)])
    @pytest.mark.parametrize("n", [14, 28])
    def test_difference_for_shared_units(self, first, second, noise, n):
        widths = []

        def interval(rng):
            x, common = rng.normal(size=(2, n))
            errors = (common + noise * rng.normal(size=(2, n))) / np.hypot(1, noise)
            r = np.array([[first], [second]])
            values = r * x + np.sqrt(1 - r**2) * errors
            rhos = [float(statistics.spearman(x, value)) for value in values]
            dependence = statistics.between_correlations(*rhos, statistics.spearman(*values))
            trends = [correlation(x, value) for value in values]
            gaps = difference(*trends, dependence), difference(*trends)
            widths.append(np.ptp(gaps[0][1:3]) / np.ptp(gaps[1][1:3]))
            return gaps[0]

        assert coverage(interval, 0.0) > LEAST
        assert np.mean(widths) < 0.85

    @pytest.mark.parametrize("n", [3, 6, 24])
    def test_mean(self, n):
        assert coverage(lambda rng: mean_interval(1 + rng.normal(size=n)), 1.0) > LEAST

    def test_share(self):
        """The exact coverage, from the probability of each number of successes."""
        intervals = [statistics.share_interval(successes, 30) for successes in range(31)]
        low, high = np.transpose([interval[1:3] for interval in intervals])
        for share in (0.0, 0.02, 0.5, 1.0):
            inside = (low <= share) & (share <= high)
            assert stats.binom.pmf(np.arange(31), 30, share)[inside].sum() >= 0.95
        assert statistics.share_interval(0, 600).high == pytest.approx(1 - 0.025 ** (1 / 600))


def test_perfect_order_has_an_interval():
    few, many = (correlation(np.arange(n), np.arange(n)) for n in (7, 30))
    assert few.estimate == many.estimate == 1
    assert few.low < 0.9 < many.low < few.high == many.high == 1
    assert np.isnan(correlation([1, 2, 3], [1, 2, 3]).low)


def test_holm_skips_nan():
    assert statistics.holm([0.02, float("nan"), 0.01])[::2] == [0.02, 0.02]


class TestMean:
    def test_p_of_the_t_test(self):
        values = np.random.default_rng(2).normal(size=8)
        expected = stats.ttest_1samp(values, 0.5).pvalue
        assert statistics.t_test_p(values, 0.5) == pytest.approx(expected)
        assert np.isnan(statistics.t_test_p([1.0]))
        assert statistics.t_test_p([0.1] * 3) == 2 / 2**3

    @pytest.mark.parametrize("n", [2, 3, 6])
    def test_interval_of_students_t(self, n):
        values = np.random.default_rng(n).normal(size=n)
        interval = mean_interval(values)
        assert (interval.n, interval.estimate) == (n, pytest.approx(values.mean()))
        expected = stats.ttest_1samp(values, 0.0).confidence_interval()
        assert interval[1:3] == pytest.approx((expected.low, expected.high))

    def test_one_value_has_no_interval(self):
        estimate, *ends, n = mean_interval([2.0])
        assert (estimate, n, *np.isnan(ends)) == (2.0, 1, True, True)
        assert np.isnan(mean_interval([]).estimate)
