import numpy as np
import pytest
from scipy import stats

from suite.evidence.statistics import (
    correlation,
    correlation_difference,
    mean_interval,
    pearson,
    permutation_p,
    spearman,
)


@pytest.fixture
def noisy_line():
    rng = np.random.default_rng(1)
    x = np.arange(20.0)
    return x, x + rng.normal(scale=8, size=20)


def test_correlations_equal_those_of_scipy(noisy_line):
    x, y = noisy_line
    x = x.repeat(2)[::2].round(-1)  # ties
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_correlation_with_a_constant_is_undefined():
    assert np.isnan(spearman([1, 2, 3], [5, 5, 5]))


def test_permutation_p_is_never_zero_and_counts_the_observed_order(noisy_line):
    x = np.arange(30.0)
    assert permutation_p(x, x) == 2 / 10_000  # both sides: twice (0 + 1) / (9999 + 1)
    assert permutation_p(x, -x) == 2 / 10_000


def test_permutation_p_of_few_values_goes_through_all_orders():
    assert permutation_p([1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(2 / 24)


def test_permutation_p_agrees_with_the_t_test_on_noise(noisy_line):
    x, y = noisy_line
    assert permutation_p(x, y) == pytest.approx(stats.spearmanr(x, y).pvalue, abs=0.01)


def test_interval_holds_the_true_correlation_about_19_times_in_20():
    rng = np.random.default_rng(0)
    true = 6 / np.pi * np.arcsin(0.5 / 2)  # Spearman's of a normal pair with Pearson's 0.5
    held = 0
    for _ in range(60):
        a, b = rng.normal(size=(2, 40))
        interval = correlation(a, 0.5 * a + np.sqrt(0.75) * b)
        held += interval.low <= true <= interval.high
    assert 51 <= held <= 60


def test_interval_is_the_same_at_each_call(noisy_line):
    assert correlation(*noisy_line) == correlation(*noisy_line)


def test_difference_of_equal_columns_is_zero(noisy_line):
    x, y = noisy_line
    assert correlation_difference(x, y, y)[:3] == (0, 0, 0)
    assert correlation_difference(x, y, -y).estimate == pytest.approx(2 * spearman(x, y))


@pytest.mark.parametrize(("n", "quantile"), [(2, 12.706), (3, 4.303), (6, 2.5706)])  # of a t-table
def test_mean_interval_is_that_of_students_t(n, quantile):
    values = np.random.default_rng(n).normal(size=n)
    interval = mean_interval(values)
    assert interval.n == n
    assert interval.estimate == pytest.approx(values.mean())
    half = quantile * np.sqrt(values.var(ddof=1) / n)
    assert interval.high - interval.estimate == pytest.approx(half, rel=1e-4)
    assert interval.estimate - interval.low == pytest.approx(half, rel=1e-4)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval()
    assert interval[1:3] == pytest.approx((expected.low, expected.high))


def test_mean_of_one_value_has_no_interval():
    estimate, low, high, n = mean_interval([2.0])
    assert (estimate, n) == (2.0, 1)
    assert np.isnan([low, high]).all()
