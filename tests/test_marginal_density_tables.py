"""Tables and sentences of the marginal-density chapter."""

import numpy as np
import pandas as pd
import pytest

from suite.evidence.claims import load_published
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.evidence.tables import mean_text
from suite.papers import marginal_density_tables as tables
from suite.papers.marginal_density import TABLE_1, TABLE_2

WHERE = {"profile": "smoke", "data": "mnist", "network": "mlp"}


def rows(values, **columns):
    """Return a row for each (method, seed) and value."""
    lines = [{"method": m, "seed": s, "value": v} for (m, s), v in values.items()]
    return pd.DataFrame(lines).assign(
        **WHERE | {"panel": "methods", "metric": "accuracy"} | columns
    )


PAIRS = rows(
    {("standard", 0): 0.5, ("standard", 1): 0.7, ("density", 0): 0.7, ("density", 1): 0.8},
    noise_std=np.nan,
    epsilon=np.nan,
    foreign=np.nan,
)


def test_rows_are_selected_by_part_metric_and_columns():
    table = pd.concat([PAIRS, PAIRS.assign(panel="photos", norm="l2"), PAIRS.assign(metric="a")])
    assert len(tables.select(table, "methods", "accuracy")) == 4
    assert len(tables.select(table, ["methods", "photos"], "accuracy")) == 8
    assert len(tables.select(table, ["methods", "photos"], "accuracy", norm="l2")) == 4


def test_panels_are_named_by_what_tells_them_apart():
    table = PAIRS.assign(norm="linf", epsilon=0.1, foreign="fashion_mnist")
    names = [name for name, _ in tables.panels(table, "norm", "epsilon", "foreign")]
    assert names == ["MNIST, MLP, L∞, radius 0.1, against Fashion-MNIST, profile smoke"]
    by_profile = pd.concat([PAIRS, PAIRS.assign(profile="laptop")])
    parts = dict(tables.panels(by_profile))
    assert [*parts] == ["MNIST, MLP, profile smoke", "MNIST, MLP, profile laptop"]
    assert all(len(part) == 4 for part in parts.values())


def test_a_method_table_has_means_intervals_and_published_values():
    columns = {
        "accuracy": tables.Column("acc", 100, "accuracy"),
        "leakage": tables.Column("leak", 1, "leakage"),
        "absent": tables.Column("no column"),
    }
    table = pd.concat([PAIRS, rows({("density", 0): 0.25}, metric="leakage")])
    published = pd.DataFrame(
        {"accuracy": [99.5, np.nan], "leakage": [1.0, 2.0]}, index=["density", "softplus"]
    )
    found = tables.method_table(table, columns, published=published)
    # Of 0.7 and 0.8 the standard error is 0.05, and t with one degree of freedom 12.706.
    assert found.to_dict("records") == [
        {"method": "density", "acc": "75.0 ± 63.5 (99.5)", "leak": "0.250 (1)"}
    ]
    assert tables.unmeasured(table, published) == "Not run, so without a row: SoftPlus."
    assert tables.unmeasured(table, published[:1]) == ""
    only = tables.method_table(table, {"leakage": tables.Column("leak")})
    assert only["method"].tolist() == ["density"]
    plain = tables.method_table(PAIRS, columns)
    assert plain["method"].tolist() == ["standard", "density"]
    assert plain["acc"].tolist() == ["60.0 ± 127.1", "75.0 ± 63.5"]
    assert [*plain] == ["method", "acc"]


def test_columns_may_be_values_of_another_column():
    table = pd.concat([PAIRS.assign(attack="pgd"), PAIRS.assign(attack="fgsm", value=0.25)])
    columns = {"fgsm": tables.Column("FGSM", 100), "pgd": tables.Column("PGD", 100)}
    found = tables.method_table(table, columns, across="attack")
    assert found["FGSM"].tolist() == ["25.0 ± 0.0", "25.0 ± 0.0"]
    assert found["PGD"].str.startswith(("60.0", "75.0")).all()


def test_a_difference_is_that_of_pairs():
    sentence = tables.difference(PAIRS, "density", "standard", 100)
    assert sentence == "density minus standard: 15 [−49, 79], n = 2"
    one = tables.difference(PAIRS[PAIRS["seed"] == 0], "density", "standard")
    assert one == "density minus standard: 0.2, n = 1"
    radii = pd.concat([PAIRS.assign(epsilon=0.1), PAIRS.assign(epsilon=0.2)])
    assert tables.difference(radii, "density", "standard").endswith("n = 4")


def test_parts_of_the_gradient_stand_beside_their_ratios():
    parts = {"whole": 4.0, "shift": 2.0, "centred": 1.0}
    values = [
        rows({("density", 0): value / divisor}, metric=f"{part}{end}")
        for part, value in parts.items()
        for end, divisor in (("", 1), ("_ratio", 8))
    ]
    table = pd.concat([*values, PAIRS])
    assert tables.parts_of_gradient(table[table["method"] == "density"]).to_dict("records") == [
        {
            "method": "density",
            "whole gradient": "4.00 (0.50)",
            "shift": "2.00 (0.25)",
            "centred part": "1.00 (0.12)",
        }
    ]


