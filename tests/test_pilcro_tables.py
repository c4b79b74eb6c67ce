"""Tables, sentences and curves of the chapter on importance landscapes, on tables made by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from suite.evidence.claims import load_published
from suite.evidence.results import Results
from suite.evidence.statistics import mean_interval
from suite.papers import pilcro_tables as tables

DATA, CIFAR = "digits-centred", tables.CIFAR
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

    def test_mean(self):
        half = mean_interval([0.5, 0.6, 0.7])
        text = f"0.600 ± {half.high - 0.6:.3f}"
        assert tables.measured(self.TABLE, "accuracy", DATA, "none") == text
        assert tables.measured(self.TABLE, "tv", DATA, "none") == "0.2500"
        assert tables.measured(self.TABLE, "robustness, noise", DATA, "none") == "0.750"
        assert tables.measured(self.TABLE, "robustness, weather", DATA, "none") == "not run"

    def test_difference_seed_by_seed(self):
        pair = ("target 10", "none")
        assert tables.measured(self.TABLE, "accuracy", DATA, pair) == "+0.150 (n = 2)"
        assert tables.measured(self.TABLE, "accuracy", DATA, pair[::-1]) == "−0.150 (n = 2)"
        table = self.TABLE.assign(value=self.TABLE["value"].fillna(1.0))
        half = mean_interval([0.1, 0.2, 0.3]).high - 0.2
        assert tables.measured(table, "accuracy", DATA, pair) == f"+0.200 ± {half:.3f}"
        assert tables.measured(self.TABLE, "tv", DATA, pair) == "not run"

    def test_rows_that_did_not_end(self):
        table = frame(rows("accuracy", "none", [0.1], status="diverged"))
        assert tables.measured(table, "accuracy", DATA, "none") == "not run"

    def test_noise_is_taken_off(self):
        table = frame(rows("tv", "none", [0.5, 0.7]), rows("noise", "none", [0.1, 0.2]))
        less = tables.select(tables.with_less_noise(table), "tv_less_noise")
        assert less["value"].tolist() == pytest.approx([0.4, 0.5])

    def test_compare(self):
        found = tables.compare(
            self.TABLE, ["accuracy", "tv"], [DATA], "none", ("target 10", "none")
        )
        assert list(found) == ["data", "models", "accuracy", "TV"]
        assert found["data"].tolist() == ["centred digits"] * 2
        assert found["models"].tolist() == ["none", "target 10 − none"]
        assert found["TV"].tolist() == ["0.2500", "not run"]


class TestAgainstNone:
    TABLE = frame(
        rows("tv", "none", [0.4, 0.2, 0.1], CIFAR),
        rows("tv", "target 10", [0.1, 0.1], CIFAR),
        rows("accuracy", "none", [0.5, 0.6], CIFAR),
        rows("accuracy", "target 10", [0.4, 0.6], CIFAR),
    )

    def test_ratio_is_a_geometric_mean(self):
        value = tables.times(self.TABLE, "tv", "target 10")
        assert (value.estimate, value.n) == (pytest.approx(8**-0.5), 2)
        assert not tables.times(self.TABLE, "tv", "target 3")

    def test_strengths_are_named_by_it(self):
        assert tables.strengths(self.TABLE) == {"none": "no penalty", "target 10": "TV × 0.35"}
        (first, second) = tables.by_strength(self.TABLE, ["tv"]).to_dict("records")
        assert first[""] == "no penalty (α = 0, n = 2)"
        assert second == {"": "TV × 0.35 (α = 10, n = 2)", "TV": "0.1000 (n = 2)"}

    def test_networks_of_one_seed(self):
        assert tables.against_none(self.TABLE, "tv")["value"].tolist() == [0.25, 0.5]
        points = tables.against_none(self.TABLE, "accuracy")["value"]
        assert points.tolist() == pytest.approx([-10, 0])

    def test_landscapes_have_their_numbers_below(self):
        maps = {f"{CIFAR}__none__{seed}__landscape": np.full((2, 2), seed) for seed in (0, 1)}
        maps |= {f"{CIFAR}__target__10__0__landscape": np.ones((2, 2))}
        maps = {name.replace("target__10", "target 10"): array for name, array in maps.items()}
        run = results(**maps, **{f"{CIFAR}__target": np.eye(2)})
        shown = tables.landscapes([run], self.TABLE, PUBLISHED, torch.eye(2))
        assert [float(part.mean()) for part in shown["rows"][0]] == [0.5, 0.5, 1.0, 0.5]
        assert shown["titles"][1:3] == ["no\npenalty", "penalty,\nTV × 0.35"]
        assert shown["notes"][0][0] == "not\ntrained\nTV 1"
        assert shown["notes"][0][2].endswith("TV 0.1000\npaper 0.05")


class TestPublished:
    def test_against_none(self):
        printed = tables.printed_against_none(PUBLISHED)
        assert printed["Accuracy, points"]["target 10"] == pytest.approx(2.16)
        assert printed["Total variation, times"]["none"] == 1

    def test_robustness(self):
        every = tables.printed_robustness(PUBLISHED)
        assert every["noise"] == pytest.approx(
            (0.51 + 0.29 + 0.15 + 0.10 + 0.07) / (0.59 + 0.41 + 0.25 + 0.17 + 0.12)
        )
        one = tables.printed_robustness(PUBLISHED, levels=[3])
        assert one["noise"] == pytest.approx(0.15 / 0.25)
        imagenet = tables.printed_robustness(PUBLISHED, 4, None)
        assert sum(value < 1 for value in imagenet.values()) == 3  # as the record says


class TestCurves:
    def test_arrays_by_their_last_part(self):
        first = results(a__none__0__curve=[1.0], a__none__1__curve=[2.0], a__target=[3.0])
        second = results(b__none__0__curve=[4.0], b__none__0__counts=[5.0])
        assert tables.arrays_by_data([first, second], "curve") == {
            "a": {"none": [[1.0], [2.0]]},
            "b": {"none": [[4.0]]},
        }
        assert tables.arrays_by_data([first, second], "target") == {"a": {"target": [[3.0]]}}

    def test_training_curves(self):
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

    def test_arrays_are_of_the_first_run_that_has_the_data(self):
        runs = [results(a__none__0__curve=[1.0]), results(a__none__0__curve=[2.0])]
        assert tables.mean_maps(runs, "curve") == {"a": {"none": [1.0]}}

    def test_ablation_curves(self):
        arrays = {f"a__none__{seed}__curve": [1.0, 0.5, seed] for seed in (0, 1)}
        arrays |= {f"a__none__{seed}__counts": [0, 8, 32] for seed in (0, 1)}
        found = tables.ablation_curves([results(**arrays)])
        assert found["share of replaced pixels"].tolist() == [0, 0.25, 1] * 2
        assert found["value"].tolist() == [1, 0.5, 0, 1, 0.5, 1]
        assert set(zip(found["data"], found["model"])) == {("a", "none")}


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

    def test_squared_gradients(self):
        found = tables.squared_gradients(self.ARRAYS)
        found = found[found["data"] == "convolutions"]
        assert found["position"].tolist() == [0, 1] * 3
        assert found["value"].tolist() == [1, 2, 3, 8, 2, 3]
        assert found["model"].tolist() == [*["estimates"] * 4, *["from the paths"] * 2]

    def test_theory_table(self):
        table = frame(rows("path_correlation", "none", [0.9, 0.7], network="convolutions"))
        arrays = self.ARRAYS | {"initialisation|convolutions|error": np.full((2, 1, 2), 0.6)}
        found = tables.theory_table(arrays, table)
        assert found.iloc[0].tolist() == ["convolutions", 0.75, 1.4, 0.8]
