from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.errors import UsageError
from suite.papers.design import Item, Plan, Spec, grid, measurement, panels_of, select_tensors
from suite.units import Pretrained

NETWORKS = [Pretrained(data=data, network="n") for data in ("mnist", "cifar10")]
ONE, TWO = (measurement(network, "accuracy") for network in NETWORKS)


# A store in which the tensors of a unit are its key.
MAPS = SimpleNamespace(read_tensors=lambda key: {"maps": torch.full((2,), float(key))})


def computed(keys):
    return pd.DataFrame([{"metric": "accuracy", "value": float(k), "key": k} for k in keys])


class TestPlan:
    AVERAGED = [Item(TWO, {"label": "b"}, keep="mean"), Item(ONE, {"label": "a"}, keep="mean")]
    PLAN = Plan([*AVERAGED, Item(TWO, {"label": "c", "metric": "other"}), Item(ONE, keep="one")])

    def test_rows_merge_by_unit_arrays_average(self):
        assert self.PLAN.units() == [TWO, ONE]
        rows, arrays = self.PLAN.collect(SimpleNamespace(), {}, computed("12"), MAPS)
        assert rows["label"].tolist() == ["b", "a", "c"]
        assert rows["value"].tolist() == [1.0, 2.0, 1.0]
        assert rows["metric"].tolist() == ["accuracy", "accuracy", "other"]
        lists = {name: array.tolist() for name, array in arrays.items()}
        assert lists == {"mean": [1.5, 1.5], "one": [2.0, 2.0]}
        with pytest.raises(ValueError, match="Length mismatch"):
            self.PLAN.collect(SimpleNamespace(), {}, computed("123"), MAPS)

    def test_chapter_derives_rows(self):
        paper = SimpleNamespace(derive=lambda p, rows, arrays: (rows.assign(p=p["p"]), {}))
        rows, arrays = self.PLAN.collect(paper, {"p": 7}, computed("12"), MAPS)
        assert (rows["p"].tolist(), arrays) == ([7] * 3, {})


def test_selected_tensors_hold_no_photographs():
    grey, colour = torch.ones(2, 1, 4, 4), torch.ones(2, 3, 4, 4)
    for metric, data, images, has_images in (
        ("saliency_maps", "mnist", grey, True),
        ("saliency_maps", "cifar10", colour, False),
        ("saliency_maps", "cifar10", colour[0], False),
        ("saliency_maps", "imagefolder:mine", colour, True),
        ("saliency_maps", "texturedmnist", colour, True),
        ("activation_ascent", "cifar10", colour, True),
    ):
        unit = measurement(Pretrained(data=data, network="n"), metric)
        tensors = select_tensors(SimpleNamespace(), {}, unit, {"images": images, "maps": images})
        assert set(tensors) == {"maps"} | ({"images"} if has_images else set())


def test_grid_measures_specs_on_networks():
    specs = [Spec({}, "accuracy", {}), Spec({"half": 1}, "accuracy", {"half": 1})]
    items = [*grid([(network, {"on": network.data}) for network in NETWORKS], specs)]
    assert [item.unit for item in items[::2]] == [ONE, TWO]
    assert [item.labels for item in items[:2]] == [{"on": "mnist"}, {"on": "mnist", "half": 1}]


def test_panels_override_parameters_of_the_chapter():
    panel = {"data": "mnist", "network": "mlp", "epochs": 2, "n": 5}
    (p,) = panels_of({"panels": [panel], "n": 3, "m": 4}, {"k": 1})
    assert (p.n, p.m, p.k) == (5, 4, 1)
    assert p.fields == {"data": "mnist", "network": "mlp", "epochs": 2}
    with pytest.raises(UsageError, match="panels: expected one for each data set"):
        panels_of({"panels": [panel, panel], "n": 3}, unique_data=True)
    for name in ("panels", "profile", "seed"):
        with pytest.raises(UsageError, match=f"unknown key of panels '{name}'"):
            panels_of({"panels": [panel | {name: 1}], "n": 3, "profile": "p"})
    with pytest.raises(UsageError, match=r"panels, mnist: m: expected a mapping .*, got 3"):
        panels_of({"panels": [panel | {"m": 3}], "n": 3, "m": {"a": 1}})


def test_panels_refuse_keys_without_effect():
    for chapter, name in {"pilcro": "n_draws", "top_gap": "n_shown"}.items():
        panels = {"panels": [{"data": "mnist", "epochs": 1, name: 2}]}
        with pytest.raises(UsageError, match=f"unknown key of panels '{name}'"):
            notebooks.units_of(chapter, notebooks.all_parameters(chapter, {}) | panels)
