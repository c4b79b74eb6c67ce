"""CAFO and CASO against closed forms and optimality conditions."""

import copy
import math
from functools import partial

import pytest
import torch

from reglib.input_hessian import closed_form_hessian
from reglib.saliency import Settings, cafo, caso, choose_lambda1
from reglib.saliency.proximal import Problem, conjugate_gradients, fista, solve_first_order
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss
from suite.metrics.saliency import loss_gradient
from tests.double_backward import randn
from tests.small_batches import generator, left_alone
from tests.test_input_hessian import CURVED, LABELS, PIECEWISE, assert_close, columns, formed

TIGHT = Settings(tolerance=1e-11, max_iterations=5000)
MODEL = PIECEWISE["batch normalisation"]


@pytest.fixture(scope="module")
def images():
    return 2 * randn(3, 2, 6, 6, seed=5)


@pytest.fixture(scope="module")
def loss(images):
    return surrogate_loss(MODEL, images, LABELS, tolerance=1e-10)


@pytest.fixture(scope="module")
def matrix(images):
    return formed(MODEL, images, LABELS)


@pytest.fixture(scope="module")
def lambda1(loss):
    """Return strengths that leave some values of each map: fractions of the largest gradient."""
    peak = loss.gradient.flatten(1).abs().amax(1)
    return peak * torch.tensor([1 / 3, 1 / 10, 1 / 5])


def flat_problem(loss, lambda1, margin, product=None):
    images, lambda2 = loss.gradient.shape, loss.largest_eigenvalue / 2 + margin
    product = product or (lambda v: loss.product(v.view(images)).flatten(1))
    return Problem(loss.gradient.flatten(1), product, lambda1[:, None], lambda2[:, None])


def steep(shift=0.0):
    """Return a problem whose smallest eigenvalue of the Hessian is minus `shift`."""
    root = randn(2, 8, 4)
    matrix = root @ root.mT - shift * torch.eye(8).double()
    lambda1 = torch.full((2, 1), 0.1, dtype=torch.float64)
    lambda2 = torch.tensor([[50.0], [1.0]]) + torch.linalg.eigvalsh(root @ root.mT).max() / 2
    return Problem(
        randn(2, 8, seed=1), partial(torch.einsum, "bij,bj->bi", matrix), lambda1, lambda2
    )


def without_curvature(gradient):
    gradient = torch.as_tensor(gradient, dtype=torch.float64)
    return SurrogateLoss(gradient, torch.zeros_like, torch.zeros(len(gradient)).double())


def identity_times(values):
    return values[:, None, None] * torch.eye(72, dtype=torch.float64)


each_method = pytest.mark.parametrize("method", [cafo, caso], ids=["CAFO", "CASO"])


