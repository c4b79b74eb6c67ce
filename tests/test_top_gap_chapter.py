"""What the chapter on Top-GAP trains and measures, and its tables of the paper."""

from types import SimpleNamespace

import pandas as pd
import torch

from suite import notebooks
from suite.evidence.claims import load_published
from suite.papers import top_gap
from suite.training.loop import check
from suite.units import Measurement, Training, identity

CHAPTER = "top_gap"


def test_laptop_trains_all_eight_variants_and_three_k():
    values = notebooks.resolve(CHAPTER, "laptop", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training) and unit.seed == 0]
    options = [(unit.network_options, unit.penalties) for unit in trainings]
    variants = {
        (o["fpn"], bool(p), o["k"] < 1)
        for o, p in options
        if o["k"] in (0.08, 1.0) and p in ({}, {"class_map_l1": {"strength": 1.0}})
    }
    assert len(variants) == 8
    assert {o["k"] for o, p in options if o["fpn"] and p} >= {0.02, 0.08, 0.65}
    assert len(trainings) == len({str(unit) for unit in trainings})


def test_other_defences_are_the_unmodified_network_with_one_change():
    values = notebooks.resolve(CHAPTER, "laptop", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    plain = next(
        u
        for u in trainings
        if (u.network_options["fpn"], u.network_options["k"], u.penalties) == (False, 1.0, {})
        and u.network_options.keys() <= {"fpn", "k", "width", "backbone_options"}
    )
    changes = [
        ({"k_wta": 0.2}, {}, 6),
        ({"flc_pooling": True}, {}, 6),
        ({}, {"activation_l1": {"strength": 1.0, "layers": "last"}}, 3),
        ({}, {"activation_l1": {"strength": 1.0, "layers": "all"}}, 3),
    ]
    for options, penalties, n_seeds in changes:
        wanted = dict(plain.network_options) | options
        seeds = [
            u.seed for u in trainings if u.network_options == wanted and u.penalties == penalties
        ]
        assert sorted(seeds) == list(range(n_seeds))
    adversarial = [u for u in trainings if "adversarial" in u.penalties]
    epsilon = notebooks.parameters(CHAPTER)["epsilon"].default
    assert {u.penalties["adversarial"]["epsilon"] for u in adversarial} == {epsilon}
    assert all(u.network_options == plain.network_options for u in adversarial)


def test_workstation_repeats_the_main_comparison_on_fashion_mnist():
    values = notebooks.resolve(CHAPTER, "workstation", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    further = [unit for unit in trainings if unit.data == "fashion_mnist"]
    assert {unit.data for unit in trainings} == {"cifar10-jpeg", "fashion_mnist"}
    assert sorted(unit.seed for unit in further) == sorted([*range(6)] * 3)


def test_the_sets_of_the_paper_are_a_matter_of_parameters():
    changes = {
        "data": "cub",
        "shifted": "cub_on_waterbirds",
        "with_masks": True,
        "folds": 5,
        "backbone_name": "resnet18",
        "pretrained": True,
        "n_train": 4700,
    }
    values = notebooks.resolve(CHAPTER, "paper", changes)
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    assert {(u.data, u.folds, u.fold) for u in trainings} == {("cub", 5, fold) for fold in range(5)}
    for unit in trainings:
        assert unit.network_options["backbone"] == "resnet18"
        assert "backbone_options" not in unit.network_options
        check(unit)


def test_every_row_of_a_published_table_has_a_value_for_every_column():
    tables = load_published(CHAPTER)["tables"]
    assert [table["number"] for table in tables] == [*"1234567", *(f"A{n}" for n in range(1, 10))]
    for table in tables:
        assert all(len(row) == len(table["columns"]) for row in table["rows"]), table["id"]
    gains = [ours - plain for _, _, plain, ours in tables[1]["rows"]]
    assert min(gains) > 0.1


def smoke():
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, "smoke", {})


class Kept:
    """A store in which each measurement kept maps that say which it is."""

    def read_tensors(self, key):
        if key == "nothing":
            return None
        return {"field" if key.startswith("erf") else "maps": torch.full((4, 2, 2), len(key) / 51)}


def table(units):
    """Return what `compute` would: the value of a unit is its position."""
    rows = [
        {
            "data": getattr(unit, "training", unit).data,
            "network": "top_gap",
            "epochs": 1,
            "seed": 0,
            "value": float(n),
            "std": 0.0,
            "n": 1,
            "undefined": 0,
            "status": "done",
            "seconds": 2.0,
            "key": "k" * 3,
        }
        for n, unit in enumerate(units)
    ]
    return pd.DataFrame(rows)


def test_rows_say_what_was_measured():
    units = top_gap.units(smoke())
    rows, arrays = top_gap.collect(smoke(), table(units), Kept())
    kept = [unit for unit in units if isinstance(unit, Measurement)]
    kept = [unit for unit in kept if unit.metric == "effective_receptive_field"]
    ratios = rows[rows["metric"] == "relative_training_seconds"]
    drawn = len(top_gap.VARIANTS) + len(smoke()["k_values"]) + len(kept)
    assert len(rows) == len(units) - drawn + len(ratios)
    for label, position in rows[rows["metric"] != "relative_training_seconds"]["value"].items():
        row, unit = rows.loc[label], units[int(position)]
        if isinstance(unit, Training):
            assert row["metric"] == "training_loss"
            assert row["k"] == unit.network_options["k"]
            continue
        settings = unit.settings
        if unit.metric == "robust_accuracy":
            assert row["epsilon"] == settings["epsilon"]
            assert row["counts"] == settings.get("counts", "unchanged")
            assert row["attack"] == ("transfer" if "source" in settings else settings["attack"])
            assert row["steps"] == settings.get("attack_settings", {"steps": 1})["steps"]
        elif unit.metric == "robust_to_all":
            assert (row["metric"], row["attack"], row["loss"]) == (
                "robust_accuracy",
                "together",
                "",
            )
        elif settings.get("class_of") == "predicted":
            assert row["metric"] == "predicted_map_mean"
            assert row["sweep"]
        else:
            assert row["metric"] == unit.metric
            assert row["counts"] == row["attack"] == ""
    assert (ratios["value"] == 1).all()
    assert arrays["images"].shape == (2, 3, 40, 40)
    assert arrays["labels"].shape == (2,)
    assert set(arrays["maps|none"].ravel()) == {15}


def test_the_battery_is_for_four_variants_and_transfer_comes_from_the_unmodified_network():
    parameters = smoke()
    units = [unit for unit in top_gap.units(parameters) if isinstance(unit, Measurement)]
    together = [unit for unit in units if unit.metric == "robust_to_all"]
    assert len(together) == 3
    assert all(
        [attack["attack"] for attack in unit.settings["attacks"]]
        == ["pgd", "apgd", "apgd", "square"]
        for unit in together
    )
    (transfer,) = [unit for unit in units if "source" in unit.settings]
    assert transfer.training.network_options["fpn"]
    (plain,) = [
        model
        for model in top_gap.models(parameters)
        if model.variant == "none" and model.data == parameters["data"]
    ]
    source = top_gap.training(SimpleNamespace(**parameters), plain)
    assert transfer.settings["source"] == identity(source)
    assert source.penalties == {}
    assert not source.network_options["fpn"]


def test_seconds_of_training_are_relative_to_the_same_seed():
    columns = ["variant", "seed", "seconds", "status", "main"]
    rows = [
        ("none", 0, 2.0, "done", True),
        ("none", 1, 4.0, "diverged", True),
        ("fpn", 0, 3.0, "done", True),
        ("fpn", 1, 3.0, "done", True),
        ("fpn", 0, 9.0, "done", False),
    ]
    trained = pd.DataFrame(rows, columns=columns).assign(
        metric="training_loss", data="d", value=0.1, std=0.2, n=7
    )
    ratios = top_gap.training_seconds(trained)
    assert ratios[["variant", "value"]].to_numpy().tolist() == [["none", 1.0], ["fpn", 1.5]]
    assert set(ratios["metric"]) == {"relative_training_seconds"}
    assert set(ratios["n"]) == {1}
    assert ratios["std"].isna().all()


def test_l1_alone_is_matched_by_clean_accuracy():
    columns = ["variant", "strength", "value", "main", "further", "test"]
    rows = [
        (top_gap.ALL_THREE, 1.0, 0.8, True, False, "own"),
        (top_gap.ALL_THREE, 1.0, 0.1, False, False, "own"),
        ("l1", 0.1, 0.95, False, False, "own"),
        ("l1", 1.0, 0.83, True, False, "own"),
        ("l1", 1.0, 0.75, True, False, "own"),
        ("l1", 1.0, 0.0, True, False, "shifted"),
        ("l1", 1.0, 0.0, True, True, "own"),
        ("l1", 10.0, 0.7, False, False, "own"),
        ("none", 1.0, 0.8, True, False, "own"),
    ]
    table = pd.DataFrame(rows, columns=columns).assign(metric="accuracy", status="done")
    assert top_gap.matched(table).tolist() == [True, *[False] * 2, *[True] * 3, *[False] * 3]
