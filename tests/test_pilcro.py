import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import tables as benchmarks
from suite import notebooks
from suite.evidence.claims import load_published
from suite.evidence.results import Results, load_results
from suite.evidence.tables import select
from suite.papers import pilcro
from suite.units import Measurement, Training
from tests.small_batches import n_parameters

CHAPTER, CIFAR = "pilcro", pilcro.CIFAR
PANEL = {"data": "digits-centred", "network": "resnet", "epochs": 3, "n_train": 50}
PARAMETERS = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "smoke", {}))
PARAMETERS |= {"panels": [PANEL], "pretrained": [], "seeds": [0, 1], "early_epochs": [1, 2]}
PARAMETERS |= {"levels": [2, 4], "n_draws": 12, "theory_seeds": 1}
BOTH = ["none", "target 10"]
ANYWHERE = PANEL | {"data": "digits-anywhere"}


def units(*panels, **changes):
    return pilcro.plan(PARAMETERS | {"panels": panels} | changes).units()


def paired(units):
    return [unit for unit in units if "beside" in getattr(unit, "settings", {})]


class TestUnits:
    def test_models_and_their_seeds(self):
        for changes, expected in (
            ({}, {"": [0, 1], "landscape_target": [0, 1], "landscape_curvature": [0]}),
            ({"compared": [], "few_seeds": 1}, {"": [0], "landscape_target": [0]}),
            ({"seeds_of": {"target 10": [1, 5]}}, {"": [0, 1], "landscape_target": [1, 5]}),
        ):
            seeds, panel = {}, PANEL | ({"models": BOTH} if changes else {}) | changes
            for training in [unit for unit in units(panel) if isinstance(unit, Training)]:
                seeds.setdefault("".join(training.penalties), []).append(training.seed)
                assert (training.learning_rate, training.batch_size) == (0.01, 50)
                for settings in training.penalties.values():
                    assert settings == {"strength": 10.0, "every": 2}
            assert seeds == expected

    def test_paired_seeds(self):
        for changes, seeds in (("seeds_of", [1, 5]), ("paired_seeds", [1])):
            pairs = paired(units(ANYWHERE | {"models": BOTH, changes: {"target 10": seeds}}))
            assert {unit.training.seed for unit in pairs} == {1}  # seeds that both have

    def test_marked_models(self):
        slow = PANEL | {"models": BOTH, "marked": "slow", "checked": [], "early_epochs": []}
        plan = pilcro.plan(PARAMETERS | {"panels": [slow | {"learning_rate": 0.01}]})
        assert {item.labels["model"] for item in plan} == {"none, slow", "target 10, slow"}
        trainings = [item.unit for item in plan if isinstance(item.unit, Training)]
        assert {training.learning_rate for training in trainings} == {0.01}

    def test_equation_9_as_printed(self):
        printed = units(PANEL)[-1]
        settings = {"strength": 10 * 32.0 * 32.0, "every": 2}
        assert printed.training.penalties == {"landscape_target": settings}
        assert (printed.training.seed, printed.metric) == (0, "accuracy")

    def test_robustness_next_to_another_network(self):
        measurements = paired(units(ANYWHERE))
        corrupted = itertools.product(["corruption_robustness"], ["noise", "weather"], [2, 4])
        assert {
            (unit.metric, unit.settings.get("category"), unit.settings.get("level"))
            for unit in measurements
        } == {("ablation_auc", None, None), *corrupted}
        for unit in measurements:
            pair = unit.training.identity, unit.settings["beside"]
            penalties = sorted("".join(network.get("penalties", {})) for network in pair)
            assert penalties == ["", "landscape_target"]
            assert pair[0]["seed"] == pair[1]["seed"]
        assert not paired(units(PANEL))  # on centred digits nothing is lost


