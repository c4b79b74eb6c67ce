import copy
import dataclasses
import warnings
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reglib.saliency import Settings, cafo, caso, choose_lambda1, surrogate_loss
from suite import metrics
from suite.data import class_names
from suite.errors import UsageError
from suite.metrics.class_maps import normalised_for_display
from suite.metrics.saliency import SALIENCIES, caso_converged
from suite.papers import group_features
from suite.papers.group_features import compute_maps, group_objective, lambda1_sweep, on_object
from suite.training.evaluated import EvaluatedModel
from tests.tiny_pretrained import CLASSES, PHOTOGRAPHS, SIDE, UNIT, register, subject_of

CANDIDATES = ["caso", "cafo", "clipped_loss_gradient", "clipped_logit_gradient", "random"]


@pytest.fixture
def subject(tmp_path, monkeypatch):
    register(tmp_path / "data", monkeypatch)
    return subject_of()


def photograph(subject, index):
    images, _ = subject.test_images(1, first=index)
    confidence, predicted = subject.folded(images).double().softmax(1).max(1)
    return images, predicted, confidence


def quality(subject, *saliencies, **settings):
    settings = {"n_images": 2, "step": 3, "n_steps": 8, **settings}
    return group_features.map_quality(subject, saliencies=saliencies, **settings)


def pixels(maps):
    return (normalised_for_display(maps)[0] * 255).round().byte()


def rank(sizes, ties):
    order = np.lexsort((ties.flatten().numpy(), sizes.flatten().numpy()))
    return torch.tensor(order.argsort()).float().view_as(sizes)


def chosen_map(subject, images, predicted, method=caso_converged):
    loss = surrogate_loss(subject.folded, images, predicted)
    return loss, choose_lambda1(loss, method=method, factor=2.0).interpretation


