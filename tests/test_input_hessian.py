"""The closed-form Hessian against one formed by autograd, in double precision."""

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib import closed_form_hessian, hessian_eigenpairs
from reglib.double_backward import folding_of
from reglib.input_hessian import decomposition, input_hessian, leading_eigenpairs, true_hessian
from suite.papers.second_order import closed_form_difference
from tests.double_backward import Net, in_general_position, randn
from tests.small_batches import generator, left_alone

CLASSES = 4
LABELS = torch.tensor([3, 0, 1])


def convolutional(activation, *, pool=True, norm=True):
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), activation]
    layers += [nn.MaxPool2d(2)] if pool else []
    layers += [nn.Conv2d(4, 4, 1), activation, nn.Flatten(), nn.LazyLinear(CLASSES)]
    model = nn.Sequential(*layers).double().eval()
    model(randn(1, 2, 6, 6))
    return in_general_position(model).requires_grad_(False)


PIECEWISE = {
    "ReLU": convolutional(nn.ReLU(), pool=False, norm=False),
    "ReLU6": convolutional(nn.ReLU6(), pool=False, norm=False),
    "leaky ReLU": convolutional(nn.LeakyReLU(0.1), pool=False, norm=False),
    "max-pooling": convolutional(nn.ReLU(), norm=False),
    "batch normalisation": convolutional(nn.ReLU6()),
}
CURVED = {"softplus": convolutional(nn.Softplus()), "SiLU": convolutional(nn.SiLU())}
piecewise_linear = pytest.mark.parametrize("model", PIECEWISE.values(), ids=PIECEWISE)


@pytest.fixture
def images():
    return 2 * randn(3, 2, 6, 6, seed=5)


def formed(model, images, labels):
    """Form the Hessian of each image's own loss, (B, d, d)."""
    matrices = []
    for image, label in zip(images.split(1), labels.split(1)):

        def loss(x, shape=image.shape, label=label):
            return F.cross_entropy(model(x.view(shape)), label)

        matrices.append(torch.autograd.functional.hessian(loss, image.flatten(), vectorize=True))
    return torch.stack(matrices)


def assert_close(actual, expected, rtol=1e-10):
    actual, expected = actual.flatten(1), expected.flatten(1)
    assert ((actual - expected).norm(dim=1) <= rtol * expected.norm(dim=1)).all()
    assert (expected.norm(dim=1) > 0).all()


def columns(product, images):
    units = torch.eye(images[0].numel(), dtype=images.dtype)
    rows = [product(u.expand(len(images), -1).view_as(images)).flatten(1) for u in units]
    return torch.stack(rows, 1)