@pytest.fixture(scope="module")
def collected():
    parameters = PARAMETERS | {"pretrained": [["imagenet-samples", "efficientnet_lite0"]]}
    parameters["panels"] = [PANEL, ANYWHERE, PANEL | {"crop_padding": 4, "models": BOTH}]
    rows = []
    plan = pilcro.plan(parameters)
    for number, unit in enumerate(plan.units()):
        network = getattr(unit, "training", unit)
        row = {"data": network.data, "network": network.network, "value": float(number)}
        row |= {"metric": getattr(unit, "metric", "training_loss"), "key": str(number)}
        if isinstance(network, Training):
            row |= {"epochs": network.epochs, "seed": network.seed}
        rows.append(row | dict(getattr(unit, "settings", {})))
    computed = pd.DataFrame(rows).assign(std=0.1, n=9, status="done")
    read = SimpleNamespace(read_tensors=lambda key: {"landscape": torch.full((2, 2), float(key))})
    rows, arrays = plan.collect(pilcro, parameters, computed, read)
    return computed, rows, arrays


class TestCollect:
    def test_models_and_cropping(self, collected):
        _, rows, _ = collected
        rows = rows[rows["metric"] == "cross_entropy"]
        counts = rows.groupby(["data", "model", "penalty", "alpha"]).size()
        assert counts.to_dict() == {
            (data, model, model.split()[0], float(model.partition(" ")[2] or 0)): n
            for data in ("digits-centred", "digits-anywhere", "digits-centred-cropped")
            for model, n in {"none": 2, "target 10": 2, "curvature 10": 1}.items()
            if model in BOTH or "cropped" not in data
        }

    def test_tv_of_each_row(self, collected):
        _, rows, _ = collected
        tv = rows[rows["metric"] == "tv"].set_index(pilcro.NETWORK)["value"]
        for metric in ("accuracy", "noise", "training_loss"):
            of_metric = rows[rows["metric"] == metric]
            names = list(of_metric[pilcro.NETWORK].itertuples(index=False, name=None))
            assert of_metric["tv"].tolist() == tv.loc[names].tolist()

    def test_epochs_of_curves(self, collected):
        _, rows, _ = collected
        epochs = rows.groupby("metric")["epochs"].unique().map(sorted)
        for metric in ("accuracy_early", "tv_early", "block_tv_early"):
            assert epochs[metric] == [1, 2]
        assert epochs["accuracy_printed"] == [3]
        assert epochs["accuracy"] == epochs["tv"] == epochs["path_correlation"] == [0]
        assert rows[rows["metric"] == "path_correlation"]["n"].unique().tolist() == [12]
        assert "importance_landscape" not in set(rows["metric"])

    def test_robustness(self, collected):
        computed, rows, _ = collected
        robust = rows[rows["metric"] == "robustness"]
        assert set(robust["data"]) == {"digits-anywhere"}
        assert set(robust["pair"]) == {"target 10"}
        expected = set(itertools.product(("noise", "weather"), (2, 4)))
        assert set(zip(robust["category"], robust["level"])) == expected
        assert robust.groupby(["model", "seed"]).size().tolist() == [4] * 4
        assert len(robust) == (computed["metric"] == "corruption_robustness").sum()

    def test_landscapes(self, collected):
        _, _, arrays = collected
        names = {f"digits-centred|none|{seed}|landscape" for seed in (0, 1)}
        assert names | {"imagenet-samples|as it is|0|landscape"} < arrays.keys()
        targets = {name for name in arrays if name.endswith("|target")}
        data = ("digits-centred", "digits-anywhere", "digits-centred-cropped")
        assert targets == {f"{name}|target" for name in data}
        tensors = {"landscape": torch.ones(2, 2), "curve": torch.ones(3)}
        shrunk = pilcro.shrink(PARAMETERS, tensors)
        assert [shrunk[name].dtype for name in tensors] == [torch.float16, torch.float32]


@pytest.fixture(scope="module")
def kept():
    return load_results(CHAPTER, "workstation").frame


