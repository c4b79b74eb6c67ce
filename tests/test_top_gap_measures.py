from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from suite import metrics
from suite.attacks import fgsm, judge_attack, pgd
from suite.data import ImageData, Split, to_float
from suite.errors import RunFailed, UsageError
from suite.networks import build_network
from suite.papers import top_gap_measures
from suite.papers.measure import METRICS, check
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Training

OPTIONS = {"k": 0.1, "width": 3, "backbone_options": {"width": 2, "blocks": [1, 1]}}
N = 7


def data(masks=True):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (9, 1, 16, 16), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(9) % 3, images[:, 0] > 128 if masks else None)
    return ImageData(split, split, ("a", "b", "c"), "")


def unit(**changes):
    fields = {"data": "d", "network": "top_gap", "network_options": OPTIONS, "epochs": 1}
    fields |= {"learning_rate": 0.01, "seed": 0}
    return Training(**fields | changes)


def subject(training=None, images=None):
    u = training or unit()
    network = build_network(u.network, (1, 16, 16), 3, options=u.network_options, seed=1)
    return EvaluatedModel(network.eval(), u, images or data())


def linear(seed, scale=1.0):
    """Return a linear network, whose predictions small changes of an image flip."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 3)).eval()
    for parameter in network.parameters():
        parameter.data *= scale
    return EvaluatedModel(network, unit(seed=seed), data())


def images():
    return to_float(data().test.images[:N], (0, 1)), data().test.labels[:N]


def values(name, **settings):
    model = subject()
    check(Measurement(training=model.unit, metric=name, settings={"n_images": N} | settings))
    return METRICS[name](model, n_images=N, **settings)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(top_gap_measures, "IMAGES", 3)


def test_class_map_metrics_in_batches():
    network, masks = subject().network, data().test.masks[:N]
    with torch.no_grad():
        maps = network.class_activation_maps(*images())
    sparsity = values("class_map_sparsity")
    torch.testing.assert_close(sparsity.tensors["maps"], maps)
    torch.testing.assert_close(sparsity.per_image, maps.mean((1, 2)))
    torch.testing.assert_close(values("mask_iou").per_image, metrics.largest_mask_iou(maps, masks))
    beyond = metrics.mask_iou_beyond_others(maps, masks, images()[1])
    torch.testing.assert_close(values("mask_iou_beyond_others").per_image, beyond, equal_nan=True)
    for part in ("centre", "corner", "distance"):
        expected = metrics.erf_distance(network.class_maps, images()[0], part=part)
        torch.testing.assert_close(values("erf_distance", part=part).per_image, expected)


def test_robust_accuracy_follows_the_attack():
    settings = {"steps": 3, "relative_step": 0.5}
    network, source = subject().network, torch.Generator().manual_seed(0)
    attacked = pgd(network, images()[0], epsilon=0.1, generator=source, **settings)
    expected = judge_attack(network, images()[0], attacked, images()[1])
    pgd_settings = {"attack": "pgd", "epsilon": 0.1, "attack_settings": settings}
    unchanged = values("robust_accuracy", **pgd_settings)
    torch.testing.assert_close(unchanged.tensors["images"], attacked)
    assert torch.equal(unchanged.per_image, expected.unchanged.double())
    correct = values("robust_accuracy", counts="correct", keep_images=False, **pgd_settings)
    assert torch.equal(correct.per_image, expected.correct.double())
    assert not torch.equal(correct.per_image, unchanged.per_image)
    assert correct.tensors == {}
    assert values("robust_accuracy", attack="fgsm", epsilon=1e-6).per_image.all()


def test_scale_reveals_masked_gradients():
    sure = linear(1, scale=1e6)  # cross-entropy has no gradient in single precision
    settings = {"attack": "pgd", "epsilon": 0.5, "n_images": N, "attack_settings": {"steps": 20}}
    masked = METRICS["robust_accuracy"](sure, **settings).per_image
    scaled = METRICS["robust_accuracy"](sure, scale=1e-6, **settings).per_image
    assert torch.equal(scaled, METRICS["robust_accuracy"](linear(1), **settings).per_image)
    assert masked.sum() > scaled.sum()


def test_metrics_share_attacked_images(monkeypatch):
    attack = Mock(wraps=fgsm)
    monkeypatch.setitem(top_gap_measures.ATTACKS, "fgsm", attack)
    network, settings = subject(), {"attack": "fgsm", "n_images": N}
    for counts in ("unchanged", "correct"):
        METRICS["robust_accuracy"](network, epsilon=0.1, counts=counts, **settings)
    assert attack.call_count == 1
    METRICS["robust_accuracy"](network, epsilon=0.2, **settings)
    assert attack.call_count == 2


def test_transfer_takes_images_of_another_network():
    network, other = linear(1), linear(2)
    network.related = Mock(return_value=other)
    settings = {"attack": "fgsm", "epsilon": 0.2, "n_images": N, "source": unit(seed=2).identity}
    result = METRICS["robust_accuracy"](network, **settings)
    network.related.assert_called_once_with(unit(seed=2))
    direct, attacked = (fgsm(n.network, images()[0], epsilon=0.2) for n in (network, other))
    torch.testing.assert_close(result.tensors["images"], attacked)
    assert not torch.allclose(attacked, direct)
    with torch.no_grad():
        before, after = (network.network(x).argmax(1) for x in (images()[0], attacked))
    assert torch.equal(result.per_image, (before == after).double())
    assert 0 < result.per_image.sum() < N
    with pytest.raises(RunFailed, match="without a way to load others"):
        METRICS["robust_accuracy"](subject(), **settings)


def test_effective_receptive_field_of_a_location():
    maps_of, (inputs, _) = subject().network.class_maps, images()
    height, width = maps_of(inputs).shape[-2:]
    assert height == width > 3
    middle = int(0.5 * (height - 1))
    sizes = metrics.effective_receptive_field(maps_of, inputs, location=(middle, 0)).abs().sum(1)
    result = values("effective_receptive_field", location=[0.5, 0.0])
    torch.testing.assert_close(result.tensors["field"], sizes.mean(0))
    torch.testing.assert_close(result.per_image, sizes.mean((1, 2)))


def test_networks_and_data_that_are_refused():
    plain = subject(unit(network="resnet", network_options=OPTIONS["backbone_options"]))
    unmasked, shifted = subject(images=data(masks=False)), subject(unit(pixel_range=(-1, 1)))
    attack, field = {"attack": "fgsm", "epsilon": 0.1}, {"location": [0, 0]}
    without_maps = r"a network with class maps, .*'resnet'"
    for network, name, settings, message in (
        *((plain, n, {}, without_maps) for n in ("class_map_sparsity", "mask_iou", "erf_distance")),
        (plain, "effective_receptive_field", field, without_maps),
        (unmasked, "mask_iou", {}, "expected a data set with masks, got 'd'"),
        (unmasked, "mask_iou_beyond_others", {}, "_others: expected a data set with masks"),
        (shifted, "robust_accuracy", attack, r"images in \[0, 1\], got one .*\(-1, 1\)"),
    ):
        with pytest.raises(UsageError, match=message):
            METRICS[name](network, n_images=N, **settings)


def test_masks_of_another_size_are_refused():
    images, network = data(), subject().network
    top_gap_measures.check_network(network, unit(), images, ["mask_iou", "accuracy"])
    masks = torch.ones(9, 8, 12, dtype=torch.bool)
    images = replace(images, test=replace(images.test, masks=masks))
    with pytest.raises(UsageError, match=r"masks of 16 x 16 pixels, as the images, got 8 x 12"):
        top_gap_measures.check_network(network, unit(), images, ["mask_iou"])


def test_names_of_settings_are_checked():
    for name, value, message in (
        ("attack", "pdg", "unknown attack 'pdg': did you mean 'pgd'"),
        ("counts", "right", "unknown counts 'right'"),
        ("attack_settings", {"step": 3}, "of attack 'pgd' 'step': did you mean 'steps'"),
        ("attack_settings", {"generator": 3}, "unknown setting of attack 'pgd' 'generator'"),
    ):
        with pytest.raises(UsageError, match=message):
            values("robust_accuracy", **{"attack": "pgd", "epsilon": 0.1, name: value})
    with pytest.raises(UsageError, match="unknown part 'center': did you mean 'centre'"):
        values("erf_distance", part="center")
