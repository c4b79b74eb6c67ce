"""What the chapter on high-order saliency measures, and the rows and pictures that come of it."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.errors import RunFailed
from suite.papers import high_order_saliency as paper
from suite.runs import compute
from suite.store import Record
from suite.units import Measurement, Training
from tests.tiny_pretrained import UNIT, register

CHAPTER = "high_order_saliency"


def parameters(**changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, "laptop", {}) | changes


def positions(units):
    """Return the photographs that units measure."""
    settings = [unit.settings for unit in units]
    return [s["first"] + i * s["step"] for s in settings for i in range(s["n_images"])]


def test_photographs_are_spread_over_all_of_them():
    by_group = paper.groups(parameters(n_images=20, n_closed=4, n_quality=5, chunk=3))
    assert positions(by_group["spectra"]) == list(range(20))
    assert [unit.settings["n_images"] for unit in by_group["spectra"]] == [3] * 6 + [2]
    assert positions(by_group["errors"]) == [0, 5, 10, 15] * 2
    assert positions(by_group["quality"][:3]) == [0, 4, 8, 12, 16]
    assert positions(by_group["smooth"]) == [0, 3, 6, 9, 12, 15]
    assert {unit.training.network for unit in by_group["smooth"]} == {"efficientnet_lite0_smooth"}
    kept = [unit.settings["n_classes"] for unit in by_group["few"]]
    assert kept == sorted(kept)
    assert set(kept) == {2, 10, 100}
    assert paper.groups(parameters(n_exact=0))["exact"] == []


def test_only_a_small_network_is_trained_and_smooth_maps_have_no_sensitivity():
    units = paper.units(parameters(n_samples=2))
    trained = [unit.training for unit in units if isinstance(unit.training, Training)]
    assert {(unit.data, unit.network) for unit in trained} == {("mnist5k", "lenet5")}
    quality = [unit for unit in units if unit.metric == "interpretation_quality"]
    with_noise = {u.settings["saliency"] for u in quality if "n_samples" in u.settings}
    assert {u.settings["saliency"] for u in quality} - with_noise == {"smooth_cafo", "smooth_caso"}
    without = [u for u in paper.units(parameters()) if u.metric == "interpretation_quality"]
    assert len(without) == len(quality)
    assert not any("n_samples" in unit.settings for unit in without)


def test_one_row_an_image(tmp_path, monkeypatch, store, here):
    register(tmp_path / "data", monkeypatch)
    units = [
        Measurement(
            training=UNIT,
            metric="high_order",
            settings={"n_images": 2, "first": first, "step": 2, "k": 5},
        )
        for first in (0, 4)
    ]
    with pytest.raises(RunFailed, match="expected values for each image in the store, got none"):
        paper.per_image(units, ["0" * 32] * 2, store)
    keys = compute(units, store=store, resources=here)["key"]
    rows = paper.per_image(units, keys, store)
    assert rows.image.tolist() == [0, 2, 4, 6]
    assert rows.value.tolist() == pytest.approx(
        [value for key in keys for value in store.read(key).values["per_image"]]
    )
    assert set(rows["k"]) == {5}
    assert {"confidence", "eigenvalues_1", "eigenvalues_5", "share", "n_images"} - set(rows) == {
        "n_images"
    }
    assert paper.per_image([], [], store).empty


class Kept:
    """A store that has what each unit of a chapter would keep; the value is the photograph."""

    def __init__(self, units):
        self.units = dict(zip(map(str, range(len(units))), units, strict=True))

    def read(self, key):
        unit = self.units[key]
        values = [float(v) for v in positions([with_place(unit)])]
        return Record({}, "done", {"per_image": values}, {})

    def read_tensors(self, key):
        unit = self.units[key]
        n = unit.settings["n_images"]
        image = torch.tensor(positions([with_place(unit)]))
        ones, maps = torch.ones(n, dtype=torch.float64), image.view(-1, 1, 1).expand(-1, 4, 4)
        names = "share cosine moved confidence deletion faithfulness entropy sparsity overlap"
        tensors = dict.fromkeys([*names.split(), "max_sensitivity", "seconds"], ones)
        tensors |= {"eigenvalues": torch.full((n, 2), 7.0), "predicted": image, "labels": image % 5}
        tensors |= {"maps": maps.byte(), "index": image}
        if unit.metric == "lambda1_sweep":
            grids = {f"{m}_maps": torch.full((3, 4, 4), 9) for m in ("cafo", "caso", "clipped")}
            return {"lambda1": torch.arange(3.0)} | grids
        return tensors


def with_place(unit):
    settings = {"first": 0, "step": 1, **unit.settings}
    return Measurement(training=unit.training, metric=unit.metric, settings=settings)


def test_rows_and_pictures_come_from_what_was_kept():
    values = parameters(n_images=8, n_quality=4, n_closed=2, n_curved=2, n_few=2, chunk=4)
    values |= {"saliencies": ["cafo", "caso"]}
    units = paper.units(values)
    computed = pd.DataFrame({"key": map(str, range(len(units))), "seconds": 3.5})
    rows, arrays = paper.collect(values, computed, Kept(units))
    by_metric = rows.groupby("metric")["value"]
    piecewise = rows[rows["network"] == values["network"]]
    full = piecewise[(piecewise["metric"] == "difference") & (piecewise["n_classes"] == 1000)]
    assert full["value"].tolist() == full["image"].tolist() == list(range(8))
    assert by_metric.count()["difference"] == 8 + 3 * 2 + 2
    assert by_metric.mean()["largest_eigenvalue"] == 7
    assert by_metric.mean()["decomposition_seconds"] == 3.5
    assert by_metric.count()["insertion"] == 2 * 4
    assert set(rows[rows["metric"] == "insertion"]["saliency"]) == {"cafo", "caso"}
    assert rows[rows["metric"] == "closed_form_error"]["confidence"].tolist() == [1.0] * 4
    assert set(rows["status"]) == {"done"}
    assert math.isnan(rows["std"].iloc[0])
    assert arrays["compared_index"].tolist() == [0, 2, 4, 6]
    assert arrays["compared_cafo"].shape == (4, 4, 4)
    assert arrays["compared_caso"][:, 0, 0].tolist() == [0, 2, 4, 6]
    assert arrays["pair_maps"].shape == (8, 4, 4)
    assert arrays["sweep_caso_maps"].tolist() == np.full((3, 4, 4), 9).tolist()
    assert arrays["sweep_lambda1"].tolist() == [0, 1, 2]
    assert arrays["ways_value"].tolist() == [0.0] * 3
    assert arrays["n_right"] == 5  # photographs 0 to 4 have labels 0 to 4, then 0 to 2


def test_kept_maps_are_as_small_as_they_are_drawn_and_photographs_are_left_out():
    maps = torch.arange(2 * 224 * 224).view(2, 224, 224).remainder(251).byte()
    tensors = {"maps": maps, "image": maps, "confidence": torch.ones(2)}
    kept = paper.kept_tensors({}, tensors)
    assert kept.keys() == {"maps", "confidence"}
    blocks = maps.float().view(2, 112, 2, 112, 2).mean((2, 4)).round().byte()
    assert torch.equal(kept["maps"], blocks)
    again = paper.kept_tensors({}, kept)
    assert torch.equal(again["maps"], blocks)
