"""Tables and sentences of the chapter on Top-GAP, by hand."""

import numpy as np
import pandas as pd

from benchmarks.tables import measured
from suite.data import load_data
from suite.evidence.results import Results
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
    same = {"status": "done", "battery": "none", "test": "own", "part": "", "data": "mnist"}
    same |= {"counts": "", "attack": "", "k": 0.5, "sweep": True, "epsilon": 0.0, "scale": 1.0}
    same |= {"parts": "", "steps": 0}
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(**{n: v for n, v in (same | changes).items() if n not in columns})


def test_rows_are_selected_by_values_and_lists_where_training_did_not_diverge():
    assert len(top_gap_tables.select(table(), metric="accuracy")) == 4
    both = top_gap_tables.select(table(), metric="accuracy", variant=["fpn", "pool"])
    assert both["value"].tolist() == [0.25]
    assert top_gap_tables.select(table(status="diverged")).empty


def test_attacks_are_named_by_what_tells_them_apart():
    columns = ["battery", "attack", "parts", "steps", "scale", "counts", "epsilon"]
    rows = [
        ("none", "fgsm", "", 1, 1.0, "unchanged", 1 / 255),
        ("none", "pgd", "", 20, 1.0, "unchanged", 8 / 255),
        ("none", "pgd", "", 20, 1.0, "correct", 8 / 255),
        ("auto", "auto_attack", "", 100, 1.0, "unchanged", 8 / 255),
        ("auto", "auto_attack", "", 100, 1.0, "correct", 0.5 / 255),
        ("auto", "auto_attack", "", 20, 1.0, "unchanged", 1 / 255),
        ("parts", "auto_attack", "square", 1, 1.0, "unchanged", 8 / 255),
        ("scale", "pgd", "", 50, 100.0, "unchanged", 8 / 255),
        ("transfer", "transfer", "", 50, 1.0, "unchanged", 8 / 255),
    ]
    frame = table(rows, columns, metric="robust_accuracy")
    frame = pd.concat([table(columns=COLUMNS), frame])
    frame = frame[frame["metric"] != "mask_iou"]

    def names(battery, **values):
        return [*top_gap_tables.attacks(frame, battery, **values)["name"].unique()]

    assert names("none") == ["clean", "fgsm 1, ε 1/255", "pgd 20, ε 8/255"]
    assert names("auto") == ["AutoAttack, ε 8/255", "AutoAttack of 20 steps, ε 1/255"]
    assert names("auto", counts="correct") == ["AutoAttack, ε 0.5/255"]
    others = names(["parts", "scale", "transfer"])
    assert others == ["square, ε 8/255", "logits × 100, ε 8/255", "transfer, ε 8/255"]


def test_a_printed_table_writes_what_is_missing_as_a_dash():
    entry = {"number": "3", "shows": "accuracy", "columns": ["a", "b"]}
    published = {"tables": [entry | {"rows": [[0.5, np.nan], [True, 2]]}]}
    title, frame = top_gap_tables.printed(published, "3")
    assert title == "Table 3 of the paper: accuracy."
    assert frame.to_numpy().tolist() == [["0.5", "–"], [True, "2"]]
    published["tables"][0]["number"] = "7"
    _, frame = top_gap_tables.printed(published, "7")
    assert frame["a"].tolist() == ["0.5", "yes"]


def results(arrays, *data):
    return Results(pd.DataFrame({"data": data}), pd.DataFrame(), arrays, {})


def test_maps_stand_beside_their_image_in_the_order_of_their_data():
    maps = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    arrays = {"images": maps + 8, "labels": np.array([3, 4]), "maps|a": maps, "maps|c": maps}
    shown = {f"second|{name}": array for name, array in arrays.items()}
    shown |= {f"first|{name}": array[::-1] for name, array in arrays.items()}
    shown |= {f"one map|{name}": array for name, array in arrays.items() if name != "maps|c"}
    titles = {"maps|a": "A", "maps|b": "B", "maps|c": "C"}
    found = results(shown, "first", "second", "one map")
    rows, columns, labels = top_gap_tables.map_rows(found, titles).values()
    assert columns == ["image", "A", "B", "C"]
    assert labels == ["label 4", "label 3", "label 3", "label 4"]
    assert rows[0][2] is None
    np.testing.assert_array_equal(rows[0][0], maps[1] + 8)
    np.testing.assert_array_equal(rows[3][3], maps[1])


