from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.evidence.answers import claim_value
from suite.evidence.claims import load_published
from suite.evidence.quote import mean, paired, sentence
from suite.evidence.results import load_results
from suite.evidence.tables import select
from suite.papers import marginal_density
from suite.papers import marginal_density_tables as tables
from suite.papers.marginal_density import LISTS, divide_by_standard, match_accuracy, plan

CHAPTER = "marginal_density"


def parameters(profile="smoke", **changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, profile, {}) | changes


@pytest.mark.parametrize("profile", ["workstation", "paper"])
def test_table_1_training_matches_paper(profile):
    """Appendix A.8: 80 epochs, learning rate 0.0001, each epoch draws the block's position anew."""
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


def test_ratios_are_within_a_seed():
    rows = pd.DataFrame({"value": [2.0, 1, 1, 5, 8, 2, 9], "seed": [0, 0, 1, 1, 0, 0, 0]})
    rows["method"] = ["standard", "density", "density", *["standard"] * 2, *["density"] * 2]
    rows["panel"] = [*["methods"] * 4, *["photos"] * 2, "strength"]
    rows["data"] = [*["block"] * 4, *["photo"] * 2, "block"]
    rows = rows.assign(network="mlp", metric="whole", std=0.5)
    ratios = divide_by_standard(pd.concat([rows, rows.assign(metric="accuracy")]))
    assert ratios["value"].tolist() == [1, 0.5, 0.2, 1, 1, 0.25]
    assert ratios["std"].isna().all()
    assert set(ratios["metric"]) == {"whole_ratio"}


def test_diverged_networks_have_no_values():
    values = parameters(seeds=[0, 1])
    fields = [vars(getattr(unit, "training", unit)) for unit in plan(values).units()]
    table = pd.DataFrame([{n: of[n] for n in ("data", "network", "seed")} for of in fields])
    table = table.assign(value=np.nan, std=np.nan, n=4, status="diverged", key="0")
    empty = SimpleNamespace(read_tensors=lambda key: None)
    rows, arrays = plan(values).collect(marginal_density, values, table, empty)
    assert rows["value"].isna().all()
    assert not arrays


# Accuracy and leakage; standard training has an accuracy of 0.9.
CURVES = {
    ("standard", 0.0): (0.90, 1.0),
    ("density", 0.5): (0.89, 0.5),
    ("density", 1.0): (0.87, 0.125),
    ("density", 2.0): (0.80, 0.01),
    ("input_gradient", 0.1): (0.88, 0.8),
    ("input_gradient", 0.5): (0.90, 0.8),  # scatter: both strengths together lose one point
    ("input_gradient", 1.0): (0.86, 0.1),
}


def sweep_rows(curves=CURVES):
    metrics = "accuracy", "leakage"
    lines = [(*key, *pair) for key, values in curves.items() for pair in zip(metrics, values)]
    rows = pd.DataFrame(lines, columns=["method", "strength", "metric", "value"])
    common = {"panel": "strength", "data": "d", "network": "n", "seed": 0, "status": "done"}
    return rows.assign(**common, step_size=np.nan)


