import pytest
import torch
import torch.nn.functional as F

from suite.errors import UsageError
from suite.networks import network_inputs
from suite.papers.high_order_saliency import MARGINS, closed_form_error, exact_share, high_order
from tests.tiny_pretrained import CLASSES, PHOTOGRAPHS, register, subject_of


@pytest.fixture
def subject(tmp_path, monkeypatch):
    register(tmp_path / "data", monkeypatch)
    return subject_of()


def dense(subject, index, n_classes=CLASSES):
    """Return confidence, gradient and Hessian of a photograph in double precision, by autograd."""
    network = subject.folded.double()
    images = network_inputs("tiny", subject.data.test.images[index : index + 1]).double()
    kept = network(images)[0].topk(n_classes).indices

    def loss(x):
        return F.cross_entropy(network(x.view_as(images))[:, kept], torch.tensor([0]))

    point = images.flatten()
    gradient = torch.autograd.functional.jacobian(loss, point)
    hessian = torch.autograd.functional.hessian(loss, point)
    confidence = network(images)[0, kept].softmax(0)[0]
    subject.folded.float()
    return confidence, gradient, hessian


@pytest.mark.parametrize("n_classes", [None, 3])
def test_numbers_agree_with_dense_matrices(subject, n_classes):
    result = high_order(subject, n_images=3, first=1, step=2, k=2, n_classes=n_classes)
    for row, index in enumerate((1, 3, 5)):
        confidence, g, h = dense(subject, index, n_classes or CLASSES)
        values, vectors = torch.linalg.eigh(h)
        found = {name: tensor[row].double() for name, tensor in result.tensors.items()}
        identity = torch.eye(len(g), dtype=torch.float64)
        maps = [
            F.normalize(torch.linalg.solve((values[-1] + 2 * m) * identity - h, g), dim=0)
            for m in MARGINS
        ]
        expected = {
            "confidence": confidence,
            "share": values[-1] ** 2 / (values[-2:] ** 2).sum(),
            "cosine": F.cosine_similarity(g, vectors[:, -1], 0).abs(),
            "moved": (maps[0] - maps[1]).norm(),
        }
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-4)
        torch.testing.assert_close(found["eigenvalues"], values[-2:].flip(0), rtol=1e-3, atol=1e-5)
        distance = (maps[0] - F.normalize(g, dim=0)).norm()
        torch.testing.assert_close(result.per_image[row], distance, rtol=2e-3, atol=2e-4)
        assert found["predicted"] == subject.folded(subject.test_images(1, first=index)[0]).argmax()
        assert found["labels"] == subject.data.test.labels[index]


def test_two_classes_give_rank_one_and_parallel_maps(subject):
    result = high_order(subject, n_images=PHOTOGRAPHS, n_classes=2)
    assert result.tensors["eigenvalues"].shape == (PHOTOGRAPHS, 1)
    torch.testing.assert_close(result.tensors["cosine"], torch.ones(PHOTOGRAPHS).double())
    assert result.per_image.max() < 1e-4


@pytest.mark.parametrize("n_classes", [1, CLASSES + 1])
def test_a_number_of_classes_that_there_is_not_is_refused(subject, n_classes):
    with pytest.raises(UsageError, match=rf"n_classes: expected 2 to 6 .* got {n_classes}"):
        high_order(subject, n_images=1, n_classes=n_classes)


def test_the_exact_share_takes_all_eigenvalues(subject):
    result = exact_share(subject, n_images=2, step=3)
    for row, index in enumerate((0, 3)):
        values = torch.linalg.eigvalsh(dense(subject, index)[2])
        share = values[-1] ** 2 / (values**2).sum()
        torch.testing.assert_close(result.per_image[row], share, rtol=1e-4, atol=0)
    assert result.tensors["eigenvalues"].shape == (2, CLASSES)


def test_the_closed_form_holds_for_this_network(subject):
    assert closed_form_error(subject, n_images=PHOTOGRAPHS).per_image.max() < 1e-4