class TestProduct:
    @piecewise_linear
    def test_both_are_the_hessian(self, model, images):
        expected = formed(model, images, LABELS)
        assert_close(columns(closed_form_hessian(model, images).product, images), expected)
        assert_close(columns(true_hessian(model, images, LABELS).product, images), expected)
        assert_close(formed(model, images, (LABELS + 1) % CLASSES), expected)  # for any labels
        difference = closed_form_difference(model, images, LABELS, generator=generator(0))
        assert not folding_of(model).nonlinear
        assert (difference < 1e-12).all()

    @pytest.mark.parametrize("model", CURVED.values(), ids=CURVED)
    def test_difference_in_a_curved_network(self, model, images):
        closed = columns(closed_form_hessian(model, images).product, images)
        expected = formed(model, images, LABELS)
        assert_close(columns(true_hessian(model, images, LABELS).product, images), expected)
        assert folding_of(model).nonlinear
        difference = closed_form_difference(model, images, LABELS, generator=generator(0))
        v = torch.randn(images.shape, generator=generator(0), dtype=torch.float64)
        v = closed @ v.flatten(1)[:, :, None]
        error = ((closed - expected) @ v).norm(dim=1) / (expected @ v).norm(dim=1)
        torch.testing.assert_close(difference, error[:, 0], rtol=1e-8, atol=0)
        assert (difference > 1e-3).all()

    @pytest.mark.parametrize(
        "model", [PIECEWISE["max-pooling"], CURVED["SiLU"]], ids=["ReLU", "SiLU"]
    )
    def test_network_decides_the_form(self, model, images):
        hessian = input_hessian(model, images, LABELS)
        assert_close(columns(hessian.product, images), formed(model, images, LABELS))
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), LABELS, reduction="sum"), x)
        assert_close(closed_form_hessian(model, images).gradient(LABELS), gradient)
        assert_close(true_hessian(model, images, LABELS).gradient(LABELS), gradient)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("margin", [1.0, 30.0, 60.0])
    def test_confident_network_keeps_its_digits(self, dtype, margin):
        """From a margin of 40 on, p = 1 - exp(-margin) is 1 even in double precision."""
        linear = nn.Linear(2, 2)
        linear.weight.data, linear.bias.data = torch.eye(2), torch.tensor([margin, 0.0])
        p = 1 / (1 + math.exp(margin))
        model = nn.Sequential(nn.Flatten(), linear).to(dtype).eval()
        hessian = closed_form_hessian(model, torch.zeros(1, 1, 1, 2, dtype=dtype))
        v = torch.tensor([[1.0, -1.0]], dtype=dtype)
        gradient = hessian.gradient(torch.tensor([0])).flatten(1)
        torch.testing.assert_close(gradient / p, -v)
        product = hessian.product(v.view(1, 1, 1, 2)).flatten(1)
        torch.testing.assert_close(product / (2 * p * (1 - p)), v)


class TestDecomposition:
    @pytest.mark.parametrize(
        ("name", "chunk", "keep_jacobian"),
        [("ReLU6", 1, False), ("leaky ReLU", 3, True), ("max-pooling", 3, False)]
        + [("batch normalisation", 1, True), ("ReLU", 9, False), ("ReLU", 9, True)],
    )
    def test_is_that_of_the_hessian(self, name, images, keep_jacobian, chunk):
        model, options = PIECEWISE[name], {"chunk": chunk, "keep_jacobian": keep_jacobian}
        pairs = decomposition(model, images, n_vectors=CLASSES, **options)
        matrix = formed(model, images, LABELS)
        values = torch.linalg.eigvalsh(matrix).flip(1)[:, :CLASSES]
        assert (pairs.values - values).abs().max() < 1e-10 * values.max()
        assert (pairs.values[:, -1] < 1e-10 * pairs.values[:, 0]).all()
        vectors = pairs.vectors.flatten(2)[:, : CLASSES - 1]
        assert_close(vectors @ matrix, vectors * pairs.values[:, : CLASSES - 1, None])
        gram = vectors @ vectors.mT
        torch.testing.assert_close(gram, torch.eye(CLASSES - 1, dtype=gram.dtype).expand_as(gram))
        assert not pairs.vectors[:, -1].any()

    @pytest.mark.parametrize("keep_jacobian", [False, True])
    def test_of_more_classes_than_a_block(self, keep_jacobian):
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 300)).double().eval()
        in_general_position(model.requires_grad_(False))
        image = randn(1, 3, 2, 2, seed=6)
        pairs = decomposition(model, image, n_vectors=12, keep_jacobian=keep_jacobian)
        (matrix,) = formed(model, image, torch.tensor([299]))
        values, vectors = (t.flip(-1) for t in torch.linalg.eigh(matrix))
        torch.testing.assert_close(pairs.values[0, :12], values, rtol=1e-10, atol=0)
        assert (pairs.values[0, 12:] < 1e-10 * values[0]).all()
        cosines = (pairs.vectors[0].flatten(1) * vectors.T).sum(1).abs()
        torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=1e-10, atol=0)

    def test_number_of_vectors(self, images):
        none, two, all_ = (
            decomposition(PIECEWISE["ReLU"], images, n_vectors=n) for n in (0, 2, None)
        )
        assert none.vectors.numel() == 0
        assert all_.vectors.shape == (3, CLASSES, 2, 6, 6)
        assert torch.equal(none.values, two.values)
        torch.testing.assert_close(all_.vectors[:, :2], two.vectors)


