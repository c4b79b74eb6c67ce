import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from suite.evidence.claims import load_published
from suite.evidence.results import Results
from suite.papers import pilcro as tables

CIFAR = tables.CIFAR
PUBLISHED = load_published("pilcro")


def rows(metric, model, values, **columns):
    row = {"metric": metric, "model": model, "data": CIFAR, "status": "done", "profile": "laptop"}
    row |= {"network": "resnet", "category": math.nan, "level": math.nan, "pair": ""} | columns
    return [row | {"seed": seed, "value": value} for seed, value in enumerate(values)]


def frame(*lists):
    return pd.DataFrame(itertools.chain(*lists))


TABLE = frame(
    rows("tv", "none", [0.4, 0.2, 0.1]),
    rows("tv", "target 10", [0.1, 0.1]),
    rows("tv", "target 3", [0.1], status="diverged"),
    rows("accuracy", "none", [0.5, 0.6]),
    rows("accuracy", "target 10", [0.4, 0.6, math.nan]),
    rows("robustness", "none", [0.5], category="blur", pair="target 10"),
    rows("robustness", "none", [0.8], category="blur", pair="target 3"),
    rows("robustness", "target 10", [0.6], category="blur", pair="target 10"),
)


def results(**arrays):
    arrays = {name.replace("__", "|"): np.array(array) for name, array in arrays.items()}
    return Results(pd.DataFrame(), pd.DataFrame(), arrays, {})


class TestAgainstNone:
    def test_ratio_is_a_geometric_mean(self):
        value = tables.times(TABLE, "target 10")
        assert (value.estimate, value.n) == (pytest.approx(8**-0.5), 2)
        assert not tables.times(TABLE, "target 3")
        assert tables.strengths(TABLE) == {"none": "no penalty", "target 10": "TV × 0.35"}

    def test_networks_of_one_seed(self):
        assert tables.against_none(TABLE, "tv")["value"].tolist() == [0.25, 0.5]
        points = tables.against_none(TABLE, "accuracy")["value"].tolist()
        assert points == pytest.approx([-10, 0])
        assert tables.against_none(TABLE, "robustness")["value"].tolist() == [pytest.approx(1.2)]

    def test_published(self):
        paper = tables.published_against_none(PUBLISHED, 1)
        assert paper["accuracy"]["target 10"] == pytest.approx(2.16)
        assert paper["tv"]["target 10"] == pytest.approx(0.00094 / 0.0192)
        robust = tables.published_against_none(PUBLISHED, 3).loc["target 10"]
        assert [*robust[["noise_3", "noise"]]] == pytest.approx([0.15 / 0.25, 0.224 / 0.308])
        imagenet = tables.published_against_none(PUBLISHED, 4).loc["target 10"]
        categories = ["noise", "blur", "weather", "digital"]
        assert (imagenet[categories] < 1).sum() == 3  # as the record says


def test_means_of_models():
    means = tables.means(TABLE, CIFAR, names={"none": "plain", "target 3": "broken"})
    row = {"data": "CIFAR-10 (JPEG)", "model": "plain", "TV": "0.233 ± 0.38"}
    assert means.to_dict("records") == [row | {"accuracy": "0.55 ± 0.64", "n": "2 to 3"}]
    theory = {"data": "initialisation", "network": "convolutions"}
    table = frame(rows("path_correlation", None, [0.9], **theory))
    means = tables.means(table, *theory.values())
    assert means[["model", "correlation"]].values.tolist() == [["convolutions", "0.9"]]


class TestArrays:
    def test_from_the_first_run_with_some(self):
        first = results(**{"digits__none__0__curve": [1.0], f"{CIFAR}__target": [3.0]})
        second = results(**{f"{CIFAR}__none__{n}__curve": [n] for n in (4, 5)})
        runs = [first, second, results(**{f"{CIFAR}__none__0__curve": [6.0]})]
        assert tables.maps_of(runs, "curve") == {"none": [[4.0], [5.0]]}
        assert tables.maps_of(runs, "target") == {"target": [[3.0]]}

    def test_landscapes_above_their_numbers(self, monkeypatch):
        main, cropped = ({"data": d, "category": ""} for d in (tables.MAIN, tables.CROPPED))
        maps = {f"{tables.MAIN}__none__{n}__landscape": np.full((2, 2), n) for n in (0, 1)}
        maps[f"{tables.MAIN}__target 10__0__landscape"] = np.ones((2, 2))
        maps[f"{tables.CROPPED}__none__0__landscape"] = np.zeros((2, 2))
        maps[f"{tables.MAIN}__target"] = np.eye(2)
        table = [rows("tv", "none", [0.4, 0.2], **main), rows("accuracy", "none", [0.5], **main)]
        table += [rows("tv", "target 10", [0.1], **main), rows("accuracy", "none", [1], **cropped)]
        table += [rows("tv", "none", [0.25], **cropped), rows("accuracy", "target 10", [1], **main)]
        monkeypatch.setattr(tables, "initial_landscape", lambda *panel: torch.ones(2, 2))
        drawn = tables.landscapes([results(**maps)], frame(*table), PUBLISHED, [])
        assert [float(part.mean()) for part in drawn["rows"][0]] == [1, 0.5, 1, 0, 0.5]
        titles = "trained,\nno penalty", "α = 10,\nTV × 0.25", "crops,\nno penalty"
        assert tuple(drawn["titles"][1:4]) == titles
        notes = "not\ntrained\nTV 0|50.0\nTV 0.3000|100.0\npaper\n× 0.05|100.0\nTV 0.2500|\n\nTV 1"
        assert drawn["notes"][0] == notes.split("|")

    def test_squared_gradients(self):
        mean, paths = np.array([[[1.0, 2.0]], [[3.0, 8.0]]]), np.array([[2.0, 3.0]])
        kinds = "convolutions", "convolutions with ReLU"
        arrays = {f"initialisation|{kind}|mean": mean for kind in kinds}
        arrays |= {f"initialisation|{kind}|paths": paths for kind in kinds}
        table = tables.squared_gradients(arrays).query("data == 'convolutions'")
        assert table["position"].tolist() == [0, 1] * 3
        assert table["value"].tolist() == [1, 2, 3, 8, 2, 3]
        assert table["model"].tolist() == [*["estimates"] * 4, *["from the paths"] * 2]
