"""Quantus 0.6 as an independent implementation of the metrics."""

from functools import partial

import numpy as np
import pytest
import quantus
import torch

from suite import metrics
from suite.data import load_data, to_float
from suite.metrics.saliency import SALIENCIES
from suite.training.loop import train
from suite.units import Training

N_IMAGES, N_SAMPLES = 3, 4
TOLERANCE = {"rtol": 1e-4, "atol": 0.0}


@pytest.fixture(scope="module")
def network():
    fields = {"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_train": 1000}
    unit = Training(**fields, learning_rate=1e-3, seed=0)
    return train(unit, load_data("mnist5k"), device=torch.device("cpu")).network.float()


@pytest.fixture(autouse=True)
def _all_at_once(monkeypatch):
    monkeypatch.setattr(metrics.chunks, "CHUNK_BYTES", 10**9)


@pytest.fixture(scope="module")
def digits():
    test = load_data("mnist5k").test
    return to_float(test.images[:N_IMAGES], (0, 1)), test.labels[:N_IMAGES]


@pytest.fixture(params=["logit_gradient", "deeplift"])
def saliency(request):
    return SALIENCIES[request.param]


def explain_by(saliency):
    def explain(model, inputs, targets, **kwargs):
        return saliency(model, torch.as_tensor(inputs), torch.as_tensor(targets)).numpy()

    return explain


def replay(noise):
    """Return a perturbation by noise (images, samples, pixels), one sample at each call."""
    calls = iter(range(noise.shape[1]))
    return lambda arr, indices, **kwargs: arr + noise[:, next(calls)]


def arrays(digits):
    images, labels = digits
    return {"x_batch": images.numpy(), "y_batch": labels.numpy(), "channel_first": True}


def mirror_one_pixel(arr, indices, **kwargs):
    """Apply the paper's perturbation to the pixels `indices` (B, 1) of `arr` (B, pixels)."""
    changed, rows = arr.copy(), np.arange(len(arr))[:, None]
    changed[rows, indices] = arr.min(1)[:, None] + arr.max(1)[:, None] - arr[rows, indices]
    return changed


@pytest.mark.filterwarnings("ignore:The settings for perturbing input")
@pytest.mark.parametrize(
    ("saliency", "score", "perturb"),
    [
        ("logit_gradient", "probability", "inverted"),
        ("logit_gradient", "logit", "black"),
        ("deeplift", "logit", "inverted"),
        ("deeplift", "probability", "black"),
    ],
    indirect=["saliency"],
)
def test_faithfulness_estimate(network, digits, saliency, score, perturb):
    perturb, options = {
        "inverted": (metrics.invert, {"perturb_func": mirror_one_pixel}),
        "black": (lambda x: x.amin((1, 2, 3), keepdim=True).expand_as(x), {}),
    }[perturb]
    maps = saliency(network, *digits)
    effects = metrics.pixel_effects(network, *digits, score=score, perturb=perturb)
    metric = quantus.FaithfulnessEstimate(normalise=False, disable_warnings=True, **options)
    arguments = {"a_batch": maps.numpy(), "softmax": score == "probability"} | arrays(digits)
    expected = -torch.tensor(metric(network, **arguments), dtype=torch.float64)
    estimate = metrics.faithfulness_estimate(maps, effects)
    torch.testing.assert_close(estimate, expected, **TOLERANCE)


def test_complexity(network, digits, saliency):
    maps = saliency(network, *digits)
    metric = quantus.Complexity(normalise=False, disable_warnings=True)
    expected = torch.tensor(metric(network, a_batch=maps.numpy(), **arrays(digits)))
    torch.testing.assert_close(metrics.entropy(maps).double(), expected.double(), **TOLERANCE)


@pytest.mark.parametrize("normalised", [False, True])
def test_local_lipschitz_estimate(network, digits, saliency, normalised):
    """Quantus divides by the largest value of a batch, here of one map."""
    distance = quantus.functions.similarity_func.distance_euclidean
    options = {"norm_numerator": distance, "norm_denominator": distance, "disable_warnings": True}
    options |= {"normalise": normalised, "nr_samples": N_SAMPLES}
    settings = {"n_samples": N_SAMPLES, "noise_std": 0.1, "normalised": normalised}
    sources = [torch.Generator().manual_seed(3) for _ in range(2)]
    for b in range(N_IMAGES):
        digit, maps_of = [batch[b : b + 1] for batch in digits], partial(saliency, network)
        value = metrics.local_lipschitz_estimate(maps_of, *digit, generator=sources[0], **settings)
        noise = 0.1 * torch.randn(N_SAMPLES, 1, 28, 28, generator=sources[1])
        perturb = replay(noise.flatten(1)[None].numpy())
        metric = quantus.LocalLipschitzEstimate(perturb_func=perturb, **options)
        expected = np.array(metric(network, explain_func=explain_by(saliency), **arrays(digit)))
        torch.testing.assert_close(value, torch.tensor(expected).float(), **TOLERANCE)
