"""Gradients are right on CPUs without AVX-512, where oneDNN's are not in one layout.

The variable takes AVX-512 from oneDNN where the CPU has it. Where oneDNN is wrong the process may
die, so a process of its own prints the errors of gradients against float64, a line a case.
"""

import copy
import itertools
import os
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn

from reglib.double_backward import fast_double_backward
from suite.networks import build_network
from suite.paths import ROOT
from suite.training.loop import memory_format

LAST = torch.channels_last


def convolutions():
    """Yield layers in two dimensions, and the shapes of their images."""
    for channels in (*range(1, 10), 12, 16, 24):
        for stride in (2, (1, 2)):
            yield nn.Conv2d(channels, 8, 1, stride), (4, channels, 8, 16)
    for channels, stride in itertools.product((2, 4, 8), (1, 2, (3, 1))):
        yield nn.Conv2d(channels, 5, 1, stride), (4, channels, 9, 12)
        yield nn.Conv2d(channels, 5, 3, stride, padding=1), (4, channels, 9, 12)
    for channels in (1, 3, 4, 8):
        yield nn.Conv2d(channels, 8, 1, 2, dilation=2), (4, channels, 8, 8)
        yield nn.Conv2d(channels, 8, 3, 2, dilation=2), (4, channels, 8, 8)
        yield nn.Conv2d(channels, 8, 1, 2, padding=1), (4, channels, 8, 8)
        yield nn.Conv2d(channels, 16, 1, 2), (1, channels, 8, 8)
        yield nn.Conv2d(2 * channels, 8, 1, 2, groups=2), (3, 2 * channels, 8, 8)
        yield nn.Conv2d(channels, channels, 1, 2, groups=channels), (3, channels, 8, 8)
        yield nn.ConvTranspose2d(4, channels, 1, 2, output_padding=1), (3, 4, 8, 8)


def gradients(forward, x, weight):
    y = forward(x)
    first = torch.autograd.grad(y.square().sum(), [x, weight], create_graph=True)
    loss = sum(g.square().sum() for g in first)
    return [y, *first, *torch.autograd.grad(loss, [x, weight])]


def report(name, actual, expected):
    """Print the largest relative error, in units of rounding."""
    rounding = torch.finfo(actual[0].dtype).eps
    with torch.no_grad():
        pairs = zip(actual, expected, strict=True)
        error = max(float((a.double() - e).norm() / e.norm()) for a, e in pairs)
    print(f"{error / rounding:.0f}\t{torch.get_num_threads()} threads, {name}", flush=True)


def compare(name, layer, x):
    exact, point = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    x = x.detach().requires_grad_()
    actual = gradients(fast_double_backward(layer), x, layer.weight)
    report(f"{name}: {layer} {tuple(x.shape)}", actual, gradients(exact, point, exact.weight))


def views():
    for layer, shape in convolutions():
        x = torch.rand(shape) - 0.5
        compare("images", layer, x.to(memory_format=LAST))
        compare("weight", layer.to(memory_format=LAST), x)
    layer, x = nn.Conv2d(3, 8, 1, 2), (torch.rand(4, 3, 8, 8) - 0.5).to(memory_format=LAST)
    compare("bfloat16", layer.bfloat16(), x.bfloat16())
    # A view brings contiguous images of few channels into channels-last layout.
    compare("laid out", nn.Conv2d(3, 16, 1, 2), torch.rand(8, 3, 32, 32) - 0.5)


def step(network, x, penalised):
    loss = F.cross_entropy(network(x), torch.arange(8) % 5)
    if penalised:
        loss = loss + torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()
    return torch.autograd.grad(loss, list(network.parameters()))


def trainings():
    """Compare gradients of training steps of the suite, with network and images in its layout."""
    residual = {"width": 4, "blocks": (1, 1)}
    networks = {
        "resnet": [residual, residual | {"pre_activation": True}],
        "top_gap": [{"backbone_options": residual, "k": 0.5, "width": 8}],
    }
    for name, options in ((name, option) for name, many in networks.items() for option in many):
        network = build_network(name, (3, 16, 16), 5, options=options, seed=0)
        for penalised in (False, True):
            exact, x = copy.deepcopy(network).double(), torch.rand(8, 3, 16, 16)
            expected = step(exact, x.double().requires_grad_(), penalised)
            for way in ("stock", "fast"):
                stock = penalised and way == "stock"
                layout = memory_format(network, torch.device("cpu"), stock_penalties=stock)
                trained = copy.deepcopy(network).to(memory_format=layout)
                trained = fast_double_backward(trained) if way == "fast" else trained
                images = x.contiguous(memory_format=layout).requires_grad_()
                steps = step(trained, images, penalised), expected
                vectors = [torch.cat([g.flatten() for g in gradients]) for gradients in steps]
                report(f"{name} {options}, {way}, {penalised=}", vectors[:1], vectors[1:])


def test_gradients_are_those_in_float64_with_one_thread_and_with_two():
    # Threads that wait give way to others: no test is to take longer where these are many.
    settings = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "tests.test_avx2"]
    how = {"capture_output": True, "text": True, "timeout": 300}  # it may hang, too
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, **how)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 200
    assert [row for row in rows if not float(row[0]) < 500] == []


if __name__ == "__main__":
    for threads in (2, 1):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        views()
        trainings()
