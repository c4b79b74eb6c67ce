import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.data import load_data
from suite.errors import RunFailed, UsageError
from suite.evidence.results import Results
from suite.papers import high_order_saliency as paper
from suite.papers import high_order_tables as tables
from suite.papers.design import Item, image_rows, measurement
from suite.papers.high_order_saliency import distance_bound
from suite.runs import compute
from suite.units import Training
from tests.tiny_pretrained import UNIT, register

CHAPTER = "high_order_saliency"
OTHERS = [
    {"data": "foolbox-imagenet", "network": "efficientnet_lite1", "n_images": 5},
    {"data": "imagenet-samples", "network": "efficientnet_lite2", "n_images": 2},
]
TWIN = {"data": "mnist5k", "network": "resnet", "epochs": 1, "learning_rate": 1e-3}
TWINS = [TWIN, {**TWIN, "network_options": {"activation": "swish"}}]


def parameters(**changes):
    defaults = {name: p.default for name, p in notebooks.parameters(CHAPTER).items()}
    return defaults | notebooks.resolve(CHAPTER, "desktop", {}) | changes


def positions(units):
    settings = [{"first": 0, "step": 1, **unit.settings} for unit in units]
    return [s["first"] + i * s["step"] for s in settings for i in range(s["n_images"])]


def networks(units):
    return list(dict.fromkeys((unit.training.data, unit.training.network) for unit in units))


class TestUnits:
    def test_photographs_are_spread_over_all(self):
        few = {"n_few": 5, "n_closed": 4, "n_quality": 5, "n_smooth": 2, "n_curved": 6, "chunk": 5}
        by_group = paper.groups(parameters(n_images=20, n_order=20, **few, class_counts=[2, 10]))
        spread = [0, 4, 8, 12, 16]
        assert positions(by_group["spectra"][:1]) == spread
        assert sorted(positions(by_group["spectra"])) == list(range(20))
        assert {unit.settings["n_images"] for unit in by_group["spectra"]} == {5}
        assert positions(by_group["errors"][:2]) == [0, 5, 10, 15] * 2
        assert [unit.settings["first"] for unit in by_group["quality"]] == spread
        assert positions(by_group["quality_of_smooth"]) == [0, 10]
        assert positions(by_group["objective"]) == spread
        assert positions(by_group["smooth"]) == [0, 3, 6, 9, 12, 15]
        assert {u.training.network for u in by_group["smooth"]} == {"efficientnet_lite0_smooth"}
        assert [unit.settings["n_classes"] for unit in by_group["few"]] == [2, 10]
        assert positions(by_group["few"]) == spread * 2
        assert paper.groups(parameters(n_exact=0))["exact"] == []

    def test_photographs_of_further_networks(self):
        values = parameters(others=OTHERS, twins=[], n_images=20, n_closed=3, chunk=4)
        by_group = paper.groups(values)
        others = by_group["others"]
        assert networks(others) == [(other["data"], other["network"]) for other in OTHERS]
        assert positions(others) == [0, 5, 10, 15, 1, 0, 1]  # each unit spread over all
        assert [unit.settings["n_images"] for unit in others] == [4, 1, 2]
        errors = [u for u in by_group["errors"] if u.training.network == "efficientnet_lite1"]
        assert positions(errors) == [0, 1, 2]
        assert paper.groups(parameters(others=[]))["others"] == []
        with pytest.raises(UsageError, match="expected a value for n_images"):
            paper.groups(parameters(others=[OTHERS[0], {"data": "d", "network": "n"}]))

    def test_twins_differ_only_in_activation(self):
        by_group = paper.groups(parameters(twins=TWINS, n_twins=5, n_closed=0, chunk=4, others=[]))
        twins, errors = by_group["twins"], by_group["errors"][-4:]
        names = ["resnet"] * 2 + ["resnet_swish"] * 2
        for units in (twins, errors):
            assert [paper.network_name(unit.training) for unit in units] == names
            assert positions(units) == [0, 1, 2, 3, 4] * 2
        assert all(isinstance(u.training, Training) and u.training.seed == 0 for u in twins)
        assert [unit.metric for unit in by_group["accuracy"]] == ["accuracy"] * 2
        units = paper.plan(parameters(twins=TWINS, n_twins=1)).units()
        trained = [unit for unit in units if isinstance(unit.training, Training)]
        assert networks(trained) == [("mnist5k", "resnet")]
        without = paper.groups(parameters(twins=[]))
        assert without["twins"] == without["accuracy"] == []

    def test_margins_in_settings_unless_standard(self):
        def settings(**changes):
            units = paper.plan(parameters(twins=TWINS, n_twins=1, **changes)).units()
            return [unit.settings.get("margins") for unit in units if unit.metric == "high_order"]

        assert set(settings()) == {None}
        assert all(margins == [10.0, 50.0] for margins in settings(margins=[10.0, 50.0]))
        with pytest.raises(UsageError, match=r"parameter margins.*: expected a positive number"):
            notebooks.resolve(CHAPTER, "smoke", {"margins": [10.0, 0.0]})
        with pytest.raises(UsageError, match="parameter margins: expected 10 among them"):
            paper.groups(parameters(margins=[1.0, 100.0]))

    def test_objects_are_measured_in_both_scenes(self):
        methods = ["cafo", "caso"]
        values = parameters(objects="foolbox-imagenet", n_objects=6, object_saliencies=methods)
        units = paper.groups(values)["objects"]
        assert [unit.settings["scene"] for unit in units] == ["pair"] * 2 + ["box"] * 2
        assert positions(units) == [0, 1, 2, 3, 4, 5] * 2
        assert all(unit.settings["saliencies"] == methods for unit in units)


