"""The chapter that compares the methods: its networks, measures, choice, matrix and guide."""

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

from benchmarks import tables as benchmarks
from reglib.regularizers import finite_difference_penalty, input_gradient_penalty
from suite import metrics, notebooks, plots
from suite.data import load_data
from suite.data.synthetic import clutter
from suite.errors import DataMissing, UsageError
from suite.evidence.claims import load_claims
from suite.evidence.results import load_results
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text
from suite.papers import side_by_side as paper
from suite.papers import side_by_side_measures as own
from suite.papers import side_by_side_tables as tables
from suite.papers.measure import METRICS
from suite.paths import NOTEBOOKS, ROOT
from suite.training.augmentation import with_noise
from suite.training.penalties import terms
from suite.units import Measurement

PARAMETERS = notebooks.all_parameters(
    "side_by_side", notebooks.resolve("side_by_side", "smoke", {})
)
PANEL = paper.panels(PARAMETERS)[0]
MEASURES = paper.measures(PANEL)
OTHERS = {"activation_l1", "input_hessian", "score_matching"}  # penalties without a name here


@pytest.fixture
def smooth() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 16), torch.nn.Softplus(), torch.nn.Linear(16, 3)]
    return torch.nn.Sequential(*layers).double()


def test_finite_differences_tend_to_double_backpropagation_from_one_side(smooth):
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0])
    exact = input_gradient_penalty(smooth(x), labels, x)
    errors = [
        (finite_difference_penalty(smooth, smooth(x), labels, x, step=h) - exact).abs().max().item()
        for h in (1e-1, 1e-2, 1e-3)
    ]
    assert errors[1] / errors[0] == pytest.approx(0.1, rel=0.5)
    assert errors[2] / errors[1] == pytest.approx(0.1, rel=0.1)  # of first order in h


def test_finite_differences_hold_the_direction_constant(smooth):
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    labels, h = torch.tensor([0, 2]), 0.1
    finite_difference_penalty(smooth, smooth(x), labels, x, step=h).sum().backward()
    found = smooth[0].weight.grad.clone()
    smooth.zero_grad()
    losses = torch.nn.functional.cross_entropy(smooth(x), labels, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), x)
    d = gradient / gradient.norm(dim=1, keepdim=True)
    ahead, here = (
        torch.nn.functional.cross_entropy(smooth(at), labels, reduction="none")
        for at in (x.detach() + h * d, x.detach())
    )
    ((ahead - here) / h).square().sum().backward()
    torch.testing.assert_close(found, smooth[0].weight.grad)


def test_a_step_of_no_length_is_refused(smooth):
    x = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="step: expected a positive number, got 0"):
        finite_difference_penalty(smooth, smooth(x), torch.tensor([0]), x, step=0)


def test_noise_has_its_standard_deviation_and_none_is_none():
    images = torch.zeros(8, 1, 32, 32)
    generator = torch.Generator().manual_seed(0)
    assert with_noise(images, 0.0, generator=generator) is images
    assert with_noise(images, 0.2, generator=generator).std() == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"colour": 1}, "unknown key of panels 'colour'"),
        ({"strengths": {"magic": [1.0]}}, "unknown method 'magic'"),
        ({"chosen": {"cure": 7.0}}, "chosen, cure: expected one of its strengths"),
    ],
)
def test_a_panel_with_what_is_not_known_is_refused(change, match):
    panel = PARAMETERS["panels"][0] | change
    with pytest.raises(UsageError, match=match):
        paper.panels(PARAMETERS | {"panels": [panel]})


def test_a_panel_without_an_epsilon_and_two_of_one_data_set_are_refused():
    panel = dict(PARAMETERS["panels"][0])
    with pytest.raises(UsageError, match="one for a data set"):
        paper.panels(PARAMETERS | {"panels": [panel, panel]})
    del panel["epsilon"]
    with pytest.raises(UsageError, match="a value for"):
        paper.panels(PARAMETERS | {"panels": [panel]})


def test_a_panel_may_have_parameters_for_itself_and_measure_what_chooses_less():
    own_ones = {"seeds": [7], "n_few": 3, "n_shifted": 5, "warm_up": 2, "measured": False}
    panel = PARAMETERS["panels"][0] | own_ones | {"fixed_statistics": True}
    parameters = PARAMETERS | {"panels": [panel]}
    (p,) = paper.panels(parameters)
    assert paper.is_fine_tuned(p)
    assert not paper.is_fine_tuned(PANEL)
    units = [u for u in paper.plan(parameters).units() if isinstance(u, Measurement)]
    by_seed = {
        u.training.seed: [m for m in units if m.training.seed == u.training.seed] for u in units
    }
    assert by_seed.keys() == {*PARAMETERS["sweep_seeds"], 7}
    swept = {(u.metric, u.settings["half"]) for u in by_seed[PARAMETERS["sweep_seeds"][0]]}
    assert swept == {("accuracy", 0), ("accuracy", 1)}
    settings = {u.metric: u.settings for u in by_seed[7]}
    assert settings["entropy"]["n_images"] == 3
    assert settings["shifted_accuracy"]["n_images"] == 5
    assert settings.keys() > {m.metric for m in MEASURES.values()} - {"accuracy"}
    network = paper.Network("cure", p.strengths["cure"][0], 7, True)
    assert paper.training(p, network).penalties["cure"]["warm_up"] == 2
    assert paper.training(p, network).fixed_statistics