class TestQuality:
    def test_columns_match_metrics(self, subject):
        names = ["loss_gradient", "caso", "clipped_logit_gradient"]
        result = quality(subject, *names, keep_maps=True)
        assert "maps" not in quality(subject, "loss_gradient", n_images=1).tensors
        assert result.tensors["maps"].shape == (2, 3, SIDE, SIDE)
        for row, index in enumerate((0, 3)):
            images, predicted, confidence = photograph(subject, index)
            gradient = SALIENCIES["loss_gradient"](subject.folded, images, predicted)
            torch.testing.assert_close(result.per_image[row], confidence[0])
            assert result.tensors["predicted"][row] == predicted
            by_method = compute_maps(subject.folded, images, predicted, names)
            n_marked = int((by_method[1] != 0).any(1).sum())  # by CASO
            assert n_marked < SIDE**2
            counts = [k * n_marked // 8 for k in range(9)]
            for column, maps in enumerate(by_method):
                order = rank(*(m.abs().sum(1, keepdim=True) for m in (maps, gradient)))
                arguments = order, subject.folded, images, predicted
                curve = metrics.insertion_curve(*arguments, n_steps=counts, baseline=0.5)
                columns = "insertion", "sparsity", "maps"
                area, sparsity, drawn = (result.tensors[name][row, column] for name in columns)
                expected = metrics.area_under_curve(curve)[0].double()
                torch.testing.assert_close(area, expected, rtol=1e-5, atol=1e-6)
                assert float(sparsity) == pytest.approx(float((maps == 0).double().mean()))
                assert torch.equal(drawn, pixels(maps))

    def test_loss_gradient_breaks_ties(self, subject, monkeypatch):
        monkeypatch.setitem(SALIENCIES, "even", lambda _, images, labels: torch.ones_like(images))
        tensors = quality(subject, "even", "loss_gradient", "logit_gradient", n_images=3).tensors
        even, loss, logit = tensors["insertion"].unbind(1)
        torch.testing.assert_close(even, loss, rtol=1e-9, atol=0)
        assert (even != logit).all()

    def test_cafo_overlaps_the_clipped_gradient(self, subject):
        tensors = quality(subject, "cafo", n_images=PHOTOGRAPHS, step=1).tensors
        assert (tensors["sparsity"] > 0.5).all()
        assert torch.equal(tensors["overlap"], torch.ones(PHOTOGRAPHS, 1).double())

    def test_overlap_of_two_sets(self, subject, monkeypatch):
        half = torch.zeros(1, 3, SIDE, SIDE)
        half[:, :, :8] = 1.0

        def gradient(model, images, labels):
            flipped = half.flip(2).clone()
            flipped[:, 0] = half[:, 0]  # one colour of three agrees
            return flipped + 1e-3

        monkeypatch.setitem(SALIENCIES, "half", lambda model, images, labels: half)
        monkeypatch.setattr(group_features, "loss_gradient", gradient)
        tensors = quality(subject, "half", n_images=1).tensors
        assert tensors["sparsity"].tolist() == [[0.5]]
        assert tensors["overlap"].flatten().tolist() == pytest.approx([128 / (384 + 384 - 128)])

    def test_clipped_map_is_sparse_as_caso(self, subject):
        images, predicted, _ = photograph(subject, 1)
        names = ["clipped_logit_gradient", "caso", "logit_gradient"]
        clipped, caso_map, gradient = compute_maps(subject.folded, images, predicted, names)
        k = int((caso_map != 0).sum())
        assert 0 < k < images.numel() / 4
        gradient = gradient.flatten()
        largest = torch.zeros_like(gradient).index_fill(0, gradient.abs().topk(k).indices, 1)
        assert torch.equal(clipped.flatten(), gradient * largest)

    def test_each_method_is_computed_once(self, subject, monkeypatch):
        methods = {name: Mock(wraps=SALIENCIES[name]) for name in ("caso", "logit_gradient")}
        monkeypatch.setattr(group_features, "SALIENCIES", SALIENCIES | methods)
        images, predicted, _ = photograph(subject, 0)
        names = ["clipped_logit_gradient", "logit_gradient", "clipped_loss_gradient", "caso"]
        assert len(compute_maps(subject.folded, images, predicted, names)) == 4
        assert [method.call_count for method in methods.values()] == [1, 1]

    def test_unknown_method_is_refused(self, subject):
        with pytest.raises(UsageError, match="unknown saliency 'cafoo': did you mean 'cafo'"):
            quality(subject, "caso", "clipped_cafoo", n_images=1)


def candidates_of(subject, monkeypatch, **settings):
    """Return the result of `group_objective`, and the changes to each image, (candidates, d)."""
    changes = []
    loss_change = group_features.loss_change

    def record(model, images, index, change):
        changes.append(change[0].double())
        return loss_change(model, images, index, change)

    monkeypatch.setattr(group_features, "loss_change", record)
    result = group_objective(subject, **settings)
    n = len(CANDIDATES)
    return result, [torch.stack(changes[i : i + n]) for i in range(0, len(changes), n)]


class TestObjective:
    def test_groups_differ_in_loss_alone(self, subject, monkeypatch):
        result, changes = candidates_of(subject, monkeypatch, n_images=4, first=1, step=2)
        values = {"true_caso": result.per_image, **result.tensors}
        assert len(changes) == 4
        for row, vectors in enumerate(changes):
            k, norm = result.tensors["k"][row], result.tensors["norm"][row]
            assert 0 < k < 3 * SIDE**2 / 4
            assert (vectors != 0).sum(1).tolist() == [round(float(k))] * len(CANDIDATES)
            norms = norm.expand(len(CANDIDATES))
            torch.testing.assert_close(vectors.norm(dim=1), norms, rtol=1e-5, atol=0)
            images, predicted, confidence = photograph(subject, 1 + 2 * row)
            maps = chosen_map(subject, images, predicted)[1].maps.flatten().double()
            torch.testing.assert_close(vectors[0], maps, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(result.tensors["confidence"][row], confidence[0])
            network = copy.deepcopy(subject.folded).double()
            for name, vector in zip(CANDIDATES, vectors, strict=True):
                pair = torch.cat([images.double(), images + vector.view_as(images)])
                losses = F.cross_entropy(network(pair), predicted.expand(2), reduction="none")
                value, change = values[f"true_{name}"][row], losses[1] - losses[0]
                torch.testing.assert_close(value, change, rtol=1e-3, atol=1e-5)

    def test_groups_hold_largest_values(self, subject, monkeypatch):
        result, (vectors,) = candidates_of(subject, monkeypatch, n_images=1, first=2)
        images, predicted, _ = photograph(subject, 2)
        _, first, clipped, logit, random = vectors
        k = int(result.tensors["k"])
        by_loss, by_logit = (
            SALIENCIES[name](subject.folded, images, predicted).flatten().double()
            for name in ("loss_gradient", "logit_gradient")
        )
        for vector, slope in ((clipped, by_loss), (logit, -by_logit)):
            largest = slope.abs().topk(k).indices.sort().values
            assert torch.equal(vector.nonzero()[:, 0], largest)
            assert F.cosine_similarity(vector[largest], slope[largest], 0) > 1 - 1e-6
        sizes = by_loss.abs()
        expected = by_loss.sign() * (sizes - sizes.sort().values[-k - 1]).clamp_min(0)
        assert F.cosine_similarity(first, expected, 0) > 1 - 1e-6
        assert not torch.equal(random != 0, clipped != 0)

    def test_random_group_follows_seed(self, subject):
        def changes(**settings):
            return group_objective(subject, **settings).tensors["true_random"]

        together = changes(n_images=2, first=1, seed=1)
        torch.testing.assert_close(changes(n_images=1, first=2, seed=1)[0], together[1])
        assert changes(n_images=1, first=2, seed=2)[0] != together[1]

    def test_authors_ten_steps(self, subject):
        result = group_objective(subject, n_images=3)
        for row in range(3):
            loss, best = chosen_map(subject, *photograph(subject, row)[:2])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # some have not converged
                settings = Settings(step=0.1, max_iterations=10)
                ten = caso(loss, lambda1=best.lambda1, settings=settings)
            maps, best_maps = ten.maps.flatten(), best.maps.flatten()
            for name, number in (
                ("ten_cosine", F.cosine_similarity(maps, best_maps, 0)),
                ("ten_norm", maps.norm() / best_maps.norm()),
                ("ten_sparsity", (maps == 0).double().mean()),
            ):
                value = result.tensors[name][row]
                torch.testing.assert_close(value, number.double(), rtol=1e-4, atol=1e-6)


class OneClass(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, CLASSES), requires_grad=False)
        self.bias = nn.Parameter(5 * F.one_hot(torch.tensor(index), CLASSES).float())

    def forward(self, images):
        return images.mean((2, 3)) @ self.weight + self.bias


@pytest.fixture
def scenes(subject, monkeypatch):
    """Return a function that measures scenes, and returns the canvases that maps were made of."""
    canvases = []

    def mark_left(model, images, labels):
        canvases.append(images)
        return (torch.arange(images.shape[-1]) < images.shape[-1] // 2).expand_as(images).float()

    monkeypatch.setitem(SALIENCIES, "left", mark_left)
    monkeypatch.setitem(SALIENCIES, "right", lambda *batch: mark_left(*batch).flip(3))
    monkeypatch.setitem(SALIENCIES, "even", lambda m, images, _: -torch.ones_like(images))
    monkeypatch.setitem(SALIENCIES, "not_grey", lambda m, images, _: (images != 0.5).float())
    data = dataclasses.replace(subject.data, classes=class_names()[:CLASSES])

    def measure(index, data=data, **settings):
        return on_object(EvaluatedModel(OneClass(index).eval(), UNIT, data), **settings), canvases

    measure.data = data
    return measure


def resize(pixels, side):
    return F.interpolate(pixels[None].float() / 255, (side, side), mode="bilinear", antialias=True)


class TestScenes:
    @pytest.mark.parametrize("names_first", [True, False])
    @pytest.mark.parametrize(("left", "right", "first"), [(2, 6, 2), (7, 3, 3)])
    def test_pair_is_two_photographs(self, scenes, left, right, first, names_first):
        settings = {"saliencies": ["left", "right", "even"], "n_images": 1, "first": first}
        is_left = (first == left) == names_first
        predicted = (left if is_left else right) % CLASSES  # photograph n is of class n % CLASSES
        result, canvases = scenes(predicted, scene="pair", **settings)
        side = 5 * SIDE // 7
        halves = [resize(scenes.data.test.images[index], side) for index in (left, right)]
        assert canvases[-1].shape == (1, 3, side, 2 * side)
        torch.testing.assert_close(canvases[-1], torch.cat(halves, 3))
        assert result.tensors["share"].tolist() == [[is_left, not is_left, 0.5]]
        assert result.per_image.tolist() == pytest.approx([1 / (1 + 5 * np.exp(-5))])

    def test_pair_has_different_classes(self, scenes):
        labels = scenes.data.test.labels.clone()
        labels[6] = labels[2]
        test = dataclasses.replace(scenes.data.test, labels=labels)
        data = dataclasses.replace(scenes.data, test=test)
        settings = {"scene": "pair", "saliencies": ["left"], "n_images": 1, "first": 2}
        _, canvases = scenes(2, data=data, **settings)
        half = resize(data.test.images[7], 5 * SIDE // 7)
        torch.testing.assert_close(canvases[-1][..., half.shape[-1] :], half)
        alike = dataclasses.replace(test, labels=0 * labels)
        with pytest.raises(UsageError, match="expected images of two classes or more for pairs"):
            scenes(0, data=dataclasses.replace(scenes.data, test=alike), **settings)

    @pytest.mark.parametrize("i", range(4))
    def test_box_is_a_quarter(self, scenes, i):
        methods = ["left", "even", "not_grey"]
        result, canvases = scenes(i, scene="box", saliencies=methods, n_images=1, first=i)
        half = SIDE // 2
        padding = [half * (i % 2), half * (1 - i % 2), half * (i // 2), half * (1 - i // 2)]
        box = resize(scenes.data.test.images[i], half)
        torch.testing.assert_close(canvases[-1], F.pad(box, padding, value=0.5))
        assert result.tensors["share"].tolist() == [[0.0 if i % 2 else 0.5, 0.25, 1.0]]

    def test_unnamed_object_has_no_share(self, scenes):
        settings = {"saliencies": ["left", "even"], "n_images": 3, "first": 1}
        boxes, _ = scenes(2, scene="box", **settings)
        nan = pytest.approx(np.nan, nan_ok=True)
        assert boxes.tensors["share"].tolist() == [[nan, nan], [0.5, 0.25], [nan, nan]]
        assert boxes.per_image.isfinite().all()
        pairs, canvases = scenes(5, scene="pair", **settings)  # classes 1 and 5, 2 and 0, 3 and 1
        assert pairs.tensors["share"].tolist() == [[1.0, 0.5], [nan, nan], [nan, nan]]
        assert len(canvases) == 2  # maps are computed only where an object is named

    def test_classes_match_imagenet_by_name(self, scenes):
        names = class_names()
        assert group_features.imagenet_indices([names[7], names[0], names[217]]) == [7, 0, 217]
        assert group_features.imagenet_indices(names) == list(range(1000))
        data = dataclasses.replace(scenes.data, classes=(names[5], *names[1:5], names[0]))
        settings = {"scene": "box", "saliencies": ["even"], "n_images": 1}
        result, _ = scenes(5, data=data, **settings)
        assert result.tensors["share"].tolist() == [[0.25]]
        result, _ = scenes(0, data=data, **settings)
        assert result.tensors["share"].isnan().all()

    def test_classes_of_other_data_are_refused(self, subject):
        with pytest.raises(UsageError, match="classes: expected names of ImageNet's, got 0, 1, 2"):
            on_object(subject, scene="box", saliencies=["caso"], n_images=1)


class TestSweep:
    def test_strengths_around_the_chosen_one(self, subject):
        result = lambda1_sweep(subject, n_images=PHOTOGRAPHS, image=2)
        tensors = result.tensors
        images, predicted, _ = photograph(subject, 2)
        chosen = chosen_map(subject, images, predicted)[1].lambda1
        assert result.per_image.tolist() == pytest.approx(chosen.tolist())
        strengths = chosen * torch.tensor([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8])
        torch.testing.assert_close(tensors["lambda1"], strengths)
        for name, method in (("cafo", cafo), ("caso", caso_converged)):
            loss, best = chosen_map(subject, images, predicted, method)
            torch.testing.assert_close(tensors[f"{name}_chosen"], best.lambda1)
            for k, strength in enumerate(strengths):
                alone = method(loss, lambda1=float(strength))
                torch.testing.assert_close(tensors[f"{name}_sparsity"][k], alone.sparsity[0])
                assert (tensors[f"{name}_maps"][k] - pixels(alone.maps).int()).abs().max() <= 1
        assert 0.75 <= tensors["caso_sparsity"][3] < 1
        assert tensors["caso_sparsity"][0] < tensors["caso_sparsity"][-1]
        assert torch.equal(tensors["image"], subject.data.test.images[2])

    def test_clipped_gradient_is_sparse_as_caso(self, subject):
        tensors = lambda1_sweep(subject, n_images=PHOTOGRAPHS, image=5).tensors
        sparsity = tensors["clipped_sparsity"].float()
        torch.testing.assert_close(sparsity, tensors["caso_sparsity"], rtol=0, atol=1e-6)
        images, predicted, _ = photograph(subject, 5)
        gradient = SALIENCIES["loss_gradient"](subject.folded, images, predicted)
        for k, maps in enumerate(tensors["clipped_maps"]):
            clipped = group_features.keep_largest(gradient, tensors["caso_sparsity"][k : k + 1])
            assert torch.equal(maps, pixels(clipped))
