import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text, mean_text, means, select

LAPTOP = [("laptop", 0, "none", 0.5), ("laptop", 1, "none", 0.7), ("laptop", 0, "fpn", 0.25)]
COLUMNS = ["profile", "seed", "variant", "value"]
ROWS = pd.DataFrame([*LAPTOP, ("paper", 0, "none", 1.0)], columns=COLUMNS)


def test_select_takes_values_and_lists():
    assert select(ROWS, variant="none", seed=0)["value"].tolist() == [0.5, 1.0]
    assert select(ROWS, variant=["fpn", "l1"])["value"].tolist() == [0.25]
    assert select(ROWS).equals(ROWS)
    with pytest.raises(UsageError, match="expected a column 'varient'"):
        select(ROWS, varient="none")


def test_mean_text_skips_undefined_values():
    half = mean_interval([0.5, 0.7]).high - 0.6
    assert mean_text([0.5, np.nan, 0.7]) == f"0.600 ± {half:.3f}"
    assert mean_text([0.5, 0.7], ".1f", ".2g") == f"0.6 ± {half:.2g}"
    assert mean_text([np.nan], empty="–") == "–"


def test_means_average_seeds():
    rows = pd.concat([ROWS, ROWS[:1].assign(value=0.3)]).assign(k=0.5, chosen=[True] * 4 + [False])
    mean = f"0.550 ± {mean_interval([0.4, 0.7]).high - 0.55:.3f}"
    table = means(rows, ["profile", "k"], "variant", {"none": "no part", "laptop": "small"})
    assert table.to_dict("records") == [
        {"profile": "small", "k": "0.5", "no part": mean, "fpn": "0.250", "n": "1 to 2"},
        {"profile": "paper", "k": "0.5", "no part": "1.000", "fpn": "–", "n": "1"},
    ]
    assert means(rows, ["chosen"], "variant")["chosen"].tolist() == ["yes", ""]
    assert means(rows[:0], ["k"]).values.tolist() == [["not run at the profiles that are shown"]]


def test_interval_text_without_ends():
    assert interval_text(Interval(0.5, 0.25, 0.75, 2), "+.2f") == "+0.50 [+0.25, +0.75]"
    assert interval_text(mean_interval([0.5])) == "0.5"
