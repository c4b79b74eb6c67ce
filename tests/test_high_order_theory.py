"""What the theorems of high-order saliency say, on problems small enough to know the answer."""

import math

import pytest

from suite.papers.high_order_theory import asymptotic, rank_one_error, rank_one_errors, recovered


def test_two_classes_have_rank_one_and_more_classes_tend_to_it():
    two = asymptotic(2, 0.5, n_inputs=30)
    assert two["share of λ₁²"] == pytest.approx(1)
    assert two["|cos(g, v₁)|"] == pytest.approx(1)
    assert two["|cos(CASO, CAFO)|"] == pytest.approx(1)
    many = [asymptotic(c, 0.999, n_inputs=200)["share of λ₁²"] for c in (5, 50)]
    assert many[0] < many[1] < 1


def test_without_a_hessian_the_best_group_is_always_found():
    with_k, best = recovered(0.0, n_problems=20)
    assert with_k > 0.9
    assert best == 1
    assert recovered(0.9)[1] < 1


@pytest.mark.parametrize(("n_classes", "top"), [(3, 0.5), (10, 0.9), (100, 0.999)])
def test_the_formula_of_the_rank_one_error_is_that_of_the_matrix(n_classes, top):
    formula, by_decomposition = rank_one_error(n_classes, top)
    assert formula == pytest.approx(by_decomposition, rel=1e-9)


def test_the_rank_one_error_tends_to_its_limit():
    c = 20
    limit = math.sqrt((c - 2) / ((c + 2) * (c - 1)))
    assert rank_one_error(c, 1 - 1e-7)[0] == pytest.approx(limit, rel=1e-5)


def test_the_rank_one_error_falls_with_classes_and_with_confidence():
    rows = rank_one_errors(tops=(0.5, 0.999), most=100).query("classes >= 10")
    wide = rows.pivot(index="classes", columns="top probability", values="value")
    assert (wide["0.999"] < wide["0.5"]).all()
    assert (wide.diff().dropna() < 0).to_numpy().all()
