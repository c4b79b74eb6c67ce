import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from suite.errors import UsageError
from suite.metrics.class_maps import normalised_for_display
from suite.metrics.saliency import SALIENCIES
from suite.networks.pretrained import network_inputs
from suite.papers import second_order
from tests.tiny_pretrained import CLASSES, PHOTOGRAPHS, register, subject_of

TENTH = second_order.MARGINS.index(10.0)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        register(tmp_path_factory.mktemp("second_order") / "data", patch)
        yield subject_of()


def inputs_of(subject, index):
    return network_inputs("tiny", subject.data.test.images[index : index + 1]).double()


@cache
def dense(subject, index, n_classes=CLASSES):
    """Return confidence, gradient and Hessian of a photograph in double precision, by autograd."""
    network = copy.deepcopy(subject.folded).double()
    images = inputs_of(subject, index)
    classes = network(images)[0].topk(n_classes).indices

    def loss(x):
        return F.cross_entropy(network(x.view_as(images))[:, classes], torch.tensor([0]))

    point = images.flatten()
    gradient = torch.autograd.functional.jacobian(loss, point)
    hessian = torch.autograd.functional.hessian(loss, point, vectorize=True)
    return network(images)[0, classes].softmax(0)[0], gradient, hessian


def solve_caso(g, h, margin):
    twice = torch.linalg.eigvalsh(h)[-1] + 2 * margin
    return torch.linalg.solve(twice * torch.eye(len(g), dtype=g.dtype) - h, g)


class TestHighOrder:
    @pytest.mark.parametrize("n_classes", [None, 3])
    def test_numbers_match_dense_matrices(self, subject, n_classes):
        which = {"n_images": 3, "first": 1, "step": 2, "n_classes": n_classes}
        result = second_order.high_order(subject, **which)
        changes = {"norms", "true_caso", "first_cafo"}
        assert changes & result.tensors.keys() == (set() if n_classes else changes)
        for row, index in enumerate((1, 3, 5)):
            confidence, g, h = dense(subject, index, n_classes or CLASSES)
            (values, vectors), n = torch.linalg.eigh(h), (n_classes or CLASSES) - 1
            numbers = {name: tensor[row].double() for name, tensor in result.tensors.items()}
            maps = [F.normalize(solve_caso(g, h, m), dim=0) for m in second_order.MARGINS]
            expected = {
                "confidence": confidence,
                "cosine": F.cosine_similarity(g, vectors[:, -1], 0).abs(),
                "differences": torch.stack([(v - F.normalize(g, dim=0)).norm() for v in maps]),
                "eigenvalues": values[-n:].flip(0),
            }
            for name, value in expected.items():
                torch.testing.assert_close(numbers[name], value, rtol=2e-3, atol=2e-4)
            share = values[-1] ** 2 / (values[-n:] ** 2).sum()
            torch.testing.assert_close(result.per_image[row], share, rtol=2e-3, atol=0)
            assert (numbers["residuals"] < 1e-3).all()
            image, _ = subject.test_images(1, first=index)
            assert numbers["predicted"] == subject.folded(image).argmax()
            assert numbers["labels"] == subject.data.test.labels[index]

    def test_loss_changes_match_dense_matrices(self, subject):
        result = second_order.high_order(subject, n_images=2, first=1, step=3)
        for row, index in enumerate((1, 4)):
            _, g, h = dense(subject, index)
            numbers = {name: tensor[row] for name, tensor in result.tensors.items()}
            seconds = torch.stack([solve_caso(g, h, margin) for margin in second_order.MARGINS])
            lengths = seconds.norm(dim=1)
            changes = lengths[:, None] * F.normalize(g, dim=0)
            image = inputs_of(subject, index)
            moved = [image, *(image + d.view_as(image) for d in (*changes, *seconds))]
            label = subject.folded(image.float()).argmax(1)
            logits = copy.deepcopy(subject.folded).double()(torch.cat(moved))
            losses = F.cross_entropy(logits, label.expand(len(moved)), reduction="none")
            true_cafo, true_caso = (losses[1:] - losses[0]).chunk(2)
            expected = {
                "norms": lengths,
                "first_cafo": changes @ g,
                "second_cafo": changes @ g + ((changes @ h) * changes).sum(1) / 2,
                "true_cafo": true_cafo,
                "true_caso": true_caso,
            }
            for name, value in expected.items():
                torch.testing.assert_close(numbers[name], value.detach(), rtol=5e-3, atol=1e-4)

    def test_columns_of_margins(self, subject):
        numbers = second_order.high_order(subject, n_images=2, margins=(10.0, 1000.0, 5.0)).tensors
        standard = second_order.high_order(subject, n_images=2).tensors
        for name in ("differences", "norms", "residuals", "true_caso"):
            assert numbers[name].shape == (2, 3)
            tenth = standard[name][:, TENTH]
            torch.testing.assert_close(numbers[name][:, 0], tenth, rtol=1e-6, atol=1e-9)
        # A larger margin shortens the map, and turns it towards the gradient.
        for name in ("differences", "norms"):
            assert (numbers[name][:, 2] > numbers[name][:, 0]).all()
            assert (numbers[name][:, 0] > numbers[name][:, 1]).all()

    def test_two_classes_give_rank_one(self, subject):
        result = second_order.high_order(subject, n_images=PHOTOGRAPHS, n_classes=2)
        assert result.tensors["eigenvalues"].shape == (PHOTOGRAPHS, 1)
        torch.testing.assert_close(result.tensors["cosine"], torch.ones(PHOTOGRAPHS).double())
        assert result.tensors["differences"].max() < 1e-4
        assert (result.per_image == 1).all()

    @pytest.mark.parametrize("n_classes", [1, CLASSES + 1])
    def test_wrong_number_of_classes_is_refused(self, subject, n_classes):
        with pytest.raises(UsageError, match=rf"n_classes: expected 2 to 6 .* got {n_classes}"):
            second_order.high_order(subject, n_images=1, n_classes=n_classes)


