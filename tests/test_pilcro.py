"""The units of the chapter on importance landscapes, its rows, and what its page says of them."""

import itertools
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from benchmarks import tables as benchmarks
from suite import notebooks
from suite.evidence.results import load_results
from suite.evidence.tables import select
from suite.networks import build_network
from suite.papers import pilcro
from suite.units import Measurement, Training, identity

CHAPTER, CIFAR = "pilcro", pilcro.CIFAR
PANEL = {"data": "digits-centred", "network": "resnet", "epochs": 3, "n_train": 50}
PARAMETERS = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "smoke", {}))
PARAMETERS |= {"panels": [PANEL], "pretrained": [], "seeds": [0, 1], "early_epochs": [1, 2]}
PARAMETERS |= {"levels": [2, 4], "n_draws": 12, "theory_seeds": 1}
BOTH = ["none", "target 10"]
ANYWHERE = PANEL | {"data": "digits-anywhere"}


def units(*panels, **changes):
    return pilcro.plan(PARAMETERS | {"panels": panels} | changes).units()


def beside(found):
    """Return the measurements that take another network too."""
    return [unit for unit in found if "beside" in getattr(unit, "settings", {})]


class TestUnits:
    def test_models_and_their_seeds(self):
        for own, seeds in (
            ({}, {"": [0, 1], "landscape_target": [0, 1], "landscape_curvature": [0]}),
            ({"few": ["target 10"]}, {"": [0, 1], "landscape_target": [0]}),
            ({"seeds_of": {"target 10": [1, 5]}}, {"": [0, 1], "landscape_target": [1, 5]}),
        ):
            found, panel = {}, PANEL | ({"models": BOTH} if own else {}) | own
            for training in [unit for unit in units(panel) if isinstance(unit, Training)]:
                found.setdefault("".join(training.penalties), []).append(training.seed)
                assert (training.learning_rate, training.batch_size) == (0.01, 50)
                for settings in training.penalties.values():
                    assert settings == {"strength": 10.0, "every": 2}
            assert found == seeds

    def test_paired_seeds(self):
        for changes, seeds in (("seeds_of", [1, 5]), ("paired_seeds", [1])):
            found = units(ANYWHERE | {"models": BOTH, changes: {"target 10": seeds}})
            assert {unit.training.seed for unit in beside(found)} == {1}  # seeds that both have

    def test_marked_models(self):
        slow = PANEL | {"models": BOTH, "marked": "slow", "checked": [], "early": []}
        plan = pilcro.plan(PARAMETERS | {"panels": [slow | {"learning_rate": 0.01}]})
        assert {one.labels["model"] for one in plan} == {"none, slow", "target 10, slow"}
        assert {one.unit.learning_rate for one in plan if isinstance(one.unit, Training)} == {0.01}

    def test_equation_9_as_printed(self):
        printed = units(PANEL)[-1]
        settings = {"strength": 10 * 32.0 * 32.0, "every": 2}
        assert printed.training.penalties == {"landscape_target": settings}
        assert (printed.training.seed, printed.metric) == (0, "accuracy")

    def test_robustness_beside_another_network(self):
        found = beside(units(ANYWHERE))
        kinds = {(u.metric, u.settings.get("category"), u.settings.get("level")) for u in found}
        corrupted = itertools.product(["corruption_robustness"], ["noise", "weather"], [2, 4])
        assert kinds == {("ablation_auc", None, None), *corrupted}
        for unit in found:
            both = identity(unit.training), unit.settings["beside"]
            penalties = sorted("".join(one.get("penalties", {})) for one in both)
            assert penalties == ["", "landscape_target"]
            assert both[0]["seed"] == both[1]["seed"]
        assert not beside(units(PANEL))  # on centred digits nothing is lost


@pytest.fixture(scope="module")
def collected():
    parameters = PARAMETERS | {"pretrained": [["imagenet-samples", "efficientnet_lite0"]]}
    parameters["panels"] = [PANEL, ANYWHERE, PANEL | {"crop_padding": 4, "models": BOTH}]
    rows = []
    plan = pilcro.plan(parameters)
    for number, unit in enumerate(plan.units()):
        measured = isinstance(unit, Measurement)
        network = unit.training if measured else unit
        metric = unit.metric if measured else "training_loss"
        row = {"data": network.data, "network": network.network, "metric": metric}
        row |= {"value": float(number), "key": str(number)}
        if isinstance(network, Training):
            row |= {"epochs": network.epochs, "seed": network.seed}
        rows.append(row | (dict(unit.settings) if measured else {}))
    computed = pd.DataFrame(rows).assign(std=0.1, n=9, status="done")
    read = SimpleNamespace(read_tensors=lambda key: {"landscape": torch.full((2, 2), float(key))})
    rows, arrays = plan.collect(pilcro, parameters, computed, read)
    return computed, rows, arrays


