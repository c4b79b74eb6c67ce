"""Equations of Top-GAP: all agree, and a wrong part of a formula is seen."""

import pytest
import torch

from reglib.top_gap import scaled_maps
from suite.evidence.claims import load_published
from suite.papers import top_gap, top_gap_equations
from suite.papers.names import NAMES

EQUATIONS = NAMES["top_gap"]["equations"]


def without_relu(network, images, labels):
    maps = network.class_maps(images) - network.classifier.bias[:, None, None]
    return scaled_maps(maps[torch.arange(len(labels)), labels], images.shape[-2:])


BROKEN = [  # a wrong part of each formula, and the checks that then disagree
    ("_definitions top_gap", lambda maps, k: maps.mean((2, 3)) * k, "max mean"),
    ("_definitions class_map_l1", lambda maps: maps.abs().sum((1, 2, 3)), "norm"),
    ("_definitions reglib.top_gap.TopGAPNet.class_activation_maps", without_relu, "grad-cam"),
    ("_bound LEAST", 0.21, "bound"),
    ("_minimum LEAST", 0.24, "below"),
    ("_minimum LEAST", 0.21, "above"),
    ("_fields effective_receptive_field", lambda _, x, location: x, "class_maps features together"),
    ("_fields erf_distance", lambda maps_of, x: maps_of(x), "each together"),
]


@pytest.mark.parametrize(("broken", "wrong", "keys"), BROKEN, ids=[b[-1] for b in BROKEN])
def test_broken_equation_disagrees(broken, wrong, keys, monkeypatch):
    part, name = broken.split()
    monkeypatch.setattr(name if "." in name else f"{top_gap_equations.__name__}.{name}", wrong)
    table = top_gap_equations.table(getattr(top_gap_equations, part))
    compared = [EQUATIONS[key.replace("_", " ")][1] for key in keys.split()]
    assert table[table["agrees"] == "no"]["compared"].tolist() == compared


def test_all_but_one_reading_agree():
    table = top_gap_equations.table()
    assert table["compared"].tolist() == [compared for _, compared, _ in EQUATIONS.values()]
    assert table["agrees"].tolist() == ["yes"] * (len(table) - 1) + ["no"]


def test_smallest_corner_is_too_small_for_one_gradient():
    corners = top_gap.read_table(load_published("top_gap"), "A7")[1]["corner ERF"]
    assert corners.astype(float).min() < (2 / (3 * 224**2)) ** 0.5
