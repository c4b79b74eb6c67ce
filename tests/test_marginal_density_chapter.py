"""What the chapter on the marginal density trains and measures, and the rows that come of it."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.errors import UsageError
from suite.evidence.answers import claim_value
from suite.evidence.quote import mean, paired, sentence
from suite.evidence.results import load_results
from suite.evidence.tables import select
from suite.papers import marginal_density
from suite.papers import marginal_density_tables as tables
from suite.papers.marginal_density import LISTS, at_equal_accuracy, plan, to_standard

CHAPTER = "marginal_density"


def parameters(profile="smoke", **changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, profile, {}) | changes


def rows_of(part, profile="smoke", **changes):
    rows = plan(parameters(profile, **changes))
    return [(i.labels, i.unit) for i in rows if i.labels and i.labels["panel"] == part]


def methods(rows, **equal):
    return {
        labels["method"]
        for labels, unit in rows
        if all(getattr(unit.training, name) == value for name, value in equal.items())
    }


@pytest.mark.parametrize("profile", ["workstation", "paper"])
def test_table_1_is_trained_as_printed(profile):
    """Appendix A.8: 80 epochs, a learning rate of 0.0001, the block put above or below anew."""
    panel = [u.training for _, u in rows_of("methods", profile) if u.training.network == "mlp"]
    assert {(t.epochs, t.learning_rate, t.swap_halves, t.n_train) for t in panel} == {
        (80, 1e-4, True, None)
    }
    readings = {
        (labels["norm"], unit.settings["epsilon"], labels["step_size"])
        for labels, unit in rows_of("methods", profile)
        if labels["metric"].startswith("pgd") and unit.training.network == "mlp"
    }
    assert readings == {(n, e, s) for n, e in (("l2", 1.0), ("linf", 0.3)) for s in (0.2, 0.01)}


def test_the_order_of_the_norm_is_a_setting_unless_it_is_two():
    given = {
        labels["p"]: unit.training.penalties["marginal_density"].get("p")
        for labels, unit in rows_of("norms")
    }
    assert given == {2.0: None, 1.2: 1.2}


def test_a_sweep_may_have_parameters_of_its_own():
    """Networks of photographs have no null block; both norms of their attacks are measured."""
    first, photos = (
        {"data": name, "network": "mlp", "epochs": 1} for name in ("blockmnist", "abc")
    )
    photos |= {"strengths": [5.0], "sweep_seeds": [7], "other_strengths": {}, "n_images": 9}
    photos |= {"pgd": [{"norm": "linf", "epsilon": 0.01, "step_size": 0.001}], "warm_up": 3}
    rows = rows_of("strength", sweeps=[first, photos])
    blocks, own = (
        [row for row in rows if row[1].training.data == name] for name in ("blockmnist", "abc")
    )
    networks = {(labels["method"], labels["strength"]) for labels, _ in own}
    assert networks == {("standard", 0), ("density", 5), ("input_gradient", 5)}
    assert [{unit.training.seed for _, unit in part} for part in (blocks, own)] == [{0}, {7}]
    for _, unit in own:
        assert all(p["warm_up"] == 3 for p in unit.training.penalties.values())
        assert unit.settings.get("n_images", 9) in (9, 4)  # those of curves and the battery
    of_blocks, of_photos = ({labels["metric"] for labels, _ in part} for part in (blocks, own))
    leakage = {"leakage", "leakage_share", "leakage_other"}
    assert of_blocks - of_photos == {*leakage, "pgd_l2"}
    assert of_photos - of_blocks == {"pgd_linf", "cosine_gradient"}


def test_a_panel_may_have_other_seeds_and_methods_than_the_chapter():
    own = [p | {"seeds": [1, 5]} for p in parameters()["block_panels"]]
    rows = rows_of("methods", block_panels=own, seeds=[0, 1, 2])
    assert methods(rows, seed=5) == {"standard", "input_gradient", "density"}
    assert "at_pgd" in methods(rows, seed=0)
    density = [(labels["metric"], u) for labels, u in rows if labels["method"] == "density"]
    assert {u.training.seed for _, u in density} == {1, 5}
    assert {u.training.seed for metric, u in density if metric == "leakage_centred"} == {1}
    own = [p | {"seeds": [4], "left_out": ["cure"]} for p in parameters()["photo_panels"]]
    rows = rows_of("photos", photo_panels=own)
    assert methods(rows, seed=4) == methods(rows) == {*LISTS["photos"]} - {"cure"}
    plan_of_photos = plan(parameters(photo_panels=own, ascent_panels=[]))
    drawn = {
        item.keep: item.unit for item in plan_of_photos if item.keep.startswith("ascent|photo")
    }
    assert {name.rsplit("|", 1)[1] for name in drawn} == methods(rows)
    assert {unit.training.seed for unit in drawn.values()} == {4}


def test_ratios_to_the_standard_network_are_of_the_same_seed():
    cells = [
        ("methods", "block", "standard", 0, 2.0),
        ("methods", "block", "density", 0, 1.0),
        ("methods", "block", "density", 1, 1.0),
        ("methods", "block", "standard", 1, 5.0),
        ("photos", "photo", "standard", 0, 8.0),
        ("photos", "photo", "density", 0, 2.0),
        ("strength", "block", "density", 0, 9.0),
    ]
    rows = pd.DataFrame(cells, columns=["panel", "data", "method", "seed", "value"])
    rows = rows.assign(network="mlp", metric="whole", std=0.5)
    ratios = to_standard(pd.concat([rows, rows.assign(metric="accuracy")]))
    assert ratios["value"].tolist() == [1, 0.5, 0.2, 1, 1, 0.25]
    assert ratios["std"].isna().all()
    assert set(ratios["metric"]) == {"whole_ratio"}


def test_of_curves_their_mean_is_kept():
    curves = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    kept = marginal_density.drawn({}, {"curves": curves, "images": curves})
    assert kept["curves"].tolist() == [0.0, 2.0]
    assert kept["images"] is curves
    assert marginal_density.drawn({}, kept)["curves"].tolist() == [0.0, 2.0]


class Nothing:
    """A store of networks that diverged."""

    def read_tensors(self, key):
        return None


def test_networks_that_diverged_have_no_values_and_no_arrays():
    values = parameters(seeds=[0, 1])
    units = plan(values).units()
    fields = [vars(getattr(unit, "training", unit)) for unit in units]
    table = pd.DataFrame([{n: of[n] for n in ("data", "network", "seed")} for of in fields])
    table = table.assign(value=np.nan, std=np.nan, n=4, status="diverged", key="0")
    rows, arrays = plan(values).collect(marginal_density, values, table, Nothing())
    assert rows["value"].isna().all()
    assert not arrays


# Standard training is right for 0.9 of the images.
CURVES = {
    ("standard", 0.0): (0.90, 1.0),
    ("density", 0.5): (0.89, 0.5),
    ("density", 1.0): (0.87, 0.125),
    ("density", 2.0): (0.80, 0.01),
    ("input_gradient", 0.1): (0.88, 0.8),
    ("input_gradient", 0.5): (0.90, 0.8),  # scatter: together they lose one point
    ("input_gradient", 1.0): (0.86, 0.1),
}


def swept(curves=CURVES):
    rows = [
        {"method": method, "strength": strength, "metric": metric, "value": value}
        for (method, strength), values in curves.items()
        for metric, value in zip(("accuracy", "leakage"), values)
    ]
    common = {"panel": "strength", "data": "d", "network": "n", "seed": 0, "status": "done"}
    common |= {"step_size": np.nan}
    return pd.DataFrame(rows).assign(**common)


def test_at_equal_accuracy_sizes_are_interpolated_by_logarithms():
    """One to four points of accuracy are lost between measured strengths of both. Density's log2 of
    leakage falls from -1 by one a point to -3, and on to log2 0.01 over seven more."""
    found = at_equal_accuracy(swept()).set_index(["metric", "method"])["value"]
    last = -3 + (np.log2(0.01) + 3) / 7
    assert np.log2(found["leakage", "density"]) == pytest.approx((-1 - 2 - 3 + last) / 4)
    places = np.array([0, 1, 2, 3]) / 3
    expected = np.log(0.8) * (1 - places) + np.log(0.1) * places
    assert found["leakage", "input_gradient"] == pytest.approx(np.exp(expected.mean()))
    assert found["accuracy", "density"] == pytest.approx((0.89 + 0.88 + 0.87 + 0.86) / 4)


def test_nothing_is_interpolated_before_the_weakest_strength():
    """From three points on; there density's curve goes on to 0.01 and the other's ends at four."""
    late = {key: value for key, value in CURVES.items() if key != ("density", 0.5)}
    found = at_equal_accuracy(swept(late)).set_index(["metric", "method"])
    assert found["n"].eq(2).all()
    slope = (np.log(0.01) - np.log(0.125)) / 7
    assert np.log(found["value"]["leakage", "density"]) == pytest.approx(np.log(0.125) + slope / 2)


def test_methods_without_a_common_loss_of_accuracy_are_not_compared():
    lossless = {
        key: (0.895, value[1]) if key[0] == "input_gradient" else value
        for key, value in CURVES.items()
    }
    assert at_equal_accuracy(swept(lossless)).empty
    for absent in ("density", "standard"):
        rest = {key: value for key, value in CURVES.items() if key[0] != absent}
        assert at_equal_accuracy(swept(rest)).empty


def test_each_seed_and_sweep_is_compared_on_its_own_curves():
    half = swept({key: (accuracy, leakage / 2) for key, (accuracy, leakage) in CURVES.items()})
    both = at_equal_accuracy(pd.concat([swept(), half.assign(seed=1), half.assign(panel="long")]))
    wide = both[both["metric"] == "leakage"].pivot_table("value", ["panel", "seed"], "method")
    assert [*wide.index] == [("equal", 0), ("equal", 1), ("long_equal", 0)]
    for other in wide.index[1:]:
        assert wide.loc[other].to_numpy() == pytest.approx(wide.loc[("equal", 0)].to_numpy() / 2)
    assert both["against"].eq("input_gradient").all()


class TestLongSweep:
    """A second sweep of the same data and network, told apart by its part."""

    def test_step_sizes_are_quantities_of_their_own(self):
        sweep = parameters()["sweeps"][0] | {
            "part": "long",
            "metrics": ["accuracy", "pgd_l2"],
            "other_strengths": {"loss_gradient": [0.1]},
        }
        readings = [{"norm": "l2", "epsilon": 1.0, "step_size": size} for size in (0.2, 0.01)]
        rows = rows_of("long", sweeps=[sweep], pgd=readings)
        measured = {labels["metric"] for labels, _ in rows}
        assert measured == {"accuracy", "pgd_l2_0.2", "pgd_l2_0.01"}
        assert methods(rows) == {"standard", "density", "input_gradient", "loss_gradient"}
        loss = {"input_gradient": {"strength": 0.1}}
        assert all(
            unit.training.penalties == loss
            for labels, unit in rows
            if labels["method"] == "loss_gradient"
        )
        assert not rows_of("strength", sweeps=[sweep], pgd=readings)

    def test_the_gradient_of_the_loss_is_among_other_strengths(self):
        sweep = parameters()["sweeps"][0] | {"other_strengths": {"loss_gradient": [0.1]}}
        assert notebooks.resolve(CHAPTER, "smoke", {"sweeps": [sweep]})["sweeps"] == [sweep]

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            ({"part": "lang"}, "unknown part of a sweep 'lang': did you mean 'long'"),
            ({"metrics": ["leakag"]}, "unknown metric of a sweep 'leakag': did you mean 'leakage'"),
        ],
    )
    def test_unknown_part_or_metric_is_refused(self, wrong, told):
        with pytest.raises(UsageError, match=told):
            rows_of("strength", sweeps=[parameters()["sweeps"][0] | wrong])

    def test_step_sizes_are_compared_beside_their_mean(self):
        sizes = [
            swept({key: (a, size + leakage) for key, (a, leakage) in CURVES.items()})
            .replace({"metric": {"leakage": "pgd_l2"}})
            .assign(step_size=size)
            for size in (0.01, 0.2)
        ]
        found = at_equal_accuracy(pd.concat(sizes)).query("method == 'density'")
        found = found.set_index("metric")["value"]
        assert found["pgd_l2_0.2"] - found["pgd_l2_0.01"] == pytest.approx(0.19)
        assert found["pgd_l2"] == pytest.approx(found[["pgd_l2_0.2", "pgd_l2_0.01"]].mean())


@cache
def kept():
    found = [load_results(CHAPTER, profile) for profile in ("desktop", "workstation")]
    return [pd.concat(part) for part in zip(*((r.frame, r.verdicts) for r in found))]


class TestPage:
    """The sentences and figures that the page takes from names.yml."""

    @pytest.mark.parametrize("name", tables.PAGE["sentences"])
    def test_sentences_were_written_for_what_was_kept(self, name):
        frame, verdicts = kept()
        entry, values = tables.PAGE["sentences"][name], {}
        for key, given in entry["values"].items():
            if isinstance(given, str):
                values[key] = claim_value(CHAPTER, verdicts, *given.split("@"))
                continue
            where = {column: v for column, v in given.items() if column != "pair"}
            rows = select(frame, status="done", **where)
            pair = given.get("pair")
            values[key] = paired(rows, "method", *pair) if pair else mean(rows)
        text = sentence(entry["text"], values, entry["expects"])
        assert "written for" not in text
        assert "not run:" not in text
        assert all(values.values())

    def test_longest_trainings_count_each_network_once(self):
        rows = tables.longest(kept()[0])
        assert set(rows["panel"]) == {"methods", "long"}
        keys = ["method", "strength", "seed", "metric"]
        assert not rows.duplicated(keys).any()
        assert {"pgd_l2_0.01", "pgd_l2_0.2"} <= set(rows["metric"])
        assert set(rows["noise_std"].dropna()) == {0.1}
        more = rows[(rows["panel"] == "long") & (rows["method"] == "density")]
        added = more.assign(strength=0.1, profile="workstation")
        with_more = tables.longest(pd.concat([kept()[0], added]))
        assert len(with_more) == len(rows) + len(added)  # as a later panel adds networks
