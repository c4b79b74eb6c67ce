import numpy as np
import pytest
import torch

from reglib.landscape import data_smoothness, scaled_norm
from suite.data import load_data
from suite.errors import UsageError
from suite.metrics import CORRUPTIONS, centre_to_rim, corrupt
from suite.papers.path_counts import path_counts
from tests.small_batches import Untrained

NETWORK = Untrained("mnist5k")


@pytest.fixture
def logits_and_labels():
    images, labels = NETWORK.subject().test_images(60)
    return NETWORK.subject().network(images).detach(), labels


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_counts_higher_logits(k, logits_and_labels):
    logits, labels = logits_and_labels
    higher = (logits > logits[range(60), labels][:, None]).sum(1)
    value = NETWORK.measured("top_k_accuracy", k=k, n_images=60).per_image
    assert torch.equal(value, (higher < k).double())
    assert 0 < value.mean() < 1
    with pytest.raises(UsageError, match="k: expected 1 to 10 classes, got 11"):
        NETWORK.measured("top_k_accuracy", k=11)


def test_cross_entropy_of_the_label(logits_and_labels):
    logits, labels = logits_and_labels
    expected = logits.logsumexp(1) - logits[range(60), labels]
    value = NETWORK.measured("cross_entropy", n_images=60).per_image
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_corrupted_accuracy_averages_corruptions():
    subject, settings = NETWORK.subject(), {"n_images": 20, "level": 5}
    pixels, labels = subject.test_uint8(20)
    larger = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")  # 32 pixels a side

    def right(name):
        changed = corrupt(torch.from_numpy(larger), corruption=name, level=5, seed=0)
        images = subject.as_inputs(changed[..., 2:-2, 2:-2])
        return (subject.network(images).argmax(1) == labels).double()

    by_name = {name: right(name) for kind in CORRUPTIONS.values() for name in kind}
    weather = NETWORK.measured("corrupted_accuracy", category="weather", **settings).per_image
    expected = torch.stack([by_name[name] for name in CORRUPTIONS["weather"]]).mean(0)
    torch.testing.assert_close(weather, expected)
    every = NETWORK.measured("corrupted_accuracy", **settings).per_image
    torch.testing.assert_close(every, torch.stack([*by_name.values()]).mean(0))
    assert every.unique().numel() > 1
    with pytest.raises(UsageError, match="unknown category 'blurr': did you mean 'blur'"):
        NETWORK.measured("corrupted_accuracy", category="blurr", **settings)


def test_flatness_of_paths_and_target():
    paths = path_counts(NETWORK.subject().network, (1, 28, 28), squared=True)
    images = data_smoothness([load_data("mnist5k").train.images])[None]
    for of, squares in (("paths", paths), ("target", images)):
        value = NETWORK.measured("flatness", of=of, part="centre_to_rim", n_images=60).per_image
        expected = centre_to_rim(scaled_norm(squares)).to(value)[None]
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
        assert expected > 1.5
