"""The units of the chapter on importance landscapes, and its rows."""

import pandas as pd
import pytest
import torch

from suite.papers import pilcro
from suite.units import Measurement, Training

PANEL = {"data": "digits-centred", "network": "resnet", "epochs": 3, "n_train": 50}
PARAMETERS = {
    "panels": [PANEL],
    "alphas": [10],
    "interval": 5,
    "seeds": [0, 1],
    "few_seeds": 1,
    "learning_rate": 0.1,
    "batch_size": 10,
    "early_epochs": [1, 2],
    "early_models": ["none", "curvature 10", "target 100"],
    "printed_alphas": [1],
    "checked_models": ["none", "target 10"],
    "n_landscape": 20,
    "n_location": 30,
    "corruptions": ["fog", "snow", "contrast"],
    "levels": [2, 4],
    "n_corrupted": 4,
    "n_ablated": 5,
    "n_baselines": 2,
    "n_steps": 3,
    "stride": 16,
    "n_draws": 12,
    "theory_seeds": 1,
}


def units(*panels, **changes):
    return pilcro.units(PARAMETERS | {"panels": panels} | changes)


def trainings(found):
    return [unit for unit in found if isinstance(unit, Training)]


class TestUnits:
    def test_every_model_is_trained_with_every_seed_and_a_penalty_every_few_steps(self):
        full = trainings(units(PANEL))
        assert [(t.epochs, t.seed) for t in full] == [(3, 0), (3, 1)] * 3
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
        measured = [unit for unit in units(panel) if isinstance(unit, Measurement)]
        assert all(unit.training in full for unit in measured)
        assert {unit.training.epochs for unit in measured} == {3}

    def test_early_accuracy_is_that_of_shorter_trainings_of_models_that_are_trained(self):
        measured = [unit for unit in units(PANEL | {"early": [2]}) if isinstance(unit, Measurement)]
        early = [unit for unit in measured if unit.training.epochs == 2]
        assert [(list(unit.training.penalties), unit.training.seed) for unit in early] == [
            ([], 0),
            ([], 1),
            (["landscape_curvature"], 0),
            (["landscape_curvature"], 1),
        ]
        assert {(unit.metric, *unit.settings) for unit in early} == {("accuracy",)}

    def test_as_printed_the_strength_is_multiplied_by_the_number_of_positions(self):
        printed = units(PANEL)[-1]
        settings = {"strength": 32.0 * 32.0, "every": 5}
        assert printed.training.penalties == {"landscape_target": settings}
        assert (printed.training.seed, printed.metric) == (0, "accuracy")
        last = units(PANEL | {"crop_padding": 4})[-1]
        assert (last.training.epochs, last.training.crop_padding) == (2, 4)

    def test_robustness_and_ablation_are_measured_of_some_models_and_not_on_centred_digits(self):
        def names(unit_list, model):
            return [
                (unit.metric, unit.settings.get("corruption"), unit.settings.get("level"))
                for unit in unit_list
                if isinstance(unit, Measurement)
                and list(unit.training.penalties) == model
                and (unit.training.seed, unit.training.epochs) == (0, 3)
            ]

        common = ["accuracy", "top_k_accuracy", "cross_entropy", "importance_landscape"]
        common = [(name, None, None) for name in [*common, "accuracy_by_location"]]
        robust = [
            ("corruption_robustness", c, at) for c in ("fog", "snow", "contrast") for at in (2, 4)
        ]
        anywhere = units(PANEL | {"data": "digits-anywhere"})
        assert names(units(PANEL), []) == common
        assert names(anywhere, []) == [*common, ("ablation_auc", None, None), *robust]
        assert names(anywhere, ["landscape_curvature"]) == common
        every = units(PANEL | {"data": "cifar10-jpeg"}, corruptions=[])
        assert len(names(every, [])) == 4 + 1 + 15 * 2


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
    panels = [PANEL, PANEL | {"data": "digits-anywhere"}]
    panels.append(PANEL | {"crop_padding": 4, "models": ["none", "target 10"]})
    parameters = PARAMETERS | {"panels": panels}
    rows = []
    for number, unit in enumerate(pilcro.units(parameters)):
        measured = isinstance(unit, Measurement)
        training = unit.training if measured else unit
        metric = unit.metric if measured else "training_loss"
        key = f"shift{training.seed / 4}" if metric == "accuracy_by_location" else str(number)
        row = {"data": training.data, "network": "resnet", "epochs": training.epochs}
        row |= {"seed": training.seed, "metric": metric, "key": key, "value": float(number)}
        rows.append(
            row | {"std": 0.1, "n": 9, "status": "done"} | dict(unit.settings if measured else {})
        )
    computed = pd.DataFrame(rows)
    rows, arrays = pilcro.collect(parameters, computed, FakeStore())
    return computed, rows, arrays