class TestLanczos:
    @piecewise_linear
    def test_finds_leading_eigenpairs(self, model, images):
        exact = decomposition(model, images, n_vectors=2)
        pairs = hessian_eigenpairs(closed_form_hessian(model, images), k=2, tolerance=1e-9)
        assert pairs.converged.all()
        assert (pairs.residual <= 1e-9).all()
        torch.testing.assert_close(pairs.values, exact.values[:, :2], rtol=1e-12, atol=0)
        cosine = (pairs.vectors.flatten(2) * exact.vectors.flatten(2)).sum(2).abs()
        torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=1e-9, atol=0)

    @pytest.mark.parametrize("k", [1, 3])
    def test_residual_is_of_the_result(self, images, k):
        hessian = true_hessian(CURVED["SiLU"], images, LABELS)
        matrix = formed(CURVED["SiLU"], images, LABELS)
        pairs = hessian_eigenpairs(hessian, k=k, max_products=6, tolerance=1e-14)
        assert not pairs.converged.any()
        assert (pairs.products == 6).all()
        vectors = pairs.vectors.flatten(2)
        norms = (vectors @ matrix - pairs.values[:, :, None] * vectors).norm(dim=2)
        assert (pairs.residual > 1e-8).any()
        # All six Ritz values of the Krylov space after six products.
        q = hessian_eigenpairs(hessian, k=6, max_products=6, tolerance=1e-30).vectors.flatten(2)
        largest = torch.linalg.eigvalsh(q @ matrix @ q.mT).abs().amax(1, keepdim=True)
        torch.testing.assert_close(pairs.residual, norms / largest, rtol=1e-5, atol=1e-13)

    def test_stops_each_image_by_itself(self, images):
        def pairs(x):
            return hessian_eigenpairs(closed_form_hessian(model, x), tolerance=1e-2)

        model = PIECEWISE["max-pooling"]
        together = pairs(images)
        assert len(set(together.products.tolist())) > 1
        for b in range(3):
            alone = pairs(images[b : b + 1])
            assert alone.products[0] == together.products[b]
            torch.testing.assert_close(alone.values[0], together.values[b], rtol=1e-12, atol=0)
            torch.testing.assert_close(alone.vectors[0], together.vectors[b], rtol=1e-8, atol=1e-10)

    def test_exhausted_space_goes_on_randomly(self):
        diagonal = torch.tensor([[5.0, 5.0, 0.0, 0.0, -7.0], [0.0] * 5]).double()
        start = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]] * 2).double()  # of two eigenvalues
        pairs = leading_eigenpairs(lambda v: diagonal * v, start, k=4, tolerance=1e-10)
        expected = torch.tensor([[5.0, 5.0, 0.0, 0.0], [0.0] * 4]).double()
        torch.testing.assert_close(pairs.values, expected, rtol=0, atol=1e-12)
        assert pairs.converged.all()
        gram = pairs.vectors @ pairs.vectors.mT
        torch.testing.assert_close(gram, torch.eye(4).double().expand(2, 4, 4))
        products = diagonal[:, None] * pairs.vectors
        torch.testing.assert_close(products, pairs.values[..., None] * pairs.vectors)

    def test_replaces_a_start_of_zeros(self):
        diagonal = torch.arange(6.0).double()[None]
        pairs = leading_eigenpairs(lambda v: diagonal * v, torch.zeros_like(diagonal))
        torch.testing.assert_close(pairs.values, torch.tensor([[5.0]]).double(), rtol=1e-5, atol=0)

    @pytest.mark.parametrize("scale", [2.0**-90, 2.0**90])
    def test_squares_out_of_range(self, scale):
        diagonal = torch.arange(6.0)[None]
        expected = leading_eigenpairs(lambda v: diagonal * v, 1 + diagonal)
        scaled = leading_eigenpairs(lambda v: scale * diagonal * v, scale * (1 + diagonal))
        assert torch.equal(scaled.values, expected.values * scale)
        assert torch.equal(scaled.residual, expected.residual)


