"""Distributed training through views: two processes with half a batch each, and one with all."""

import multiprocessing

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reglib.double_backward import fast_double_backward


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers).double()


def differentiate(model, x):
    """Differentiate the mean of a loss that contains an input gradient."""
    x = x.clone().requires_grad_()
    losses = model(x).square().sum(1)
    (g,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    (losses + g.square().sum((1, 2, 3))).mean().backward()
    return [p.grad for p in model.parameters()]


def worker(rank, folder):
    options = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2}
    torch.distributed.init_process_group("gloo", **options)
    try:
        parallel = DistributedDataParallel(fast_double_backward(network()))
        for _ in range(2):
            parallel.zero_grad()
            gradients = differentiate(parallel, batch()[rank::2])
    finally:
        torch.distributed.destroy_process_group()
    torch.save(gradients, f"{folder}/{rank}.pt")


def batch():
    return torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def test_distributed_gradients_agree(tmp_path):
    other = multiprocessing.get_context("spawn").Process(target=worker, args=(1, str(tmp_path)))
    other.start()
    worker(0, tmp_path)
    other.join(120)
    assert other.exitcode == 0
    expected = differentiate(network(), batch())
    for rank in (0, 1):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)
