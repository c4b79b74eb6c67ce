"""Quantus 0.6 as an independent implementation of the metrics."""

import numpy as np
import pytest
import quantus
import torch

from suite import metrics
from suite.data import load_data, to_float
from suite.metrics.saliency import SALIENCIES
from suite.training.loop import train
from suite.units import Training

N_IMAGES, N_SAMPLES, SEED = 4, 4, 3
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
    """Wrap a saliency method as Quantus wants it, from arrays to an array."""

    def explain(model, inputs, targets, **kwargs):
        maps = saliency(model, torch.as_tensor(inputs), torch.as_tensor(targets))
        return maps.numpy()

    return explain


def replay(noise):
    """Perturb by given noise (images, samples, pixels), one sample at each call."""
    calls = iter(range(noise.shape[1]))
    return lambda arr, indices, **kwargs: arr + noise[:, next(calls)]


def arrays(digits):
    images, labels = digits
    return {"x_batch": images.numpy(), "y_batch": labels.numpy(), "channel_first": True}


def mirror_one_pixel(arr, indices, **kwargs):
    """Apply the paper's perturbation to the pixels `indices` (B, 1) of `arr` (B, pixels)."""
    changed = arr.copy()
    rows = np.arange(len(arr))[:, None]
    changed[rows, indices] = arr.min(1)[:, None] + arr.max(1)[:, None] - arr[rows, indices]
    return changed


def quantus_lipschitz(network, digits, saliency, noise, **options):
    metric = quantus.LocalLipschitzEstimate(
        nr_samples=noise.shape[1],
        norm_numerator=quantus.functions.similarity_func.distance_euclidean,
        norm_denominator=quantus.functions.similarity_func.distance_euclidean,
        perturb_func=replay(noise),
        disable_warnings=True,
        **options,
    )
    values = metric(network, explain_func=explain_by(saliency), **arrays(digits))
    return torch.as_tensor(np.array(values), dtype=torch.float32)


def normal_noise(noise_std=0.1):
    """Draw what `local_lipschitz_estimate` draws, (images, samples, pixels)."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (N_SAMPLES, 1, 28, 28)
    draws = [torch.randn(shape, generator=generator) * noise_std for _ in range(N_IMAGES)]
    return torch.stack(draws).flatten(2).numpy()


class TestAgainstQuantus:
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
    def test_faithfulness_estimate(self, network, digits, saliency, score, perturb):
        ours, theirs = {
            "inverted": (metrics.inverted, {"perturb_func": mirror_one_pixel}),
            "black": (lambda x: x.amin((1, 2, 3), keepdim=True).expand_as(x), {}),
        }[perturb]
        maps = saliency(network, *digits)
        effects = metrics.pixel_effects(network, *digits, score=score, perturb=ours)
        metric = quantus.FaithfulnessEstimate(normalise=False, disable_warnings=True, **theirs)
        values = metric(
            network, a_batch=maps.numpy(), softmax=score == "probability", **arrays(digits)
        )
        expected = -torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(
            metrics.faithfulness_estimate(maps, effects), expected, **TOLERANCE
        )

    def test_local_lipschitz_estimate(self, network, digits, saliency):
        values = metrics.local_lipschitz_estimate(
            lambda images, labels: saliency(network, images, labels),
            *digits,
            n_samples=N_SAMPLES,
            generator=torch.Generator().manual_seed(SEED),
        )
        expected = quantus_lipschitz(network, digits, saliency, normal_noise(), normalise=False)
        torch.testing.assert_close(values, expected, **TOLERANCE)

    def test_normalised_lipschitz_estimate(self, network, digits, saliency):
        """Quantus divides by the largest value of a batch: of one image, by that of the map."""
        values, expected = [], []
        for b, noise in enumerate(normal_noise()):
            one = digits[0][b : b + 1], digits[1][b : b + 1]
            generator = torch.Generator().manual_seed(SEED)
            for _ in range(b):
                torch.randn((N_SAMPLES, 1, 28, 28), generator=generator)
            values.append(
                metrics.local_lipschitz_estimate(
                    lambda images, labels: saliency(network, images, labels),
                    *one,
                    n_samples=N_SAMPLES,
                    normalised=True,
                    generator=generator,
                )
            )
            expected.append(quantus_lipschitz(network, one, saliency, noise[None], normalise=True))
        torch.testing.assert_close(torch.cat(values), torch.cat(expected), **TOLERANCE)

    def test_max_sensitivity(self, network, digits, saliency):
        values = metrics.max_sensitivity(
            lambda images, labels: saliency(network, images, labels),
            *digits,
            n_samples=N_SAMPLES,
            generator=torch.Generator().manual_seed(SEED),
        )
        generator = torch.Generator().manual_seed(SEED)
        shape = (N_SAMPLES, 1, 28, 28)
        draws = [(2 * torch.rand(shape, generator=generator) - 1) * 0.2 for _ in range(N_IMAGES)]
        metric = quantus.MaxSensitivity(
            nr_samples=N_SAMPLES,
            normalise=False,
            disable_warnings=True,
            perturb_func=replay(torch.stack(draws).flatten(2).numpy()),
        )
        expected = metric(network, explain_func=explain_by(saliency), **arrays(digits))
        expected = torch.as_tensor(np.array(expected), dtype=torch.float32)
        torch.testing.assert_close(values, expected, **TOLERANCE)

    def test_entropy(self, network, digits, saliency):
        maps = saliency(network, *digits)
        metric = quantus.Complexity(abs=True, normalise=False, disable_warnings=True)
        expected = metric(network, a_batch=maps.numpy(), **arrays(digits))
        expected = torch.as_tensor(np.array(expected), dtype=torch.float32)
        torch.testing.assert_close(metrics.entropy(maps), expected, **TOLERANCE)
