import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from suite import metrics, notebooks, plots
from suite.data import load_data
from suite.errors import UsageError
from suite.evidence.answers import claim_value
from suite.evidence.claims import load_claims
from suite.evidence.quote import Value
from suite.evidence.results import load_results
from suite.methods import cure
from suite.papers import side_by_side as paper
from suite.papers import side_by_side_measures as measures
from suite.papers.design import settings_of
from suite.papers.measure import METRICS
from suite.paths import NOTEBOOKS, ROOT
from suite.training.augmentation import add_noise
from suite.units import Measurement


def parameters(profile: str) -> dict[str, Any]:
    return notebooks.all_parameters("side_by_side", notebooks.resolve("side_by_side", profile, {}))


def cells_of_page() -> list[tuple[str, str]]:
    cells = json.loads((NOTEBOOKS / "side_by_side.ipynb").read_text())["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


PARAMETERS = parameters("smoke")
PANEL = paper.panels(PARAMETERS)[0]
MEASURES = paper.measures(PANEL)
FIRST = PARAMETERS["panels"][0]
REFUSED_PANELS = {
    "unknown key of panels 'colour'": [FIRST | {"colour": 1}],
    "panels, .*: top_gap: expected a mapping of names, got": [FIRST | {"top_gap": ["k"]}],
    "unknown method 'magic'": [FIRST | {"strengths": {"magic": [1.0]}}],
    "chosen, cure: expected one of its strengths": [FIRST | {"chosen": {"cure": 7.0}}],
    "unknown measure 'leak'": [FIRST | {"only": ["leak"]}],
    "one for each data set": [FIRST, FIRST],
    "a value for": [{name: value for name, value in FIRST.items() if name != "epsilon"}],
}


def with_panels(*panels: dict[str, Any]) -> dict[str, Any]:
    return PARAMETERS | {"panels": [*panels]}


class TestPanels:
    @pytest.mark.parametrize("message", REFUSED_PANELS)
    def test_that_are_refused(self, message):
        with pytest.raises(UsageError, match=message):
            paper.plan(with_panels(*REFUSED_PANELS[message]))

    def test_override_parameters(self):
        overrides = {"seeds": [7], "n_few": 3, "n_shifted": 5, "warm_up": 2, "measured": False}
        parameters = with_panels(FIRST | overrides | {"fixed_statistics": True})
        (p,) = paper.panels(parameters)
        assert (paper.is_fine_tuned(p), paper.is_fine_tuned(PANEL)) == (True, False)
        units = [u for u in paper.plan(parameters).units() if isinstance(u, Measurement)]
        sweep_seed = PARAMETERS["sweep_seeds"][0]
        assert {u.training.seed for u in units} == {*PARAMETERS["sweep_seeds"], 7}
        swept = [u for u in units if u.training.seed == sweep_seed]
        assert {(u.metric, u.settings["half"]) for u in swept} == {("accuracy", 0), ("accuracy", 1)}
        settings = {u.metric: u.settings for u in units if u.training.seed == 7}
        assert settings["entropy"]["n_images"] == 3
        assert settings["shifted_accuracy"]["n_images"] == 5
        assert settings.keys() > {m["metric"] for m in MEASURES.values()} - {"accuracy"}
        cure = paper.training(p, paper.Network("cure", p.strengths["cure"][0], 7, True))
        assert (cure.penalties["cure"]["warm_up"], cure.fixed_statistics) == (2, True)

    def test_only_some_measures(self):
        assert not paper.ASKED_FOR & MEASURES.keys()  # they need a null block, or masks
        (p,) = paper.panels(with_panels(FIRST | {"only": ["leakage", "leakage_share"]}))
        measures = paper.measures(p)
        assert [*measures] == ["accuracy", "leakage", "leakage_share"]
        leaks, shares = (settings_of(measures[n], p) for n in ("leakage", "leakage_share"))
        assert shares == leaks | {"relative": True}

    def test_only_the_first_keeps_maps(self):
        units = paper.plan(with_panels(FIRST, FIRST | {"data": "resized:imagenette160:32"})).units()
        data = {u.training.data for u in units if getattr(u, "metric", "") == "saliency_maps"}
        assert data == {FIRST["data"]}


class TestTrainings:
    def test_a_method_changes_one_thing(self):
        plain = paper.training(PANEL, paper.Network("none", 0.0, 0, True))
        assert not plain.penalties
        for method, strengths in PANEL.strengths.items():
            unit = paper.training(PANEL, paper.Network(method, strengths[0], 0, True))
            same_network = unit.network_options == plain.network_options
            assert same_network == (method not in ("top_gap", "softplus")), method
            assert bool(unit.penalties) == (method not in ("softplus", "noise")), method
            assert (unit.input_noise > 0) == (method == "noise")
            assert (unit.epochs, unit.learning_rate) == (plain.epochs, plain.learning_rate)
        assert {"none", *PANEL.strengths} == set(paper.METHODS)

    def test_strengths(self):
        soft = paper.training(PANEL, paper.Network("softplus", 0.2, 0, True))
        assert soft.network_options["softplus"] == pytest.approx(5)
        attacked = paper.training(PANEL, paper.Network("adversarial", 0.03, 0, True))
        penalty = attacked.penalties["adversarial"]
        assert (penalty["epsilon"], penalty["strength"]) == (0.03, 0.5)
        assert cure({"epochs": 4}, 0.1)["penalties"]["cure"]["radius"] == [0.375, 0.75, 1.125, 1.5]
        images, generator = torch.zeros(8, 1, 32, 32), torch.Generator().manual_seed(0)
        assert add_noise(images, 0.0, generator=generator) is images
        assert add_noise(images, 0.2, generator=generator).std() == pytest.approx(0.2, rel=0.05)

    def test_sweep_seeds_are_not_compared(self):
        values = {"strengths": {"cure": [0.1, 1.0]}, "chosen": {"cure": 1.0}}
        p = SimpleNamespace(seeds=[1, 2], sweep_seeds=[0], **values)
        networks = paper.networks(p)
        assert {(n.seed, n.chosen) for n in networks} == {(0, False), (1, True), (2, True)}
        assert {(n.method, n.strength) for n in networks if n.chosen} == {("none", 0), ("cure", 1)}
        p.sweep_seeds = [0, 1]
        with pytest.raises(UsageError, match=r"seeds: expected none of sweep_seeds, got \[1\]"):
            paper.networks(p)


class TestMeasures:
    def test_better_directions(self):
        neither = {name for name, measure in MEASURES.items() if not measure["better"]}
        assert neither == {"faithful", "formula", "share", "distance"}
        assert [name for name, measure in MEASURES.items() if "turned" in measure] == ["faithful"]

    def test_smallest_effects_match_claims(self):
        for claim in load_claims("side_by_side"):
            metric = claim["test"]["where"]["metric"]
            size = claim["smallest_effect"]["size"]
            assert size == paper.SMALLEST.get(metric, paper.FACTOR), claim["id"]
        size = paper.SMALLEST["entropy"]
        assert np.exp(size) == pytest.approx(paper.FACTOR)  # entropy counts pixels
        assert paper.matters("entropy", 6.5, 6.5 - 1.01 * size)
        assert not paper.matters("entropy", 6.5, 6.5 - 0.99 * size)


def rows(values, metric="choice", chosen=False):
    lines = [(m, s, seed, v) for (m, s), vs in values.items() for seed, v in enumerate(vs)]
    table = pd.DataFrame(lines, columns=["method", "strength", "seed", "value"])
    return table.assign(metric=metric, status="done", chosen=chosen)


class TestChoice:
    def test_strongest_that_costs_a_point(self):
        values = {
            ("none", 0.0): [0.90, 0.92],
            ("cure", 0.1): [0.90, 0.92],
            ("cure", 1.0): [0.88, 0.93],  # half a point, a mean over seeds
            ("cure", 10.0): [0.88, 0.91],
            ("noise", 0.1): [0.80, 0.80],
            ("l1", 1.0): [0.95, np.nan],  # the second diverged
        }
        compared = rows({("none", 0.0): [0.1], ("noise", 0.1): [0.9]}, chosen=True)
        frame = pd.concat([rows(values), compared])
        assert paper.strongest_allowed(frame) == {"cure": 1.0}
        table = paper.list_strengths(frame).set_index("method")
        assert table.loc["CURE", "strongest allowed"] == "1"
        assert table.loc["noise on the images", "strongest allowed"] == "none"
        lost = table.loc["CURE", "strength: points of accuracy lost"]
        assert lost == "0.1: +0.0; 1: +0.5; 10: +1.5"

    def test_kept_results_follow_the_rule(self):
        for profile in ("desktop", "workstation"):
            for data, panel in load_results("side_by_side", profile).frame.groupby("data"):
                chosen = panel[panel["chosen"].astype(bool) & (panel["method"] != "none")]
                strengths = chosen.groupby("method")["strength"].first().to_dict()
                assert paper.strongest_allowed(panel) == pytest.approx(strengths), (profile, data)

    def test_by_each_half_of_the_images(self):
        plain = {("none", 0.0): [0.9], ("cure", 0.1): [0.9]}
        swept = rows(plain | {("cure", 1.0): [np.nan]})
        other = rows(plain | {("cure", 1.0): [0.9]}, "accuracy")
        row = paper.list_strengths(pd.concat([swept, other])).iloc[0]
        assert row[["strongest allowed", "by the other half"]].tolist() == ["0.1", "1"]
        assert "1: diverged" in row["strength: points of accuracy lost"]
        values = {("none", 0.0): [0.9, 0.8], ("cure", 0.1): [0.89, 0.79]}
        compared = [rows(values, name, chosen=True) for name in ("accuracy", "choice")]
        compared[1]["value"] **= 2
        row = paper.list_strengths(pd.concat([rows(values), *compared])).iloc[0]
        assert row["lost: shown half, other half"] == "+1.0, +1.7"


CLEAR = [0.2, 0.21, 0.2, 0.19, 0.2, 0.2]
VAGUE = [0.3, -0.3, 0.2, -0.2, 0.1, 0.0]


def cells_of(gaps: dict[str, list[float]]) -> pd.DataFrame:
    plain = [0.5, 0.52, 0.48, 0.51, 0.49, 0.5]
    values = {("none", 0.0): plain}
    values |= {(m, 1.0): [v + g for v, g in zip(plain, gap)] for m, gap in gaps.items()}
    names = ("attacked", "sensitivity", "formula")
    flat = {key: [0.9] * len(vs) for key, vs in values.items()}
    parts = [rows(values, name, chosen=True) for name in names]
    swept = rows({("none", 0.0): [0.0], ("cure", 9.0): [7.0]}, "attacked")
    frame = pd.concat([*parts, rows(flat, "accuracy", chosen=True), swept])
    return paper.compare(frame, {name: MEASURES[name] for name in ("accuracy", *names)})


def panel_of(cells, steps=None):
    return paper.Panel(PANEL, pd.DataFrame(), MEASURES, cells, steps or {})


def cell(gaps, measure, method):
    return cells_of(gaps).set_index(["measure", "method"]).loc[(measure, method)]


class TestCompare:
    def test_clear_and_vague(self):
        gaps = {"cure": CLEAR, "noise": VAGUE}
        cure = cell(gaps, "attacked", "cure")
        assert cure["stands"]
        assert not cell(gaps, "attacked", "noise")["stands"]
        assert cure["deviations"] > 0 > cell(gaps, "sensitivity", "cure")["deviations"]
        assert cell(gaps, "formula", "cure")["deviations"] == 0
        assert cure["difference"] == pytest.approx(0.2)
        assert cure["n"] == 6  # without the networks that chose the strength
        assert cure["strength"] == 1

    def test_holm(self):
        alone = cell({"cure": CLEAR}, "attacked", "cure")
        among = cell({"cure": CLEAR, "noise": VAGUE, "l1": VAGUE}, "attacked", "cure")
        assert alone["p_holm"] == pytest.approx(alone["p"])
        assert among["p_holm"] == pytest.approx(3 * among["p"])

    def test_nothing_chosen(self):
        plain = {("none", 0.0): [0.9]}
        cells = paper.compare(pd.concat([rows(plain), rows(plain, "accuracy")]), MEASURES)
        assert cells.empty
        assert paper.rank_gains(panel_of(cells)).empty
        assert paper.list_cells(panel_of(cells)).empty
        for figure in (
            plots.matrix(**paper.matrix(cells, MEASURES), label="", limit=1),
            plots.gain_and_cost(paper.gains(cells, "attacked"), gain_label="", cost_label=""),
        ):
            assert "not run" in figure.axes[0].texts[0].get_text()

    def test_list_of_cells(self):
        table = paper.list_cells(panel_of(cells_of({"cure": CLEAR, "noise": VAGUE})))
        of_cure = table[(table["measure"] == "accuracy, attacked") & (table["method"] == "CURE")]
        (row,) = of_cure.drop(columns=["measure", "method"]).to_numpy().tolist()
        assert row == [0.5, "0.2000 [0.1934, 0.2066]", "yes"]


class TestGains:
    def test_words(self):
        panel = panel_of(cells_of({"cure": CLEAR, "noise": VAGUE}))
        values = [panel.gain(m, "cure") for m in ("attacked", "sensitivity")]
        assert [value.word for value in values] == ["better", "worse"]
        assert panel.gain("attacked", "noise").word == "not significant"
        assert f"{values[0]:points}" == "+20.00 points [+19.34, +20.66]"
        assert not panel.gain("attacked", "l1")
        row = paper.gains(panel.cells, "attacked").set_index("method").loc["CURE"]
        assert row["gain"] == pytest.approx(20)
        assert row["gain_low"] < 20 < row["gain_high"]
        assert row["cost"] == 0

    def test_largest_first(self):
        cells = cells_of({"noise": CLEAR, "cure": [gap + 0.1 for gap in CLEAR]})
        ranked = paper.rank_gains(panel_of(cells))
        gains = ranked[ranked["measure"] == "attacked"]
        assert gains["method"].tolist() == ["cure", "noise"]
        assert gains["paid"].iloc[0][:3] == (0, 0, 0)
        assert "sensitivity" not in set(ranked["measure"])


class TestAnswers:
    def answer(self, gaps):
        """Return the answer to the first want, robustness, which expects PGD training."""
        panels = dict.fromkeys(paper.OWN["panels"], panel_of(cells_of(gaps), {"adversarial": 5.3}))
        return paper.answers(panels, lambda claim: Value(1.0, 0.5, 1.5, n=6, shown="holds")).iloc[0]

    def test_row(self):
        row = self.answer({"adversarial": CLEAR, "noise": VAGUE})
        assert row["Take"].startswith("<b>PGD training</b>: half of the loss")
        assert row["Gain"].endswith(" points (50% → 70%)")
        assert "a step takes 5.3 plain ones" in row["Cost"]
        assert 'side-by-side-pgd-training-resists-more">holds</a>' in row["How sure"]

    def test_unexpected_method_is_reported(self):
        row = self.answer({"adversarial": CLEAR, "cure": [gap + 0.1 for gap in CLEAR]})
        assert row["Take"] == "<b>CURE</b>"
        assert "another method" in row["How sure"]
        assert "holds" not in row["How sure"]

    def test_nothing_helps_or_not_run(self):
        row = self.answer({"adversarial": VAGUE})
        assert list(row[["Take", "Gain", "How sure"]]) == ["–", "–", "nothing helps significantly"]
        panels = dict.fromkeys(paper.OWN["panels"], panel_of(pd.DataFrame(columns=paper.CELL)))
        assert set(paper.answers(panels, lambda claim: Value())["How sure"]) == {"not run"}

    def test_kept_rows_fit_the_page(self):
        kept = load_results("side_by_side", "workstation")
        panels = paper.collect_panels(kept.frame, parameters("workstation"), {False: {}, True: {}})
        table = paper.answers(panels, lambda name: claim_value("side_by_side", kept.verdicts, name))
        methods = table["Take"].str.extract("<b>(.*)</b>")[0].tolist()
        assert methods == ["PGD training", "SoftPlus activations", "PGD training"]
        assert table["How sure"].str.count("holds").tolist() == [1, 0, 1]


class TestOverview:
    def test_order_and_looks(self):
        panel = panel_of(cells_of({"noise": VAGUE, "cure": CLEAR}), {"cure": 5.3})
        table = paper.overview(panel, panel).set_index("method")
        assert list(table.index) == ["CURE", "noise", "<i>no method</i>"]
        attacked = table["under attack % ↑"]
        assert attacked["CURE"] == '<span class="better">70.0 ± 0.7</span>'
        assert '<span class="pale">' in attacked["noise"]
        assert attacked["<i>no method</i>"] == "50.0"
        assert '<span class="worse">' in table.loc["CURE", "change of maps % ↓"]
        assert list(table["time of a step, × ↓"]) == ["5.3", "–", "1.0"]
        assert set(table["leakage ↓"]) == {"–"}

        (code,) = [source for _, source in cells_of_page() if "paper.overview" in source]
        assert f'ordered="{paper.OWN["shown"]["attacked"][0]}"' in code


def test_sizes_match_defaults_of_metrics():
    text = paper.sizes(PANEL)
    for metric, name, words in (
        ("local_lipschitz_estimate", "noise_std", "of {:g} for the Lipschitz estimate"),
        ("max_sensitivity", "radius", "reaches {:g} for max-sensitivity"),
    ):
        default = inspect.signature(getattr(metrics, metric)).parameters[name].default
        assert words.format(default) in text
    assert f"Maps: {PANEL.n_few} images" in text


def write_photographs(root):
    test = load_data("photograph-tiles").test
    for split, rows in (("train", slice(0, 64, 2)), ("test", slice(1, 64, 8))):
        for name, label in enumerate(test.labels.unique()[:2]):
            folder = root / split / f"photograph {name}"
            folder.mkdir(parents=True)
            tiles = test.images[test.labels == label][rows]
            for number, tile in enumerate(tiles.repeat_interleave(2, 2).repeat_interleave(2, 3)):
                Image.fromarray(tile.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return root


def program(root):
    text = "".join(source for kind, source in cells_of_page() if kind == "markdown")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return code.replace("PATH", str(root)).replace('"n_images": 64', '"n_images": 16')


class TestProgram:
    def test_strength_is_the_chosen_one(self):
        (tuned,) = filter(paper.is_fine_tuned, paper.panels(parameters("workstation")))
        chosen = paper.Network("adversarial", tuned.chosen["adversarial"], 0, True)
        names: dict[str, Any] = {}
        exec(program("folder"), names)
        assert names["network"].penalties == paper.training(tuned, chosen).penalties

    def test_fine_tunes_on_a_folder(self, tmp_path, capsys):
        script = tmp_path / "script.py"
        script.write_text(program(write_photographs(tmp_path / "images")))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "REGLIB_JOBS": "2"}
        out = subprocess.check_output([sys.executable, script], env=environment, text=True)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(script.read_text(), names)  # reads the results that the script stored
        assert out in capsys.readouterr().out
        measured = names["measured"].set_index("metric")
        assert set(measured["status"]) == {"done"}
        assert measured.loc["accuracy", "value"] > 0.8
        assert measured.loc["robust_accuracy", "value"] <= measured.loc["accuracy", "value"]
        assert measured.loc["accuracy", "n"] == measured.loc["robust_accuracy", "n"] == 16

    def test_one_class_is_refused(self, tmp_path):
        root = write_photographs(tmp_path / "images")
        for split in ("train", "test"):
            shutil.rmtree(root / split / "photograph 1")
        with pytest.raises(UsageError, match="expected two classes or more"):
            exec(program(root), {"__name__": "__main__"})


def test_halves_of_the_test_images():
    labels = load_data("mnist5k").test.labels

    def right_in(half, rows):
        """Count the correct predictions in a half, of a network that is right on `rows` alone."""
        logits = torch.zeros(len(labels), 11)
        logits[:, 10] = 1
        logits[rows, labels[rows]] = 2
        subject = SimpleNamespace(test_uint8=lambda *_: (None, labels))
        subject.test_logits = lambda *_: logits
        values = METRICS["accuracy"](subject, half=half).per_image
        assert len(values) == 500
        return int(values.sum())

    assert all(right_in(0, [row]) + right_in(1, [row]) == 1 for row in range(0, 1000, 13))
    classes = [(labels == digit).nonzero()[:, 0] for digit in range(10)]
    assert all(min(right_in(0, rows), right_in(1, rows)) > 30 for rows in classes)


def test_calibration_error():
    top = torch.tensor([0.9, 0.9, 0.6, 0.6], dtype=torch.float64)
    right = torch.tensor([True, False, True, True])
    # Bins of a tenth: |0.9 - 0.5| and |0.6 - 1|, half of the images each.
    assert float(measures.expected_calibration_error(top, right, 10)) == pytest.approx(0.4)
    assert float(measures.expected_calibration_error(right.double(), right, 10)) == 0


def test_shift_repeats_outermost_pixels():
    image = torch.arange(9).view(1, 1, 3, 3)
    assert measures.shift(image, 1, 0)[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert measures.shift(image, 0, -1)[0, 0].tolist() == [[1, 2, 2], [4, 5, 5], [7, 8, 8]]


def test_share_on_the_object():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    images, labels = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 1, 0])
    masks = torch.rand(8, 4, 4) < 0.5
    split = SimpleNamespace(masks=masks)
    subject = SimpleNamespace(
        data=SimpleNamespace(test=split, shape=(1, 4, 4)),
        unit=SimpleNamespace(data="d"),
        folded=network,
        test_images=lambda n: (images[:n], labels[:n]),
    )
    weights = network[1].weight[labels[:4]].detach().abs()  # the gradients of the labels' logits
    expected = (weights * masks[:4].flatten(1)).sum(1) / weights.sum(1)
    shares = measures.share_on_object(subject, n_images=4).per_image
    torch.testing.assert_close(shares, expected.double())
    other = (weights[1] * masks[3].flatten()).sum() / weights[1].sum()  # the class of image 1
    beyond = measures.share_on_object(subject, n_images=4, beyond_others=True).per_image
    torch.testing.assert_close(beyond[1], (expected[1] - other).double())
    assert beyond[[0, 2]].isnan().all()  # alone in their classes
    split.masks = None
    with pytest.raises(UsageError, match="share_on_object: expected a data set with masks, got"):
        measures.share_on_object(subject, n_images=4)


def test_grid_of_four():
    labels = torch.tensor([0, 0, 1, 2, 3, 1])
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 2, 2)
    grids, positions = measures.image_grids(images, labels)
    assert grids.shape == (6, 1, 4, 4)
    for index, position in enumerate(positions.tolist()):
        corners = grids[index, 0, ::2, ::2].flatten().long()
        assert corners[position] == index
        assert len(set(labels[corners].tolist())) == 4
    with pytest.raises(UsageError, match="four classes"):
        measures.image_grids(images[:3], labels[:3])
