"""The metrics of saliency maps on digits with LeNet-5, against Quantus with the same settings.

Quantus computes the same numbers in batches of its default size: see `tests/test_quantus.py` and
`tests/test_real_network.py`.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Row, median_row, ratios, time_in_turns
from reglib.double_backward import fast_double_backward, folded_copy
from suite import metrics
from suite.data import load_data, to_float
from suite.metrics.saliency import logit_gradient
from suite.networks import build_network
from suite.training.loop import memory_format

# The annotations of Quantus are not those of its functions.
quantus: Any = importlib.import_module("quantus")

QUIET: dict[str, Any] = {"disable_warnings": True, "normalise": False}
GOALS = {
    "Faithfulness Estimate, mirrored pixels": 12,
    "Faithfulness Estimate, black pixels": 12,
    "local Lipschitz estimate": 4,
    "max-sensitivity": 4,
    "entropy": 50,
}


class Subject(NamedTuple):
    """A network with images, their labels and the maps, in the layout that training uses."""

    network: nn.Module
    images: Tensor
    labels: Tensor
    maps: Tensor
    n_samples: int

    def explain(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute maps of images."""
        return logit_gradient(self.network, images, labels)

    def generator(self) -> torch.Generator:
        """Return a source of noise on the device of the images."""
        return torch.Generator(self.images.device).manual_seed(0)


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time each metric here and in Quantus, in turns."""
    n_images, n_samples, rounds = (16, 20, 1) if quick else (128, 200, 3)
    subject = subject_of(device, n_images, n_samples)
    computed, by_quantus = _by_reglib(subject), _by_quantus(subject)
    title = "metrics against Quantus"
    rows = []
    for name, goal in GOALS.items():
        brief = name == "entropy"  # more rounds of microseconds cost nothing
        functions = {"reglib": computed[name], "Quantus": by_quantus[name]}
        repeats = {"rounds": 50 if brief else rounds, "warm_up": int(brief)}
        seconds = time_in_turns(functions, **repeats)
        for library, values in seconds.items():
            label = f"{name}, {n_images} images: {library}"
            rows.append(median_row(title, label, [1000 * s for s in values], "ms"))
        ratio = ratios(seconds["Quantus"], seconds["reglib"])
        rows.append(median_row(title, f"{name}: Quantus / reglib", ratio, "x", at_least=goal))
    return rows


def subject_of(device: torch.device, n_images: int, n_samples: int) -> Subject:
    """Build LeNet-5 and take the first test digits."""
    network = build_network("lenet5", (1, 28, 28), 10, options={}, seed=0).to(device).eval()
    layout = memory_format(network, device)
    network = folded_copy(network.to(memory_format=layout))
    test = load_data("mnist5k").test
    images = to_float(test.images[:n_images].to(device), (0, 1)).contiguous(memory_format=layout)
    labels = test.labels[:n_images].to(device)
    maps = logit_gradient(network, images, labels)
    return Subject(network, images, labels, maps, n_samples)


def _by_reglib(subject: Subject) -> dict[str, Callable[[], Tensor]]:
    network, images, labels, maps, n_samples = subject

    def faithfulness(perturb: Callable[[Tensor], Tensor]) -> Tensor:
        model = fast_double_backward(network)
        effects = metrics.pixel_effects(model, images, labels, perturb=perturb)
        return metrics.faithfulness_estimate(maps, effects)

    def noisy(metric: Callable[..., Tensor]) -> Tensor:
        noise = {"generator": subject.generator(), "n_samples": n_samples}
        return metric(subject.explain, images, labels, **noise)

    def black(x: Tensor) -> Tensor:
        return x.amin((1, 2, 3), keepdim=True).expand_as(x)

    return {
        "Faithfulness Estimate, mirrored pixels": lambda: faithfulness(metrics.invert),
        "Faithfulness Estimate, black pixels": lambda: faithfulness(black),
        "local Lipschitz estimate": lambda: noisy(metrics.local_lipschitz_estimate),
        "max-sensitivity": lambda: noisy(metrics.max_sensitivity),
        "entropy": lambda: metrics.entropy(maps),
    }


def _by_quantus(subject: Subject) -> dict[str, Callable[[], object]]:
    # Quantus makes contiguous tensors of its arrays.
    network = build_network("lenet5", (1, 28, 28), 10, options={}, seed=0).eval()
    device = subject.images.device
    network.to(device)
    images, maps = (tensor.cpu().contiguous().numpy() for tensor in (subject.images, subject.maps))
    arguments = {"model": network, "x_batch": images, "y_batch": subject.labels.cpu().numpy()}
    arguments |= {"channel_first": True, "device": device.type}

    def explain(model: nn.Module, inputs: Any, targets: Any, **kwargs: Any) -> np.ndarray:
        tensors = (torch.as_tensor(array, device=device) for array in (inputs, targets))
        return logit_gradient(model, *tensors).cpu().numpy()

    mirrored = quantus.FaithfulnessEstimate(perturb_func=_mirror, **QUIET)
    black = quantus.FaithfulnessEstimate(perturb_baseline="black", **QUIET)
    distance = quantus.functions.similarity_func.distance_euclidean
    norms = {"norm_numerator": distance, "norm_denominator": distance}
    noise = {"nr_samples": subject.n_samples, "perturb_std": 0.1}
    lipschitz = quantus.LocalLipschitzEstimate(**noise, **norms, **QUIET)
    sensitivity = quantus.MaxSensitivity(nr_samples=subject.n_samples, lower_bound=0.2, **QUIET)
    entropy = quantus.Complexity(**QUIET)
    with_maps = {**arguments, "a_batch": maps}
    return {
        "Faithfulness Estimate, mirrored pixels": lambda: mirrored(**with_maps, softmax=True),
        "Faithfulness Estimate, black pixels": lambda: black(**with_maps, softmax=True),
        "local Lipschitz estimate": lambda: lipschitz(**arguments, explain_func=explain),
        "max-sensitivity": lambda: sensitivity(**arguments, explain_func=explain),
        "entropy": lambda: entropy(**with_maps),
    }


def _mirror(arr: np.ndarray, indices: np.ndarray, **kwargs: Any) -> np.ndarray:
    """Replace the pixels `indices` (B, 1) of `arr` (B, pixels) as the paper does."""
    ends = arr.min(1, keepdims=True) + arr.max(1, keepdims=True)
    changed = arr.copy()
    np.put_along_axis(changed, indices, ends - np.take_along_axis(arr, indices, 1), 1)
    return changed
