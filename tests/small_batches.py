"""Images and networks of a few pixels, and a check that functions leave them alone."""

import copy
from contextlib import contextmanager

import torch
from torch import nn

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
    """Check that a network (state, modes, hooks, gradients), tensors and generator stay."""

    def settings():
        kinds = "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks".split()
        modules, parameters = list(model.modules()), list(model.parameters())
        hooks = [len(getattr(module, kind)) for module in modules for kind in kinds]
        required = [t.requires_grad for t in (*parameters, *tensors)]
        return [module.training for module in modules], hooks, required

    before, state, random = settings(), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    values = [tensor.detach().clone() for tensor in tensors]
    yield
    assert settings() == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(map(torch.equal, tensors, values))
    assert all(t.grad is None for t in (*model.parameters(), *tensors))
    assert torch.equal(torch.get_rng_state(), random)


class Recorder(nn.Module):
    """A network that records the sizes of its batches."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.batches = []
        self.largest_bytes = 0

    def forward(self, x):
        self.batches.append(len(x))
        self.largest_bytes = max(self.largest_bytes, x.numel() * x.element_size())
        return self.network(x)
