"""The units of the chapter on importance landscapes, its rows, and what its page says of them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import tables as benchmarks
from suite import notebooks
from suite.evidence.claims import load_published
from suite.evidence.results import load_results
from suite.evidence.statistics import Interval
from suite.evidence.tables import paired_difference
from suite.papers import pilcro, pilcro_tables
from suite.units import Measurement, Pretrained, Training, identity, training_of

PANEL = {"data": "digits-centred", "network": "resnet", "epochs": 3, "n_train": 50}
PARAMETERS = {
    "panels": [PANEL],
    "pretrained": [],
    "alphas": [10],
    "interval": 5,
    "seeds": [0, 1],
    "few_seeds": 1,
    "compared": ["none", "target 10"],
    "checked": ["target 10"],
    "learning_rate": 0.1,
    "batch_size": 10,
    "early_epochs": [1, 2],
    "printed_alphas": [1],
    "n_landscape": 20,
    "n_pretrained": 8,
    "n_draws_pretrained": 3,
    "block": 4,
    "block_pretrained": 32,
    "n_location": 30,
    "categories": ["weather", "digital"],
    "levels": [2, 4],
    "n_corrupted": 4,
    "n_ablated": 5,
    "n_baselines": 2,
    "n_steps": 3,
    "stride": 16,
    "n_draws": 12,
    "theory_seeds": 1,
}
ANYWHERE = PANEL | {"data": "digits-anywhere"}


def units(*panels, **changes):
    return pilcro.plan(PARAMETERS | {"panels": panels} | changes).units()


def trainings(found):
    return [unit for unit in found if isinstance(unit, Training)]


class TestUnits:
    def test_every_model_is_trained_and_those_that_are_not_compared_with_few_seeds(self):
        full = trainings(units(PANEL))
        assert [(t.epochs, t.seed) for t in full] == [(3, 0), (3, 1)] * 2 + [(3, 0)]
        assert [t.penalties for t in full[::2]] == [
            {},
            {"landscape_target": {"strength": 10.0, "every": 5}},
            {"landscape_curvature": {"strength": 10.0, "every": 5}},
        ]
        assert {(t.learning_rate, t.batch_size, t.n_train) for t in full} == {(0.1, 10, 50)}

    def test_a_panel_names_models_and_those_with_few_seeds_and_its_own_settings(self):
        panel = PANEL | {"models": ["none", "target 10"], "few": ["target 10"], "batch_size": 7}
        full = trainings(units(panel))
        assert [(bool(t.penalties), t.seed) for t in full] == [(False, 0), (False, 1), (True, 0)]
        assert {t.batch_size for t in full} == {7}

    def test_a_model_of_a_panel_may_have_seeds_of_its_own(self):
        panel = PANEL | {"models": ["none", "target 10"], "seeds_of": {"target 10": [1, 5, 7]}}
        full = trainings(units(panel))
        assert [t.seed for t in full if not t.penalties] == [0, 1]
        assert [t.seed for t in full if t.penalties] == [1, 5, 7]
        anywhere = ANYWHERE | {"models": panel["models"], "seeds_of": panel["seeds_of"]}
        found = [u for u in units(anywhere) if isinstance(u, Measurement)]
        pairs = {
            (len(u.training.penalties), u.training.seed) for u in found if "beside" in u.settings
        }
        assert pairs == {(0, 1), (1, 1)}  # seeds that both have

    def test_a_model_of_a_panel_may_be_paired_for_some_of_its_seeds(self):
        panel = ANYWHERE | {"models": ["none", "target 10"], "paired_seeds": {"target 10": [1]}}
        found = [unit for unit in units(panel) if isinstance(unit, Measurement)]
        paired = [unit for unit in found if "beside" in unit.settings]
        assert {unit.training.seed for unit in paired} == {1}
        alone = [unit for unit in found if unit.metric == "corrupted_accuracy"]
        assert {unit.training.seed for unit in alone} == {0, 1}

    def test_models_of_a_panel_may_be_marked_as_trained_otherwise(self):
        slow = PANEL | {"models": ["none", "target 10"], "marked": "slow", "learning_rate": 0.01}
        plan = pilcro.plan(PARAMETERS | {"panels": [slow | {"checked": [], "early": []}]})
        assert {one.labels["model"] for one in plan} == {"none, slow", "target 10, slow"}
        assert {one.unit.learning_rate for one in plan if isinstance(one.unit, Training)} == {0.01}

    def test_curves_are_of_shorter_trainings_of_the_models_that_are_compared(self):
        measured = [unit for unit in units(PANEL | {"early": [2]}) if isinstance(unit, Measurement)]
        early = [unit for unit in measured if unit.training.epochs == 2]
        assert {(tuple(u.training.penalties), u.training.seed) for u in early} == {
            (penalty, seed) for penalty in ((), ("landscape_target",)) for seed in (0, 1)
        }
        names = {(unit.metric, unit.settings.get("part")) for unit in early}
        assert names == {("accuracy", None), ("flatness", "tv"), ("flatness", "block_tv")}

    def test_as_printed_the_strength_is_multiplied_by_the_number_of_positions(self):
        printed = units(PANEL)[-1]
        settings = {"strength": 32.0 * 32.0, "every": 5}
        assert printed.training.penalties == {"landscape_target": settings}
        assert (printed.training.seed, printed.metric) == (0, "accuracy")
        last = units(PANEL | {"crop_padding": 4})[-1]
        assert last.training.penalties["landscape_curvature"]["strength"] == 10

    def test_robustness_is_measured_of_some_models_on_what_two_networks_classify_right(self):
        found = [u for u in units(ANYWHERE) if isinstance(u, Measurement)]
        beside = [u for u in found if "beside" in u.settings]
        kinds = {(u.metric, u.settings.get("category"), u.settings.get("level")) for u in beside}
        assert kinds == {("ablation_auc", None, None)} | {
            ("corruption_robustness", category, level)
            for category in ("weather", "digital")
            for level in (2, 4)
        }
        for unit in beside:
            penalties = [
                list(one["penalties"]) if "penalties" in one else []
                for one in (identity(unit.training), unit.settings["beside"])
            ]
            assert sorted(penalties) == [[], ["landscape_target"]]
            assert unit.settings["beside"]["seed"] == unit.training.seed
        assert not [
            u for u in units(PANEL) if "beside" in getattr(u, "settings", {})
        ]  # on centred digits nothing is lost

    def test_networks_that_are_not_trained_here_have_classes_drawn(self):
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
    for number, unit in enumerate(pilcro.plan(parameters).units()):
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
    rows, arrays = pilcro.collect(parameters, computed, FakeStore())
    return computed, rows, arrays


class TestCollect:
    def test_names_models_and_puts_cropping_into_the_data(self, collected):
        _, rows, _ = collected
        full = rows[rows["metric"] == "cross_entropy"]
        assert len(full) == 5 + 5 + 4
        models = full.groupby("data", sort=False)["model"].unique().map(list).to_dict()
        assert models == {
            "digits-centred": ["none", "target 10", "curvature 10"],
            "digits-anywhere": ["none", "target 10", "curvature 10"],
            "digits-centred-cropped": ["none", "target 10"],
        }
        assert set(zip(full["model"], full["penalty"], full["alpha"])) == {
            ("none", "none", 0.0),
            ("target 10", "target", 10.0),
            ("curvature 10", "curvature", 10.0),
        }

    def test_every_row_of_a_network_has_its_tv(self, collected):
        _, rows, _ = collected
        tv = rows[rows["metric"] == "tv"].set_index(pilcro.NETWORK)["value"]
        for metric in ("accuracy", "noise", "training_loss"):
            of_metric = rows[(rows["metric"] == metric) & (rows["penalty"] != "cropped")]
            names = list(of_metric[pilcro.NETWORK].itertuples(index=False, name=None))
            assert of_metric["tv"].tolist() == tv.loc[names].tolist()

    def test_curves_keep_their_epochs_and_the_rest_has_none(self, collected):
        _, rows, _ = collected
        epochs = rows.groupby("metric")["epochs"].unique().map(sorted)
        for metric in ("accuracy_early", "tv_early", "block_tv_early"):
            assert epochs[metric] == [1, 2]
        assert epochs["accuracy_printed"] == [3]
        assert epochs["accuracy"] == epochs["tv"] == epochs["path_correlation"] == [0]
        assert rows[rows["metric"] == "path_correlation"]["n"].unique().tolist() == [12]
        assert "importance_landscape" not in set(rows["metric"])

    def test_robustness_has_a_row_a_category_level_and_pair(self, collected):
        computed, rows, _ = collected
        robust = rows[rows["metric"] == "robustness"]
        assert set(robust["data"]) == {"digits-anywhere"}
        assert set(robust["pair"]) == {"target 10"}
        assert set(zip(robust["category"], robust["level"])) == {
            (category, level) for category in ("weather", "digital") for level in (2, 4)
        }
        assert robust.groupby(["model", "seed"]).size().tolist() == [4] * 4
        assert len(robust) == (computed["metric"] == "corruption_robustness").sum()

    def test_accuracy_by_location_has_middle_edge_and_what_is_lost(self, collected):
        _, rows, arrays = collected
        names = ["accuracy_in_the_middle", "accuracy_at_edge", "lost_at_edge"]
        one = rows[(rows["data"] == "digits-centred") & (rows["model"] == "target 10")]
        one = one[one["seed"] == 1].set_index("metric")["value"]
        assert one[names].tolist() == [1.0, 0.25, 0.75]
        assert arrays["digits-centred|target 10|1|accuracy"][2, 2] == 1

    def test_landscapes_of_all_seeds_and_of_other_networks_are_there(self, collected):
        _, _, arrays = collected
        found = {name for name in arrays if name.endswith("|landscape")}
        assert {f"digits-centred|none|{seed}|landscape" for seed in (0, 1)} < found
        assert "imagenet-samples|efficientnet_lite0|0|landscape" in found
        assert "digits-anywhere|none, beside target 10|1|landscape" in found  # the curve's, faked
        assert {name for name in arrays if name.endswith("|target")} == {
            f"{data}|target"
            for data in ("digits-centred", "digits-anywhere", "digits-centred-cropped")
        }

    def test_what_claims_compare_stands_beside_centred_digits(self, collected):
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
    kept = pilcro.kept_tensors(PARAMETERS, tensors)
    assert [kept[name].dtype for name in tensors] == [torch.float16, torch.float32]


CHAPTER = "pilcro"
CENTRED, MOVED, CROPPED = "digits-centred", "digits-anywhere", "digits-centred-cropped"
CIFAR = "cifar10-jpeg"


@pytest.fixture(scope="module")
def kept():
    return load_results(CHAPTER, "desktop")


def page():
    cells = json.loads(notebooks.source(CHAPTER).read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@pytest.fixture(scope="module")
def photographs():
    return load_results(CHAPTER, "workstation")


def test_the_networks_of_photographs_are_those_that_are_said(kept, photographs):
    data = {*kept.frame["data"], *photographs.frame["data"]}
    tuned = "resized:imagenette160:96"
    assert data == {CENTRED, MOVED, CROPPED, CIFAR, tuned, "initialisation", "imagenet-samples"}
    accuracy = photographs.frame.query("data == @CIFAR and metric == 'accuracy' and epochs == 0")
    seeds = accuracy.groupby("model")["seed"].nunique()
    slow = dict.fromkeys(["none, rate 0.03", "target 10, rate 0.03"], 4)
    ten = dict.fromkeys(["none", "target 10", "target 3", "curvature 10"], 10)
    assert seeds.to_dict() == ten | {"target 1": 6, "target 100": 4} | slow
    assert "ten seeds of no penalty, of the target penalty at α = 10 and 3 and of that of" in page()
    assert (
        "six of the target penalty at α = 1, four at α = 100, and four of the first two" in page()
    )
    assert "ten networks of each of these kinds) and on 4,000 digits" in page()
    clean = accuracy.groupby("model")["value"].mean()
    assert f"8 epochs, accuracy {clean['none']:.2f} without penalty and" in page()
    assert f"penalty and {clean['target 10']:.2f} with it, ten networks" in page()
    assert f"without penalty have {clean['none']:.2f} here" in page()


def paired(rows, metric, model):
    """Return the interval of a model less none, each network one value."""
    rows = rows[rows["metric"] == metric]
    rows = rows.groupby(["seed", "model"], as_index=False)["value"].mean()
    return Interval(*paired_difference(rows, "model", model, "none", ["seed"])[:3])


def gap(kept, data, metric, model):
    """Return the interval of a model against none, of logarithms but for differences."""
    rows = kept.frame.query("data == @data and metric == @metric and epochs == 0")
    if metric not in ("accuracy", "target_distance", "accuracy_early"):
        rows = rows.assign(value=np.log(rows["value"]))
    return paired_difference(rows, "model", model, "none", ["seed"])


def test_what_is_said_of_flatness_by_other_measures_is_so(kept):
    for metric in ("block_tv", "centre_to_rim"):
        assert gap(kept, CENTRED, metric, "target 10").low > 0
        apart = gap(kept, MOVED, metric, "target 10")
        assert apart.low < 0 < apart.high
    for data in (CENTRED, MOVED):
        assert gap(kept, data, "target_distance", "target 10").high < 0
        assert gap(kept, data, "target_distance", "target 10").n == 6


def test_what_is_said_of_strengths_is_so(kept):
    factors = [np.exp(gap(kept, CENTRED, "tv", f"target {a}").estimate) for a in (1, 10)]
    assert "({:.2f} times, against {:.2f})".format(*factors) in page()
    mild, elsewhere = (np.exp(gap(kept, MOVED, "tv", f"target {a}").estimate) for a in (1, 10))
    assert f"it is {mild:.2f} times, against {elsewhere:.2f}, at no cost" in page()
    cost = gap(kept, MOVED, "accuracy", "target 1")
    assert cost.low < 0 < cost.high
    assert 0.3 < factors[1] < 0.4  # "to a third or a half"
    assert 0.45 < elsewhere < 0.55
    mild = gap(kept, CENTRED, "accuracy", "target 1")
    assert -0.0055 < mild.estimate < -0.0045  # "half a point"
    assert mild.high < 0
    rows = kept.frame.query("data == @CENTRED and metric == 'accuracy' and epochs == 0")
    strong = rows[rows["model"] == "target 10"].set_index("seed")["value"]
    assert strong.idxmin() == 0
    # Networks that "have hardly learnt", beside a chance of one in ten and 0.97 without penalty.
    assert rows[rows["alpha"] == 100].groupby("model")["value"].mean().between(0.1, 0.6).all()


def test_early_epochs_are_behind_on_average(kept):
    early = kept.frame.query("metric == 'accuracy_early'")
    means = early.groupby(["data", "model"])["value"].mean().unstack()
    for data in (CENTRED, MOVED):
        assert means.loc[data, "target 10"] < means.loc[data, "none"]


def test_a_step_with_the_penalty_costs_what_is_said():
    steps = benchmarks.landscape_steps(benchmarks.measured("cpu"))
    assert steps["step with the penalty"].min() > 2
    assert steps["one in ten with it"].max() < 1.2


def test_what_is_said_of_the_published_tables_is_so():
    published = load_published(CHAPTER)
    nothing = pd.DataFrame(columns=["metric", "status", "data", "value"])
    table = pilcro_tables.tables_3_and_4(published, nothing, "robustness", ["target 10"])
    gaps = table.set_index("category").drop(columns="model").astype(float)
    assert gaps.filter(like="CIFAR").idxmin().tolist() == ["noise", "noise"]
    assert (gaps["published, ImageNet"] < 0).sum() == 3
    paper = pilcro_tables.published_values(published, 2)
    assert all(abs(p["top_1"] - paper["none"]["top_1"]) < 0.01 for p in paper.values())


def test_deviations_say_of_photographs_what_the_profile_has():
    p = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "workstation", {}))
    panel, *_, tuned = p["panels"]
    assert f"over {panel['epochs']} epochs (`workstation`, a number" in page()
    steps = panel["epochs"] * -(-50_000 // p["batch_size"]) // p["interval"]
    assert f"20 (`desktop`), {steps} (`workstation`)" in page()
    assert p["levels"] == [3]
    assert f"level 3, digits anywhere) or {p['n_corrupted']} (`workstation`, level 3)" in page()
    ablated = f"{p['n_ablated']} images, {p['n_baselines']} baselines, every {p['stride']}th"
    assert ablated in page()
    steps = -(-tuned["n_train"] // tuned["batch_size"])
    assert f"for one epoch, {steps} steps, on {tuned['n_train']:,} photographs" in page()
    assert f"moved by {tuned['shift']} of 96 pixels" in page()
    assert f"a strength that rises in the first {tuned['warm_up']}:" in page()
    assert (tuned["alphas"], tuned["epochs"], tuned["fixed_statistics"]) == ([3.0], 1, True)


def test_the_paper_profile_can_be_decided_and_trains_nothing_twice():
    p = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "paper", {}))
    plan = pilcro.plan(p)
    rows = plan.labels().assign(seed=[training_of(unit).seed for unit in plan.units()])
    assert set(rows["kind"]) == {"full", "early"}  # equation 9 as printed is not trained
    counts = rows.groupby(["data", "model"])["seed"].nunique()
    assert counts.min() == 3
    assert counts["cifar100"][["none", "target 1", "target 10"]].tolist() == [6, 6, 6]
    assert set(rows["pair"]) - {""} == set(rows["model"]) - {"none"}


def test_a_panel_may_have_parameters_for_itself():
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


def test_kinds_and_seeds_of_the_networks_are_those_that_are_said(kept):
    rows = kept.frame.query("metric == 'accuracy' and epochs == 0")
    seeds = rows.groupby(["data", "model"])["seed"].nunique()
    target, curvature = ([f"{p} {a}" for a in (1, 10, 100)] for p in ("target", "curvature"))
    assert seeds[MOVED].to_dict() == dict.fromkeys(["none", *target[:2]], 6)
    assert seeds[CROPPED].to_dict() == dict.fromkeys(["none", "target 10"], 6)
    few = dict.fromkeys([target[2], *curvature], 2)
    assert seeds[CENTRED].drop(["cropped", "target 10 cropped"]).to_dict() == (
        dict.fromkeys(["none", *target[:2]], 6) | few
    )


def test_how_many_images_are_corrupted_and_ablated_is_said():
    p = notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, "desktop", {}))
    assert f"at level {p['levels'][0]} on {p['n_corrupted']} images" in page()
    assert f"here are {p['n_ablated']} with {p['n_baselines']} each (`desktop`)" in page()
    assert len(p["levels"]) == 1
