"""The units of the chapter on importance landscapes, its rows, and what its page says of them."""

import itertools

import pandas as pd
import pytest
import torch

from benchmarks import tables as benchmarks
from reglib import total_variation
from suite import notebooks
from suite.evidence.results import load_results
from suite.metrics import centre_to_rim
from suite.networks import build_network
from suite.papers import pilcro, pilcro_tables
from suite.store import archive_path, read_archive
from suite.units import Measurement, Pretrained, Training, identity, training_of

PANEL = {"data": "digits-centred", "network": "resnet", "epochs": 3, "n_train": 50}
PARAMETERS = {"panels": [PANEL], "pretrained": [], "alphas": [10], "interval": 5, "seeds": [0, 1]}
PARAMETERS |= {"few_seeds": 1, "compared": ["none", "target 10"], "checked": ["target 10"]}
PARAMETERS |= {
    "learning_rate": 0.1,
    "batch_size": 10,
    "early_epochs": [1, 2],
    "printed_alphas": [1],
}
PARAMETERS |= {"n_landscape": 20, "n_pretrained": 8, "n_draws_pretrained": 3, "block": 4}
PARAMETERS |= {"block_pretrained": 32, "n_location": 30, "categories": ["weather", "digital"]}
PARAMETERS |= {"levels": [2, 4], "n_corrupted": 4, "n_ablated": 5, "n_baselines": 2, "n_steps": 3}
PARAMETERS |= {"stride": 16, "n_draws": 12, "theory_seeds": 1}
ANYWHERE = PANEL | {"data": "digits-anywhere"}


def units(*panels, **changes):
    return pilcro.plan(PARAMETERS | {"panels": panels} | changes).units()


def trainings(found):
    return [unit for unit in found if isinstance(unit, Training)]


class TestUnits:
    def test_models_and_their_seeds(self):
        full = trainings(units(PANEL))
        assert [(t.epochs, t.seed) for t in full] == [(3, 0), (3, 1)] * 2 + [(3, 0)]
        assert [t.penalties for t in full[::2]] == [
            {},
            {"landscape_target": {"strength": 10.0, "every": 5}},
            {"landscape_curvature": {"strength": 10.0, "every": 5}},
        ]
        assert {(t.learning_rate, t.batch_size, t.n_train) for t in full} == {(0.1, 10, 50)}

    def test_models_of_a_panel(self):
        panel = PANEL | {"models": ["none", "target 10"], "few": ["target 10"], "batch_size": 7}
        full = trainings(units(panel))
        assert [(bool(t.penalties), t.seed) for t in full] == [(False, 0), (False, 1), (True, 0)]
        assert {t.batch_size for t in full} == {7}

    def test_seeds_of_a_model(self):
        panel = PANEL | {"models": ["none", "target 10"], "seeds_of": {"target 10": [1, 5, 7]}}
        found = [(bool(t.penalties), t.seed) for t in trainings(units(panel))]
        assert found == [(False, 0), (False, 1), (True, 1), (True, 5), (True, 7)]
        anywhere = ANYWHERE | {"models": panel["models"], "seeds_of": panel["seeds_of"]}
        found = [u for u in units(anywhere) if isinstance(u, Measurement)]
        pairs = {
            (len(u.training.penalties), u.training.seed) for u in found if "beside" in u.settings
        }
        assert pairs == {(0, 1), (1, 1)}  # seeds that both have

    def test_paired_seeds(self):
        panel = ANYWHERE | {"models": ["none", "target 10"], "paired_seeds": {"target 10": [1]}}
        found = [unit for unit in units(panel) if isinstance(unit, Measurement)]
        paired = [unit for unit in found if "beside" in unit.settings]
        assert {unit.training.seed for unit in paired} == {1}
        alone = [unit for unit in found if unit.metric == "corrupted_accuracy"]
        assert {unit.training.seed for unit in alone} == {0, 1}

    def test_marked_models(self):
        slow = PANEL | {"models": ["none", "target 10"], "marked": "slow", "learning_rate": 0.01}
        plan = pilcro.plan(PARAMETERS | {"panels": [slow | {"checked": [], "early": []}]})
        assert {one.labels["model"] for one in plan} == {"none, slow", "target 10, slow"}
        assert {one.unit.learning_rate for one in plan if isinstance(one.unit, Training)} == {0.01}

    def test_curves(self):
        measured = [unit for unit in units(PANEL | {"early": [2]}) if isinstance(unit, Measurement)]
        early = [unit for unit in measured if unit.training.epochs == 2]
        assert {(tuple(u.training.penalties), u.training.seed) for u in early} == {
            (penalty, seed) for penalty in ((), ("landscape_target",)) for seed in (0, 1)
        }
        names = {(unit.metric, unit.settings.get("part")) for unit in early}
        assert names == {("accuracy", None), ("flatness", "tv"), ("flatness", "block_tv")}

    def test_equation_9_as_printed(self):
        printed = units(PANEL)[-1]
        settings = {"strength": 32.0 * 32.0, "every": 5}
        assert printed.training.penalties == {"landscape_target": settings}
        assert (printed.training.seed, printed.metric) == (0, "accuracy")
        last = units(PANEL | {"crop_padding": 4})[-1]
        assert last.training.penalties["landscape_curvature"]["strength"] == 10

    def test_robustness_beside_another_network(self):
        found = [u for u in units(ANYWHERE) if isinstance(u, Measurement)]
        beside = [u for u in found if "beside" in u.settings]
        kinds = {(u.metric, u.settings.get("category"), u.settings.get("level")) for u in beside}
        corrupted = itertools.product(["corruption_robustness"], ["weather", "digital"], [2, 4])
        assert kinds == {("ablation_auc", None, None), *corrupted}
        for unit in beside:
            penalties = [
                list(one["penalties"]) if "penalties" in one else []
                for one in (identity(unit.training), unit.settings["beside"])
            ]
            assert sorted(penalties) == [[], ["landscape_target"]]
            assert unit.settings["beside"]["seed"] == unit.training.seed
        alone = [u for u in units(PANEL) if "beside" in getattr(u, "settings", {})]
        assert not alone  # on centred digits nothing is lost

    def test_pretrained_networks(self):
        found = units(pretrained=[["imagenet-samples", "efficientnet_lite0"]])
        network = Pretrained(data="imagenet-samples", network="efficientnet_lite0")
        assert {unit.training for unit in found} == {network}
        own = [unit.settings for unit in found if "of" not in unit.settings]
        assert {settings["n_draws"] for settings in own} == {3}
        blocks = [u.settings["block"] for u in found if "block" in u.settings]
        assert blocks == [32, 32, 32]
        assert {u.settings.get("of", "network") for u in found} == {"network", "paths", "target"}