class TestOtherMetrics:
    def test_exact_share_of_all_eigenvalues(self, subject):
        result = second_order.exact_share(subject, n_images=2, step=3)
        for row, index in enumerate((0, 3)):
            values = torch.linalg.eigvalsh(dense(subject, index)[2])
            share = values[-1] ** 2 / (values**2).sum()
            torch.testing.assert_close(result.per_image[row], share, rtol=1e-4, atol=0)
        assert result.tensors["eigenvalues"].shape == (2, CLASSES)

    def test_map_error_of_the_solver(self, subject, monkeypatch):
        def lengthen(loss, **options):
            solution = solve(loss, **options)
            return solution._replace(maps=1.25 * solution.maps)

        assert second_order.exact_share(subject, n_images=4).tensors["map_error"].max() < 1e-3
        solve = second_order.caso_converged
        monkeypatch.setattr(second_order, "caso_converged", lengthen)
        error = second_order.exact_share(subject, n_images=4).tensors["map_error"]
        torch.testing.assert_close(error, torch.full((4,), 0.25).double(), rtol=0, atol=1e-3)

    def test_closed_form_error_is_small(self, subject):
        assert second_order.closed_form_error(subject, n_images=PHOTOGRAPHS).per_image.max() < 1e-4

    def test_most_and_least_confident_photograph(self, subject):
        result = second_order.first_and_second_order(subject, n_images=PHOTOGRAPHS)
        numbers = second_order.high_order(subject, n_images=PHOTOGRAPHS).tensors
        confidence = numbers["confidence"]
        index = [int(confidence.argmax()), int(confidence.argmin())]
        assert result.tensors["index"].tolist() == index
        differences = numbers["differences"][index, TENTH]
        torch.testing.assert_close(result.per_image.double(), differences, atol=1e-5, rtol=1e-3)
        assert torch.equal(result.tensors["images"], subject.data.test.images[index])
        maps = result.tensors["maps"].int()
        assert maps.shape == (2, 3, 16, 16)
        images, _ = subject.test_images(None)
        predicted = subject.folded(images).argmax(1)[index]
        first, second = (
            SALIENCIES[name](subject.folded, images[index], predicted)
            for name in ("loss_gradient", "caso_dense")
        )
        pixels = (normalised_for_display(first) * 255).round().int()
        assert (maps[:, 0] - pixels).abs().max() <= 1
        unit_maps = [F.normalize(m.flatten(1)).view_as(m) for m in (first, second)]
        cap = unit_maps[0].abs().sum(1).flatten(1).quantile(0.99, 1).view(-1, 1, 1)
        difference = ((unit_maps[1] - unit_maps[0]).abs().sum(1) / cap).clamp_max(1)
        assert (maps[:, 2] - (difference * 255).round().int()).abs().max() <= 1