def test_a_panel_may_have_some_measures_only_and_leakage_where_it_asks_for_it():
    assert not paper.ASKED_FOR & MEASURES.keys()  # they need a null block, or masks
    panel = PARAMETERS["panels"][0] | {"only": ["leakage", "leakage_share"]}
    (p,) = paper.panels(PARAMETERS | {"panels": [panel]})
    wanted = paper.measures(p)
    assert [*wanted] == ["accuracy", "leakage", "leakage_share"]
    assert wanted["leakage_share"].settings == wanted["leakage"].settings | {"relative": True}
    wrong = PARAMETERS["panels"][0] | {"only": ["leak"]}
    with pytest.raises(UsageError, match="unknown measure 'leak'"):
        paper.plan(PARAMETERS | {"panels": [wrong]})


def test_images_of_the_first_panel_alone_are_kept():
    panel = PARAMETERS["panels"][0]
    photographs = panel | {"data": "resized:imagenette160:32"}
    units = paper.plan(PARAMETERS | {"panels": [panel, photographs]}).units()
    drawn = {u.training.data for u in units if getattr(u, "metric", "") == "saliency_maps"}
    assert drawn == {panel["data"]}


def test_each_method_differs_from_none_in_its_own_way_alone():
    plain = paper.training(PANEL, paper.Network("none", 0.0, 0, True))
    assert not plain.penalties
    for method, strengths in PANEL.strengths.items():
        unit = paper.training(PANEL, paper.Network(method, strengths[0], 0, True))
        same_network = unit.network_options == plain.network_options
        assert same_network == (method not in ("top_gap", "softplus")), method
        assert bool(unit.penalties) == (method not in ("softplus", "noise")), method
        assert (unit.input_noise > 0) == (method == "noise")
        assert (unit.epochs, unit.learning_rate) == (plain.epochs, plain.learning_rate)
    assert {"none", *PANEL.strengths} == set(paper.METHODS) - OTHERS


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_any_other_penalty_is_a_method(name):
    unit = paper.training(PANEL, paper.Network(name, 0.1, 0, True))
    assert unit.penalties == {name: {"strength": 0.1}}
    values = {("none", 0.0): [0.5, 0.6, 0.7], (name, 0.1): [0.6, 0.7, 0.9]}
    cells = tables.compared(rows(values, "attacked", chosen=True), MEASURES)
    assert list(cells["method"]) == [name]
    assert tables.SHORT[name] == name.replace("_", " ")


def test_strengths_of_softplus_and_pgd_training_are_sharpness_and_radius():
    soft = paper.training(PANEL, paper.Network("softplus", 0.2, 0, True))
    assert soft.network_options["softplus"] == pytest.approx(5)
    attacked = paper.training(PANEL, paper.Network("adversarial", 0.03, 0, True))
    assert attacked.penalties["adversarial"]["epsilon"] == 0.03


def test_what_chooses_a_strength_is_not_compared():
    strengths = {"cure": [0.1, 1.0]}
    p = SimpleNamespace(seeds=[1, 2], sweep_seeds=[0], strengths=strengths, chosen={"cure": 1.0})
    found = paper.networks(p)
    assert {n.seed for n in found if n.chosen} == {1, 2}
    assert {n.seed for n in found if not n.chosen} == {0}
    assert {(n.method, n.strength) for n in found if n.chosen} == {("none", 0), ("cure", 1)}
    p.sweep_seeds = [0, 1]
    with pytest.raises(UsageError, match=r"seeds: expected none of sweep_seeds, got \[1\]"):
        paper.networks(p)


def test_half_of_the_loss_of_pgd_training_is_attacked_and_the_radius_of_cure_rises_to_its_end():
    attacked = paper.training(PANEL, paper.Network("adversarial", 0.03, 0, True))
    assert attacked.penalties["adversarial"]["strength"] == 0.5
    assert paper.cure_radii(4) == [0.375, 0.75, 1.125, 1.5]


def test_halves_of_the_test_images_hold_all_classes_and_no_image_twice():
    labels = load_data("mnist5k").test.labels

    def right_in(half, rows):
        """Count the right ones in a half, where the network is right on some rows alone."""
        logits = torch.zeros(len(labels), 11)
        logits[:, 10] = 1
        logits[rows, labels[rows]] = 2
        subject = SimpleNamespace(
            test_uint8=lambda n, data: (None, labels), test_logits=lambda n, data: logits
        )
        found = METRICS["accuracy"](subject, half=half).per_image
        assert len(found) == 500
        return int(found.sum())

    assert all(right_in(0, [row]) + right_in(1, [row]) == 1 for row in range(0, 1000, 13))
    classes = [(labels == digit).nonzero()[:, 0] for digit in range(10)]
    assert all(min(right_in(0, rows), right_in(1, rows)) > 30 for rows in classes)


