"""The chapter on gradient regularisation: its units, cut-offs and sentences."""

import math

import numpy as np
import pandas as pd
import pytest

from suite.errors import UsageError
from suite.evidence.results import load_results
from suite.notebooks import source
from suite.papers import gradient_regularisation as paper
from suite.units import Measurement

PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 3}
PARAMETERS = {
    "panels": [PANEL],
    "repetitions": 2,
    "batch_size": 128,
    "alpha_min": 1e2,
    "alpha_max": 1e6,
    "n_images": 4,
    "n_samples": 2,
    "map_alphas": [1e2, 2e2],
    "n_maps": 1,
    "patch": 4,
}


def trainings(panel):
    return paper.trainings(paper.panel(PARAMETERS, panel))


def test_the_strength_is_alpha_over_squared_batch_and_values():
    assert paper.strength(128**2 * 784, "mnist5k", 128) == 1


def test_each_network_has_a_seed_of_its_own_and_maps_are_of_the_nearest_alphas():
    trained = trainings(PANEL)
    assert [*trained] == [(alpha, number) for number in (0, 1) for alpha in (1e2, 1e4, 1e6)]
    assert [unit.seed for unit in trained.values()] == [*range(6)]
    later = trainings(PANEL | {"first_seed": 6})
    assert [unit.seed for unit in later.values()] == [*range(6, 12)]
    first = trained[1e2, 0]
    assert (first.pixel_range, first.batch_size) == ((-1.0, 1.0), 128)
    units = paper.plan(PARAMETERS).units()
    measured = [unit for unit in units if isinstance(unit, Measurement)]
    assert len(units) == 6 * (1 + 1 + 2 * 8) + 1
    assert [(u.metric, u.training) for u in measured[-1:]] == [("saliency_maps", first)]
    other = paper.maps(paper.panel(PARAMETERS, PANEL | {"maps_of": "mnist"}))
    assert [item.keep for item in other] == [
        "mnist5k|lenet5|mnist5k|100",
        "mnist5k|lenet5|mnist|100",
    ]


@pytest.mark.parametrize("panel", [PANEL | {"n_alpha": 3}, {"data": "mnist5k"}])
def test_a_panel_has_the_keys_that_are_needed_and_no_others(panel):
    with pytest.raises(UsageError, match=r"of panels 'n_alpha'|panels: expected"):
        trainings(panel)


class TestPairedPanel:
    PANEL = {
        **PANEL,
        "epochs": 2,
        "paired_alphas": [1e2, 1e6, 1e7],
        "repetitions": 2,
        "map_alphas": [],
    }
    PANEL.pop("n_alphas")
    PARAMETERS = PARAMETERS | {"panels": [PARAMETERS["panels"][0], PANEL]}

    def test_each_seed_goes_through_all_alphas(self):
        trained = trainings(self.PANEL)
        assert [*trained] == [(alpha, seed) for seed in (0, 1) for alpha in (1e2, 1e6, 1e7)]
        assert [unit.seed for unit in trained.values()] == [0, 0, 0, 1, 1, 1]

    def test_maps_are_signed_absolute_and_deeplift_on_both_scores(self):
        measures = paper.measures(paper.panel(PARAMETERS, self.PANEL))
        faithful = [settings for name, settings in measures if name == "faithfulness_estimate"]
        kinds = {(s["saliency"], s["score"]) for s in faithful}
        maps = ("logit_gradient", "absolute_gradient", "deeplift")
        assert kinds == {(name, score) for name in maps for score in ("confidence", "logit")}
        assert len(faithful) == 6
        assert {name for name, _ in measures} == paper.PAIRED.keys() - {"training_loss"}

    def test_its_rows_have_names_and_cut_off_of_their_own(self):
        units = paper.plan(self.PARAMETERS).units()
        fields = {"data": "mnist5k", "network": "lenet5", "status": "done", "patch": np.nan}
        table = pd.DataFrame(
            [fields | {"metric": getattr(u, "metric", "training_loss"), "key": "k"} for u in units]
        )
        table = table.assign(value=0.9, normalised=np.nan)
        of_pair = [getattr(u, "training", u) in self.paired() for u in units]
        strongest = [getattr(u, "training", u) in self.paired(1e7) for u in units]
        table.loc[np.array(strongest), "value"] = 0.1
        computed, _ = paper.collect(self.PARAMETERS, table, Nothing())
        own = computed["metric"].isin(paper.PAIRED.values())
        assert own.sum() == sum(of_pair)
        assert set(computed.loc[own, "t_alpha"]) == {1e7}
        assert set(computed.loc[~own, "t_alpha"]) == {math.inf}
        assert set(computed.loc[own, "place"]) == {"plateau", "before", "past"}

    def paired(self, alpha=None):
        trained = trainings(self.PANEL)
        return [unit for (own, _), unit in trained.items() if alpha in (None, own)]


class Nothing:
    def read_tensors(self, key):
        return None


