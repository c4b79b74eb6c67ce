"""Equations of the marginal-density paper, checked on known densities."""

import torch
from torch import nn

from reglib import marginal_density_penalty
from suite.papers import marginal_density_equations as equations


def test_expected_equations_agree():
    table = equations.equations()
    assert table["agrees"][:10].tolist() == "no yes no no yes yes yes yes yes no".split()
    ends = ["naive form fails", "both work", "both work", "naive form fails"]
    assert table["agrees"][10:].tolist() == ends
    assert table["error"][10:].tolist() == ["64 and 0", "0 and 0", "0 and 0", "64 and 0"]


def test_wrong_leakage_disagrees(monkeypatch):
    leakage = equations.metrics.feature_leakage
    monkeypatch.setattr(equations.metrics, "feature_leakage", lambda *a: 2 * leakage(*a))
    assert equations.equations()["agrees"][6] == "no"


def test_wrong_density_disagrees(monkeypatch):
    monkeypatch.setattr(equations, "_log_density", lambda x: 2 * equations.Logits()(x))
    assert equations.equations()["agrees"][4:6].tolist() == ["no", "no"]


def test_log_probabilities_have_no_penalty():
    x = torch.randn(9, 2, dtype=torch.float64).requires_grad_()
    logits = nn.Sequential(equations.Logits(), nn.LogSoftmax(1))(x)
    assert marginal_density_penalty(logits, x, generator=torch.Generator()).max() < 1e-12
