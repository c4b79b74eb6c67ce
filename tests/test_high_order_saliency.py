"""What the chapter on high-order saliency measures, and the rows and pictures that come of it."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.errors import RunFailed, UsageError
from suite.papers import high_order_saliency as paper
from suite.papers.design import Item, drawn, images
from suite.papers.second_order import MARGINS
from suite.runs import compute
from suite.store import Record
from suite.units import Measurement, Pretrained, Training
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
    """Return the photographs that units measure."""
    settings = [{"first": 0, "step": 1, **unit.settings} for unit in units]
    return [s["first"] + i * s["step"] for s in settings for i in range(s["n_images"])]


def networks(units):
    return list(dict.fromkeys((unit.training.data, unit.training.network) for unit in units))


def test_photographs_are_spread_over_all_of_them():
    by_group = paper.groups(
        parameters(
            n_images=20,
            n_order=20,
            n_few=5,
            n_closed=4,
            n_quality=5,
            n_smooth=2,
            n_curved=6,
            chunk=5,
        )
    )
    assert positions(by_group["spectra"][:1]) == [0, 4, 8, 12, 16]
    assert sorted(positions(by_group["spectra"])) == list(range(20))
    assert {unit.settings["n_images"] for unit in by_group["spectra"]} == {5}
    assert positions(by_group["errors"][:2]) == [0, 5, 10, 15] * 2
    assert [unit.settings["first"] for unit in by_group["quality"]] == [0, 4, 8, 12, 16]
    assert positions(by_group["quality_of_smooth"]) == [0, 10]
    assert positions(by_group["objective"]) == [0, 4, 8, 12, 16]
    assert positions(by_group["smooth"]) == [0, 3, 6, 9, 12, 15]
    assert {unit.training.network for unit in by_group["smooth"]} == {"efficientnet_lite0_smooth"}
    few = paper.groups(parameters(n_images=20, n_few=5, chunk=5, class_counts=[2, 10]))["few"]
    assert [unit.settings["n_classes"] for unit in few] == [2, 10]
    assert positions(few) == [0, 4, 8, 12, 16] * 2
    assert paper.groups(parameters(n_exact=0))["exact"] == []


def test_further_networks_are_shown_the_same_photographs_or_the_first_of_others():
    values = parameters(others=OTHERS, twins=[], n_images=20, n_closed=3, chunk=4)
    by_group = paper.groups(values)
    shown = by_group["others"]
    assert networks(shown) == [(of["data"], of["network"]) for of in OTHERS]
    assert positions(shown) == [0, 5, 10, 15, 1, 0, 1]  # spread over all, in turn
    assert [unit.settings["n_images"] for unit in shown] == [4, 1, 2]
    errors = [u for u in by_group["errors"] if u.training.network == "efficientnet_lite1"]
    assert positions(errors) == [0, 1, 2]
    assert paper.groups(parameters(others=[]))["others"] == []


def test_a_further_network_without_its_three_entries_is_refused():
    with pytest.raises(UsageError, match="expected a value for n_images"):
        paper.groups(parameters(others=[OTHERS[0], {"data": "d", "network": "n"}]))


def test_twins_are_trained_alike_but_for_their_activation():
    by_group = paper.groups(parameters(twins=TWINS, n_twins=5, n_closed=0, chunk=4, others=[]))
    twins = [unit.training for unit in by_group["twins"]]
    assert [paper.network_name(of) for of in twins] == ["resnet"] * 2 + ["resnet_swish"] * 2
    assert all(isinstance(of, Training) and of.seed == 0 for of in twins)
    assert positions(by_group["twins"]) == [0, 1, 2, 3, 4] * 2
    assert [unit.metric for unit in by_group["accuracy"]] == ["accuracy"] * 2
    errors = by_group["errors"]
    assert [paper.network_name(u.training) for u in errors[-4:]] == ["resnet"] * 2 + [
        "resnet_swish"
    ] * 2
    assert positions(errors[-4:]) == [0, 1, 2, 3, 4] * 2
    units = paper.plan(parameters(twins=TWINS, n_twins=1)).units()
    trained = [unit for unit in units if isinstance(unit.training, Training)]
    assert networks(trained) == [("mnist5k", "resnet")]
    without = paper.groups(parameters(twins=[]))
    assert without["twins"] == without["accuracy"] == []


def test_a_network_has_the_name_of_its_activation_where_that_is_not_relu():
    assert paper.network_name(Pretrained(data="d", network="n")) == "n"
    assert paper.network_name(Training(**TWIN, seed=0)) == "resnet"
    assert paper.network_name(Training(**TWINS[1], seed=0)) == "resnet_swish"


def test_margins_are_settings_where_they_are_not_the_standard_ones():
    def settings(**changes):
        units = paper.plan(parameters(twins=TWINS, n_twins=1, **changes)).units()
        return [unit.settings.get("margins") for unit in units if unit.metric == "high_order"]

    assert set(settings()) == {None}
    assert all(margins == [10.0, 50.0] for margins in settings(margins=[10.0, 50.0]))
    for wrong in ([10.0, 0.0], [-1.0]):
        with pytest.raises(UsageError, match=r"parameter margins.*: expected a positive number"):
            notebooks.resolve("high_order_saliency", "smoke", {"margins": wrong})
    with pytest.raises(UsageError, match="parameter margins: expected 10 among them"):
        paper.groups(parameters(margins=[1.0, 100.0]))


def test_where_maps_lie_is_measured_in_both_scenes():
    methods = ["cafo", "caso"]
    values = parameters(objects="foolbox-imagenet", n_objects=6, object_saliencies=methods)
    units = paper.groups(values)["objects"]
    assert [unit.settings["scene"] for unit in units] == ["pair"] * 2 + ["box"] * 2
    assert positions(units) == [0, 1, 2, 3, 4, 5] * 2
    assert all(unit.settings["saliencies"] == methods for unit in units)


@pytest.mark.parametrize(
    ("n_quality", "n_smooth", "kept"),
    [
        (24, 12, [0, 20, 40, 60, 80, 100]),
        (12, 6, [0, 20, 40, 60, 80, 100]),
        (6, 3, [0, 40, 80]),
        (6, 0, []),
    ],
)
def test_maps_are_kept_of_a_few_photographs_that_all_methods_have(n_quality, n_smooth, kept):
    by_group = paper.groups(parameters(n_images=120, n_quality=n_quality, n_smooth=n_smooth))
    for name, n in (("quality", n_quality), ("quality_of_smooth", n_smooth)):
        units = by_group[name]
        assert positions(units) == list(range(0, 120, 120 // n) if n else [])
        assert positions([u for u in units if "keep_maps" in u.settings]) == kept
    assert len(kept) <= paper.N_COMPARED


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
        images(Item(units[0]), "0" * 32, store)
    keys = compute(units, store=store, resources=here)["key"]
    rows = pd.concat([images(Item(unit), key, store) for unit, key in zip(units, keys)])
    assert rows.image.tolist() == [0, 2, 4, 6]
    assert rows.value.tolist() == pytest.approx(
        [value for key in keys for value in store.read(key).values["per_image"]]
    )
    assert set(rows["k"]) == {5}
    columns = {"confidence", "eigenvalues_1", "eigenvalues_5", "differences_3", "true_random_2"}
    assert not columns - set(rows)
    assert not {"n_images", "first", "step"} & set(rows)


def test_columns_of_several_methods_have_their_names(tmp_path, monkeypatch, store, here):
    register(tmp_path / "data", monkeypatch)
    methods = ["caso_dense", "loss_gradient"]
    settings = {"saliencies": methods, "n_images": 2, "first": 3, "patch": 4, "n_steps": 8}
    unit = Measurement(training=UNIT, metric="interpretation_quality", settings=settings)
    keys = compute([unit], store=store, resources=here)["key"]
    rows = images(Item(unit, {"group": "quality"}), keys.iloc[0], store)
    assert set(rows["group"]) == {"quality"}
    assert rows.image.tolist() == [3, 4]
    kept = store.read_tensors(keys.iloc[0])["insertion"]
    for column, name in enumerate(methods):
        assert rows[f"insertion_{name}"].tolist() == kept[:, column].tolist()
    assert "saliencies" not in rows
    assert "insertion_1" not in rows


CONFIDENCE = [0.5, 0.7, 0.95]


class Kept:
    """A store that has what each unit of a chapter would keep.

    The value is the photograph; photographs have confidences in turn.
    """

    def __init__(self, units):
        self.units = dict(zip(map(str, range(len(units))), units, strict=True))

    def read(self, key):
        values = [float(v) for v in positions([self.units[key]])]
        return Record({}, "done", {"per_image": values}, {})

    def read_tensors(self, key):
        unit = self.units[key]
        n = unit.settings["n_images"]
        image = torch.tensor(positions([unit]))
        if unit.metric == "lambda1_sweep":
            grids = {f"{m}_maps": torch.full((3, 4, 4), 9) for m in ("cafo", "caso", "clipped")}
            return {"lambda1": torch.arange(3.0)} | grids
        ones = torch.ones(n, dtype=torch.float64)
        confidence = torch.tensor([CONFIDENCE[i % 3] for i in image], dtype=torch.float64)
        tensors = {"predicted": image, "labels": image % 5, "confidence": confidence}
        if unit.metric == "high_order":
            margins = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64).expand(n, 3)
            tensors |= {"share": ones, "cosine": 0.25 * ones, "moved": 2 * ones}
            tensors |= {"eigenvalues": torch.full((n, 2), 20.0), "differences": margins}
            tensors["norms"] = margins
            for kind, size in (("first", 1.0), ("second", 2.5), ("true", 3.0)):
                for place, name in enumerate(("cafo", "caso", "random")):
                    tensors[f"{kind}_{name}"] = (size + 10 * place) * torch.ones(n, 3).double()
            if "n_classes" in unit.settings:
                tensors = {k: v for k, v in tensors.items() if "_" not in k}
        elif unit.metric == "interpretation_quality":
            del tensors["confidence"]
            places = torch.arange(len(unit.settings["saliencies"]))
            table = places.double().expand(n, -1)
            tensors |= dict.fromkeys(paper.QUALITY, table)
            if unit.settings.get("keep_maps"):
                sizes = image.view(-1, 1, 1, 1) + 100 * places.view(-1, 1, 1)
                tensors["maps"] = sizes.expand(-1, -1, 4, 4).byte()
        elif unit.metric == "group_objective":
            others = paper.OBJECTIVE[1:]
            tensors |= {f"true_{name}": -place * ones for place, name in enumerate(others)}
            tensors |= {"ten_cosine": ones / 2, "ten_norm": ones / 4}
        elif unit.metric == "on_object":
            del tensors["confidence"]
            share = torch.full((n, len(unit.settings["saliencies"])), 0.75).double()
            share[image % 2 == 1] = math.nan
            tensors["share"] = share
        elif unit.metric == "exact_share":
            tensors = {"map_error": 1e-6 * ones, "eigenvalues": torch.ones(n, 30)}
        elif unit.metric == "first_and_second_order":
            maps = image.view(-1, 1, 1).expand(-1, 4, 4)
            tensors |= {"maps": maps.byte(), "index": image}
        return tensors


SMALL = {
    "n_images": 12,
    "n_order": 12,
    "n_quality": 6,
    "n_smooth": 3,
    "n_closed": 2,
    "n_exact": 2,
    "n_curved": 2,
    "n_few": 4,
    "class_counts": [2, 10],
    "chunk": 4,
    "saliencies": ["cafo", "caso"],
    "smooth_saliencies": ["smooth_grad"],
    "others": [{**OTHERS[0], "n_images": 3}],
    "twins": TWINS,
    "n_twins": 1,
    "n_objects": 4,
    "object_saliencies": ["caso"],
}


def collected(**changes):
    values = parameters(**{**SMALL, **changes})
    plan = paper.plan(values)
    units = plan.units()
    keys = [str(n) for n in range(len(units))]
    computed = pd.DataFrame({"key": keys, "data": "mnist5k", "value": 0.875, "seed": 0, "n": 1})
    computed = computed.assign(seconds=3.5, status="done", network="resnet", metric="accuracy")
    return *plan.collect(paper, values, computed, Kept(units)), values


@pytest.fixture(scope="module")
def small():
    return collected()


def of(rows, metric, **where):
    rows = rows[rows["metric"] == metric]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def test_rows_are_one_a_photograph_and_measure(small):
    rows, _, values = small
    main = rows[rows["network"] == values["network"]]
    full = of(main, "share", classes="all")
    assert sorted(full["value"]) == sorted(full["image"]) == list(range(12))
    shown = 12 + 3 + 2 + 2  # of this network, a further one, the smooth one, both twins
    counts = rows["metric"].value_counts()
    for metric in ("share", "cosine", "moved", "largest_eigenvalue", "alike", "relative_distance"):
        assert counts[metric] == shown + 2 * 4  # and with two numbers of classes
    assert of(rows, "largest_eigenvalue")["value"].unique().tolist() == [20]
    assert counts["closed_form_error"] == 2 * 2 + 2 + 2
    assert counts["exact_share"] == counts["map_error"] == 2
    assert set(rows["status"]) == {"done"}
    assert math.isnan(rows["std"].iloc[0])
    assert rows["value"].notna().all()


def test_rows_say_the_margin_and_which_classes_were_kept(small):
    rows, _, values = small
    difference = of(rows, "difference", network=values["network"])
    assert set(difference["margin"]) == set(MARGINS)
    for margin, value in zip(MARGINS, (0.3, 0.1, 0.2), strict=True):
        part = of(difference, "difference", margin=margin)
        assert part["value"].tolist() == [value] * (12 + 2 * 4)
        assert part["classes"].value_counts().to_dict() == {"all": 12, "2": 4, "10": 4}
    assert set(of(rows, "alike")["value"]) == {1.0}  # 0.1 is below the distance of a cosine of 0.99
    relative = of(rows, "relative_distance")["value"]
    assert relative.to_numpy() == pytest.approx(0.1 / 0.3382, rel=1e-3)
    assert of(rows, "closed_form_error")["classes"].isna().all()
    others, _, _ = collected(margins=[20.0, 10.0])
    assert others.groupby("margin")["value"].count().index.tolist() == [10.0, 20.0]
    assert set(of(others, "difference", margin=20.0)["value"]) == {0.3}
    assert set(of(others, "difference", margin=10.0)["value"]) == {0.1}


def test_rows_of_what_the_loss_changes_by(small):
    rows, _, _ = small
    true = of(rows, "true_loss").groupby(["saliency", "margin"])["value"]
    shown = 12 + 3 + 2 + 2
    assert set(true.count()) == {shown}
    expected = {("cafo", m): 3.0 for m in MARGINS} | {("caso", m): 13.0 for m in MARGINS}
    assert true.mean().to_dict() == expected | {("random", 10.0): 23.0}
    error = of(rows, "expansion_error").groupby("saliency")["value"]
    assert error.mean().to_dict() == {"first order": 2.0, "second order": 0.5}
    assert set(of(rows, "expansion_error")["margin"]) == {10.0}


def test_rows_say_how_sure_the_network_is(small):
    rows, _, values = small
    share = of(rows, "share", network=values["network"], classes="all").set_index("image")
    words = ["low", "between", "high"]
    assert share.loc[[0, 1, 2, 3], "sure"].tolist() == [*words, "low"]
    assert share.loc[1, "confidence"] == 0.7
    few = of(rows, "share", classes="10")  # as sure as among all classes
    assert few["sure"].tolist() == share.loc[few["image"], "sure"].tolist()
    error = of(rows, "closed_form_error", network=values["network"])
    assert error["confidence"].tolist() == [0.5, 0.5]  # of photographs 0 and 6
    unknown = of(rows, "on_box")
    assert unknown["confidence"].isna().all()
    assert unknown["sure"].isna().all()


def test_rows_of_maps_with_groups(small):
    rows, _, _ = small
    for metric in paper.QUALITY:
        found = of(rows, metric).groupby("saliency")["value"].agg(["count", "mean"])
        assert found["count"].to_dict() == {"cafo": 6, "caso": 6, "smooth_grad": 3}
        assert found["mean"].to_dict() == {"cafo": 0, "caso": 1, "smooth_grad": 0}
    # What is the value there is the confidence.
    assert of(rows, "insertion", saliency="caso")["confidence"].tolist() == list(range(0, 12, 2))
    loss = of(rows, "group_loss").groupby("saliency")["value"].mean().to_dict()
    positions_of_groups = sum(range(0, 12, 2)) / 6
    assert loss.pop("caso") == positions_of_groups
    assert list(loss) == sorted(paper.OBJECTIVE[1:])
    assert loss == {name: -place for place, name in enumerate(paper.OBJECTIVE[1:])}
    assert set(of(rows, "ten_cosine")["value"]) == {0.5}
    assert set(of(rows, "ten_norm")["value"]) == {0.25}
    distance = math.sqrt(1 + 0.25**2 - 2 * 0.25 * 0.5)
    assert of(rows, "ten_distance")["value"].tolist() == pytest.approx([distance] * 6)


def test_rows_of_where_maps_lie_are_those_of_named_objects(small):
    rows, _, _ = small
    for scene in ("pair", "box"):
        found = of(rows, f"on_{scene}")
        assert found["image"].tolist() == [0, 2]
        assert found["saliency"].tolist() == ["caso"] * 2
        assert found["value"].tolist() == [0.75] * 2
    without, _, _ = collected(n_objects=0)
    assert not {"on_pair", "on_box"} & set(without["metric"])


def test_accuracies_are_of_twins_and_of_photographs_of_imagenet(small):
    twins = of(small[0], "accuracy", data="mnist5k").set_index("network")["value"]
    assert twins.to_dict() == {"resnet": 0.875, "resnet_swish": 0.875}
    accuracy = of(small[0], "accuracy", data="foolbox-imagenet").set_index("network")
    # Photographs have their own numbers as classes, and labels below 5.
    assert accuracy["value"].to_dict() == {
        "efficientnet_lite0": pytest.approx(5 / 12),
        "efficientnet_lite0_smooth": 0.5,
        "efficientnet_lite1": pytest.approx(2 / 3),
    }
    assert accuracy["n"].tolist() == [12, 2, 3]


def test_pictures_come_from_what_was_kept(small):
    _, arrays, values = small
    assert arrays["compared_index"].tolist() == [0, 4, 8]
    assert arrays["compared_predicted"].tolist() == [0, 4, 8]
    assert arrays["compared_confidence"].tolist() == [0, 4, 8]
    assert arrays["compared_cafo"].shape == (3, 4, 4)
    assert arrays["compared_caso"][:, 0, 0].tolist() == [100, 104, 108]
    assert arrays["compared_smooth_grad"][:, 0, 0].tolist() == [0, 4, 8]
    assert arrays["pair_maps"].shape == (12, 4, 4)
    assert arrays["sweep_caso_maps"].tolist() == np.full((3, 4, 4), 9).tolist()
    assert arrays["sweep_lambda1"].tolist() == [0, 1, 2]
    assert arrays["sweep_index"].tolist() == [values["sweep_image"]]


def test_what_is_measured_of_no_photograph_has_no_rows():
    rows, _, _ = collected(n_exact=0, n_few=0, others=[], twins=[], n_curved=0, n_closed=0)
    left = set(rows["metric"])
    assert not {"exact_share", "map_error", "closed_form_error"} & left
    assert set(rows["network"]) == {"efficientnet_lite0"}
    assert set(rows["classes"].dropna()) == {"all"}


def test_no_distance_is_above_the_bound_and_one_reaches_it():
    largest, margin = 30.0, 5.0
    generator = np.random.default_rng(0)
    values = np.append(generator.uniform(0, largest, 4), largest)
    scale = 1 / (largest + 2 * margin - values)
    bound = paper.distance_bound(largest, margin)
    gradients = generator.normal(size=(1000, 5))
    # From the eigenvectors of L and 0, with equal shares of both after half of the change.
    ends = np.array([0.0, largest])
    even = np.sqrt(largest + 2 * margin - ends)
    for g, factors in [*((g, scale) for g in gradients), (even, 1 / even**2)]:
        change = g * factors
        distance = np.linalg.norm(change / np.linalg.norm(change) - g / np.linalg.norm(g))
        assert distance <= bound + 1e-12
    assert distance == pytest.approx(bound)
    assert paper.distance_bound(0.0, margin) == paper.distance_bound(-1.0, margin) == 0


def test_kept_maps_are_as_small_as_they_are_drawn_and_photographs_are_left_out():
    maps = torch.arange(2 * 192 * 192).view(2, 192, 192).remainder(251).byte()
    tensors = {"maps": maps, "image": maps[:1].expand(3, -1, -1), "confidence": torch.ones(2)}
    network = Pretrained(data="foolbox-imagenet", network="efficientnet_lite0")
    kept = drawn(paper, {}, network, tensors)
    assert kept.keys() == {"maps", "confidence"}
    blocks = maps.float().view(2, 96, 2, 96, 2).mean((2, 4)).round().byte()
    assert torch.equal(kept["maps"], blocks)
    again = paper.drawn({}, kept)
    assert torch.equal(again["maps"], blocks)
