"""Images and networks of a few pixels, for the tests of metrics."""

import torch
from torch import nn

LABELS = torch.tensor([2, 0, 1])


def random_images(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)


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


class Recorder(nn.Module):
    """A network that records the size of every batch it gets."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.batches = []
        self.largest_bytes = 0

    def forward(self, x):
        self.batches.append(len(x))
        self.largest_bytes = max(self.largest_bytes, x.numel() * x.element_size())
        return self.network(x)
