"""Equations that records check: they agree as recorded, and a wrong part of one is seen."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib import marginal_density_penalty
from reglib.top_gap import scaled_maps
from suite.evidence.claims import load_published
from suite.papers import marginal_density_equations as density
from suite.papers import pilcro_equations, top_gap, top_gap_equations
from suite.papers.names import NAMES

MODULES = {"pilcro": pilcro_equations, "top_gap": top_gap_equations}
IMPORTANCE, LINES = pilcro_equations._importance, torch.arange(1, 5).view(4, 1)
BATCH_NORM, UNFOLD, CONV = F.batch_norm, torch.Tensor.unfold, nn.Conv1d
# A wrong part of each formula, and the checks that then disagree.
BROKEN_PILCRO = {
    "_routes partial": (lambda f, h, **of: lambda w: f(h.flip(-1), w, **of), "route order"),
    "_routes _paths": (
        lambda n, *_, **__: torch.arange(2.0 * n + 1),
        "commands skip added_inside multinomial normal depth",
    ),
    "_routes _Residual": (CONV, "skip added_inside"),
    "_routes _orders": (lambda n, end: n + end, "multinomial"),
    "_routes _density": (lambda n: torch.ones(2 * n + 1) / (2 * n + 1), "normal depth"),
    "_signs torch.Tensor.unfold": (
        lambda h, *of: UNFOLD(h.flip(-1), *of),
        "linear_path_sum linear_signs ReLU_signs",
    ),
    "_signs torch.relu": (torch.tanh, "ReLU_signs"),
    "_relu torch.Tensor.relu": (lambda x: x.where(x > 0, x / 2), "derivative half relu_mended"),
    "_batch_norm jacobian": (lambda f, x: 2 * torch.eye(len(x)), "norm_mended rest_mended others"),
    "_penalties reglib.landscape.scaled_norm": (lambda v: v.norm(dim=0), "one"),
    "_modes torch.nn.functional.batch_norm": (
        lambda *of, training: BATCH_NORM(*of, training=True),
        "evaluation",
    ),
    "_lemma_1 torch.Tensor.sign": (torch.Tensor.abs, "kink_mended"),
    "_lemma_1 _importance": (lambda *of: LINES * IMPORTANCE(*of), "resampling linear middle"),
    "_lemma_1 correlation": (lambda *of: torch.tensor(0.9), "correlation"),
    "_lemma_2 path_counts": (lambda _, shape: torch.ones(shape), "1_layers 2_layers 3_layers"),
}


def without_relu(network, images, labels):
    maps = network.class_maps(images) - network.classifier.bias[:, None, None]
    return scaled_maps(maps[torch.arange(len(labels)), labels], images.shape[-2:])


BROKEN_TOP_GAP = [
    ("_definitions top_gap", lambda maps, k: maps.mean((2, 3)) * k, "max mean"),
    ("_definitions class_map_l1", lambda maps: maps.abs().sum((1, 2, 3)), "norm"),
    ("_definitions reglib.top_gap.TopGAPNet.class_activation_maps", without_relu, "grad-cam"),
    ("_bound LEAST", 0.21, "bound"),
    ("_minimum LEAST", 0.24, "below"),
    ("_minimum LEAST", 0.21, "above"),
    ("_fields effective_receptive_field", lambda _, x, location: x, "class_maps features"),
    ("_fields erf_distance", lambda maps_of, x: maps_of(x), "each"),
]
BROKEN = [("pilcro", name, *wrong) for name, wrong in BROKEN_PILCRO.items()]
BROKEN += [("top_gap", *broken) for broken in BROKEN_TOP_GAP]
WRONG = "added,added to one,ReLU path sum,ReLU inputs,kink,slope apart,tangent,size,relu,norm,rest,"
WRONG += "most paths,shares,one printed,kernel,interval squared,training,scaled"


def agreeing_keys(chapter, part):
    table = MODULES[chapter].table(getattr(MODULES[chapter], part))
    compared = {*table[table["agrees"] == "yes"]["compared"]}
    rows = NAMES[chapter]["equations"].items()
    return {key.replace(" ", "_") for key, row in rows if row[1] in compared}


@pytest.mark.parametrize(("chapter", "broken", "wrong", "keys"), BROKEN)
def test_broken_equation_disagrees(chapter, broken, wrong, keys, monkeypatch):
    part, name = broken.split()
    before = agreeing_keys(chapter, part)
    monkeypatch.setattr(name if "." in name else f"{MODULES[chapter].__name__}.{name}", wrong)
    assert before - agreeing_keys(chapter, part) == {*keys.split()}


@pytest.mark.parametrize("chapter", MODULES)
def test_equations_disagree_as_recorded(chapter):
    table, equations = MODULES[chapter].table(), NAMES[chapter]["equations"]
    wrong = WRONG.split(",") if chapter == "pilcro" else [[*equations][-1]]
    assert table["compared"].tolist() == [compared for _, compared, _ in equations.values()]
    assert table["agrees"].tolist() == ["no" if key in wrong else "yes" for key in equations]


def test_smallest_corner_is_too_small_for_one_gradient():
    corners = top_gap.read_table(load_published("top_gap"), "A7")[1]["corner ERF"]
    assert corners.astype(float).min() < (2 / (3 * 224**2)) ** 0.5


def test_density_equations_agree_as_recorded():
    table = density.equations()
    assert table["agrees"][:10].tolist() == "no yes no no yes yes yes yes yes no".split()
    ends = ["naive form fails", "both work", "both work", "naive form fails"]
    assert table["agrees"][10:].tolist() == ends
    assert table["error"][10:].tolist() == ["64 and 0", "0 and 0", "0 and 0", "64 and 0"]


def test_wrong_leakage_disagrees(monkeypatch):
    leakage = density.metrics.feature_leakage
    monkeypatch.setattr(density.metrics, "feature_leakage", lambda *a: 2 * leakage(*a))
    assert density.equations()["agrees"][6] == "no"


def test_wrong_density_disagrees(monkeypatch):
    monkeypatch.setattr(density, "_log_density", lambda x: 2 * density.Logits()(x))
    assert density.equations()["agrees"][4:6].tolist() == ["no", "no"]


def test_log_probabilities_have_no_penalty():
    x = torch.randn(9, 2, dtype=torch.float64).requires_grad_()
    logits = nn.Sequential(density.Logits(), nn.LogSoftmax(1))(x)
    assert marginal_density_penalty(logits, x, generator=torch.Generator()).max() < 1e-12