class TestMatchAccuracy:
    def test_sizes_are_interpolated_as_logarithms(self):
        """Both methods have measured losses from one to four points. For density, the log2 of
        leakage falls from -1 by one per point to -3, then to log2 0.01 over seven points."""
        means = match_accuracy(sweep_rows()).set_index(["metric", "method"])["value"]
        last = -3 + (np.log2(0.01) + 3) / 7
        assert np.log2(means["leakage", "density"]) == pytest.approx((-1 - 2 - 3 + last) / 4)
        weights = np.array([0, 1, 2, 3]) / 3
        expected = np.log(0.8) * (1 - weights) + np.log(0.1) * weights
        assert means["leakage", "input_gradient"] == pytest.approx(np.exp(expected.mean()))
        assert means["accuracy", "density"] == pytest.approx((0.89 + 0.88 + 0.87 + 0.86) / 4)

    def test_no_extrapolation_below_weakest_strength(self):
        """From three points on, density's curve goes to 0.01; the other curve ends at four."""
        late = {key: value for key, value in CURVES.items() if key != ("density", 0.5)}
        means = match_accuracy(sweep_rows(late)).set_index(["metric", "method"])
        assert means["n"].eq(2).all()
        expected = np.log(0.125) + (np.log(0.01) - np.log(0.125)) / 7 / 2
        assert np.log(means["value"]["leakage", "density"]) == pytest.approx(expected)

    def test_methods_without_common_loss_are_skipped(self):
        lossless = {k: (0.895, v[1]) if k[0] == "input_gradient" else v for k, v in CURVES.items()}
        assert match_accuracy(sweep_rows(lossless)).empty
        for absent in ("density", "standard"):
            rest = {key: value for key, value in CURVES.items() if key[0] != absent}
            assert match_accuracy(sweep_rows(rest)).empty

    def test_seeds_and_sweeps_are_separate(self):
        half = sweep_rows({key: (accuracy, leak / 2) for key, (accuracy, leak) in CURVES.items()})
        parts = sweep_rows(), half.assign(seed=1), half.assign(panel="long")
        rows = match_accuracy(pd.concat(parts))
        wide = rows[rows["metric"] == "leakage"].pivot_table("value", ["panel", "seed"], "method")
        assert [*wide.index] == [("equal", 0), ("equal", 1), ("long_equal", 0)]
        first, *others = wide.to_numpy()
        assert all(other == pytest.approx(first / 2) for other in others)
        assert rows["against"].eq("input_gradient").all()

    def test_step_sizes_and_their_mean(self):
        moved = {s: {key: (a, s + b) for key, (a, b) in CURVES.items()} for s in (0.01, 0.2)}
        rows = pd.concat([sweep_rows(curves).assign(step_size=s) for s, curves in moved.items()])
        rows = match_accuracy(rows.replace({"metric": {"leakage": "pgd_l2"}}))
        means = rows.query("method == 'density'").set_index("metric")["value"]
        assert means["pgd_l2_0.2"] - means["pgd_l2_0.01"] == pytest.approx(0.19)
        assert means["pgd_l2"] == pytest.approx(means[["pgd_l2_0.2", "pgd_l2_0.01"]].mean())


def test_unknown_part_or_metric_is_refused():
    values = parameters()
    for wrong, message in (
        ({"part": "lang"}, "unknown part of a sweep 'lang': did you mean 'long'"),
        ({"metrics": ["leakag"]}, "unknown metric of a sweep 'leakag': did you mean 'leakage'"),
    ):
        with pytest.raises(UsageError, match=message):
            plan(values | {"sweeps": [values["sweeps"][0] | wrong]})


@pytest.fixture(scope="module")
def kept():
    results = [load_results(CHAPTER, profile) for profile in ("desktop", "workstation")]
    return [pd.concat(part) for part in zip(*((r.frame, r.verdicts) for r in results))]


class TestPage:
    @pytest.mark.parametrize("name", tables.PAGE["sentences"])
    def test_sentences_match_kept_results(self, kept, name):
        frame, verdicts = kept
        entry, values = tables.PAGE["sentences"][name], {}
        for key, source in entry["values"].items():
            if isinstance(source, str):
                values[key] = claim_value(CHAPTER, verdicts, *source.split("@"))
                continue
            where = {column: v for column, v in source.items() if column != "between"}
            rows, pair = select(frame, status="done", **where), source.get("between")
            values[key] = paired(rows, *pair) if pair else mean(rows)
        text = sentence(entry["text"], values, entry["expects"])
        assert "written for" not in text
        assert "not run:" not in text
        assert all(values.values())

    def test_longest_trainings_have_no_duplicates(self, kept):
        rows = tables.longest_trainings(kept[0])
        assert set(rows["panel"]) == {"methods", "long"}
        assert not rows.duplicated(["method", "strength", "seed", "metric"]).any()
        assert {"pgd_l2_0.01", "pgd_l2_0.2"} <= set(rows["metric"])
        assert set(rows["noise_std"].dropna()) == {0.1}
        more = rows[(rows["panel"] == "long") & (rows["method"] == "density")]
        added = more[more["strength"] == 0.3].assign(strength=0.2, profile="workstation")
        with_more = tables.longest_trainings(pd.concat([kept[0], added]))
        assert len(with_more) == len(rows) + len(added)  # as a later panel adds networks

    def test_what_rises_with_p_is_what_the_record_says(self, kept):
        rows = tables.longest_trainings(kept[0], "long_norms").query("method == 'density'")
        lines = rows.sort_values("p").groupby(["metric", "strength"])["value"]
        rises = lines.agg(lambda values: values.is_monotonic_increasing).groupby("metric").all()
        assert rises[["leakage", "accuracy", "pgd_l2_0.01"]].all()
        assert not rises["pgd_l2_0.2"]


