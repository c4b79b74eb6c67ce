"""What the chapter on the marginal density trains and measures, and the rows that come of it."""

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.papers import marginal_density
from suite.papers.marginal_density import Design, to_standard
from suite.papers.marginal_density_measures import FORMS
from suite.units import Measurement, Training

CHAPTER = "marginal_density"


def parameters(profile="smoke", **changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, profile, {}) | changes


def rows_of(part, profile="smoke", **changes):
    rows = Design(parameters(profile, **changes)).rows
    return [(labels, unit) for labels, unit in rows if labels["panel"] == part]


def methods(rows, **equal):
    return {
        labels["method"]
        for labels, unit in rows
        if all(getattr(unit.training, name) == value for name, value in equal.items())
    }


def test_laptop_has_the_methods_of_tables_1_and_2_with_six_seeds_and_few_of_what_is_slow():
    rows = rows_of("methods", "laptop")
    assert methods(rows) == set(
        "standard at_fgsm at_pgd softplus hessian input_gradient density".split()
    )
    assert methods(rows, seed=5) == methods(rows) - {"at_fgsm", "at_pgd"}
    rows = rows_of("groups", "laptop")
    assert methods(rows, seed=5) == set(
        "standard group_dro score_matching input_gradient density group_dro_density".split()
    )
    assert methods(rows_of("implementations", "laptop")) == {"density_stable", "density_naive"}
    assert not rows_of("photos", "laptop")


def test_networks_other_than_the_first_have_the_methods_of_table_3():
    rows = rows_of("methods", "workstation")
    assert methods(rows, network="vgg11") == {"standard", "input_gradient", "density"}
    assert "at_pgd" in methods(rows, network="mlp")
    implementations = rows_of("implementations", "workstation")
    assert methods(implementations, network="resnet") == {"density_stable"}


@pytest.mark.parametrize(
    ("method", "penalties"),
    [
        ("standard", {}),
        ("softplus", {}),
        ("group_dro", {}),
        ("at_fgsm", {"adversarial": {"strength": 0.5, "epsilon": 0.3, "step_size": 0.3}}),
        ("hessian", {"input_hessian": {"strength": 0.01}}),
        ("score_matching", {"score_matching": {"strength": 1e-4, "trace": "taylor"}}),
        ("input_gradient", {"logit_gradient": {"strength": 0.2}}),
        ("density", {"marginal_density": {"strength": 0.2}}),
        ("group_dro_density", {"marginal_density": {"strength": 0.2}}),
        ("density_naive", {"marginal_density": {"strength": 0.2, "implementation": "naive"}}),
    ],
)
def test_a_method_is_its_penalties(method, penalties):
    panel = {"data": "mnist5k", "network": "mlp", "epochs": 1, "foreign": ["fashion_mnist"]}
    training = Design(parameters()).training(panel, method, 3, 0.2)
    assert training.penalties == penalties
    assert (training.seed, training.learning_rate) == (3, 1e-3)
    assert training.network_options == ({"softplus": 10.0} if method == "softplus" else {})
    assert training.balance_groups == method.startswith("group_dro")


def test_the_order_of_the_norm_is_a_setting_unless_it_is_two():
    panel = {"data": "mnist5k", "network": "mlp", "epochs": 1}
    training = Design(parameters()).training(panel, "density", 0, 0.2, 1.2)
    assert training.penalties["marginal_density"]["p"] == 1.2
    assert {labels["p"] for labels, _ in rows_of("norms")} == {2.0, 1.2}


def test_images_of_the_standard_network_are_kept_and_shown_to_the_others():
    rows = rows_of("battery", n_battery=7)
    transfer = [(labels, unit) for labels, unit in rows if labels["attack"] == "transfer"]
    assert methods(transfer) == {"at_pgd", "input_gradient", "density"}
    for labels, unit in transfer:
        assert unit.metric == "transfer_accuracy"
        assert unit.settings["n_images"] == 7
        assert unit.settings["attack_settings"]["norm"] == labels["norm"]
    kept = [labels for labels, unit in rows if unit.settings.get("keep_images")]
    assert {(labels["method"], labels["attack"]) for labels in kept} == {("standard", "pgd")}
    assert {labels["epsilon"] for labels, _ in rows} == {1.0, 0.05, 0.1, 0.00392}


def test_the_strength_of_a_row_is_that_of_the_two_gradients():
    by_method = {labels["method"]: labels["strength"] for labels, _ in rows_of("methods")}
    assert by_method["density"] == by_method["input_gradient"] == 0.1
    assert by_method["standard"] == by_method["hessian"] == 0.0
    assert {labels["strength"] for labels, _ in rows_of("strength")} == {0.1, 1.0}


def test_the_first_networks_are_drawn_and_every_network_has_its_training():
    units = marginal_density.units(parameters())
    trainings = [unit for unit in units if isinstance(unit, Training)]
    measured = [unit for unit in units if isinstance(unit, Measurement)]
    assert {str(unit.training) for unit in measured} == {str(unit) for unit in trainings}
    assert len({str(unit) for unit in trainings}) == len(trainings)
    drawn = Design(parameters()).pictures
    assert {unit.training.seed for unit in drawn.values()} == {0}
    assert "maps|groups|density" in drawn
    assert "ascent|photo|resized:mnist5k:28|wide_resnet|cure" in drawn