def test_published_tables_have_the_methods_of_the_chapter():
    printed = tables.published_of(load_published("marginal_density")["tables"])
    assert set(printed["table-1"].index) == set(TABLE_1)
    assert set(printed["table-2"].index) == set(TABLE_2)
    assert printed["table-3/vgg11"]["leakage"]["density"] == 2.899
    groups = tables.published_groups(printed["table-2"])
    assert groups["worst group, CelebA"]["standard"] == "49.90 ± 8.69"
    assert groups["all, Waterbirds"]["group_dro_density"] == "90.52 ± 0.10"
    for table in printed.values():
        shown = tables.published_table(table)
        assert len(shown) == len(table)
    assert [*tables.published_table(printed["table-5"])][1:] == ["L∞ 1/255", "L∞ 2/255", "L∞ 3/255"]
    assert [*tables.published_table(printed["table-4"])][2] == "L2 0.1"
    assert [*tables.published_table(printed["table-6"])][1] == "one logit, CIFAR-100"


def test_rows_of_photographs_are_named_by_norm_and_radius():
    table = pd.DataFrame(
        {"metric": ["accuracy", "pgd_l2", "pgd_linf"], "epsilon": [np.nan, 0.5, 0.00784]}
    )
    assert tables.with_radii(table)["column"].tolist() == ["accuracy", "L2 0.5", "L∞ 2/255"]
    assert tables.with_radii(table[:0])["column"].tolist() == []


ARRAYS = {
    "groups|texturedmnist|standard|0": np.array([1.0, 0.5, 0.25, 1.0]),
    "groups|texturedmnist|standard|1": np.array([0.5, 0.5, 0.75, 1.0]),
    "groups|texturedmnist|density|0": np.array([0.0, 0.0, 0.0, 0.0]),
    "curve|mnist|mlp|density": np.array([0.0, 2.0, 1.0]),
    "maps|block|density|maps": np.zeros(3),
}


def results(arrays, profile="desktop"):
    return Results(pd.DataFrame(), pd.DataFrame(), arrays, {"profile": profile})


def test_figures_are_those_of_the_last_profile_that_has_them():
    larger = results({"curve|mnist|mlp|density": np.ones(3)})
    assert tables.drawn([results(ARRAYS), larger], "curve")["curve|mnist|mlp|density"].sum() == 3
    assert [*tables.drawn([results(ARRAYS), larger], "maps|block")] == ["maps|block|density|maps"]
    assert tables.drawn([larger], "maps") == {}
    both = [results(ARRAYS), results({"curve|mnist|mlp|density": np.ones(3)}, "workstation")]
    assert tables.profile_drawn(both, "curve") == "workstation"
    assert tables.profile_drawn(both, "maps|block") == "desktop"
    assert tables.profile_drawn(both, "ascent") == ""
    panel = {"data": "mnist", "network": "mlp", "epochs": 3}
    assert tables.panel_title(panel, "desktop") == "MNIST, MLP, 3 epochs, profile desktop"
    both = pd.concat([PAIRS, PAIRS.assign(profile="laptop", value=0.0)])
    assert tables.largest(both)["value"].eq(0).all()
    assert tables.largest(both[:0]).empty


def test_what_is_drawn_has_the_order_of_tables():
    arrays = {f"ascent|block|mnist|mlp|{name}": 0 for name in ("density", "at_pgd", "standard")}
    names = [name.rpartition("|")[2] for name in tables.drawn([results(arrays)], "ascent|block")]
    assert names == ["standard", "at_pgd", "density"]


def test_steps_of_training_have_a_row_each_and_a_part():
    kept = {
        f"training_steps|cifar10|{form}|{part}": np.array([1.0, factor])
        for form in ("naive", "stable")
        for part, factor in (("norm", 2.0), ("true", 3.0))
    }
    found = tables.steps([results(kept)], "norm")
    assert found["form"].tolist() == ["naive", "naive", "stable", "stable"]
    assert found["step"].tolist() == [1, 2, 1, 2]
    assert found["value"].tolist() == [1.0, 2.0, 1.0, 2.0]


def test_cosines_stand_beside_the_probability_of_their_image():
    kept = {
        "cosine_gradient|blockmnist|standard|cosine": np.array([0.5, np.nan, 1.0]),
        "cosine_gradient|blockmnist|standard|probability": np.array([0.1, 0.2, 0.9]),
        "cosine_gradient|blockmnist|density|cosine": np.array([0.0]),
        "cosine_gradient|blockmnist|density|probability": np.array([0.0]),
    }
    found = tables.cosines([results(kept)], "standard")
    assert found["value"].tolist() == [0.5, 1.0]
    assert found["probability"].tolist() == [0.1, 0.9]


