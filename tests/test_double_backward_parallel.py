"""Two processes that share a batch get the gradients of one process that has it whole."""

import multiprocessing

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from reglib.double_backward import fast_double_backward
from reglib.regularizers import input_gradient_penalty
from suite.networks import build_network
from tests.double_backward import randn

BATCH = 8


def network():
    return build_network("lenet5", (1, 12, 12), 3, options={}, seed=2).double()


def batch():
    return randn(BATCH, 1, 12, 12), torch.arange(BATCH) % 3


def differentiate(model, x, labels):
    x = x.clone().requires_grad_()
    logits = model(x)
    penalty = input_gradient_penalty(logits, labels, x).mean()
    (F.cross_entropy(logits, labels) + penalty).backward()


def worker(rank, folder):
    """Differentiate half of the batch twice; write the gradients that were averaged."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    parallel = DistributedDataParallel(fast_double_backward(network()))
    x, labels = batch()
    for _ in range(2):
        parallel.zero_grad()
        differentiate(parallel, x[rank::2], labels[rank::2])
    torch.save([p.grad for p in parallel.parameters()], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_gives_the_gradients_of_one_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(rank, str(tmp_path))) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    model = network()
    differentiate(model, *batch())
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for got, parameter in zip(found, model.parameters()):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-10, atol=1e-13)
