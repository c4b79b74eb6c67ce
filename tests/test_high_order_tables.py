"""Tables and sentences of the chapter on high-order saliency, by hand."""

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from suite.data import load_data
from suite.evidence.results import Results
from suite.papers import high_order_tables as tables

NETWORK, SMOOTH = "efficientnet_lite0", "efficientnet_lite0_smooth"


def frame(rows):
    columns = ["profile", "network", "metric", "classes", "image", "value"]
    return pd.DataFrame(rows, columns=columns).assign(data="photographs")


ROWS = frame(
    [
        ("laptop", NETWORK, "share", "all", 0, 1.0),
        ("laptop", NETWORK, "share", "2", 0, 2.0),
        ("laptop", SMOOTH, "share", "all", 0, 3.0),
        ("laptop", NETWORK, "closed_form_error", None, 0, 4.0),
        ("workstation", NETWORK, "share", "all", 0, 5.0),
        ("workstation", NETWORK, "share", "2", 0, 6.0),
        ("workstation", NETWORK, "share", "all", 1, 7.0),  # not measured with two classes
        ("workstation", "efficientnet_lite2", "share", "all", 0, 8.0),
    ]
)


def test_rows_of_the_piecewise_linear_networks_or_of_the_smooth_ones():
    assert tables.select(ROWS, "share")["value"].tolist() == [1, 5, 7, 8]
    assert tables.select(ROWS, "share", smooth=True)["value"].tolist() == [3]
    assert tables.select(ROWS, "share", smooth=None)["value"].tolist() == [1, 3, 5, 7, 8]
    assert tables.select(ROWS, "share", classes="2")["value"].tolist() == [2, 6]
    assert tables.select(ROWS, "share", image=1)["value"].tolist() == [7]
    assert tables.select(ROWS, "closed_form_error")["value"].tolist() == [4]


def test_numbers_of_classes_take_the_place_of_networks_at_the_last_profile():
    rows = tables.by_classes(ROWS, "share", [2])
    assert rows[["network", "value"]].to_numpy().tolist() == [["2 classes", 6], ["all classes", 5]]


def test_quality_has_a_row_a_method_in_the_order_of_the_figure():
    rows = pd.DataFrame(
        [
            {"saliency": saliency, "metric": metric, "value": value}
            for saliency, metric, value in [
                ("caso_dense", "insertion", 1.0),
                ("caso_dense", "insertion", 3.0),
                ("logit_gradient", "sparsity", 2.0),
                ("logit_gradient", "sparsity", 2.0),
                ("logit_gradient", "entropy", 2.0),
                (None, "share", 1.0),
            ]
        ]
    )
    table = tables.quality_table(rows, {"insertion": "put in", "sparsity": "zeros"})
    assert table.index.tolist() == ["gradient", "CASO, λ₁ = 0"]
    assert table["put in"].tolist() == ["–", "2 ± 13"]
    assert table["zeros"].tolist() == ["2 ± 0", "–"]
    assert "entropy" not in table


def test_the_objective_compares_both_maps_of_the_same_photographs():
    rows = pd.DataFrame(
        [
            {
                "metric": "true_loss",
                "margin": margin,
                "saliency": saliency,
                "image": image,
                "sure": sure,
                "classes": "all",
                "network": NETWORK,
                "value": value,
            }
            for sure, margin, saliency, values in [
                ("low", 10.0, "cafo", [1.0, 2.0, 4.0, -1.0]),
                ("low", 10.0, "caso", [2.0, 4.0, 8.0, 3.0]),
                ("low", 10.0, "random", [99.0] * 4),
                ("high", 100.0, "cafo", [4.0, 4.0, 4.0]),
                ("high", 100.0, "caso", [1.0, 1.0, 1.0]),
            ]
            for image, value in enumerate(values)
        ]
    )
    table = tables.objective_table(rows)
    assert table["top probability"].tolist() == ["at most 0.5", "at least 0.95"]
    assert table["margin of λ₂"].tolist() == ["10", "100"]
    assert table["n"].tolist() == [4, 3]
    assert table["CASO"].tolist() == ["4.25", "1"]
    # One photograph has no ratio, since the loss fell.
    assert [float(words.split()[0]) for words in table["CASO ÷ CAFO"]] == [2.0, 0.25]
    assert table["CASO is ahead"].tolist() == ["100%", "0%"]


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


