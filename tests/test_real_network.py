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

N_SAMPLES, RADIUS, PATCH = 2, 0.02, 56
PLAIN = {"normalise": False, "disable_warnings": True}


@pytest.fixture(scope="module")
def subject():
    fields = {"data": "foolbox-imagenet", "network": "efficientnet_lite0", "labels": "predicted"}
    return load_model(Pretrained(**fields, n_images=1), {}, torch.device("cpu"))


@pytest.fixture(scope="module")
def photograph(subject):
    return subject.test_images(1)


def assert_same_maps(maps, expected):
    """Compare maps; folded weights round otherwise, and move a few kinks of the network."""
    assert maps.shape == expected.shape
    assert (maps - expected).norm() < 1e-2 * expected.norm()


class TestCaptum:
    def test_gradient(self, subject, photograph):
        image, label = photograph
        maps = saliency.logit_gradient(subject.folded, image, label)
        captum = attr.Saliency(subject.network)
        inputs = image.clone().requires_grad_()
        assert_same_maps(maps, captum.attribute(inputs, label, abs=False))
        drawn = your_measures.drawn_maps(subject, saliency="logit_gradient", n_images=1)
        assert torch.allclose(drawn.per_image, maps.sum(1).flatten(1).norm(dim=1), rtol=1e-4)

    def test_smooth_grad(self, subject, photograph, monkeypatch):
        """Captum draws the noise of this project."""
        (image, label), options = photograph, {"method": saliency.logit_gradient}
        options |= {"n_samples": N_SAMPLES, "generator": subject.generator(0)}
        maps = saliency.smooth_grad(subject.folded, image, label, **options)
        noise = subject.generator(0)
        monkeypatch.setattr(torch, "normal", lambda mean, std: std * normal_noise(std, noise))
        std = float(0.15 * (image.max() - image.min()))
        tunnel = attr.NoiseTunnel(attr.Saliency(subject.network))
        options = {"nt_samples": N_SAMPLES, "nt_samples_batch_size": 1, "stdevs": std}
        assert_same_maps(maps, tunnel.attribute(image, target=label, abs=False, **options))

    def test_integrated_gradients(self, subject, photograph):
        image, label = photograph
        maps = saliency.integrated_gradients(subject.folded, image, label, n_steps=4)
        captum = attr.IntegratedGradients(subject.network)
        assert_same_maps(maps, captum.attribute(image, target=label, n_steps=4).float())


def choose(arr, indices, **_):
    """Set the numbers (B, squares) at the indices (B, 1) to 1."""
    return np.where(np.arange(arr.shape[1]) == indices, np.float32(1), arr)


class TestQuantus:
    def test_faithfulness_of_squares(self, subject, photograph):
        settings = {"saliency": "absolute_gradient", "n_images": 1, "patch": PATCH}
        result = METRICS["faithfulness_estimate"](subject, **settings)
        image, label = photograph
        sums = saliency.logit_gradient(subject.folded, image, label).abs().sum(1, keepdim=True)
        sums = PATCH**2 * nn.functional.avg_pool2d(sums, PATCH)
        metric = quantus.FaithfulnessEstimate(perturb_func=choose, **PLAIN)
        batch = arrays((torch.zeros_like(sums), label)) | {"a_batch": sums.numpy(), "softmax": True}
        inverted = image.min() + image.max() - image

        def logits_of(net, chosen):
            inside = chosen.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
            return net.whole(torch.where(inside > 0, inverted, image))

        (expected,) = metric(Net(logits_of, whole=subject.network).eval(), **batch)
        assert float(result.per_image) == pytest.approx(-expected, abs=1e-3)

    def test_max_sensitivity(self, subject, photograph):
        settings = {"saliency": "logit_gradient", "n_samples": N_SAMPLES, "radius": RADIUS}
        result = METRICS["max_sensitivity"](subject, n_images=1, **settings)
        shape = N_SAMPLES, *photograph[0].shape[1:]
        uniform = torch.rand(shape, generator=subject.generator(0))
        noise = ((2 * uniform - 1) * RADIUS).flatten(1)[None].numpy()
        metric = quantus.MaxSensitivity(nr_samples=N_SAMPLES, perturb_func=replay(noise), **PLAIN)
        explain = explain_by(lambda *batch: saliency.logit_gradient(*batch).sum(1, keepdim=True))
        (expected,) = metric(subject.network, explain_func=explain, **arrays(photograph))
        assert float(result.per_image) == pytest.approx(expected, rel=1e-2)