class TestInterpretation:
    def test_without_l1_solves_linear_system(self, loss, matrix):
        result = caso(loss, settings=TIGHT)
        lambda2 = torch.linalg.eigvalsh(matrix)[:, -1] / 2 + 10
        torch.testing.assert_close(result.lambda2, lambda2)
        shifted = identity_times(2 * lambda2) - matrix
        assert_close(result.maps, torch.linalg.solve(shifted, loss.gradient.flatten(1)), 1e-9)
        assert result.converged.all()

    def test_fista_agrees_with_conjugate_gradients(self, loss):
        problem = flat_problem(loss, torch.zeros(3).double(), margin=1e-3)
        by_steps, by_system = fista(problem, TIGHT), conjugate_gradients(problem, TIGHT)
        assert_close(by_steps.point, by_system.point, 1e-8)
        assert (by_steps.converged & by_system.converged).all()
        assert (by_steps.iterations > 1).all()

    def test_without_curvature_gradient_is_shrunk(self, loss, lambda1):
        result = cafo(loss, lambda1=lambda1)
        g, t = loss.gradient, lambda1.view(3, 1, 1, 1)
        expected = torch.where(g.abs() > t, g - t * g.sign(), 0)
        expected /= (loss.largest_eigenvalue + 20).view(3, 1, 1, 1)
        torch.testing.assert_close(result.maps, expected)
        problem = flat_problem(loss, lambda1, 10.0, product=torch.zeros_like)
        assert_close(fista(problem, TIGHT).point, result.maps.flatten(1), 1e-9)
        assert (solve_first_order(problem).residual < 1e-12).all()
        assert (result.iterations == 0).all()

    def test_optimality_conditions(self, loss, matrix, lambda1):
        """Zero is a subgradient of the objective, with the Hessian by autograd."""
        result = caso(loss, lambda1=lambda1, margin=1e-3, settings=TIGHT)
        delta, g = result.maps.flatten(1), loss.gradient.flatten(1)
        slope = g + (matrix @ delta[:, :, None])[:, :, 0] - 2 * result.lambda2[:, None] * delta
        ceiling = lambda1[:, None].expand_as(slope)
        zero = delta == 0
        assert 0.1 < zero.double().mean() < 0.99
        assert (slope.abs() <= ceiling + 1e-10)[zero].all()
        torch.testing.assert_close(slope[~zero], (ceiling * delta.sign())[~zero], rtol=0, atol=1e-9)
        assert (result.iterations > 1).all()

    def test_objective_and_loss_change(self, loss, matrix, lambda1):
        second, first = caso(loss, lambda1=lambda1), cafo(loss, lambda1=lambda1)
        g = loss.gradient.flatten(1)
        for result, curvature in ((second, matrix), (first, 0 * matrix)):
            delta = result.maps.flatten(1)
            change = (g * delta).sum(1) + torch.einsum("bi,bij,bj->b", delta, curvature, delta) / 2
            torch.testing.assert_close(result.loss_change, change)
            norms = lambda1 * delta.abs().sum(1) + result.lambda2 * delta.square().sum(1)
            torch.testing.assert_close(result.objective, change - norms)
            torch.testing.assert_close(result.sparsity, (delta == 0).double().mean(1))

    @each_method
    def test_empty_from_the_largest_gradient(self, loss, method):
        peak = loss.gradient.flatten(1).abs().amax(1)
        empty = method(loss, lambda1=peak)
        assert not empty.maps.any()
        assert (empty.sparsity == 1).all()
        assert empty.converged.all()
        assert (empty.iterations == 0).all()
        assert (method(loss, lambda1=0.999 * peak).sparsity < 1).all()

    @pytest.mark.parametrize("with_l1", [False, True])
    def test_map_needs_no_batch(self, images, lambda1, with_l1):
        strengths = lambda1 if with_l1 else 0 * lambda1
        together = caso(surrogate_loss(MODEL, images, LABELS), lambda1=strengths, margin=1e-3)
        assert (len(set(together.iterations.tolist())) > 1) == with_l1
        for b in range(3):
            loss = surrogate_loss(MODEL, images[b : b + 1], LABELS[b : b + 1])
            alone = caso(loss, lambda1=strengths[b : b + 1], margin=1e-3)
            for single, batched in zip(alone, together):
                torch.testing.assert_close(single[0], batched[b], rtol=1e-9, atol=1e-12)

    @each_method
    def test_several_strengths_at_once(self, loss, lambda1, method):
        several = torch.stack([lambda1, 2 * lambda1])
        together = method(loss, lambda1=several)
        assert together.maps.shape == (2, 3, 2, 6, 6)
        for k in range(2):
            for single, joint in zip(method(loss, lambda1=several[k]), together):
                torch.testing.assert_close(single, joint[k], rtol=1e-9, atol=1e-12)

    def test_backtracking_of_each_image(self):
        result = fista(steep(), TIGHT._replace(step=10.0))
        assert result.converged.all()
        assert_close(result.point, fista(steep(), TIGHT).point, 1e-8)

    def test_negative_eigenvalues_need_shorter_steps(self):
        problem = steep(shift=400.0)
        point, *_, converged = fista(problem, TIGHT)
        assert converged.all()
        slope = problem.gradient + problem.product(point) - 2 * problem.lambda2 * point
        zero = point == 0
        off = torch.where(zero, (slope.abs() - 0.1).clamp_min(0), slope - 0.1 * point.sign())
        assert (off.abs() < 1e-9).all()
        assert zero.any()

    @each_method
    @pytest.mark.parametrize("lambda1", [0.0, 0.1])
    @pytest.mark.parametrize("scale", [2.0**-90, 2.0**90])
    def test_squares_out_of_range(self, method, lambda1, scale):
        loss = SurrogateLoss(randn(2, 8).float(), lambda v: v / 2, torch.ones(2))
        expected = method(loss, lambda1=lambda1)
        scaled = method(loss._replace(gradient=loss.gradient * scale), lambda1=lambda1 * scale)
        assert torch.equal(scaled.maps, expected.maps * scale)
        assert torch.equal(scaled.residual, expected.residual)

    def test_warning_without_convergence(self, loss, lambda1):
        message = r"CASO did not converge for 3 of 3: residual .*allow"
        with pytest.warns(RuntimeWarning, match=message):
            result = caso(loss, lambda1=lambda1, margin=1e-3, settings=Settings(1e-9, 2))
        assert not result.converged.any()
        assert (result.iterations == 2).all()
        with pytest.warns(RuntimeWarning, match="CASO did not converge"):
            result = caso(loss, margin=1e-3, settings=Settings(1e-12, 1))
        shifted = 2 * result.lambda2.view(3, 1, 1, 1) * result.maps - loss.product(result.maps)
        off, gradient = (shifted - loss.gradient).flatten(1), loss.gradient.flatten(1)
        torch.testing.assert_close(result.residual, off.norm(dim=1) / gradient.norm(dim=1))


