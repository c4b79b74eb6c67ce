"""The theorems of high-order saliency, on problems small enough to know the answer."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reglib.input_hessian import decomposition
from reglib.saliency import cafo, caso, choose_lambda1
from reglib.saliency.proximal import fista
from suite.metrics.saliency import loss_gradient
from suite.papers import high_order_theory as theory
from suite.papers.high_order_theory import rank_one_error, rank_one_errors

SMALL, MATRIX, PAIRS = theory.small_problem, theory._matrix, decomposition
DESCEND, JACOBIANS = theory.descend, theory.jacobians


def small(name="loss", **changes):
    """Return `small_problem` with fields of one of the library's losses changed."""

    def small_problem(seed=0):
        s = vars(SMALL(seed))
        wrong = {field: change(getattr(s[name], field)) for field, change in changes.items()}
        return SimpleNamespace(**s | {name: s[name]._replace(**wrong)})

    return small_problem


def scale(field, factor, method, *loss, **strength):
    """Return the result of a method with one field multiplied by a factor."""
    result = method(*loss, **strength)
    return result._replace(**{field: factor * getattr(result, field)})


def choose_least(loss, method):
    return choose_lambda1(loss, method=partial(scale, "loss_change", -1, method))


def take_square_roots(model, images):
    pairs = PAIRS(model, -images)
    return pairs._replace(values=pairs.values.sqrt())


def flip_gradient(loss, **strength):
    return caso(loss._replace(gradient=loss.gradient.flip(-1)), **strength)


