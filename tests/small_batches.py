"""Small networks and images, and a check that functions change nothing else."""

import copy
from contextlib import contextmanager

import torch
from torch import nn

from suite.data import load_data
from suite.networks import build_network
from suite.papers.measure import measure
from suite.training.evaluated import EvaluatedModel
from suite.units import Measurement, Training

LABELS = torch.tensor([2, 0, 1])


def random_images(*shape, seed=0, dtype=torch.float64):
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_network(pixels, classes=3, seed=1):
    weight = random_images(classes, pixels, seed=seed) - 0.5
    model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes)).double().eval()
    model[1].weight.data = weight
    model[1].bias.data = random_images(classes, seed=seed + 1)
    return model


def softmax_network(shape, classes=3):
    model = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
    model = model.double().eval()
    model[1].weight.data = random_images(*model[1].weight.shape, seed=5) - 0.5
    return model


@contextmanager
def left_alone(model, *tensors):
    """Check that a block changes no network (state, modes, hooks, gradients), tensor or RNG."""

    def snapshot():
        kinds = "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks".split()
        modules, parameters = list(model.modules()), list(model.parameters())
        hooks = [len(getattr(module, kind)) for module in modules for kind in kinds]
        require_grad = [t.requires_grad for t in (*parameters, *tensors)]
        return [module.training for module in modules], hooks, require_grad

    before, state, random = snapshot(), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    values = [tensor.detach().clone() for tensor in tensors]
    yield
    assert snapshot() == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(map(torch.equal, tensors, values))
    assert all(t.grad is None for t in (*model.parameters(), *tensors))
    assert torch.equal(torch.get_rng_state(), random)


class Recorder(nn.Module):
    """A network that records the size of each of its batches."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.batches = []
        self.largest_bytes = 0

    def forward(self, x):
        self.batches.append(len(x))
        self.largest_bytes = max(self.largest_bytes, x.numel() * x.element_size())
        return self.network(x)


def n_parameters(network, shape, **options):
    model = build_network(network, shape, 10, options=options, seed=0)
    return sum(p.numel() for p in model.parameters())


class Untrained:
    """Measurements of an untrained LeNet-5."""

    def __init__(self, data, seed=0):
        self.unit = Training(data=data, network="lenet5", epochs=1, learning_rate=1e-3, seed=seed)

    def subject(self):
        data = load_data(self.unit.data)
        network = build_network("lenet5", data.shape, 10, options={}, seed=self.unit.seed).eval()
        return EvaluatedModel(network, self.unit, data)

    def measured(self, metric, **settings):
        unit = Measurement(training=self.unit, metric=metric, settings=settings)
        return measure(self.subject(), unit)
