"""Top-k accuracy and loss on the test split, as Table 1 of the landscape paper has them."""

import dataclasses

import pytest
import torch

from reglib.landscape import data_smoothness, scaled_norm
from suite.data import load_data
from suite.errors import UsageError
from suite.metrics import CORRUPTIONS, centre_to_rim, corrupted
from suite.networks import build_network
from suite.papers.measure import measure
from suite.papers.path_counts import path_counts
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Training

UNIT = Training(data="mnist5k", network="lenet5", epochs=1, learning_rate=1e-3, seed=0)


def measured(metric, **settings):
    data = load_data("mnist5k")
    subject = EvaluatedModel(
        build_network("lenet5", data.shape, 10, options={}, seed=0).eval(), UNIT, data
    )
    images, labels = subject.test_images(60)
    logits = subject.network(images).detach()
    unit = Measurement(training=UNIT, metric=metric, settings={"n_images": 60, **settings})
    return measure(subject, unit).per_image, logits, labels


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_asks_whether_fewer_than_k_logits_are_higher(k):
    value, logits, labels = measured("top_k_accuracy", k=k)
    higher = (logits > logits[torch.arange(60), labels][:, None]).sum(1)
    assert torch.equal(value, (higher < k).double())
    assert 0 < value.mean() < 1


def test_cross_entropy_is_minus_the_log_probability_of_the_label():
    value, logits, labels = measured("cross_entropy")
    expected = logits.logsumexp(1) - logits[torch.arange(60), labels]
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_more_classes_than_there_are_is_an_error():
    with pytest.raises(UsageError, match="k: expected 1 to 10 classes, got 11"):
        measured("top_k_accuracy", k=11)


def test_corrupted_accuracy_is_the_share_of_corruptions_that_leave_the_prediction_right():
    data = load_data("digits-anywhere")
    network = build_network(
        "resnet", data.shape, 10, options={"width": 2, "blocks": [1], "stem": "strided"}, seed=0
    )
    unit = dataclasses.replace(UNIT, data="digits-anywhere", network="resnet")
    subject = EvaluatedModel(network.eval(), unit, data)
    pixels, labels = subject.test_uint8(20)

    def values(**settings):
        settings |= {"n_images": 20, "level": 5}
        unit_of = Measurement(training=unit, metric="corrupted_accuracy", settings=settings)
        return measure(subject, unit_of).per_image

    by_name = {}
    kinds = CORRUPTIONS.values()
    for name in [name for kind in kinds for name in kind]:
        images = subject.as_inputs(corrupted(pixels, corruption=name, level=5, seed=0))
        by_name[name] = (network(images).argmax(1) == labels).double()
    of_category = torch.stack([by_name[name] for name in CORRUPTIONS["weather"]]).mean(0)
    torch.testing.assert_close(values(category="weather"), of_category)
    torch.testing.assert_close(values(), torch.stack([*by_name.values()]).mean(0))
    with pytest.raises(UsageError, match="unknown category 'blurr': did you mean 'blur'"):
        values(category="blurr")


def test_what_decides_a_landscape_is_measured_like_it():
    network = build_network("lenet5", (1, 28, 28), 10, options={}, seed=0).eval()
    paths = scaled_norm(path_counts(network, (1, 28, 28), squared=True))
    images = scaled_norm(data_smoothness([load_data("mnist5k").train.images])[None])
    found = [measured("flatness", part="centre_to_rim", of=of)[0] for of in ("paths", "target")]
    expected = torch.stack([centre_to_rim(paths), centre_to_rim(images)])
    torch.testing.assert_close(torch.cat(found).double(), expected, rtol=1e-4, atol=1e-5)
    assert expected.min() > 1.5