class TestSurrogate:
    def test_gradient_hessian_and_eigenvalue(self, loss, images, matrix):
        assert_close(loss.gradient, loss_gradient(MODEL, images, LABELS))
        assert_close(columns(loss.product, images), matrix)
        values = torch.linalg.eigvalsh(matrix)[:, -1]
        torch.testing.assert_close(loss.largest_eigenvalue, values, rtol=1e-9, atol=0)

    def test_curved_network(self, images):
        model = CURVED["SiLU"]
        expected = formed(model, images, LABELS)
        result = surrogate_loss(model, images, LABELS, tolerance=1e-9)
        assert_close(columns(result.product, images), expected)
        values = torch.linalg.eigvalsh(expected)
        assert (values[:, 0] < -1e-6).all()
        torch.testing.assert_close(result.largest_eigenvalue, values[:, -1], rtol=1e-8, atol=0)
        gauss_newton = surrogate_loss(model, images, LABELS, closed_form=True)
        closed = closed_form_hessian(model, images)
        assert_close(columns(gauss_newton.product, images), columns(closed.product, images))

    def test_smoothing_averages_both(self, images):
        settings = {"n_samples": 3, "noise_level": 0.1, "tolerance": 1e-9}
        source = generator(1)
        smooth = smooth_surrogate_loss(MODEL, images, LABELS, generator=source, **settings)
        source, flat = generator(1), images.flatten(1)
        std = 0.1 * (flat.max(1).values - flat.min(1).values).view(3, 1, 1, 1)
        noise = [torch.randn(2, 6, 6, generator=source, dtype=torch.float64) for _ in range(3)]
        copies = [images + std * e for e in noise]
        assert_close(smooth.gradient, sum([loss_gradient(MODEL, x, LABELS) for x in copies]) / 3)
        mean = sum(formed(MODEL, x, LABELS) for x in copies) / 3
        assert_close(columns(smooth.product, images), mean)
        largest = torch.linalg.eigvalsh(mean)[:, -1]
        torch.testing.assert_close(smooth.largest_eigenvalue, largest, rtol=1e-8, atol=0)

    def test_smooth_map_needs_no_batch(self, images):
        def maps(x, labels):
            options = {"generator": generator(3), "n_samples": 2}
            return caso(smooth_surrogate_loss(MODEL, x, labels, **options)).maps

        together = maps(images, LABELS)
        for b in range(3):
            assert_close(maps(images[b : b + 1], LABELS[b : b + 1]), together[b : b + 1], 1e-4)


