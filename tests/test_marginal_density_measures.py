import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from suite import data, metrics
from suite.data import ImageData, Source, Split, to_float
from suite.data.grouped import attach_null_blocks, null_block_masks
from suite.errors import UsageError
from suite.metrics.saliency import integrated_gradients
from suite.networks import build_network
from suite.papers import marginal_density_measures
from suite.papers.measure import check, measure
from suite.runs import compute
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Pretrained, Training
from tests.double_backward import Net

UNIT = Training(data="blocks", network="mlp", epochs=1, learning_rate=0.1, seed=0)


def blocks(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (20, 1, 28, 28), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(20) % 4)
    return attach_null_blocks(split, part=0), attach_null_blocks(split, part=1), "abcd"


@pytest.fixture
def subject(monkeypatch):
    for seed, name in enumerate(("blocks", "other blocks")):
        monkeypatch.setitem(data.SOURCES, name, Source(lambda root, seed=seed: blocks(seed), ""))
    data.loading._load.cache_clear()
    own = data.load_data("blocks")
    network = build_network("mlp", own.shape, 4, options={"hidden": (8,)}, seed=1).eval()
    yield EvaluatedModel(network, UNIT, own)
    data.loading._load.cache_clear()


def value(subject, metric, **settings):
    unit = Measurement(training=UNIT, metric=metric, settings=settings)
    check(unit)
    return measure(subject, unit)


def images_and_labels(subject, count=5):
    test = subject.data.test
    return to_float(test.images[:count], (0, 1)), test.labels[:count]


def shifted(network, shift):
    return Net(lambda net, x: (y := net.network(x)) + shift(x, y), network=network).eval()


def assert_value(expected, subject, metric, **settings):
    result = value(subject, metric, n_images=5, **settings)
    torch.testing.assert_close(result.per_image, expected)
    return result.tensors


class TestGradients:
    def test_leakage_under_each_setting(self, subject):
        (x, y), network = images_and_labels(subject), subject.network
        masks = null_block_masks(subject.data.test)[:5]
        centred = shifted(network, lambda x, logits: -logits.mean(1, keepdim=True))
        normalised = shifted(network, lambda x, logits: -logits.logsumexp(1, keepdim=True))
        for settings, arguments in (
            ({}, (network, x, y)),
            ({"relative": True}, (network, x, y)),
            ({"alone": True}, (network, x * masks, y)),
            ({"other": True}, (network, x, (y + 1) % 4)),
            ({"shift": "centred"}, (centred, x, y)),
            ({"shift": "log_probability"}, (normalised, x, y)),
        ):
            maps = integrated_gradients(*arguments)
            expected = metrics.feature_leakage(maps, masks, relative="relative" in settings)
            assert_value(expected, subject, "feature_leakage", **settings)

    def test_leakage_beside_the_lines(self, subject):
        (x, y), settings = images_and_labels(subject), {"beside_lines": True, "relative": True}
        half = metrics.saliency_maps(subject.network, "logit_gradient")(x, y)
        half *= null_block_masks(subject.data.test)[:5]
        expected = (half * (x == 0)).flatten(1).norm(dim=1) / half.flatten(1).norm(dim=1)
        assert 0.1 < expected.min() < expected.max() < 1
        assert_value(expected, subject, "feature_leakage", saliency="logit_gradient", **settings)
        assert_value(torch.zeros(5), subject, "feature_leakage", **settings)

    def test_removal_from_a_linear_network(self, subject):
        (x, y), block = images_and_labels(subject, 20), null_block_masks(subject.data.test)
        model = EvaluatedModel(linear().eval(), UNIT, subject.data)
        parts = model.network[1].weight[y].view_as(x).detach() * x
        changes = {n: (parts * m).sum((1, 2, 3)) for n, m in (("block", block), ("digit", ~block))}
        for feature, change in changes.items():
            classes = [change[y == label].numpy() for label in range(4)]
            for statistic, expected in {
                "size": change.abs(),
                "share": change.abs() / (changes["block"].abs() + changes["digit"].abs()),
                "range": torch.tensor([np.ptp(c) for c in classes]),
                "spread": torch.tensor([np.std(c) / np.abs(c).mean() for c in classes]),
            }.items():
                settings = {"n_images": 20, "feature": feature, "statistic": statistic}
                result = value(model, "removal", **settings).per_image
                torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)

    def test_changes_use_the_seed(self, subject):
        (x, y), noise = images_and_labels(subject), {"noise_std": 0.1}
        for name, tensors in {"gradient_change": (x, y), "density_change": (x,)}.items():
            source = torch.Generator().manual_seed(3)
            expected = getattr(metrics, name)(subject.network, *tensors, generator=source, **noise)
            assert_value(expected, subject, name, seed=3, **noise)

    def test_parts(self, subject):
        x, y = images_and_labels(subject)
        for part in ("whole", "shift", "centred"):
            expected = metrics.density_gradients(subject.network, x, part=part)
            assert_value(expected, subject, "density_gradient", part=part)
        parts = metrics.logit_gradients(subject.network, x, y)
        for part, expected in parts.items():
            kept = assert_value(expected, subject, "logit_gradient", part=part)
            assert set(kept) == (set(parts) if part == "cosine" else set())


