"""Captum and Quantus against the numbers here, on the packaged EfficientNet-Lite0."""

import numpy as np
import pytest
import torch
from captum import attr
from torch import nn

from reglib._common import normal_noise
from suite.metrics import saliency
from suite.papers import your_measures
from suite.papers.measure import METRICS
from suite.runs.execute import load_model
from suite.units import Pretrained
from tests.double_backward import Net
from tests.test_quantus import arrays, explain_by, quantus, replay

N_IMAGES, N_SAMPLES, RADIUS, PATCH = 2, 2, 0.02, 56
PLAIN = {"normalise": False, "disable_warnings": True}


@pytest.fixture(scope="module")
def subject():
    fields = {"data": "foolbox-imagenet", "network": "efficientnet_lite0", "labels": "predicted"}
    return load_model(Pretrained(**fields, n_images=N_IMAGES), {}, torch.device("cpu"))


@pytest.fixture(scope="module")
def shown(subject):
    return subject.test_images(N_IMAGES)


def assert_same_maps(maps, expected):
    """Compare maps; folded weights round otherwise, and move a few kinks of the network."""
    assert maps.shape == expected.shape
    assert (maps - expected).norm() < 1e-2 * expected.norm()


class TestCaptum:
    def test_gradient(self, subject, shown):
        maps = saliency.logit_gradient(subject.folded, *shown)
        images, labels = shown[0].clone().requires_grad_(), shown[1]
        assert_same_maps(maps, attr.Saliency(subject.network).attribute(images, labels, abs=False))
        drawn = your_measures.drawn_maps(subject, saliency="logit_gradient", n_images=N_IMAGES)
        assert torch.allclose(drawn.per_image, maps.sum(1).flatten(1).norm(dim=1), rtol=1e-4)

    def test_smooth_grad(self, subject, shown, monkeypatch):
        """It takes the noise of here, the same for all images times the range of each."""
        image, label = (part[:1] for part in shown)
        given = {"n_samples": N_SAMPLES, "method": saliency.logit_gradient}
        noise = torch.Generator().manual_seed(0)
        maps = saliency.smooth_grad(subject.folded, image, label, generator=noise, **given)
        noise = torch.Generator().manual_seed(0)
        monkeypatch.setattr(torch, "normal", lambda mean, std: std * normal_noise(std, noise))
        std = float(0.15 * (image.max() - image.min()))
        tunnel = attr.NoiseTunnel(attr.Saliency(subject.network))
        options = {"nt_samples": N_SAMPLES, "nt_samples_batch_size": 1, "stdevs": std}
        assert_same_maps(maps, tunnel.attribute(image, target=label, abs=False, **options))

    def test_integrated_gradients(self, subject, shown):
        image, label = (part[:1] for part in shown)
        maps = saliency.integrated_gradients(subject.folded, image, label, n_steps=4)
        captums = attr.IntegratedGradients(subject.network)
        assert_same_maps(maps, captums.attribute(image, target=label, n_steps=4).float())


def choose(arr, indices, **_):
    """Set those of the numbers (B, squares) to 1 that are at the indices (B, 1)."""
    return np.where(np.arange(arr.shape[1]) == indices, np.float32(1), arr)


class TestQuantus:
    def test_faithfulness_of_squares(self, subject, shown):
        settings = {"saliency": "absolute_gradient", "n_images": 1, "patch": PATCH}
        result = METRICS["faithfulness_estimate"](subject, **settings)
        image, label = (part[:1] for part in shown)
        sums = saliency.logit_gradient(subject.folded, image, label).abs().sum(1, keepdim=True)
        sums = PATCH**2 * nn.functional.avg_pool2d(sums, PATCH)
        metric = quantus.FaithfulnessEstimate(perturb_func=choose, **PLAIN)
        given = arrays((torch.zeros_like(sums), label)) | {"a_batch": sums.numpy(), "softmax": True}
        other = image.min() + image.max() - image

        def inverted(net, chosen):
            inside = chosen.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
            return net.whole(torch.where(inside > 0, other, image))

        (expected,) = metric(Net(inverted, whole=subject.network).eval(), **given)
        assert float(result.per_image) == pytest.approx(-expected, abs=1e-3)

    def test_max_sensitivity(self, subject, shown):
        settings = {"saliency": "logit_gradient", "n_samples": N_SAMPLES, "radius": RADIUS}
        result = METRICS["max_sensitivity"](subject, n_images=1, **settings)
        image, label = (part[:1] for part in shown)
        uniform = torch.rand((N_SAMPLES, *image.shape[1:]), generator=subject.generator(0))
        noise = ((2 * uniform - 1) * RADIUS).flatten(1)[None].numpy()
        metric = quantus.MaxSensitivity(nr_samples=N_SAMPLES, perturb_func=replay(noise), **PLAIN)
        explain = explain_by(lambda *given: saliency.logit_gradient(*given).sum(1, keepdim=True))
        (expected,) = metric(subject.network, explain_func=explain, **arrays((image, label)))
        assert float(result.per_image) == pytest.approx(expected, rel=1e-2)
