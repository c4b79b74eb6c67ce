"""The chapter on gradient regularisation: its units, cut-offs and sentences."""

import math

import pandas as pd
import pytest

from suite.errors import UsageError
from suite.papers import gradient_regularisation as paper
from suite.units import Measurement

PANEL = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 3}
PARAMETERS = {
    "panels": [PANEL],
    "seeds": [0, 1],
    "batch_size": 128,
    "alpha_min": 1e2,
    "alpha_max": 1e6,
    "n_images": 4,
    "n_samples": 2,
    "map_alphas": [1e2, 2e2],
    "n_maps": 1,
    "scores": ["probability"],
}


def test_the_strength_is_alpha_over_squared_batch_and_values():
    assert paper.strength(128**2 * 784, "mnist5k", 128) == 1


def test_a_network_for_each_alpha_and_seed_and_maps_of_the_nearest_alphas():
    trained = paper.trainings(PARAMETERS, PANEL)
    assert [*trained] == [(alpha, seed) for alpha in (1e2, 1e4, 1e6) for seed in (0, 1)]
    first = trained[1e2, 0]
    assert (first.pixel_range, first.batch_size) == ((-1.0, 1.0), 128)
    units = paper.units(PARAMETERS)
    measured = [unit for unit in units if isinstance(unit, Measurement)]
    assert len(units) == 6 * (1 + 1 + 2 * 4) + 1
    assert [(u.metric, u.training) for u in measured[-1:]] == [("saliency_maps", first)]
    other = paper.maps(PARAMETERS, PANEL | {"maps_of": "mnist"})
    assert [*other] == ["mnist5k|lenet5|mnist5k|100", "mnist5k|lenet5|mnist|100"]


@pytest.mark.parametrize("panel", [PANEL | {"n_alpha": 3}, {"data": "mnist5k"}])
def test_a_panel_has_the_keys_that_are_needed_and_no_others(panel):
    with pytest.raises(UsageError, match="panels: expected"):
        paper.trainings(PARAMETERS, panel)


def rows(accuracies):
    same = {"profile": "laptop", "data": "mnist5k", "network": "lenet5", "metric": "accuracy"}
    lines = [{"alpha": a, "seed": 0, "value": value} for a, value in accuracies.items()]
    return pd.DataFrame(lines).assign(**same)


def test_networks_above_the_first_low_accuracy_are_over_regularised():
    marked = paper.with_threshold(rows({1e2: 0.9, 1e4: 1.0, 1e6: 0.8, 1e7: 0.7, 1e8: 0.1}))
    assert set(marked["t_alpha"]) == {1e7}
    assert marked["over_regularised"].tolist() == [False] * 4 + [True]
    assert "0.950 for α < 10⁵, 0.100 at the largest α, t_α = 1e+07" in paper.cut_offs(marked)
    assert len(paper.select(marked, "accuracy", in_range=True)) == 4
    flat = paper.with_threshold(rows({1e2: 0.9, 1e6: 0.8}))
    assert set(flat["t_alpha"]) == {math.inf}
    assert "no cut-off in this range" in paper.cut_offs(flat)