def test_rows_of_the_two_readings_are_named_apart():
    table = pd.DataFrame(
        {
            "metric": ["accuracy", "pgd_l2", "pgd_linf"],
            "norm": [np.nan, "l2", "linf"],
            "step_size": [np.nan, 0.2, 0.01],
        }
    )
    names = ["accuracy", "l2, steps of 0.2", "linf, steps of 0.01"]
    assert tables.by_reading(table)["column"].tolist() == names


def test_a_trade_off_stands_against_the_mean_clean_accuracy_of_its_strength():
    table = PAIRS.assign(panel="strength", strength=1.0)
    both = pd.concat([table, table.assign(metric="leakage", value=2.0)])
    assert set(tables.trade_off(both, ["leakage"], most_lost=14)["method"]) == {"density"}
    found = tables.trade_off(both, ["leakage"])
    assert found["measure"].eq("leakage").all()
    twice = pd.concat([both, both.assign(step_size=0.01, value=4.0)])
    assert tables.trade_off(twice, ["leakage"])["value"].tolist() == [3.0] * 4
    assert found.set_index("method")["clean"].to_dict() == {
        "standard": pytest.approx(60.0),
        "density": pytest.approx(75.0),
    }


def test_at_equal_accuracy_sizes_have_ratios_and_shares_differences():
    values = {("density", 0): 1.0, ("density", 1): 2.0, ("cure", 0): 2.0, ("cure", 1): 4.0}
    equal = [
        rows(values, panel="equal", metric=metric, against="cure")
        for metric in ("leakage", "pgd_l2")
    ]
    found = tables.at_equal_accuracy(pd.concat(equal), "cure").to_dict("records")
    assert found[0] == {
        "measure": "leakage",
        "density": "1.500",
        "CURE": "3.000",
        "between them": "× 0.50 [0.50, 0.50]",
        "networks": 2,
    }
    # Of -1 and -2 the standard error is 0.5, and t with one degree of freedom 12.706.
    assert found[1]["between them"] == "−1.500 [−7.853, +4.853]"


def swept(step_size, lost):
    """Return networks that lose 0, 1 and 5 points, and fall by `lost` under attack."""
    lines = [("standard", 0.0, 0.9, 0.1)]
    lines += [(method, 1.0, 0.89, 0.8 - gap) for method, gap in (("density", lost), ("cure", 0.0))]
    lines += [(method, 2.0, 0.85, 0.8 - gap) for method, gap in (("density", lost), ("cure", 0.0))]
    found = [
        {"method": m, "strength": s, "metric": metric, "value": value, "step_size": size}
        for m, s, clean, robust in lines
        for metric, value, size in (("accuracy", clean, np.nan), ("pgd_l2", robust, step_size))
    ]
    return pd.DataFrame(found).assign(**WHERE, panel="strength", seed=0, status="done")


def test_sizes_of_steps_are_compared_apart():
    both = pd.concat([swept(0.2, 0.3), swept(0.01, 0.1)])
    found = tables.by_step(both, "cure").set_index("steps of")
    assert found["between them"].to_dict() == {"0.01": "−0.100", "0.2": "−0.300"}
    assert tables.by_step(both[both["method"] == "standard"], "cure").empty


def test_networks_of_the_trade_off_say_how_good_they_are():
    table = swept(0.2, 0.3)
    sweep = {"epochs": 5} | {name: WHERE[name] for name in ("data", "network")}
    names = f"{name_of(WHERE['data'])}, {name_of(WHERE['network'])}"
    text = f"*smoke*, {names}: 5 epochs, standard training 90.0 %"
    assert tables.swept_networks(table, sweep) == f"{text}."
    equal = table[:1].assign(panel="equal", metric="accuracy", value=0.875)
    other = table.assign(data="another", value=0.5)
    found = tables.swept_networks(pd.concat([table, equal, other]), sweep)
    assert found == f"{text}, methods compared at 87.5 % on average."


def test_accuracies_in_groups_are_means_over_networks():
    found = tables.group_accuracies(ARRAYS)
    assert found["method"].tolist() == ["standard", "density"]
    assert found["label 0, background 0"].tolist() == [75.0, 0.0]
    assert found["label 1, background 0"].tolist() == [50.0, 0.0]


def test_curves_of_perturbation_go_over_the_share_of_pixels():
    found = tables.perturbation_curves([results(ARRAYS)])
    assert found["share"].tolist() == [0.0, 50.0, 100.0]
    assert found["value"].tolist() == [0.0, 2.0, 1.0]
    assert set(found["method"]) == {"density"}


@pytest.mark.parametrize("values", [[], [np.nan]])
def test_no_values_have_no_mean(values):
    assert mean_text(pd.Series(values, dtype=float), empty="–") == "–"
