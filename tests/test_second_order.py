import pytest
import torch
import torch.nn.functional as F

from reglib.saliency import choose_lambda1, surrogate_loss
from suite import metrics
from suite.errors import UsageError
from suite.metrics.display import normalised_for_display
from suite.metrics.saliency import SALIENCIES
from suite.networks import network_inputs
from suite.papers.second_order import (
    MARGINS,
    WAYS,
    clipped_to,
    closed_form_error,
    exact_share,
    first_and_second_order,
    high_order,
    interpretation_quality,
    lambda1_sweep,
    largest_eigenvalue,
)
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


@pytest.mark.parametrize("way", WAYS)
def test_the_largest_eigenvalue_is_the_same_in_all_ways(subject, way):
    result = largest_eigenvalue(subject, way=way, n_images=2)
    expected = [torch.linalg.eigvalsh(dense(subject, index)[2])[-1] for index in range(2)]
    torch.testing.assert_close(
        result.per_image.double(), torch.stack(expected), rtol=1e-3, atol=1e-6
    )
    assert (result.tensors["seconds"] > 0).all()
    assert result.tensors["seconds"].shape == (2,)


def quality(subject, saliency, **settings):
    settings = {"n_images": 2, "step": 3, "patch": 4, "n_steps": 8, **settings}
    return interpretation_quality(subject, saliency=saliency, **settings)


@pytest.mark.parametrize("saliency", ["loss_gradient", "caso"])
def test_each_column_is_the_metric_of_the_map(subject, saliency):
    result = quality(subject, saliency, n_samples=2)
    for row, index in enumerate((0, 3)):
        images, _ = subject.test_images(1, first=index)
        confidence, predicted = subject.folded(images).softmax(1).max(1)
        maps = SALIENCIES[saliency](subject.folded, images, predicted)
        sizes = maps.abs().sum(1, keepdim=True)
        steps = {"n_steps": 8}
        inserted = metrics.insertion_curve(sizes, subject.folded, images, predicted, **steps)
        deleted = metrics.deletion_curve(sizes, subject.folded, images, predicted, **steps)
        effects = metrics.patch_effects(subject.folded, images, predicted, patch=4)
        expected = {
            "deletion": metrics.area_under_curve(deleted)[0],
            "faithfulness": metrics.faithfulness_estimate(F.avg_pool2d(sizes, 4), effects.abs())[0],
            "entropy": metrics.entropy(sizes)[0],
            "sparsity": (maps == 0).double().mean(),
            "confidence": confidence[0],
        }
        found = {name: tensor[row] for name, tensor in result.tensors.items()}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value.double(), rtol=1e-5, atol=1e-6)
        area = metrics.area_under_curve(inserted)[0]
        torch.testing.assert_close(result.per_image[row], area.double())
        drawn = (normalised_for_display(maps)[0] * 255).round().byte()
        assert torch.equal(found["maps"], drawn)
        assert found["max_sensitivity"] > 0
    assert quality(subject, saliency).tensors["max_sensitivity"].isnan().all()


def test_cafo_keeps_the_values_of_the_clipped_gradient(subject):
    result = quality(subject, "cafo", n_images=PHOTOGRAPHS, step=1)
    assert (result.tensors["sparsity"] > 0.5).all()
    assert torch.equal(result.tensors["overlap"], torch.ones(PHOTOGRAPHS).double())


def test_overlap_is_that_of_two_sets(subject, monkeypatch):
    half = torch.zeros(1, 3, 16, 16)
    half[:, :, :8] = 1.0

    def gradient(model, images, labels):
        flipped = half.flip(2).clone()
        flipped[:, 0] = half[:, 0]  # one colour of three agrees
        return flipped + 1e-3

    monkeypatch.setitem(SALIENCIES, "half", lambda model, images, labels: half)
    monkeypatch.setattr("suite.papers.second_order.loss_gradient", gradient)
    found = quality(subject, "half", n_images=1).tensors
    assert found["sparsity"].tolist() == [0.5]
    assert found["overlap"].tolist() == pytest.approx([128 / (384 + 384 - 128)])


def test_clipping_keeps_the_largest_values_of_each_map():
    maps = torch.tensor([[[1.0, -4.0], [2.0, 3.0]], [[0.0, 0.0], [0.0, 5.0]]])[:, None]
    clipped = clipped_to(maps, torch.tensor([0.5, 0.75]))
    assert clipped.tolist() == [[[[0, -4], [0, 3]]], [[[0, 0], [0, 5]]]]
    assert torch.equal(clipped_to(maps, torch.tensor([0.0, 0.0])), maps)


def test_the_most_and_the_least_confident_photograph_are_kept(subject):
    result = first_and_second_order(subject, n_images=PHOTOGRAPHS)
    everything = high_order(subject, n_images=PHOTOGRAPHS)
    confidence = everything.tensors["confidence"]
    index = [int(confidence.argmax()), int(confidence.argmin())]
    assert result.tensors["index"].tolist() == index
    torch.testing.assert_close(
        result.per_image.double(), everything.per_image[index], atol=1e-5, rtol=1e-3
    )
    assert torch.equal(result.tensors["images"], subject.data.test.images[index])
    maps = result.tensors["maps"]
    assert maps.shape == (2, 3, 16, 16)
    images, _ = subject.test_images(None)
    predicted = subject.folded(images).argmax(1)[index]
    first = SALIENCIES["loss_gradient"](subject.folded, images[index], predicted)
    drawn = (normalised_for_display(first) * 255).round().byte()
    assert (maps[:, 0].int() - drawn.int()).abs().max() <= 1
    second = SALIENCIES["caso_dense"](subject.folded, images[index], predicted)
    difference = F.normalize(second.flatten(1)) - F.normalize(first.flatten(1))
    cap = F.normalize(first.flatten(1)).view_as(first).abs().sum(1).flatten(1).quantile(0.99, 1)
    shown = (difference.view_as(first).abs().sum(1) / cap.view(-1, 1, 1)).clamp_max(1)
    assert (maps[:, 2].int() - (shown * 255).round().int()).abs().max() <= 1


def test_the_sweep_holds_what_the_choice_saw(subject):
    result = lambda1_sweep(subject, n_images=PHOTOGRAPHS, image=2)
    images, _ = subject.test_images(1, first=2)
    predicted = subject.folded(images).argmax(1)
    choice = choose_lambda1(surrogate_loss(subject.folded, images, predicted))
    kept = result.tensors
    assert torch.equal(kept["lambda1"], choice.grid.lambda1[:, 0])
    torch.testing.assert_close(kept["caso_sparsity"], choice.grid.sparsity[:, 0])
    assert result.per_image.tolist() == pytest.approx(choice.interpretation.lambda1.tolist())
    torch.testing.assert_close(
        kept["clipped_sparsity"].float(), kept["caso_sparsity"], rtol=0, atol=1e-6
    )
    for name in ("cafo", "caso", "clipped"):
        assert kept[f"{name}_maps"].shape == (len(kept["lambda1"]), 16, 16)
        assert kept[f"{name}_maps"].dtype == torch.uint8
    assert torch.equal(kept["image"], subject.data.test.images[2])
    assert kept["cafo_maps"][-1].max() == 0
