"""Measurements of the marginal-density chapter give what their functions give."""

import dataclasses

import pytest
import torch

from suite import data, metrics
from suite.data import ImageData, Source, Split, to_float
from suite.data.grouped import block_images, null_block_masks
from suite.errors import UsageError
from suite.metrics.saliency import integrated_gradients
from suite.networks import build_network
from suite.papers.marginal_density_measures import training_steps
from suite.papers.measure import check, measure
from suite.runs import compute
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Pretrained, Training

UNIT = Training(data="blocks", network="mlp", epochs=1, learning_rate=0.1, seed=0)
NOISE = {"noise_std": 0.1, "n_samples": 2, "seed": 3}


def blocks(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (20, 1, 28, 28), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(20) % 4)
    return (*block_images(split, split, "abcd")[:2], "abcd")


@pytest.fixture
def subject(monkeypatch):
    for seed, name in enumerate(("blocks", "other blocks")):
        source = Source(lambda root, seed=seed: blocks(seed), "", "", "")
        monkeypatch.setitem(data.SOURCES, name, source)
    data.loading._load.cache_clear()
    own = data.load_data("blocks")
    network = build_network("mlp", own.shape, 4, options={"hidden": (8,)}, seed=1).eval()
    yield EvaluatedModel(network, UNIT, own)
    data.loading._load.cache_clear()


def value(subject, metric, **settings):
    unit = Measurement(training=UNIT, metric=metric, settings=settings)
    check(unit)
    return measure(subject, unit)


def shown(subject, count):
    test = subject.data.test
    return to_float(test.images[:count], (0, 1)), test.labels[:count]


def test_feature_leakage_is_that_of_the_null_blocks(subject):
    images, labels = shown(subject, 5)
    maps = integrated_gradients(subject.network, images, labels)
    masks = null_block_masks(subject.data.test)[:5]
    for relative in (False, True):
        expected = metrics.feature_leakage(maps, masks, relative=relative)
        found = value(subject, "feature_leakage", n_images=5, relative=relative)
        torch.testing.assert_close(found.per_image, expected)


def test_insertion_auc_is_the_area_under_its_curves(subject):
    images, labels = shown(subject, 5)
    maps = integrated_gradients(subject.network, images, labels)
    curves = metrics.insertion_curve(maps, subject.network, images, labels, n_steps=4)
    found = value(subject, "insertion_auc", saliency="integrated_gradients", n_images=5, n_steps=4)
    torch.testing.assert_close(found.tensors["curves"], curves)
    torch.testing.assert_close(found.per_image, metrics.area_under_curve(curves))


def test_pixel_perturbation_takes_maps_without_sign(subject):
    images, labels = shown(subject, 5)
    maps = metrics.saliency_maps(subject.folded, "smooth_grad")(images, labels).abs()
    curves = metrics.pixel_perturbation(maps, subject.network, images, labels, n_steps=4)
    found = value(subject, "pixel_perturbation", n_images=5, n_steps=4)
    torch.testing.assert_close(found.tensors["curves"], curves)


def test_pixel_perturbation_of_centred_logits_sees_no_shift(subject):
    class Shifted(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x) + x.flatten(1).mean(1, keepdim=True)

    settings = {"n_images": 5, "n_steps": 4, "over": "mean", "centred": True}
    moved = EvaluatedModel(Shifted(subject.network).eval(), UNIT, subject.data)
    found = [value(s, "pixel_perturbation", **settings).per_image for s in (subject, moved)]
    torch.testing.assert_close(*found, rtol=0.01, atol=1e-4)


def test_noise_of_a_measurement_comes_from_its_seed(subject):
    images, labels = shown(subject, 5)
    settings = {"noise_std": 0.1, "n_samples": 2}

    def source():
        return torch.Generator().manual_seed(3)

    expected = metrics.gradient_change(
        subject.network, images, labels, generator=source(), **settings
    )
    found = value(subject, "gradient_change", n_images=5, **NOISE)
    torch.testing.assert_close(found.per_image, expected)
    expected = metrics.density_change(subject.network, images, generator=source(), **settings)
    found = value(subject, "density_change", n_images=5, **NOISE)
    torch.testing.assert_close(found.per_image, expected)


@pytest.mark.parametrize("part", ["whole", "shift", "centred"])
def test_density_gradient_has_its_parts(subject, part):
    expected = metrics.density_gradients(subject.network, shown(subject, 5)[0], part=part)
    found = value(subject, "density_gradient", n_images=5, part=part)
    torch.testing.assert_close(found.per_image, expected)