class TestCurves:
    def test_value_is_area(self, subject):
        images, labels = images_and_labels(subject)
        by_setting = {"saliency": "integrated_gradients"}
        for metric, saliency, given, curve in (
            ("insertion_auc", *by_setting.values(), by_setting, metrics.insertion_curve),
            ("pixel_perturbation", "smooth_grad", {}, metrics.pixel_perturbation),
        ):
            maps = metrics.saliency_maps(subject.folded, saliency)(images, labels)
            maps = maps.abs() if metric == "pixel_perturbation" else maps
            curves = curve(maps, subject.network, images, labels, n_steps=4)
            area = metrics.area_under_curve(curves)
            kept = assert_value(area, subject, metric, **given, n_steps=4)
            torch.testing.assert_close(kept["curves"], curves)

    def test_centred_perturbation_ignores_shifts(self, subject):
        settings = {"n_images": 5, "n_steps": 4, "over": "mean", "centred": True}
        network = shifted(subject.network, lambda x, logits: x.mean((2, 3)))
        moved = EvaluatedModel(network, UNIT, subject.data)
        areas = [value(s, "pixel_perturbation", **settings).per_image for s in (subject, moved)]
        torch.testing.assert_close(*areas, rtol=0.01, atol=1e-4)

    def test_fractional_insertion_divides_by_mean_change(self, subject):
        images, labels = images_and_labels(subject)
        order = integrated_gradients(subject.network, images, labels).sum(1).flatten(1)
        order = order.argsort(dim=1, descending=True)[:, : 56 * 28 // 4]
        first = torch.zeros(5, 56 * 28).scatter(1, order, 1.0).view(5, 1, 56, 28)
        black, quarter, whole = (
            (logits - logits.mean(1, keepdim=True)).gather(1, labels[:, None])
            for logits in (subject.network(images * part) for part in (0, first, 1))
        )
        settings = {"n_images": 5, "n_steps": 4, "score": "logit", "fractional": True}
        result = value(subject, "insertion_auc", saliency="integrated_gradients", **settings)
        expected = torch.cat([black - black, quarter - black, whole - black], 1)
        expected = (expected / (whole - black).mean()).detach()
        torch.testing.assert_close(result.tensors["curves"][:, [0, 1, 4]], expected)


def test_worst_group_accuracy_is_the_lowest(subject):
    images, labels = images_and_labels(subject, 20)
    correct = (subject.network(images).argmax(1) == labels).double()
    expected = [correct[subject.data.test.groups == g].mean().item() for g in (0, 1)]
    result = value(subject, "worst_group_accuracy")
    assert result.per_image.tolist() == [pytest.approx(min(expected))]
    assert result.tensors["accuracies"].tolist() == pytest.approx(expected)


class TestOutOfDistribution:
    def test_auroc_of_each_score(self, subject):
        known = subject.network(images_and_labels(subject, 20)[0]).detach()
        other = subject.network(to_float(blocks(1)[1].images, (0, 1))).detach()
        scores = {"log_density": (x.logsumexp(1) for x in (known, other))}
        scores["max_probability"] = (x.softmax(1).amax(1) for x in (known, other))
        expected = {name: metrics.auroc(*pair) for name, pair in scores.items()}
        for score, auroc in (expected | {"logit": metrics.mean_auroc(known, other)}).items():
            result = value(subject, "ood_auroc", data="other blocks", score=score)
            torch.testing.assert_close(result.per_image, auroc)

    def test_other_data_may_have_more_classes(self, subject, monkeypatch, store, here):
        train, test, _ = blocks(2)
        read = train, Split(test.images, test.labels + 4), "abcdefgh"
        monkeypatch.setitem(data.SOURCES, "many", Source(lambda root: read, ""))
        unit = Measurement(training=UNIT, metric="ood_auroc", settings={"data": "many"})
        assert 0 <= compute([unit], store=store, resources=here)["value"].item() <= 1

    def test_training_data_are_refused_before_training(self, subject, monkeypatch, store, here):
        monkeypatch.setitem(data.SOURCES, "by another name", data.SOURCES["blocks"])
        for name in ("blocks", "by another name"):
            unit = Measurement(training=UNIT, metric="ood_auroc", settings={"data": name})
            message = rf"data: expected other images .* got {name!r}, which are those of 'blocks'"
            with pytest.raises(UsageError, match=message):
                measure(subject, unit)
            with pytest.raises(UsageError, match=message):
                compute([unit], store=store, resources=here)
        assert not list(store.folder.rglob("*.safetensors"))


def test_group_trainings_have_their_columns(subject, store, here):
    units = [UNIT, dataclasses.replace(UNIT, group_dro=0.1, balance_groups=True)]
    table = compute(units, store=store, resources=here)
    assert (table.balance_groups[1], table.group_dro[1]) == (True, 0.1)
    plain = compute(units[:1], store=store, resources=here)
    assert not {"group_dro", "balance_groups"} & set(plain.columns)


def test_unknown_names_are_refused(subject):
    for text, metric, settings in (
        ("score 'logits'", "ood_auroc", {"data": "other blocks", "score": "logits"}),
        ("part 'shfit'", "density_gradient", {"n_images": 2, "part": "shfit"}),
        ("form", "training_steps", {"n_steps": 1, "strength": 0.1, "form": "direct"}),
        ("over", "pixel_perturbation", {"n_images": 2, "n_steps": 2, "over": "all"}),
    ):
        with pytest.raises(UsageError, match=f"unknown {text}"):
            value(subject, metric, **settings)


def test_data_without_groups_are_refused(subject):
    test = dataclasses.replace(subject.data.test, groups=None)
    plain = EvaluatedModel(subject.network, UNIT, ImageData(test, test, tuple("abcd"), ""))
    with pytest.raises(UsageError, match="data set 'blocks': expected groups of images"):
        value(plain, "worst_group_accuracy")
    with pytest.raises(ValueError, match="expected images of BlockMNIST"):
        value(plain, "feature_leakage", n_images=2)


def linear(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(56 * 28, 4), *more)


def far_apart(unit, images):
    network = linear(nn.BatchNorm1d(4))
    network[2].weight.data.fill_(6)
    return network


def overflowing(unit, images):
    network = linear()
    network[1].bias.data.fill_(200)
    return network


class TestTrainingSteps:
    @pytest.fixture
    def steps(self, subject, monkeypatch):
        def run(form, initial=marginal_density_measures.initial_network, unit=UNIT):
            monkeypatch.setattr(marginal_density_measures, "initial_network", initial)
            model = EvaluatedModel(subject.network, unit, subject.data)
            return value(model, "training_steps", form=form, n_steps=4, strength=0.1)

        return run

    @pytest.mark.parametrize("form", ["naive", "stable", "efficient"])
    def test_naive_differs_with_batch_statistics(self, steps, form):
        slow = dataclasses.replace(UNIT, learning_rate=1e-3)  # so that logits stay small
        result = steps(form, unit=slow)
        assert result.per_image.tolist() == [0.0] * 4
        torch.testing.assert_close(result.tensors["norm"], result.tensors["true"])
        assert result.tensors["finite"].tolist() == [1.0] * 4
        result = steps(form, far_apart)
        ratio = result.tensors["norm"] / result.tensors["true"]
        assert result.per_image.tolist() == [float(form == "naive")] * 4
        assert (ratio > 2).all() if form == "naive" else (ratio - 1).abs().max() < 1e-4

    def test_steps_after_overflow_are_useless(self, steps):
        naive = steps("naive", overflowing)
        assert naive.per_image.tolist() == [1.0] * 4
        assert naive.tensors["loss"][1:].isnan().all()
        assert steps("efficient", overflowing).per_image.sum() == 0

    def test_pretrained_network_is_refused(self, steps):
        with pytest.raises(UsageError, match="expected a network that is trained here, got 'their"):
            steps("stable", unit=Pretrained(data="blocks", network="theirs"))


def test_ascent_raises_the_logit_of_each_class(subject):
    settings = {"n_classes": 8, "step_size": 0.5}
    first, last = (value(subject, "activation_ascent", n_steps=n, **settings) for n in (1, 10))
    images = last.tensors["images"]
    assert (images.dtype, images.shape) == (torch.uint8, (4, *subject.data.shape))
    assert (last.per_image > first.per_image).all()
    logits = subject.network(to_float(images, (0, 1))).diagonal()
    torch.testing.assert_close(logits.detach(), last.per_image, rtol=0, atol=0.05)