@pytest.mark.parametrize(
    ("n_quality", "n_smooth", "expected"),
    [(24, 12, range(0, 120, 20)), (12, 6, range(0, 120, 20)), (6, 3, [0, 40, 80]), (6, 0, [])],
)
def test_maps_are_kept_for_few_photographs(n_quality, n_smooth, expected):
    by_group = paper.groups(parameters(n_images=120, n_quality=n_quality, n_smooth=n_smooth))
    for name, n in (("quality", n_quality), ("quality_of_smooth", n_smooth)):
        units = by_group[name]
        assert positions(units) == list(range(0, 120, 120 // n) if n else [])
        assert positions([u for u in units if "keep_maps" in u.settings]) == [*expected]


def test_rows_of_single_images(tmp_path, monkeypatch, store, here):
    register(tmp_path / "data", monkeypatch)
    every_second = {"n_images": 2, "step": 2}
    units = [measurement(UNIT, "high_order", first=first, **every_second) for first in (0, 4)]
    with pytest.raises(RunFailed, match="expected values for each image in the store, got none"):
        image_rows(Item(units[0]), "0" * 32, store)
    settings = {"saliencies": ["caso_dense", "loss_gradient"], "n_images": 2, "first": 3}
    unit = measurement(UNIT, "map_quality", n_steps=8, **settings)
    *keys, key = compute([*units, unit], store=store, resources=here)["key"]
    rows = pd.concat([image_rows(Item(u), k, store) for u, k in zip(units, keys)])
    assert rows.image.tolist() == [0, 2, 4, 6]
    values = [value for k in keys for value in store.read(k).values["per_image"]]
    assert rows.value.tolist() == pytest.approx(values)
    columns = {"confidence", "eigenvalues_1", "eigenvalues_5", "differences_3", "true_caso_2"}
    assert not columns - set(rows)
    assert not {"n_images", "first", "step"} & set(rows)
    rows = image_rows(Item(unit, {"group": "quality"}), key, store)
    assert set(rows["group"]) == {"quality"}
    assert rows.image.tolist() == [3, 4]
    insertion = store.read_tensors(key)["insertion"]
    for column, name in enumerate(settings["saliencies"]):
        assert rows[f"insertion_{name}"].tolist() == insertion[:, column].tolist()
    assert not {"saliencies", "insertion_1"} & set(rows)


def test_distance_bound_is_tight():
    largest, margin = 30.0, 5.0
    generator = np.random.default_rng(0)
    scale = 1 / (largest + 2 * margin - np.append(generator.uniform(0, largest, 4), largest))
    bound = paper.distance_bound(largest, margin)
    gradients = generator.normal(size=(1000, 5))
    # Equality needs a gradient of the eigenvectors of L and 0, with equal shares of both halfway.
    even = np.sqrt(largest + 2 * margin - np.array([0.0, largest]))
    for g, factors in [*((g, scale) for g in gradients), (even, 1 / even**2)]:
        change = g * factors
        distance = np.linalg.norm(change / np.linalg.norm(change) - g / np.linalg.norm(g))
        assert distance <= bound + 1e-12
    assert distance == pytest.approx(bound)
    assert paper.distance_bound(0.0, margin) == paper.distance_bound(-1.0, margin) == 0


def test_drawn_maps_are_shrunk():
    maps = torch.arange(2 * 192 * 192).view(2, 192, 192).remainder(251).byte()
    shrunk = paper.shrink({}, {"maps": maps, "confidence": torch.ones(2)})
    assert torch.equal(shrunk["confidence"], torch.ones(2))
    blocks = maps.float().view(2, 96, 2, 96, 2).mean((2, 4)).round().byte()
    assert torch.equal(shrunk["maps"], blocks)
    assert torch.equal(paper.shrink({}, shrunk)["maps"], blocks)


NETWORK, SMOOTH, DATA = "efficientnet_lite0", "efficientnet_lite0_smooth", "foolbox-imagenet"
TURNS = [("low", 0.4), ("between", 0.7), ("high", 0.99)]


def photographs(metric, values, **labels):
    """Return rows of photographs that are unsure, between and sure in turn."""
    rows = [(i, *TURNS[i % 3], value) for i, value in enumerate(values)]
    common = {"profile": "laptop", "network": NETWORK, "data": DATA, "classes": "all"}
    common |= {"metric": metric, "margin": 10.0, "saliency": None}
    columns = ["image", "sure", "confidence", "value"]
    return pd.DataFrame(rows, columns=columns).assign(**common | labels)


N = np.arange(12.0)


@pytest.fixture
def result():
    parts = [photographs(m, 0.1 * N, margin=np.nan) for m in ("share", "cosine")]
    parts += [photographs("difference", 0.1 * N), photographs("difference", N, margin=1.0)]
    parts += [photographs("largest_eigenvalue", 20 + N, margin=np.nan)]
    parts += [photographs("difference", N, network=SMOOTH)]
    parts += [photographs("difference", N[:6], classes="10")]
    for factor, kind in enumerate(("cafo", "caso"), 1):
        parts.append(photographs("true_loss", (1 + N) * factor, saliency=kind))
        parts.append(photographs("true_loss", 1 + N, saliency=kind, margin=1.0))
    parts += [photographs("accuracy", [0.9], image=np.nan, sure=None, margin=np.nan)]
    parts += [photographs("on_pair", [0.7, 0.9], saliency="caso")]
    parts += [photographs("on_pair", [0.5, 0.7], saliency="logit_gradient")]
    parts += [photographs("on_box", [0.6, 0.8], saliency="caso")]
    maps = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    arrays = {"pair_index": np.array([3, 1]), "pair_predicted": np.array([0, 1])}
    arrays |= {"pair_confidence": np.array([0.987, 0.1]), "pair_maps": maps}
    arrays |= {name.replace("pair", "compared"): array for name, array in arrays.items()}
    arrays |= {"compared_caso": maps[:, 0], "compared_cafo": maps[:, 1]}
    for method in tables.SWEPT:
        arrays[f"sweep_{method}_maps"] = maps[:, 0]
        arrays[f"sweep_{method}_sparsity"] = np.array([0.0, 0.756])
    arrays["sweep_lambda1"] = np.array([0.01, 0.02])
    arrays |= {"sweep_cafo_chosen": np.array([0.02]), "sweep_caso_chosen": np.array([0.5])}
    arrays["sweep_index"] = np.array([2])
    provenance = {"profile": "laptop", "parameters": {"images": DATA, "network": NETWORK}}
    return Results(pd.concat(parts, ignore_index=True), pd.DataFrame(), arrays, provenance)


class TestRows:
    def test_select_classes_and_networks(self, result):
        frame = result.frame
        assert len(tables.select(frame, "difference")) == 24
        assert len(tables.select(frame, "difference", smooth=True)) == 12
        assert len(tables.select(frame, "difference", smooth=None, image=1)) == 3
        assert len(tables.main_rows(result, "difference", margin=10.0)) == 12

    def test_bound_is_of_the_same_photograph(self, result):
        rows = tables.add_bound(tables.main_rows(result))
        assert len(rows) == 24
        largest = 20 + rows["image"]
        expected = [distance_bound(n, m) for n, m in zip(largest, rows["margin"])]
        assert rows[tables.BOUND].tolist() == pytest.approx(expected)


class TestTables:
    def test_object_table_has_methods_as_rows(self, result):
        table = tables.object_table(result)
        assert table[""].tolist() == ["gradient", "CASO, groups"]
        assert table["named object of two"].str[:5].tolist() == ["60.0 ", "80.0 "]
        assert table["object on a grey canvas"].tolist()[0] == "–"

    def test_objective_compares_within_photographs(self, result):
        table = tables.objective_table(result)
        assert table["λ₂"].tolist() == ["L/2 + 1"] * 3 + ["L/2 + 10"] * 3
        assert table["top probability"].tolist() == [*tables.SURENESS.values()] * 2
        assert table["CASO ÷ CAFO"].tolist() == ["1 [1, 1]"] * 3 + ["2 [2, 2]"] * 3
        assert table["is larger in"].tolist() == ["0%"] * 3 + ["100%"] * 3
        assert table["CAFO"].tolist() == ["5.5", "6.5", "7.5"] * 2
        gains = tables.advantage(result).groupby("network")["value"].unique()
        assert gains.to_dict() == {"λ₂ = L/2 + 1": [1.0], "λ₂ = L/2 + 10": [2.0]}

    def test_falling_losses_have_no_ratio(self, result):
        values = {"caso": [2.0, 4, 8, 3], "cafo": [1.0, 2, 4, -1]}
        rows = [photographs("true_loss", values[s], saliency=s, sure="low") for s in values]
        table = tables.objective_table(dataclasses.replace(result, frame=pd.concat(rows)))
        assert table["CASO ÷ CAFO"].tolist() == ["2 [2, 2]"]
        assert table["is larger in"].tolist() == ["100%"]


class TestPictures:
    def test_photographs_next_to_their_maps(self, result):
        grid = tables.pair_grid(result)
        np.testing.assert_array_equal(grid["rows"][0][0], load_data(DATA).test.images[3].numpy())
        assert [len(row) for row in grid["rows"]] == [4, 4]
        assert grid["notes"][0][0].endswith("\n99% sure")
        assert grid["notes"][0][3] == "distance\n0.30"
        methods = tables.comparison_grid(result, tables.COMPARED)
        assert methods["titles"] == ["photograph", "CAFO, groups", "CASO, groups"]
        assert methods["rows"][1][1].tolist() == [[16, 17], [18, 19]]

    def test_frames_of_the_sweep(self, result):
        frames = tables.sweep_frames(result)
        assert list(frames)[1] == "λ₁ = 0.02: 76% of CASO's map is zero"
        assert [len(row) for (row,) in frames.values()] == [4, 4]

    def test_unavailable_photographs(self, result):
        result.provenance["parameters"]["images"] = "no such data"
        assert [row[0] for row in tables.comparison_grid(result, {})["rows"]] == [None, None]