def test_worst_group_accuracy_is_the_lowest_of_the_groups(subject):
    images, labels = shown(subject, 20)
    correct = (subject.network(images).argmax(1) == labels).double()
    groups = subject.data.test.groups
    expected = [correct[groups == g].mean().item() for g in (0, 1)]
    found = value(subject, "worst_group_accuracy")
    assert found.per_image.tolist() == [pytest.approx(min(expected))]
    assert found.tensors["accuracies"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("score", [*metrics.OOD_SCORES, "logit"])
def test_ood_auroc_compares_with_the_other_data(subject, score):
    known = subject.network(shown(subject, 20)[0]).detach()
    foreign = subject.network(to_float(blocks(1)[1].images, (0, 1))).detach()
    if score == "logit":
        expected = metrics.logit_auroc(known, foreign)
    else:
        expected = metrics.auroc(*(metrics.OOD_SCORES[score](f) for f in (known, foreign)))
    found = value(subject, "ood_auroc", data="other blocks", score=score)
    torch.testing.assert_close(found.per_image, expected)


def test_foreign_data_may_have_more_classes(subject, monkeypatch, store, here):
    def read(root):
        train, test, _ = blocks(2)
        return train, Split(test.images, test.labels + 4), "abcdefgh"

    monkeypatch.setitem(data.SOURCES, "many", Source(read, "", "", ""))
    assert value(subject, "ood_auroc", data="many").per_image.shape == (20,)
    unit = Measurement(training=UNIT, metric="ood_auroc", settings={"data": "many"})
    table = compute([unit], store=store, resources=here)
    assert 0 <= table["value"].item() <= 1


def test_trainings_with_groups_have_columns_for_them(subject, store, here):
    units = [UNIT, dataclasses.replace(UNIT, group_dro=0.1, balance_groups=True)]
    table = compute(units, store=store, resources=here)
    assert table.balance_groups.tolist()[1] is True
    assert table.group_dro.tolist()[1] == 0.1
    plain = compute(units[:1], store=store, resources=here)
    assert not {"group_dro", "balance_groups"} & set(plain.columns)


@pytest.mark.parametrize("name", ["blocks", "blocks by another name"])
def test_foreign_data_that_are_those_of_the_training_are_refused(subject, name, monkeypatch):
    monkeypatch.setitem(data.SOURCES, "blocks by another name", data.SOURCES["blocks"])
    with pytest.raises(UsageError, match=r"data: expected other images .* those of 'blocks'"):
        value(subject, "ood_auroc", data=name)


def test_foreign_data_of_the_training_are_refused_before_anything_is_trained(
    subject, monkeypatch, store, here
):
    monkeypatch.setitem(data.SOURCES, "the same", data.SOURCES["blocks"])
    unit = Measurement(training=UNIT, metric="ood_auroc", settings={"data": "the same"})
    with pytest.raises(UsageError, match=r"got 'the same', which are those of 'blocks'"):
        compute([unit], store=store, resources=here)
    assert not list(store.folder.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("metric", "settings", "text"),
    [
        ("ood_auroc", {"data": "other blocks", "score": "logits"}, "unknown score 'logits'"),
        ("density_gradient", {"n_images": 2, "part": "shfit"}, "unknown part 'shfit'"),
        ("training_steps", {"n_steps": 1, "strength": 0.1, "form": "direct"}, "unknown form"),
        ("pixel_perturbation", {"n_images": 2, "n_steps": 2, "over": "all"}, "unknown over"),
    ],
)
def test_unknown_names_are_refused(subject, metric, settings, text):
    with pytest.raises(UsageError, match=text):
        value(subject, metric, **settings)


def test_data_without_groups_have_no_worst_group_and_no_null_block(subject):
    test = dataclasses.replace(subject.data.test, groups=None)
    plain = EvaluatedModel(subject.network, UNIT, ImageData(test, test, tuple("abcd"), ""))
    with pytest.raises(UsageError, match="data set 'blocks': expected groups of images"):
        value(plain, "worst_group_accuracy")
    with pytest.raises(ValueError, match="expected images of BlockMNIST"):
        value(plain, "feature_leakage", n_images=2)


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("centred", lambda logits: logits.mean(1, keepdim=True)),
        ("log_probability", lambda logits: logits.logsumexp(1, keepdim=True)),
    ],
)
def test_leakage_may_be_that_of_shifted_logits(subject, name, shift):
    class Shifted(torch.nn.Module):
        def forward(self, x):
            logits = subject.network(x)
            return logits - shift(logits)

    maps = integrated_gradients(Shifted().eval(), *shown(subject, 5))
    masks = null_block_masks(subject.data.test)[:5]
    leakage = value(subject, "feature_leakage", n_images=5, shift=name)
    torch.testing.assert_close(leakage.per_image, metrics.feature_leakage(maps, masks))


STEPS = {"n_steps": 4, "strength": 0.1, "batch_size": 8}


@pytest.mark.parametrize("form", ["naive", "stable", "efficient"])
def test_without_batch_normalisation_every_form_follows_logsumexp(subject, form):
    slow = dataclasses.replace(UNIT, learning_rate=1e-3)  # so that logits stay small
    model = EvaluatedModel(subject.network, slow, subject.data)
    found = value(model, "training_steps", form=form, **STEPS)
    assert found.per_image.tolist() == [0.0] * 4
    torch.testing.assert_close(found.tensors["norm"], found.tensors["true"])
    assert found.tensors["finite"].tolist() == [1.0] * 4


class Gap(torch.nn.Module):
    """Logits of one network whose level lies far apart in the two halves of a batch."""

    def __init__(self):
        super().__init__()
        self.flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
        self.normalised = torch.nn.BatchNorm1d(4)

    def forward(self, images):
        return 6 * self.normalised(self.flat(images))


