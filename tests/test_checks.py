import json
import re

import pytest

from suite import notebooks
from suite.errors import UsageError
from suite.notebooks.checks import check, check_choices, read_cell, run_name

CELL = """\
profile: str = "desktop"  # name of the run
panels: list = [{"data": "digits", "network": "mlp", "epochs": 3}]  # to train
alpha_min: float = 1.0  # smallest
alpha_max: float = 10.0  # largest; at least alpha_min
n_images: int = 8  # photographs
n_order: int = 4  # of these; at most n_images
first: int = 2  # below n_images; 0: the first
folds: int = 0  # 0 for none
level: int = 3  # of corruptions, 1 to 5
seeds: list = [0, 1]  # of networks
twins: list[dict] = []  # panels
left_out: list[str] = []  # names
seeds_of: dict = {}  # variant: its seeds
"""


def cell(folder, source, tags=("parameters",)):
    cells = [{"cell_type": "code", "metadata": {"tags": list(tags)}, "source": [source]}]
    file = folder / "sample.ipynb"
    file.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return file


@pytest.fixture
def check_cell(tmp_path):
    entries = read_cell(cell(tmp_path, CELL))
    values = {name: entry.default for name, entry in entries.items()}
    return lambda changes: check("sample", values | changes, entries)


class TestCell:
    def test_comments_of_lists(self, tmp_path):
        text = "a: list = [\n    1,\n]  # after\nb: list = [  # before\n    1,\n]\nc = 2.5\n"
        entries = read_cell(cell(tmp_path, text))
        assert [entry.help for entry in entries.values()] == ["after", "before", ""]
        assert [entry.default for entry in entries.values()] == [[1], [1], 2.5]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("n: int = 2 * 128", "line 2: n: a literal is needed: .*; got n: int = 2 \\* 128"),
            ("n: str = str(3)", r"line 2: n: a literal is needed: .*str\(3\)"),
            ("n: int = None", "line 2: n: a literal is needed"),
            ("n: int", "line 2: n: a literal is needed"),
            ("n: tuple = (1, 2)", "line 2: n: a literal is needed"),
            ("n: int = = 3", "line 2: expected NAME: TYPE = LITERAL, got 'n: int = = 3'"),
            ("n: int = [1", "line 2: expected NAME: TYPE = LITERAL"),
        ],
    )
    def test_non_literal_is_named(self, tmp_path, line, message):
        with pytest.raises(UsageError, match=r"^sample\.ipynb, cell of parameters, " + message):
            read_cell(cell(tmp_path, f"a: int = 1\n{line}\n"))

    def test_without_tag(self, tmp_path):
        with pytest.raises(UsageError, match=r"sample\.ipynb: expected a cell tagged 'parameters'"):
            read_cell(cell(tmp_path, CELL, tags=()))


class TestCheck:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"n_images": 0}, "parameter n_images: expected a positive number, got 0"),
            ({"n_images": -2}, "parameter n_images: expected a positive number, got -2"),
            ({"alpha_min": float("nan")}, "parameter alpha_min: expected a finite number"),
            ({"alpha_max": float("inf")}, "parameter alpha_max: expected a finite number"),
            ({"alpha_min": -1e3}, "parameter alpha_min: expected a positive number"),
            ({"alpha_min": 20.0}, "parameter alpha_max: expected at least alpha_min, 20.0, got"),
            ({"n_images": 3}, "parameter n_order: expected at most n_images, 3, got 4"),
            ({"first": 8}, "parameter first: expected below n_images, 8, got 8"),
            ({"level": 9}, "parameter level: expected a number from 1 to 5, got 9"),
            ({"seeds": [0, 0, 1]}, "parameter seeds: expected each value once, got 0 again"),
            ({"seeds": [-1]}, "parameter seeds[0]: expected a number >= 0, got -1"),
            ({"seeds_of": {"a": [2, 2]}}, "parameter seeds_of.a: expected each value once"),
            ({"twins": [3]}, "parameter twins: expected list like [{}], got [3]"),
            ({"left_out": [3]}, "parameter left_out: expected list like [''], got [3]"),
            ({"panels": []}, "parameter panels: expected at least one value"),
            ({"panels": "[{'data': no}]"}, "got \"[{'data': no}]\" (text; values are written as"),
            ({"panels": [{"data": False}]}, "parameter panels[0].data: expected text, got False"),
            ({"panels": [{"n_images": "many"}]}, "parameter panels[0].n_images: expected int"),
            ({"panels": [{"epochs": 0}]}, "parameter panels[0].epochs: expected a positive"),
            ({"panels": [{"n_train": -5}]}, "parameter panels[0].n_train: expected a positive"),
            ({"panels": [{"a_options": {"width": float("inf")}}]}, "[0].a_options.width: expected"),
            ({"n_image": 3}, "unknown parameter of sample 'n_image': did you mean 'n_images'?"),
        ],
    )
    def test_refused_by_name(self, check_cell, changes, message):
        with pytest.raises(UsageError, match=re.escape(message)):
            check_cell(changes)

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"folds": 0, "first": 0},
            {"seeds": [0], "seeds_of": {"a": [0]}},
            {"panels": [{"network_options": {"blocks": [0, 1, 1]}, "pixel_range": [-1.0, 1.0]}]},
            {"panels": [{"crop_padding": 0, "n_train": None, "flip": False}]},
            {"twins": [], "left_out": [], "seeds_of": {}},
            {"alpha_min": 2},
        ],
    )
    def test_accepted(self, check_cell, changes):
        check_cell(changes)

    @pytest.mark.parametrize("chapter", notebooks.chapters())
    def test_each_number_of_a_chapter(self, chapter):
        entries, values = notebooks.parameters(chapter), notebooks.all_parameters(chapter, {})
        bad = {float: (float("nan"), float("inf"), -1.0), int: (-1,)}
        for name, entry in entries.items():
            listed = isinstance(entry.like, list)
            for number in bad.get(type(entry.like[0] if listed and entry.like else entry.like), ()):
                changed = values | {name: [number] if listed else number}
                with pytest.raises(UsageError, match=rf"parameter {name}\b"):
                    check(chapter, changed, entries)