class TestCollect:
    def test_models_and_cropping(self, collected):
        _, rows, _ = collected
        full = rows[rows["metric"] == "cross_entropy"]
        kinds = full.groupby(["data", "model", "penalty", "alpha"]).size()
        assert kinds.to_dict() == {
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
        found = {name for name in arrays if name.endswith("|landscape")}
        assert {f"digits-centred|none|{seed}|landscape" for seed in (0, 1)} < found
        assert "imagenet-samples|as it is|0|landscape" in found
        targets = {name for name in arrays if name.endswith("|target")}
        data = ("digits-centred", "digits-anywhere", "digits-centred-cropped")
        assert targets == {f"{name}|target" for name in data}
        tensors = {"landscape": torch.ones(2, 2), "curve": torch.ones(3)}
        kept = pilcro.shrink(PARAMETERS, tensors)
        assert [kept[name].dtype for name in tensors] == [torch.float16, torch.float32]


@pytest.fixture(scope="module")
def kept():
    return load_results(CHAPTER, "workstation").frame


class TestWhatThePageSaysWithoutAVerdict:
    def test_parameters(self):
        sizes = []
        for profile, data in (("paper", "cifar100"), ("workstation", CIFAR)):
            panels = notebooks.profiles(CHAPTER)[profile]["panels"]
            panel = next(panel for panel in panels if panel["data"] == data)
            build = {"options": panel.get("network_options", {}), "seed": 0}
            with torch.device("meta"):
                network = build_network(panel["network"], (3, 32, 32), 100, **build)
            sizes.append(sum(p.numel() for p in network.parameters()))
        assert 280 < sizes[0] / sizes[1] < 320

    def test_networks_as_they_start(self, kept):
        plain = kept[(kept["data"] == CIFAR) & (kept["model"] == "none")]
        trained = plain.groupby("metric")["value"].mean()
        start = kept[(kept["data"] == "initialisation") & kept["model"].notna()]
        start = start.pivot_table("value", ["network", "model"], "metric")
        small = start.loc["small ResNet"]
        assert small["tv"]["photographs"] > 10 * trained["tv"]
        assert small["tv"]["statistics of images"] < 2 * trained["tv"]
        assert small["centre_to_rim"].max() < trained["centre_to_rim"] / 2
        of = start.swaplevel()
        assert of.loc["white noise"]["with_photographs"].min() > 0.95
        assert of.loc["random biases"]["with_photographs"].min() > 0.85
        assert of.loc["black margin"]["centre_to_rim"].isna().all()
        assert of.loc["statistics of images"]["with_photographs"].max() < 0.35
        assert of.loc["its paths, scaled"]["with_statistics"].min() > 0.9
        weights = of["centre_to_rim"].unstack("model")
        assert (weights["statistics of images"] > weights["photographs"]).sum() == 3

    def test_a_step_with_the_penalty_costs_more_on_a_gpu(self):
        cpu, gpu = (benchmarks.landscape_steps(benchmarks.load(d)) for d in ("cpu", "cuda"))
        assert cpu["one in ten with it"].min() > 1
        assert cpu["one in ten with it"].max() < gpu["one in ten with it"].min()

    def test_networks_fall_into_two_groups_that_are_not_the_batches(self, kept):
        for metric in ("ablation", "corrupted_accuracy"):
            rows = select(kept, metric=metric, data=CIFAR, model="target 10")
            means = rows.groupby("seed")["value"].mean()
            assert means[:5].min() > means[5:].max()

    def test_a_network_of_imagenet_looks_at_the_middle(self, kept):
        rows = select(kept, metric="centre_to_rim", data="imagenet-samples").set_index("model")
        names = ["its paths", "as it is", "the images"]
        assert rows.loc[names, "value"].is_monotonic_decreasing

    def test_moved_digits_are_classified_right_no_more_often(self):
        rows = load_results(CHAPTER, "desktop").frame
        rows = select(rows, metric="accuracy_by_location", model=BOTH, data="digits-centred")
        means = rows.groupby("model")["value"].mean()
        assert means["target 10"] < means["none"]


def test_parameters_of_a_panel():
    tuned = {"models": ["none", "curvature 10"], "checked": [], "warm_up": 5, "shift": 2}
    tuned |= {"n_landscape": 7, "block": 14, "early": [], "few": []}
    measured = [unit for unit in units(ANYWHERE | tuned) if isinstance(unit, Measurement)]
    settings = [(unit.metric, *unit.settings.items()) for unit in measured]
    assert ("shifted_accuracy", ("pixels", 2)) in settings
    assert ("flatness", ("part", "block_tv"), ("block", 14), ("n_images", 7)) in settings
    penalties = [unit.training.penalties for unit in measured]
    assert {"landscape_curvature": {"strength": 10.0, "warm_up": 5}} in penalties
    assert {unit.training.epochs for unit in measured} == {3}
