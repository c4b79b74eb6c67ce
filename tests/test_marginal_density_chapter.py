"""What the chapter on the marginal density trains and measures, and the rows that come of it."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.evidence.answers import claim_value
from suite.evidence.quote import mean, paired, sentence
from suite.evidence.results import load_results
from suite.evidence.tables import select
from suite.papers import marginal_density
from suite.papers import marginal_density_tables as tables
from suite.papers.marginal_density import at_equal_accuracy, plan, to_standard

CHAPTER = "marginal_density"


def parameters(profile="smoke", **changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, profile, {}) | changes


@pytest.mark.parametrize("profile", ["workstation", "paper"])
def test_table_1_is_trained_as_printed(profile):
    """Appendix A.8: 80 epochs, a learning rate of 0.0001, the block put above or below anew."""
    items = [item for item in plan(parameters(profile)) if item.labels]
    rows = [(i.labels, i.unit) for i in items if i.labels["panel"] == "methods"]
    rows = [(labels, unit) for labels, unit in rows if unit.training.network == "mlp"]
    trainings = [unit.training for _, unit in rows]
    fields = {(t.epochs, t.learning_rate, t.swap_halves, t.n_train) for t in trainings}
    assert fields == {(80, 1e-4, True, None)}
    readings = {
        (labels["norm"], unit.settings["epsilon"], labels["step_size"])
        for labels, unit in rows
        if labels["metric"].startswith("pgd")
    }
    assert readings == {(n, e, s) for n, e in (("l2", 1.0), ("linf", 0.3)) for s in (0.2, 0.01)}


def test_ratios_to_the_standard_network_are_of_the_same_seed():
    rows = pd.DataFrame({"value": [2.0, 1, 1, 5, 8, 2, 9], "seed": [0, 0, 1, 1, 0, 0, 0]})
    rows["method"] = ["standard", "density", "density", *["standard"] * 2, *["density"] * 2]
    rows["panel"] = [*["methods"] * 4, *["photos"] * 2, "strength"]
    rows["data"] = [*["block"] * 4, *["photo"] * 2, "block"]
    rows = rows.assign(network="mlp", metric="whole", std=0.5)
    ratios = to_standard(pd.concat([rows, rows.assign(metric="accuracy")]))
    assert ratios["value"].tolist() == [1, 0.5, 0.2, 1, 1, 0.25]
    assert ratios["std"].isna().all()
    assert set(ratios["metric"]) == {"whole_ratio"}


def test_networks_that_diverged_have_no_values_and_no_arrays():
    values = parameters(seeds=[0, 1])
    fields = [vars(getattr(unit, "training", unit)) for unit in plan(values).units()]
    table = pd.DataFrame([{n: of[n] for n in ("data", "network", "seed")} for of in fields])
    table = table.assign(value=np.nan, std=np.nan, n=4, status="diverged", key="0")
    empty = SimpleNamespace(read_tensors=lambda key: None)
    rows, arrays = plan(values).collect(marginal_density, values, table, empty)
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
    metrics = "accuracy", "leakage"
    lines = [(*key, *pair) for key, values in curves.items() for pair in zip(metrics, values)]
    rows = pd.DataFrame(lines, columns=["method", "strength", "metric", "value"])
    common = {"panel": "strength", "data": "d", "network": "n", "seed": 0, "status": "done"}
    return rows.assign(**common, step_size=np.nan)


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
    lossless = {k: (0.895, v[1]) if k[0] == "input_gradient" else v for k, v in CURVES.items()}
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


def test_unknown_part_or_metric_of_a_sweep_is_refused():
    values = parameters()
    for wrong, told in (
        ({"part": "lang"}, "unknown part of a sweep 'lang': did you mean 'long'"),
        ({"metrics": ["leakag"]}, "unknown metric of a sweep 'leakag': did you mean 'leakage'"),
    ):
        with pytest.raises(UsageError, match=told):
            plan(values | {"sweeps": [values["sweeps"][0] | wrong]})


def test_step_sizes_are_compared_beside_their_mean():
    moved = {s: {key: (a, s + b) for key, (a, b) in CURVES.items()} for s in (0.01, 0.2)}
    rows = pd.concat([swept(curves).assign(step_size=size) for size, curves in moved.items()])
    rows = rows.replace({"metric": {"leakage": "pgd_l2"}})
    found = at_equal_accuracy(rows).query("method == 'density'")
    found = found.set_index("metric")["value"]
    assert found["pgd_l2_0.2"] - found["pgd_l2_0.01"] == pytest.approx(0.19)
    assert found["pgd_l2"] == pytest.approx(found[["pgd_l2_0.2", "pgd_l2_0.01"]].mean())


@pytest.fixture(scope="module")
def kept():
    found = [load_results(CHAPTER, profile) for profile in ("desktop", "workstation")]
    return [pd.concat(part) for part in zip(*((r.frame, r.verdicts) for r in found))]


class TestPage:
    """The sentences and figures that the page takes from names.yml."""

    @pytest.mark.parametrize("name", tables.PAGE["sentences"])
    def test_sentences_were_written_for_what_was_kept(self, kept, name):
        frame, verdicts = kept
        entry, values = tables.PAGE["sentences"][name], {}
        for key, given in entry["values"].items():
            if isinstance(given, str):
                values[key] = claim_value(CHAPTER, verdicts, *given.split("@"))
                continue
            where = {column: v for column, v in given.items() if column != "pair"}
            rows, pair = select(frame, status="done", **where), given.get("pair")
            values[key] = paired(rows, "method", *pair) if pair else mean(rows)
        text = sentence(entry["text"], values, entry["expects"])
        assert "written for" not in text
        assert "not run:" not in text
        assert all(values.values())

    def test_longest_trainings_count_each_network_once(self, kept):
        rows = tables.longest(kept[0])
        assert set(rows["panel"]) == {"methods", "long"}
        assert not rows.duplicated(["method", "strength", "seed", "metric"]).any()
        assert {"pgd_l2_0.01", "pgd_l2_0.2"} <= set(rows["metric"])
        assert set(rows["noise_std"].dropna()) == {0.1}
        more = rows[(rows["panel"] == "long") & (rows["method"] == "density")]
        added = more[more["strength"] == 0.3].assign(strength=0.2, profile="workstation")
        with_more = tables.longest(pd.concat([kept[0], added]))
        assert len(with_more) == len(rows) + len(added)  # as a later panel adds networks