@pytest.mark.parametrize(("form", "useless"), [("naive", 1.0), ("stable", 0.0), ("efficient", 0.0)])
def test_under_batch_statistics_the_naive_form_is_another_quantity(
    subject, form, useless, monkeypatch
):
    def initial(unit, images):
        torch.manual_seed(0)
        network = Gap()
        network(torch.rand(4, *images.shape))
        return network

    monkeypatch.setattr("suite.papers.marginal_density_measures.initial_network", initial)
    found = value(subject, "training_steps", form=form, **STEPS)
    assert found.per_image.tolist() == [useless] * 4
    ratio = found.tensors["norm"] / found.tensors["true"]
    assert (ratio > 2).all() if useless else (ratio - 1).abs().max() < 1e-4


def test_steps_after_a_weight_is_lost_count_as_useless(subject, monkeypatch):
    def initial(unit, images):
        network = build_network("mlp", images.shape, 4, options={"hidden": (8,)}, seed=1)
        with torch.no_grad():
            [m for m in network.modules() if isinstance(m, torch.nn.Linear)][-1].bias.fill_(200)
        return network

    monkeypatch.setattr("suite.papers.marginal_density_measures.initial_network", initial)
    naive = value(subject, "training_steps", form="naive", **STEPS)
    assert naive.per_image.tolist() == [1.0] * 4
    assert naive.tensors["loss"][1:].isnan().all()
    assert value(subject, "training_steps", form="efficient", **STEPS).per_image.sum() == 0


def test_leakage_of_the_block_alone_is_that_of_an_image_with_nothing_else(subject):
    images, labels = shown(subject, 5)
    masks = null_block_masks(subject.data.test)[:5]
    maps = integrated_gradients(subject.network, images * masks, labels)
    expected = metrics.feature_leakage(maps, masks)
    found = value(subject, "feature_leakage", n_images=5, alone=True)
    torch.testing.assert_close(found.per_image, expected)


def test_leakage_may_be_that_of_another_class(subject):
    images, labels = shown(subject, 5)
    maps = integrated_gradients(subject.network, images, (labels + 1) % 4)
    expected = metrics.feature_leakage(maps, null_block_masks(subject.data.test)[:5])
    found = value(subject, "feature_leakage", n_images=5, other=True)
    torch.testing.assert_close(found.per_image, expected)


@pytest.mark.parametrize("part", metrics.LogitGradients._fields)
def test_logit_gradients_have_their_parts(subject, part):
    images, labels = shown(subject, 5)
    expected = metrics.logit_gradients(subject.network, images, labels)
    found = value(subject, "logit_gradient", n_images=5, part=part)
    torch.testing.assert_close(found.per_image, getattr(expected, part))
    assert set(found.tensors) == (set(expected._fields) if part == "cosine" else set())


def test_insertion_as_a_fraction_is_over_the_mean_change(subject):
    images, labels = shown(subject, 5)
    settings = {"saliency": "integrated_gradients", "n_images": 5, "n_steps": 4, "score": "logit"}
    maps = integrated_gradients(subject.network, images, labels)
    whole, black = (
        (logits - logits.mean(1, keepdim=True)).gather(1, labels[:, None])
        for logits in (subject.network(images), subject.network(torch.zeros_like(images)))
    )
    order = maps.sum(1).flatten(1).argsort(dim=1, descending=True)[:, : 56 * 28 // 4]
    first = torch.zeros(5, 56 * 28).scatter(1, order, 1.0).view(5, 1, 56, 28)
    quarter = subject.network(images * first)
    quarter = (quarter - quarter.mean(1, keepdim=True)).gather(1, labels[:, None])
    found = value(subject, "insertion_auc", **settings, fractional=True)
    expected = (
        torch.cat([black - black, quarter - black, whole - black], 1) / (whole - black).mean()
    )
    torch.testing.assert_close(found.tensors["curves"][:, [0, 1, 4]], expected.detach())
    curves = found.tensors["curves"]
    torch.testing.assert_close(found.per_image, metrics.area_under_curve(curves))


def test_a_network_trained_by_others_has_no_training_step(subject):
    unit = Pretrained(data="blocks", network="theirs")
    model = EvaluatedModel(subject.network, unit, subject.data)
    with pytest.raises(UsageError, match="expected a network that is trained here, got 'theirs'"):
        training_steps(model, form="stable", n_steps=1, strength=0.1)


def test_ascent_raises_the_logit_of_each_class(subject):
    settings = {"n_classes": 8, "step_size": 0.5}
    first = value(subject, "activation_ascent", n_steps=1, **settings)
    last = value(subject, "activation_ascent", n_steps=10, **settings)
    images = last.tensors["images"]
    assert images.dtype == torch.uint8
    assert images.shape == (4, *subject.data.shape)
    assert (last.per_image > first.per_image).all()
    logits = subject.network(to_float(images, (0, 1))).diagonal()
    torch.testing.assert_close(logits.detach(), last.per_image, rtol=0, atol=0.05)
