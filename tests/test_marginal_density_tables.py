import numpy as np
import pandas as pd
import pytest

from suite.evidence.claims import load_published
from suite.papers import marginal_density_tables as tables
from suite.papers.marginal_density import LISTS


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
