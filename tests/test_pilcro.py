import itertools
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from benchmarks import tables as benchmarks
from suite import notebooks
from suite.evidence.results import load_results
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