def test_hessians_leave_the_network_alone(images):
    model = copy.deepcopy(PIECEWISE["batch normalisation"]).requires_grad_()
    x = images.clone().requires_grad_()
    with left_alone(model, x):
        results = [*decomposition(model, x)]
        for hessian in (closed_form_hessian(model, x), true_hessian(model, x, LABELS)):
            results += [*hessian_eigenpairs(hessian), hessian.gradient(LABELS), hessian.logits]
    assert not any(r.requires_grad for r in results)


LINEAR = nn.Flatten()  # logits that are the image
TWO = torch.zeros(3, 1, 1, 2)
DROPPING = Net(lambda net, x: F.dropout(x.flatten(1), 0.5))
NORMALISED = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten())
SQUARED = Net(lambda net, x: x.flatten(1).pow(2) + x.flatten(1))
LARGE, NAN = (torch.tensor(values).view(3, 1, 1, 1) for values in ([0, 1e30, 0], [torch.nan] * 3))
NO_BATCH = r"images: expected a batch .* got shape \(3,\); add the batch dimension"
ONE_CLASS = r"model: expected logits of shape \(3, classes\) .* got \(3, 1\)"
REFUSED = {
    "dropout": (DROPPING, TWO, "calls dropout with training=True in evaluation mode"),
    "batch": (NORMALISED, TWO, "BatchNorm2d '0' normalises by statistics of the batch"),
    "overflow": (SQUARED, TWO + LARGE, r"logits: expected finite values, got .* for image 1;"),
    "NaN": (LINEAR, TWO + NAN, r"images: expected finite .* for image 0 and 2 more;"),
    "bytes": (LINEAR, TWO.byte(), r"images: expected floating-point .* torch\.uint8"),
    "no batch": (LINEAR, TWO[:, 0, 0, 0], NO_BATCH),
    "one class": (LINEAR, TWO[..., :1], ONE_CLASS),
}


class TestRefused:
    def test_training_mode(self, images):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 3)).double()
        with pytest.raises(ValueError, match=r"Sequential is in training mode; call model\.eval"):
            closed_form_hessian(model, images)
        model.eval()
        closed_form_hessian(model, images)
        model[1].train()
        with pytest.raises(ValueError, match="but Dropout '1' is in training mode"):
            closed_form_hessian(model, images)

    @pytest.mark.parametrize(("model", "images", "message"), REFUSED.values(), ids=REFUSED)
    def test_unsuitable_networks_and_images(self, model, images, message):
        with pytest.raises(ValueError, match=message):
            closed_form_hessian(model.eval(), images)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([0, 1, 4], "labels: expected indices from 0 to 3, got 4"),
            ([0, 1], r"labels: expected integers .* of shape \(3,\), .* of shape \(2,\)"),
            ([0.0, 1.0, 2.0], r"labels: expected integers .* got torch\.float32"),
        ],
        ids=["above", "too few", "not integers"],
    )
    def test_labels_that_are_no_classes(self, images, labels, message):
        model = PIECEWISE["ReLU"]
        with pytest.raises(ValueError, match=message):
            true_hessian(model, images, torch.tensor(labels))
        with pytest.raises(ValueError, match=message):
            closed_form_hessian(model, images).gradient(torch.tensor(labels))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"k": 0}, "k: expected 1 to 72 eigenpairs, the size of the matrix, got 0"),
            ({"k": 73}, "k: expected 1 to 72"),
            ({"tolerance": 0.0}, "tolerance: expected a positive number"),
            ({"k": 3, "max_products": 2}, "max_products: expected at least k = 3"),
            ({"n_vectors": 5}, r"n_vectors: expected 0 to 4 \(classes\), got 5"),
            ({"chunk": 0}, "chunk: expected a positive number, got 0"),
        ],
        ids=str,
    )
    def test_settings_out_of_range(self, images, options, message):
        model = PIECEWISE["ReLU"]
        function = partial(hessian_eigenpairs, closed_form_hessian(model, images))
        if {"n_vectors", "chunk"} & options.keys():
            function = partial(decomposition, model, images)
        with pytest.raises(ValueError, match=message):
            function(**options)
