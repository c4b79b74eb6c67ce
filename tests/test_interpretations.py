import pytest
import torch
import torch.nn.functional as F

from reglib.saliency import choose_lambda1, surrogate_loss
from suite import metrics
from suite.metrics.display import normalised_for_display
from suite.metrics.saliency import SALIENCIES
from suite.papers.high_order_saliency import high_order
from suite.papers.interpretations import (
    clipped_to,
    first_and_second_order,
    interpretation_quality,
    lambda1_sweep,
)
from tests.tiny_pretrained import PHOTOGRAPHS, register, subject_of


@pytest.fixture
def subject(tmp_path, monkeypatch):
    register(tmp_path / "data", monkeypatch)
    return subject_of()


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
    monkeypatch.setattr("suite.papers.interpretations.loss_gradient", gradient)
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
