"""Measurements of an untrained LeNet-5, for the tests of metrics."""

import torch

from suite.data import load_data
from suite.networks import build_network
from suite.papers.measure import measure
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Training


def n_parameters(network, shape, **options):
    with torch.device("meta"):
        model = build_network(network, shape, 10, options=options, seed=0)
    return sum(p.numel() for p in model.parameters())


class Untrained:
    def __init__(self, data, seed=0):
        self.unit = Training(data=data, network="lenet5", epochs=1, learning_rate=1e-3, seed=seed)

    def subject(self):
        data = load_data(self.unit.data)
        network = build_network("lenet5", data.shape, 10, options={}, seed=self.unit.seed).eval()
        return EvaluatedModel(network, self.unit, data)

    def measured(self, metric, **settings):
        unit = Measurement(training=self.unit, metric=metric, settings=settings)
        return measure(self.subject(), unit)
