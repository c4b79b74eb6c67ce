"""The chapter on gradient regularisation: its units, cut-offs and sentences."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.data import image_shape
from suite.errors import UsageError
from suite.evidence.results import load_results
from suite.networks import build_network
from suite.notebooks import source
from suite.papers import gradient_regularisation as paper
from suite.papers import gradient_regularisation_tables as tables
from suite.papers.design import panels_of
from suite.units import Measurement, Training

PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 3}
PARAMETERS = {"panels": [PANEL], "repetitions": 2, "batch_size": 128, "alpha_min": 1e2}
PARAMETERS |= {"alpha_max": 1e6, "n_images": 4, "n_samples": 2, "map_alphas": [1e2, 2e2]}
PARAMETERS |= {"n_maps": 1, "patch": 4}


def of_panel(panel):
    (found,) = panels_of(PARAMETERS | {"panels": [panel]}, paper.OF_PANEL)
    return found


def trainings(panel):
    return paper.trainings(of_panel(panel))


def test_the_strength_is_alpha_over_squared_batch_and_values():
    assert paper.strength(128**2 * 784, "mnist5k", 128) == 1


def test_each_network_has_a_seed_of_its_own_and_maps_are_of_the_nearest_alphas():
    trained = trainings(PANEL)
    assert [*trained] == [(alpha, number) for number in (0, 1) for alpha in (1e2, 1e4, 1e6)]
    assert [unit.seed for unit in trained.values()] == [*range(6)]
    assert [unit.seed for unit in trainings(PANEL | {"first_seed": 6}).values()] == [*range(6, 12)]
    first = trained[1e2, 0]
    assert (first.pixel_range, first.batch_size) == ((-1.0, 1.0), 128)
    units = paper.plan(PARAMETERS).units()
    measured = [unit for unit in units if isinstance(unit, Measurement)]
    assert len(units) == 6 * (1 + 1 + 2 * 8) + 1
    assert [(u.metric, u.training) for u in measured[-1:]] == [("saliency_maps", first)]
    kept = [item.keep for item in paper.maps(of_panel(PANEL | {"maps_of": "mnist"}))]
    assert kept == [f"mnist5k|lenet5|{shown}|100" for shown in ("mnist5k", "mnist")]


@pytest.mark.parametrize("panel", [PANEL | {"n_alpha": 3}, {"data": "mnist5k"}])
def test_a_panel_has_the_keys_that_are_needed_and_no_others(panel):
    with pytest.raises(UsageError, match=r"of panels 'n_alpha'|panels: expected"):
        trainings(panel)


class TestPairedPanel:
    PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 2, "paired_alphas": [1e2, 1e6, 1e7]}

    def test_each_seed_goes_through_all_alphas(self):
        trained = trainings(self.PANEL)
        assert [*trained] == [(alpha, seed) for seed in (0, 1) for alpha in (1e2, 1e6, 1e7)]
        assert [unit.seed for unit in trained.values()] == [0, 0, 0, 1, 1, 1]

    def test_maps_are_signed_absolute_and_deeplift_on_both_scores(self):
        found = paper.plan(PARAMETERS | {"panels": [self.PANEL], "map_alphas": []})
        measured = [u for u in found.units() if isinstance(u, Measurement)]
        faithful = [u.settings for u in measured if u.metric == "faithfulness_estimate"]
        kinds = {(s["saliency"], s["score"]) for s in faithful}
        maps = ("logit_gradient", "absolute_gradient", "deeplift")
        assert kinds == {(name, score) for name in maps for score in ("confidence", "logit")}
        assert {u.metric for u in measured} == paper.PAIRED.keys() - {"training_loss"}

    def test_its_rows_have_names_and_cut_off_of_their_own(self):
        of_both = [rows({1e2: 0.9, 1e6: 0.9, 1e7: low}) for low in (0.1, 0.9)]
        table = pd.concat([t.assign(paired=low) for t, low in zip(of_both, (True, False))])
        derived, _ = paper.derive({}, table, {})
        cut_offs = derived.groupby("metric")["t_alpha"].unique().map(list).to_dict()
        assert cut_offs == {"accuracy": [math.inf], "paired_accuracy": [1e7]}
        alone, _ = paper.derive({}, of_both[0].assign(paired=True), {})
        assert set(alone["metric"]) == {"accuracy"}  # claims are judged on them
        shown = paper.with_paired(pd.concat([derived, rows({1e2: 0.5}, network="resnet")]))
        assert shown["metric"].tolist() == ["accuracy"] * 4
        assert set(shown.loc[shown["network"] == "lenet5", "t_alpha"]) == {1e7}

    def test_changes_are_within_its_seeds(self):
        at = ["plateau", "before"]
        parts = [rows({1e2: s, 1e7: s + 0.5}).assign(seed=s, place=at) for s in range(3)]
        change = paper.change(pd.concat(parts), "before", "plateau")
        assert (change.estimate, change.low, change.n) == (0.5, 0.5, 3)


def rows(accuracies, metric="accuracy", **more):
    same = {"profile": "laptop", "data": "mnist", "network": "lenet5", "metric": metric}
    same |= {"normalised": False, "batch_size": 128, "n": 4, "saliency": "logit_gradient"} | more
    lines = [{"alpha": a, "seed": n, "value": v} for n, (a, v) in enumerate(accuracies.items())]
    return pd.DataFrame(lines).assign(**same)


class TestCutOff:
    ACCURACIES = {1e2: 0.9, 1e4: 1.0, 1e6: 0.8, 1e7: 0.7, 1e8: 0.1}

    def test_networks_from_the_first_low_accuracy_on(self):
        marked = paper.with_threshold(rows(self.ACCURACIES))
        assert set(marked["t_alpha"]) == {1e7}
        assert marked["over_regularised"].tolist() == [False] * 3 + [True] * 2
        assert marked["beyond_t_alpha"].tolist() == [False] * 4 + [True]
        assert marked["place"].tolist() == ["plateau", "plateau", "before", "past", "past"]
        assert paper.cut_offs(marked).iloc[0, 1:].tolist() == ["0.950", "0.100", "1e+07", "0.78"]

    def test_not_reached(self):
        flat = paper.with_threshold(rows({1e2: 0.9, 1e6: 0.8}))
        assert set(flat["t_alpha"]) == {math.inf}
        assert flat["place"].tolist() == ["plateau", "between"]
        assert paper.cut_offs(flat).iloc[0, 3:].tolist() == ["not reached", ""]

    def test_a_larger_share_is_lost_earlier(self):
        kept = paper.with_threshold(rows(self.ACCURACIES), 0.95)
        assert set(kept["t_alpha"]) == {1e6}
        assert kept["place"].tolist() == ["plateau", "plateau", "past", "past", "past"]

    def test_shares_of_the_plateau(self):
        shares = paper.against_plateau(paper.with_threshold(rows(self.ACCURACIES)))
        assert shares["value"].tolist() == pytest.approx([0.9 / 0.95, 1 / 0.95, 0.8 / 0.95])
        assert set(shares["line"]) == {"MNIST, LeNet-5"}


class TestFaithfulness:
    """Estimates that fall by the printed formula, so rise in the sign of Quantus."""

    def table(self):
        values = {10.0**k: -0.1 * k for k in range(2, 9)}
        parts = [
            rows({a: sign * v for a, v in values.items()}, "faithfulness_estimate", **reading)
            for score in paper.SCORES
            for changed, sign in (("pixels", 1), ("squares", -1))
            for reading in [{"score": score, "changed": changed}]
        ]
        accuracy = rows(dict.fromkeys(values, 0.9) | {1e7: 0.5, 1e8: 0.1})
        return paper.with_threshold(pd.concat([accuracy, *parts]))

    def test_sign_of_quantus(self):
        shown = paper.faithfulness(self.table())["gradient, sign of Quantus"]
        assert shown["value"].tolist() == pytest.approx([0.1 * k for k in range(2, 9)])

    def test_sizes_in_both_signs_and_what_was_not_run(self):
        table = paper.sizes(paper.faithfulness(self.table())).set_index("map")
        gradient, printed = "gradient, sign of Quantus", "gradient, printed sign"
        assert table.loc[gradient, "α < 10⁵"].startswith("0.30 ± ")
        assert table.loc[printed, "before the cut-off"] == "−0.60"
        assert [table.loc[n, "change"][:4] for n in (gradient, printed)] == ["+0.3", "−0.3"]
        assert set(table.loc["absolute gradient"]) == {"all", "not run"}

    def test_changes_of_pairs(self):
        shown = paper.faithfulness(self.table())["gradient, sign of Quantus"]
        changes = paper.changes(shown, end="_x")
        assert changes["lenet_x"].estimate == pytest.approx(0.3)
        assert not changes["cifar_x"]


class TestRecord:
    def test_trends_leave_out_what_each_definition_names(self):
        table = rows({10.0**k: k if k < 7 else -4 for k in range(2, 9)}, "entropy", score="logit")
        table = table.assign(over_regularised=table["alpha"] > 9e6, changed="pixels")
        table = table.assign(beyond_t_alpha=table["alpha"] > 9e7)
        (line,) = tables.trends(table).to_dict("records")
        assert line["without α ≥ t_α"] == "+1.00; +1.00 (0.017), n = 5"  # 2 of 120 orders
        assert line["without α > t_α"] == "−0.30; +0.14 (0.8), n = 6"

    def test_fashion_items_beside_digits(self):
        parts = []
        for data, before in (("mnist", 1), ("fashion_mnist", 2)):
            values = {1e2: 4, 1e3: 4, 5e6: before, 1e7: before, 1e8: 0}
            accuracies = rows({1e2: 1, 1e3: 1, 5e6: 0.9, 1e7: 0.9, 1e8: 0.1}, data=data)
            parts += [accuracies, rows(values, "max_sensitivity", data=data)]
        table = tables.beside_items(pd.concat(parts))
        table = table[table["measure"] == "max-sensitivity, gradient"].to_numpy()[:, 2:].tolist()
        assert table[0] == ["0.25 [0.25, 0.25]", "0.50 [0.50, 0.50]", "2.00 [2.00, 2.00]"]
        assert table[1] == ["not run"] * 3  # none before the cut-off keeps 95%

    def test_what_the_record_says_of_fashion_items(self):
        kept = load_results("gradient_regularisation", "workstation").frame
        table = tables.beside_items(kept[kept["status"] == "done"])
        high = table.set_index([*table.columns[:2]]).iloc[:, -1].str.extract(r", ([\d.]+)\]")[0]
        of_gradient = [name for name in tables.STEADY if name.endswith("gradient")]
        assert (high["80%"][["accuracy", *of_gradient]].astype(float) < 1).all()
        assert float(high["95%"][of_gradient[0]]) > 1

    def test_the_best_alpha_gains_within_seeds(self):
        parts = [rows({1: s, 5: s + 0.1, 9: 0}, "paired_accuracy").assign(seed=s) for s in range(3)]
        gain = tables.best_alpha(pd.concat(parts))
        assert (gain.estimate, gain.n, gain.word) == (pytest.approx(0.1), 3, "higher")
        assert not tables.best_alpha(rows({1: 0.9}))

    def test_a_map_is_like_its_image_whatever_its_sign(self):
        image = np.array([[0.0, 1], [0, 1]])[None, None].repeat(2, 0)
        found = tables.likeness(image, {"α = 1": image.swapaxes(2, 3), "α = 2": -image})
        assert [found[end].estimate for end in ("low", "high", "gap")] == pytest.approx([0, 1, 1])


def test_networks_are_as_small_as_the_page_says():
    values = notebooks.profiles("gradient_regularisation")["workstation"]
    units = notebooks.units_of("gradient_regularisation", values)
    counts = {}
    for t in (unit for unit in units if isinstance(unit, Training)):
        if t.network == "resnet" and t.data not in counts:
            shape, options = image_shape(t.data), t.network_options
            with torch.device("meta"):
                network = build_network("resnet", shape, 10, options=options, seed=0)
            counts[t.data] = round(sum(p.numel() for p in network.parameters()), -3)
    text = source("gradient_regularisation").read_text()
    for count, name in zip(sorted(counts.values()), ("MNIST", "CIFAR-10", "Imagenette")):
        assert f"{count:,} ({name})" in text
