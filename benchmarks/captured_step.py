"""A whole training step, captured in a CUDA graph, against the same step run by Python.

The step is forward pass, penalty on the input gradient, backward pass, SGD with momentum. "Plain"
is without the penalty, and "fast" takes `reglib.fast_double_backward`. For LeNet-5, `torch.compile`
is timed too: it traces loss, penalty and gradients as one function, with `mode="reduce-overhead"`,
which makes CUDA graphs as well. *None of this was measured on a GPU yet.*
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import Row, median_row, ratios, time_in_turns
from benchmarks.training_step import CASES, Case, batch_of
from reglib import captured, fast_double_backward, input_gradient_penalty

BATCHES = (32, 128)
RATIO_GOAL, SPEED_GOAL = 2.3, 4.0
WARM_UP = 3
Step = Callable[..., Any]
# Whether a penalty is added, whether a graph is captured, the view, and the arithmetic.
TECHNIQUES: dict[str, tuple[bool, bool, str, str]] = {
    "plain, eager": (False, False, "stock", "float32"),
    "penalised, stock, eager": (True, False, "stock", "float32"),
    "penalised, fast, eager": (True, False, "fast", "float32"),
    "plain, captured": (False, True, "stock", "float32"),
    "penalised, stock, captured": (True, True, "stock", "float32"),
    "penalised, fast, captured": (True, True, "fast", "float32"),
    "penalised, stock, captured, TF32": (True, True, "stock", "TF32"),
    "penalised, stock, captured, bf16": (True, True, "stock", "bf16"),
}
COMPILED = "penalised, stock, torch.compile"


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time the steps, on a CUDA device: elsewhere a captured step is the step."""
    return rows(device, rounds=2 if quick else 15) if device.type == "cuda" else []


def rows(
    device: torch.device, *, rounds: int, cases: Mapping[str, Case] = CASES, calls: int = 10
) -> list[Row]:
    """Time the steps on any device; steps that cannot run are reported and left out."""
    rows: list[Row] = []
    for (name, case), size in itertools.product(cases.items(), BATCHES):
        compiled = name == "LeNet-5" and device.type == "cuda"
        steps = dict(_steps(case._replace(batch=size), device, compiled=compiled))
        repeated = {n: partial(_repeat, step, calls) for n, step in steps.items()}
        seconds = time_in_turns(repeated, rounds=rounds)
        rows += _rows(f"{name}, batch {size}", seconds, calls)
    return rows


def _rows(title: str, seconds: Mapping[str, list[float]], calls: int) -> Iterator[Row]:
    row = partial(median_row, "captured step")
    for name, values in seconds.items():
        yield row(f"{title}: {name}", [1000 * s / calls for s in values], "ms")
    penalised, plain = seconds["penalised, stock, captured"], seconds["plain, captured"]
    words = f"{title}: penalised / plain, captured"
    yield row(words, ratios(penalised, plain), "x", at_most=RATIO_GOAL)
    eager = ratios(seconds["penalised, stock, eager"], penalised)
    yield row(f"{title}: eager / captured, penalised", eager, "x", at_least=SPEED_GOAL)


def _repeat(step: Step, calls: int) -> None:
    for _ in range(calls):
        step()


def _steps(case: Case, device: torch.device, *, compiled: bool) -> Iterator[tuple[str, Step]]:
    """Yield steps by name, each with its own network, after the calls before a capture."""
    for name in [*TECHNIQUES, *[COMPILED] * compiled]:
        try:
            in_graphs = name == COMPILED
            step = _compiled(case, device) if in_graphs else _step(case, device, *TECHNIQUES[name])
            _repeat(step, WARM_UP + 2)
        except Exception as error:
            print(f"{case}: {name}: {type(error).__name__}: {str(error).splitlines()[:1]}")
            if name in ("plain, captured", "penalised, stock, captured"):
                raise
            continue
        yield name, step


def _step(
    case: Case, device: torch.device, penalised: bool, capture: bool, view: str, numbers: str
) -> Step:
    network, images, labels = batch_of(case, device, torch.contiguous_format)
    model: nn.Module = fast_double_backward(network) if view == "fast" else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    parameters = list(network.parameters())

    def context() -> AbstractContextManager[Any]:
        on = numbers == "bf16"
        return torch.autocast(device.type, torch.bfloat16) if on else nullcontext()

    def step(images: Tensor, labels: Tensor) -> Tensor:
        x = images.detach().requires_grad_(penalised)
        with context():
            logits = model(x)
            loss = F.cross_entropy(logits, labels)
            if penalised:
                loss = loss + input_gradient_penalty(logits, labels, x).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=parameters)
        optimizer.step()
        return loss.detach()

    run_step = captured(step, optimizer, warm_up=WARM_UP) if capture else step

    def call() -> None:
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = numbers == "TF32"
        run_step(images, labels)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    return call


def _compiled(case: Case, device: torch.device) -> Step:
    """Return a penalised step whose loss and gradients are one compiled function."""
    config: Any = torch._dynamo.config
    config.trace_autograd_ops = True  # an error where PyTorch cannot do so
    network, images, labels = batch_of(case, device, torch.contiguous_format)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    parameters = list(network.parameters())
    images.requires_grad_()  # before the call: inside it cannot be traced

    @partial(torch.compile, mode="reduce-overhead")
    def gradients(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        losses = F.cross_entropy(network(x), labels, reduction="none")
        (by_input,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        total = losses.mean() + by_input.square().flatten(1).sum(1).mean()
        return torch.autograd.grad(total, parameters)

    def call() -> None:
        for parameter, gradient in zip(parameters, gradients(images, labels), strict=True):
            parameter.grad = gradient
        optimizer.step()

    return call