def test_every_measure_is_there():
    assert {measure.metric for measure in MEASURES.values()} <= set(METRICS)
    assert {name for name, m in MEASURES.items() if not m.better} == {
        "faithful",
        "formula",
        "share",
        "distance",
    }
    assert [name for name, measure in MEASURES.items() if measure.turned] == ["faithful"]


def rows(
    values: dict[tuple[str, float], list[float]], metric: str = "choice", chosen: bool = False
) -> pd.DataFrame:
    """Return rows of networks by method and strength, a value a seed."""
    return pd.DataFrame(
        [
            {"method": m, "strength": s, "seed": seed, "metric": metric, "value": value}
            | {"status": "done", "chosen": chosen}
            for (m, s), of in values.items()
            for seed, value in enumerate(of)
        ]
    )


def test_the_strongest_strength_that_costs_a_point_is_allowed():
    values = {
        ("none", 0.0): [0.90, 0.92],
        ("cure", 0.1): [0.90, 0.92],
        ("cure", 1.0): [0.88, 0.93],  # half a point, a mean over seeds
        ("cure", 10.0): [0.88, 0.91],
        ("noise", 0.1): [0.80, 0.80],
        ("l1", 1.0): [0.95, np.nan],  # one of them diverged
    }
    compared = rows({("none", 0.0): [0.1], ("noise", 0.1): [0.9]}, chosen=True)
    both = pd.concat([rows(values), compared])
    assert paper.strongest_allowed(both) == {"cure": 1.0}
    table = tables.choice(both).set_index("method")
    assert table.loc["CURE", "strongest allowed"] == "1"
    assert table.loc["noise on the images", "strongest allowed"] == "none"
    assert table.loc["CURE", "strength: points of accuracy lost"] == "0.1: +0.0; 1: +0.5; 10: +1.5"


def test_chosen_strengths_are_what_the_rule_gives_on_kept_results():
    for profile in ("desktop", "workstation"):
        kept = load_results("side_by_side", profile).frame
        for data, panel in kept.groupby("data") if len(kept) else ():
            chosen = panel[panel["chosen"].astype(bool) & (panel["method"] != "none")]
            named = chosen.groupby("method")["strength"].first().to_dict()
            assert paper.strongest_allowed(panel) == pytest.approx(named), (profile, data)


CLEAR = [0.2, 0.21, 0.2, 0.19, 0.2, 0.2]
VAGUE = [0.3, -0.3, 0.2, -0.2, 0.1, 0.0]


def cells_of(gaps: dict[str, list[float]]) -> pd.DataFrame:
    plain = [0.5, 0.52, 0.48, 0.51, 0.49, 0.5]
    values = {("none", 0.0): plain}
    values |= {(m, 1.0): [v + g for v, g in zip(plain, gap)] for m, gap in gaps.items()}
    names = ("attacked", "sensitivity", "formula")
    flat = {key: [0.9] * len(of) for key, of in values.items()}
    parts = [rows(values, name, chosen=True) for name in names]
    swept = rows({("none", 0.0): [0.0], ("cure", 9.0): [7.0]}, "attacked")
    frame = pd.concat([*parts, rows(flat, "accuracy", chosen=True), swept])
    return tables.compared(frame, {name: MEASURES[name] for name in ("accuracy", *names)})


def test_a_clear_difference_stands_on_the_better_side_and_a_vague_one_does_not():
    cells = cells_of({"cure": CLEAR, "noise": VAGUE}).set_index(["measure", "method"])
    assert cells.loc[("attacked", "cure"), "stands"]
    assert cells.loc[("attacked", "cure"), "deviations"] > 0
    assert cells.loc[("sensitivity", "cure"), "deviations"] < 0
    assert cells.loc[("formula", "cure"), "deviations"] == 0
    assert not cells.loc[("attacked", "noise"), "stands"]
    assert cells.loc[("attacked", "cure"), "difference"] == pytest.approx(0.2)
    assert cells.loc[("attacked", "cure"), "n"] == 6  # those that chose the strength are not among
    assert cells.loc[("attacked", "cure"), "strength"] == 1


def test_p_values_are_adjusted_for_the_methods_of_a_measure():
    alone = cells_of({"cure": CLEAR}).set_index(["measure", "method"])
    among = cells_of({"cure": CLEAR, "noise": VAGUE, "l1": VAGUE}).set_index(["measure", "method"])
    cell = ("attacked", "cure")
    assert alone.loc[cell, "p_holm"] == pytest.approx(alone.loc[cell, "p"])
    assert among.loc[cell, "p_holm"] == pytest.approx(3 * among.loc[cell, "p"])