def rows(values, **columns):
    lines = [{"method": m, "seed": s, "value": v} for (m, s), v in values.items()]
    where = {"profile": "smoke", "data": "mnist", "network": "mlp"}
    return pd.DataFrame(lines).assign(**where, **{"metric": "accuracy", **columns})


PAIRS = rows({("standard", 0): 0.5, ("standard", 1): 0.7, ("density", 0): 0.7, ("density", 1): 0.8})


def test_panels_have_unique_titles():
    rows = PAIRS.assign(against="cure")
    parts = dict(tables.panels(pd.concat([rows, rows.assign(profile="laptop")]), "against"))
    assert [*parts] == [f"MNIST, MLP, against CURE, profile {name}" for name in ("smoke", "laptop")]
    assert all(len(part) == 4 for part in parts.values())


def test_method_table_shows_means_and_published():
    columns = {"accuracy": ["acc", 100, "accuracy"], "leakage": ["leak", 1, "leakage"]}
    columns |= {"absent": ["no column", 1, ""]}
    table = pd.concat([PAIRS, rows({("density", 0): 0.25}, metric="leakage")])
    printed = {"accuracy": [99.5, np.nan], "leakage": [1.0, 2.0]}
    published = pd.DataFrame(printed, index=["density", "softplus"])
    (row,) = tables.method_table(table, columns, published=published).to_dict("records")
    # 0.7 and 0.8 have a standard error of 0.05; t with one degree of freedom is 12.706.
    assert row == {"method": "density", "acc": "75.0 ± 63.5 (99.5)", "leak": "0.250 (1)"}
    plain = tables.method_table(PAIRS, columns)
    assert plain["method"].tolist() == ["standard", "density"]
    assert plain["acc"].tolist() == ["60.0 ± 127.1", "75.0 ± 63.5"]
    assert [*plain] == ["method", "acc"]


def test_published_tables_have_the_chapters_methods():
    printed = tables.published_tables(load_published("marginal_density")["tables"])
    assert set(printed["table-1"].index) == {*LISTS["table_1"]}
    assert set(printed["table-2"].index) == {*LISTS["table_2"]}
    assert printed["table-3/vgg11"]["leakage"]["density"] == 2.899


def test_attacks_are_named_by_settings():
    attacks = [("pgd_l2", "l2", 1.0, 0.2), ("pgd_linf", "linf", 0.3, 0.01)]
    lines = [("accuracy", *[float("nan")] * 3), *attacks]
    table = pd.DataFrame(lines, columns=["metric", "norm", "epsilon", "step_size"])
    names = ["accuracy", "L2 1, steps of 0.2", "L∞ 0.3, steps of 0.01"]
    assert tables.name_attacks(table)["column"].tolist() == names


def test_trade_off_starts_at_standard_training():
    rows = pd.concat([PAIRS, PAIRS.assign(method="cure", value=0.5)])
    rows = rows.assign(strength=rows["method"].map({"standard": 0.0, "density": 1.0, "cure": 2.0}))
    rows = pd.concat([rows, rows.assign(metric="leakage", value=2.0 + rows["strength"])])
    lines = tables.trade_off(rows, {"leakage": "size"}, ["standard", "density", "cure"])
    assert lines["measure"].eq("size").all()
    means = lines.groupby(["method", "strength"])[["clean", "value"]].mean()
    assert [*means.index] == [("density", 0.0), ("density", 1.0)]  # CURE loses too much accuracy
    assert means.loc["density", 0.0].tolist() == pytest.approx([60.0, 2.0])
    assert means.loc["density", 1.0].tolist() == pytest.approx([75.0, 3.0])
    assert tables.trade_off(rows[:0], {"leakage": "size"}, ["density"]).empty


def test_equal_accuracy_gaps():
    values = {("density", 0): 1.0, ("density", 1): 2.0, ("cure", 0): 2.0, ("cure", 1): 4.0}
    by_metric = {"leakage": values, "pgd_l2": values, "insertion": {("density", 0): 1.0}}
    parts = [rows(v, metric=m, panel="equal", against="cure") for m, v in by_metric.items()]
    lines = tables.equal_accuracy_table(pd.concat(parts), "cure").to_dict("records")
    ratio = {"density": "1.500", "CURE": "3.000", "between them": "× 0.50 [0.50, 0.50]"}
    assert lines[0] == {"measure": "leakage", "networks": 2} | ratio
    # -1 and -2 have a standard error of 0.5; t with one degree of freedom is 12.706. No insertion.
    assert [row["between them"] for row in lines[1:]] == ["−1.500 [−7.853, +4.853]"]
