import dataclasses

import numpy as np
import pandas as pd
import pytest

from benchmarks.tables import TOP_GAP_STEPS, load, top_gap_costs, top_gap_steps
from suite import notebooks
from suite.evidence.claims import load_claims
from suite.evidence.names import name_of
from suite.evidence.results import Results, load_results
from suite.papers import top_gap
from suite.papers.top_gap import TITLES
from suite.paths import KEPT_RESULTS
from suite.training.loop import check
from suite.units import training_of
from tests.small_batches import n_parameters

CHAPTER = "top_gap"
PHOTOGRAPHS = "resized:imagenette160:128"
SMALLER = "resized:cifar10-jpeg:32"
FROM_SCRATCH = "resized:imagenette160:64"
ARTICLES = "article_canvas"


def labels(plan):
    items = [item for item in plan if item.labels is not None]
    return pd.DataFrame([{"metric": getattr(i.unit, "metric", ""), **i.labels} for i in items])


def parameters_of(profile, **changes):
    return notebooks.all_parameters(CHAPTER, notebooks.resolve(CHAPTER, profile, changes))


def panel(profile="workstation", **keys):
    """Return the only panel of a profile, or a panel of digits with the given keys."""
    changes = {"panels": [{"data": "digits-centred"} | keys]} if keys else {}
    (p,) = top_gap.panels(parameters_of(profile, **changes))
    return p