def test_the_guide_says_where_no_gain_was_established():
    cells = cells_of({"cure": CLEAR})
    found = tables.guide(cells, MEASURES, {"cure": 5.3}).set_index("if you want")
    assert found.loc["higher accuracy, attacked", "take"].startswith("CURE, 1")
    assert "0.5 → 0.7" in found.loc["higher accuracy, attacked", "expect"]
    assert found.loc["higher accuracy, attacked", "a step takes"] == "5.3 × plain"
    assert found.loc["lower max-sensitivity", "take"] == (
        "none: no gain that matters was established (0 of 1 means are better, 0 before Holm)"
    )
    assert not any("formula" in wanted for wanted in found.index)
    assert tables.harm(cells, MEASURES) == ("CURE (max-sensitivity)", "none")
    of_cure = tables.gains(cells, "attacked").set_index("method").loc["CURE"]
    assert of_cure["gain"] == pytest.approx(20)
    assert of_cure["gain_low"] < 20 < of_cure["gain_high"]
    assert of_cure["cost"] == 0


def test_the_guide_names_all_that_help_with_what_they_gain_and_cost():
    more = [gap + 0.1 for gap in CLEAR]
    cells = cells_of({"cure": more, "noise": CLEAR, "l1": [g - 0.05 for g in CLEAR]})
    found = tables.guide(cells, MEASURES, {"noise": 1.5}).set_index("if you want")
    assert found.loc["higher accuracy, attacked", "also help"] == (
        "noise, 1 (+0.2, +0 points, 1.5 ×); L1 on class maps, 1 (+0.15, +0 points)"
    )
    listed = tables.also_help(found.reset_index()).splitlines()[2:]
    assert [line.split(":")[0] for line in listed] == ["- higher accuracy, attacked"]


def test_a_tenth_fewer_pixels_matter_in_the_entropy_of_a_map():
    size = paper.SMALLEST["entropy"]
    assert np.exp(size) == pytest.approx(paper.FACTOR)
    assert paper.matters("entropy", 6.5, 6.5 - 1.01 * size)
    assert not paper.matters("entropy", 6.5, 6.5 - 0.99 * size)


def test_what_the_other_half_would_allow_is_listed():
    swept = rows({("none", 0.0): [0.9], ("cure", 0.1): [0.9], ("cure", 1.0): [0.8]})
    other = rows({("none", 0.0): [0.9], ("cure", 0.1): [0.9], ("cure", 1.0): [0.9]}, "accuracy")
    table = tables.choice(pd.concat([swept, other])).set_index("method")
    assert table.loc["CURE", ["strongest allowed", "by the other half"]].tolist() == ["0.1", "1"]


def test_sizes_are_those_of_the_metrics():
    text = tables.sizes(PANEL)
    for metric, name, words in (
        ("local_lipschitz_estimate", "noise_std", "of {:g} for the Lipschitz estimate"),
        ("max_sensitivity", "radius", "reaches {:g} for max-sensitivity"),
    ):
        default = inspect.signature(getattr(metrics, metric)).parameters[name].default
        assert words.format(default) in text
    assert f"of {PANEL.n_few} images" in text


def test_ranks_of_strengths_of_one_method_are_drawn_together():
    """Two methods with a trend between them alone: among drawn methods it is often not there."""
    values = {("none", 0.0): [0.0]}
    values |= {("cure", s): [1.0 + s] for s in (0.1, 0.2, 0.3)}
    good = {key: [0.9] for key in values}
    parts = [rows(values, name) for name in ("attacked", "corrupted")]
    pairs = tables.agreement(pd.concat([*parts, rows(good, "accuracy")]), MEASURES)
    pair = pairs.set_index(["first", "second"]).loc[("corrupted", "attacked")]
    assert pair["correlation"] == pytest.approx(1)
    assert pair["low"] == 0  # a draw of "none" twice has no ranks


def test_what_the_top_of_the_page_says_of_methods_is_what_was_kept():
    kept = load_results("side_by_side", "workstation").frame
    text = notebooks.source("side_by_side").read_text()
    rows = kept[kept["data"] == "fashion_mnist"]
    cells = tables.compared(rows, MEASURES).set_index(["measure", "method"])
    steps = benchmarks.method_steps(benchmarks.measured("cpu"))
    points = 100 * cells["difference"].xs("accuracy")
    attacked = cells.loc[("attacked", "adversarial")]
    said = "PGD training ({:.2f} to {:.2f}, at {:.1f} of a point and {:.1f} times the time"
    ends = (attacked["base"], attacked["mean"], -points["adversarial"], steps["adversarial"])
    assert said.format(*ends) in text
    helping = tables.guide(cells.reset_index(), MEASURES, steps).set_index("if you want")
    also = helping.loc["higher accuracy, attacked", "also help"]
    named = ["CURE", "input gradient", "label's logit", "Top-GAP", "finite", "noise", "marginal"]
    assert all(name in also for name in named)
    assert f"(half a point, {steps['input_gradient']:.1f} times)" in text
    assert points["input_gradient"] == pytest.approx(-0.5, abs=0.05)
    assert f"finite differences (no cost seen, {steps['finite_difference']:.1f} times)" in text
    assert cells.loc[("accuracy", "finite_difference"), "high"] > 0
    tenths, error = -10 * points["top_gap"], cells.loc[("calibration", "top_gap")]
    said = "of a point, {:.1f} times, calibration error {:.3f}, not {:.3f})"
    assert said.format(steps["top_gap"], error["mean"], error["base"]) in text
    assert tenths == pytest.approx(6, abs=0.5)
    for method in ("input_gradient", "finite_difference", "noise", "top_gap"):  # "six tenths"
        ratio = cells.loc[("attacked", method), "difference"] / attacked["difference"]
        assert ratio == pytest.approx(0.6, abs=0.07)
    shares = cells.loc["pointing", "mean"]
    assert 0.45 < shares["top_gap"] < 0.5  # "nearly half of the map"
    assert f"though a penalty on the maps does ({shares['l1']:.2f} with L1)" in text
    accuracy = cells.loc[("accuracy", "cure"), "base"]
    assert f"trained for four epochs to an accuracy of {accuracy:.2f}" in text
    listed = tables.choice(rows)
    other = (listed["strongest allowed"].str.split().str[0] != listed["by the other half"]).sum()
    assert other == 6  # "for six of the twelve"
    photographs = kept[kept["data"] == "resized:imagenette160:32"]
    there = tables.compared(photographs, MEASURES).set_index(["measure", "method"])
    gains = [there.loc[("attacked", m)] for m in ("adversarial", "input_gradient")]
    ends = interval_text(Interval(*gains[1][["difference", "low", "high"]].astype(float)), ".3f")
    assert f"stands ({gains[0]['difference']:.3f}; the input gradient's is {ends}," in text