def test_maps_over_k_are_of_the_data_on_which_k_was_varied():
    maps = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    arrays = {"images": maps, "labels": np.array([3, 4]), "maps_k|0.1": maps}
    shown = {f"swept|{name}": array for name, array in arrays.items()}
    shown |= {"last|images": maps[::-1], "last|labels": np.array([5, 6]), "last|maps|a": maps}
    titles = {"maps_k|0.1": "k", "maps|a": "A"}
    rows, _, labels = top_gap_tables.map_rows(results(shown, "swept", "last"), titles).values()
    assert labels == ["label 3", "label 4"]
    np.testing.assert_array_equal(rows[0][1], maps[0])
    assert rows[0][2] is None


def test_images_that_are_not_kept_are_drawn_where_they_are_at_hand(monkeypatch, tmp_path):
    maps = np.zeros((2, 40, 40), np.uint8)
    shown = {"digit_canvas|labels": np.array([3, 4]), "digit_canvas|maps|a": maps}
    rows = top_gap_tables.map_rows(results(shown, "digit_canvas"), {"maps|a": "A"})["rows"]
    expected = load_data("digit_canvas").test.images[1]
    np.testing.assert_array_equal(rows[1][0], expected)
    monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
    missing = {name.replace("digit_canvas", "cifar10"): array for name, array in shown.items()}
    found = top_gap_tables.map_rows(results(missing, "cifar10"), {"maps|a": "A"})
    rows, _, labels = found.values()
    assert [row[0] for row in rows] == [None, None]
    assert labels == ["label 3", "label 4"]


def test_receptive_fields_are_scaled_to_their_largest_value():
    fields = {f"d|erf|none|{place}": np.array([[0.0, 2.0]]) for place in top_gap.LOCATIONS}
    fields |= {"d|maps|fpn+l1+pool": np.zeros((1, 2, 2))}
    found = top_gap_tables.receptive_fields(results(fields, "d"), ["none", "fpn"])
    rows, columns, labels = found.values()
    assert [picture.tolist() for picture in rows[0][:3]] == [[[0, 255]]] * 3
    assert rows[0][3:] == [None] * 3
    assert columns[:4] == [*(f"unmodified, {p}" for p in top_gap.LOCATIONS), "pyramid, corner"]
    assert labels == ["d"]


def test_sizes_stand_beside_those_that_the_paper_prints():
    rows = [("laptop", 0, "fpn+l1+pool", "class_map_sparsity", 0.25)]
    a8 = {"number": "A8", "shows": "", "columns": ["penalty on", "mean of the map"]}
    published = {"tables": [a8 | {"rows": [["last", 0.1], ["Top-GAP, k = 784", 0.5]]}]}
    found = top_gap_tables.sizes(table(rows, k=0.5), published)
    assert found[["k", "value", "who"]].to_numpy().tolist() == [
        [0.5, 0.25, "MNIST, laptop"],
        [0.25, 0.5, "published: CUB, ResNet-18"],
    ]


def test_training_steps_are_those_of_the_benchmark():
    step = {"benchmark": "Top-GAP", "value": 1.5, "quartiles": [1.25, 1.75]}
    rows = [
        step | {"case": "training step, ResNet-18, batch 16: with L1 / backbone"},
        step | {"case": "PGD, 20 steps"},
        step | {"case": "training step, another", "benchmark": "training step"},
    ]
    found = top_gap_tables.training_steps({"rows": rows})
    assert found.to_numpy().tolist() == [["ResNet-18, batch 16", 1.5, "1.25 to 1.75"]]
    assert len(top_gap_tables.training_steps(measured("cpu"))) == 2
