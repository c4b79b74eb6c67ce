"""Tables of the page "Differentiating a gradient" from the kept measurements."""

import json
import re

import pytest

from benchmarks import tables
from benchmarks.__main__ import merge
from benchmarks.architectures import gradient
from suite.paths import ROOT
from suite.training.loop import DEFAULT
from tests.double_backward import small


def row(case, value):
    return {"case": case, "value": value}


class TestSteps:
    RESULTS = {
        "rows": [
            row(f"{name}, batch 8: {case}", value) | {"quartiles": [value - 0.1, value + 0.1]}
            for name, stock in (("a", 3.5), ("b", 3.0), ("c", 1.5))
            for case, value in (
                ("stock, as a user has it", 10 * stock),
                ("fast, as a user has it", 30.0),
                ("as a user has it, stock / plain", stock),
                ("as a user has it, fast / plain", 3.0),
            )
        ]
    }

    def test_rows_and_words(self):
        steps = tables.steps(self.RESULTS)
        assert list(steps.network) == ["fast view", "stock autograd"] * 3
        assert list(steps.ratio) == [3.0, 3.5, 3.0, 3.0, 3.0, 1.5]
        assert steps.low[1] == pytest.approx(3.4)
        steps = steps.drop_duplicates("method")
        words = {"a": "faster", "b": "no clear difference", "c": "slower"}
        assert dict(zip(steps.method, steps.word)) == words
        assert steps.times.tolist() == pytest.approx([3.5 / 3, 1.0, 0.5])
        assert not tables.summary(tables.steps(None))  # not measured

    def test_answer(self):
        steps, timm = tables.steps(self.RESULTS), tables.timm({"rows": ARCHITECTURES})
        table = tables.answer(steps[:2], timm, steps[4:])
        cells = [re.sub("<.*?>", "", text) for text in table["A step with the view is"]]
        assert cells == ["faster for 1 of 1", "faster for 2 of 3", "slower for 1 of 1"]
        assert table.iloc[1, -1] == "1.50 (1.00 to 2.00)"
        assert tables.median_ratio(steps, "stock").estimate == 3.0


def test_landscape_steps():
    ten = row(f"a network{tables.LANDSCAPE}", 1.2) | {"quartiles": [1.19, 1.211]}
    memory = row("a network: landscape penalty / plain step", 0.9)
    table = tables.landscape_steps({"rows": [ten, memory, row("another", 3.0)]})
    (values,) = table.to_numpy().tolist()
    assert values == ["a network", pytest.approx(3.0), 1.2, "1.19 to 1.21", 0.9]
    assert len(tables.landscape_steps(tables.load("cpu"))) == 3
    with pytest.raises(ValueError, match="expected a landscape penalty; run 'make bench'"):
        tables.landscape_steps({"rows": [memory]})


def test_landscape_modes():
    times = {"benchmark": "evaluation mode", "quartiles": [1.19, 1.211]}
    rows = [
        times | row("a network: penalty", 1.2),
        times | row("a network: memory of penalty", 1.1),
    ]
    (values,) = tables.landscape_modes({"rows": rows}).to_numpy().tolist()
    assert values == ["a network", 1.2, "1.19 to 1.21", 1.1]
    measured = tables.landscape_modes(tables.load("cpu")).set_index("network")
    assert (measured.filter(like="training / evaluation") > 1).all(axis=None)
    with pytest.raises(ValueError, match="expected both modes; run 'make bench'"):
        tables.landscape_modes({"rows": rows[:1]})


ARCHITECTURES = [
    {"architecture": name, "stock_raises": raises, "training": 1e-15, "evaluation": 2e-16}
    | {"stock_over_fast": value, "quartiles": [value - 0.1, value + 0.1]}
    for name, raises, value in (
        ("slow", None, 1.0),
        ("tiny", "derivative for aten::hardsigmoid_backward is not implemented", 2.0),
        ("vit", "derivative for aten::_scaled_dot_product_flash_attention_...", 1.5),
    )
]


def test_architectures_are_sorted():
    table = tables.architectures(tables.timm({"rows": ARCHITECTURES}))
    assert list(table.architecture) == ["tiny", "vit", "slow"]
    assert list(table["stock PyTorch"]) == ["raises: hardsigmoid", "raises: attention", ""]


def test_formulas_keep_other_functions():
    model = small().double()
    model[0] = model[0].__class__(3, 4, 3, padding=1).double()
    assert gradient(model, formulas=True).equal(gradient(model))


def about(**changes):
    machine = {"device": "a CPU", "threads": 2, "system": "Linux", "versions": {"torch": "2.15.0"}}
    return machine | {"date": "2026-02-02", "load_average": "0.1 and 0.2"} | changes


def test_merge_replaces_one_benchmark(tmp_path):
    file = tmp_path / "cpu.json"
    before = [{"benchmark": title, "case": title, "value": 1.0} for title in ("a", "b", "c")]
    file.write_text(json.dumps({**about(date="2026-01-01"), "rows": before}))
    new = [{"benchmark": "b", "case": "b", "value": 2.0}]
    result = merge(file, about(), new)
    assert [(row["case"], row["value"]) for row in result["rows"]] == [("a", 1), ("b", 2), ("c", 1)]
    assert [row["date"] for row in result["rows"]] == ["2026-01-01", "2026-02-02", "2026-01-01"]
    assert merge(tmp_path / "none.json", about(), new)["rows"][0]["date"] == "2026-02-02"
    with pytest.raises(SystemExit, match="measured with threads 2, now 1: run all of them"):
        merge(file, about(threads=1), [])


def test_density_forms():
    rows = [
        row("MLP, BlockMNIST: marginal density, naive / plain", 2.5),
        row("MLP, BlockMNIST: marginal density, efficient / plain", 2.25),
        row("MLP, BlockMNIST: marginal density, efficient / double backpropagation", 1.0),
        row("MLP, 100 classes: efficient over the plain step", 2.0),
        row("MLP, 100 classes: gradients of all logits over the plain step", 40.2),
    ]
    forms = tables.density_forms({"rows": rows}).set_index("network").T.to_dict()
    all_logits = "gradients of all logits"
    assert [*forms.items()] == [
        ("MLP, BlockMNIST", {"naive": "2.5", "efficient": "2.25", all_logits: "–"}),
        ("MLP, 100 classes", {"naive": "–", "efficient": "2", all_logits: "40.2"}),
    ]
    with pytest.raises(ValueError, match="expected marginal density; run 'make bench'"):
        tables.density_forms({"rows": []})


def test_statement_on_cuda_was_measured():
    results = tables.load("cuda")
    assert results is not None
    assert results["device"] == "NVIDIA H200"
    outcome = tables.summary(tables.steps(results))
    assert (outcome.estimate, outcome.n, outcome.word) == (4, 5, "slower")
    assert DEFAULT["cuda"] == "stock"
    statement = "on an H200 stock autograd was the faster one for four of five networks."
    for page in ("README.md", "book/use_in_your_training.md"):
        assert statement in (ROOT / page).read_text()