@pytest.mark.parametrize("profile", ["desktop", "workstation", "paper"])
def test_headlines_have_enough_seeds(profile):
    for p in top_gap.panels(parameters_of(profile)):
        models = top_gap.models(p)
        mains = [m for m in models if m == top_gap.main_model(p, m.variant, m.seed)]
        seeds = {v: [m.seed for m in mains if m.variant == v] for v in TITLES}
        assert all(seeds[v] for v in set(top_gap.VARIANTS) - set(p.left_out))
        if p.data not in (PHOTOGRAPHS, FROM_SCRATCH):  # these are in no headline
            variants = {"none", "fpn+l1", top_gap.ALL_THREE, "fpn+pool"} - set(p.left_out)
            assert variants >= {"none", top_gap.ALL_THREE}
            least = p.folds or (3 if p.data in (SMALLER, top_gap.CIFAR) else 6)
            assert all(len(seeds[v]) >= least for v in variants)
        units = [top_gap.training(p, m) for m in models]
        assert len(units) == len({str(u) for u in units})
        for unit in units[:: len(units) // 10 or 1]:
            check(unit)


def test_doses_and_sparsest_maps():
    """A dose is the weight of L1 on a logit; the sparsest maps have the main strength."""
    plan = top_gap.plan(parameters_of("workstation"))
    rows = labels(plan)
    assert set(rows.loc[rows["sparsest"], "strength"]) == {0.0, 1.0}
    rows = labels(item for item in plan if training_of(item.unit).data == ARTICLES)
    rows = rows[rows["dose"].isin([0.8, 1.0])]
    models = rows[["variant", "k", "strength"]].drop_duplicates().itertuples(index=False)
    assert {("fpn+l1+pool", 0.08, 10.0), ("l1", 1.0, 1.0)} <= {tuple(model) for model in models}
    auto = rows[(rows["battery"] == "auto") & (rows["variant"] == "fpn+l1+pool")]
    assert sorted(set(auto["epsilon"])) == [top_gap.six_digits(n / 255) for n in (4, 8)]


def test_claims_on_autoattack_name_a_strength():
    for claim in load_claims(CHAPTER):
        where = claim["test"].get("where", {})
        if where.get("battery") == "auto":
            assert where.get("main") or where.get("dose") or where.get("strength"), claim["id"]


def test_battery_seeds_limit_the_battery():
    p = panel(battery_seeds=[0])
    models = [top_gap.main_model(p, "none", seed) for seed in (0, 1)]
    parts = [{labels["battery"] for labels, *_ in top_gap._attacks(p, model)} for model in models]
    assert parts[0] > {"none", "auto"}
    assert parts[1] == {"none"}


def test_variants_change_only_what_they_name():
    p = panel("desktop")
    plain = top_gap.training(p, top_gap.main_model(p, "none", 0))
    assert (plain.network_options["fpn"], plain.network_options["k"]) == (False, 1.0)
    assert plain.penalties == {}
    l1 = {"class_map_l1": {"strength": 1.0}}
    for variant, options, penalties in (
        ("pool", {"k": 0.02}, {}),
        ("l1", {}, l1),
        ("fpn", {"fpn": True}, {}),
        ("fpn+l1+pool", {"fpn": True, "k": 0.02}, l1),
        ("k_wta", {"k_wta": 0.2}, {}),
        ("flc", {"flc_pooling": True}, {}),
    ):
        changed = top_gap.training(p, top_gap.main_model(p, variant, 0))
        assert changed.network_options == plain.network_options | options
        assert changed.penalties == penalties
        plain_fields = {"network_options": plain.network_options, "penalties": {}}
        assert dataclasses.replace(changed, **plain_fields) == plain
    for variant, steps in (("fgsm_at", 1), ("pgd_at", 7)):
        changed = top_gap.training(p, top_gap.main_model(p, variant, 0))
        assert changed.network_options == plain.network_options
        attack = changed.penalties["adversarial"]
        assert (attack["n_steps"], attack["epsilon"]) == (steps, p.epsilon)
    combined = top_gap.training(p, top_gap.main_model(p, "pgd_at+fpn+l1+pool", 0))
    assert combined.penalties.keys() == {"class_map_l1", "adversarial"}
    assert combined.network_options == plain.network_options | {"fpn": True, "k": 0.02}


def test_candidates_use_held_out_images():
    p = panel("desktop")
    candidates = {(k, 1.0) for k in p.k_values} | {(p.k, strength) for strength in p.strengths}
    held_out = [m for m in top_gap.models(p) if m.validated]
    assert {(m.k, m.strength) for m in held_out} == candidates
    for model in held_out:
        unit = top_gap.training(p, model)
        assert (unit.folds, unit.fold, unit.n_train) == (5, model.seed % 5, 3200)  # of 4,000
        (spec,) = top_gap._specs(p, model)
        assert spec.metric == "accuracy"
    assert all(top_gap.training(p, m).folds is None for m in top_gap.models(p) if not m.validated)
    p = panel(left_out=["k"], validation_strengths=[0.1])
    weak = [m for m in top_gap.models(p) if m.variant == "fpn+l1+pool" and m.strength == 0.1]
    assert {m.validated for m in weak} == {True}


def test_folds_of_birds_are_large_enough():
    (p,) = [p for p in top_gap.panels(parameters_of("paper")) if p.data == "cub"]
    trainings = [top_gap.training(p, model) for model in top_gap.models(p)]
    assert {(u.folds, u.fold) for u in trainings} == {(5, fold) for fold in range(5)}
    for unit in trainings[::20]:
        assert unit.network_options["backbone"] == "resnet18"
        assert unit.network_options["pretrained"]
        check(unit)
    in_a_fold = 5_994 // 5  # a fifth of its training images
    assert max(p.n_images, p.n_attacked, p.n_battery, p.n_corrupted) <= in_a_fold
    assert [round(56 * 56 * k) for k in p.k_values] == [64, 128, 256, 512, 1024, 2048]
    specs = [spec for model in top_gap.models(p) for spec in top_gap._specs(p, model)]
    assert {settings.get("data", "cub") for *_, settings in specs} == {"cub", p.shifted}


def test_l1_alone_matches_clean_accuracy():
    columns = ["data", "variant", "strength", "main", "value", "seed", "matched"]
    lines = [
        ("a", "fpn+l1+pool", 1.0, True, 0.7, 0, True),
        ("a", "fpn+l1+pool", 1.0, True, 0.3, 1, True),  # a seed without L1 alone
        ("a", "l1", 1.0, True, 0.5, 0, False),
        ("a", "l1", 10.0, False, 0.8, 0, True),
        ("a", "last", 0.1, False, 0.69, 0, True),
        ("b", "fpn+l1+pool", 1.0, True, 0.5, 0, True),
        ("b", "l1", 1.0, True, 0.5, 0, True),
        ("b", "l1", 10.0, False, 0.8, 0, False),
    ]
    rows = pd.DataFrame(lines, columns=columns)
    rows = rows.assign(metric="accuracy", test="own", status="done")
    expected = rows.pop("matched").tolist()
    assert top_gap.mark_matched(rows).tolist() == expected


@pytest.mark.parametrize("profile", [f.parent.name for f in KEPT_RESULTS.glob(f"*/{CHAPTER}.zip")])
def test_k_and_strength_follow_the_rule(profile):
    rows = load_results(CHAPTER, profile).frame
    held_out = rows[(rows["test"] == "validation") & (rows["metric"] == "accuracy")]
    panels = {p.data: p for p in top_gap.panels(parameters_of(profile))}
    assert set(held_out["data"]) == {data for data, p in panels.items() if p.validation_seeds}
    for data, rows_of_data in held_out.groupby("data"):
        mean = rows_of_data.groupby(["k", "strength"])["value"].mean()
        assert panels[data].k == mean.xs(1.0, level="strength").idxmax()
        largest = max(s for s, value in mean[panels[data].k].items() if value >= mean.max() - 0.01)
        # On articles a larger strength was tried later, as the page says.
        assert (panels[data].strength, largest) == (1.0, 3.0 if data == ARTICLES else 1.0)


def test_default_k_is_published():
    """256 of the 56 x 56 locations of its maps."""
    panels = top_gap.panels(parameters_of("workstation"))
    later = [FROM_SCRATCH, SMALLER, top_gap.CIFAR]
    assert [p.data for p in panels if not p.validation_seeds] == [PHOTOGRAPHS, *later]
    panels = [p for p in panels if not p.validation_seeds or len(p.k_values) == 1]
    assert {p.data for p in panels} == {ARTICLES, PHOTOGRAPHS, *later}  # λ alone on articles
    assert {p.k for p in panels[:-2]} == {round(256 / 56**2, 2)}


def test_cifar_networks_match_the_page():
    text = (notebooks.NOTEBOOKS / f"{CHAPTER}.ipynb").read_text()
    sizes = {}
    for profile in ("paper", "workstation"):
        units = notebooks.units_of(CHAPTER, notebooks.profiles(CHAPTER)[profile])
        trainings = [t for t in map(training_of, units) if not t.folds]
        on_cifar = [t for t in trainings if t.data in ("cifar10", top_gap.CIFAR)]
        options = {t.network_options["fpn"]: t.network_options for t in reversed(on_cifar)}
        for fpn in (False, True):
            sizes[profile, fpn] = n_parameters("top_gap", (3, 32, 32), **options[fpn])
    (epochs,) = {t.epochs for t in on_cifar}
    assert f"{epochs} epochs on CIFAR-10" in text
    times = [round(sizes["paper", fpn] / sizes["workstation", fpn]) for fpn in (False, True)]
    assert "{} to {} times fewer parameters".format(*times) in text


COLUMNS = ["profile", "seed", "variant", "metric", "value"]
ROWS = [
    ("laptop", 0, "none", "accuracy", 0.5),
    ("laptop", 1, "none", "accuracy", 0.7),
    ("laptop", 0, "fpn", "accuracy", 0.25),
    ("laptop", 0, "none", "mask_iou", 0.125),
    ("paper", 0, "none", "accuracy", 1.0),
]


def table(rows=ROWS, columns=COLUMNS, **changes):
    common = {"status": "done", "battery": "none", "test": "own", "part": "", "data": "mnist"}
    common |= {"counts": "", "attack": "", "k": 0.5, "sweep": True, "epsilon": 0.0, "scale": 1.0}
    common |= {"parts": "", "steps": 0}
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(**{n: v for n, v in (common | changes).items() if n not in columns})


def test_attacks_leave_out_diverged_trainings():
    assert len(top_gap.attacks(table(), "none")) == 4
    assert top_gap.attacks(table(), "none that was run").empty
    rows = top_gap.attacks(table(attack=np.nan, parts=np.nan), "none", variant=["fpn", "pool"])
    assert rows[["value", "name"]].to_numpy().tolist() == [[0.25, "clean"]]
    diverged = table().assign(status=["done", "diverged", *["done"] * 3])
    assert top_gap.attacks(diverged, "none")["value"].tolist() == [0.5, 0.25, 1.0]


def test_each_attack_has_a_name():
    columns = ["battery", "attack", "parts", "steps", "scale", "counts", "epsilon"]
    rows = [
        ("none", "fgsm", "", 1, 1.0, "unchanged", 1 / 255),
        ("none", "pgd", "", 20, 1.0, "unchanged", 8 / 255),
        ("none", "pgd", "", 20, 1.0, "correct", 8 / 255),
        ("auto", "auto_attack", "", 100, 1.0, "unchanged", 8 / 255),
        ("auto", "auto_attack", "", 100, 1.0, "correct", 0.5 / 255),
        ("auto", "auto_attack", "", 20, 1.0, "unchanged", 1 / 255),
        ("parts", "auto_attack", "square", 1, 1.0, "unchanged", 8 / 255),
        ("scale", "pgd", "", 50, 100.0, "unchanged", 8 / 255),
        ("transfer", "transfer", "", 50, 1.0, "unchanged", 8 / 255),
    ]
    frame = pd.concat([table(), table(rows, columns, metric="robust_accuracy")])
    frame = frame[frame["metric"] != "mask_iou"]

    def names(battery, **values):
        return [*top_gap.attacks(frame, battery, **values)["name"].unique()]

    assert names("none") == ["clean", "fgsm 1, ε 1/255", "pgd 20, ε 8/255"]
    assert names("auto") == ["AutoAttack, ε 8/255", "AutoAttack of 20 steps, ε 1/255"]
    assert names("auto", counts="correct") == ["AutoAttack, ε 0.5/255"]
    battery = ["square, ε 8/255", "logits × 100, ε 8/255", "transfer, ε 8/255"]
    assert names(["parts", "scale", "transfer"]) == battery


def test_published_table_has_dashes_for_nan():
    entry = {"number": "3", "shows": "accuracy", "columns": ["a", "b"]}
    published = {"tables": [entry | {"rows": [[0.5, np.nan], [True, 2]]}]}
    title, frame = top_gap.read_table(published, "3")
    assert title == "Table 3 of the paper: accuracy."
    assert frame.to_numpy().tolist() == [["0.5", "–"], [True, "2"]]
    published["tables"][0]["number"] = "7"
    _, frame = top_gap.read_table(published, "7")
    assert frame["a"].tolist() == ["0.5", "yes"]


def test_map_means_include_published_ones():
    rows = [("laptop", 0, "fpn+l1+pool", "class_map_sparsity", 0.25)]
    a8 = {"number": "A8", "shows": "", "columns": ["penalty on", "mean of the map"]}
    published = {"tables": [a8 | {"rows": [["last", 0.1], ["Top-GAP, k = 784", 0.5]]}]}
    means = top_gap.map_means(table(rows, k=0.5), published)
    assert means[["k", "value", "who"]].to_numpy().tolist() == [
        [0.5, 0.25, "MNIST, laptop"],
        [0.25, 0.5, "published: CUB, ResNet-18"],
    ]


def test_training_steps_come_from_the_benchmark():
    step, name = {"benchmark": "Top-GAP", "value": 1.5, "quartiles": [1.25, 1.75]}, TOP_GAP_STEPS[2]
    ends = ("with L1 / backbone", "Fourier pooling / backbone")
    rows = [step | {"case": f"training step, {name}: {end}"} for end in ends]
    rows += [step | {"case": "PGD, 20 steps"}, step | {"case": f"memory, {name}: {ends[0]}"}]
    rows += [step | {"case": "training step, another", "benchmark": "training step"}]
    steps = top_gap_steps({"rows": rows})
    assert steps.to_numpy().tolist() == [[name, 1.5, "1.25 to 1.75"]]
    assert len(top_gap_steps(load("cpu"))) >= 2
    costs = top_gap_costs(CPU={"rows": rows}, H200=None).set_index("step")
    assert (costs.loc[name] == "1.50").to_numpy().sum(1).tolist() == [2, 1, 0]
    assert (costs == "not run").to_numpy().sum() == 6 * len(costs) - 3


class TestPictures:
    MAPS = np.arange(32, dtype="uint8").reshape(2, 4, 4)

    def results(self, *runs):
        return [Results(pd.DataFrame(), pd.DataFrame(), arrays, {}) for arrays in runs]

    def test_maps_of_the_first_run(self):
        images = {"mnist|images": np.ones((2, 3, 4, 4), "uint8")}
        run = images | {"mnist|maps|none": self.MAPS, "cifar10|maps|none": self.MAPS}
        grid = top_gap.class_maps(self.results(run, images | {"mnist|maps|l1": self.MAPS}))
        assert grid["labels"] == ["MNIST"] * 2
        assert grid["titles"][:4] == ["image", "unmodified", "pooling", "L1"]
        image, plain, _, l1, *_ = grid["rows"][1]
        assert (image.shape, plain.tolist()) == ((3, 4, 4), self.MAPS[1].tolist())
        assert l1 is None  # of another run
        assert top_gap.class_maps(self.results({}))["rows"] == [[None]]

    def test_fields_by_location_with_half_shares(self):
        fields = {"corner": np.eye(2), "quarter": np.ones((2, 2)), "centre": np.eye(4)}
        arrays = {f"mnist|erf|none|{at}": field for at, field in fields.items()}
        grid = top_gap.receptive_fields(self.results(arrays | {"a|images": self.MAPS}), "none")
        assert [row[0].shape for row in grid["rows"]] == [f.shape for f in fields.values()]
        assert grid["notes"] == [["half in 25%"], ["half in 50%"], ["half in 12%"]]
        assert (grid["titles"], grid["labels"]) == (["MNIST"], [*fields])

    def test_fields_narrow_where_the_record_says(self):
        results = [load_results("top_gap", profile) for profile in ("desktop", "workstation")]
        plain, top = (top_gap.receptive_fields(results, v) for v in ("none", top_gap.ALL_THREE))
        halves = [[[*map(top_gap.half_share, row)] for row in f["rows"]] for f in (plain, top)]
        narrower = np.less(*halves[::-1]).all(0)
        assert len(plain["titles"]) == 8
        assert [*np.array(plain["titles"])[narrower]] == [name_of("resized:imagenette160:128")]
