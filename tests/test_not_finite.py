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


def check_first_alone_converged(found, expected):
    assert found.converged.tolist() == [True, False]
    torch.testing.assert_close(found.values[:1], expected.values)
    vectors = [pairs.vectors[0].flatten(1) for pairs in (found, expected)]
    cosines = (vectors[0] * vectors[1]).sum(1).abs()
    torch.testing.assert_close(cosines, torch.ones_like(cosines))
    assert found.values[1].isnan().all()
    assert not found.residual[1].isfinite().any()


class TestEigenpairs:
    @pytest.mark.parametrize("k", [1, 2])
    def test_with_infinite_slopes_have_not_converged(self, k):
        closed, alone = (lib.closed_form_hessian(ROOT, images) for images in (IMAGES, IMAGES[:1]))
        found = lib.hessian_eigenpairs(closed, k=k)
        check_first_alone_converged(found, lib.hessian_eigenpairs(alone, k=k))
        found = lib.hessian_eigenpairs(lib.true_hessian(ROOT, IMAGES, LABELS), k=k)
        assert found.converged.tolist() == [True, False]
        assert not found.residual[1].isfinite().any()

    @pytest.mark.parametrize("broken", BROKEN)
    @pytest.mark.parametrize("position", [0, 3])
    def test_of_broken_products_have_not_converged(self, broken, position):
        values = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 2).double()
        start = torch.ones(2, 4).double()
        expected = lib.leading_eigenpairs(diagonal(values[:1]), start[:1], tolerance=1e-9)
        values[1, position] = broken
        found = lib.leading_eigenpairs(diagonal(values), start, tolerance=1e-9)
        check_first_alone_converged(found, expected)

    @pytest.mark.parametrize(("row", "after"), [(1, 4), (0, 3)], ids=["late", "converged"])
    def test_that_converged_survive_later_failures(self, row, after):
        """The first image converges in one product, the second does not."""
        made, broken = [], torch.ones(2, 1)
        broken[row] = torch.nan
        values = torch.tensor([[5.0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]]).double()

        def product(v):
            made.append(v)
            return values * v if len(made) < after else values * v * broken

        start = torch.eye(6)[[0, 0]].double()
        start[1] = 1
        found = lib.leading_eigenpairs(product, start, tolerance=1e-12)
        assert found.converged.tolist() == [True, row == 0]
        assert found.values[0] == pytest.approx(5.0)
        assert row or found.values[1] == pytest.approx(6.0)

    def test_stop_once_all_are_broken(self):
        made = []
        found = lib.leading_eigenpairs(lambda v: made.append(1) or torch.nan * v, torch.ones(2, 50))
        assert not found.converged.any()
        assert len(made) == 1


class TestDecomposition:
    def test_refuses_infinite_slopes_only(self):
        with pytest.raises(ValueError, match=r"eigenvalues: expected finite .* for image 1;"):
            lib.decomposition(ROOT, IMAGES)
        pairs = lib.hessian_eigenpairs(lib.closed_form_hessian(ROOT, IMAGES[:1]))
        exact = lib.decomposition(ROOT, IMAGES[:1])
        torch.testing.assert_close(exact.values[:, :1], pairs.values, rtol=1e-5, atol=0)


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
        found = caso(loss(gradient, curvature), lambda1=lambda1)
        expected = caso(loss(FINE, torch.ones(2)), lambda1=lambda1)
        assert found.converged.tolist() == [True, False]
        assert not found.residual[1].isfinite()
        torch.testing.assert_close(found.maps[0], expected.maps[0])
        if where == "gradient":
            found = cafo(loss(gradient, curvature), lambda1=0.1)
            assert found.converged.tolist() == [True, False]
            assert cafo(loss(FINE, torch.ones(2)), lambda1=0.1).converged.all()

    def test_a_broken_map_is_not_chosen(self):
        found, expected = (
            choose_lambda1(loss(FINE, torch.tensor(curvature)), sparsity=(0.0, 1.0), max_rounds=2)
            for curvature in ([1.0, torch.nan], [1.0, 1.0])
        )
        assert found.found.tolist() == [True, False]
        assert found.interpretation.maps[0].isfinite().all()
        assert torch.equal(found.interpretation.maps[0], expected.interpretation.maps[0])