class TestCollect:
    def test_names_models_and_puts_cropping_into_the_data(self, collected):
        computed, rows, _ = collected
        full = rows[rows["metric"] == "cross_entropy"]
        assert len(full) == (computed["metric"] == "cross_entropy").sum() == 6 + 6 + 4
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
        for metric in ("accuracy", "top_5", "training_loss"):
            of_metric = rows[(rows["metric"] == metric) & (rows["penalty"] != "cropped")]
            assert (
                of_metric["tv"].tolist()
                == tv.loc[
                    list(of_metric[pilcro.NETWORK].itertuples(index=False, name=None))
                ].tolist()
            )

    def test_early_accuracy_and_robustness_are_means(self, collected):
        computed, rows, _ = collected
        early = rows[rows["metric"] == "early_accuracy"]
        values = computed[(computed["metric"] == "accuracy") & (computed["epochs"] < 3)]["value"]
        first = early[(early["data"] == "digits-centred") & (early["model"] == "none")]
        assert first.sort_values("seed")["value"].tolist() == [
            values.iloc[:2].mean(),
            values.iloc[2:4].mean(),
        ]
        robust = rows[(rows["metric"] == "robustness") & (rows["model"] == "none")]
        robust = robust[robust["seed"] == 0].set_index("category")["value"]
        values = computed[computed["metric"] == "corruption_robustness"].head(6)
        values = values.groupby("corruption")["value"].mean()
        assert set(robust.index) == {"weather", "digital"}
        assert robust["digital"] == values["contrast"]
        assert robust["weather"] == (values["fog"] + values["snow"]) / 2

    def test_accuracy_by_location_has_middle_edge_and_what_is_lost(self, collected):
        _, rows, arrays = collected
        names = ["accuracy_in_the_middle", "accuracy_at_edge", "lost_at_edge"]
        one = rows[(rows["data"] == "digits-centred") & (rows["model"] == "target 10")]
        one = one[one["seed"] == 1].set_index("metric")["value"]
        assert one[names].tolist() == [1.0, 0.25, 0.75]
        assert arrays["digits-centred|target 10|1|accuracy"][2, 2] == 1
        assert "digits-centred|target 10|0|landscape" in arrays
        assert "digits-centred|target 10|1|landscape" not in arrays

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
            expected = {"tv", "accuracy_at_edge"}
            expected |= {"accuracy_in_the_middle"} if model == "translated" else {"accuracy"}
            assert set(copies["metric"]) == expected

    def test_early_and_printed_accuracy_keep_their_epochs_and_the_rest_has_none(self, collected):
        _, rows, arrays = collected
        epochs = rows.groupby("metric")["epochs"].unique().map(sorted)
        assert epochs["accuracy_early"] == [1, 2]
        assert epochs["accuracy_printed"] == [3]
        assert epochs["accuracy"] == epochs["path_correlation"] == [0]
        assert rows[rows["metric"] == "path_correlation"]["n"].unique().tolist() == [12]
        assert {name for name in arrays if name.endswith("|target")} == {
            f"{data}|target"
            for data in ("digits-centred", "digits-anywhere", "digits-centred-cropped")
        }