class TestChoices:
    def test_lists_and_keys_at_any_depth(self):
        choices = {"left_out": ["none", "fpn+l1"], "seeds_of": ["none"]}
        check_choices({"left_out": ["fpn+l1"], "panels": [{"seeds_of": {"none": [1]}}]}, choices)
        with pytest.raises(UsageError, match=r"left_out 'fpn.l2': did you mean 'fpn.l1'"):
            check_choices({"left_out": ["fpn+l2"]}, choices)
        with pytest.raises(UsageError, match=r"panels\[1\].seeds_of 'nine': did you mean 'none'"):
            check_choices({"panels": [{}, {"seeds_of": {"nine": [1]}}]}, choices)

    @pytest.mark.parametrize(
        ("chapter", "changes", "message"),
        [
            ("pilcro", {"checked": ["target 99"]}, "checked 'target 99': did you mean 'target 1"),
            ("pilcro", {"alphas": [5.0]}, "models 'target 1': did you mean 'target 5'"),
            ("pilcro", {"categories": ["wether"]}, "did you mean 'weather'"),
            ("top_gap", {"left_out": ["nosuch"]}, "left_out 'nosuch'"),
            ("top_gap", {"attacked": ["fpn+l2"]}, r"did you mean 'fpn\+l1'"),
            ("top_gap", {"seeds_of": {"pol": [1]}}, "did you mean 'pool'"),
            ("marginal_density", {"left_out": ["at_fgms"]}, "did you mean 'at_fgsm'"),
            ("marginal_density", {"others": {"softpluss": 1.0}}, "did you mean 'softplus'"),
            ("high_order_saliency", {"saliencies": ["casso"]}, "did you mean 'caso'"),
        ],
    )
    def test_of_chapters(self, chapter, changes, message):
        values = notebooks.resolve(chapter, "desktop", changes)
        with pytest.raises(UsageError, match=f"(?s)unknown name in.*{message}"):
            notebooks.units_of(chapter, values)

    @pytest.mark.parametrize(
        ("chapter", "name"),
        [("pilcro", "panels"), ("marginal_density", "sweeps"), ("top_gap", "panels")]
        + [("gradient_regularisation", "panels"), ("side_by_side", "panels")],
    )
    def test_keys_of_panels(self, chapter, name):
        panel = notebooks.all_parameters(chapter, {})[name][0]
        without = {key: value for key, value in panel.items() if key != "data"}
        for changed, message in (
            (panel | {"epoch": 1}, f"key of {name} 'epoch': did you mean 'epochs'"),
            (without, f"{name}: expected a value for data"),
        ):
            values = notebooks.resolve(chapter, "desktop", {name: [changed]})
            with pytest.raises(UsageError, match=message):
                notebooks.units_of(chapter, values)


class TestRunName:
    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({}, "smoke"),
            ({"n": 2.0}, "smoke"),
            ({"n": 64}, "smoke+n=64"),
            ({"s": [3, 4], "n": 64}, "smoke+n=64+s=3-4"),
            ({"alpha": 1e16}, "smoke+alpha=1e-16-"),
            ({"on": True, "word": "odd"}, "smoke+on=True+word=odd"),
            ({"word": "../x y"}, "smoke+word=x-y-"),
            ({"word": ""}, "smoke+word="),
            ({"panels": [{"data": "mnist", "epochs": 3}]}, "smoke+panels=data-mnist-epoch-"),
        ],
    )
    def test_says_what_differs(self, changes, name):
        base = {"profile": "smoke", "n": 2, "s": [0], "alpha": 1.0, "on": False, "word": "even"}
        base["panels"] = [{"data": "mnist", "epochs": 2}]
        run = run_name("smoke", base | changes, base)
        assert run.startswith(name) if name.endswith("-") else run == name

    def test_differs_where_parameters_do(self):
        base = {"panels": [], "a": "", "b": ""}
        changes = [{"panels": [{"data": "m" * 40, "epochs": n}]} for n in range(5)]
        changes += [{"a": "x y"}, {"a": "x-y"}, {"a": "x/y"}, {"panels": [1, 2]}, {"panels": [12]}]
        names = [run_name("p", base | change, base) for change in changes]
        assert len(set(names)) == len(names)

    def test_many_changes_are_short(self):
        base = {f"parameter_{n}": 0 for n in range(30)}
        names = {run_name("p", dict.fromkeys(base, n), base) for n in (1, 2)}
        assert len(names) == 2
        assert all(name.startswith("p+30_parameters-") for name in names)