class TestPage:
    def test_numbers_of_parameters(self):
        sizes = []
        for profile, data in (("paper", "cifar100"), ("workstation", CIFAR)):
            panels = notebooks.profiles(CHAPTER)[profile]["panels"]
            panel = next(panel for panel in panels if panel["data"] == data)
            options = panel.get("network_options", {})
            sizes.append(n_parameters(panel["network"], (3, 32, 32), **options))
        assert 280 < sizes[0] / sizes[1] < 320

    def test_untrained_networks(self, kept):
        plain = kept[(kept["data"] == CIFAR) & (kept["model"] == "none")]
        trained = plain.groupby("metric")["value"].mean()
        start = kept[(kept["data"] == "initialisation") & kept["model"].notna()]
        start = start.pivot_table("value", ["network", "model"], "metric")
        small = start.loc["small ResNet"]
        assert small["tv"]["photographs"] > 10 * trained["tv"]
        assert small["tv"]["statistics of images"] < 2 * trained["tv"]
        assert small["centre_to_rim"].max() < trained["centre_to_rim"] / 2
        by_model = start.swaplevel()
        assert by_model.loc["white noise"]["with_photographs"].min() > 0.95
        assert by_model.loc["random biases"]["with_photographs"].min() > 0.85
        assert by_model.loc["black margin"]["centre_to_rim"].isna().all()
        assert by_model.loc["statistics of images"]["with_photographs"].max() < 0.35
        assert by_model.loc["its paths, scaled"]["with_statistics"].min() > 0.9
        weights = by_model["centre_to_rim"].unstack("model")
        assert (weights["statistics of images"] > weights["photographs"]).sum() == 3

    def test_penalty_costs_more_on_gpu(self):
        cpu, gpu = (benchmarks.landscape_steps(benchmarks.load(d)) for d in ("cpu", "cuda"))
        assert cpu["one in ten with it"].min() > 1
        assert cpu["one in ten with it"].max() < gpu["one in ten with it"].min()

    def test_two_groups_of_networks(self, kept):
        for metric in ("ablation", "corrupted_accuracy"):
            rows = select(kept, metric=metric, data=CIFAR, model="target 10")
            means = rows.groupby("seed")["value"].mean()
            assert means[:5].min() > means[5:].max()

    def test_imagenet_network_favours_the_middle(self, kept):
        rows = select(kept, metric="centre_to_rim", data="imagenet-samples").set_index("model")
        names = ["its paths", "as it is", "the images"]
        assert rows.loc[names, "value"].is_monotonic_decreasing

    def test_accuracy_on_moved_digits_is_lower(self):
        rows = load_results(CHAPTER, "desktop").frame
        rows = select(rows, metric="accuracy_by_location", model=BOTH, data="digits-centred")
        means = rows.groupby("model")["value"].mean()
        assert means["target 10"] < means["none"]