def test_a_method_that_costs_too_much_at_each_strength_is_named():
    swept = rows({("none", 0.0): [0.9], ("cure", 1.0): [0.5], ("noise", 1.0): [0.9]})
    compared = rows({("none", 0.0): [0.9], ("noise", 1.0): [0.9]}, chosen=True)
    assert tables.left_out(pd.concat([swept, compared])) == "CURE"
    assert tables.left_out(compared) == "none"


def test_measures_that_rank_alike_or_the_other_way_round_are_named():
    names = [name for name in paper.METHODS if name not in {"none", "cure"} | OTHERS]
    base = {(name, float(s)): [2.0 * n + s] for n, name in enumerate(names) for s in (1, 2)}
    base = {("none", 0.0): [0.0], **base, ("cure", 1.0): [99.0]}
    turned = {key: [-v for v in of] for key, of in base.items()}
    good = {key: [0.5 if key[0] == "cure" else 0.9] for key in base}
    parts = [rows(base, name) for name in ("attacked", "corrupted", "sensitivity", "formula")]
    frame = pd.concat([*parts, rows(turned, "entropy"), rows(good, "accuracy")])
    pairs = tables.agreement(frame, MEASURES).set_index(["first", "second"])
    assert pairs.loc[("corrupted", "attacked"), "correlation"] == pytest.approx(1)
    assert pairs.loc[("sensitivity", "attacked"), "correlation"] == pytest.approx(-1)
    assert pairs.loc[("entropy", "attacked"), "correlation"] == pytest.approx(1)
    assert set(pairs["n"]) == {23}  # without the one that loses accuracy
    assert "formula" not in pairs.index.get_level_values(0)
    same, against = tables.pairs_of_measures(pairs.reset_index(), MEASURES)
    assert "accuracy, attacked and accuracy, corruptions (1.00 [1.00, 1.00])" in same
    assert "max-sensitivity" in against


def test_ranks_that_are_sure_on_one_data_set_are_counted_on_another():
    columns = ["first", "second", "correlation", "low", "high", "n"]
    one = [("entropy", "attacked", 0.8, 0.5, 0.9, 9), ("change", "attacked", -0.6, -0.8, -0.1, 9)]
    one += [("change", "entropy", 0.1, -0.3, 0.4, 9)]
    two = [("entropy", "attacked", 0.4, 0.1, 0.6, 5), ("change", "attacked", 0.5, 0.2, 0.7, 5)]
    two += [("change", "entropy", 0.9, 0.8, 1.0, 5)]
    frames = (pd.DataFrame(part, columns=columns) for part in (one, two))
    text = tables.carried_over(*frames, MEASURES)
    assert "Of 3 pairs 2 have an interval without zero here; 1 of these have the same sign" in text
    assert "of 5 settings, and 1 of them an interval without zero there, too." in text
    assert "accuracy, attacked and change of the gradient by noise (−0.60, there 0.50)" in text


def test_what_is_said_of_the_agreement_of_measures_is_what_was_kept():
    kept = load_results("side_by_side", "workstation").frame
    text = notebooks.source("side_by_side").read_text()
    names = [("sensitivity", "lipschitz"), ("change", "sensitivity"), ("change", "lipschitz")]
    first, second = (
        tables.agreement(kept[kept["data"] == data], MEASURES).set_index(["first", "second"])
        for data in ("fashion_mnist", "resized:imagenette160:32")
    )
    ends = [
        interval_text(Interval(*first.loc[pair, ["correlation", "low", "high"]]), ".2f")
        for pair in names
    ]
    assert "rank alike ({}, {} and {}); two of them".format(*ends) in text
    there = [
        interval_text(Interval(*second.loc[pair, ["correlation", "low", "high"]]), ".2f")
        for pair in names
    ]
    assert "they are at {}, {} and {}: nothing is sure there.".format(*there) in text
    assert all(second.loc[pair, "low"] < 0 for pair in names)