class Kept:
    """A store in which tensors say of which unit they are: a key is its position."""

    def __init__(self, units):
        self.units = units

    def read_tensors(self, key):
        n, unit = int(key), self.units[int(key)]
        if unit.metric == "step_milliseconds":
            return {form: torch.tensor([1.0, 2.0]) * (i + 1) for i, form in enumerate(FORMS)}
        parts = {
            "saliency_maps": {"maps": (1, 1, 2, 2), "images": (1, 1, 2, 2)},
            "activation_ascent": {"images": (2, 1, 2, 2)},
            "worst_group_accuracy": {"accuracies": (4,)},
            "pixel_perturbation": {"curves": (3, 5)},
        }[unit.metric]
        return {name: torch.full(shape, float(n)) for name, shape in parts.items()}


def computed(units):
    """Return what `compute` would: the value of a unit is one more than its position."""
    rows = [
        {
            "data": getattr(unit, "training", unit).data,
            "network": getattr(unit, "training", unit).network,
            "seed": getattr(unit, "training", unit).seed,
            "value": float(n + 1),
            "std": 0.5,
            "n": 4,
            "status": "done",
            "key": str(n),
        }
        for n, unit in enumerate(units)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def collected():
    units = marginal_density.units(parameters(seeds=[0, 1]))
    return units, *marginal_density.collect(parameters(seeds=[0, 1]), computed(units), Kept(units))


def test_each_row_has_the_labels_of_its_unit(collected):
    units, rows, _ = collected
    n = len(Design(parameters(seeds=[0, 1])).rows)
    for position, row in enumerate(rows.iloc[:n].itertuples()):
        unit = units[position]
        assert row.value == position + 1
        assert (row.data, row.seed) == (unit.training.data, unit.training.seed)
        for column in ("noise_std", "epsilon"):
            np.testing.assert_equal(getattr(row, column), unit.settings.get(column, np.nan))
        if unit.metric == "ood_auroc":
            assert row.foreign == unit.settings["data"]


def test_times_have_a_row_each_turn_and_form_and_ratios_of_the_same_turn(collected):
    _, rows, _ = collected
    timing = rows[rows["panel"] == "timing"]
    first = timing[timing["data"] == "blockmnist5k"]
    by_method = {key: part["value"].tolist() for key, part in first.groupby(["metric", "method"])}
    # Forms take 1 to 5 (none, naive, stable, efficient, logsumexp), in the second turn twice that.
    assert by_method["step_milliseconds", "stable"] == [3.0, 6.0]
    for name, ratio in (("stable", 4 / 3), ("logsumexp", 4 / 5), ("plain", 4)):
        values = by_method[f"efficient_to_{name}_seconds", "density"]
        assert values == pytest.approx([ratio, ratio])
    assert timing["status"].eq("done").all()
    assert timing["strength"].eq(0.1).all()


def test_ratios_to_the_standard_network_are_of_the_same_seed(collected):
    _, rows, _ = collected
    for metric in ("leakage", "centred"):
        ratios = rows[rows["metric"] == f"{metric}_ratio"]
        assert ratios[ratios["method"] == "standard"]["value"].eq(1).all()
        for row in ratios.itertuples():
            same = rows[
                (rows["metric"] == metric)
                & (rows["panel"] == row.panel)
                & (rows["seed"] == row.seed)
                & (rows["data"] == row.data)
            ].set_index("method")["value"]
            assert row.value == pytest.approx(same[row.method] / same["standard"])
        assert ratios["std"].isna().all()
    assert set(rows[rows["metric"] == "whole_ratio"]["panel"]) == {"methods", "photos"}
    assert to_standard(rows[:0], "shift").empty


def test_arrays_hold_maps_ascents_groups_and_mean_curves(collected):
    units, _, arrays = collected
    n = next(n for n, u in enumerate(units) if u.metric == "activation_ascent")
    assert arrays["ascent|block|blockmnist5k|mlp|standard"].mean() == n
    assert arrays["maps|block|standard|maps"].shape == (1, 1, 2, 2)
    curves = [
        n
        for n, u in enumerate(units[: len(Design(parameters(seeds=[0, 1])).rows)])
        if u.metric == "pixel_perturbation"
        and "marginal_density" in u.training.penalties
        and u.training.network == "mlp"
    ]
    assert len(curves) == 2
    curve = arrays["curve|blockmnist5k|mlp|density"]
    assert curve.tolist() == [np.mean(curves)] * 5
    names = {name for name in arrays if name.startswith("groups|texturedmnist5k|density|")}
    assert names == {f"groups|texturedmnist5k|density|{seed}" for seed in (0, 1)}


def test_networks_that_diverged_have_rows_without_values_and_no_arrays(collected):
    units, *_ = collected

    class Nothing:
        def read_tensors(self, key):
            return None

    table = computed(units).assign(value=np.nan, status="diverged")
    rows, arrays = marginal_density.collect(parameters(seeds=[0, 1]), table, Nothing())
    assert rows["value"].isna().all()
    assert not arrays