def test_parameters_of_a_panel():
    tuned = {"models": ["none", "curvature 10"], "checked": [], "warm_up": 5, "shift": 2}
    tuned |= {"n_landscape": 7, "block": 14, "early_epochs": [], "few_seeds": 6}
    measurements = [unit for unit in units(ANYWHERE | tuned) if isinstance(unit, Measurement)]
    settings = [(unit.metric, *unit.settings.items()) for unit in measurements]
    assert ("shifted_accuracy", ("pixels", 2)) in settings
    assert ("flatness", ("part", "block_tv"), ("block", 14), ("n_images", 7)) in settings
    penalties = [unit.training.penalties for unit in measurements]
    assert {"landscape_curvature": {"strength": 10.0, "warm_up": 5}} in penalties
    assert {unit.training.epochs for unit in measurements} == {3}


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
        value = pilcro.times(TABLE, "target 10")
        assert (value.estimate, value.n) == (pytest.approx(8**-0.5), 2)
        assert not pilcro.times(TABLE, "target 3")
        assert pilcro.strengths(TABLE) == {"none": "no penalty", "target 10": "TV × 0.35"}

    def test_networks_of_one_seed(self):
        assert pilcro.against_none(TABLE, "tv")["value"].tolist() == [0.25, 0.5]
        points = pilcro.against_none(TABLE, "accuracy")["value"].tolist()
        assert points == pytest.approx([-10, 0])
        assert pilcro.against_none(TABLE, "robustness")["value"].tolist() == [pytest.approx(1.2)]

    def test_published(self):
        paper = pilcro.published_against_none(PUBLISHED, 1)
        assert paper["accuracy"]["target 10"] == pytest.approx(2.16)
        assert paper["tv"]["target 10"] == pytest.approx(0.00094 / 0.0192)
        robust = pilcro.published_against_none(PUBLISHED, 3).loc["target 10"]
        assert [*robust[["noise_3", "noise"]]] == pytest.approx([0.15 / 0.25, 0.224 / 0.308])
        imagenet = pilcro.published_against_none(PUBLISHED, 4).loc["target 10"]
        categories = ["noise", "blur", "weather", "digital"]
        assert (imagenet[categories] < 1).sum() == 3  # as the record says


def test_means_of_models():
    means = pilcro.means(TABLE, CIFAR, names={"none": "plain", "target 3": "broken"})
    row = {"data": "CIFAR-10 (JPEG)", "model": "plain", "TV": "0.233 ± 0.38"}
    assert means.to_dict("records") == [row | {"accuracy": "0.55 ± 0.64", "n": "2 to 3"}]
    theory = {"data": "initialisation", "network": "convolutions"}
    table = frame(rows("path_correlation", None, [0.9], **theory))
    means = pilcro.means(table, *theory.values())
    assert means[["model", "correlation"]].values.tolist() == [["convolutions", "0.9"]]


class TestArrays:
    def test_from_the_first_run_with_some(self):
        first = results(**{"digits__none__0__curve": [1.0], f"{CIFAR}__target": [3.0]})
        second = results(**{f"{CIFAR}__none__{n}__curve": [n] for n in (4, 5)})
        runs = [first, second, results(**{f"{CIFAR}__none__0__curve": [6.0]})]
        assert pilcro.maps_of(runs, "curve") == {"none": [[4.0], [5.0]]}
        assert pilcro.maps_of(runs, "target") == {"target": [[3.0]]}

    def test_landscapes_above_their_numbers(self, monkeypatch):
        main, cropped = ({"data": d, "category": ""} for d in (pilcro.MAIN, pilcro.CROPPED))
        maps = {f"{pilcro.MAIN}__none__{n}__landscape": np.full((2, 2), n) for n in (0, 1)}
        maps[f"{pilcro.MAIN}__target 10__0__landscape"] = np.ones((2, 2))
        maps[f"{pilcro.CROPPED}__none__0__landscape"] = np.zeros((2, 2))
        maps[f"{pilcro.MAIN}__target"] = np.eye(2)
        table = [rows("tv", "none", [0.4, 0.2], **main), rows("accuracy", "none", [0.5], **main)]
        table += [rows("tv", "target 10", [0.1], **main), rows("accuracy", "none", [1], **cropped)]
        table += [rows("tv", "none", [0.25], **cropped), rows("accuracy", "target 10", [1], **main)]
        monkeypatch.setattr(pilcro, "initial_landscape", lambda *panel: torch.ones(2, 2))
        drawn = pilcro.landscapes([results(**maps)], frame(*table), PUBLISHED, [])
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
        table = pilcro.squared_gradients(arrays).query("data == 'convolutions'")
        assert table["position"].tolist() == [0, 1] * 3
        assert table["value"].tolist() == [1, 2, 3, 8, 2, 3]
        assert table["model"].tolist() == [*["estimates"] * 4, *["from the paths"] * 2]
