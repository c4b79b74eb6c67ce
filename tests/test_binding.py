import inspect

import pytest
import torch

from reglib.double_backward import fast_double_backward
from suite import metrics
from suite.data import ImageData, Split, to_float
from suite.networks import build_network
from suite.papers.binding import area, bind
from suite.training.evaluated import EvaluatedModel, Result
from suite.units import Training
from tests.small_batches import generator

UNIT = Training(data="grey", network="mlp", epochs=1, learning_rate=0.1, seed=0)
N = 3


@pytest.fixture
def subject():
    images = torch.randint(256, (5, 1, 6, 6), generator=generator(1), dtype=torch.uint8)
    split = Split(images, torch.arange(5) % 4)
    network = build_network("mlp", (1, 6, 6), 4, options={"hidden": (8,)}, seed=1).eval()
    return EvaluatedModel(network, UNIT, ImageData(split, split, tuple("abcd"), ""))


@pytest.fixture
def batch(subject):
    test = subject.data.test
    return to_float(test.images[:N], (0, 1)), test.labels[:N]


def test_batches_shrink_as_images_grow(subject):
    sizes = []
    subject.folded.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    subject.folded.forward = lambda x: x.flatten(1)[:, :4]
    for size, batches in ((6, [5]), (512, [2, 2, 1]), (1024, [1] * 5)):
        sizes.clear()
        images = torch.randint(256, (5, 1, size, size), generator=generator(2), dtype=torch.uint8)
        expected = to_float(images.flatten(1)[:, :4], (0, 1))
        torch.testing.assert_close(subject.logits(images), expected)
        assert sizes == batches


def test_seed_decides_noise_saliency_decides_maps(subject, batch):
    maps_of = metrics.saliency_maps(subject.folded, "logit_gradient")
    for metric in (metrics.local_lipschitz_estimate, metrics.max_sensitivity):
        for seed in (0, 3):
            settings = {"saliency": "logit_gradient", "n_images": N, "n_samples": 2}
            settings |= {"seed": seed} if seed else {}
            expected = metric(maps_of, *batch, n_samples=2, generator=generator(seed))
            torch.testing.assert_close(bind(metric)(subject, **settings).per_image, expected)


def test_methods_and_scores_share_perturbed_logits(subject, batch):
    bound = bind(metrics.faithfulness_estimate)
    for score in ("probability", "confidence", "logit"):
        effects = metrics.pixel_effects(fast_double_backward(subject.folded), *batch, score=score)
        for saliency in ("logit_gradient", "loss_gradient"):
            maps = metrics.saliency_maps(subject.folded, saliency)(*batch)
            result = bound(subject, saliency=saliency, n_images=N, score=score)
            expected = metrics.faithfulness_estimate(maps, effects)
            torch.testing.assert_close(result.per_image, expected)
    assert len(subject._cache) == 1


def test_signature_joins_metric_and_result(subject):
    def metric(images, generator, *, power, baseline=0.0):
        return images.flatten(1).mean(1) ** power + baseline

    def double(values, *, factor=2):
        return Result(factor * values)

    bound = bind(metric, double)
    assert str(inspect.signature(bound)) == "(subject, *, n_images, seed=0, power, factor=2)"
    means = to_float(subject.data.test.images, (0, 1)).flatten(1).mean(1)
    torch.testing.assert_close(bound(subject, power=2, n_images=N).per_image, 2 * means[:N] ** 2)
    result = bound(subject, power=1, factor=3, n_images=2)
    torch.testing.assert_close(result.per_image, 3 * means[:2])


def test_area_keeps_its_curves():
    curves = torch.tensor([[0.0, 1.0, 1.0]])
    result = area(curves)
    assert (result.per_image.tolist(), result.tensors) == ([0.75], {"curves": curves})
