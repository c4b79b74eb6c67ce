import numpy as np
import pandas as pd

from benchmarks.tables import TOP_GAP_STEPS, load, top_gap_costs, top_gap_steps
from suite.evidence.names import name_of
from suite.evidence.results import Results, load_results
from suite.papers import top_gap

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
        assert len(plain["titles"]) == 7
        assert [*np.array(plain["titles"])[narrower]] == [name_of("resized:imagenette160:128")]
