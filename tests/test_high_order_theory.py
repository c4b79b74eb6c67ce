"""What the theorems of high-order saliency say, on problems small enough to know the answer."""

import math

import numpy as np
import pytest

from suite.papers.high_order_tables import rank_one_error, rank_one_errors, recovered


def test_best_group_without_hessian():
    with_k, best = recovered(0.0, n_problems=20)
    assert with_k > 0.9
    assert best == 1
    assert recovered(0.9)[1] < 1


@pytest.mark.parametrize(("n_classes", "top"), [(3, 0.5), (10, 0.9), (100, 0.999)])
def test_rank_one_error_by_decomposition(n_classes, top):
    p = np.full(n_classes, (1 - top) / (n_classes - 1))
    p[0] = top
    squares = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)) ** 2
    expected = math.sqrt(1 - squares.max() / squares.sum())
    assert rank_one_error(n_classes, top) == pytest.approx(expected, rel=1e-6)


def test_rank_one_error_falls_to_its_limit():
    c = 20
    limit = math.sqrt((c - 2) / ((c + 2) * (c - 1)))
    assert rank_one_error(c, 1 - 1e-7) == pytest.approx(limit, rel=1e-5)
    rows = rank_one_errors(tops=(0.5, 0.999), most=100).query("classes >= 10")
    wide = rows.pivot(index="classes", columns="top probability", values="value")
    assert (wide["0.999"] < wide["0.5"]).all()
    assert (wide.diff().dropna() < 0).to_numpy().all()
