"""What the chapter on Top-GAP trains, and its tables of the paper."""

from suite import notebooks
from suite.evidence import load_published
from suite.training.loop import check
from suite.units import Training

CHAPTER = "top_gap"


def test_laptop_trains_all_eight_variants_and_five_k():
    values = notebooks.resolve(CHAPTER, "laptop", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training) and unit.seed == 0]
    options = [(unit.network_options, unit.penalties) for unit in trainings]
    variants = {
        (o["fpn"], bool(p), o["k"] < 1)
        for o, p in options
        if o["k"] in (0.08, 1.0) and p in ({}, {"class_map_l1": {"strength": 1.0}})
    }
    assert len(variants) == 8
    assert {o["k"] for o, p in options if o["fpn"] and p} >= {0.02, 0.04, 0.08, 0.25, 0.65}
    assert len(trainings) == len({str(unit) for unit in trainings})


def test_other_defences_are_the_unmodified_network_with_one_change():
    values = notebooks.resolve(CHAPTER, "laptop", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    plain = next(
        u
        for u in trainings
        if (u.network_options["fpn"], u.network_options["k"], u.penalties) == (False, 1.0, {})
        and u.network_options.keys() <= {"fpn", "k", "width", "backbone_options"}
    )
    changes = [
        ({"k_wta": 0.2}, {}, 6),
        ({"flc_pooling": True}, {}, 6),
        ({}, {"activation_l1": {"strength": 1.0, "layers": "last"}}, 3),
        ({}, {"activation_l1": {"strength": 1.0, "layers": "all"}}, 3),
    ]
    for options, penalties, n_seeds in changes:
        wanted = dict(plain.network_options) | options
        seeds = [
            u.seed for u in trainings if u.network_options == wanted and u.penalties == penalties
        ]
        assert sorted(seeds) == list(range(n_seeds))
    adversarial = [u for u in trainings if "adversarial" in u.penalties]
    epsilon = notebooks.parameters(CHAPTER)["epsilon"].default
    assert {u.penalties["adversarial"]["epsilon"] for u in adversarial} == {epsilon}
    assert all(u.network_options == plain.network_options for u in adversarial)


def test_workstation_repeats_the_main_comparison_on_fashion_mnist():
    values = notebooks.resolve(CHAPTER, "workstation", {})
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    further = [unit for unit in trainings if unit.data == "fashion_mnist"]
    assert {unit.data for unit in trainings} == {"cifar10-jpeg", "fashion_mnist"}
    assert sorted(unit.seed for unit in further) == sorted([*range(6)] * 3)


def test_the_sets_of_the_paper_are_a_matter_of_parameters():
    changes = {
        "data": "cub",
        "shifted": "cub_on_waterbirds",
        "with_masks": True,
        "folds": 5,
        "backbone_name": "resnet18",
        "pretrained": True,
        "n_train": 4700,
    }
    values = notebooks.resolve(CHAPTER, "paper", changes)
    units = notebooks.units_of(CHAPTER, values)
    trainings = [unit for unit in units if isinstance(unit, Training)]
    assert {(u.data, u.folds, u.fold) for u in trainings} == {("cub", 5, fold) for fold in range(5)}
    for unit in trainings:
        assert unit.network_options["backbone"] == "resnet18"
        assert "backbone_options" not in unit.network_options
        check(unit)


def test_every_row_of_a_published_table_has_a_value_for_every_column():
    tables = load_published(CHAPTER)["tables"]
    assert [table["number"] for table in tables] == [*"1234567", *(f"A{n}" for n in range(1, 10))]
    for table in tables:
        assert all(len(row) == len(table["columns"]) for row in table["rows"]), table["id"]
    gains = [ours - plain for _, _, plain, ours in tables[1]["rows"]]
    assert min(gains) > 0.1