def test_finite_differences_are_beside_double_backpropagation_what_is_said():
    kept = load_results("side_by_side", "workstation").frame
    rows = kept[(kept["data"] == "fashion_mnist") & kept["chosen"].astype(bool)]

    def more(metric):
        wide = rows[rows["metric"] == metric].pivot_table("value", "seed", "method")
        return mean_interval((wide["finite_difference"] - wide["input_gradient"]).to_numpy())

    attacked, clean, text = more("attacked"), more("accuracy"), notebooks.source("side_by_side")
    ends = f"have {-attacked.estimate:.2f} [−{attacked.high:.2f}, {-attacked.low:.2f}] less"
    points = "at {:.1f} [{:.1f}, {:.1f}] points more".format(*(100 * x for x in clean[:3]))
    assert ends in text.read_text()
    assert points in text.read_text()
    assert more("sensitivity").low > 0  # "maps are less steady with them"
    losses = tables.lost(kept[kept["data"] == "fashion_mnist"])
    weakest = losses.groupby("method")["strength"].min()
    chosen = rows.groupby("method")["strength"].first().drop("none")
    assert sum(chosen == weakest[chosen.index]) == 8  # "eight of the twelve"


def ends(values, sign: int = 1, form: str = ".3f") -> str:
    """Write the difference of a cell, or an interval, with its ends; with the other sign, if -1."""
    middle, *both = (sign * float(x) for x in values)
    return interval_text(Interval(middle, *sorted(both)), form)


def test_chance_is_the_part_of_a_canvas_that_the_article_covers():
    try:
        articles = load_data("fashion_mnist").test
    except DataMissing as missing:
        pytest.skip(str(missing))
    masks = clutter(articles, seed=1, swapped=False, opaque=True)[0].masks
    assert masks is not None
    text = notebooks.source("side_by_side").read_text()
    assert f"cover a part of {masks[:300].float().mean().item():.2f}, which a map has" in text


def test_what_is_said_of_strengths_for_marked_objects_is_so():
    kept, text = load_results("side_by_side", "workstation"), notebooks.source("side_by_side")
    rows = kept.frame[kept.frame["data"] == "article_canvas"]
    measured = dict.fromkeys(("accuracy", "on_object", "swapped"), MEASURES["accuracy"])
    cells = tables.compared(rows, measured).set_index(["measure", "method"])
    text = text.read_text()
    cost = -100 * cells.loc["accuracy", "difference"]
    dear = ["l1", "density", "finite_difference", "curvature"]
    assert {*cost.index[cost > 1]} == {*dear}
    said = "L1 {:.1f}, density {:.1f}, finite differences {:.1f} and landscape curvature {:.1f})"
    assert said.replace(")", ";").format(*cost[dear]) in text
    chosen_rows = rows[rows["chosen"].astype(bool) & (rows["metric"] == "choice")]
    other = 100 * chosen_rows.groupby("method")["value"].mean()
    said = "on the other half {:.1f}, {:.1f}, {:.1f} and {:.1f})"
    assert said.format(*(other["none"] - other[dear])) in text
    lost = 100 * tables.lost(rows).set_index(["method", "strength"])["lost"]
    chosen = cells.loc["accuracy", "strength"].astype(float)
    assert f"had lost {max(lost[m, chosen[m]] for m in dear):.1f} points at most" in text
    assert "CURE cost {:.1f} and {:.1f}.".format(*cost[["adversarial", "cure"]]) in text
    swept = rows[~rows["chosen"].astype(bool)].pivot_table(
        "value", ["method", "strength"], "metric"
    )
    gradients = ["input_gradient", "finite_difference", "logit_gradient", "density"]
    for method in [*gradients, "cure", "adversarial"]:
        weak, strong = swept.loc[method].sort_index()[["on_object", "swapped"]].to_numpy()
        assert strong[0] > weak[0]
        assert strong[1] < weak[1]
    attacked = swept.loc[("adversarial", 0.016), ["on_object", "swapped"]]
    points = lost["adversarial", 0.016]
    said = "(PGD training at 0.016: {:.2f} and {:.2f}, at {:.1f} points)"
    assert said.format(*attacked, points) in text
    pairs = [("density", 0.01), ("finite_difference", 0.003)]
    assert [chosen[m] / s for m, s in pairs] == pytest.approx([10, 10])
    assert [f"{swept.loc[pair, 'on_object']:.2f}" for pair in pairs] == ["0.28"] * 2
    ends = swept.loc[[*pairs, ("none", 0.0)], "swapped"]
    assert "method ({:.3f} and {:.3f}, without {:.3f})".format(*ends) in text


def fine_tuned() -> tuple[tables.Panel, pd.DataFrame, str]:
    """Return the panel of the network that is fine-tuned, its cells, and the text of the page."""
    values = notebooks.resolve("side_by_side", "workstation", {})
    everything = paper.panels(notebooks.all_parameters("side_by_side", values))
    (tuned,) = filter(paper.is_fine_tuned, everything)
    shown = tables.of_panel(load_results("side_by_side", "workstation").frame, tuned)
    cells = shown.cells.set_index(["measure", "method"])
    return shown, cells, notebooks.source("side_by_side").read_text()


