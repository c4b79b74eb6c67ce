import dataclasses

import numpy as np
import pandas as pd
import pytest

from suite.data import load_data
from suite.evidence.results import Results
from suite.papers import high_order_tables as tables
from suite.papers.high_order_saliency import distance_bound

NETWORK, SMOOTH, DATA = "efficientnet_lite0", "efficientnet_lite0_smooth", "foolbox-imagenet"
TURNS = [("low", 0.4), ("between", 0.7), ("high", 0.99)]


def photographs(metric, values, **labels):
    """Return rows of photographs that are unsure, between and sure in turn."""
    rows = [(i, *TURNS[i % 3], value) for i, value in enumerate(values)]
    common = {"profile": "laptop", "network": NETWORK, "data": DATA, "classes": "all"}
    common |= {"metric": metric, "margin": 10.0, "saliency": None}
    columns = ["image", "sure", "confidence", "value"]
    return pd.DataFrame(rows, columns=columns).assign(**common | labels)


N = np.arange(12.0)


@pytest.fixture
def result():
    parts = [photographs(m, 0.1 * N, margin=np.nan) for m in ("share", "cosine")]
    parts += [photographs("difference", 0.1 * N), photographs("difference", N, margin=1.0)]
    parts += [photographs("largest_eigenvalue", 20 + N, margin=np.nan)]
    parts += [photographs("difference", N, network=SMOOTH)]
    parts += [photographs("difference", N[:6], classes="10")]
    for factor, kind in enumerate(("cafo", "caso"), 1):
        parts.append(photographs("true_loss", (1 + N) * factor, saliency=kind))
        parts.append(photographs("true_loss", 1 + N, saliency=kind, margin=1.0))
    parts += [photographs("accuracy", [0.9], image=np.nan, sure=None, margin=np.nan)]
    parts += [photographs("on_pair", [0.7, 0.9], saliency="caso")]
    parts += [photographs("on_pair", [0.5, 0.7], saliency="logit_gradient")]
    parts += [photographs("on_box", [0.6, 0.8], saliency="caso")]
    maps = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    arrays = {"pair_index": np.array([3, 1]), "pair_predicted": np.array([0, 1])}
    arrays |= {"pair_confidence": np.array([0.987, 0.1]), "pair_maps": maps}
    arrays |= {name.replace("pair", "compared"): array for name, array in arrays.items()}
    arrays |= {"compared_caso": maps[:, 0], "compared_cafo": maps[:, 1]}
    for method in tables.SWEPT:
        arrays[f"sweep_{method}_maps"] = maps[:, 0]
        arrays[f"sweep_{method}_sparsity"] = np.array([0.0, 0.756])
    arrays["sweep_lambda1"] = np.array([0.01, 0.02])
    arrays |= {"sweep_cafo_chosen": np.array([0.02]), "sweep_caso_chosen": np.array([0.5])}
    arrays["sweep_index"] = np.array([2])
    provenance = {"profile": "laptop", "parameters": {"images": DATA, "network": NETWORK}}
    return Results(pd.concat(parts, ignore_index=True), pd.DataFrame(), arrays, provenance)


class TestRows:
    def test_select_classes_and_networks(self, result):
        frame = result.frame
        assert len(tables.select(frame, "difference")) == 24
        assert len(tables.select(frame, "difference", smooth=True)) == 12
        assert len(tables.select(frame, "difference", smooth=None, image=1)) == 3
        assert len(tables.main_rows(result, "difference", margin=10.0)) == 12

    def test_bound_is_of_the_same_photograph(self, result):
        rows = tables.add_bound(tables.main_rows(result))
        assert len(rows) == 24
        largest = 20 + rows["image"]
        expected = [distance_bound(n, m) for n, m in zip(largest, rows["margin"])]
        assert rows[tables.BOUND].tolist() == pytest.approx(expected)


class TestTables:
    def test_object_table_has_methods_as_rows(self, result):
        table = tables.object_table(result)
        assert table[""].tolist() == ["gradient", "CASO, groups"]
        assert table["named object of two"].str[:5].tolist() == ["60.0 ", "80.0 "]
        assert table["object on a grey canvas"].tolist()[0] == "–"

    def test_objective_compares_within_photographs(self, result):
        table = tables.objective_table(result)
        assert table["λ₂"].tolist() == ["L/2 + 1"] * 3 + ["L/2 + 10"] * 3
        assert table["top probability"].tolist() == [*tables.SURENESS.values()] * 2
        assert table["CASO ÷ CAFO"].tolist() == ["1 [1, 1]"] * 3 + ["2 [2, 2]"] * 3
        assert table["is larger in"].tolist() == ["0%"] * 3 + ["100%"] * 3
        assert table["CAFO"].tolist() == ["5.5", "6.5", "7.5"] * 2
        gains = tables.advantage(result).groupby("network")["value"].unique()
        assert gains.to_dict() == {"λ₂ = L/2 + 1": [1.0], "λ₂ = L/2 + 10": [2.0]}

    def test_falling_losses_have_no_ratio(self, result):
        values = {"caso": [2.0, 4, 8, 3], "cafo": [1.0, 2, 4, -1]}
        rows = [photographs("true_loss", values[s], saliency=s, sure="low") for s in values]
        table = tables.objective_table(dataclasses.replace(result, frame=pd.concat(rows)))
        assert table["CASO ÷ CAFO"].tolist() == ["2 [2, 2]"]
        assert table["is larger in"].tolist() == ["100%"]


class TestPictures:
    def test_photographs_next_to_their_maps(self, result):
        grid = tables.pair_grid(result)
        np.testing.assert_array_equal(grid["rows"][0][0], load_data(DATA).test.images[3].numpy())
        assert [len(row) for row in grid["rows"]] == [4, 4]
        assert grid["notes"][0][0].endswith("\n99% sure")
        assert grid["notes"][0][3] == "distance\n0.30"
        methods = tables.comparison_grid(result, tables.COMPARED)
        assert methods["titles"] == ["photograph", "CAFO, groups", "CASO, groups"]
        assert methods["rows"][1][1].tolist() == [[16, 17], [18, 19]]

    def test_frames_of_the_sweep(self, result):
        frames = tables.sweep_frames(result)
        assert list(frames)[1] == "λ₁ = 0.02: 76% of CASO's map is zero"
        assert [len(row) for (row,) in frames.values()] == [4, 4]

    def test_unavailable_photographs(self, result):
        result.provenance["parameters"]["images"] = "no such data"
        assert [row[0] for row in tables.comparison_grid(result, {})["rows"]] == [None, None]
