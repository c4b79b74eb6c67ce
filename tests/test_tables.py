"""Rows of a table, and how their means, intervals and differences are written."""

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence.rules import Sides
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text, mean_text, means, select

LAPTOP = [("laptop", 0, "none", 0.5), ("laptop", 1, "none", 0.7), ("laptop", 0, "fpn", 0.25)]
COLUMNS = ["profile", "seed", "variant", "value"]
ROWS = pd.DataFrame([*LAPTOP, ("paper", 0, "none", 1.0)], columns=COLUMNS)


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


def test_means_over_seeds_have_their_intervals():
    rows = pd.concat([ROWS, ROWS[:1].assign(value=0.3)]).assign(k=0.5, chosen=[True] * 4 + [False])
    half = mean_interval([0.4, 0.7]).high - 0.55
    found = means(rows, ["profile", "k"], "variant", {"none": "no part", "laptop": "small"})
    assert found.to_dict("records") == [
        {"profile": "small", "k": "0.5", "no part": f"0.550 ± {half:.3f}", "fpn": "0.250", "n": 2},
        {"profile": "paper", "k": "0.5", "no part": "1.000", "fpn": "–", "n": 1},
    ]
    assert means(rows, ["chosen"], "variant")["chosen"].tolist() == ["yes", ""]
    assert means(rows[:0], ["k"]).values.tolist() == [["not run at the profiles that are shown"]]


def test_an_interval_without_ends_is_its_estimate():
    assert interval_text(Interval(0.5, 0.25, 0.75, 2), "+.2f") == "+0.50 [+0.25, +0.75]"
    assert interval_text(mean_interval([0.5])) == "0.5"


def test_gaps_are_of_networks_that_have_a_partner():
    sides = Sides("variant", "none", "fpn", ["profile"])
    assert sides.gaps(ROWS, "network").tolist() == [0.25]
    assert Sides("variant", "fpn", "none").gaps(ROWS, "network").tolist() == [-0.5]
    two = pd.concat([ROWS, ROWS[2:3].assign(seed=1, value=0.75)])
    assert sides.gaps(two, "network").tolist() == pytest.approx([0.25, -0.05])
    with pytest.raises(UsageError, match=r"variant \['pool'\], got \['fpn', 'none'\]"):
        Sides("variant", "none", "pool").gaps(ROWS, "network")