BENT = small(product=lambda f: lambda v: 1.01 * f(v))
A_KEYS = "eigenvectors other_eigenvectors by_vector by_gradient"
GROWING = "first_and_second leading closer largest larger products more_classes central"
BROKEN = [
    ("hessian", "chain g h", "jacobians", lambda f, x: 1.01 * JACOBIANS(f, x)),
    ("hessian", "by_logits g", "logit_weights", lambda logits, labels: logits.softmax(1)),
    ("hessian", "softmax h cholesky shared vectors", "times_covariance", lambda p, u: p * u),
    ("hessian", "decomposition", "decomposition", lambda f, x, **more: PAIRS(f, x.flip(0), **more)),
    ("expansion", "first_order", "small_problem", small(gradient=lambda g: 1.01 * g)),
    ("expansion", "second_order", "small_problem", BENT),
    ("expansion", "smooth_caso", "caso", lambda loss, settings, **more: cafo(loss, **more)),
    ("expansion", "terms", "smooth_grad", lambda *batch, **noise: loss_gradient(*batch)),
    ("groups", "cafo_optimum", "cafo", lambda loss, **more: cafo(loss)),
    ("groups", "caso_optimum slope", "small_problem", BENT),
    ("choice", "choice", "choose_lambda1", partial(choose_lambda1, start=2e-5)),
    ("choice", "highest", "choose_lambda1", choose_least),
    ("choice", "by_value", "count_pixels", partial(scale, "sparsity", 1)),
    ("choice", "endless few", "count_pixels", partial(scale, "sparsity", 0)),
    ("groups", "square_form", "_matrix", lambda h, lambda2: MATRIX(h, 1.1 * lambda2)),
    ("groups", "pair", "small_problem", small(gradient=lambda g: g.flip(-1))),
    ("groups", "tight", "best_group_hit_rate", lambda ratio: 0.9),
    ("groups", "restricted", "restricted_eigenvalue", lambda *arguments: 10.0),
    ("spectrum", "above", "small_problem", small(largest_eigenvalue=lambda x: 0.99 * x)),
    ("spectrum", "below", "small_problem", small(largest_eigenvalue=lambda x: 1.01 * x)),
    ("spectrum", "rounding", "small_problem", small("single", largest_eigenvalue=lambda x: 2 * x)),
    ("many_classes", A_KEYS, "times_covariance", lambda p, u: p * u),
    ("many_classes", "gradient", "jacobians", lambda f, x: 1.01 * JACOBIANS(f, x)),
    ("many_classes", GROWING, "even_errors", lambda n, p=0.5, **_: 6 * [n / 1e4 + p / 5]),
    ("many_classes", "leading largest", "decomposition", take_square_roots),
    ("many_classes", "same_maps first_and_second", "caso", flip_gradient),
    ("solvers", "fast", "fista", lambda p, s: fista(p, s._replace(max_iterations=s[1] // 40))),
    ("solvers", "zeros", "descend", lambda problem, **more: DESCEND(problem)),
    ("solvers", "plateau steep", "caso", lambda f, lambda2, **_: caso(f, lambda2=lambda2.flip(0))),
]


@pytest.mark.parametrize(("check", "keys", "name", "wrong"), BROKEN)
def test_broken_formula_exceeds_its_limit(monkeypatch, check, keys, name, wrong):
    SMALL()  # caches the unbroken problem
    monkeypatch.setattr(theory, name, wrong)
    values = dict(getattr(theory, f"check_{check}")())
    assert not [key for key in keys.split() if values[key] <= theory.STATEMENTS[key][2]]


def test_all_statements_agree():
    table = theory.check_theory()
    assert len(table) == len(theory.STATEMENTS)
    assert table[theory.EXPECTED].str.startswith("yes (at most ").all()


def test_disagreement_is_printed(monkeypatch):
    for check in ("hessian", "expansion", "choice", "spectrum", "many_classes", "solvers"):
        monkeypatch.setattr(theory, f"check_{check}", lambda: iter(()))
    values = {"pixel": math.nan, "pair": 0.06, "tight": 0.0}
    monkeypatch.setattr(theory, "check_groups", values.items)
    verdicts = ["no (at most 0.05)", "no (at most 0.05)", "yes (at most 0)"]
    assert theory.check_theory()[theory.EXPECTED].tolist() == verdicts


def test_smooth_hessian_is_not_semi_definite(monkeypatch):
    monkeypatch.setattr(torch.nn, "ReLU", torch.nn.Softplus)
    monkeypatch.setattr(theory, "small_problem", SMALL.__wrapped__)
    assert dict(theory.check_spectrum())["semi_definite"] > 0.01


def test_restricted_eigenvalue_is_cone_minimum():
    points = torch.randn(1000, 48, generator=torch.Generator().manual_seed(0)).abs()
    points[0] = 1
    inside, outside = points[:, :3], points[:, 3:]
    outside *= (3 * inside.sum(1) / outside.sum(1))[:, None]
    quotients = 0.6 - points.sum(1) ** 2 / (2 * 48 * points.square().sum(1))
    gamma = theory.restricted_eigenvalue(0.6, 48, 3)
    assert quotients[0] == pytest.approx(gamma)
    assert (quotients >= gamma - 1e-6).all()


@pytest.mark.parametrize(("n_classes", "top"), [(3, 0.5), (10, 0.9), (100, 0.999)])
def test_rank_one_error_by_decomposition(n_classes, top):
    p = np.full(n_classes, (1 - top) / (n_classes - 1))
    p[0] = top
    squares = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)) ** 2
    expected = math.sqrt(1 - squares.max() / squares.sum())
    assert rank_one_error(n_classes, top) == pytest.approx(expected, rel=1e-6)


def test_rank_one_error_has_a_limit():
    c = 20
    limit = math.sqrt((c - 2) / ((c + 2) * (c - 1)))
    assert rank_one_error(c, 1 - 1e-7) == pytest.approx(limit, rel=1e-5)
    rows = rank_one_errors(tops=(0.5, 0.999), most=100).query("classes >= 10")
    wide = rows.pivot(index="classes", columns="top probability", values="value")
    assert (wide["0.999"] < wide["0.5"]).all()
    assert (wide.diff().dropna() < 0).to_numpy().all()