class FakeStore:
    """Accuracy by shift: 1 in the middle, 1/2 around it, and the number of the key at the edge."""

    def read_tensors(self, key):
        if not key.startswith("shift"):
            return {"landscape": torch.full((2, 2), float(key))}
        accuracy = torch.full((5, 5), float(key.removeprefix("shift")))
        accuracy[1:4, 1:4], accuracy[2, 2] = 0.5, 1.0
        return {"accuracy": accuracy}


@pytest.fixture(scope="module")
def collected():
    panels = [PANEL, ANYWHERE]
    panels.append(PANEL | {"crop_padding": 4, "models": ["none", "target 10"]})
    parameters = PARAMETERS | {"panels": panels}
    parameters["pretrained"] = [["imagenet-samples", "efficientnet_lite0"]]
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
        if metric == "accuracy_by_location":
            row["key"] = f"shift{network.seed / 4}"
        rows.append(
            row | {"std": 0.1, "n": 9, "status": "done"} | dict(unit.settings if measured else {})
        )
    computed = pd.DataFrame(rows)
    rows, arrays = plan.collect(pilcro, parameters, computed, FakeStore())
    return computed, rows, arrays


class TestCollect:
    def test_models_and_cropping(self, collected):
        _, rows, _ = collected
        full = rows[rows["metric"] == "cross_entropy"]
        assert len(full) == 5 + 5 + 4
        models = full.groupby("data", sort=False)["model"].unique().map(list).to_dict()
        every = ["none", "target 10", "curvature 10"]
        expected = dict.fromkeys(["digits-centred", "digits-anywhere"], every)
        assert models == expected | {"digits-centred-cropped": every[:2]}
        kinds = {(m, m.split()[0], float(m.partition(" ")[2] or 0)) for m in full["model"]}
        assert set(zip(full["model"], full["penalty"], full["alpha"])) == kinds

    def test_tv_of_each_row(self, collected):
        _, rows, _ = collected
        tv = rows[rows["metric"] == "tv"].set_index(pilcro.NETWORK)["value"]
        for metric in ("accuracy", "noise", "training_loss"):
            of_metric = rows[(rows["metric"] == metric) & (rows["penalty"] != "cropped")]
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
        expected = set(itertools.product(("weather", "digital"), (2, 4)))
        assert set(zip(robust["category"], robust["level"])) == expected
        assert robust.groupby(["model", "seed"]).size().tolist() == [4] * 4
        assert len(robust) == (computed["metric"] == "corruption_robustness").sum()

    def test_accuracy_by_location(self, collected):
        _, rows, arrays = collected
        names = ["accuracy_in_the_middle", "accuracy_at_edge", "lost_at_edge"]
        one = rows[(rows["data"] == "digits-centred") & (rows["model"] == "target 10")]
        one = one[one["seed"] == 1].set_index("metric")["value"]
        assert one[names].tolist() == [1.0, 0.25, 0.75]
        assert arrays["digits-centred|target 10|1|accuracy"][2, 2] == 1

    def test_landscapes(self, collected):
        _, _, arrays = collected
        found = {name for name in arrays if name.endswith("|landscape")}
        assert {f"digits-centred|none|{seed}|landscape" for seed in (0, 1)} < found
        assert "imagenet-samples|efficientnet_lite0|0|landscape" in found
        targets = {name for name in arrays if name.endswith("|target")}
        data = ("digits-centred", "digits-anywhere", "digits-centred-cropped")
        assert targets == {f"{name}|target" for name in data}

    def test_what_claims_compare(self, collected):
        _, rows, _ = collected
        beside = rows[rows["data"] == "digits-centred"]
        pairs = {
            "translated": ("digits-anywhere", "none"),
            "cropped": ("digits-centred-cropped", "none"),
            "target 10 cropped": ("digits-centred-cropped", "target 10"),
        }
        for model, (data, of_model) in pairs.items():
            copies = beside[beside["model"] == model]
            source = rows[(rows["data"] == data) & (rows["model"] == of_model)]
            assert set(copies["penalty"]) == {model.split()[-1]}
            for metric, values in copies.groupby("metric")["value"]:
                assert values.tolist() == source[source["metric"] == metric]["value"].tolist()
            expected = {"tv", "block_tv", "centre_to_rim", "accuracy_at_edge"}
            expected |= {"accuracy_in_the_middle"} if model == "translated" else {"accuracy"}
            assert set(copies["metric"]) == expected