def test_what_the_lead_on_the_fine_tuned_network_says_of_accuracy_and_calibration_is_so():
    _, cells, text = fine_tuned()
    plain = cells.loc[("accuracy", "adversarial"), "base"]
    assert f"weights of ImageNet, {plain:.3f} accurate without a method" in text
    error = cells.loc[("calibration", "adversarial"), ["base", "mean"]]
    assert "PGD training its calibration error rises from {:.3f} to {:.3f}.".format(*error) in text


def test_what_is_said_of_l1_and_of_steady_maps_of_the_fine_tuned_network_is_so():
    _, cells, text = fine_tuned()
    errors = cells.loc["calibration", "mean"][["l1", "cure"]]
    assert "their calibration errors of {:.2f} and {:.2f} show".format(*errors) in text
    put_in, share = cells.loc[("insertion", "l1")], cells.loc[("pointing", "l1")]
    assert put_in["stands"]
    assert share["stands"]
    falls = ends(put_in[tables.ENDS], -1, ".2f")
    said = f"with L1 by {falls} ({put_in['base']:.2f} to {put_in['mean']:.2f}), and its share on "
    said += f"one image of four rises ({share['base']:.3f} to {share['mean']:.3f}, of ten images)."
    assert said in text
    plain = cells.loc[("sensitivity", "l1"), "base"]
    assert f"max-sensitivity without a method is {plain:.2f} already." in text
    assert plain > 2**0.5
    assert not cells.loc[["sensitivity", "change", "lipschitz"], "stands"].any()
    values = notebooks.resolve("side_by_side", "workstation", {})
    everything = paper.panels(notebooks.all_parameters("side_by_side", values))
    (tuned,) = filter(paper.is_fine_tuned, everything)
    assert (tuned.n_few, tuned.noise_std) == (10, 0.05)
    (term,) = terms({"input_gradient": {"strength": 1.0, "warm_up": tuned.warm_up}})
    n_steps = tuned.n_train // tuned.batch_size
    rise = [term.strength_in(step) for step in range(1, n_steps + 1)]
    rates = [1 + np.cos(np.pi * step / n_steps) for step in range(n_steps)]
    assert (
        f"first {tuned.warm_up} of {n_steps} steps. So penalties act at {np.mean(rise):.2f}" in text
    )
    assert f"({np.average(rise, weights=rates):.2f} if steps are weighted" in text
    attacked = paper.training(tuned, paper.Network("adversarial", 0.002, 1, True))
    assert "warm_up" not in attacked.penalties["adversarial"]
    profile = (NOTEBOOKS / "profiles" / "side_by_side" / "workstation.yml").read_text()
    assert f"acts at {np.mean(rise):.2f} of it on average" in profile


def test_the_program_has_the_strength_that_the_guide_names():
    values = notebooks.resolve("side_by_side", "workstation", {})
    everything = paper.panels(notebooks.all_parameters("side_by_side", values))
    (tuned,) = filter(paper.is_fine_tuned, everything)
    chosen = paper.Network("adversarial", tuned.chosen["adversarial"], 0, True)
    expected = paper.training(tuned, chosen).penalties
    code = program("folder")
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["network"].penalties == expected
    kept = load_results("side_by_side", "workstation").frame
    cells = tables.compared(kept[kept["data"] == tuned.data], paper.measures(tuned))
    text = tables.expected_of(cells, "adversarial", {"adversarial": 3.8})
    assert text.startswith("accuracy under attack 0.44 → 0.77 (+0.33 [")
    assert text.endswith("6 networks, a step 3.8 times as long")


def test_a_strength_that_diverged_is_named():
    swept = rows(
        {("none", 0.0): [0.9], ("cure", 1.0): [float("nan")], ("cure", 0.1): [0.9]}, "choice"
    )
    assert "1: diverged" in tables.choice(swept)["strength: points of accuracy lost"].iloc[0]


def test_calibration_error_of_known_predictions():
    top = torch.tensor([0.9, 0.9, 0.6, 0.6], dtype=torch.float64)
    right = torch.tensor([True, False, True, True])
    # Bins of a tenth: |0.9 - 0.5| and |0.6 - 1|, half of the images each.
    assert float(own.expected_calibration_error(top, right, 10)) == pytest.approx(0.4)
    assert float(own.expected_calibration_error(right.double(), right, 10)) == pytest.approx(0.0)