class TestChoice:
    @each_method
    def test_takes_highest_loss_of_sparse_maps(self, loss, method):
        chosen = choose_lambda1(loss, method=method, factor=2.0, start=1e-6)
        assert chosen.found.all()
        peak, best = float(loss.gradient.abs().max()), chosen.interpretation
        strengths = 1e-6 * 2.0 ** torch.arange(math.ceil(math.log2(peak / 1e-6)) + 1).double()
        grid = method(loss, lambda1=strengths[:, None].expand(-1, 3))  # including skipped ones
        assert (grid.sparsity[-1] == 1).all()
        assert (grid.sparsity[-2] < 1).any()
        for b in range(3):
            sparse = (grid.sparsity[:, b] >= 0.75) & (grid.sparsity[:, b] < 1)
            assert best.loss_change[b] == grid.loss_change[sparse, b].max()
        torch.testing.assert_close(method(loss, lambda1=best.lambda1).maps, best.maps)

    @pytest.mark.parametrize(
        ("peak", "options", "strengths"),
        [
            (0.05, {}, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
            (0.5, {"start": 0.125, "factor": 2.0}, [0.125, 0.25, 0.5]),
            (0.51, {"start": 0.125, "factor": 2.0}, [0.125, 0.25, 0.5, 1.0]),
            (0.5, {"start": 0.5}, [0.5]),
            (0.5, {"start": 2.0}, [2.0]),
            (0.0, {"start": 0.25}, [0.25]),
        ],
    )
    def test_grid_of_strengths(self, peak, options, strengths):
        loss = without_curvature([[peak, -peak / 2, peak / 4]])
        tried = choose_lambda1(loss, method=cafo, sparsity=(0.0, 1.0), **options).grid
        torch.testing.assert_close(tried.lambda1[:, 0], torch.tensor(strengths).double())
        assert float(tried.sparsity[-1, 0]) == 1
        assert len(strengths) == 1 or float(tried.sparsity[-2, 0]) < 1

    @pytest.mark.parametrize(
        ("peaks", "low", "strengths"),
        [
            ([0.5], 0.75, [0.25, 0.5]),  # a quarter of 0.5 leaves two zeros of three
            ([0.5], 0.5, [0.125, 0.25, 0.5]),
            ([0.5], 0.3, [0.0625, 0.125, 0.25, 0.5]),
            ([0.5, 0.06], 0.75, [0.03125, 0.0625, 0.125, 0.25, 0.5]),  # one image has enough
            ([0.5, 0.0], 0.75, [0.03125, 0.0625, 0.125, 0.25, 0.5]),  # an empty map stays empty
        ],
    )
    def test_weaker_strengths_are_skipped(self, peaks, low, strengths):
        loss, solved = without_curvature([[p, -p / 2, p / 4] for p in peaks]), []

        def method(loss, *, lambda1, **options):
            solved.append(float(lambda1[0, 0]))
            return cafo(loss, lambda1=lambda1, **options)

        options = {"start": 2.0**-5, "factor": 2.0, "sparsity": (low, 1.0), "max_rounds": 0}
        chosen = choose_lambda1(loss, method=method, **options)
        assert solved == strengths[::-1]
        assert chosen.grid.lambda1.tolist() == [[strength] * len(peaks) for strength in strengths]
        zeros = chosen.grid.maps == 0
        torch.testing.assert_close(chosen.grid.sparsity, zeros.double().mean(2))

    def test_halves_a_grid_without_sparse_maps(self, loss):
        peak = loss.gradient.flatten(1).abs().amax(1)
        chosen = choose_lambda1(loss, method=cafo, start=float(peak.max()))
        assert chosen.found.all()
        assert len(chosen.grid.lambda1) == 1
        halvings = torch.log2(peak.max() / chosen.interpretation.lambda1)
        sparsity = chosen.interpretation.sparsity
        assert ((sparsity >= 0.75) & (sparsity < 1) & (halvings > 0)).all()
        assert ((halvings - halvings.round()).abs() < 1e-9).any()

    def test_bisects_where_halving_overshoots(self):
        chosen = choose_lambda1(without_curvature(torch.linspace(0.9, 1.0, 40)[None]), method=cafo)
        assert chosen.found.all()
        assert 0.75 <= float(chosen.interpretation.sparsity) < 1
        assert 0.9 < float(chosen.interpretation.lambda1) < 1

    @pytest.mark.parametrize("value", [1.0, 0.0])
    def test_no_sparse_map_exists(self, value):
        chosen = choose_lambda1(without_curvature([[value] * 4]), method=cafo)
        assert not chosen.found.any()
        assert chosen.interpretation.sparsity == 1

    def test_needs_no_batch(self, loss):
        together = choose_lambda1(loss, method=cafo).interpretation.lambda1
        for b in range(3):
            rows = slice(b, b + 1)
            image = SurrogateLoss(loss.gradient[rows], loss.product, loss.largest_eigenvalue[rows])
            alone = choose_lambda1(image, method=cafo).interpretation.lambda1
            torch.testing.assert_close(alone[0], together[b])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("smooth", [False, True])
def test_no_side_effects(images, smooth):
    model = copy.deepcopy(MODEL).requires_grad_()
    expand = partial(smooth_surrogate_loss, generator=generator(0), n_samples=2)
    x = images.clone().requires_grad_()
    with left_alone(model, x):
        loss = (expand if smooth else surrogate_loss)(model, x, LABELS)
        results = [*caso(loss, lambda1=1e-3), *choose_lambda1(loss).interpretation]
    assert not any(value.requires_grad for value in results)


class TestRefused:
    def test_too_small_lambda2(self, loss):
        lambda2 = loss.largest_eigenvalue / 2 * torch.tensor([1.5, 1 - 1e-4, 1.5])
        needed = float(loss.largest_eigenvalue[1] / 2)
        message = rf"half of .* for image 1 more than {needed:.6g}, got {float(lambda2[1]):.6g}"
        with pytest.raises(ValueError, match=message):
            caso(loss, lambda2=lambda2)
        assert cafo(loss, lambda2=lambda2).converged.all()
        assert caso(loss, lambda2=1.01 * loss.largest_eigenvalue / 2).converged.all()
        with pytest.raises(ValueError, match="lambda2: expected positive numbers, got 0"):
            cafo(loss, lambda2=0.0)

    @pytest.mark.parametrize("margin", [0.0, -1.0, math.nan])
    def test_margin_without_concavity(self, loss, margin):
        half = float(loss.largest_eigenvalue.max()) / 2
        message = rf"margin: expected a number above 0.*\({half:.6g} here\).*, got {margin:g}"
        with pytest.raises(ValueError, match=message):
            caso(loss, margin=margin)
        # The margin is not used where lambda2 is given.
        lambda2 = loss.largest_eigenvalue / 2 + 10
        assert_close(caso(loss, lambda2=lambda2, margin=margin).maps, caso(loss).maps)

    @each_method
    def test_impossible_strengths(self, loss, method):
        for lambda1, message in (
            (torch.tensor([0.0, -1.0, 0.0]), "expected numbers from 0 up, got -1"),
            (math.nan, "expected numbers from 0 up, got nan"),
            (torch.zeros(2), r"expected a number, or shape \(3,\) or"),
        ):
            with pytest.raises(ValueError, match=f"lambda1: {message}"):
                method(loss, lambda1=lambda1)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"start": 0.0}, "start: expected a positive number, got 0"),
            ({"factor": 1.0}, "factor: expected a number above 1, got 1"),
            ({"settings": Settings(shrink=1.0)}, "shrink: expected .* above 0 and below 1, got 1"),
            ({"sparsity": (0.9, 0.8)}, r"sparsity: expected 0 <= low < high <= 1, got \(0\.9, 0\."),
        ],
        ids=str,
    )
    def test_settings_of_the_choice(self, loss, options, message):
        with pytest.raises(ValueError, match=message):
            choose_lambda1(loss, **options)

    def test_networks_and_labels(self, images):
        with pytest.raises(ValueError, match=r"call model\.eval"):
            surrogate_loss(copy.deepcopy(MODEL).train(), images, LABELS)
        with pytest.raises(ValueError, match="labels: expected indices from 0 to 3, got 4"):
            surrogate_loss(MODEL, images, LABELS + 1)
        with pytest.raises(ValueError, match="n_samples: expected a positive number, got 0"):
            smooth_surrogate_loss(MODEL, images, LABELS, generator=generator(0), n_samples=0)
