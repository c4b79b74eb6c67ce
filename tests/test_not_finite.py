"""Infinity and NaN never count as converged, and the other images of a batch keep their results."""

from functools import partial

import pytest
import torch

from reglib import input_hessian as lib
from reglib.saliency import cafo, caso, choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss
from tests.double_backward import Net

BROKEN = [torch.nan, torch.inf, -torch.inf]
LABELS = torch.tensor([0, 1])
# Logits with an infinite slope where a pixel is zero.
ROOT = Net(lambda net, x: x.flatten(1).abs().sqrt()).eval()
IMAGES = torch.tensor([0.5, 0.2, 0.1, 0.0]).view(2, 1, 1, 2)  # the slope is infinite in the second


def diagonal(values):
    """Return products by diagonal matrices, a row for each image, in float64."""
    return lambda v: torch.as_tensor(values, dtype=v.dtype) * v


def check_first_alone_converged(pairs, expected):
    assert pairs.converged.tolist() == [True, False]
    torch.testing.assert_close(pairs.values[:1], expected.values)
    vectors, references = (p.vectors[0].flatten(1) for p in (pairs, expected))
    cosines = (vectors * references).sum(1).abs()
    torch.testing.assert_close(cosines, torch.ones_like(cosines))
    assert pairs.values[1].isnan().all()
    assert not pairs.residual[1].isfinite().any()


class TestEigenpairs:
    @pytest.mark.parametrize("k", [1, 2])
    def test_with_infinite_slopes_have_not_converged(self, k):
        closed, alone = (lib.closed_form_hessian(ROOT, images) for images in (IMAGES, IMAGES[:1]))
        expected = lib.hessian_eigenpairs(alone, k=k)
        check_first_alone_converged(lib.hessian_eigenpairs(closed, k=k), expected)
        pairs = lib.hessian_eigenpairs(lib.true_hessian(ROOT, IMAGES, LABELS), k=k)
        assert pairs.converged.tolist() == [True, False]
        assert not pairs.residual[1].isfinite().any()

    @pytest.mark.parametrize("broken", BROKEN)
    @pytest.mark.parametrize("position", [0, 3])
    def test_of_broken_products_have_not_converged(self, broken, position):
        values = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 2).double()
        start = torch.ones(2, 4).double()
        expected = lib.leading_eigenpairs(diagonal(values[:1]), start[:1], tolerance=1e-9)
        values[1, position] = broken
        pairs = lib.leading_eigenpairs(diagonal(values), start, tolerance=1e-9)
        check_first_alone_converged(pairs, expected)

    @pytest.mark.parametrize(("row", "after"), [(1, 4), (0, 3)], ids=["late", "converged"])
    def test_that_converged_survive_later_failures(self, row, after):
        """The first image converges in one product, the second does not."""
        calls, broken = [], torch.ones(2, 1)
        broken[row] = torch.nan
        values = torch.tensor([[5.0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]]).double()

        def product(v):
            calls.append(v)
            return values * v if len(calls) < after else values * v * broken

        start = torch.eye(6)[[0, 0]].double()
        start[1] = 1
        pairs = lib.leading_eigenpairs(product, start, tolerance=1e-12)
        assert pairs.converged.tolist() == [True, row == 0]
        assert pairs.values[0] == pytest.approx(5.0)
        assert row or pairs.values[1] == pytest.approx(6.0)

    def test_stop_once_all_are_broken(self):
        calls, start = [], torch.ones(2, 50)
        pairs = lib.leading_eigenpairs(lambda v: calls.append(1) or torch.nan * v, start)
        assert not pairs.converged.any()
        assert len(calls) == 1


def test_decomposition_refuses_infinite_slopes_only():
    with pytest.raises(ValueError, match=r"eigenvalues: expected finite .* for image 1;"):
        lib.decomposition(ROOT, IMAGES)
    assert lib.decomposition(ROOT, IMAGES[:1]).values.isfinite().all()


class TestSurrogateLoss:
    def test_with_an_infinite_slope_is_refused(self):
        options = {"generator": torch.Generator(), "noise_level": 0.0, "n_samples": 2}
        for expand in (surrogate_loss, partial(smooth_surrogate_loss, **options)):
            with pytest.raises(ValueError, match=r"gradient: expected finite .* for image 1;"):
                expand(ROOT, IMAGES, LABELS)

    def test_whose_products_break_warns(self, monkeypatch):
        def broken(model, images, labels, *, closed_form):
            logits = torch.zeros(2, 2)
            return lib.InputHessian(logits, lambda v: v * torch.nan, lambda u: u.view(2, 1, 1, 2))

        monkeypatch.setattr("reglib.saliency.surrogate.input_hessian", broken)
        with pytest.warns(RuntimeWarning, match="largest eigenvalue did not converge for 2 of 2"):
            surrogate_loss(ROOT, IMAGES, LABELS, closed_form=True)


def loss(gradient, curvature):
    gradient = torch.as_tensor(gradient).view(2, 1, 1, 2)
    return SurrogateLoss(gradient, lambda v: curvature.view(2, 1, 1, 1) * v, torch.ones(2).double())


FINE = torch.tensor([[1.0, -2.0], [0.5, 3.0]])


@pytest.mark.filterwarnings("ignore:CASO did not converge:RuntimeWarning")
class TestInterpretation:
    @pytest.mark.parametrize("lambda1", [0.0, 0.1], ids=["CG", "FISTA"])
    @pytest.mark.parametrize("broken", BROKEN)
    @pytest.mark.parametrize("where", ["gradient", "curvature"])
    def test_caso_has_not_converged(self, lambda1, broken, where):
        gradient, curvature = FINE.clone(), torch.ones(2)
        (gradient[1:, 0] if where == "gradient" else curvature[1:])[:] = broken
        result = caso(loss(gradient, curvature), lambda1=lambda1)
        expected = caso(loss(FINE, torch.ones(2)), lambda1=lambda1)
        assert result.converged.tolist() == [True, False]
        assert not result.residual[1].isfinite()
        torch.testing.assert_close(result.maps[0], expected.maps[0])
        if where == "gradient":
            result = cafo(loss(gradient, curvature), lambda1=0.1)
            assert result.converged.tolist() == [True, False]
            assert cafo(loss(FINE, torch.ones(2)), lambda1=0.1).converged.all()

    def test_a_broken_map_is_not_chosen(self):
        choice, expected = (
            choose_lambda1(loss(FINE, torch.tensor(curvature)), sparsity=(0.0, 1.0), max_rounds=2)
            for curvature in ([1.0, torch.nan], [1.0, 1.0])
        )
        assert choice.found.tolist() == [True, False]
        assert choice.interpretation.maps[0].isfinite().all()
        assert torch.equal(choice.interpretation.maps[0], expected.interpretation.maps[0])
