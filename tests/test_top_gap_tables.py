"""Tables and sentences of the chapter on Top-GAP, by hand."""

import numpy as np
import pandas as pd
import pytest

from suite.papers import top_gap, top_gap_tables

COLUMNS = ["profile", "seed", "variant", "metric", "value"]
ROWS = [
    ("laptop", 0, "none", "accuracy", 0.5),
    ("laptop", 1, "none", "accuracy", 0.7),
    ("laptop", 0, "fpn", "accuracy", 0.25),
    ("laptop", 0, "none", "mask_iou", 0.125),
    ("paper", 0, "none", "accuracy", 1.0),
]


def table(rows=ROWS, columns=COLUMNS, **changes):
    same = {"status": "done", "further": False, "battery": "none", "test": "own", "part": ""}
    same |= {"counts": "", "attack": "", "k": 0.5, "sweep": True}
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(**{n: v for n, v in (same | changes).items() if n not in columns})


def test_rows_are_selected_by_values_and_lists_where_training_did_not_diverge():
    assert len(top_gap_tables.select(table(), metric="accuracy")) == 4
    both = top_gap_tables.select(table(), metric="accuracy", variant=["fpn", "pool"])
    assert both["value"].tolist() == [0.25]
    assert top_gap_tables.select(table(status="diverged")).empty
    assert top_gap_tables.select(table(), further=True).empty


def test_measures_have_names_and_the_papers_robust_accuracy():
    columns = ["metric", "attack", "counts", "part", "test", "battery"]
    rows = [
        ("accuracy", "", "", "", "own", "none"),
        ("accuracy", "", "", "", "shifted", "none"),
        ("robust_accuracy", "pgd", "unchanged", "", "own", "none"),
        ("robust_accuracy", "pgd", "correct", "", "own", "none"),
        ("robust_accuracy", "pgd", "unchanged", "", "own", "steps"),
        ("erf_distance", "", "", "centre", "own", "none"),
        ("erf_distance", "", "", "distance", "own", "none"),
    ]
    named = top_gap_tables.measures(table(rows, columns), top_gap_tables.IN_TABLES)
    assert named["what"].tolist() == ["accuracy", "other backgrounds", "pgd", "erf_distance"]


def test_attacks_are_named_by_their_steps_or_by_their_loss():
    columns = ["battery", "attack", "loss", "steps"]
    rows = [
        ("none", "fgsm", "cross_entropy", 1),
        ("none", "pgd", "cross_entropy", 20.0),
        ("attacks", "apgd", "cross_entropy", 20),
        ("attacks", "apgd", "logit_ratio", 20),
        ("attacks", "together", "", 20),
    ]
    frame = table(rows, columns, metric="robust_accuracy")
    assert top_gap_tables.attacks(frame, "none")["name"].tolist() == ["fgsm 1", "pgd 20"]
    names = top_gap_tables.attacks(frame, "attacks")["name"].tolist()
    assert names == ["apgd", "apgd ratio", "together"]


def test_means_over_seeds_with_their_deviations():
    wide = top_gap_tables.means(table(), ["variant"], "metric")
    assert wide.to_numpy().tolist() == [
        ["laptop", "unmodified", "0.600 ± 0.141", "0.125", 2],
        ["laptop", "pyramid", "0.250", "not run", 1],
        ["paper", "unmodified", "1.000", "not run", 1],
    ]
    by_k = top_gap_tables.means(table(), ["k"], "metric")
    assert by_k["k"].tolist() == ["0.5", "0.5"]
    empty = top_gap_tables.means(table()[:0], ["variant"], "metric")
    assert empty.to_numpy().tolist() == [["not run at the profiles that are shown"]]


def test_a_printed_table_writes_what_is_missing_as_a_dash():
    entry = {"number": "3", "shows": "accuracy", "columns": ["a", "b"]}
    published = {"tables": [entry | {"rows": [[0.5, np.nan], [True, 2]]}]}
    title, frame = top_gap_tables.printed(published, "3")
    assert title == "Table 3 of the paper: accuracy."
    assert frame.to_numpy().tolist() == [["0.5", "–"], [True, "2"]]
    published["tables"][0]["number"] = "7"
    _, frame = top_gap_tables.printed(published, "7")
    assert frame["a"].tolist() == ["0.5", "yes"]


def test_the_choice_of_k_without_labels_and_what_it_loses():
    columns = ["profile", "seed", "k", "metric", "value"]
    accuracy = {0.1: 0.5, 0.2: 0.9, 0.4: 0.8}
    means = {0.1: 0.4, 0.2: 0.4, 0.4: 0.5}  # 0.5 is nearest to its k, 0.4
    rows = [("laptop", 0, k, "accuracy", value) for k, value in accuracy.items()]
    rows += [("laptop", 0, k, "predicted_map_mean", value) for k, value in means.items()]
    rows += [("laptop", 0, k, "class_map_sparsity", value) for k, value in means.items()]
    chosen = top_gap_tables.choices(table(rows, columns))
    (line,) = chosen.to_dict("records")
    assert (line["criterion"], line["chosen k"], line["best k"]) == ("accuracy", 0.4, 0.2)
    assert line["loss"] == pytest.approx(0.1)
    assert line["loss of the worst k"] == pytest.approx(0.4)
    seeds = pd.concat([chosen, chosen.assign(seed=1, loss=0.3)])
    (row,) = top_gap_tables.choices_by_criterion(seeds).to_dict("records")
    assert (row["chosen k"], row["best k"]) == ("0.4, 0.4", "0.2, 0.2")
    assert row["loss"] == pytest.approx(0.2)


def test_maps_stand_beside_their_image_a_few_in_a_row():
    maps = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    arrays = {"images": maps + 8, "labels": np.array([3, 4]), "a": maps, "c": maps}
    rows, notes = top_gap_tables.map_rows(arrays, {"a": "A", "b": "B", "c": "C"}, per_row=2)
    assert notes == [
        ["label 3", "A", "B"],
        ["label 3", "C"],
        ["label 4", "A", "B"],
        ["label 4", "C"],
    ]
    assert [len(row) for row in rows] == [3, 2, 3, 2]
    assert rows[0][2] is None
    np.testing.assert_array_equal(rows[2][0], maps[1] + 8)
    np.testing.assert_array_equal(rows[3][1], maps[1])


def test_receptive_fields_are_scaled_to_their_largest_value():
    fields = {f"erf|none|{location}": np.array([[0.0, 2.0]]) for location in top_gap.LOCATIONS}
    rows = top_gap_tables.receptive_fields(fields, ["none", "fpn"])
    assert [picture.tolist() for picture in rows[0]] == [[[0, 255]]] * 3
    assert rows[1] == [None] * 3