def test_moved_images_repeat_the_outermost_pixels():
    image = torch.arange(9).view(1, 1, 3, 3)
    assert own.moved(image, 1, 0)[0, 0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    assert own.moved(image, 0, -1)[0, 0].tolist() == [[1, 2, 2], [4, 5, 5], [7, 8, 8]]


def test_the_share_on_the_object_is_that_of_the_map_under_its_mask():
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
    found = own.share_on_object(subject, n_images=4).per_image
    torch.testing.assert_close(found, expected.double())
    other = (weights[1] * masks[3].flatten()).sum() / weights[1].sum()  # the class of image 1
    beyond = own.share_on_object(subject, n_images=4, beyond_others=True).per_image
    torch.testing.assert_close(beyond[1], (expected[1] - other).double())
    assert beyond[[0, 2]].isnan().all()  # alone in their classes
    split.masks = None
    with pytest.raises(UsageError, match="share_on_object: expected a data set with masks, got"):
        own.share_on_object(subject, n_images=4)


def test_a_grid_has_the_image_at_its_place_among_other_classes():
    labels = torch.tensor([0, 0, 1, 2, 3, 1])
    images = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 1, 2, 2)
    grids, places = own.image_grids(images, labels)
    assert grids.shape == (6, 1, 4, 4)
    for index, place in enumerate(places.tolist()):
        corners = grids[index, 0, ::2, ::2].flatten().long()
        assert corners[place] == index
        assert len(set(labels[corners].tolist())) == 4
    with pytest.raises(UsageError, match="four classes"):
        own.image_grids(images[:3], labels[:3])


def photographs(root):
    """Write tiles of two photographs as PNG, in the folders of their classes."""
    shown = load_data("photograph-tiles").test
    for part, rows in (("train", slice(0, 64, 2)), ("test", slice(1, 64, 2))):
        for name, label in enumerate(shown.labels.unique()[:2]):
            folder = root / part / f"photograph {name}"
            folder.mkdir(parents=True)
            tiles = shown.images[shown.labels == label][rows]
            for number, tile in enumerate(tiles.repeat_interleave(2, 2).repeat_interleave(2, 3)):
                pixels = tile.permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def program(root):
    """Return the program of the page, for a folder."""
    cells = json.loads((NOTEBOOKS / "side_by_side.ipynb").read_text())["cells"]
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return code.replace("PATH", str(root))


def test_the_program_of_the_page_fine_tunes_on_a_folder_of_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "store"))
    script = tmp_path / "script.py"
    script.write_text(program(photographs(tmp_path / "images")))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "REGLIB_JOBS": "2"}
    out = subprocess.check_output([sys.executable, script], env=environment, text=True)
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(script.read_text(), found)  # reads what the script stored
    assert out in capsys.readouterr().out
    measured = found["measured"].set_index("metric")
    assert set(measured["status"]) == {"done"}
    assert measured.loc["accuracy", "value"] > 0.8
    assert measured.loc["robust_accuracy", "value"] <= measured.loc["accuracy", "value"]
    assert measured.loc["accuracy", "n"] == measured.loc["robust_accuracy", "n"] == 64


def test_a_folder_with_one_class_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "store"))
    root = photographs(tmp_path / "images")
    for part in ("train", "test"):
        shutil.rmtree(root / part / "photograph 1")
    with pytest.raises(UsageError, match="expected two classes or more"):
        exec(program(root), {"__name__": "__main__"})


def test_where_nothing_is_chosen_the_page_says_so_and_draws_no_matrix():
    rows = pd.DataFrame(
        {"metric": ["choice", "accuracy"], "method": "none", "strength": 0.0, "seed": 1}
        | {"status": "done", "chosen": False, "value": 0.9}
    )
    cells = tables.compared(rows, MEASURES)
    assert cells.empty
    assert tables.harm(cells, MEASURES) == ("none", "none")
    none = "none: no gain that matters was established"
    assert set(tables.guide(cells, MEASURES, {})["take"]) == {none}
    assert tables.every_cell(cells, MEASURES) == []
    for figure in (
        plots.matrix(**tables.matrix(cells, MEASURES), label="", limit=1),
        plots.gain_and_cost(tables.gains(cells, "attacked"), gain_label="", cost_label=""),
    ):
        assert "not run" in figure.axes[0].texts[0].get_text()


def test_of_what_stands_on_one_data_set_it_is_said_how_much_does_on_another():
    columns = ["measure", "method", "deviations", "stands"]
    one = [("attacked", "cure", 2.0, True), ("entropy", "cure", 3.0, True)]
    one += [("attacked", "noise", 1.0, True), ("entropy", "noise", 1.0, False)]
    other = [("attacked", "cure", 1.0, True), ("entropy", "cure", -2.0, True)]
    other += [("attacked", "noise", 0.5, False), ("entropy", "noise", 9.0, True)]
    first, second = (pd.DataFrame(part, columns=columns) for part in (one, other))
    assert tables.repeated(first, second, MEASURES) == (
        "Of 3 differences that stand on the first data set, 2 have the same sign on the second. "
        "1 of them stand there, too: better accuracy, attacked (CURE); worse none. "
        "1 stand there with the other sign: entropy of the map (CURE). "
        "Not on the first, but on the second stand entropy of the map (noise)."
    )


def test_sizes_that_matter_are_those_of_the_claims():
    for claim in load_claims("side_by_side"):
        metric = claim["test"]["where"]["metric"]
        size = claim["smallest_effect"]["size"]
        assert size == paper.SMALLEST.get(metric, paper.FACTOR), claim["id"]
