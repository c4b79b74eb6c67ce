"""Tables and sentences of the chapter on high-order saliency, by hand."""

import numpy as np
import pandas as pd

from suite.data import load_data
from suite.evidence.results import Results
from suite.papers import high_order_tables as tables

NETWORK, SMOOTH = "efficientnet_lite0", "efficientnet_lite0_smooth"


def frame(rows):
    columns = ["profile", "network", "metric", "n_classes", "value"]
    return pd.DataFrame(rows, columns=columns)


ROWS = frame(
    [
        ("laptop", NETWORK, "share", 1000, 1.0),
        ("laptop", NETWORK, "share", 2, 2.0),
        ("laptop", SMOOTH, "share", 1000, 3.0),
        ("laptop", NETWORK, "closed_form_error", np.nan, 4.0),
        ("workstation", NETWORK, "share", 1000, 5.0),
        ("workstation", NETWORK, "share", 2, 6.0),
    ]
)


def test_rows_of_the_piecewise_linear_network_or_of_the_smooth_one():
    assert tables.select(ROWS, "share")["value"].tolist() == [1, 5]
    assert tables.select(ROWS, "share", smooth=True)["value"].tolist() == [3]
    assert tables.select(ROWS, "share", n_classes=2)["value"].tolist() == [2, 6]
    assert tables.select(ROWS, "closed_form_error")["value"].tolist() == [4]


def test_numbers_of_classes_take_the_place_of_networks_at_the_last_profile():
    rows = tables.by_classes(ROWS, "share", [2])
    assert rows[["network", "value"]].to_numpy().tolist() == [["2 classes", 6], ["1000 classes", 5]]


def test_quality_has_a_row_a_method_in_the_order_of_the_figure():
    rows = pd.DataFrame(
        [
            {"saliency": saliency, "metric": metric, "value": value}
            for saliency, metric, value in [
                ("caso_dense", "insertion", 1.0),
                ("caso_dense", "insertion", 3.0),
                ("logit_gradient", "max_sensitivity", 2.0),
                ("logit_gradient", "max_sensitivity", 2.0),
                (None, "share", 1.0),
            ]
        ]
    )
    table = tables.quality_table(rows)
    assert table.index.tolist() == ["gradient", "CASO, λ₁ = 0"]
    assert table["insertion"].tolist() == ["not run", "2 ± 13"]
    assert table["max-sensitivity"].tolist() == ["2 ± 0", "not run"]


def result(images="foolbox-imagenet"):
    maps = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    arrays = {"pair_index": np.array([3, 1]), "pair_predicted": np.array([0, 1])}
    arrays |= {"pair_confidence": np.array([0.987, 0.1]), "pair_maps": maps}
    arrays |= {name.replace("pair", "compared"): array for name, array in arrays.items()}
    arrays |= {"compared_caso": maps[:, 0], "compared_cafo": maps[:, 1]}
    for method in ("cafo", "caso", "clipped"):
        arrays[f"sweep_{method}_maps"] = maps[:, 0]
        arrays[f"sweep_{method}_sparsity"] = np.array([0.0, 0.756])
    arrays["sweep_lambda1"] = np.array([1e-5, 1e-4])
    arrays |= {"sweep_cafo_chosen": np.array([1e-4]), "sweep_caso_chosen": np.array([5e-5])}
    provenance = {"parameters": {"images": images}}
    return Results(pd.DataFrame(), pd.DataFrame(), arrays, provenance)


def test_photographs_stand_beside_their_maps_where_they_are_at_hand():
    grid = tables.pair_grid(result())
    np.testing.assert_array_equal(
        grid["rows"][0][0], load_data("foolbox-imagenet").test.images[3].numpy()
    )
    assert [len(row) for row in grid["rows"]] == [4, 4]
    assert grid["labels"][0].endswith("\n0.99")
    absent = tables.pair_grid(result("no such data"))
    assert [row[0] for row in absent["rows"]] == [None, None]
    methods = tables.comparison_grid(result())
    assert methods["titles"] == ["photograph", "CAFO", "CASO"]
    assert methods["rows"][1][1].tolist() == [[16, 17], [18, 19]]


def test_the_chosen_strengths_are_marked():
    grid = tables.sweep_grid(result())
    assert grid["marked"] == {(0, 1)}
    assert grid["titles"] == ["λ₁ = 1e-05", "λ₁ = 1e-04"]
    assert grid["notes"][2] == ["zeros 0.0%", "zeros 75.6%"]
    assert grid["labels"] == ["CAFO", "CASO", "clipped gradient"]
