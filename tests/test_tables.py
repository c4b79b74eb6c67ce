"""Rows of a table, and how their means, intervals and differences are written."""

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text, mean_text, paired_difference, select, sentences

ROWS = pd.DataFrame(
    [
        ("laptop", 0, "none", 0.5),
        ("laptop", 1, "none", 0.7),
        ("laptop", 0, "fpn", 0.25),
        ("paper", 0, "none", 1.0),
    ],
    columns=["profile", "seed", "variant", "value"],
)


def test_rows_are_selected_by_a_value_or_by_one_of_several():
    assert select(ROWS, variant="none", seed=0)["value"].tolist() == [0.5, 1.0]
    assert select(ROWS, variant=["fpn", "l1"])["value"].tolist() == [0.25]
    assert select(ROWS).equals(ROWS)
    with pytest.raises(UsageError, match="expected a column 'varient'"):
        select(ROWS, varient="none")


def test_a_mean_is_of_the_defined_values_and_has_half_its_interval():
    half = mean_interval([0.5, 0.7]).high - 0.6
    assert mean_text([0.5, np.nan, 0.7]) == f"0.600 ± {half:.3f}"
    assert mean_text([0.5, 0.7], ".1f", ".2g") == f"0.6 ± {half:.2g}"
    assert mean_text([np.nan], empty="–") == "–"


def test_an_interval_without_ends_is_its_estimate():
    assert interval_text(Interval(0.5, 0.25, 0.75, 2), "+.2f") == "+0.50 [+0.25, +0.75]"
    assert interval_text(mean_interval([0.5])) == "0.5"


def test_a_paired_difference_is_of_networks_that_have_a_partner():
    assert paired_difference(ROWS, "variant", "none", "fpn", ["profile", "seed"])[::3] == (0.25, 1)
    assert paired_difference(ROWS, "variant", "fpn", "none")[::3] == (-0.5, 1)
    two = pd.concat([ROWS, ROWS[2:3].assign(seed=1, value=0.75)])
    expected = mean_interval([0.25, -0.05])
    found = paired_difference(two, "variant", "none", "fpn", ["profile", "seed"])
    assert found == pytest.approx(expected)
    with pytest.raises(UsageError, match=r"variant \['pool'\], got \['fpn', 'none'\]"):
        paired_difference(ROWS, "variant", "none", "pool")


def test_a_sentence_for_each_profile_that_has_all_means():
    text = "*{p}*: {none:.0%} and {fpn:.0%}"
    assert sentences(text, ROWS, "variant") == ["*laptop*: 60% and 25%"]
    rows = ROWS.assign(variant=ROWS["variant"] + "+l1 x").replace({0.25: np.nan})
    expected = ["*laptop*: 0.6", "*paper*: 1"]
    assert sentences("*{p}*: {none_l1_x:g}", rows, "variant") == expected
    assert sentences("{fpn_l1_x:g}", rows, "variant") == []


def test_a_sentence_for_each_profile_with_quartiles_and_interval():
    rows = pd.DataFrame({"profile": "laptop", "value": [1.0, 2, 3, 4, 5]})
    template = "{p} {n} {mean:g} {least:g} {q1:g} {median:g} {q3:g} {most:g} {low:.2f} {high:.2f}"
    # t(4) = 2.776, standard error 1.5811 / sqrt(5)
    assert sentences(template, rows) == ["laptop 5 3 1 2 3 4 5 1.04 4.96"]
