"""Tables, sentences and curves of the chapter on importance landscapes, on tables made by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from suite.evidence.claims import load_published
from suite.evidence.results import Results
from suite.evidence.statistics import mean_interval
from suite.papers import pilcro_tables as tables

DATA = "digits-centred"
PUBLISHED = load_published("pilcro")


def rows(metric, model, values, data=DATA, **columns):
    same = {"metric": metric, "model": model, "data": data, "status": "done", "profile": "laptop"}
    same |= {"network": "resnet", "category": math.nan, "alpha": 0.0, "pair": ""} | columns
    return [same | {"seed": seed, "value": value} for seed, value in enumerate(values)]


def frame(*parts):
    return pd.DataFrame([row for part in parts for row in part])


def results(**arrays):
    panels = [{"data": DATA, "epochs": 7}, {"data": DATA, "epochs": 9, "crop_padding": 4}]
    arrays = {name.replace("__", "|"): np.array(array) for name, array in arrays.items()}
    return Results(pd.DataFrame(), pd.DataFrame(), arrays, {"parameters": {"panels": panels}})


class TestMeasured:
    TABLE = frame(
        rows("accuracy", "none", [0.5, 0.6, 0.7]),
        rows("accuracy", "target 10", [0.6, 0.8, math.nan]),
        rows("tv", "none", [0.25]),
        rows("robustness", "none", [0.5], category="blur"),
        rows("robustness", "none", [0.75], category="noise"),
    )

    def test_a_mean_has_its_interval_and_tv_a_digit_more(self):
        half = mean_interval([0.5, 0.6, 0.7])
        text = f"0.600 ± {half.high - 0.6:.3f}"
        assert tables.measured(self.TABLE, "accuracy", DATA, "none") == text
        assert tables.measured(self.TABLE, "tv", DATA, "none") == "0.2500"
        assert tables.measured(self.TABLE, "robustness, noise", DATA, "none") == "0.750"
        assert tables.measured(self.TABLE, "robustness, weather", DATA, "none") == "not run"

    def test_a_difference_is_taken_seed_by_seed_and_has_an_interval_from_three_on(self):
        pair = ("target 10", "none")
        assert tables.measured(self.TABLE, "accuracy", DATA, pair) == "+0.150 (n = 2)"
        assert tables.measured(self.TABLE, "accuracy", DATA, pair[::-1]) == "−0.150 (n = 2)"
        table = self.TABLE.assign(value=self.TABLE["value"].fillna(1.0))
        gap = mean_interval([0.1, 0.2, 0.3])
        expected = f"+0.200 [{gap.low:+.3f}, {gap.high:+.3f}]".replace("-", "−")
        assert tables.measured(table, "accuracy", DATA, pair) == expected
        assert tables.measured(self.TABLE, "tv", DATA, pair) == "not run"
        assert tables.measured(self.TABLE, "tv", DATA, ("none", "none")) == "+0.0000 (n = 1)"

    def test_rows_that_did_not_end_do_not_count(self):
        table = frame(rows("accuracy", "none", [0.1], status="diverged"))
        assert tables.measured(table, "accuracy", DATA, "none") == "not run"
        assert tables.data_sets(table) == []

    def test_noise_is_taken_off_and_a_tv_that_is_mostly_noise_is_marked(self):
        plain = [rows("tv", "none", [0.5, 0.7]), rows("noise", "none", [0.1, 0.2])]
        noisy = [rows("tv", "target 10", [0.3]), rows("noise", "target 10", [0.2])]
        alone = rows("tv", "curvature 10", [0.1])
        table = tables.with_less_noise(frame(*plain, *noisy, alone))
        less = tables.select(table, "tv_less_noise").set_index(["model", "seed"])["value"]
        assert less.to_dict() == pytest.approx(
            {("none", 0): 0.4, ("none", 1): 0.5, ("target 10", 0): 0.1}
        )
        found = tables.compare(table, ["tv"], [DATA], "none", "target 10", "curvature 10")
        marked = [" (mostly noise" in text for text in found["TV"]]
        assert marked == [False, True, False]

    def test_compare_has_a_row_for_each_data_set_and_model_or_pair(self):
        found = tables.compare(
            self.TABLE, ["accuracy", "tv"], [DATA], "none", ("target 10", "none")
        )
        assert list(found) == ["data", "models", "accuracy", "TV"]
        assert found["data"].tolist() == ["centred digits"] * 2
        assert found["models"].tolist() == ["none", "target 10 − none"]
        assert found["TV"].tolist() == ["0.2500", "not run"]


class TestPublished:
    def test_table_1_puts_what_was_measured_beside_what_is_published(self):
        table = frame(
            rows("accuracy", "target 10", [0.5]),
            rows("accuracy", "target 0.1", [0.3]),
            rows("tv", "target 10", [0.25]),
            rows("accuracy", "none", [0.4], "cifar100-cropped"),
        )
        found = tables.table_1(PUBLISHED, table, DATA).set_index("model")
        assert found.index.tolist() == ["target 0.1", "target 10"]
        assert found.loc["target 10", "accuracy, published"] == "0.7041"
        assert found.loc["target 10", ["accuracy, here", "TV, here"]].tolist() == [
            "0.500",
            "0.2500",
        ]
        assert found.loc["target 0.1", "accuracy, published"] == "–"
        cropped = tables.table_1(PUBLISHED, table, "cifar100-cropped").set_index("model")
        assert cropped.loc["none"].tolist()[:2] == ["0.7610", "0.400"]

    def test_of_imagenet_it_is_table_2_and_alone_where_nothing_was_measured(self):
        found = tables.table_1(PUBLISHED, frame(rows("accuracy", "none", [0.1])), "imagenet")
        assert list(found) == ["model", *(f"{n}, published" for n in ("accuracy", "TV", "loss"))]
        first = found.set_index("model").loc["curvature 1"].tolist()
        assert first == ["0.7790", "0.00102", "1.4072"]

    def test_tables_3_and_4_have_means_over_levels(self):
        of_pair = {"category": "noise", "pair": "target 10"}
        table = frame(
            rows("robustness", "none", [0.5, 0.6], level=1, **of_pair),
            rows("robustness", "none", [0.3, 0.4], level=5, **of_pair),
            rows("robustness", "none", [0.9, 0.9], level=5, **of_pair | {"pair": "target 1"}),
            rows("robustness", "target 10", [0.7, 0.7], level=1, **of_pair),
            rows("robustness", "target 10", [0.3, 0.5], level=5, **of_pair),
        )
        found = tables.tables_3_and_4(PUBLISHED, table, "robustness", ["target 10"])
        assert found["category"].tolist() == ["noise", "blur", "weather", "digital"]
        first = found.iloc[0]
        minus = (0.51 + 0.29 + 0.15 + 0.10 + 0.07) - (0.59 + 0.41 + 0.25 + 0.17 + 0.12)
        assert first["published, CIFAR-100 RC−"] == f"{minus / 5:+.3f}"
        gap = mean_interval([0.1, 0.1])
        assert first["centred digits"].startswith(f"{gap.estimate:+.3f}")
        assert found["centred digits"].tolist()[1:] == ["not run"] * 3
        table = table.assign(metric="corrupted_accuracy", pair="")
        found = tables.tables_3_and_4(PUBLISHED, table, "corrupted_accuracy", ["target 10"])
        assert list(found) == ["category", "model", "centred digits"]

    def test_the_printed_equation_stands_beside_the_mean_of_the_same_seed(self):
        table = frame(
            rows("accuracy", "target 10", [0.9, 0.1]),
            rows("accuracy_printed", "target 10", [0.2], alpha=10.0),
            rows("accuracy_printed", "target 5", [0.3], alpha=5.0),
        )
        found = tables.printed_equation(PUBLISHED, table)
        assert found.iloc[0].tolist() == [
            "centred digits",
            "laptop",
            "10",
            "0.900",
            "0.200",
            "0.7041",
        ]
        assert found.iloc[1].tolist()[3:] == ["not run", "0.300", "–"]


class TestCurves:
    def test_arrays_are_found_by_their_last_part(self):
        first = results(a__none__0__curve=[1.0], a__none__1__curve=[2.0], a__target=[3.0])
        second = results(b__none__0__curve=[4.0], b__none__0__counts=[5.0])
        assert tables.arrays_by_data([first, second], "curve") == {
            "a": {"none": [[1.0], [2.0]]},
            "b": {"none": [[4.0]]},
        }
        assert tables.arrays_by_data([first, second], "target") == {"a": {"target": [[3.0]]}}

    def test_training_curves_end_with_the_epochs_of_the_panel(self):
        cropped = f"{DATA}-cropped"
        table = frame(
            rows("accuracy_early", "none", [0.1, 0.2], epochs=2),
            rows("accuracy_early", "none", [0.3], cropped, epochs=3),
            rows("accuracy", "none", [0.5], epochs=0),
            rows("accuracy", "curvature 10", [0.6], epochs=0),
            rows("accuracy", "curvature 10", [0.7], cropped, epochs=0),
            rows("accuracy", "target 1", [0.8], epochs=0),
            rows("accuracy", "none", [0.9], "cifar10-jpeg", epochs=0),
        )
        found = tables.training_curves([results()], table, "accuracy", ("none", "curvature 10"))
        assert found[["data", "epochs", "value"]].values.tolist() == [
            [DATA, 2, 0.1],
            [DATA, 2, 0.2],
            [cropped, 3, 0.3],
            [DATA, 7, 0.5],
            [DATA, 7, 0.6],
            [cropped, 9, 0.7],
        ]

    def test_networks_that_were_not_trained_here_have_a_row_and_a_map(self):
        found = tables.not_trained_here({"a": {"none": [1, 2]}, "b": {"lite": [3]}}, {"a": ()})
        assert found == ([[3]], ["lite"])
        of_network = {"data": "imagenet-samples", "network": "lite"}
        table = frame(
            rows("tv", "as it is", [0.25]), rows("centre_to_rim", "as it is", [2.0])
        ).assign(**of_network)
        shown = tables.as_it_is(table)
        assert list(shown) == ["data", "network", "of", "TV", "centre / rim"]
        assert shown.iloc[0].tolist()[1:] == ["lite", "as it is", "0.25", "2"]

    def test_ablation_curves_go_from_none_to_all_pixels(self):
        arrays = {f"a__none__{seed}__curve": [1.0, 0.5, seed] for seed in (0, 1)}
        arrays |= {f"a__none__{seed}__counts": [0, 8, 32] for seed in (0, 1)}
        found = tables.ablation_curves([results(**arrays)])
        assert found["share of replaced pixels"].tolist() == [0, 0.25, 1] * 2
        assert found["value"].tolist() == [1, 0.5, 0, 1, 0.5, 1]
        assert set(zip(found["data"], found["model"])) == {("a", "none")}

    def test_shares_of_paths_are_in_units_of_sigma(self):
        found = tables.shares_of_paths((1, 2))
        one = found[found["model"] == "1 layers"]
        sigma = math.sqrt(2 / 3)
        assert one["position / σ"].tolist() == pytest.approx([-1 / sigma, 0, 1 / sigma])
        assert one["value"].tolist() == pytest.approx([sigma / 3] * 3)
        two = found[found["model"] == "2 layers"]
        sigma *= math.sqrt(2)
        assert two["value"].tolist() == pytest.approx([sigma * n / 9 for n in (1, 2, 3, 2, 1)])
        normal = found[found["model"] == "normal"]
        assert normal["value"].max() == pytest.approx(1 / math.sqrt(2 * math.pi), rel=1e-3)


class TestTheory:
    ARRAYS = {
        f"initialisation|{kind}|{part}": array
        for kind in ("convolutions", "convolutions with ReLU")
        for part, array in {
            "mean": np.array([[[1.0, 2.0]], [[3.0, 8.0]]]),
            "error": np.full((2, 1, 2), 0.5),
            "paths": np.array([[2.0, 3.0]]),
        }.items()
    }

    def test_curves_are_of_every_estimate_and_of_the_paths(self):
        found = tables.squared_gradients(self.ARRAYS)
        found = found[found["data"] == "convolutions"]
        assert found["position"].tolist() == [0, 1] * 3
        assert found["value"].tolist() == [1, 2, 3, 8, 2, 3]
        assert found["model"].tolist() == [*["estimates"] * 4, *["from the paths"] * 2]

    def test_the_table_counts_bands_that_hold_the_prediction(self):
        table = frame(rows("path_correlation", "none", [0.9, 0.7], network="convolutions"))
        arrays = self.ARRAYS | {"initialisation|convolutions|error": np.full((2, 1, 2), 0.6)}
        found = tables.theory_table(arrays, table)
        assert found.iloc[0].tolist() == ["convolutions", "75%", "1.40", "0.800 (least 0.700)"]
        assert tables.theory_table(self.ARRAYS, table).iloc[0, 1] == "0%"


def test_checkerboards_compare_quantiles_of_the_middle():
    flat = np.ones((224, 224))
    board = flat + np.indices((224, 224)).sum(0) % 2  # 1 and 2 in turn
    found = tables.checkerboards({"flat": flat, "board": board}).set_index("network")
    assert found.loc["flat"].tolist() == [1, 1, 1, 0]
    assert found.loc["board"].tolist() == pytest.approx([2, 2, 1, 1 / 2.5])


def test_location_maps_are_means_over_seeds_with_their_middle_and_least():
    arrays = {f"a__none__{seed}__accuracy": np.full((3, 3), seed / 4) for seed in (1, 3)}
    arrays["a__none__3__accuracy"][0, 0] = 0.25
    maps, notes = tables.location_maps([results(**arrays)], ["target 10", "none"])
    assert maps[0][0] is None
    assert maps[0][1].tolist() == [[0.25, 0.5, 0.5], [0.5] * 3, [0.5] * 3]
    assert notes == [["", "middle 0.50\nleast 0.25"]]