def test_landscapes_are_kept_in_half_precision():
    tensors = {"landscape": torch.ones(2, 2), "curve": torch.ones(3)}
    kept = pilcro.drawn(PARAMETERS, tensors)
    assert [kept[name].dtype for name in tensors] == [torch.float16, torch.float32]


CHAPTER = "pilcro"
CIFAR = pilcro_tables.CIFAR


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

    def test_training_removes_the_grid_but_adds_weight_to_the_middle(self, kept):
        board = pilcro_tables.untrained(notebooks.profiles(CHAPTER)["workstation"]["panels"][0])
        plain = kept[(kept["data"] == CIFAR) & (kept["model"] == "none")]
        means = plain.groupby("metric")["value"].mean()
        assert total_variation(board) > 10 * means["tv"]
        assert centre_to_rim(board) < means["centre_to_rim"] / 2

    def test_a_step_with_the_penalty_costs_more_on_a_gpu(self):
        cpu, gpu = (benchmarks.landscape_steps(benchmarks.measured(d)) for d in ("cpu", "cuda"))
        assert cpu["one in ten with it"].min() > 1
        assert cpu["one in ten with it"].max() < gpu["one in ten with it"].min()

    @pytest.mark.parametrize("metric", ["ablation", "corrupted_accuracy"])
    def test_networks_fall_into_two_groups_that_are_not_the_batches(self, kept, metric):
        rows = pilcro_tables.select(kept, metric, CIFAR, "target 10")
        means = rows.groupby("seed")["value"].mean()
        assert means[:5].min() > means[5:].max()
        every = pilcro_tables.select(kept, "accuracy", CIFAR, "target 10").set_index("seed")
        assert every["value"].sort_index()[:5].min() < every["value"].sort_index()[5:].max()

    def test_batches_have_the_commits_that_are_named(self):
        records = read_archive(archive_path(CHAPTER, "workstation")).records.values()
        areas = [r for r in records if r.unit.get("metric") == "ablation_auc"]
        found = {(r.provenance["commit"][:7], r.unit["training"]["seed"] > 3) for r in areas}
        assert found == {("13356a8", False), ("c754859", True)}


def test_paper_profile():
    p = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "paper", {}))
    plan = pilcro.plan(p)
    rows = pd.DataFrame([{**item.labels, "seed": training_of(item.unit).seed} for item in plan])
    assert "accuracy_printed" not in set(rows["metric"])  # equation 9 as printed is not trained
    counts = rows.groupby(["data", "model"])["seed"].nunique()
    assert counts.min() == 3
    assert counts["cifar100"][["none", "target 1", "target 10"]].tolist() == [6, 6, 6]
    assert set(rows["pair"]) - {""} == set(rows["model"]) - {"none"}


def test_parameters_of_a_panel():
    tuned = {"models": ["none", "curvature 10"], "checked": [], "warm_up": 5, "shift": 2}
    tuned |= {"n_landscape": 7, "block": 14, "early": [], "few": []}
    panel = {"data": "digits-anywhere", "network": "resnet", "epochs": 1}
    parameters = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "smoke", {}))
    units = pilcro.plan(parameters | {"panels": [panel | tuned], "pretrained": []}).units()
    measured = [unit for unit in units if isinstance(unit, Measurement)]
    assert {unit.metric for unit in measured} == {
        *("accuracy", "cross_entropy", "flatness", "importance_landscape"),
        *("accuracy_by_location", "shifted_accuracy"),
    }
    of_flatness = [unit.settings for unit in measured if unit.metric == "flatness"]
    assert {settings["n_images"] for settings in of_flatness} == {7}
    assert {settings.get("block") for settings in of_flatness} == {14, None}
    penalties = [unit.training.penalties for unit in measured]
    assert {"landscape_curvature": {"strength": 10.0, "warm_up": 5}} in penalties
    shifts = {unit.settings["pixels"] for unit in measured if unit.metric == "shifted_accuracy"}
    assert shifts == {2}