def rows(accuracies):
    same = {"profile": "laptop", "data": "mnist5k", "network": "lenet5", "metric": "accuracy"}
    same |= {"normalised": False, "batch_size": 128}
    lines = [{"alpha": a, "seed": 0, "value": value} for a, value in accuracies.items()]
    return pd.DataFrame(lines).assign(**same)


def test_a_panel_may_have_its_own_images_and_squares():
    own = PANEL | {"n_images": 2, "patch": 7}
    settings = [settings for _, settings in paper.measures(paper.panel(PARAMETERS, own))]
    assert {s["n_images"] for s in settings if "n_images" in s} == {2}
    assert {s["patch"] for s in settings if "patch" in s} == {7}


def test_networks_from_the_first_low_accuracy_on_are_over_regularised():
    marked = paper.with_threshold(rows({1e2: 0.9, 1e4: 1.0, 1e6: 0.8, 1e7: 0.7, 1e8: 0.1}))
    assert set(marked["t_alpha"]) == {1e7}
    assert marked["over_regularised"].tolist() == [False] * 3 + [True] * 2
    assert marked["beyond_t_alpha"].tolist() == [False] * 4 + [True]
    assert marked["place"].tolist() == ["plateau", "plateau", "before", "past", "past"]
    assert paper.cut_offs(marked).iloc[0, 1:].tolist() == ["0.950", "0.100", "1e+07", "0.78"]
    flat = paper.with_threshold(rows({1e2: 0.9, 1e6: 0.8}))
    assert set(flat["t_alpha"]) == {math.inf}
    assert flat["place"].tolist() == ["plateau", "between"]
    assert paper.cut_offs(flat).iloc[0, 3:].tolist() == ["not reached", ""]


def estimates():
    """Networks whose estimates fall by the printed formula, so rise in the sign of Quantus."""
    alphas = [10.0**k for k in range(2, 8)]
    lines = [
        {"alpha": a, "seed": seed, "value": -0.1 * seed * sign, "score": score, "changed": changed}
        for score in paper.SCORES
        for changed, sign in (("pixels", 1), ("squares", -1))
        for seed, a in enumerate(alphas)
    ]
    same = {"profile": "laptop", "data": "mnist5k", "network": "lenet5", "n": 4, "status": "done"}
    same |= {"metric": "faithfulness_estimate", "saliency": "logit_gradient", "normalised": False}
    return pd.DataFrame(lines).assign(**same, over_regularised=False)


def test_faithfulness_is_shown_in_the_sign_of_quantus():
    table = estimates()
    shown = paper.faithfulness(table, "logit_gradient")
    assert shown["value"].tolist() == [0.1 * seed for seed in range(6)]
    readings = paper.readings(table)
    assert readings["score"].tolist() == [*paper.SCORES]
    assert readings["ρ, pixels"].str.startswith("+1.00").all()
    assert readings["ρ, squares"].str.startswith("−1.00").all()
    assert readings[["networks", "images"]].drop_duplicates().to_numpy().tolist() == [[6, 4]]
    assert paper.spread(shown) == "from 0.00 to 0.20 for 3 on MNIST (5,000) with LeNet-5 (laptop)"


def near_the_plateau(rows):
    """Return the alphas of all networks, and of those that keep 95% of the accuracy."""
    accuracy = paper.select(rows, "accuracy").set_index("alpha")["value"]
    least = 0.95 * accuracy[accuracy.index < 1e5].mean()
    return accuracy.index, accuracy.index[accuracy >= least]


def test_what_the_chapter_says_of_photographs_that_keep_their_accuracy_is_what_was_kept():
    rows = load_results("gradient_regularisation", "workstation").frame
    rows = rows[rows["data"].str.contains("imagenette") & ~rows["over_regularised"].astype(bool)]
    every, near = near_the_plateau(rows)
    assert (len(near), len(every)) == (10, 16)
    said = []
    for metric in ("entropy", "max_sensitivity"):
        values = paper.select(rows, metric, "logit_gradient")
        for kept in (values[values["alpha"].isin(near)], values):
            said.append(f"{kept['alpha'].corr(kept['value'], method='spearman'):+.2f}")
    text = source("gradient_regularisation").read_text().replace("−", "-")
    sentence = "is {} with entropy (of all 16 it is {}) and {} with max-sensitivity ({})"
    assert sentence.format(*said) in text


CIFAR, PHOTOGRAPHS = "cifar10-jpeg", "resized:imagenette160:64"
PANELS = [("mnist", "lenet5"), ("mnist", "resnet"), ("fashion_mnist", "lenet5")]
PANELS += [(CIFAR, "resnet"), (PHOTOGRAPHS, "resnet")]


def said(claim, *verdicts):
    """Return what is said of a claim, with its verdict on each panel (none: not said)."""
    pairs = zip(PANELS, verdicts, strict=True)
    return [(claim, *panel, verdict) for panel, verdict in pairs if verdict]