def of_photographs(metric, values, **labels):
    """Return rows of photographs that are sure, unsure and between in turn, four of each."""
    turns = [("low", 0.4), ("between", 0.7), ("high", 0.99)]
    rows = [
        {"image": i, "sure": turns[i % 3][0], "confidence": turns[i % 3][1], "value": value}
        for i, value in enumerate(values)
    ]
    given = {"profile": "laptop", "network": NETWORK, "data": "foolbox-imagenet", "classes": "all"}
    return (
        pd.DataFrame(rows)
        .assign(metric=metric, margin=10.0, saliency=None, **given)
        .assign(**labels)
    )


def a_result():
    n = np.arange(12.0)
    parts = [
        of_photographs(metric, 0.1 * n) for metric in ("share", "cosine", "difference", "norm")
    ]
    parts += [
        of_photographs("true_loss", (1 + n) * f, saliency=s) for s, f in (("cafo", 1), ("caso", 2))
    ]
    parts += [
        of_photographs("expansion_error", (1 + n) * f, saliency=s)
        for s, f in (("first order", 1), ("second order", 3))
    ]
    parts += [
        of_photographs("group_loss", 1 + n, saliency=s)
        for s in ("caso", "cafo", "clipped_loss_gradient", "clipped_logit_gradient", "random")
    ]
    parts += [of_photographs(m, 0.2 * n, classes="10") for m in ("share", "cosine", "difference")]
    parts += [of_photographs("accuracy", [0.9], image=np.nan, sure=None)]
    parameters = {"images": "foolbox-imagenet", "network": NETWORK, "class_counts": [10]}
    provenance = {"profile": "laptop", "parameters": parameters}
    return Results(pd.concat(parts, ignore_index=True), pd.DataFrame(), {}, provenance)


def test_fractions_are_of_photographs_on_one_side_of_a_limit():
    table = tables.fractions(a_result(), {"alike": ("difference", 0.35, -1)}, margin=10).data
    assert table["alike"].tolist() == ["50%", "25%", "25%"]
    assert table["n"].tolist() == ["4"] * 3


def test_losses_are_compared_by_confidence_at_each_margin():
    table = tables.objective_table(tables.main(a_result()))
    assert table["CASO ÷ CAFO"].tolist() == ["2 [2, 2]"] * 3
    assert table["CASO is ahead"].tolist() == ["100%"] * 3
    assert table["loss gained, CAFO"].tolist() == ["5.5", "6.5", "7.5"]
    assert tables.advantage(a_result())["value"].tolist() == [2.0] * 12
    errors = tables.expansion_table([a_result()])
    assert errors["second ÷ first"].tolist() == ["3 [3, 3]"] * 3
    groups = tables.groups_table([a_result()])
    assert groups["CASO ÷ clipped loss gradient"].tolist() == ["1 [1, 1]"] * 3


def test_classes_and_networks_have_a_row_each():
    table = tables.classes_table(a_result())
    assert table["classes"].tolist() == ["10 classes", "all classes"]
    assert table["n"].tolist() == ["12"] * 2
    assert table["share of λ₁²"].str[:5].tolist() == ["1.100", "0.550"]
    curved = tables.curved_table(a_result())
    rho = spearmanr(np.arange(12) % 3, np.arange(12)).statistic
    assert curved["accuracy"].tolist() == ["0.90"]
    assert curved["‖CASO − CAFO‖, ρ with confidence"].tolist() == [f"{rho:.2f}"]
    shown = tables.what_was_measured([a_result()]).data
    assert shown[["n", "classified right", "at most 0.5", "at least 0.95"]].iloc[0].tolist() == [
        12,
        "90%",
        "4",
        "4",
    ]
